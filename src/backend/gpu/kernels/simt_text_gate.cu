/* simt_text_gate.cu - y = a * round(sigmoid(gate)); the gate is the second half of each head of qg.
 * A block takes some heads of some token, its x runs over a head's values, eight at a time.
 *
 * Twin     backend/cpu/ref/text_gate.c */
#include "backend/gpu/kernels/simt_parts.cuh"

template <typename T, int IS_WIDE>
static __global__ void text_gate_kernel(const T *a, const T *qg, T *y, int64_t n_heads, int dim)
{
    const int64_t head = (int64_t)blockIdx.x * blockDim.y + threadIdx.y;
    if (head < n_heads) {
        const T *gates = qg + (head * 2 + 1) * dim;
        for (int i = (int)threadIdx.x * SIMT_VECTOR; i < dim; i += (int)blockDim.x * SIMT_VECTOR) {
            float v[SIMT_VECTOR], gate[SIMT_VECTOR];
            simt_get_some<IS_WIDE>(a + head * dim, i, dim - i, v);
            simt_get_some<IS_WIDE>(gates, i, dim - i, gate);
#pragma unroll
            for (int j = 0; j < SIMT_VECTOR; j++)
                v[j] = __fmul_rn(v[j], simt_round<T>(simt_sigmoid(gate[j])));
            simt_put_some<IS_WIDE>(y + head * dim, i, dim - i, v);
        }
    }
}

extern "C" void m2_gpu_text_gate(const m2_ops *ops, const m2_text_gate_args *args)
{
    struct m2_gpu *gpu = m2_gpu_of(ops);
    const int64_t n_heads = args->a->shape[0] * args->a->shape[1], dim = args->a->shape[2];
    if (n_heads == 0) return;
    const dim3 block = simt_parts_block((dim + SIMT_VECTOR - 1) / SIMT_VECTOR);
    const int is_wide =
        simt_is_wide(args->a, dim) && simt_is_wide(args->qg, dim) && simt_is_wide(args->y, dim);
    SIMT_BY_TYPE(args->y->dtype, T, SIMT_BY_WIDTH(is_wide, WIDE, {
                     text_gate_kernel<T, WIDE>
                         <<<simt_blocks(n_heads, block.y), block, 0, gpu->stream>>>(
                             (const T *)args->a->data, (const T *)args->qg->data,
                             (T *)args->y->data, n_heads, (int)dim);
                 }));
    m2_gpu_launched(gpu, "text_gate");
}
