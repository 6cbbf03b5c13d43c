#include <assert.h>

#include "backend/cpu/ref/product.h"
#include "backend/cpu/ref/ref.h"

static void add_part(void *context, int64_t begin, int64_t end, int worker)
{
    (void)worker;
    const m2_add_args *args = context;
    const m2_dtype dtype = args->a->dtype;
    for (int64_t i = begin; i < end; i++) {
        float sum = m2_load(args->a->data, dtype, i) + m2_load(args->b->data, dtype, i);
        if (args->c) sum += m2_load(args->c->data, dtype, i);
        m2_store(args->y->data, args->y->dtype, i, sum);
    }
}

void m2_ref_add(const m2_ops *ops, const m2_add_args *args)
{
    const int64_t n = m2_tensor_count(args->a);
    assert(args->b->dtype == args->a->dtype && m2_tensor_count(args->b) == n);
    assert(!args->c || (args->c->dtype == args->a->dtype && m2_tensor_count(args->c) == n));
    assert(m2_tensor_count(args->y) == n);
    m2_parallel_for(ops->pool, n, 8192, add_part, (void *)args);
}
