#include <assert.h>

#include "backend/cpu/ref/ref.h"

static void find_part(void *context, int64_t begin, int64_t end, int worker)
{
    (void)worker;
    const m2_find_nonfinite_args *args = context;
    int found = 0;
    if (args->x->dtype == M2_BF16) {
        const m2_bf16 *x = args->x->data;
        for (int64_t i = begin; i < end; i++) found |= (x[i].bits & 0x7f80u) == 0x7f80u;
    } else {
        const float *x = args->x->data;
        for (int64_t i = begin; i < end; i++) found |= !(x[i] - x[i] == 0.0f);
    }
    if (found) __atomic_store_n((int32_t *)args->flag->data, 1, __ATOMIC_RELAXED);
}

void m2_ref_find_nonfinite(const m2_ops *ops, const m2_find_nonfinite_args *args)
{
    assert(args->x->dtype == M2_F32 || args->x->dtype == M2_BF16);
    assert(args->flag->dtype == M2_I32);
    m2_parallel_for(ops->pool, m2_tensor_count(args->x), 16384, find_part, (void *)args);
}
