#include "backend/cpu/lanes/product.h"
#include "backend/cpu/lanes/ops.h"

typedef struct linear_job {
    const m2_linear_args *args;
    m2_pool *pool;
    product product;
    int64_t k, out;
    int n_groups;
    int64_t begin[M2_GROUPS_MAX + 1];       /* rows of each group                */
    int64_t first_piece[M2_GROUPS_MAX + 1]; /* pieces are cut inside a group     */
    int64_t n_column_pieces;
} linear_job;

static int64_t w_row_of(const linear_job *job, int64_t row)
{
    int group = 0;
    while (row >= job->begin[group + 1]) group++;
    return group * job->out;
}

static void linear_fill_a(const void *context, int64_t row, int64_t block, int64_t n_blocks,
                          float *to)
{
    const linear_job *job = context;
    const int64_t first = block * TILE_K, left = job->k - first;
    M2_LANES_NAME(widen)
    (job->args->x->data, job->args->x->dtype, row * job->k + first,
     left < n_blocks * TILE_K ? left : n_blocks * TILE_K, to);
}

static void linear_fill_b(const void *context, int64_t row, int64_t block, int64_t column,
                          int64_t n_columns, float *to)
{
    const linear_job *job = context;
    const int64_t first = block * TILE_K;
    M2_LANES_NAME(pack_columns)
    (job->args->w->data, job->args->w->dtype, (w_row_of(job, row) + column) * job->k + first,
     job->k, job->k - first, n_columns, to);
}

static void linear_store(const void *context, int64_t row, int64_t column, int64_t n_columns,
                         const float *sums)
{
    const linear_job *job = context;
    const m2_tensor *bias = job->args->bias;
    m2_tensor *y = job->args->y;
    const int64_t w_row = bias ? w_row_of(job, row) : 0;
    for (int64_t c = 0; c < n_columns; c += LANES) {
        const int64_t left = n_columns - c;
        v16 value = v_load(sums + c);
        if (bias) value = v_add(value, v_get_n(bias->data, bias->dtype, w_row + column + c, left));
        v_put_n(y->data, y->dtype, row * job->out + column + c, value, left);
    }
}

static void linear_pieces(void *context, int64_t begin, int64_t end, int worker)
{
    const linear_job *job = context;
    for (int64_t i = begin; i < end; i++) {
        const int64_t piece = i / job->n_column_pieces;
        int group = 0;
        while (piece >= job->first_piece[group + 1]) group++;
        const int64_t row = job->begin[group] + (piece - job->first_piece[group]) * PRODUCT_ROWS;
        const int64_t rows_left = job->begin[group + 1] - row;
        const int64_t column = i % job->n_column_pieces * PRODUCT_COLUMNS;
        const int64_t columns_left = job->out - column;
        M2_LANES_NAME(product_run)
        (&job->product, m2_pool_scratch(job->pool, worker), row,
         rows_left < PRODUCT_ROWS ? rows_left : PRODUCT_ROWS, column,
         columns_left < PRODUCT_COLUMNS ? columns_left : PRODUCT_COLUMNS);
    }
}

void M2_LANES_NAME(linear)(const m2_ops *ops, const m2_linear_args *args)
{
    if (!ops->pool) {
        m2_ref_linear(ops, args);
        return;
    }
    linear_job job = { .args = args,
                       .pool = ops->pool,
                       .k = args->x->shape[1],
                       .out = args->y->shape[1],
                       .n_groups = args->groups ? args->groups->n_groups : 1 };
    job.product = (product){ .context = &job,
                             .n_blocks = (job.k + TILE_K - 1) / TILE_K,
                             .has_partials = args->x->dtype == M2_F32,
                             .fill_a = linear_fill_a,
                             .fill_b = linear_fill_b,
                             .store = linear_store };
    job.begin[1] = args->x->shape[0];
    for (int g = 0; args->groups && g <= job.n_groups; g++) job.begin[g] = args->groups->begin[g];
    for (int g = 0; g < job.n_groups; g++)
        job.first_piece[g + 1] =
            job.first_piece[g] +
            (job.begin[g + 1] - job.begin[g] + PRODUCT_ROWS - 1) / PRODUCT_ROWS;
    job.n_column_pieces = (job.out + PRODUCT_COLUMNS - 1) / PRODUCT_COLUMNS;
    m2_parallel_for(ops->pool, job.first_piece[job.n_groups] * job.n_column_pieces, 1,
                    linear_pieces, &job);
}
