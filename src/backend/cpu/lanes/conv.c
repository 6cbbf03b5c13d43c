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

static void conv_fill_a(const void *context, int64_t row, int64_t block, int64_t n_blocks,
                        float *to)
{
    const conv_job *job = context;
    const m2_conv_args *args = job->args;
    const int64_t frames = args->x->shape[0], height = args->x->shape[1];
    const int64_t width = args->x->shape[2];
    const int64_t t = row / (height * width), y = row / width % height, x = row % width;
    const int kt = args->kernel[0], kh = args->kernel[1], kw = args->kernel[2];
    int64_t done = 0;
    while (done < n_blocks) {
        const int64_t tap = (block + done) / job->blocks_per_tap;
        const int64_t in_tap = (block + done) % job->blocks_per_tap;
        const int64_t left = job->blocks_per_tap - in_tap;
        const int64_t n = left < n_blocks - done ? left : n_blocks - done;
        const int64_t from_y = y + tap / kw % kh - kh / 2;
        const int64_t from_x = x + tap % kw * args->dilation - job->pad_left;
        int64_t from_t = t + tap / (kh * kw) - kt / 2;
        from_t = from_t < 0 ? 0 : from_t >= frames ? frames - 1 : from_t;
        if (from_y < 0 || from_y >= height || from_x < 0 || from_x >= width) {
            memset(to + done * TILE_K, 0, (size_t)(n * TILE_K) * sizeof(float));
        } else {
            const int64_t first = in_tap * TILE_K, channels = job->c_in - first;
            const int64_t sample = (from_t * height + from_y) * width + from_x;
            M2_LANES_NAME(widen)
            (args->x->data, args->x->dtype, sample * job->c_in + first,
             channels < n * TILE_K ? channels : n * TILE_K, to + done * TILE_K);
        }
        done += n;
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
