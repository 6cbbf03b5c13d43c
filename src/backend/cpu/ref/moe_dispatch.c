/* moe_dispatch.c - routes sorted by (head, expert), tokens ascending inside one.
 *
 * Every token has top_k routes in every head, so head h owns the sorted positions from
 * h * n_tokens * top_k on and heads are sorted apart.  The offsets of a head serve as counters, then
 * as write positions, and end as what they are named.
 */
#include <assert.h>

#include "backend/cpu/ref/ref.h"

/* Positions of one token in ascending order, which is that of its experts. */
static void sort_ascending(int32_t *values, int64_t n)
{
    for (int64_t i = 1; i < n; i++) {
        const int32_t value = values[i];
        int64_t at = i;
        for (; at > 0 && values[at - 1] > value; at--) values[at] = values[at - 1];
        values[at] = value;
    }
}

static void sort_heads(void *context, int64_t begin, int64_t end, int worker)
{
    const m2_moe_dispatch_args *args = context;
    const int64_t n_tokens = args->topk_idx->shape[1], top_k = args->topk_idx->shape[2];
    const int64_t n_routes = n_tokens * top_k, n_experts = args->n_experts;
    int32_t *gather_ids = args->gather_ids->data;
    float *probs_sorted = args->probs_sorted->data;
    (void)worker;

    for (int64_t h = begin; h < end; h++) {
        const int32_t *ids = (const int32_t *)args->topk_idx->data + h * n_routes;
        const float *probs = (const float *)args->topk_prob->data + h * n_routes;
        int32_t *offsets = (int32_t *)args->expert_offsets->data + h * n_experts;
        int32_t *route_pos = (int32_t *)args->route_pos->data + h * n_routes;

        for (int64_t e = 0; e < n_experts; e++) offsets[e] = 0;
        for (int64_t r = 0; r < n_routes; r++) offsets[ids[r]]++;
        int32_t next = (int32_t)(h * n_routes);
        for (int64_t e = 0; e < n_experts; e++) {
            const int32_t count = offsets[e];
            offsets[e] = next;
            next += count;
        }
        for (int64_t r = 0; r < n_routes; r++) {
            const int32_t at = offsets[ids[r]]++;
            gather_ids[at] = (int32_t)(r / top_k);
            probs_sorted[at] = probs[r];
            route_pos[r] = at;
        }
        for (int64_t t = 0; t < n_tokens; t++) sort_ascending(route_pos + t * top_k, top_k);
        for (int64_t e = n_experts - 1; e > 0; e--) offsets[e] = offsets[e - 1];
        if (n_experts > 0) offsets[0] = (int32_t)(h * n_routes);
    }
}

void m2_ref_moe_dispatch(const m2_ops *ops, const m2_moe_dispatch_args *args)
{
    const int64_t n_heads = args->topk_idx->shape[0];
    const int64_t n_routes = m2_tensor_count(args->topk_idx);
    assert(n_routes <= INT32_MAX);
    assert(m2_tensor_count(args->expert_offsets) == n_heads * args->n_experts + 1);
    assert(m2_tensor_count(args->route_pos) == n_routes);
    m2_moe_dispatch_args copy = *args;
    m2_parallel_for(ops->pool, n_heads, 1, sort_heads, &copy);
    ((int32_t *)args->expert_offsets->data)[n_heads * args->n_experts] = (int32_t)n_routes;
}
