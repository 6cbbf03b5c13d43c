#include "backend/cpu/lanes/ops.h"
#include "backend/cpu/lanes/rows.h"
#include "backend/cpu/lanes/vmath.h"

static void norm_rows(void *context, int64_t begin, int64_t end, int worker)
{
    const m2_gated_rms_norm_args *args = context;
    const m2_tensor *o = args->o, *w = args->w, *z = args->z, *y = args->y;
    const int64_t n_heads = o->shape[1], dim = o->shape[2];
    (void)worker;
    for (int64_t head = begin * n_heads; head < end * n_heads; head++) {
        const v16 scale = v_set1(v_inverse_rms(o, head * dim, dim, args->eps));
        for (int64_t i = 0; i < dim; i += LANES) {
            const int64_t idx = head * dim + i, left = dim - i;
            const v16 value = v_get_n(o->data, o->dtype, idx, left);
            const v16 normed = v_round(y->dtype, v_mul(value, scale));
            const v16 weight = v_get_n(w->data, w->dtype, i, left);
            const v16 weighted = v_round(y->dtype, v_mul(weight, normed));
            const v16 gate = v_silu(v_get_n(z->data, z->dtype, idx, left));
            v_put_n(y->data, y->dtype, idx, v_mul(weighted, gate), left);
        }
    }
}

void M2_LANES_NAME(gated_rms_norm)(const m2_ops *ops, const m2_gated_rms_norm_args *args)
{
    m2_gated_rms_norm_args copy = *args;
    m2_parallel_for(ops->pool, args->o->shape[0], 4, norm_rows, &copy);
}
