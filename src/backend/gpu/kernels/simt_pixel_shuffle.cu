/* simt_pixel_shuffle.cu - four values of a channel become a square of 2 x 2 pixels.  A block takes
 * one row of the input, a thread the four neighbouring values of one channel.
 *
 * Twin     backend/cpu/ref/pixel_shuffle.c */
#include "backend/gpu/kernels/simt_pixels.cuh"

template <typename T>
static __global__ void pixel_shuffle_kernel(const T *x, T *y, int width, int channels,
                                            int column_outer)
{
    const int64_t row = blockIdx.x; /* of all frames */
    const T *from = x + row * width * 4 * channels;
    T *to = y + row * 4 * width * channels;
    for (int px = (int)threadIdx.y; px < width; px += (int)blockDim.y) {
        for (int c = (int)threadIdx.x; c < channels; c += (int)blockDim.x) {
#pragma unroll
            for (int phase = 0; phase < 4; phase++) {
                const int q = column_outer ? phase % 2 : phase / 2;
                const int r = column_outer ? phase / 2 : phase % 2;
                to[((q * width + px) * 2 + r) * channels + c] =
                    from[(px * channels + c) * 4 + phase];
            }
        }
    }
}

extern "C" void m2_gpu_pixel_shuffle(const m2_ops *ops, const m2_pixel_shuffle_args *args)
{
    struct m2_gpu *gpu = m2_gpu_of(ops);
    const int64_t *shape = args->x->shape, channels = args->y->shape[3];
    if (m2_tensor_count(args->x) == 0) return;
    SIMT_BY_TYPE(args->x->dtype, T, {
        pixel_shuffle_kernel<T>
            <<<(unsigned int)(shape[0] * shape[1]), simt_parts_block(channels), 0, gpu->stream>>>(
                (const T *)args->x->data, (T *)args->y->data, (int)shape[2], (int)channels,
                args->column_outer);
    });
    m2_gpu_launched(gpu, "pixel_shuffle");
}
