/* simt_causal_conv_silu.cu - causal depthwise convolution over time, then SiLU.
 *
 * A thread owns some channels and walks over TOKENS tokens with the last values in registers, so
 * that x is read once; neighbouring threads are neighbouring channels.  Kernels of other sizes than
 * the release's 4 read their taps again and again (the cache has them).
 *
 * Order    taps ascending, one chain of FMAs
 * Twin     backend/cpu/ref/causal_conv_silu.c
 */
#include "backend/gpu/kernels/simt_parts.cuh"

#define TOKENS 16

/* Eight channels a thread, wide loads. */
template <typename T, int KERNEL>
static __global__ void causal_conv_window(const T *__restrict__ x, const T *w, T *__restrict__ y,
                                          int n, int n_channels)
{
    const int c = ((int)blockIdx.x * SIMT_THREADS + (int)threadIdx.x) * SIMT_VECTOR;
    const int first = (int)blockIdx.y * TOKENS;
    const int last = first + TOKENS < n ? first + TOKENS : n;
    if (c < n_channels) {
        float weight[KERNEL * SIMT_VECTOR], window[KERNEL][SIMT_VECTOR];
#pragma unroll
        for (int j = 0; j < KERNEL; j++) /* [channel][tap] */
            simt_get8(w, (int64_t)c * KERNEL + j * SIMT_VECTOR, weight + j * SIMT_VECTOR);
#pragma unroll
        for (int j = 1; j < KERNEL; j++) {
            const int t = first - KERNEL + j;
            simt_get8_if(t >= 0, x, (int64_t)t * n_channels + c, window[j]);
        }
#pragma unroll 4
        for (int t = first; t < last; t++) {
            float sums[SIMT_VECTOR];
#pragma unroll
            for (int i = 0; i < SIMT_VECTOR; i++) {
#pragma unroll
                for (int j = 0; j + 1 < KERNEL; j++) window[j][i] = window[j + 1][i];
            }
            simt_get8(x, (int64_t)t * n_channels + c, window[KERNEL - 1]);
#pragma unroll
            for (int i = 0; i < SIMT_VECTOR; i++) {
                float sum = 0.0f;
#pragma unroll
                for (int j = 0; j < KERNEL; j++)
                    sum = fmaf(weight[i * KERNEL + j], window[j][i], sum);
                sums[i] = simt_silu_to<T>(simt_round<T>(sum));
            }
            simt_put8(y, (int64_t)t * n_channels + c, sums);
        }
    }
}

template <typename T>
static __global__ void causal_conv_any(const T *x, const T *w, T *y, int n, int n_channels,
                                       int kernel)
{
    const int c = (int)blockIdx.x * SIMT_THREADS + (int)threadIdx.x;
    const int first = (int)blockIdx.y * TOKENS;
    const int last = first + TOKENS < n ? first + TOKENS : n;
    if (c < n_channels) {
        for (int t = first; t < last; t++) {
            float sum = 0.0f;
            for (int j = 0; j < kernel; j++) {
                const int from = t - (kernel - 1) + j;
                if (from >= 0)
                    sum = fmaf(simt_get(w, (int64_t)c * kernel + j),
                               simt_get(x, (int64_t)from * n_channels + c), sum);
            }
            simt_put(y, (int64_t)t * n_channels + c, simt_silu(simt_round<T>(sum)));
        }
    }
}

template <typename T>
static void causal_conv_silu(struct m2_gpu *gpu, const m2_causal_conv_silu_args *args)
{
    const T *x = (const T *)args->x->data, *w = (const T *)args->w->data;
    T *y = (T *)args->y->data;
    const int n = (int)args->x->shape[0], n_channels = (int)args->x->shape[1];
    const int kernel = (int)args->w->shape[2];
    const int is_wide = simt_is_wide(args->x, n_channels) && simt_is_wide(args->w, n_channels) &&
                        simt_is_wide(args->y, n_channels);
    const int per_block = kernel == 4 && is_wide ? SIMT_THREADS * SIMT_VECTOR : SIMT_THREADS;
    const dim3 grid(simt_blocks(n_channels, per_block), simt_blocks(n, TOKENS));
    if (kernel == 4 && is_wide)
        causal_conv_window<T, 4><<<grid, SIMT_THREADS, 0, gpu->stream>>>(x, w, y, n, n_channels);
    else
        causal_conv_any<T><<<grid, SIMT_THREADS, 0, gpu->stream>>>(x, w, y, n, n_channels, kernel);
}

extern "C" void m2_gpu_causal_conv_silu(const m2_ops *ops, const m2_causal_conv_silu_args *args)
{
    struct m2_gpu *gpu = m2_gpu_of(ops);
    if (m2_tensor_count(args->x) == 0) return;
    if (args->x->dtype == M2_BF16)
        causal_conv_silu<gpu_bf16>(gpu, args);
    else
        causal_conv_silu<float>(gpu, args);
    m2_gpu_launched(gpu, "causal_conv_silu");
}
