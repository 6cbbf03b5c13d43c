/* gated_delta_rule.c - the recurrent form, sixteen columns of the state at a time.
 *
 * Why    columns never meet: a worker keeps [dk, 16] of the state (8 KiB in the release) in its
 *        nearest cache over all tokens and passes over it twice a token.  The first pass does not
 *        store the faded state, the second fades it again: stores were the limit.
 * Order  as in cpu/ref: chains over 32 rows, added one after another.
 * Limits the chunked form is left to cpu/ref.
 */
#include "backend/cpu/lanes/ops.h"
#include "backend/cpu/ref/gated_delta_rule.h"

#define CHAIN 32

/* One row of a chain: k . (decay state) */
static inline v16 read_row(v16 chain, const float *state, float k, v16 decay)
{
    return v_fma(v_set1(k), v_mul(v_load(state), decay), chain);
}

/* state = decay state + k step, then q . state */
static inline v16 write_row(v16 chain, float *state, float k, float q, v16 decay, v16 step)
{
    const v16 now = v_fma(v_set1(k), step, v_mul(v_load(state), decay));
    v_store(state, now);
    return v_fma(v_set1(q), now, chain);
}

/* Two chains run side by side, for each alone would wait for its last sum. */
static v16 read_faded(const float *restrict state, const float *restrict k, v16 decay, int64_t dk)
{
    v16 total = v_zero();
    int64_t begin = 0;
    for (; begin + 2 * CHAIN <= dk; begin += 2 * CHAIN) {
        v16 one = v_zero(), two = v_zero();
        for (int64_t i = begin; i < begin + CHAIN; i++) {
            one = read_row(one, state + i * LANES, k[i], decay);
            two = read_row(two, state + (i + CHAIN) * LANES, k[i + CHAIN], decay);
        }
        total = v_add(v_add(total, one), two);
    }
    for (; begin < dk; begin += CHAIN) {
        v16 chain = v_zero();
        for (int64_t i = begin; i < begin + CHAIN && i < dk; i++)
            chain = read_row(chain, state + i * LANES, k[i], decay);
        total = v_add(total, chain);
    }
    return total;
}

static v16 write_and_read(float *restrict state, const float *restrict k, const float *restrict q,
                          v16 decay, v16 step, int64_t dk)
{
    v16 total = v_zero();
    int64_t begin = 0;
    for (; begin + 2 * CHAIN <= dk; begin += 2 * CHAIN) {
        v16 one = v_zero(), two = v_zero();
        for (int64_t i = begin; i < begin + CHAIN; i++) {
            const int64_t j = i + CHAIN;
            one = write_row(one, state + i * LANES, k[i], q[i], decay, step);
            two = write_row(two, state + j * LANES, k[j], q[j], decay, step);
        }
        total = v_add(v_add(total, one), two);
    }
    for (; begin < dk; begin += CHAIN) {
        v16 chain = v_zero();
        for (int64_t i = begin; i < begin + CHAIN && i < dk; i++)
            chain = write_row(chain, state + i * LANES, k[i], q[i], decay, step);
        total = v_add(total, chain);
    }
    return total;
}

static void run_columns(const m2_delta_run *run, int64_t head, int64_t column)
{
    const m2_gated_delta_rule_args *args = &run->args;
    const m2_tensor *qkv = args->qkv, *o = args->o;
    const int64_t dk = args->key_dim, dv = args->value_dim, n_key = args->n_key_heads;
    const int64_t n_value = args->n_value_heads, key = head / (n_value / n_key);
    const int64_t width = 2 * n_key * dk + n_value * dv, left = dv - column;
    float *state = run->work + head * run->work_per_head + column * dk;
    memset(state, 0, (size_t)(dk * LANES) * sizeof *state);
    for (int64_t t = 0; t < run->n; t++) {
        const float *q = run->q + (key * run->n + t) * dk, *k = run->k + (key * run->n + t) * dk;
        const v16 decay = v_set1(run->decay[head * run->n + t]);
        const v16 beta = v_set1(run->beta[head * run->n + t]);
        const int64_t at = t * width + 2 * n_key * dk + head * dv + column;
        const v16 value = v_get_n(qkv->data, qkv->dtype, at, left);
        const v16 step = v_mul(v_sub(value, read_faded(state, k, decay, dk)), beta);
        const v16 out = write_and_read(state, k, q, decay, step, dk);
        v_put_n(o->data, o->dtype, (t * n_value + head) * dv + column, out, left);
    }
}

static void recurrent_blocks(void *context, int64_t begin, int64_t end, int worker)
{
    const m2_delta_run *run = context;
    const int64_t n_blocks = (run->args.value_dim + LANES - 1) / LANES;
    (void)worker;
    for (int64_t item = begin; item < end; item++)
        run_columns(run, item / n_blocks, item % n_blocks * LANES);
}

void M2_LANES_NAME(gated_delta_rule)(const m2_ops *ops, const m2_gated_delta_rule_args *args)
{
    if (args->use_chunks) {
        m2_ref_gated_delta_rule(ops, args);
        return;
    }
    m2_delta_run run;
    m2_delta_prepare(ops, args, &run);
    const int64_t n_blocks = (args->value_dim + LANES - 1) / LANES;
    m2_parallel_for(ops->pool, args->n_value_heads * n_blocks, 1, recurrent_blocks, &run);
}
