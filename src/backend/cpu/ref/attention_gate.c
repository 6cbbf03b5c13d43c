/* attention_gate.c - scale every head by the sigmoid of its gate, back in modality order. */
#include "backend/cpu/ref/reduce.h"
#include "backend/cpu/ref/ref.h"
#include "core/fmath.h"

static void gate_rows(void *context, int64_t begin, int64_t end, int worker)
{
    const m2_attention_gate_args *args = context;
    const int64_t n_heads = args->a->shape[1], dim = args->a->shape[2];
    (void)worker;

    for (int64_t row = begin; row < end; row++) {
        const int64_t from = ((const int32_t *)args->seq->data)[row];
        for (int64_t h = 0; h < n_heads; h++) {
            const float gate = m2_sigmoidf(m2_ref_get(args->g, row * n_heads + h));
            for (int64_t i = 0; i < dim; i++) {
                const float value = m2_ref_get(args->a, (from * n_heads + h) * dim + i);
                m2_ref_put(args->y, (row * n_heads + h) * dim + i, value * gate);
            }
        }
    }
}

void m2_ref_attention_gate(const m2_ops *ops, const m2_attention_gate_args *args)
{
    assert(args->a->n_dims == 3 && m2_tensor_count(args->y) == m2_tensor_count(args->a));
    assert(m2_tensor_count(args->g) == args->a->shape[0] * args->a->shape[1]);
    m2_attention_gate_args copy = *args;
    m2_parallel_for(ops->pool, args->a->shape[0], M2_REF_ROWS_CHUNK, gate_rows, &copy);
}
