#include "backend/cpu/lanes/ops.h"
#include "backend/cpu/lanes/product.h"

/* A row of the product is (head, token): head * n + token. */
typedef struct logits_job {
    const m2_moe_logits_args *args;
    m2_pool *pool;
    product product;
    int64_t n, n_heads, dim, n_experts;
    int64_t n_row_pieces, n_column_pieces; /* of one head */
} logits_job;

static void logits_fill_a(const void *context, int64_t row, int64_t block, int64_t n_blocks,
                          float *to)
{
    const logits_job *job = context;
    const int64_t head = row / job->n, token = row % job->n;
    const int64_t first = block * TILE_K, left = job->dim - first;
    M2_LANES_NAME(widen)
    (job->args->x->data, M2_BF16, (token * job->n_heads + head) * job->dim + first,
     left < n_blocks * TILE_K ? left : n_blocks * TILE_K, to);
}

static void logits_fill_b(const void *context, int64_t row, int64_t block, int64_t column,
                          int64_t n_columns, float *to)
{
    const logits_job *job = context;
    const int64_t first = block * TILE_K;
    M2_LANES_NAME(pack_columns)
    (job->args->gate->data, M2_F32, (row / job->n * job->n_experts + column) * job->dim + first,
     job->dim, job->dim - first, n_columns, to);
}

static void logits_store(const void *context, int64_t row, int64_t column, int64_t n_columns,
                         const float *sums)
{
    const logits_job *job = context;
    memcpy((float *)job->args->logits->data + row * job->n_experts + column, sums,
           (size_t)n_columns * sizeof(float));
}

static void logits_pieces(void *context, int64_t begin, int64_t end, int worker)
{
    const logits_job *job = context;
    for (int64_t i = begin; i < end; i++) {
        const int64_t column = i % job->n_column_pieces * PRODUCT_COLUMNS;
        const int64_t piece = i / job->n_column_pieces;
        const int64_t head = piece / job->n_row_pieces;
        const int64_t token = piece % job->n_row_pieces * PRODUCT_ROWS;
        const int64_t rows = job->n - token, columns = job->n_experts - column;
        M2_LANES_NAME(product_run)
        (&job->product, m2_pool_scratch(job->pool, worker), head * job->n + token,
         rows < PRODUCT_ROWS ? rows : PRODUCT_ROWS, column,
         columns < PRODUCT_COLUMNS ? columns : PRODUCT_COLUMNS);
    }
}

void M2_LANES_NAME(moe_logits)(const m2_ops *ops, const m2_moe_logits_args *args)
{
    if (!ops->pool) {
        m2_ref_moe_logits(ops, args);
        return;
    }
    logits_job job = { .args = args,
                       .pool = ops->pool,
                       .n = args->x->shape[0],
                       .n_heads = args->x->shape[1],
                       .dim = args->x->shape[2],
                       .n_experts = args->logits->shape[2] };
    job.product = (product){ .context = &job,
                             .n_blocks = (job.dim + TILE_K - 1) / TILE_K,
                             .has_partials = 1,
                             .fill_a = logits_fill_a,
                             .fill_b = logits_fill_b,
                             .store = logits_store };
    job.n_row_pieces = (job.n + PRODUCT_ROWS - 1) / PRODUCT_ROWS;
    job.n_column_pieces = (job.n_experts + PRODUCT_COLUMNS - 1) / PRODUCT_COLUMNS;
    m2_parallel_for(ops->pool, job.n_heads * job.n_row_pieces * job.n_column_pieces, 1,
                    logits_pieces, &job);
}
