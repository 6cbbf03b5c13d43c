#include "backend/cpu/lanes/ops.h"
#include "backend/cpu/lanes/tile.h"
#include "backend/cpu/lanes/vmath.h"

#include <assert.h>

#define KEYS     64  /* looked at together                             */
#define ROWS     192 /* (query, head of the group) pairs of one piece  */
#define DIM_MAX  256 /* wider heads go to the scalar version           */
#define Q_STRIDE (DIM_MAX + LANES)
#define N_PANELS (KEYS / TILE_COLUMNS)
#define N_PARTS  (KEYS / TILE_K)

typedef struct attention_memory {
    float q[ROWS * Q_STRIDE];
    float acc[ROWS * DIM_MAX];
    float sum[ROWS * LANES];
    float max[ROWS];
    float k[N_PANELS * DIM_MAX / TILE_K * TILE_B];
    float v[N_PARTS * DIM_MAX / TILE_COLUMNS * TILE_B];
} attention_memory;

_Static_assert(sizeof(attention_memory) <= M2_WORKER_SCRATCH_BYTES, "scratch is too small");
_Static_assert(ROWS % TILE_ROWS == 0 && KEYS % TILE_COLUMNS == 0 && TILE_ROWS <= LANES, "tiles");

typedef struct attention_job {
    const m2_attention_args *args;
    m2_pool *pool;
    int64_t n_heads, n_kv, dim, group; /* group: query heads of one key head    */
    int64_t n_dim_blocks;              /* of 32                                 */
    int64_t n_dim_panels;              /* of TILE_COLUMNS                       */
} attention_job;

/* Rows [first_row, first_row + n_rows) of one segment and key head; row r is query r / group of
 * the segment, head r % group of the group. */
typedef struct attention_piece {
    const attention_job *job;
    attention_memory *memory;
    int64_t begin, end; /* of the segment */
    int64_t kv_head, first_row, n_rows;
} attention_piece;

static int64_t query_of(const attention_piece *piece, int64_t row)
{
    return piece->begin + (piece->first_row + row) / piece->job->group;
}

static int64_t head_of(const attention_piece *piece, int64_t row)
{
    return piece->kv_head * piece->job->group + (piece->first_row + row) % piece->job->group;
}

/* Keys from here on are hidden from a row. */
static int64_t keys_end(const attention_piece *piece, int64_t row)
{
    if (!piece->job->args->is_causal || row >= piece->n_rows) return piece->end;
    return query_of(piece, row) + 1;
}

static void load_queries(const attention_piece *piece)
{
    const attention_job *job = piece->job;
    attention_memory *m = piece->memory;
    const m2_tensor *q = job->args->q;
    for (int64_t r = 0; r < piece->n_rows; r++) M2_LANES_NAME(widen)
    (q->data, q->dtype, (query_of(piece, r) * job->n_heads + head_of(piece, r)) * job->dim,
     job->dim, m->q + r * Q_STRIDE);
    const int64_t tiles_end = (piece->n_rows + TILE_ROWS - 1) / TILE_ROWS * TILE_ROWS;
    for (int64_t r = piece->n_rows; r < tiles_end; r++)
        memset(m->q + r * Q_STRIDE, 0, (size_t)(job->n_dim_blocks * TILE_K) * sizeof(float));
    memset(m->acc, 0, (size_t)(tiles_end * DIM_MAX) * sizeof(float));
    memset(m->sum, 0, (size_t)(tiles_end * LANES) * sizeof(float));
    for (int64_t r = 0; r < tiles_end; r++) m->max[r] = -INFINITY;
}

static void pack_keys(const attention_piece *piece, int64_t first)
{
    const attention_job *job = piece->job;
    attention_memory *m = piece->memory;
    const m2_dtype dtype = job->args->k->dtype;
    const int64_t stride = job->n_kv * job->dim;
    for (int64_t p = 0; p < N_PANELS; p++) {
        const int64_t key = first + p * TILE_COLUMNS;
        for (int64_t b = 0; b < job->n_dim_blocks; b++) M2_LANES_NAME(pack_columns)
        (job->args->k->data, dtype, key * stride + piece->kv_head * job->dim + b * TILE_K, stride,
         job->dim - b * TILE_K, piece->end - key, m->k + (p * job->n_dim_blocks + b) * TILE_B);
    }
    for (int64_t p = 0; p < job->n_dim_panels; p++) {
        for (int64_t part = 0; part < N_PARTS; part++) {
            const int64_t key = first + part * TILE_K, d = p * TILE_COLUMNS;
            M2_LANES_NAME(pack_rows)
            (job->args->v->data, dtype, key * stride + piece->kv_head * job->dim + d, stride,
             piece->end - key, job->dim - d, m->v + (p * N_PARTS + part) * TILE_B);
        }
    }
}

/* Products of one tile of rows with all keys of the block. */
static void tile_scores(const attention_piece *piece, int64_t row, float scores[])
{
    const int64_t n_blocks = piece->job->n_dim_blocks;
    const float *q = piece->memory->q + row * Q_STRIDE;
    for (int64_t p = 0; p < N_PANELS; p++) {
        const float *k = piece->memory->k + p * n_blocks * TILE_B;
        const tile sum = tile_block(q, Q_STRIDE, k);
        LANES_UNROLL for (int r = 0; r < TILE_ROWS; r++)
            LANES_UNROLL for (int v = 0; v < TILE_VECTORS; v++) v_store(
                scores + r * KEYS + p * TILE_COLUMNS + v * LANES, v_add(v_zero(), sum.at[r][v]));
        if (n_blocks > 1)
            tile_product(q + TILE_K, Q_STRIDE, k + TILE_B, n_blocks - 1, scores + p * TILE_COLUMNS,
                         KEYS);
    }
}

/* Scale, hide what is not to be seen, and give back the largest; n_keys of the row are seen. */
static float row_max(float *scores, float scale, int64_t n_keys)
{
    static const float idx[LANES] = { 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15 };
    v16 s[KEYS / LANES];
    LANES_UNROLL for (int i = 0; i < KEYS / LANES; i++)
    {
        s[i] = v_mul(v_load(scores + i * LANES), v_set1(scale));
        if (n_keys < KEYS) {
            const vm16 is_seen = vm_less(v_load(idx), v_set1((float)(n_keys - i * LANES)));
            s[i] = v_select(is_seen, s[i], v_set1(-INFINITY));
        }
        v_store(scores + i * LANES, s[i]);
    }
    return v_tree_max(v_max(v_max(s[0], s[1]), v_max(s[2], s[3])));
}

/* From bf16 inputs no NaN has low bits set that a carry could run through. */
static inline v16 round_probability(v16 p)
{
    const vi16 bits = v_as_int(p);
    const vi16 odd = vi_and(vi_shr(bits, 16), vi_set1(1));
    return v_as_float(
        vi_and(vi_add(vi_add(bits, vi_set1(0x7fff)), odd), vi_set1((int32_t)0xffff0000)));
}

static void tile_probabilities(float scores[], const float *max, const float *decay, float *sums,
                               int is_bf16)
{
    for (int r = 0; r < TILE_ROWS; r++) {
        const v16 m = v_set1(max[r]);
        float *row = scores + r * KEYS;
        v16 p[KEYS / LANES];
        LANES_UNROLL for (int i = 0; i < KEYS / LANES; i++)
        {
            p[i] = v_exp_small(v_sub(v_load(row + i * LANES), m));
            v_store(row + i * LANES, is_bf16 ? round_probability(p[i]) : p[i]);
        }
        v16 sum = v_fma(v_load(sums + r * LANES), v_set1(decay[r]), p[0]);
        LANES_UNROLL for (int i = 1; i < KEYS / LANES; i++) sum = v_add(sum, p[i]);
        v_store(sums + r * LANES, sum);
    }
}

/* Add the block's keys to one tile of rows.  Rows that see none of them keep what they have. */
static void take_tile(const attention_piece *piece, int64_t row, int64_t first)
{
    const attention_job *job = piece->job;
    attention_memory *m = piece->memory;
    float scores[TILE_ROWS * KEYS], decay[LANES] = { 0 };
    int64_t n_keys[TILE_ROWS], n_most = 0;
    for (int r = 0; r < TILE_ROWS; r++) {
        n_keys[r] = keys_end(piece, row + r) - first;
        if (n_keys[r] > n_most) n_most = n_keys[r];
    }
    if (n_most <= 0) return;
    tile_scores(piece, row, scores);
    for (int r = 0; r < TILE_ROWS; r++) {
        const float before = m->max[row + r],
                    block = row_max(scores + r * KEYS, job->args->scale, n_keys[r]);
        const float max = block > before ? block : before;
        decay[r] = before - max;
        m->max[row + r] = max;
    }
    v_store(decay, v_exp_small(v_load(decay)));
    float *sums = m->sum + row * LANES;
    tile_probabilities(scores, m->max + row, decay, sums, job->args->q->dtype == M2_BF16);
    for (int64_t p = 0; p < job->n_dim_panels; p++) {
        const float *v = m->v + p * N_PARTS * TILE_B;
        float *acc = m->acc + row * DIM_MAX + p * TILE_COLUMNS;
        const tile part0 = tile_block(scores, KEYS, v);
        const tile part1 = tile_block(scores + TILE_K, KEYS, v + TILE_B);
        LANES_UNROLL for (int r = 0; r < TILE_ROWS; r++)
        {
            if (n_keys[r] <= 0) continue;
            LANES_UNROLL for (int i = 0; i < TILE_VECTORS; i++)
            {
                float *to = acc + r * DIM_MAX + i * LANES;
                const v16 kept = v_fma(v_load(to), v_set1(decay[r]), part0.at[r][i]);
                v_store(to, v_add(kept, part1.at[r][i]));
            }
        }
    }
}

static float log_add(float a, float b)
{
    return (a > b ? a : b) + m2_log1pf(m2_expf(-fabsf(a - b)));
}

static float sink_factor(const m2_attention_args *args, int64_t head, float lse)
{
    const int64_t n_heads = args->q->shape[1];
    const float *sinks = args->sinks->data;
    float sink = sinks[head];
    for (int64_t s = 1; s < args->sinks->shape[0]; s++)
        sink = log_add(sink, sinks[s * n_heads + head]);
    return m2_sigmoidf(lse - sink);
}

static void store_rows(const attention_piece *piece)
{
    const attention_job *job = piece->job;
    const attention_memory *m = piece->memory;
    const m2_attention_args *args = job->args;
    const m2_dtype dtype = args->y->dtype;
    for (int64_t r = 0; r < piece->n_rows; r++) {
        const int64_t head = head_of(piece, r);
        const int64_t y_idx = (query_of(piece, r) * job->n_heads + head) * job->dim;
        const float sum = v_tree_sum(v_load(m->sum + r * LANES));
        const float factor = args->sinks ? sink_factor(args, head, m->max[r] + m2_logf(sum)) : 1.0f;
        for (int64_t d = 0; d < job->dim; d += LANES) {
            v16 value = v_div(v_load(m->acc + r * DIM_MAX + d), v_set1(sum));
            if (args->sinks)
                value = v_mul(dtype == M2_BF16 ? v_round_bf16(value) : value, v_set1(factor));
            v_put_n(args->y->data, dtype, y_idx + d, value, job->dim - d);
        }
    }
}

static void attend_piece(const attention_piece *piece)
{
    load_queries(piece);
    const int64_t last_end = keys_end(piece, piece->n_rows - 1);
    for (int64_t first = piece->begin; first < last_end; first += KEYS) {
        pack_keys(piece, first);
        for (int64_t row = 0; row < piece->n_rows; row += TILE_ROWS) take_tile(piece, row, first);
    }
    store_rows(piece);
}

static int64_t pieces_of_segment(const attention_job *job, int segment)
{
    const int64_t *cuts = job->args->segments;
    const int64_t n_rows = (cuts[segment + 1] - cuts[segment]) * job->group;
    return (n_rows + ROWS - 1) / ROWS * job->n_kv;
}

static void attend_pieces(void *context, int64_t begin, int64_t end, int worker)
{
    const attention_job *job = context;
    int segment = 0;
    int64_t segment_first = 0; /* first piece of the segment */
    for (int64_t i = begin; i < end; i++) {
        while (i >= segment_first + pieces_of_segment(job, segment))
            segment_first += pieces_of_segment(job, segment++);
        attention_piece piece = { .job = job,
                                  .memory = m2_pool_scratch(job->pool, worker),
                                  .begin = job->args->segments[segment],
                                  .end = job->args->segments[segment + 1] };
        const int64_t n_rows = (piece.end - piece.begin) * job->group;
        piece.kv_head = (i - segment_first) % job->n_kv;
        piece.first_row = (i - segment_first) / job->n_kv * ROWS;
        piece.n_rows = n_rows - piece.first_row < ROWS ? n_rows - piece.first_row : ROWS;
        attend_piece(&piece);
    }
}

void M2_LANES_NAME(attention)(const m2_ops *ops, const m2_attention_args *args)
{
    attention_job job = { .args = args,
                          .pool = ops->pool,
                          .n_heads = args->q->shape[1],
                          .n_kv = args->k->shape[1],
                          .dim = args->q->shape[2] };
    if (!ops->pool || job.dim > DIM_MAX) {
        m2_ref_attention(ops, args);
        return;
    }
    job.group = job.n_heads / job.n_kv;
    job.n_dim_blocks = (job.dim + TILE_K - 1) / TILE_K;
    job.n_dim_panels = (job.dim + TILE_COLUMNS - 1) / TILE_COLUMNS;
    int64_t n_pieces = 0;
    for (int s = 0; s < args->n_segments; s++) n_pieces += pieces_of_segment(&job, s);
    m2_parallel_for(ops->pool, n_pieces, 1, attend_pieces, &job);
}
