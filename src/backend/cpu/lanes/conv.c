#include "backend/cpu/lanes/ops.h"
#include "backend/cpu/lanes/product.h"

/* A row of the product is a sample (t, y, x), K is (tap, channel) with channels padded to 32. */
typedef struct conv_job {
    const m2_conv_args *args;
    m2_pool *pool;
    product product;
    int64_t c_in, c_out, blocks_per_tap, n_samples, n_column_pieces;
    int pad_left;
} conv_job;

/* First element of the sample that tap (dt, dy, dx) reads for the output (t, y, x); -1 outside. */
static int64_t tap_idx(const conv_job *job, const int64_t at[3], const int64_t tap[3])
{
    const m2_tensor *x = job->args->x;
    const int64_t row = at[1] + tap[1] - job->args->kernel[1] / 2;
    const int64_t column = at[2] + tap[2] * job->args->dilation - job->pad_left;
    if (row < 0 || row >= x->shape[1] || column < 0 || column >= x->shape[2]) return -1;
    int64_t frame = at[0] + tap[0] - job->args->kernel[0] / 2;
    frame = frame < 0 ? 0 : frame >= x->shape[0] ? x->shape[0] - 1 : frame;
    return ((frame * x->shape[1] + row) * x->shape[2] + column) * job->c_in;
}

static void conv_fill_a(const void *context, int64_t row, int64_t block, int64_t n_blocks,
                        float *to)
{
    const conv_job *job = context;
    const m2_conv_args *args = job->args;
    const int64_t height = args->x->shape[1], width = args->x->shape[2];
    const int64_t at[3] = { row / (height * width), row / width % height, row % width };
    const int64_t first_tap = block / job->blocks_per_tap;
    const int64_t kh = args->kernel[1], kw = args->kernel[2];
    int64_t tap[3] = { first_tap / (kh * kw), first_tap / kw % kh, first_tap % kw };
    int64_t in_tap = block % job->blocks_per_tap;
    while (n_blocks > 0) {
        const int64_t left = job->blocks_per_tap - in_tap;
        const int64_t n = left < n_blocks ? left : n_blocks;
        const int64_t idx = tap_idx(job, at, tap), first = in_tap * TILE_K;
        const int64_t channels = job->c_in - first;
        if (idx < 0)
            memset(to, 0, (size_t)(n * TILE_K) * sizeof(float));
        else
            M2_LANES_NAME(widen)
        (args->x->data, args->x->dtype, idx + first, channels < n * TILE_K ? channels : n * TILE_K,
         to);
        to += n * TILE_K;
        n_blocks -= n;
        in_tap = 0;
        if (++tap[2] == kw) {
            tap[2] = 0;
            if (++tap[1] == kh) {
                tap[1] = 0;
                tap[0]++;
            }
        }
    }
}

static void conv_fill_b(const void *context, int64_t row, int64_t block, int64_t column,
                        int64_t n_columns, float *to)
{
    (void)row;
    const conv_job *job = context;
    const int64_t tap = block / job->blocks_per_tap;
    const int64_t first = block % job->blocks_per_tap * TILE_K;
    M2_LANES_NAME(pack_columns)
    (job->args->w->data, job->args->w->dtype, (tap * job->c_out + column) * job->c_in + first,
     job->c_in, job->c_in - first, n_columns, to);
}

static void conv_store(const void *context, int64_t row, int64_t column, int64_t n_columns,
                       const float *sums)
{
    const conv_job *job = context;
    const m2_tensor *bias = job->args->bias;
    m2_tensor *y = job->args->y;
    for (int64_t c = 0; c < n_columns; c += LANES) {
        const int64_t left = n_columns - c;
        v16 value = v_load(sums + c);
        if (bias) value = v_add(value, v_get_n(bias->data, bias->dtype, column + c, left));
        v_put_n(y->data, y->dtype, row * job->c_out + column + c, value, left);
    }
}

static void conv_pieces(void *context, int64_t begin, int64_t end, int worker)
{
    const conv_job *job = context;
    for (int64_t i = begin; i < end; i++) {
        const int64_t row = i / job->n_column_pieces * PRODUCT_ROWS;
        const int64_t column = i % job->n_column_pieces * PRODUCT_COLUMNS;
        const int64_t rows = job->n_samples - row, columns = job->c_out - column;
        M2_LANES_NAME(product_run)
        (&job->product, m2_pool_scratch(job->pool, worker), row,
         rows < PRODUCT_ROWS ? rows : PRODUCT_ROWS, column,
         columns < PRODUCT_COLUMNS ? columns : PRODUCT_COLUMNS);
    }
}

void M2_LANES_NAME(conv)(const m2_ops *ops, const m2_conv_args *args)
{
    if (!ops->pool) {
        m2_ref_conv(ops, args);
        return;
    }
    conv_job job = { .args = args,
                     .pool = ops->pool,
                     .c_in = args->x->shape[3],
                     .c_out = args->y->shape[3],
                     .blocks_per_tap = (args->x->shape[3] + TILE_K - 1) / TILE_K,
                     .n_samples = args->y->shape[0] * args->y->shape[1] * args->y->shape[2],
                     .pad_left = args->pad_left >= 0 ? args->pad_left
                                                     : (args->kernel[2] - 1) * args->dilation / 2 };
    const int64_t n_taps = (int64_t)args->kernel[0] * args->kernel[1] * args->kernel[2];
    job.product = (product){ .context = &job,
                             .n_blocks = n_taps * job.blocks_per_tap,
                             .has_partials = args->x->dtype == M2_F32,
                             .fill_a = conv_fill_a,
                             .fill_b = conv_fill_b,
                             .store = conv_store };
    job.n_column_pieces = (job.c_out + PRODUCT_COLUMNS - 1) / PRODUCT_COLUMNS;
    m2_parallel_for(ops->pool,
                    (job.n_samples + PRODUCT_ROWS - 1) / PRODUCT_ROWS * job.n_column_pieces, 1,
                    conv_pieces, &job);
}
