#include "backend/cpu/lanes/ops.h"
#include "backend/cpu/lanes/vmath.h"

static void gate_rows(void *context, int64_t begin, int64_t end, int worker)
{
    (void)worker;
    const m2_attention_gate_args *args = context;
    const int64_t n_heads = args->a->shape[1], dim = args->a->shape[2];
    for (int64_t row = begin; row < end; row++) {
        const int64_t from = ((const int32_t *)args->seq->data)[row];
        for (int64_t h = 0; h < n_heads; h++) {
            const m2_bf16 gate = ((const m2_bf16 *)args->g->data)[row * n_heads + h];
            const v16 factor = v_set1(m2_sigmoidf(m2_bf16_to_f32(gate)));
            for (int64_t i = 0; i < dim; i += LANES) {
                const int64_t at = (from * n_heads + h) * dim + i;
                v_put_n(args->y->data, M2_BF16, (row * n_heads + h) * dim + i,
                        v_mul(v_get_n(args->a->data, M2_BF16, at, dim - i), factor), dim - i);
            }
        }
    }
}

void M2_LANES_NAME(attention_gate)(const m2_ops *ops, const m2_attention_gate_args *args)
{
    m2_parallel_for(ops->pool, args->a->shape[0], 16, gate_rows, (void *)args);
}
