#include "backend/cpu/lanes/ops.h"
#include "backend/cpu/lanes/product.h"
#include "backend/cpu/lanes/rows.h"
#include "backend/cpu/lanes/vmath.h"
#include "backend/cpu/ref/groups.h"

#include <math.h>

#define N_COEFFICIENTS  (2 * M2_STREAMS + M2_STREAMS * M2_STREAMS)
#define SINKHORN_ROUNDS 20
#define SINKHORN_EPS    1e-12f

/* What one piece of rows keeps behind the engine's scratch. */
typedef struct piece_memory {
    float c[(PRODUCT_ROWS + LANES) * N_COEFFICIENTS];
    float scale[PRODUCT_ROWS];
} piece_memory;

typedef struct mhc_job {
    const m2_mhc_coefficients_args *args;
    m2_pool *pool;
    int64_t n_rows, width;      /* width of the four streams together   */
    float a_pre, a_post, a_res; /* the alphas over the root of width    */
} mhc_job;

typedef struct mhc_piece {
    const mhc_job *job;
    piece_memory *memory;
    int64_t first;
} mhc_piece;

/* The normed row: (s * scale) * (norm + 1). */
static void mhc_fill_a(const void *context, int64_t row, int64_t block, int64_t n_blocks, float *to)
{
    const mhc_piece *piece = context;
    const m2_mhc_coefficients_args *args = piece->job->args;
    const int64_t width = piece->job->width, first = block * TILE_K;
    const int64_t norm = m2_ref_group_of(args->groups, row) * width;
    const v16 scale = v_set1(piece->memory->scale[row - piece->first]);
    for (int64_t i = 0; i < n_blocks * TILE_K; i += LANES) {
        const int64_t left = width - first - i;
        if (left <= 0) {
            v_store(to + i, v_zero());
            continue;
        }
        const v16 s = v_get_n(args->s->data, M2_BF16, row * width + first + i, left);
        const v16 w = v_get_n(args->norm->data, M2_F32, norm + first + i, left);
        v_store(to + i, v_mul(v_mul(s, scale), v_add(w, v_set1(1.0f))));
    }
}

static void mhc_fill_b(const void *context, int64_t row, int64_t block, int64_t column,
                       int64_t n_columns, float *to)
{
    (void)row;
    const mhc_piece *piece = context;
    const int64_t first = block * TILE_K;
    M2_LANES_NAME(pack_rows)
    (piece->job->args->phi->data, M2_F32, first * N_COEFFICIENTS + column, N_COEFFICIENTS,
     piece->job->width - first, n_columns, to);
}

static void mhc_store(const void *context, int64_t row, int64_t column, int64_t n_columns,
                      const float *sums)
{
    const mhc_piece *piece = context;
    memcpy(piece->memory->c + (row - piece->first) * N_COEFFICIENTS + column, sums,
           (size_t)n_columns * sizeof(float));
}

/* Columns first, sixteen tokens at a time. */
static void sinkhorn(v16 m[M2_STREAMS][M2_STREAMS])
{
    const v16 eps = v_set1(SINKHORN_EPS);
    v16 largest = m[0][0];
    for (int i = 0; i < M2_STREAMS; i++)
        for (int j = 0; j < M2_STREAMS; j++) largest = v_max(m[i][j], largest);
    for (int i = 0; i < M2_STREAMS; i++)
        for (int j = 0; j < M2_STREAMS; j++) m[i][j] = v_exp(v_sub(m[i][j], largest));
    for (int round = 0; round < SINKHORN_ROUNDS; round++) {
        for (int j = 0; j < M2_STREAMS; j++) {
            const v16 sum = v_add(v_add(v_add(v_add(m[0][j], m[1][j]), m[2][j]), m[3][j]), eps);
            for (int i = 0; i < M2_STREAMS; i++) m[i][j] = v_div(m[i][j], sum);
        }
        for (int i = 0; i < M2_STREAMS; i++) {
            const v16 sum = v_add(v_add(v_add(m[i][0], m[i][2]), v_add(m[i][1], m[i][3])), eps);
            for (int j = 0; j < M2_STREAMS; j++) m[i][j] = v_div(m[i][j], sum);
        }
    }
}

/* Coefficient `idx` of the tokens of `c`, scaled and shifted by its bias. */
static v16 shifted(const float *c, int idx, float scale, const m2_tensor *bias, int bias_idx)
{
    float lane[LANES];
    for (int l = 0; l < LANES; l++) lane[l] = c[l * N_COEFFICIENTS + idx];
    return v_add(v_mul(v_set1(scale), v_load(lane)), v_set1(((const float *)bias->data)[bias_idx]));
}

/* Column `column` of `n_columns` for n tokens from `row` on. */
static void put_column(m2_tensor *rounded, m2_tensor *exact, int64_t row, int64_t n, int n_columns,
                       int column, v16 values)
{
    float lane[LANES];
    v_store(lane, values);
    for (int64_t l = 0; l < n; l++) {
        const int64_t at = (row + l) * n_columns + column;
        ((m2_bf16 *)rounded->data)[at] = m2_f32_to_bf16(lane[l]);
        if (exact) ((float *)exact->data)[at] = lane[l];
    }
}

static void finish_tokens(const mhc_job *job, int64_t row, int64_t n, const float *c)
{
    const m2_mhc_coefficients_args *args = job->args;
    v16 res[M2_STREAMS][M2_STREAMS];
    for (int i = 0; i < M2_STREAMS; i++) {
        const v16 pre = v_sigmoid(shifted(c, i, job->a_pre, args->bias_pre, i));
        const v16 post = v_sigmoid(shifted(c, M2_STREAMS + i, job->a_post, args->bias_post, i));
        put_column(args->h_pre, args->h_pre_f32, row, n, M2_STREAMS, i, pre);
        put_column(args->h_post, args->h_post_f32, row, n, M2_STREAMS, i,
                   v_mul(v_set1(2.0f), post));
        for (int j = 0; j < M2_STREAMS; j++) {
            const int ij = M2_STREAMS * i + j;
            res[i][j] = shifted(c, 2 * M2_STREAMS + ij, job->a_res, args->bias_res, ij);
        }
    }
    sinkhorn(res);
    for (int i = 0; i < M2_STREAMS; i++)
        for (int j = 0; j < M2_STREAMS; j++)
            put_column(args->h_res, args->h_res_f32, row, n, M2_STREAMS * M2_STREAMS,
                       M2_STREAMS * i + j, res[i][j]);
    if (args->phi_out)
        memcpy((float *)args->phi_out->data + row * N_COEFFICIENTS, c,
               (size_t)(n * N_COEFFICIENTS) * sizeof(float));
}

static void mhc_pieces(void *context, int64_t begin, int64_t end, int worker)
{
    const mhc_job *job = context;
    unsigned char *scratch = m2_pool_scratch(job->pool, worker);
    mhc_piece piece = { .job = job, .memory = (piece_memory *)(void *)(scratch + PRODUCT_SCRATCH) };
    const product p = { .context = &piece,
                        .n_blocks = (job->width + TILE_K - 1) / TILE_K,
                        .has_partials = 1,
                        .fill_a = mhc_fill_a,
                        .fill_b = mhc_fill_b,
                        .store = mhc_store };
    for (int64_t i = begin; i < end; i++) {
        piece.first = i * PRODUCT_ROWS;
        const int64_t left = job->n_rows - piece.first;
        const int64_t n = left < PRODUCT_ROWS ? left : PRODUCT_ROWS;
        for (int64_t r = 0; r < n; r++)
            piece.memory->scale[r] = v_inverse_rms(job->args->s, (piece.first + r) * job->width,
                                                   job->width, job->args->eps);
        M2_LANES_NAME(product_run)(&p, scratch, piece.first, n, 0, N_COEFFICIENTS);
        memset(piece.memory->c + n * N_COEFFICIENTS, 0, LANES * N_COEFFICIENTS * sizeof(float));
        for (int64_t r = 0; r < n; r += LANES)
            finish_tokens(job, piece.first + r, n - r < LANES ? n - r : LANES,
                          piece.memory->c + r * N_COEFFICIENTS);
    }
}

void M2_LANES_NAME(mhc_coefficients)(const m2_ops *ops, const m2_mhc_coefficients_args *args)
{
    if (!ops->pool) {
        m2_ref_mhc_coefficients(ops, args);
        return;
    }
    mhc_job job = { .args = args,
                    .pool = ops->pool,
                    .n_rows = args->s->shape[0],
                    .width = M2_STREAMS * args->s->shape[2] };
    const float ms = (float)(1.0 / sqrt((double)job.width));
    job.a_pre = ((const float *)args->alpha_pre->data)[0] * ms;
    job.a_post = ((const float *)args->alpha_post->data)[0] * ms;
    job.a_res = ((const float *)args->alpha_res->data)[0] * ms;
    m2_parallel_for(ops->pool, (job.n_rows + PRODUCT_ROWS - 1) / PRODUCT_ROWS, 1, mhc_pieces, &job);
}
