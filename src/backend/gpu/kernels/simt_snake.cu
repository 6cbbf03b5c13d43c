/* simt_snake.cu - y = x + sin(a x)^2 / (b + 1e-9), a and b exponentials of a channel's parameters.
 * A thread keeps to VALUES neighbouring channels, so that the exponentials are taken once, and
 * walks over SAMPLES samples.
 *
 * Twin     backend/cpu/ref/snake.c */
#include "backend/gpu/kernels/simt_parts.cuh"

#define SAMPLES 16 /* of one thread */

static __device__ __forceinline__ float snake_value(float x, float a, float gain)
{
    const float wave = sinf(__fmul_rn(a, x));
    return __fadd_rn(x, __fmul_rn(gain, __fmul_rn(wave, wave)));
}

template <int VALUES>
static __global__ void snake_kernel(const float *x, const float *alpha, const float *beta, float *y,
                                    int64_t n_samples, int channels)
{
    const int64_t first = (int64_t)blockIdx.x * blockDim.y * SAMPLES + threadIdx.y;
    for (int c = (int)threadIdx.x * VALUES; c < channels; c += (int)blockDim.x * VALUES) {
        float a[VALUES], gain[VALUES];
#pragma unroll
        for (int j = 0; j < VALUES; j++) {
            a[j] = expf(alpha[c + j]);
            gain[j] = 1.0f / (expf(beta[c + j]) + 1e-9f);
        }
        for (int s = 0; s < SAMPLES; s++) {
            const int64_t sample = first + s * (int)blockDim.y;
            if (sample < n_samples) {
                const int64_t i = sample * channels + c;
                if (VALUES == 4) {
                    const float4 v = *(const float4 *)(x + i);
                    *(float4 *)(y + i) =
                        make_float4(snake_value(v.x, a[0], gain[0]),
                                    snake_value(v.y, a[1 % VALUES], gain[1 % VALUES]),
                                    snake_value(v.z, a[2 % VALUES], gain[2 % VALUES]),
                                    snake_value(v.w, a[3 % VALUES], gain[3 % VALUES]));
                } else {
                    y[i] = snake_value(x[i], a[0], gain[0]);
                }
            }
        }
    }
}

template <int VALUES> static void snake(struct m2_gpu *gpu, const m2_snake_args *args)
{
    const int64_t n_samples = args->x->shape[0], channels = args->x->shape[1];
    const dim3 block = simt_parts_block(channels / VALUES);
    snake_kernel<VALUES>
        <<<simt_blocks(n_samples, (int64_t)block.y * SAMPLES), block, 0, gpu->stream>>>(
            (const float *)args->x->data, (const float *)args->alpha->data,
            (const float *)args->beta->data, (float *)args->y->data, n_samples, (int)channels);
}

extern "C" void m2_gpu_snake(const m2_ops *ops, const m2_snake_args *args)
{
    struct m2_gpu *gpu = m2_gpu_of(ops);
    if (m2_tensor_count(args->x) == 0) return;
    if (args->x->shape[1] % 4 == 0 && simt_is_wide(args->x, 0) && simt_is_wide(args->y, 0))
        snake<4>(gpu, args);
    else
        snake<1>(gpu, args);
    m2_gpu_launched(gpu, "snake");
}
