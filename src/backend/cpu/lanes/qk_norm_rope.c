#include "backend/cpu/lanes/ops.h"
#include "backend/cpu/lanes/rows.h"
#include "backend/cpu/ref/groups.h"

#define DIM_MAX 512 /* wider heads go to the scalar version */

/* One row's rotation, with room for loads of sixteen behind its end. */
typedef struct turn {
    float sines[DIM_MAX / 2 + LANES], cosines[DIM_MAX / 2 + LANES];
    int64_t n_rot;
} turn;

static void norm_and_turn(const m2_qk_norm_rope_args *args, int64_t from, int64_t dim,
                          const float *w, const turn *t, m2_bf16 *to)
{
    float x[DIM_MAX + LANES] = { 0 }, y[DIM_MAX + LANES];
    const v16 scale = v_set1(v_inverse_rms(args->qkv, from, dim, args->eps));
    for (int64_t i = 0; i < dim; i += LANES) {
        const v16 value = v_mul(v_get_n(args->qkv->data, M2_BF16, from + i, dim - i), scale);
        const v16 weight = v_get_n(w, M2_F32, i, dim - i);
        v_store(x + i, v_mul(value, v_add(weight, v_set1(1.0f))));
    }
    /* Stores of sixteen reach over the end of each half: the next ones put that right. */
    for (int64_t i = 0; i < t->n_rot; i += LANES) {
        const v16 a = v_load(x + i), b = v_load(x + t->n_rot + i);
        v_store(y + i, v_sub(v_mul(a, v_load(t->cosines + i)), v_mul(b, v_load(t->sines + i))));
    }
    for (int64_t i = 0; i < t->n_rot; i += LANES) {
        const v16 a = v_load(x + i), b = v_load(x + t->n_rot + i);
        v_store(y + t->n_rot + i,
                v_add(v_mul(b, v_load(t->cosines + i)), v_mul(a, v_load(t->sines + i))));
    }
    memcpy(y + 2 * t->n_rot, x + 2 * t->n_rot, (size_t)(dim - 2 * t->n_rot) * sizeof(float));
    for (int64_t i = 0; i < dim; i += LANES) v_put_n(to, M2_BF16, i, v_load(y + i), dim - i);
}

static void qkv_rows(void *context, int64_t begin, int64_t end, int worker)
{
    (void)worker;
    const m2_qk_norm_rope_args *args = context;
    const int64_t n_heads = args->q->shape[1], n_kv = args->k->shape[1], dim = args->q->shape[2];
    const int64_t width = (n_heads + 2 * n_kv) * dim;
    m2_bf16 *q = args->q->data, *k = args->k->data, *v = args->v->data;
    turn t = { .n_rot = args->rope->shape[1] / 2 };
    for (int64_t row = begin; row < end; row++) {
        const int64_t group = m2_ref_group_of(args->groups, row);
        const int64_t to = ((const int32_t *)args->seq->data)[row];
        const float *q_norm = (const float *)args->q_norm->data + group * dim;
        const float *k_norm = (const float *)args->k_norm->data + group * dim;
        const float *rope = (const float *)args->rope->data + row * 2 * t.n_rot;
        memcpy(t.sines, rope, (size_t)t.n_rot * sizeof(float));
        memcpy(t.cosines, rope + t.n_rot, (size_t)t.n_rot * sizeof(float));
        int64_t from = row * width;
        for (int64_t h = 0; h < n_heads; h++, from += dim)
            norm_and_turn(args, from, dim, q_norm, &t, q + (to * n_heads + h) * dim);
        for (int64_t h = 0; h < n_kv; h++, from += dim)
            norm_and_turn(args, from, dim, k_norm, &t, k + (to * n_kv + h) * dim);
        memcpy(v + to * n_kv * dim, (const m2_bf16 *)args->qkv->data + from,
               (size_t)(n_kv * dim) * sizeof(m2_bf16));
    }
}

void M2_LANES_NAME(qk_norm_rope)(const m2_ops *ops, const m2_qk_norm_rope_args *args)
{
    if (args->q->shape[2] > DIM_MAX || args->qkv->dtype != M2_BF16) {
        m2_ref_qk_norm_rope(ops, args);
        return;
    }
    m2_parallel_for(ops->pool, args->qkv->shape[0], 16, qkv_rows, (void *)args);
}
