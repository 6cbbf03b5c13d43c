#include "backend/cpu/lanes/ops.h"

static void add_part(void *context, int64_t begin, int64_t end, int worker)
{
    (void)worker;
    const m2_add_args *args = context;
    const m2_dtype dtype = args->a->dtype;
    for (int64_t i = begin; i < end; i += LANES) {
        const int64_t left = end - i;
        v16 sum =
            v_add(v_get_n(args->a->data, dtype, i, left), v_get_n(args->b->data, dtype, i, left));
        if (args->c) sum = v_add(sum, v_get_n(args->c->data, dtype, i, left));
        v_put_n(args->y->data, args->y->dtype, i, sum, left);
    }
}

void M2_LANES_NAME(add)(const m2_ops *ops, const m2_add_args *args)
{
    m2_parallel_for(ops->pool, m2_tensor_count(args->a), 8192, add_part, (void *)args);
}
