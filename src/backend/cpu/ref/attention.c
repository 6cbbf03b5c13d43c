#include <assert.h>

#include "backend/cpu/ref/product.h"
#include "backend/cpu/ref/ref.h"
#include "core/fmath.h"

#define BLOCK     64  /* keys that are looked at together                       */
#define LANES     16  /* row maxima and row sums go in 16 lanes                 */
#define DIM_CHUNK 256 /* outputs of a head held at once; scores are made afresh */

/* Running state of one query of one head. */
typedef struct row_state {
    float max;
    float sum[LANES];
    float acc[DIM_CHUNK];
} row_state;

static float larger(float a, float b)
{
    return a > b ? a : b;
}

/* Lanes l and l + 8, l + 4, l + 2, l + 1. */
static float tree_sum(const float lanes[LANES])
{
    float t[LANES];
    memcpy(t, lanes, sizeof t);
    for (int step = LANES / 2; step >= 1; step /= 2)
        for (int l = 0; l < step; l++) t[l] += t[l + step];
    return t[0];
}

static float block_max(const float scores[BLOCK])
{
    float t[LANES];
    for (int l = 0; l < LANES; l++)
        t[l] = larger(larger(scores[l], scores[l + 16]), larger(scores[l + 32], scores[l + 48]));
    for (int step = LANES / 2; step >= 1; step /= 2)
        for (int l = 0; l < step; l++) t[l] = larger(t[l], t[l + step]);
    return t[0];
}

/* Scores of keys [first, first + 64); keys from `end` on are hidden. */
static void block_scores(const m2_attention_args *args, int64_t q_idx, int64_t kv_head,
                         int64_t first, int64_t end, float scores[BLOCK])
{
    const int64_t dim = args->q->shape[2], n_kv = args->k->shape[1];
    const m2_dtype dtype = args->q->dtype;
    for (int64_t j = 0; j < BLOCK; j++) {
        scores[j] = -INFINITY;
        if (first + j >= end) continue;
        m2_sum sum = m2_sum_begin(dtype);
        m2_sum_products(&sum, args->q->data, dtype, q_idx, args->k->data, dtype,
                        ((first + j) * n_kv + kv_head) * dim, 1, dim);
        scores[j] = m2_sum_end(&sum) * args->scale;
    }
}

/* Take one block of keys into the running state, for outputs [d, d + n_dims) of the head.
 * Every key of the block that stands in the segment takes part in the product with V, hidden ones
 * with the probability 0. */
static void take_block(const m2_attention_args *args, const float scores[BLOCK], int64_t first,
                       int64_t segment_end, int64_t v_idx, int64_t v_stride, int64_t n_dims,
                       row_state *state)
{
    const m2_dtype dtype = args->v->dtype;
    const float max = larger(block_max(scores), state->max);
    const float decay = m2_expf(state->max - max);
    state->max = max;
    float p[BLOCK];
    for (int j = 0; j < BLOCK; j++) p[j] = m2_expf(scores[j] - max);
    for (int l = 0; l < LANES; l++) {
        state->sum[l] = fmaf(state->sum[l], decay, p[l]);
        for (int j = l + LANES; j < BLOCK; j += LANES) state->sum[l] += p[j];
    }
    if (dtype == M2_BF16)
        for (int j = 0; j < BLOCK; j++) p[j] = m2_round_bf16(p[j]);
    for (int64_t d = 0; d < n_dims; d++) {
        float part[2];
        for (int half = 0; half < 2; half++) {
            const int64_t key = first + half * M2_BLOCK_K;
            const int64_t left = segment_end - key;
            const int64_t n = left < 0 ? 0 : left < M2_BLOCK_K ? left : M2_BLOCK_K;
            part[half] = m2_block_sum(p + half * M2_BLOCK_K, M2_F32, 0, args->v->data, dtype,
                                      v_idx + key * v_stride + d, v_stride, n);
        }
        state->acc[d] = fmaf(state->acc[d], decay, part[0]) + part[1];
    }
}

/* ln(e^a + e^b) */
static float log_add(float a, float b)
{
    return larger(a, b) + m2_log1pf(m2_expf(-fabsf(a - b)));
}

/* What the sinks leave of the result: e^lse / (e^lse + sum of e^sink), which is the sigmoid of
 * the distance between the two logarithms. */
static float sink_factor(const m2_attention_args *args, int64_t head, float lse)
{
    const int64_t n_heads = args->q->shape[1];
    const float *sinks = args->sinks->data;
    float sink = sinks[head];
    for (int64_t s = 1; s < args->sinks->shape[0]; s++)
        sink = log_add(sink, sinks[s * n_heads + head]);
    return m2_sigmoidf(lse - sink);
}

static void attend(const m2_attention_args *args, int64_t query, int64_t head, int64_t begin,
                   int64_t segment_end)
{
    const int64_t n_heads = args->q->shape[1], dim = args->q->shape[2], n_kv = args->k->shape[1];
    const int64_t kv_head = head / (n_heads / n_kv), q_idx = (query * n_heads + head) * dim;
    const int64_t end = args->is_causal ? query + 1 : segment_end;
    const m2_dtype dtype = args->y->dtype;
    for (int64_t d = 0; d < dim; d += DIM_CHUNK) {
        const int64_t n_dims = dim - d < DIM_CHUNK ? dim - d : DIM_CHUNK;
        row_state state = { .max = -INFINITY };
        for (int64_t first = begin; first < end; first += BLOCK) {
            float scores[BLOCK];
            block_scores(args, q_idx, kv_head, first, end, scores);
            take_block(args, scores, first, segment_end, kv_head * dim + d, n_kv * dim, n_dims,
                       &state);
        }
        const float sum = tree_sum(state.sum);
        const float factor = args->sinks ? sink_factor(args, head, state.max + m2_logf(sum)) : 1.0f;
        for (int64_t i = 0; i < n_dims; i++) {
            float value = state.acc[i] / sum;
            if (args->sinks) value = (dtype == M2_BF16 ? m2_round_bf16(value) : value) * factor;
            m2_store(args->y->data, dtype, q_idx + d + i, value);
        }
    }
}

static void attend_queries(void *context, int64_t begin, int64_t end, int worker)
{
    (void)worker;
    const m2_attention_args *args = context;
    int segment = 0;
    for (int64_t query = begin; query < end; query++) {
        while (query >= args->segments[segment + 1]) segment++;
        for (int64_t head = 0; head < args->q->shape[1]; head++)
            attend(args, query, head, args->segments[segment], args->segments[segment + 1]);
    }
}

void m2_ref_attention(const m2_ops *ops, const m2_attention_args *args)
{
    const int64_t n = args->q->shape[0];
    assert(args->q->n_dims == 3 && args->k->n_dims == 3 && args->v->n_dims == 3);
    assert(args->k->dtype == args->q->dtype && args->v->dtype == args->q->dtype);
    assert(args->y->dtype == args->q->dtype && args->q->shape[1] % args->k->shape[1] == 0);
    assert(args->k->shape[0] == n && args->v->shape[0] == n);
    assert(args->k->shape[2] == args->q->shape[2] && args->v->shape[2] == args->q->shape[2]);
    assert(args->n_segments >= 1 && args->segments[0] == 0);
    assert(args->segments[args->n_segments] == n);
    assert(!args->sinks ||
           (args->sinks->dtype == M2_F32 && args->sinks->shape[1] == args->q->shape[1]));
    m2_parallel_for(ops->pool, n, 4, attend_queries, (void *)args);
}
