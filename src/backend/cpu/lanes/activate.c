#include "backend/cpu/lanes/ops.h"
#include "backend/cpu/lanes/vactivation.h"

static void activate_part(void *context, int64_t begin, int64_t end, int worker)
{
    (void)worker;
    const m2_activate_args *args = context;
    for (int64_t i = begin; i < end; i += LANES) {
        const v16 x = v_get_n(args->x->data, args->x->dtype, i, end - i);
        v_put_n(args->y->data, args->y->dtype, i, v_activation(args->activation, x), end - i);
    }
}

void M2_LANES_NAME(activate)(const m2_ops *ops, const m2_activate_args *args)
{
    m2_parallel_for(ops->pool, m2_tensor_count(args->x), 4096, activate_part, (void *)args);
}
