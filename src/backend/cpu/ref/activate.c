#include <assert.h>

#include "backend/cpu/ref/activation.h"
#include "backend/cpu/ref/product.h"
#include "backend/cpu/ref/ref.h"

static void activate_part(void *context, int64_t begin, int64_t end, int worker)
{
    (void)worker;
    const m2_activate_args *args = context;
    for (int64_t i = begin; i < end; i++)
        m2_store(args->y->data, args->y->dtype, i,
                 activation_of(args->activation, m2_load(args->x->data, args->x->dtype, i)));
}

void m2_ref_activate(const m2_ops *ops, const m2_activate_args *args)
{
    assert(m2_tensor_count(args->x) == m2_tensor_count(args->y));
    m2_parallel_for(ops->pool, m2_tensor_count(args->x), 4096, activate_part, (void *)args);
}
