#include "backend/cpu/lanes/ops.h"
#include "backend/cpu/lanes/rows.h"
#include "backend/cpu/lanes/vmath.h"

static void norm_and_rotate(const m2_text_qk_norm_rope_args *args, int64_t row,
                            const m2_tensor *from, int64_t from_idx, const m2_tensor *w,
                            const m2_tensor *to, int64_t to_idx)
{
    const m2_dtype dtype = to->dtype;
    const m2_tensor *cosines = args->cos, *sines = args->sin;
    const int64_t dim = w->shape[0], n_rot = cosines->shape[1];
    const v16 scale = v_set1(v_inverse_rms(from, from_idx, dim, args->eps));
    for (int64_t i = 0; i < dim; i += LANES) {
        const v16 value = v_mul(v_get_n(from->data, from->dtype, from_idx + i, dim - i), scale);
        const v16 weight = v_add(v_get_n(w->data, w->dtype, i, dim - i), v_set1(1.0f));
        v_put_n(to->data, dtype, to_idx + i, v_mul(value, weight), dim - i);
    }
    for (int64_t i = 0; i < n_rot; i += LANES) {
        const int64_t left = n_rot - i;
        const v16 c = v_get_n(cosines->data, cosines->dtype, row * n_rot + i, left);
        const v16 s = v_get_n(sines->data, sines->dtype, row * n_rot + i, left);
        const v16 a = v_get_n(to->data, dtype, to_idx + i, left);
        const v16 b = v_get_n(to->data, dtype, to_idx + n_rot + i, left);
        const v16 first = v_add(v_round(dtype, v_mul(a, c)), v_round(dtype, v_mul(v_negate(b), s)));
        const v16 second = v_add(v_round(dtype, v_mul(b, c)), v_round(dtype, v_mul(a, s)));
        v_put_n(to->data, dtype, to_idx + i, first, left);
        v_put_n(to->data, dtype, to_idx + n_rot + i, second, left);
    }
}

static void norm_rows(void *context, int64_t begin, int64_t end, int worker)
{
    const m2_text_qk_norm_rope_args *args = context;
    const int64_t n_heads = args->q->shape[1], n_kv = args->k->shape[1], dim = args->q->shape[2];
    (void)worker;
    for (int64_t row = begin; row < end; row++) {
        for (int64_t head = row * n_heads; head < (row + 1) * n_heads; head++)
            norm_and_rotate(args, row, args->qg, head * 2 * dim, args->q_norm, args->q, head * dim);
        for (int64_t head = row * n_kv; head < (row + 1) * n_kv; head++)
            norm_and_rotate(args, row, args->k_in, head * dim, args->k_norm, args->k, head * dim);
    }
}

void M2_LANES_NAME(text_qk_norm_rope)(const m2_ops *ops, const m2_text_qk_norm_rope_args *args)
{
    m2_text_qk_norm_rope_args copy = *args;
    m2_parallel_for(ops->pool, args->q->shape[0], 4, norm_rows, &copy);
}
