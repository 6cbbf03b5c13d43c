#include "backend/cpu/ref/ref.h"

#include "backend/cpu/ref/act.h"
#include "core/fmath.h"

#include <assert.h>

static void norm_rows(void *context, int64_t begin, int64_t end, int worker)
{
    const m2_gated_rms_norm_args *args = context;
    const m2_dtype dtype = args->y->dtype;
    const int64_t n_heads = args->o->shape[1], dim = args->o->shape[2];
    (void)worker;
    for (int64_t head = begin * n_heads; head < end * n_heads; head++) {
        const float scale = m2_ref_inverse_rms(args->o, head * dim, dim, args->eps);
        for (int64_t i = 0; i < dim; i++) {
            const int64_t idx = head * dim + i;
            const float normed = m2_ref_round(dtype, m2_ref_get(args->o, idx) * scale);
            const float weighted = m2_ref_round(dtype, m2_ref_get(args->w, i) * normed);
            m2_ref_put(args->y, idx, weighted * m2_siluf(m2_ref_get(args->z, idx)));
        }
    }
}

void m2_ref_gated_rms_norm(const m2_ops *ops, const m2_gated_rms_norm_args *args)
{
    assert(args->o->n_dims == 3 && args->w->shape[0] == args->o->shape[2]);
    assert(m2_tensor_count(args->z) == m2_tensor_count(args->o));
    assert(m2_tensor_count(args->y) == m2_tensor_count(args->o));
    m2_gated_rms_norm_args copy = *args;
    m2_parallel_for(ops->pool, args->o->shape[0], 4, norm_rows, &copy);
}
