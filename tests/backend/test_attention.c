#include "backend/random_case.h"

/* Largest difference from the truth in f64, relative to the largest value. */
static double attention_error(const m2_attention_args *args)
{
    const int64_t n_heads = args->q->shape[1], dim = args->q->shape[2], n_kv = args->k->shape[1];
    double difference = 0, norm = 0;
    for (int s = 0; s < args->n_segments; s++) {
        for (int64_t i = args->segments[s]; i < args->segments[s + 1]; i++) {
            for (int64_t h = 0; h < n_heads; h++) {
                const int64_t kv = h / (n_heads / n_kv);
                double sum = 0, out[64] = { 0 };
                const int64_t end = args->is_causal ? i + 1 : args->segments[s + 1];
                for (int64_t j = args->segments[s]; j < end; j++) {
                    double score = 0;
                    for (int64_t d = 0; d < dim; d++)
                        score += value_at(args->q, (i * n_heads + h) * dim + d) *
                                 value_at(args->k, (j * n_kv + kv) * dim + d);
                    const double p = exp(score * (double)args->scale);
                    sum += p;
                    for (int64_t d = 0; d < dim; d++)
                        out[d] += p * value_at(args->v, (j * n_kv + kv) * dim + d);
                }
                for (int64_t k = 0; args->sinks && k < args->sinks->shape[0]; k++)
                    sum += exp(value_at(args->sinks, k * n_heads + h));
                for (int64_t d = 0; d < dim; d++) {
                    const double truth = out[d] / sum;
                    const double error = value_at(args->y, (i * n_heads + h) * dim + d) - truth;
                    difference += error * error;
                    norm += truth * truth;
                }
            }
        }
    }
    return sqrt(difference / norm);
}

static double random_attention_error(m2_dtype dtype, int n_segments, const int64_t *segments,
                                     int64_t n_heads, int64_t n_kv, int64_t dim, int64_t n_sinks,
                                     int is_causal)
{
    random_case c;
    random_case_open(&c, (uint64_t)(segments[n_segments] * 100 + dim));
    const m2_ops ops = reference_ops();
    const int64_t n = segments[n_segments];
    m2_tensor q = random_tensor(&c, dtype, 1.5f, n, n_heads, dim);
    m2_tensor k = random_tensor(&c, dtype, 1.5f, n, n_kv, dim);
    m2_tensor v = random_tensor(&c, dtype, 1, n, n_kv, dim);
    m2_tensor sinks = random_tensor(&c, M2_F32, 2, n_sinks ? n_sinks : 1, n_heads);
    m2_tensor y = m2_tensor_make(&c.arena, dtype, n, n_heads, dim);
    const m2_attention_args args = { .q = &q,
                                     .k = &k,
                                     .v = &v,
                                     .sinks = n_sinks ? &sinks : NULL,
                                     .segments = segments,
                                     .n_segments = n_segments,
                                     .scale = 1.0f / sqrtf((float)dim),
                                     .is_causal = is_causal,
                                     .y = &y };
    ops.attention(&ops, &args);
    const double error = attention_error(&args);
    random_case_close(&c);
    return error;
}

/* Catches keys of another segment, a block edge off by one, a wrong head of K, a sink that is left
 * out (in f32: in bf16 it would hide), a mask that lets the future in. */
static void attention_follows_the_formula(void **state)
{
    (void)state;
    const int64_t cuts[][5] = {
        { 0, 1 }, { 0, 63, 64 }, { 0, 64, 64, 129 }, { 0, 1, 66, 130, 131 }, { 0, 200 }
    };
    const int counts[] = { 1, 2, 3, 4, 1 };
    for (int i = 0; i < 5; i++) {
        for (int is_causal = 0; is_causal <= 1; is_causal++) {
            for (int n_sinks = 0; n_sinks <= 2; n_sinks++) {
                const double f32 = random_attention_error(M2_F32, counts[i], cuts[i], 6, 3, 32,
                                                          n_sinks, is_causal);
                /* scores of up to 8 have neighbours 5e-7 apart, and so have logarithms of P */
                check_near(f32, 0, 6e-7, "case %d causal %d sinks %d", i, is_causal, n_sinks);
                /* P and the result are rounded to bf16 each, with a sink the result twice */
                const double bf16 = random_attention_error(M2_BF16, counts[i], cuts[i], 2, 1, 40,
                                                           n_sinks, is_causal);
                check_near(bf16, 0, 0x1p-8, "case %d causal %d sinks %d", i, is_causal, n_sinks);
            }
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(attention_follows_the_formula),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
