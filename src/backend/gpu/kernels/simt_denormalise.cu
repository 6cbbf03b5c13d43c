/* simt_denormalise.cu - the latent, channels first and f32, as the decoder's first activation.
 * A block takes one row of the output: y runs over its pixels, x over the channels.
 *
 * Twin     backend/cpu/ref/denormalise.c */
#include "backend/gpu/kernels/simt_parts.cuh"

template <typename T>
static __global__ void denormalise_kernel(const float *z, const float *mean, const float *std, T *y,
                                          int n_frames, int height, int width, int channels,
                                          int64_t t_begin)
{
    const int row = (int)blockIdx.x;
    const int64_t wanted = t_begin + row / height;
    const int64_t frame = wanted < n_frames ? wanted : n_frames - 1;
    for (int c = (int)threadIdx.x; c < channels; c += (int)blockDim.x) {
        const float *from = z + ((c * (int64_t)n_frames + frame) * height + row % height) * width;
        /* A division by the rounded reciprocal, as the reference does it: not a product. */
        const float reciprocal = 1.0f / std[c];
        for (int px = (int)threadIdx.y; px < width; px += (int)blockDim.y)
            simt_put(y, ((int64_t)row * width + px) * channels + c,
                     __fadd_rn(simt_round<T>(from[px]) / reciprocal, mean[c]));
    }
}

extern "C" void m2_gpu_denormalise(const m2_ops *ops, const m2_denormalise_args *args)
{
    struct m2_gpu *gpu = m2_gpu_of(ops);
    const int64_t *shape = args->y->shape;
    if (m2_tensor_count(args->y) == 0) return;
    SIMT_BY_TYPE(args->y->dtype, T, {
        denormalise_kernel<T>
            <<<(unsigned int)(shape[0] * shape[1]), simt_parts_block(shape[3]), 0, gpu->stream>>>(
                (const float *)args->z->data, (const float *)args->mean->data,
                (const float *)args->std->data, (T *)args->y->data, (int)args->z->shape[1],
                (int)shape[1], (int)shape[2], (int)shape[3], args->t_begin);
    });
    m2_gpu_launched(gpu, "denormalise");
}
