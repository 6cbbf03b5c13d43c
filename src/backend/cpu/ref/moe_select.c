/* moe_select.c - which experts a token meets in each head, and with what weight.
 *
 * The bias steers the choice only; weights come from the plain scores.  Equal keys go to the lower
 * id, as the reference's does on a GPU.
 */
#include "backend/cpu/ref/reduce.h"
#include "backend/cpu/ref/ref.h"
#include "core/fmath.h"

/* Insertion into ids[0 ... top_k) sorted by (key descending, id ascending); ids come ascending, so
 * a later equal key stays behind.  keys [top_k] is scratch. */
static void choose(const float *logits, const float *bias, int64_t n_experts, int64_t top_k,
                   int32_t *ids, float *keys)
{
    int64_t n_chosen = 0;
    for (int64_t e = 0; e < n_experts; e++) {
        const float key = m2_sigmoidf(logits[e]) + (bias ? bias[e] : 0.0f);
        int64_t at = n_chosen;
        while (at > 0 && key > keys[at - 1]) at--;
        if (at == top_k) continue;
        if (n_chosen < top_k) n_chosen++;
        for (int64_t i = n_chosen - 1; i > at; i--) {
            ids[i] = ids[i - 1];
            keys[i] = keys[i - 1];
        }
        ids[at] = (int32_t)e;
        keys[at] = key;
    }
}

static void select_rows(void *context, int64_t begin, int64_t end, int worker)
{
    const m2_moe_select_args *args = context;
    const int64_t n_tokens = args->logits->shape[1], n_experts = args->logits->shape[2];
    const int64_t top_k = args->topk_idx->shape[2];
    (void)worker;

    for (int64_t row = begin; row < end; row++) { /* row = head * n_tokens + token */
        const float *logits = (const float *)args->logits->data + row * n_experts;
        int32_t *ids = (int32_t *)args->topk_idx->data + row * top_k;
        float *probs = (float *)args->topk_prob->data + row * top_k;
        if (args->forced) {
            const int32_t *forced = (const int32_t *)args->forced->data + row * top_k;
            for (int64_t k = 0; k < top_k; k++) ids[k] = forced[k];
        } else {
            const float *bias = args->bias ? args->bias->data : NULL;
            choose(logits, bias ? bias + row / n_tokens * n_experts : NULL, n_experts, top_k, ids,
                   probs);
        }
        float sum = 0.0f;
        for (int64_t k = 0; k < top_k; k++) {
            assert(ids[k] >= 0 && ids[k] < n_experts);
            probs[k] = m2_sigmoidf(logits[ids[k]]);
            sum += fabsf(probs[k]);
        }
        if (sum < 1e-12f) sum = 1e-12f;
        for (int64_t k = 0; k < top_k; k++) probs[k] = probs[k] / sum * args->route_scale;
    }
}

void m2_ref_moe_select(const m2_ops *ops, const m2_moe_select_args *args)
{
    const m2_tensor *logits = args->logits;
    assert(logits->n_dims == 3 && args->topk_idx->n_dims == 3);
    assert(args->topk_idx->shape[0] == logits->shape[0]);
    assert(args->topk_idx->shape[1] == logits->shape[1]);
    assert(args->topk_idx->shape[2] <= logits->shape[2]);
    assert(!args->bias || m2_tensor_count(args->bias) == logits->shape[0] * logits->shape[2]);
    m2_moe_select_args copy = *args;
    m2_parallel_for(ops->pool, logits->shape[0] * logits->shape[1], M2_REF_ROWS_CHUNK, select_rows,
                    &copy);
}
