#include "backend/cpu/ref/ref.h"

#include "backend/cpu/ref/act.h"

#include <assert.h>

/* Norm and turn the `dim` values of `from` at `from_idx` into `to` at `to_idx`. */
static void norm_and_rotate(const m2_text_qk_norm_rope_args *args, int64_t row,
                            const m2_tensor *from, int64_t from_idx, const m2_tensor *w,
                            m2_tensor *to, int64_t to_idx)
{
    const m2_dtype dtype = to->dtype;
    const int64_t dim = w->shape[0], n_rot = args->cos->shape[1];
    const float scale = m2_ref_inverse_rms(from, from_idx, dim, args->eps);
    for (int64_t i = 0; i < dim; i++) {
        const float value = m2_ref_get(from, from_idx + i) * scale;
        m2_ref_put(to, to_idx + i, value * (m2_ref_get(w, i) + 1.0f));
    }
    for (int64_t i = 0; i < n_rot; i++) {
        const float c = m2_ref_get(args->cos, row * n_rot + i);
        const float s = m2_ref_get(args->sin, row * n_rot + i);
        const float a = m2_ref_get(to, to_idx + i), b = m2_ref_get(to, to_idx + n_rot + i);
        m2_ref_put(to, to_idx + i, m2_ref_round(dtype, a * c) + m2_ref_round(dtype, -b * s));
        m2_ref_put(to, to_idx + n_rot + i, m2_ref_round(dtype, b * c) + m2_ref_round(dtype, a * s));
    }
}

static void norm_rows(void *context, int64_t begin, int64_t end, int worker)
{
    const m2_text_qk_norm_rope_args *args = context;
    const int64_t n_heads = args->q->shape[1], n_kv = args->k->shape[1], dim = args->q->shape[2];
    (void)worker;
    for (int64_t row = begin; row < end; row++) {
        for (int64_t h = 0; h < n_heads; h++) {
            const int64_t head = row * n_heads + h;
            norm_and_rotate(args, row, args->qg, head * 2 * dim, args->q_norm, args->q, head * dim);
        }
        for (int64_t h = 0; h < n_kv; h++) {
            const int64_t head = (row * n_kv + h) * dim;
            norm_and_rotate(args, row, args->k_in, head, args->k_norm, args->k, head);
        }
    }
}

void m2_ref_text_qk_norm_rope(const m2_ops *ops, const m2_text_qk_norm_rope_args *args)
{
    assert(m2_tensor_count(args->qg) == 2 * m2_tensor_count(args->q));
    assert(m2_tensor_count(args->k_in) == m2_tensor_count(args->k));
    assert(2 * args->cos->shape[1] <= args->q->shape[2]);
    m2_text_qk_norm_rope_args copy = *args;
    m2_parallel_for(ops->pool, args->q->shape[0], 4, norm_rows, &copy);
}
