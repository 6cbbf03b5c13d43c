/* simt_attention_sinks.cu - what learned sinks leave of a finished attention.
 *
 * In       y [n, H, d] bf16, lse [H, n] f32, sinks [n_sinks, H] f32
 * Out      y, times e^lse / (e^lse + sum of e^sink), rounded
 * Order    the sinks of a head ascending */
#include "backend/gpu/dnn.h"
#include "backend/gpu/kernels/simt_common.cuh"

/* ln(e^a + e^b) */
static __device__ __forceinline__ float log_add(float a, float b)
{
    return (a > b ? a : b) + log1pf(expf(-fabsf(a - b)));
}

/* A thread takes eight values; dim is a multiple of that. */
static __global__ void __launch_bounds__(SIMT_THREADS)
    attention_sinks_kernel(gpu_bf16 *y, const float *lse, const float *sinks, int64_t n,
                           int n_heads, int dim, int n_sinks)
{
    const int64_t at = (blockIdx.x * (int64_t)SIMT_THREADS + threadIdx.x) * SIMT_VECTOR;
    if (at >= n * n_heads * dim) return;
    const int64_t row = at / ((int64_t)n_heads * dim);
    const int head = (int)(at / dim - row * n_heads);
    float sink = sinks[head], values[SIMT_VECTOR];
    for (int s = 1; s < n_sinks; s++) sink = log_add(sink, sinks[s * n_heads + head]);
    const float factor = simt_sigmoid(lse[head * n + row] - sink);
    simt_get8(y, at, values);
#pragma unroll
    for (int j = 0; j < SIMT_VECTOR; j++) values[j] *= factor;
    simt_put8(y, at, values);
}

extern "C" void m2_gpu_attention_sinks(m2_gpu *gpu, const m2_gpu_heads *heads, const float *sinks,
                                       int n_sinks)
{
    const int64_t n_values = heads->n * heads->n_heads * heads->dim;
    attention_sinks_kernel<<<simt_vector_blocks(n_values), SIMT_THREADS, 0, gpu->stream>>>(
        (gpu_bf16 *)heads->y, heads->lse, sinks, heads->n, (int)heads->n_heads, (int)heads->dim,
        n_sinks);
    m2_gpu_launched(gpu, "attention sinks");
}
