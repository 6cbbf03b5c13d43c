#include <assert.h>

#include "backend/cpu/ref/product.h"
#include "backend/cpu/ref/ref.h"
#include "backend/cpu/ref/swiglu7.h"

#define OUT_CHUNK 256 /* outputs whose sums are held at once */

typedef struct moe_job {
    const m2_moe_ffn_args *args;
    int64_t n_heads, n_rows, dim, width; /* n_rows: (head, expert) pairs */
} moe_job;

/* hid[i] for i in a block of the expert's width, zeros behind its end. */
static void hidden_block(const moe_job *job, int64_t x_idx, int64_t expert, int64_t first,
                         float hid[M2_BLOCK_K])
{
    const m2_moe_ffn_args *args = job->args;
    for (int64_t i = 0; i < M2_BLOCK_K; i++) {
        hid[i] = 0;
        if (first + i >= job->width) continue;
        const int64_t w_idx = expert * job->dim * job->width + first + i;
        m2_sum gate = m2_sum_begin(M2_BF16), up = m2_sum_begin(M2_BF16);
        m2_sum_products(&gate, args->x->data, M2_BF16, x_idx, args->w_gate->data, M2_BF16, w_idx,
                        job->width, job->dim);
        m2_sum_products(&up, args->x->data, M2_BF16, x_idx, args->w_up->data, M2_BF16, w_idx,
                        job->width, job->dim);
        hid[i] = m2_round_bf16(m2_ref_swiglu7_of(m2_sum_end(&gate), m2_sum_end(&up)));
    }
}

static void one_route(const moe_job *job, int64_t route, int64_t expert)
{
    const m2_moe_ffn_args *args = job->args;
    const int64_t head = expert / (job->n_rows / job->n_heads);
    const int64_t token = ((const int32_t *)args->gather_ids->data)[route];
    const int64_t x_idx = (token * job->n_heads + head) * job->dim;
    const float prob = ((const float *)args->probs_sorted->data)[route];
    for (int64_t d = 0; d < job->dim; d += OUT_CHUNK) {
        const int64_t n = job->dim - d < OUT_CHUNK ? job->dim - d : OUT_CHUNK;
        m2_sum sums[OUT_CHUNK];
        for (int64_t j = 0; j < n; j++) sums[j] = m2_sum_begin(M2_BF16);
        for (int64_t first = 0; first < job->width; first += M2_BLOCK_K) {
            const int64_t left = job->width - first;
            float hid[M2_BLOCK_K];
            hidden_block(job, x_idx, expert, first, hid);
            for (int64_t j = 0; j < n; j++)
                m2_sum_add(&sums[j], m2_block_sum(hid, M2_F32, 0, args->w_down->data, M2_BF16,
                                                  (expert * job->width + first) * job->dim + d + j,
                                                  job->dim, left < M2_BLOCK_K ? left : M2_BLOCK_K));
        }
        for (int64_t j = 0; j < n; j++)
            m2_store(args->routes->data, M2_BF16, route * job->dim + d + j,
                     m2_sum_end(&sums[j]) * prob);
    }
}

static void all_routes(void *context, int64_t begin, int64_t end, int worker)
{
    (void)worker;
    const moe_job *job = context;
    const int32_t *offsets = job->args->expert_offsets->data;
    int64_t expert = 0;
    for (int64_t route = begin; route < end; route++) {
        while (route >= offsets[expert + 1]) expert++;
        one_route(job, route, expert);
    }
}

/* A token's routes are added in ascending order of their experts, each sum rounded. */
static void combine_tokens(void *context, int64_t begin, int64_t end, int worker)
{
    (void)worker;
    const moe_job *job = context;
    const m2_moe_ffn_args *args = job->args;
    const int64_t n = args->x->shape[0], top_k = args->route_pos->shape[2];
    const int32_t *position = args->route_pos->data;
    for (int64_t t = begin; t < end; t++) {
        for (int64_t h = 0; h < job->n_heads; h++) {
            for (int64_t d = 0; d < job->dim; d++) {
                float y = 0;
                for (int64_t j = 0; j < top_k; j++) {
                    const int64_t route = position[(h * n + t) * top_k + j];
                    y = m2_round_bf16(y +
                                      m2_load(args->routes->data, M2_BF16, route * job->dim + d));
                }
                m2_store(args->y->data, M2_BF16, (t * job->n_heads + h) * job->dim + d, y);
            }
        }
    }
}

void m2_ref_moe_ffn(const m2_ops *ops, const m2_moe_ffn_args *args)
{
    moe_job job = { .args = args,
                    .n_heads = args->x->shape[1],
                    .n_rows = args->w_gate->shape[0],
                    .dim = args->x->shape[2],
                    .width = args->w_gate->shape[2] };
    const int64_t n_routes = m2_tensor_count(args->gather_ids);
    assert(args->x->dtype == M2_BF16 && args->w_gate->dtype == M2_BF16);
    assert(args->w_gate->shape[1] == job.dim && args->w_down->shape[1] == job.width);
    assert(m2_tensor_count(args->expert_offsets) == job.n_rows + 1);
    assert(m2_tensor_count(args->route_pos) == n_routes);
    assert(m2_tensor_count(args->routes) >= n_routes * job.dim);
    m2_parallel_for(ops->pool, n_routes, 8, all_routes, &job);
    m2_parallel_for(ops->pool, args->x->shape[0], 16, combine_tokens, &job);
}
