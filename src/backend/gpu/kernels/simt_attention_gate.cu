/* simt_attention_gate.cu - y[r] = a[seq[r]] * sigmoid(g[r]) per head: one block a row, rows in
 * modality order.
 *
 * Twin  backend/cpu/ref/attention_gate.c */
#include "backend/gpu/kernels/simt_common.cuh"

#include <assert.h>

template <int IS_WIDE>
static __global__ void gate_kernel(const gpu_bf16 *a, const gpu_bf16 *g, const int32_t *seq,
                                   gpu_bf16 *y, int n_heads, int dim)
{
    const int64_t row = blockIdx.x;
    const int width = n_heads * dim;
    const gpu_bf16 *from = a + (int64_t)seq[row] * width;
    gpu_bf16 *to = y + row * width;
    for (int i = threadIdx.x * SIMT_VECTOR; i < width; i += SIMT_THREADS * SIMT_VECTOR) {
        float value[SIMT_VECTOR];
        const int left = width - i;
        simt_get_some<IS_WIDE>(from, i, left, value);
        if (IS_WIDE) { /* heads begin at multiples of eight */
            const float gate = simt_sigmoid(simt_get(g, row * n_heads + i / dim));
#pragma unroll
            for (int j = 0; j < SIMT_VECTOR; j++) value[j] *= gate;
        } else {
            for (int j = 0; j < SIMT_VECTOR && j < left; j++)
                value[j] *= simt_sigmoid(simt_get(g, row * n_heads + (i + j) / dim));
        }
        simt_put_some<IS_WIDE>(to, i, left, value);
    }
}

extern "C" void m2_gpu_attention_gate(const m2_ops *ops, const m2_attention_gate_args *args)
{
    struct m2_gpu *gpu = m2_gpu_of(ops);
    const int64_t n = args->a->shape[0];
    const int n_heads = (int)args->a->shape[1], dim = (int)args->a->shape[2];
    assert(m2_tensor_count(args->y) == m2_tensor_count(args->a));
    assert(m2_tensor_count(args->g) == n * n_heads && args->g->dtype == M2_BF16);
    assert(args->a->dtype == M2_BF16 && args->y->dtype == M2_BF16);
    if (n == 0) return;
    const int is_wide = simt_is_wide(args->a, dim) && simt_is_wide(args->y, dim);
    SIMT_BY_WIDTH(is_wide, WIDE, {
        gate_kernel<WIDE><<<(unsigned int)n, SIMT_THREADS, 0, gpu->stream>>>(
            (const gpu_bf16 *)args->a->data, (const gpu_bf16 *)args->g->data,
            (const int32_t *)args->seq->data, (gpu_bf16 *)args->y->data, n_heads, dim);
    });
    m2_gpu_launched(gpu, "attention_gate");
}
