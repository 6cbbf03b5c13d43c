/* qk_norm_rope.c - queries and keys normed per head and turned, all in f32, rounded once; values
 * copied; rows put into sequence order.
 *
 *   for i < n_rot:  q'[i] = q[i] cos[i] - q[i + n_rot] sin[i]
 *                   q'[i + n_rot] = q[i + n_rot] cos[i] + q[i] sin[i]
 */
#include "backend/cpu/ref/groups.h"
#include "backend/cpu/ref/reduce.h"
#include "backend/cpu/ref/ref.h"

typedef struct head_params {
    const m2_tensor *qkv, *rope;
    int64_t dim, n_rot;
    float eps;
} head_params;

/* One head: [dim] of qkv from `from`, weights from `w`, to `to`. */
static void norm_and_turn(const head_params *params, int64_t from, const float *w,
                          const float *sines, m2_bf16 *to)
{
    const int64_t n_rot = params->n_rot;
    const float *cosines = sines + n_rot;
    const float scale = m2_ref_inverse_rms(params->qkv, from, params->dim, params->eps);

    for (int64_t i = 0; i < n_rot; i++) {
        const int64_t j = i + n_rot;
        const float a = (m2_ref_get(params->qkv, from + i) * scale) * (w[i] + 1.0f);
        const float b = (m2_ref_get(params->qkv, from + j) * scale) * (w[j] + 1.0f);
        to[i] = m2_f32_to_bf16(a * cosines[i] - b * sines[i]);
        to[j] = m2_f32_to_bf16(b * cosines[i] + a * sines[i]);
    }
    for (int64_t i = 2 * n_rot; i < params->dim; i++)
        to[i] = m2_f32_to_bf16((m2_ref_get(params->qkv, from + i) * scale) * (w[i] + 1.0f));
}

static void qkv_rows(void *context, int64_t begin, int64_t end, int worker)
{
    const m2_qk_norm_rope_args *args = context;
    const int64_t n_heads = args->q->shape[1], n_kv = args->k->shape[1], dim = args->q->shape[2];
    const int64_t width = (n_heads + 2 * n_kv) * dim, n_rot = args->rope->shape[1] / 2;
    const head_params params = { args->qkv, args->rope, dim, n_rot, args->eps };
    m2_bf16 *q = args->q->data, *k = args->k->data, *v = args->v->data;
    (void)worker;

    for (int64_t row = begin; row < end; row++) {
        const int64_t group = m2_ref_group_of(args->groups, row);
        const int64_t to = ((const int32_t *)args->seq->data)[row];
        const float *q_norm = (const float *)args->q_norm->data + group * dim;
        const float *k_norm = (const float *)args->k_norm->data + group * dim;
        const float *sines = (const float *)args->rope->data + row * 2 * n_rot;
        int64_t from = row * width;
        for (int64_t h = 0; h < n_heads; h++, from += dim)
            norm_and_turn(&params, from, q_norm, sines, q + (to * n_heads + h) * dim);
        for (int64_t h = 0; h < n_kv; h++, from += dim)
            norm_and_turn(&params, from, k_norm, sines, k + (to * n_kv + h) * dim);
        for (int64_t i = 0; i < n_kv * dim; i++)
            v[to * n_kv * dim + i] = m2_f32_to_bf16(m2_ref_get(args->qkv, from + i));
    }
}

void m2_ref_qk_norm_rope(const m2_ops *ops, const m2_qk_norm_rope_args *args)
{
    const int64_t dim = args->q->shape[2];
    assert(args->qkv->shape[1] == (args->q->shape[1] + 2 * args->k->shape[1]) * dim);
    assert(args->rope->shape[1] % 2 == 0 && args->rope->shape[1] <= dim);
    assert(args->rope->dtype == M2_F32 && args->q->dtype == M2_BF16 && args->k->dtype == M2_BF16);
    (void)dim;
    m2_qk_norm_rope_args copy = *args;
    m2_parallel_for(ops->pool, args->qkv->shape[0], M2_REF_ROWS_CHUNK, qkv_rows, &copy);
}
