#include "backend/cpu/lanes/vswiglu7.h"

#include "backend/cpu/lanes/ops.h"

/* Rows follow each other without a gap, so the pairs are one long row. */
static void activate_pairs(void *context, int64_t begin, int64_t end, int worker)
{
    (void)worker;
    const m2_swiglu7_args *args = context;
    const m2_dtype dtype = args->x->dtype;
    for (int64_t i = begin; i < end; i += LANES) {
        const int64_t left = 2 * (end - i);
        const v16 a = v_get_n(args->x->data, dtype, 2 * i, left);
        const v16 b =
            left > LANES ? v_get_n(args->x->data, dtype, 2 * i + LANES, left - LANES) : v_zero();
        v_put_n(args->y->data, args->y->dtype, i, v_swiglu7(v_evens(a, b), v_odds(a, b)), end - i);
    }
}

void M2_LANES_NAME(swiglu7)(const m2_ops *ops, const m2_swiglu7_args *args)
{
    m2_parallel_for(ops->pool, m2_tensor_count(args->y), 4096, activate_pairs, (void *)args);
}
