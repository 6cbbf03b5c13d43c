#include "backend/cpu/ref/ref.h"

#include "backend/cpu/ref/act.h"
#include "core/fmath.h"

#include <assert.h>

static void silu_mul_values(void *context, int64_t begin, int64_t end, int worker)
{
    const m2_silu_mul_args *args = context;
    (void)worker;
    for (int64_t i = begin; i < end; i++) {
        const float gate = m2_ref_round(args->y->dtype, m2_siluf(m2_ref_get(args->gate, i)));
        m2_ref_put(args->y, i, gate * m2_ref_get(args->up, i));
    }
}

void m2_ref_silu_mul(const m2_ops *ops, const m2_silu_mul_args *args)
{
    const int64_t count = m2_tensor_count(args->y);
    assert(m2_tensor_count(args->gate) == count && m2_tensor_count(args->up) == count);
    m2_silu_mul_args copy = *args;
    m2_parallel_for(ops->pool, count, 4096, silu_mul_values, &copy);
}
