#include "backend/cpu/lanes/ops.h"
#include "backend/cpu/lanes/product.h"
#include "backend/cpu/lanes/vswiglu7.h"

#define HIDDEN_SCRATCH (M2_WORKER_SCRATCH_BYTES - PRODUCT_SCRATCH)

typedef struct moe_job {
    const m2_moe_ffn_args *args;
    m2_pool *pool;
    int64_t n_heads, experts_per_head, dim, width, stride; /* stride: width padded to 32 */
    int64_t n_routes;
} moe_job;

/* The routes [first, ...) of one expert that a worker handles together. */
typedef struct moe_run {
    const moe_job *job;
    int64_t expert, first;
    int is_up;   /* which of the two first products runs           */
    float *gate; /* [PRODUCT_ROWS][stride], then the hidden rows   */
} moe_run;

static void moe_fill_x(const void *context, int64_t row, int64_t block, int64_t n_blocks, float *to)
{
    const moe_run *run = context;
    const moe_job *job = run->job;
    const int64_t token = ((const int32_t *)job->args->gather_ids->data)[row];
    const int64_t head = run->expert / job->experts_per_head;
    const int64_t first = block * TILE_K, left = job->dim - first;
    M2_LANES_NAME(widen)
    (job->args->x->data, M2_BF16, (token * job->n_heads + head) * job->dim + first,
     left < n_blocks * TILE_K ? left : n_blocks * TILE_K, to);
}

static void moe_fill_gate_up(const void *context, int64_t row, int64_t block, int64_t column,
                             int64_t n_columns, float *to)
{
    (void)row;
    const moe_run *run = context;
    const moe_job *job = run->job;
    const m2_tensor *w = run->is_up ? job->args->w_up : job->args->w_gate;
    const int64_t first = block * TILE_K;
    M2_LANES_NAME(pack_rows)
    (w->data, M2_BF16, (run->expert * job->dim + first) * job->width + column, job->width,
     job->dim - first, n_columns, to);
}

/* Gates wait for the other product, which turns them into the hidden row. */
static void moe_store_hidden(const void *context, int64_t row, int64_t column, int64_t n_columns,
                             const float *sums)
{
    const moe_run *run = context;
    float *gate = run->gate + (row - run->first) * run->job->stride + column;
    for (int64_t c = 0; c < n_columns; c += LANES) {
        const v16 value = v_load(sums + c);
        v16 hidden = run->is_up ? v_round_bf16(v_swiglu7(v_load(gate + c), value)) : value;
        v_store_n(gate + c, hidden, n_columns - c < LANES ? n_columns - c : LANES);
    }
}

static void moe_fill_hidden(const void *context, int64_t row, int64_t block, int64_t n_blocks,
                            float *to)
{
    const moe_run *run = context;
    memcpy(to, run->gate + (row - run->first) * run->job->stride + block * TILE_K,
           (size_t)(n_blocks * TILE_K) * sizeof(float));
}

static void moe_fill_down(const void *context, int64_t row, int64_t block, int64_t column,
                          int64_t n_columns, float *to)
{
    (void)row;
    const moe_run *run = context;
    const moe_job *job = run->job;
    const int64_t first = block * TILE_K;
    M2_LANES_NAME(pack_rows)
    (job->args->w_down->data, M2_BF16, (run->expert * job->width + first) * job->dim + column,
     job->dim, job->width - first, n_columns, to);
}

static void moe_store_route(const void *context, int64_t row, int64_t column, int64_t n_columns,
                            const float *sums)
{
    const moe_run *run = context;
    const v16 prob = v_set1(((const float *)run->job->args->probs_sorted->data)[row]);
    for (int64_t c = 0; c < n_columns; c += LANES)
        v_put_n(run->job->args->routes->data, M2_BF16, row * run->job->dim + column + c,
                v_mul(v_load(sums + c), prob), n_columns - c);
}

static void run_columns(const product *p, void *scratch, int64_t first, int64_t n_rows,
                        int64_t n_columns)
{
    for (int64_t c = 0; c < n_columns; c += PRODUCT_COLUMNS) {
        const int64_t left = n_columns - c;
        M2_LANES_NAME(product_run)
        (p, scratch, first, n_rows, c, left < PRODUCT_COLUMNS ? left : PRODUCT_COLUMNS);
    }
}

static void expert_run(const moe_job *job, int64_t expert, int64_t first, int64_t n_rows,
                       unsigned char *scratch)
{
    moe_run run = { .job = job, .expert = expert, .first = first };
    run.gate = (float *)(void *)(scratch + PRODUCT_SCRATCH);
    if (job->stride > job->width)
        memset(run.gate, 0, (size_t)(n_rows * job->stride) * sizeof(float));
    product p = { .context = &run,
                  .n_blocks = (job->dim + TILE_K - 1) / TILE_K,
                  .fill_a = moe_fill_x,
                  .fill_b = moe_fill_gate_up,
                  .store = moe_store_hidden };
    run_columns(&p, scratch, first, n_rows, job->width);
    run.is_up = 1;
    run_columns(&p, scratch, first, n_rows, job->width);
    p = (product){ .context = &run,
                   .n_blocks = job->stride / TILE_K,
                   .fill_a = moe_fill_hidden,
                   .fill_b = moe_fill_down,
                   .store = moe_store_route };
    run_columns(&p, scratch, first, n_rows, job->dim);
}

/* Pieces of as many sorted routes as a product takes rows, cut where the expert changes. */
static void moe_pieces(void *context, int64_t begin, int64_t end, int worker)
{
    const moe_job *job = context;
    const int32_t *offsets = job->args->expert_offsets->data;
    for (int64_t i = begin; i < end; i++) {
        int64_t first = i * PRODUCT_ROWS, expert = 0;
        int64_t last = first + PRODUCT_ROWS;
        if (last > job->n_routes) last = job->n_routes;
        while (first < last) {
            while (first >= offsets[expert + 1]) expert++;
            const int64_t next = offsets[expert + 1] < last ? offsets[expert + 1] : last;
            expert_run(job, expert, first, next - first, m2_pool_scratch(job->pool, worker));
            first = next;
        }
    }
}

static void combine_tokens(void *context, int64_t begin, int64_t end, int worker)
{
    (void)worker;
    const moe_job *job = context;
    const m2_moe_ffn_args *args = job->args;
    const int64_t n = args->x->shape[0], top_k = args->route_pos->shape[2], dim = job->dim;
    const int32_t *position = args->route_pos->data;
    for (int64_t t = begin; t < end; t++) {
        for (int64_t h = 0; h < job->n_heads; h++) {
            for (int64_t d = 0; d < dim; d += LANES) {
                v16 y = v_zero();
                for (int64_t j = 0; j < top_k; j++) {
                    const int64_t route = position[(h * n + t) * top_k + j];
                    y = v_round_bf16(
                        v_add(y, v_get_n(args->routes->data, M2_BF16, route * dim + d, dim - d)));
                }
                v_put_n(args->y->data, M2_BF16, (t * job->n_heads + h) * dim + d, y, dim - d);
            }
        }
    }
}

void M2_LANES_NAME(moe_ffn)(const m2_ops *ops, const m2_moe_ffn_args *args)
{
    moe_job job = { .args = args,
                    .pool = ops->pool,
                    .n_heads = args->x->shape[1],
                    .dim = args->x->shape[2],
                    .width = args->w_gate->shape[2],
                    .n_routes = m2_tensor_count(args->gather_ids) };
    job.experts_per_head = args->w_gate->shape[0] / job.n_heads;
    job.stride = (job.width + TILE_K - 1) / TILE_K * TILE_K;
    if (!ops->pool || (size_t)(PRODUCT_ROWS * job.stride) * sizeof(float) > HIDDEN_SCRATCH) {
        m2_ref_moe_ffn(ops, args);
        return;
    }
    m2_parallel_for(ops->pool, (job.n_routes + PRODUCT_ROWS - 1) / PRODUCT_ROWS, 1, moe_pieces,
                    &job);
    m2_parallel_for(ops->pool, args->x->shape[0], 32, combine_tokens, &job);
}
