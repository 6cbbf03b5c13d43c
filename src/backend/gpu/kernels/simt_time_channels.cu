/* simt_time_channels.cu - overwrite the first columns of every row with the embedding of its time.
 *
 *   p = round(tau * 1000);  f[i] = 10000^(-i / half);  row = [cos(p f[0]) ..., sin(p f[0]) ...]
 *
 * Numerics  frequencies and phases in f64: p reaches 999, where an f32 phase would be off by 3e-5
 * Twin      backend/cpu/ref/time_channels.c */
#include "backend/gpu/kernels/simt_common.cuh"

#include <assert.h>

#define LN_10000 9.210340371976182736
#define TWO_PI   6.283185307179586476925

static __global__ void embed_kernel(const float *tau, float *x, int64_t n, int half, int64_t width)
{
    const int64_t at = (int64_t)blockIdx.x * SIMT_THREADS + threadIdx.x;
    const int64_t row = at / half;
    if (row >= n) return;
    const int i = (int)(at - row * half);
    const double position = (double)rintf(__fmul_rn(tau[row], 1000.0f));
    const double phase = position * exp(-LN_10000 * i / half);
    const float turned = (float)fma(-rint(phase / TWO_PI), TWO_PI, phase);
    x[row * width + i] = cosf(turned);
    x[row * width + half + i] = sinf(turned);
}

extern "C" void m2_gpu_time_channels(const m2_ops *ops, const m2_time_channels_args *args)
{
    struct m2_gpu *gpu = m2_gpu_of(ops);
    const int64_t n = args->x->shape[0];
    const int half = args->n_channels / 2;
    assert(args->x->dtype == M2_F32 && args->tau->dtype == M2_F32);
    assert(args->n_channels % 2 == 0 && args->n_channels <= args->x->shape[1]);
    assert(m2_tensor_count(args->tau) == n);
    if (n * half == 0) return;
    embed_kernel<<<(unsigned int)((n * half + SIMT_THREADS - 1) / SIMT_THREADS), SIMT_THREADS, 0,
                   gpu->stream>>>((const float *)args->tau->data, (float *)args->x->data, n, half,
                                  args->x->shape[1]);
    m2_gpu_launched(gpu, "time_channels");
}
