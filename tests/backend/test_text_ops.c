/* The text encoder's operators against the same maths in double, written out here once more, and
 * every instruction set against the scalar definitions, bit for bit. */
#include "support/check.h"

#include "backend/cpu/cpu.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define ARENA_BYTES ((size_t)64 << 20)

typedef struct test_env {
    m2_ops ops;
    m2_arena arena;
    m2_test_random random;
} test_env;

static int set_up(void **state)
{
    test_env *env = calloc(1, sizeof *env);
    check_ok(m2_ops_init_cpu(&env->ops, NULL, M2_ISA_REF));
    check_ok(m2_arena_create(&env->arena, "test", ARENA_BYTES));
    env->random.state = 20260711;
    *state = env;
    return 0;
}

static int tear_down(void **state)
{
    test_env *env = *state;
    m2_arena_destroy(&env->arena);
    free(env);
    return 0;
}

static double value(const m2_tensor *tensor, int64_t idx)
{
    return tensor->dtype == M2_BF16 ? (double)m2_bf16_to_f32(((m2_bf16 *)tensor->data)[idx])
                                    : (double)((float *)tensor->data)[idx];
}

static void fill_normal(test_env *env, m2_tensor *tensor, float scale)
{
    for (int64_t i = 0; i < m2_tensor_count(tensor); i++) {
        const float x = scale * m2_test_random_normal(&env->random);
        if (tensor->dtype == M2_BF16)
            ((m2_bf16 *)tensor->data)[i] = m2_f32_to_bf16(x);
        else
            ((float *)tensor->data)[i] = x;
    }
}

#define make(env, dtype, ...) m2_tensor_make(&(env)->arena, (dtype), __VA_ARGS__)

/* Relative error against doubles. f32 results: 3e-7 is the floor of the error rule; bf16 results:
 * 2^-9 is one rounding at its worst, and each operator here rounds at most `n_roundings` times. */
static void check_error(const m2_tensor *got, const double *wanted, int n_roundings,
                        const char *what)
{
    const double error =
        m2_test_relative_error(got->data, got->dtype, wanted, M2_F64, m2_tensor_count(got));
    const double limit = got->dtype == M2_F32 ? 3e-7 : n_roundings * 0x1p-9;
    check_near(error, 0.0, limit, "%s", what);
}

/* Catches sine and cosine swapped, frequencies divided by n_rot instead of 2 n_rot, positions that
 * start at 1. */
static void rope_table_holds_cosines_and_sines_of_position_times_frequency(void **state)
{
    test_env *env = *state;
    const double theta = 1e7;
    m2_tensor c = make(env, M2_F32, 300, 32), s = make(env, M2_F32, 300, 32);
    env->ops.text_rope_table(&env->ops, &(m2_text_rope_table_args){ theta, &c, &s });
    for (int64_t row = 0; row < 300; row++) {
        for (int64_t i = 0; i < 32; i++) {
            const double angle = (double)row * pow(theta, -(double)i / 32.0);
            /* the f32 angle is off by two roundings */
            const double limit = 1.3e-7 * (1.0 + angle);
            check_near(value(&c, row * 32 + i), cos(angle), limit, "cos %d %d", (int)row, (int)i);
            check_near(value(&s, row * 32 + i), sin(angle), limit, "sin %d %d", (int)row, (int)i);
        }
    }
}

/* Catches a table that rounds twice or truncates. */
static void rope_table_in_bf16_is_the_rounded_f32_table(void **state)
{
    test_env *env = *state;
    m2_tensor c = make(env, M2_F32, 70, 4), s = make(env, M2_F32, 70, 4);
    m2_tensor c16 = make(env, M2_BF16, 70, 4), s16 = make(env, M2_BF16, 70, 4);
    env->ops.text_rope_table(&env->ops, &(m2_text_rope_table_args){ 1e4, &c, &s });
    env->ops.text_rope_table(&env->ops, &(m2_text_rope_table_args){ 1e4, &c16, &s16 });
    for (int64_t i = 0; i < 280; i++) {
        const m2_bf16 wanted = m2_f32_to_bf16(((float *)c.data)[i]);
        assert_int_equal(((m2_bf16 *)c16.data)[i].bits, wanted.bits);
        assert_int_equal(((m2_bf16 *)s16.data)[i].bits, m2_f32_to_bf16(((float *)s.data)[i]).bits);
    }
}

typedef struct qk_case {
    int64_t n, n_heads, n_kv, dim, n_rot;
} qk_case;

static void normed_and_rotated(const m2_tensor *from, int64_t from_idx, const m2_tensor *w,
                               const m2_tensor *c, const m2_tensor *s, int64_t row, double *to)
{
    const int64_t dim = w->shape[0], n_rot = c->shape[1];
    double squares = 0;
    for (int64_t i = 0; i < dim; i++) squares += pow(value(from, from_idx + i), 2);
    const double scale = 1.0 / sqrt(squares / (double)dim + 1e-6);
    for (int64_t i = 0; i < dim; i++)
        to[i] = value(from, from_idx + i) * scale * (1.0 + value(w, i));
    for (int64_t i = 0; i < n_rot; i++) {
        const double a = to[i], b = to[i + n_rot];
        const double cosine = value(c, row * n_rot + i), sine = value(s, row * n_rot + i);
        to[i] = a * cosine - b * sine;
        to[i + n_rot] = b * cosine + a * sine;
    }
}

static void check_qk_norm_rope(test_env *env, m2_dtype dtype, qk_case size)
{
    const int64_t n = size.n, dim = size.dim;
    m2_arena_reset(&env->arena);
    m2_tensor qg = make(env, dtype, n, size.n_heads, 2 * dim);
    m2_tensor k_in = make(env, dtype, n, size.n_kv, dim);
    m2_tensor qw = make(env, dtype, dim), kw = make(env, dtype, dim);
    m2_tensor c = make(env, dtype, n, size.n_rot), s = make(env, dtype, n, size.n_rot);
    m2_tensor q = make(env, dtype, n, size.n_heads, dim), k = make(env, dtype, n, size.n_kv, dim);
    fill_normal(env, &qg, 3.0f);
    fill_normal(env, &k_in, 0.5f);
    fill_normal(env, &qw, 0.5f);
    fill_normal(env, &kw, 0.5f);
    env->ops.text_rope_table(&env->ops, &(m2_text_rope_table_args){ 1e4, &c, &s });
    env->ops.text_qk_norm_rope(&env->ops, &(m2_text_qk_norm_rope_args){ .qg = &qg,
                                                                        .k_in = &k_in,
                                                                        .q_norm = &qw,
                                                                        .k_norm = &kw,
                                                                        .cos = &c,
                                                                        .sin = &s,
                                                                        .eps = 1e-6f,
                                                                        .q = &q,
                                                                        .k = &k });
    double *q_wanted = m2_new(&env->arena, double, m2_tensor_count(&q));
    double *k_wanted = m2_new(&env->arena, double, m2_tensor_count(&k));
    for (int64_t row = 0; row < n; row++) {
        for (int64_t h = row * size.n_heads; h < (row + 1) * size.n_heads; h++)
            normed_and_rotated(&qg, h * 2 * dim, &qw, &c, &s, row, q_wanted + h * dim);
        for (int64_t h = row * size.n_kv; h < (row + 1) * size.n_kv; h++)
            normed_and_rotated(&k_in, h * dim, &kw, &c, &s, row, k_wanted + h * dim);
    }
    check_error(&q, q_wanted, 2, "q");
    check_error(&k, k_wanted, 2, "k");
}

/* Catches the gate split off as the second half of the whole vector instead of per head, weights
 * taken without the 1, interleaved pairs, a rotation of all dims, k normed with q's weights. */
static void queries_and_keys_are_normed_and_half_split_rotated_per_head(void **state)
{
    test_env *env = *state;
    const qk_case cases[] = { { 5, 4, 2, 32, 4 }, { 3, 2, 1, 256, 32 }, { 1, 3, 3, 20, 10 } };
    for (size_t i = 0; i < 3; i++) {
        check_qk_norm_rope(env, M2_F32, cases[i]);
        check_qk_norm_rope(env, M2_BF16, cases[i]);
    }
}

/* Products and their sum are rounded one by one; catches one rounding at the end. */
static void rotation_rounds_each_product_and_the_sum(void **state)
{
    test_env *env = *state;
    m2_tensor qg = make(env, M2_BF16, 1, 1, 4), k_in = make(env, M2_BF16, 1, 1, 2);
    m2_tensor w = make(env, M2_BF16, 2), c = make(env, M2_BF16, 1, 1), s = make(env, M2_BF16, 1, 1);
    m2_tensor q = make(env, M2_BF16, 1, 1, 2), k = make(env, M2_BF16, 1, 1, 2);
    int n_told_apart = 0;
    for (int round = 0; round < 50; round++) {
        fill_normal(env, &qg, 1.0f);
        fill_normal(env, &k_in, 1.0f);
        fill_normal(env, &c, 1.0f);
        fill_normal(env, &s, 1.0f);
        memset(w.data, 0, m2_tensor_bytes(&w));
        const m2_text_qk_norm_rope_args args = { &qg, &k_in, &w, &w, &c, &s, 1e-6f, &q, &k };
        env->ops.text_qk_norm_rope(&env->ops, &args);
        const float x0 = (float)value(&k_in, 0), x1 = (float)value(&k_in, 1);
        const float scale = 1.0f / sqrtf((fmaf(x0, x0, 0.0f) + x1 * x1) / 2.0f + 1e-6f);
        const float a = m2_round_bf16(x0 * scale), b = m2_round_bf16(x1 * scale);
        const float cosine = (float)value(&c, 0), sine = (float)value(&s, 0);
        const float once = m2_round_bf16(a * cosine - b * sine);
        const float each = m2_round_bf16(m2_round_bf16(a * cosine) + m2_round_bf16(-b * sine));
        assert_true((float)value(&k, 0) == each);
        n_told_apart += once != each;
    }
    assert_true(n_told_apart > 0);
}

/* Catches the query used as gate, and a gate that is not rounded before the product. */
static void attention_gate_is_the_rounded_sigmoid_of_each_heads_second_half(void **state)
{
    test_env *env = *state;
    const int64_t n = 3, n_heads = 2, dim = 8;
    for (int is_bf16 = 0; is_bf16 < 2; is_bf16++) {
        const m2_dtype dtype = is_bf16 ? M2_BF16 : M2_F32;
        m2_tensor a = make(env, dtype, n, n_heads, dim);
        m2_tensor qg = make(env, dtype, n, n_heads, 2 * dim);
        m2_tensor y = make(env, dtype, n, n_heads * dim);
        double *wanted = m2_new(&env->arena, double, n *n_heads *dim);
        fill_normal(env, &a, 1.0f);
        fill_normal(env, &qg, 2.0f);
        env->ops.text_gate(&env->ops, &(m2_text_gate_args){ &a, &qg, &y });
        for (int64_t h = 0; h < n * n_heads; h++) {
            for (int64_t i = 0; i < dim; i++) {
                const double gate = 1.0 / (1.0 + exp(-value(&qg, h * 2 * dim + dim + i)));
                wanted[h * dim + i] = value(&a, h * dim + i) * gate;
                if (!is_bf16) continue;
                const float rounded = m2_round_bf16((float)gate) * (float)value(&a, h * dim + i);
                assert_true((float)value(&y, h * dim + i) == m2_round_bf16(rounded));
            }
        }
        check_error(&y, wanted, 2, "gated");
    }
}

/* Catches the roles of gate and up swapped and the missing rounding between them. */
static void silu_of_the_gate_is_rounded_before_the_product(void **state)
{
    test_env *env = *state;
    m2_tensor gate = make(env, M2_BF16, 7, 33), up = make(env, M2_BF16, 7, 33);
    fill_normal(env, &gate, 2.0f);
    fill_normal(env, &up, 2.0f);
    m2_tensor y = make(env, M2_BF16, 7, 33);
    env->ops.silu_mul(&env->ops, &(m2_silu_mul_args){ &gate, &up, &y });
    for (int64_t i = 0; i < 7 * 33; i++) {
        const double x = value(&gate, i);
        const float silu = m2_round_bf16((float)(x / (1.0 + exp(-x))));
        assert_true((float)value(&y, i) == m2_round_bf16(silu * (float)value(&up, i)));
    }
    env->ops.silu_mul(&env->ops, &(m2_silu_mul_args){ &gate, &up, &gate });
    assert_memory_equal(gate.data, y.data, m2_tensor_bytes(&y)); /* in place */
}

/* Catches a tap order turned round, a window that sees the future, rows before the first read. */
static void convolution_sees_the_present_at_its_last_tap_and_no_future(void **state)
{
    test_env *env = *state;
    for (int64_t n = 1; n <= 9; n += 2) {
        for (int is_bf16 = 0; is_bf16 < 2; is_bf16++) {
            const m2_dtype dtype = is_bf16 ? M2_BF16 : M2_F32;
            const int64_t n_channels = 5, kernel = 4;
            m2_tensor x = make(env, dtype, n, n_channels);
            m2_tensor w = make(env, dtype, n_channels, 1, kernel);
            m2_tensor y = make(env, dtype, n, n_channels);
            double *wanted = m2_new(&env->arena, double, n *n_channels);
            fill_normal(env, &x, 1.0f);
            fill_normal(env, &w, 1.0f);
            env->ops.causal_conv_silu(&env->ops, &(m2_causal_conv_silu_args){ &x, &w, &y });
            for (int64_t t = 0; t < n; t++) {
                for (int64_t c = 0; c < n_channels; c++) {
                    double sum = 0;
                    for (int64_t j = 0; j < kernel; j++) {
                        const int64_t at = t - 3 + j;
                        if (at >= 0)
                            sum += value(&w, c * kernel + j) * value(&x, at * n_channels + c);
                    }
                    if (is_bf16) sum = (double)m2_round_bf16((float)sum);
                    wanted[t * n_channels + c] = sum / (1.0 + exp(-sum));
                }
            }
            check_error(&y, wanted, 2, "convolution"); /* a sum near a tie may fall */
        }
    }
}

/* ---- gated delta rule ---- */

typedef struct delta_case {
    int64_t n;
    int n_key, dk, n_value, dv;
    float decay; /* typical a: the larger, the faster the state fades */
} delta_case;

typedef struct delta_data {
    m2_tensor qkv, a, b, a_log, dt_bias, o;
} delta_data;

static delta_data delta_inputs(test_env *env, m2_dtype dtype, delta_case size)
{
    delta_data data;
    data.qkv = make(env, dtype, size.n, 2 * size.n_key * size.dk + size.n_value * size.dv);
    data.a = make(env, dtype, size.n, size.n_value);
    data.b = make(env, dtype, size.n, size.n_value);
    data.a_log = make(env, dtype, size.n_value);
    data.dt_bias = make(env, dtype, size.n_value);
    data.o = make(env, dtype, size.n, size.n_value, size.dv);
    fill_normal(env, &data.qkv, 1.0f);
    fill_normal(env, &data.a, size.decay);
    fill_normal(env, &data.b, 1.0f);
    fill_normal(env, &data.a_log, 0.5f);
    fill_normal(env, &data.dt_bias, 1.0f);
    return data;
}

static void run_delta(test_env *env, const m2_ops *ops, delta_case size, delta_data *data,
                      int use_chunks)
{
    const int64_t floats =
        m2_gated_delta_scratch(size.n, size.n_key, size.dk, size.n_value, size.dv, use_chunks);
    m2_tensor scratch = make(env, M2_F32, floats);
    memset(scratch.data, 0xff, m2_tensor_bytes(&scratch)); /* NaN: nothing may be left unset */
    ops->gated_delta_rule(ops, &(m2_gated_delta_rule_args){ .qkv = &data->qkv,
                                                            .a = &data->a,
                                                            .b = &data->b,
                                                            .a_log = &data->a_log,
                                                            .dt_bias = &data->dt_bias,
                                                            .n_key_heads = size.n_key,
                                                            .key_dim = size.dk,
                                                            .n_value_heads = size.n_value,
                                                            .value_dim = size.dv,
                                                            .use_chunks = use_chunks,
                                                            .scratch = &scratch,
                                                            .o = &data->o });
}

static void unit_vector(const m2_tensor *from, int64_t begin, int64_t n, double *to)
{
    double squares = 0;
    for (int64_t i = 0; i < n; i++) squares += pow(value(from, begin + i), 2);
    for (int64_t i = 0; i < n; i++) to[i] = value(from, begin + i) / sqrt(squares + 1e-6);
}

/* The recurrence in double, head by head. */
static double *delta_truth(test_env *env, delta_case size, const delta_data *data)
{
    const int64_t width = data->qkv.shape[1], dk = size.dk, dv = size.dv;
    double *o = m2_new(&env->arena, double, size.n *size.n_value *dv);
    double *state = m2_new(&env->arena, double, dk *dv);
    double q[256], k[256];
    for (int64_t h = 0; h < size.n_value; h++) {
        const int64_t key = h / (size.n_value / size.n_key);
        memset(state, 0, (size_t)(dk * dv) * sizeof *state);
        for (int64_t t = 0; t < size.n; t++) {
            unit_vector(&data->qkv, t * width + key * dk, dk, q);
            unit_vector(&data->qkv, t * width + (size.n_key + key) * dk, dk, k);
            double beta = 1.0 / (1.0 + exp(-value(&data->b, t * size.n_value + h)));
            if (data->b.dtype == M2_BF16) beta = (double)m2_round_bf16((float)beta);
            const double in = value(&data->a, t * size.n_value + h) + value(&data->dt_bias, h);
            const double fade = exp(-exp(value(&data->a_log, h)) * log1p(exp(in)));
            for (int64_t c = 0; c < dv; c++) {
                double seen = 0, out = 0;
                for (int64_t i = 0; i < dk; i++) seen += k[i] * (state[i * dv + c] *= fade);
                const int64_t v = t * width + 2 * size.n_key * dk + h * dv + c;
                const double step = (value(&data->qkv, v) - seen) * beta;
                for (int64_t i = 0; i < dk; i++) {
                    state[i * dv + c] += k[i] * step;
                    out += q[i] * state[i * dv + c];
                }
                o[(t * size.n_value + h) * dv + c] = out / sqrt((double)dk);
            }
        }
    }
    return o;
}

static const delta_case delta_cases[] = {
    { 1, 1, 16, 1, 16, 1.0f },  { 3, 2, 32, 4, 16, 1.0f },    { 63, 1, 16, 2, 16, 0.5f },
    { 64, 2, 32, 4, 16, 3.0f }, { 65, 1, 128, 3, 128, 1.0f }, { 200, 1, 24, 2, 20, 0.1f },
    { 130, 2, 33, 2, 7, 8.0f },
};
#define N_DELTA_CASES (sizeof delta_cases / sizeof delta_cases[0])

/* Catches decay after the update, value heads that take the wrong key head, a missing q scale, an
 * off-by-one of the causal mask in a chunk, the state carried wrong from chunk to chunk, softplus
 * without its linear part. */
static void both_forms_of_the_delta_rule_meet_the_recurrence_in_double(void **state)
{
    test_env *env = *state;
    for (size_t i = 0; i < N_DELTA_CASES; i++) {
        for (int use_chunks = 0; use_chunks < 2; use_chunks++) {
            m2_arena_reset(&env->arena);
            delta_data data = delta_inputs(env, M2_F32, delta_cases[i]);
            run_delta(env, &env->ops, delta_cases[i], &data, use_chunks);
            const double *wanted = delta_truth(env, delta_cases[i], &data);
            const double error = m2_test_relative_error(data.o.data, M2_F32, wanted, M2_F64,
                                                        m2_tensor_count(&data.o));
            /* Fading is exp of a product of two functions; chunks take differences of its sums,
             * which reach hundreds where the state fades fast (measured: 4e-7 and 3.6e-6). */
            const double limit = use_chunks ? 5e-6 : 1e-6;
            check_near(error, 0.0, limit, "case %d chunks %d", (int)i, use_chunks);
        }
    }
}

/* Catches an input read or an output written in another type than it has. */
static void delta_rule_in_bf16_rounds_only_beta_and_the_output(void **state)
{
    test_env *env = *state;
    for (size_t i = 0; i < N_DELTA_CASES; i++) {
        m2_arena_reset(&env->arena);
        delta_data data = delta_inputs(env, M2_BF16, delta_cases[i]);
        run_delta(env, &env->ops, delta_cases[i], &data, 0);
        check_error(&data.o, delta_truth(env, delta_cases[i], &data), 1, "bf16 outputs");
    }
}

/* Catches a split whose sums depend on the number of workers, and state shared between heads. */
static void delta_rule_has_the_same_bits_for_any_number_of_threads(void **state)
{
    test_env *env = *state;
    const delta_case size = delta_cases[4];
    m2_pool *pool = NULL;
    m2_ops ops;
    check_ok(m2_pool_create(3, &pool));
    check_ok(m2_ops_init_cpu(&ops, pool, M2_ISA_REF));
    for (int use_chunks = 0; use_chunks < 2; use_chunks++) {
        delta_data data = delta_inputs(env, M2_F32, size);
        run_delta(env, &env->ops, size, &data, use_chunks);
        const m2_tensor alone = data.o;
        data.o = make(env, M2_F32, size.n, size.n_value, size.dv);
        run_delta(env, &ops, size, &data, use_chunks);
        assert_memory_equal(alone.data, data.o.data, m2_tensor_bytes(&alone));
    }
    m2_pool_destroy(pool);
}

/* A later token must not change earlier outputs, in either form. */
static void delta_rule_is_causal(void **state)
{
    test_env *env = *state;
    const delta_case size = { 70, 1, 16, 2, 16, 1.0f };
    for (int use_chunks = 0; use_chunks < 2; use_chunks++) {
        delta_data data = delta_inputs(env, M2_F32, size);
        run_delta(env, &env->ops, size, &data, use_chunks);
        const m2_tensor before = data.o;
        data.o = make(env, M2_F32, size.n, size.n_value, size.dv);
        m2_tensor tail = m2_tensor_rows(&data.qkv, 40, 70);
        fill_normal(env, &tail, 1.0f);
        run_delta(env, &env->ops, size, &data, use_chunks);
        const size_t same = (size_t)(40 * size.n_value * size.dv) * sizeof(float);
        assert_memory_equal(before.data, data.o.data, same);
        assert_memory_not_equal((char *)before.data + same, (char *)data.o.data + same, 64);
    }
}

/* Catches weights taken as offsets from 1, the gate before the norm, one of the three roundings
 * left out. */
static void gated_norm_weighs_then_gates_with_silu(void **state)
{
    test_env *env = *state;
    const int64_t n = 3, n_heads = 2, dim = 20;
    for (int is_bf16 = 0; is_bf16 < 2; is_bf16++) {
        const m2_dtype dtype = is_bf16 ? M2_BF16 : M2_F32;
        m2_tensor o = make(env, dtype, n, n_heads, dim), w = make(env, dtype, dim);
        m2_tensor z = make(env, dtype, n, n_heads * dim), y = make(env, dtype, n, n_heads * dim);
        double *wanted = m2_new(&env->arena, double, n *n_heads *dim);
        fill_normal(env, &o, 0.1f);
        fill_normal(env, &w, 1.0f);
        fill_normal(env, &z, 2.0f);
        env->ops.gated_rms_norm(&env->ops, &(m2_gated_rms_norm_args){ &o, &w, &z, 1e-6f, &y });
        for (int64_t h = 0; h < n * n_heads; h++) {
            double squares = 0;
            for (int64_t i = 0; i < dim; i++) squares += pow(value(&o, h * dim + i), 2);
            const double scale = 1.0 / sqrt(squares / (double)dim + 1e-6);
            for (int64_t i = h * dim; i < (h + 1) * dim; i++) {
                double x = value(&o, i) * scale;
                if (is_bf16) x = (double)m2_round_bf16((float)x);
                x *= value(&w, i - h * dim);
                if (is_bf16) x = (double)m2_round_bf16((float)x);
                wanted[i] = x * value(&z, i) / (1.0 + exp(-value(&z, i)));
            }
        }
        check_error(&y, wanted, 1, "gated norm"); /* the last rounding alone is left */
    }
}

/* Catches a division by the count (other last bits: 7 rows tell), and garbage for no rows. */
static void mean_of_rows_is_the_sum_times_the_rounded_reciprocal(void **state)
{
    test_env *env = *state;
    m2_tensor x = make(env, M2_BF16, 12, 40), idx = make(env, M2_I32, 7), y = make(env, M2_F32, 40);
    m2_tensor x32 = make(env, M2_F32, 12, 40);
    const int32_t rows[7] = { 3, 4, 5, 9, 10, 11, 0 };
    fill_normal(env, &x32, 1.0f);
    fill_normal(env, &x, 1.0f);
    memcpy(idx.data, rows, sizeof rows);
    env->ops.mean_rows(&env->ops, &(m2_mean_rows_args){ &x32, &idx, &y });
    int n_told_apart = 0;
    for (int64_t i = 0; i < 40; i++) {
        float sum = 0.0f;
        for (int r = 0; r < 7; r++) sum += ((float *)x32.data)[rows[r] * 40 + i];
        assert_true(((float *)y.data)[i] == sum * (1.0f / 7.0f));
        n_told_apart += sum / 7.0f != sum * (1.0f / 7.0f);
    }
    assert_true(n_told_apart > 0);

    m2_tensor y16 = make(env, M2_BF16, 40), none = make(env, M2_I32, 0);
    memset(y16.data, 0xff, m2_tensor_bytes(&y16));
    env->ops.mean_rows(&env->ops, &(m2_mean_rows_args){ &x, &none, &y16 });
    for (int64_t i = 0; i < 40; i++) assert_int_equal(((m2_bf16 *)y16.data)[i].bits, 0);
}

/* ---- instruction sets ---- */

typedef struct all_outputs {
    m2_tensor q, k, gated, mixed, conv, delta, normed;
} all_outputs;

/* Every text operator on widths that are not whole vectors, from the same inputs. */
static void run_all(test_env *env, const m2_ops *ops, m2_dtype dtype, int64_t dim, int64_t n_rot,
                    delta_case size, all_outputs *out)
{
    const int64_t n = size.n;
    env->random.state = 77;
    m2_tensor qg = make(env, dtype, n, 3, 2 * dim), k_in = make(env, dtype, n, 3, dim);
    m2_tensor w = make(env, dtype, dim), taps = make(env, dtype, 3 * dim, 1, 4);
    m2_tensor c = make(env, dtype, n, n_rot), s = make(env, dtype, n, n_rot);
    m2_tensor o = make(env, dtype, n, 3, dim), z = make(env, dtype, n, 3 * dim);
    fill_normal(env, &qg, 2.0f);
    fill_normal(env, &k_in, 1.0f);
    fill_normal(env, &w, 1.0f);
    fill_normal(env, &taps, 1.0f);
    fill_normal(env, &o, 1.0f);
    fill_normal(env, &z, 20.0f); /* also where the sigmoid is 0 or 1 */
    ops->text_rope_table(ops, &(m2_text_rope_table_args){ 1e4, &c, &s });
    out->q = make(env, dtype, n, 3, dim);
    out->k = make(env, dtype, n, 3, dim);
    out->gated = make(env, dtype, n, 3 * dim);
    out->mixed = make(env, dtype, n, 3 * dim);
    out->conv = make(env, dtype, n, 3 * dim);
    out->normed = make(env, dtype, n, 3 * dim);
    const m2_text_qk_norm_rope_args qk = { &qg, &k_in, &w, &w, &c, &s, 1e-6f, &out->q, &out->k };
    ops->text_qk_norm_rope(ops, &qk);
    ops->text_gate(ops, &(m2_text_gate_args){ &o, &qg, &out->gated });
    ops->silu_mul(ops, &(m2_silu_mul_args){ &z, &out->gated, &out->mixed });
    ops->causal_conv_silu(ops, &(m2_causal_conv_silu_args){ &z, &taps, &out->conv });
    ops->gated_rms_norm(ops, &(m2_gated_rms_norm_args){ &o, &w, &z, 1e-6f, &out->normed });
    delta_data data = delta_inputs(env, dtype, size);
    run_delta(env, ops, size, &data, 0);
    out->delta = data.o;
}

static void check_same(const m2_tensor *a, const m2_tensor *b, const char *what, m2_isa isa)
{
    if (memcmp(a->data, b->data, m2_tensor_bytes(a)) != 0)
        fail_msg("%s in %s differs from ref", what, m2_isa_name(isa));
}

/* Catches any step of a vector version that is not the scalar one's: another order of sums, an
 * FMA more or less, a tail read from the next row. */
static void every_instruction_set_gives_the_bits_of_ref(void **state)
{
    test_env *env = *state;
    static const int64_t dims[][2] = { { 32, 4 }, { 256, 32 }, { 20, 10 }, { 7, 3 }, { 600, 17 } };
    m2_pool *pool = NULL;
    check_ok(m2_pool_create(2, &pool));
    for (int isa = M2_ISA_AVX2; isa <= (int)m2_isa_detect(); isa++) {
        m2_ops ops;
        check_ok(m2_ops_init_cpu(&ops, pool, (m2_isa)isa));
        for (size_t i = 0; i < 5 * N_DELTA_CASES; i++) {
            for (int is_bf16 = 0; is_bf16 < 2; is_bf16++) {
                const m2_dtype dtype = is_bf16 ? M2_BF16 : M2_F32;
                const int64_t *dim = dims[i % 5];
                const delta_case size = delta_cases[i % N_DELTA_CASES];
                all_outputs a, b;
                m2_arena_reset(&env->arena);
                run_all(env, &env->ops, dtype, dim[0], dim[1], size, &a);
                run_all(env, &ops, dtype, dim[0], dim[1], size, &b);
                check_same(&a.q, &b.q, "q", (m2_isa)isa);
                check_same(&a.k, &b.k, "k", (m2_isa)isa);
                check_same(&a.gated, &b.gated, "text_gate", (m2_isa)isa);
                check_same(&a.mixed, &b.mixed, "silu_mul", (m2_isa)isa);
                check_same(&a.conv, &b.conv, "causal_conv_silu", (m2_isa)isa);
                check_same(&a.normed, &b.normed, "gated_rms_norm", (m2_isa)isa);
                check_same(&a.delta, &b.delta, "gated_delta_rule", (m2_isa)isa);
            }
        }
    }
    m2_pool_destroy(pool);
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)
    const struct CMUnitTest tests[] = {
        TEST(rope_table_holds_cosines_and_sines_of_position_times_frequency),
        TEST(rope_table_in_bf16_is_the_rounded_f32_table),
        TEST(queries_and_keys_are_normed_and_half_split_rotated_per_head),
        TEST(rotation_rounds_each_product_and_the_sum),
        TEST(attention_gate_is_the_rounded_sigmoid_of_each_heads_second_half),
        TEST(silu_of_the_gate_is_rounded_before_the_product),
        TEST(convolution_sees_the_present_at_its_last_tap_and_no_future),
        TEST(both_forms_of_the_delta_rule_meet_the_recurrence_in_double),
        TEST(delta_rule_in_bf16_rounds_only_beta_and_the_output),
        TEST(delta_rule_has_the_same_bits_for_any_number_of_threads),
        TEST(delta_rule_is_causal),
        TEST(gated_norm_weighs_then_gates_with_silu),
        TEST(mean_of_rows_is_the_sum_times_the_rounded_reciprocal),
        TEST(every_instruction_set_gives_the_bits_of_ref),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
