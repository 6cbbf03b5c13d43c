#include "backend/cpu/ref/gated_delta_rule.h"

#include "backend/cpu/ref/act.h"
#include "backend/cpu/ref/ref.h"
#include "core/fmath.h"

#include <assert.h>
#include <string.h>

#define CHUNK 64

static int64_t round_up(int64_t value, int64_t step)
{
    return (value + step - 1) / step * step;
}

/* Recurrent: the state by columns, [dv, dk].  Chunked: state [dk, dv], T and P [64, 64], v and U
 * [64, dv], W [64, dk], G [64]. */
static int64_t work_floats(int64_t key_dim, int64_t value_dim, int use_chunks)
{
    const int64_t state = key_dim * round_up(value_dim, M2_REF_LANES);
    if (!use_chunks) return state;
    return round_up(state + 2 * CHUNK * CHUNK + CHUNK * (2 * value_dim + key_dim + 1),
                    M2_REF_LANES);
}

int64_t m2_gated_delta_scratch(int64_t n, int n_key_heads, int key_dim, int n_value_heads,
                               int value_dim, int use_chunks)
{
    return 2 * round_up(n * n_key_heads * key_dim, M2_REF_LANES) +
           2 * round_up(n * n_value_heads, M2_REF_LANES) +
           n_value_heads * work_floats(key_dim, value_dim, use_chunks);
}

/* Sum of a[i] * b[i] in FMA chains over blocks of 32, the blocks added in order. */
static float dot_blocks(const float *a, int64_t a_step, const float *b, int64_t b_step, int64_t n)
{
    float total = 0.0f;
    for (int64_t begin = 0; begin < n; begin += 32) {
        const int64_t end = begin + 32 < n ? begin + 32 : n;
        float block = 0.0f;
        for (int64_t i = begin; i < end; i++) block = fmaf(a[i * a_step], b[i * b_step], block);
        total += block;
    }
    return total;
}

static void normalise_head(const m2_tensor *qkv, int64_t from, int64_t dim, float factor, float *to)
{
    const float scale = 1.0f / sqrtf(m2_ref_sum_squares(qkv, from, dim) + 1e-6f);
    for (int64_t i = 0; i < dim; i++) to[i] = m2_ref_get(qkv, from + i) * scale * factor;
}

static void prepare_rows(void *context, int64_t begin, int64_t end, int worker)
{
    const m2_delta_run *run = context;
    const m2_gated_delta_rule_args *args = &run->args;
    const int64_t n_key = args->n_key_heads, dk = args->key_dim, n_value = args->n_value_heads;
    const int64_t width = 2 * n_key * dk + n_value * args->value_dim;
    const float q_scale = (float)(1.0 / sqrt((double)dk));
    (void)worker;
    for (int64_t t = begin; t < end; t++) {
        for (int64_t h = 0; h < n_key; h++) {
            const int64_t to = (h * run->n + t) * dk;
            normalise_head(args->qkv, t * width + h * dk, dk, q_scale, run->q + to);
            normalise_head(args->qkv, t * width + (n_key + h) * dk, dk, 1.0f, run->k + to);
        }
        for (int64_t h = 0; h < n_value; h++) {
            const int64_t idx = t * n_value + h;
            const float beta = m2_sigmoidf(m2_ref_get(args->b, idx));
            const float step =
                m2_softplusf(m2_ref_get(args->a, idx) + m2_ref_get(args->dt_bias, h));
            const float g = -m2_expf(m2_ref_get(args->a_log, h)) * step;
            run->beta[h * run->n + t] = m2_ref_round(args->b->dtype, beta);
            run->decay[h * run->n + t] = args->use_chunks ? g : m2_expf(g);
        }
    }
}

static float value_at(const m2_delta_run *run, int64_t t, int64_t head, int64_t column)
{
    const m2_gated_delta_rule_args *args = &run->args;
    const int64_t keys = 2 * (int64_t)args->n_key_heads * args->key_dim;
    const int64_t width = keys + (int64_t)args->n_value_heads * args->value_dim;
    return m2_ref_get(args->qkv, t * width + keys + head * args->value_dim + column);
}

static int64_t key_head(const m2_delta_run *run, int64_t head)
{
    return head / (run->args.n_value_heads / run->args.n_key_heads);
}

static void output_set(const m2_delta_run *run, int64_t t, int64_t head, int64_t column,
                       float value)
{
    const m2_gated_delta_rule_args *args = &run->args;
    m2_ref_put(args->o, (t * args->n_value_heads + head) * args->value_dim + column, value);
}

/* A column of the state never meets another one: items are (head, column) pairs. */
static void recurrent_columns(void *context, int64_t begin, int64_t end, int worker)
{
    const m2_delta_run *run = context;
    const int64_t dk = run->args.key_dim, dv = run->args.value_dim;
    (void)worker;
    for (int64_t item = begin; item < end; item++) {
        const int64_t head = item / dv, column = item % dv;
        float *state = run->work + head * run->work_per_head + column * dk;
        memset(state, 0, (size_t)dk * sizeof *state);
        for (int64_t t = 0; t < run->n; t++) {
            const float *q = run->q + (key_head(run, head) * run->n + t) * dk;
            const float *k = run->k + (key_head(run, head) * run->n + t) * dk;
            const float decay = run->decay[head * run->n + t];
            for (int64_t i = 0; i < dk; i++) state[i] *= decay;
            const float seen = dot_blocks(k, 1, state, 1, dk);
            const float step =
                (value_at(run, t, head, column) - seen) * run->beta[head * run->n + t];
            for (int64_t i = 0; i < dk; i++) state[i] = fmaf(k[i], step, state[i]);
            output_set(run, t, head, column, dot_blocks(q, 1, state, 1, dk));
        }
    }
}

/* Views of one head's work memory. */
typedef struct chunk_work {
    float *state; /* [dk, dv]          */
    float *t;     /* [64, 64] T, unit lower triangular */
    float *p;     /* [64, 64] causal scores            */
    float *v;     /* [64, dv] beta v   */
    float *u;     /* [64, dv] U, then V' */
    float *w;     /* [64, dk]          */
    float *g;     /* [64] cumulative sums of g         */
} chunk_work;

static chunk_work chunk_work_of(const m2_delta_run *run, int64_t head)
{
    const int64_t dk = run->args.key_dim, dv = run->args.value_dim;
    chunk_work work = { .state = run->work + head * run->work_per_head };
    work.t = work.state + dk * dv;
    work.p = work.t + CHUNK * CHUNK;
    work.v = work.p + CHUNK * CHUNK;
    work.u = work.v + CHUNK * dv;
    work.w = work.u + CHUNK * dv;
    work.g = work.w + CHUNK * dk;
    return work;
}

/* T = (I - A)^-1 by forward substitution, row by row, and the scores P. */
static void chunk_scores(const m2_delta_run *run, const chunk_work *work, int64_t head,
                         int64_t first, int64_t rows)
{
    const int64_t dk = run->args.key_dim, key = key_head(run, head);
    float before[CHUNK];
    float sum = 0.0f;
    for (int64_t i = 0; i < rows; i++) {
        sum += run->decay[head * run->n + first + i];
        work->g[i] = sum;
        const float *q_i = run->q + (key * run->n + first + i) * dk;
        const float *k_i = run->k + (key * run->n + first + i) * dk;
        const float beta = run->beta[head * run->n + first + i];
        for (int64_t j = 0; j <= i; j++) {
            const float *k_j = run->k + (key * run->n + first + j) * dk;
            const float fade = m2_expf(work->g[i] - work->g[j]);
            work->p[i * CHUNK + j] = dot_blocks(q_i, 1, k_j, 1, dk) * fade;
            before[j] = -(dot_blocks(k_i, 1, k_j, 1, dk) * beta * fade);
        }
        for (int64_t j = 0; j < i; j++) {
            const float *below = work->t + (j + 1) * CHUNK + j;
            const float sums = dot_blocks(before + j + 1, 1, below, CHUNK, i - j - 1);
            work->t[i * CHUNK + j] = before[j] + sums;
        }
        work->t[i * CHUNK + i] = 1.0f;
    }
}

/* U = T (beta v) and W = T (beta k exp(G)); k is scaled inside the sum's second factor. */
static void chunk_targets(const m2_delta_run *run, const chunk_work *work, int64_t head,
                          int64_t first, int64_t rows)
{
    const int64_t dk = run->args.key_dim, dv = run->args.value_dim;
    float column[CHUNK];
    for (int64_t i = 0; i < rows; i++)
        for (int64_t c = 0; c < dv; c++)
            work->v[i * dv + c] =
                value_at(run, first + i, head, c) * run->beta[head * run->n + first + i];
    for (int64_t i = 0; i < rows; i++)
        for (int64_t c = 0; c < dv; c++)
            work->u[i * dv + c] = dot_blocks(work->t + i * CHUNK, 1, work->v + c, dv, i + 1);
    for (int64_t c = 0; c < dk; c++) {
        for (int64_t i = 0; i < rows; i++) {
            const float *k = run->k + (key_head(run, head) * run->n + first + i) * dk;
            const float beta = run->beta[head * run->n + first + i];
            column[i] = k[c] * beta * m2_expf(work->g[i]);
        }
        for (int64_t i = 0; i < rows; i++)
            work->w[i * dk + c] = dot_blocks(work->t + i * CHUNK, 1, column, 1, i + 1);
    }
}

/* V' = U - W S, the outputs, and the state behind the chunk. */
static void chunk_advance(const m2_delta_run *run, const chunk_work *work, int64_t head,
                          int64_t first, int64_t rows)
{
    const int64_t dk = run->args.key_dim, dv = run->args.value_dim;
    const int64_t key = key_head(run, head);
    const float last = work->g[rows - 1];
    float column[CHUNK];
    for (int64_t i = 0; i < rows; i++)
        for (int64_t c = 0; c < dv; c++)
            work->u[i * dv + c] -= dot_blocks(work->w + i * dk, 1, work->state + c, dv, dk);
    for (int64_t i = 0; i < rows; i++) {
        const float *q = run->q + (key * run->n + first + i) * dk;
        const float fade = m2_expf(work->g[i]);
        for (int64_t c = 0; c < dv; c++) {
            const float past = dot_blocks(q, 1, work->state + c, dv, dk) * fade;
            const float here = dot_blocks(work->p + i * CHUNK, 1, work->u + c, dv, i + 1);
            output_set(run, first + i, head, c, past + here);
        }
    }
    for (int64_t r = 0; r < dk; r++) {
        for (int64_t i = 0; i < rows; i++)
            column[i] = run->k[(key * run->n + first + i) * dk + r] * m2_expf(last - work->g[i]);
        for (int64_t c = 0; c < dv; c++) {
            float *state = work->state + r * dv + c;
            *state = *state * m2_expf(last) + dot_blocks(column, 1, work->u + c, dv, rows);
        }
    }
}

static void chunked_heads(void *context, int64_t begin, int64_t end, int worker)
{
    const m2_delta_run *run = context;
    (void)worker;
    for (int64_t head = begin; head < end; head++) {
        const chunk_work work = chunk_work_of(run, head);
        const int64_t state = (int64_t)run->args.key_dim * run->args.value_dim;
        memset(work.state, 0, (size_t)state * sizeof(float));
        for (int64_t first = 0; first < run->n; first += CHUNK) {
            const int64_t rows = run->n - first < CHUNK ? run->n - first : CHUNK;
            chunk_scores(run, &work, head, first, rows);
            chunk_targets(run, &work, head, first, rows);
            chunk_advance(run, &work, head, first, rows);
        }
    }
}

void m2_delta_prepare(const m2_ops *ops, const m2_gated_delta_rule_args *args,
                      m2_delta_run *run_out)
{
    const int64_t n = args->o->shape[0], dk = args->key_dim, dv = args->value_dim;
    const int64_t n_key = args->n_key_heads, n_value = args->n_value_heads;
    assert(args->o->n_dims == 3 && args->o->shape[1] == n_value && args->o->shape[2] == dv);
    assert(m2_tensor_count(args->qkv) == n * (2 * n_key * dk + n_value * dv));
    assert(m2_tensor_count(args->scratch) >=
           m2_gated_delta_scratch(n, (int)n_key, (int)dk, (int)n_value, (int)dv, args->use_chunks));
    assert(n_value % n_key == 0);
    m2_delta_run run = { .args = *args, .n = n, .q = args->scratch->data };
    run.k = run.q + round_up(n * n_key * dk, M2_REF_LANES);
    run.decay = run.k + round_up(n * n_key * dk, M2_REF_LANES);
    run.beta = run.decay + round_up(n * n_value, M2_REF_LANES);
    run.work = run.beta + round_up(n * n_value, M2_REF_LANES);
    run.work_per_head = work_floats(dk, dv, args->use_chunks);
    m2_parallel_for(ops->pool, n, 4, prepare_rows, &run);
    *run_out = run;
}

void m2_ref_gated_delta_rule(const m2_ops *ops, const m2_gated_delta_rule_args *args)
{
    const int64_t n_value = args->n_value_heads, dv = args->value_dim;
    m2_delta_run run;
    m2_delta_prepare(ops, args, &run);
    if (args->use_chunks)
        m2_parallel_for(ops->pool, n_value, 1, chunked_heads, &run);
    else
        m2_parallel_for(ops->pool, n_value * dv, M2_REF_LANES, recurrent_columns, &run);
}
