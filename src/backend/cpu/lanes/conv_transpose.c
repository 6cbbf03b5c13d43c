#include "backend/cpu/lanes/ops.h"
#include "backend/cpu/lanes/product.h"

/* Outputs t with the same phase (t + pad) % stride meet the same two taps, phase and phase +
 * stride: each phase is a matrix product over (tap, channel).  Row phase * n_steps + j of the
 * product is the output t = j * stride + phase - pad, of inputs j and j - 1. */
typedef struct transpose_job {
    const m2_conv_transpose_args *args;
    m2_pool *pool;
    product product;
    int64_t length, c_in, c_out, stride, pad, blocks_per_tap;
    int64_t n_steps, n_row_pieces, n_column_pieces; /* of one phase */
} transpose_job;

static void transpose_fill_a(const void *context, int64_t row, int64_t block, int64_t n_blocks,
                             float *to)
{
    const transpose_job *job = context;
    for (int64_t i = 0; i < n_blocks; i++) {
        const int64_t tap = (block + i) / job->blocks_per_tap;
        const int64_t first = (block + i) % job->blocks_per_tap * TILE_K;
        const int64_t from = row % job->n_steps - tap, left = job->c_in - first;
        const int64_t n = from < 0 || from >= job->length ? 0 : left < TILE_K ? left : TILE_K;
        if (n == 0)
            memset(to + i * TILE_K, 0, TILE_K * sizeof(float));
        else
            M2_LANES_NAME(widen)
        (job->args->x->data, M2_F32, from * job->c_in + first, n, to + i * TILE_K);
    }
}

static void transpose_fill_b(const void *context, int64_t row, int64_t block, int64_t column,
                             int64_t n_columns, float *to)
{
    const transpose_job *job = context;
    const int64_t tap = row / job->n_steps + block / job->blocks_per_tap * job->stride;
    const int64_t first = block % job->blocks_per_tap * TILE_K;
    M2_LANES_NAME(pack_columns)
    (job->args->w->data, M2_F32, (tap * job->c_out + column) * job->c_in + first, job->c_in,
     job->c_in - first, n_columns, to);
}

static void transpose_store(const void *context, int64_t row, int64_t column, int64_t n_columns,
                            const float *sums)
{
    const transpose_job *job = context;
    const int64_t phase = row / job->n_steps;
    const int64_t t = row % job->n_steps * job->stride + phase - job->pad;
    if (t < 0 || t >= job->args->y->shape[0]) return;
    float *y = (float *)job->args->y->data + t * job->c_out + column;
    const float *bias = job->args->bias ? (const float *)job->args->bias->data + column : NULL;
    for (int64_t c = 0; c < n_columns; c++) y[c] = bias ? sums[c] + bias[c] : sums[c];
}

static void transpose_pieces(void *context, int64_t begin, int64_t end, int worker)
{
    const transpose_job *job = context;
    for (int64_t i = begin; i < end; i++) {
        const int64_t column = i % job->n_column_pieces * PRODUCT_COLUMNS;
        const int64_t piece = i / job->n_column_pieces;
        const int64_t phase = piece / job->n_row_pieces;
        const int64_t step = piece % job->n_row_pieces * PRODUCT_ROWS;
        const int64_t rows = job->n_steps - step, columns = job->c_out - column;
        M2_LANES_NAME(product_run)
        (&job->product, m2_pool_scratch(job->pool, worker), phase * job->n_steps + step,
         rows < PRODUCT_ROWS ? rows : PRODUCT_ROWS, column,
         columns < PRODUCT_COLUMNS ? columns : PRODUCT_COLUMNS);
    }
}

void M2_LANES_NAME(conv_transpose)(const m2_ops *ops, const m2_conv_transpose_args *args)
{
    if (!ops->pool) {
        m2_ref_conv_transpose(ops, args);
        return;
    }
    transpose_job job = { .args = args,
                          .pool = ops->pool,
                          .length = args->x->shape[0],
                          .c_in = args->x->shape[1],
                          .c_out = args->y->shape[1],
                          .stride = args->stride,
                          .pad = (args->stride + 1) / 2,
                          .blocks_per_tap = (args->x->shape[1] + TILE_K - 1) / TILE_K };
    job.product = (product){ .context = &job,
                             .n_blocks = 2 * job.blocks_per_tap,
                             .has_partials = 1,
                             .fill_a = transpose_fill_a,
                             .fill_b = transpose_fill_b,
                             .store = transpose_store };
    job.n_steps = job.length + 1;
    job.n_row_pieces = (job.n_steps + PRODUCT_ROWS - 1) / PRODUCT_ROWS;
    job.n_column_pieces = (job.c_out + PRODUCT_COLUMNS - 1) / PRODUCT_COLUMNS;
    m2_parallel_for(ops->pool, job.stride * job.n_row_pieces * job.n_column_pieces, 1,
                    transpose_pieces, &job);
}
