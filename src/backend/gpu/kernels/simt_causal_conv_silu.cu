/* simt_causal_conv_silu.cu - causal depthwise convolution over time, then SiLU.
 *
 * A thread owns one channel and walks over TOKENS tokens with the last values in registers, so that
 * x is read once; neighbouring threads are neighbouring channels.  Kernels of other sizes than the
 * release's 4 read their taps again and again (the cache has them).
 */
#include "backend/gpu/kernels/simt_parts.cuh"

#define TOKENS 16

template <typename T> static __device__ void put_silu(T *to, float sum)
{
    simt_put(to, 0, simt_silu(simt_round<T>(sum)));
}

template <typename T, int KERNEL>
static __global__ void causal_conv_window(const T *x, const T *w, T *y, int n, int n_channels)
{
    const int c = (int)blockIdx.x * SIMT_THREADS + (int)threadIdx.x;
    const int first = (int)blockIdx.y * TOKENS;
    const int last = first + TOKENS < n ? first + TOKENS : n;
    if (c < n_channels) {
        float weight[KERNEL], window[KERNEL];
#pragma unroll
        for (int j = 0; j < KERNEL; j++) weight[j] = simt_get(w, (int64_t)c * KERNEL + j);
#pragma unroll
        for (int j = 1; j < KERNEL; j++) {
            const int t = first - KERNEL + j;
            window[j] = t >= 0 ? simt_get(x, (int64_t)t * n_channels + c) : 0.0f;
        }
        for (int t = first; t < last; t++) {
#pragma unroll
            for (int j = 0; j + 1 < KERNEL; j++) window[j] = window[j + 1];
            window[KERNEL - 1] = simt_get(x, (int64_t)t * n_channels + c);
            float sum = 0.0f;
#pragma unroll
            for (int j = 0; j < KERNEL; j++) sum = fmaf(weight[j], window[j], sum);
            put_silu(y + (int64_t)t * n_channels + c, sum);
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
            put_silu(y + (int64_t)t * n_channels + c, sum);
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
    const dim3 grid(simt_blocks(n_channels, SIMT_THREADS), simt_blocks(n, TOKENS));
    if (kernel == 4)
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
