#include "backend/cpu/lanes/ops.h"
#include "backend/cpu/lanes/rows.h"
#include "backend/cpu/lanes/vmath.h"

static void silu_mul_values(void *context, int64_t begin, int64_t end, int worker)
{
    const m2_silu_mul_args *args = context;
    const m2_tensor *gate = args->gate, *up = args->up, *y = args->y;
    (void)worker;
    for (int64_t i = begin; i < end; i += LANES) {
        const int64_t left = end - i;
        const v16 silu = v_silu(v_get_n(gate->data, gate->dtype, i, left));
        const v16 other = v_get_n(up->data, up->dtype, i, left);
        v_put_n(y->data, y->dtype, i, v_mul(v_round(y->dtype, silu), other), left);
    }
}

void M2_LANES_NAME(silu_mul)(const m2_ops *ops, const m2_silu_mul_args *args)
{
    m2_silu_mul_args copy = *args;
    m2_parallel_for(ops->pool, m2_tensor_count(args->y), 4096, silu_mul_values, &copy);
}
