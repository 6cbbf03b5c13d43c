#include <assert.h>

#include "backend/cpu/ref/ref.h"

void m2_ref_advance(const m2_ops *ops, const m2_advance_args *args)
{
    (void)ops;
    assert(args->counter->dtype == M2_I32);
    ++*(int32_t *)args->counter->data;
}
