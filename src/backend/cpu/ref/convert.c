#include <assert.h>

#include "backend/cpu/ref/ref.h"

static void convert_part(void *context, int64_t begin, int64_t end, int worker)
{
    (void)worker;
    const m2_convert_args *args = context;
    const size_t from_bytes = m2_dtype_bytes(args->x->dtype);
    const size_t to_bytes = m2_dtype_bytes(args->y->dtype);
    m2_convert((const char *)args->x->data + (size_t)begin * from_bytes, args->x->dtype,
               (char *)args->y->data + (size_t)begin * to_bytes, args->y->dtype, end - begin);
}

void m2_ref_convert(const m2_ops *ops, const m2_convert_args *args)
{
    assert(m2_tensor_count(args->x) == m2_tensor_count(args->y));
    m2_parallel_for(ops->pool, m2_tensor_count(args->x), 16384, convert_part, (void *)args);
}
