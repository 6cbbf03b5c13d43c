/* swiglu7.c - y[i] = swiglu7(x[2i], x[2i + 1]): the columns are pairs of gate and linear part. */
#include "backend/cpu/ref/swiglu7.h"

#include "backend/cpu/ref/reduce.h"
#include "backend/cpu/ref/ref.h"

static void activate_rows(void *context, int64_t begin, int64_t end, int worker)
{
    const m2_swiglu7_args *args = context;
    const int64_t width = args->y->shape[1];
    (void)worker;

    for (int64_t i = begin * width; i < end * width; i++)
        m2_ref_put(args->y, i,
                   m2_ref_swiglu7_of(m2_ref_get(args->x, 2 * i), m2_ref_get(args->x, 2 * i + 1)));
}

void m2_ref_swiglu7(const m2_ops *ops, const m2_swiglu7_args *args)
{
    assert(args->x->n_dims == 2 && args->x->shape[1] == 2 * args->y->shape[1]);
    assert(args->x->shape[0] == args->y->shape[0]);
    m2_swiglu7_args copy = *args;
    m2_parallel_for(ops->pool, args->x->shape[0], M2_REF_ROWS_CHUNK, activate_rows, &copy);
}
