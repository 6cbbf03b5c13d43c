#include "backend/cpu/lanes/ops.h"
#include "backend/cpu/lanes/rows.h"
#include "backend/cpu/lanes/vmath.h"

static void gate_rows(void *context, int64_t begin, int64_t end, int worker)
{
    const m2_text_gate_args *args = context;
    const m2_tensor *a = args->a, *qg = args->qg, *y = args->y;
    const int64_t n_heads = a->shape[1], dim = a->shape[2];
    (void)worker;
    for (int64_t head = begin * n_heads; head < end * n_heads; head++) {
        for (int64_t i = 0; i < dim; i += LANES) {
            const int64_t left = dim - i;
            const v16 gate = v_get_n(qg->data, qg->dtype, (head * 2 + 1) * dim + i, left);
            const v16 value = v_get_n(a->data, a->dtype, head * dim + i, left);
            const v16 gated = v_mul(value, v_round(y->dtype, v_sigmoid(gate)));
            v_put_n(y->data, y->dtype, head * dim + i, gated, left);
        }
    }
}

void M2_LANES_NAME(text_gate)(const m2_ops *ops, const m2_text_gate_args *args)
{
    m2_text_gate_args copy = *args;
    m2_parallel_for(ops->pool, args->a->shape[0], 4, gate_rows, &copy);
}
