#include <assert.h>

#include "backend/cpu/ref/ref.h"

static void transpose_part(void *context, int64_t begin, int64_t end, int worker)
{
    (void)worker;
    const m2_transpose_args *args = context;
    const int64_t a = args->x->shape[0], b = args->x->shape[1];
    const float *x = args->x->data;
    float *y = args->y->data;
    for (int64_t j = begin; j < end; j++)
        for (int64_t i = 0; i < a; i++) y[j * a + i] = x[i * b + j];
}

void m2_ref_transpose(const m2_ops *ops, const m2_transpose_args *args)
{
    assert(args->x->dtype == M2_F32 && args->y->dtype == M2_F32);
    assert(args->y->shape[0] == args->x->shape[1] && args->y->shape[1] == args->x->shape[0]);
    m2_parallel_for(ops->pool, args->x->shape[1], 16, transpose_part, (void *)args);
}
