#include "backend/cpu/ref/ref.h"

#include "backend/cpu/ref/act.h"
#include "core/fmath.h"

#include <assert.h>

static void gate_rows(void *context, int64_t begin, int64_t end, int worker)
{
    const m2_text_gate_args *args = context;
    const int64_t n_heads = args->a->shape[1], dim = args->a->shape[2];
    (void)worker;
    for (int64_t head = begin * n_heads; head < end * n_heads; head++) {
        for (int64_t i = 0; i < dim; i++) {
            const float gate = m2_sigmoidf(m2_ref_get(args->qg, (head * 2 + 1) * dim + i));
            const float value = m2_ref_get(args->a, head * dim + i);
            m2_ref_put(args->y, head * dim + i, value * m2_ref_round(args->y->dtype, gate));
        }
    }
}

void m2_ref_text_gate(const m2_ops *ops, const m2_text_gate_args *args)
{
    assert(args->a->n_dims == 3 && m2_tensor_count(args->qg) == 2 * m2_tensor_count(args->a));
    assert(m2_tensor_count(args->y) == m2_tensor_count(args->a));
    m2_text_gate_args copy = *args;
    m2_parallel_for(ops->pool, args->a->shape[0], 4, gate_rows, &copy);
}
