/* simt_text_gate.cu - y = a * round(sigmoid(gate)); the gate is the second half of each head of qg.
 * A block takes some heads of some token, its x runs over a head's values. */
#include "backend/gpu/kernels/simt_parts.cuh"

template <typename T>
static __global__ void text_gate_kernel(const T *a, const T *qg, T *y, int64_t n_heads, int dim)
{
    const int64_t head = (int64_t)blockIdx.x * blockDim.y + threadIdx.y;
    if (head < n_heads) {
        const T *gate = qg + (head * 2 + 1) * dim;
        for (int i = (int)threadIdx.x; i < dim; i += (int)blockDim.x) {
            const float factor = simt_round<T>(simt_sigmoid(simt_get(gate, i)));
            simt_put(y, head * dim + i, __fmul_rn(simt_get(a, head * dim + i), factor));
        }
    }
}

template <typename T> static void text_gate(struct m2_gpu *gpu, const m2_text_gate_args *args)
{
    const int64_t n_heads = args->a->shape[0] * args->a->shape[1], dim = args->a->shape[2];
    const dim3 block = simt_parts_block(dim);
    text_gate_kernel<T><<<simt_blocks(n_heads, block.y), block, 0, gpu->stream>>>(
        (const T *)args->a->data, (const T *)args->qg->data, (T *)args->y->data, n_heads, (int)dim);
}

extern "C" void m2_gpu_text_gate(const m2_ops *ops, const m2_text_gate_args *args)
{
    struct m2_gpu *gpu = m2_gpu_of(ops);
    if (m2_tensor_count(args->a) == 0) return;
    if (args->y->dtype == M2_BF16)
        text_gate<gpu_bf16>(gpu, args);
    else
        text_gate<float>(gpu, args);
    m2_gpu_launched(gpu, "text_gate");
}
