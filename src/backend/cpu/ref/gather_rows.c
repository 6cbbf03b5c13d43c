#include <assert.h>
#include <string.h>

#include "backend/cpu/ref/ref.h"

static void gather_part(void *context, int64_t begin, int64_t end, int worker)
{
    (void)worker;
    const m2_gather_rows_args *args = context;
    const int32_t *idx = args->idx->data;
    size_t row_bytes = m2_dtype_bytes(args->x->dtype);
    for (int i = 1; i < args->x->n_dims; i++) row_bytes *= (size_t)args->x->shape[i];
    for (int64_t i = begin; i < end; i++) {
        char *to = (char *)args->y->data + (size_t)i * row_bytes;
        if (idx[i] < 0) {
            memset(to, 0, row_bytes);
        } else {
            assert(idx[i] < args->x->shape[0]);
            memcpy(to, (const char *)args->x->data + (size_t)idx[i] * row_bytes, row_bytes);
        }
    }
}

void m2_ref_gather_rows(const m2_ops *ops, const m2_gather_rows_args *args)
{
    assert(args->idx->dtype == M2_I32 && args->y->dtype == args->x->dtype);
    assert(args->y->shape[0] == args->idx->shape[0]);
    m2_parallel_for(ops->pool, args->idx->shape[0], 64, gather_part, (void *)args);
}
