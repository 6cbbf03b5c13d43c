/* Scalar operators of the preview transformer: against recorded operations (tests/data/ops) and by
 * what must hold for any input. */
#include "support/check.h"

#include "backend/cpu/cpu.h"
#include "io/checkpoint.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define FLOOR_F32  3e-7
#define FLOOR_BF16 0x1p-10
#define EPS        1e-6f

typedef struct test_env {
    m2_ops ops;
    m2_pool *pool;
    m2_arena arena;
    m2_checkpoint *data;
} test_env;

static int set_up(void **state)
{
    test_env *env = calloc(1, sizeof *env);
    check_ok(m2_arena_create(&env->arena, "test", (size_t)64 << 20));
    check_ok(m2_pool_create(3, &env->pool));
    check_ok(m2_ops_init_cpu(&env->ops, env->pool, M2_ISA_REF));
    *state = env;
    return 0;
}

static int tear_down(void **state)
{
    test_env *env = *state;
    m2_checkpoint_close(env->data);
    m2_pool_destroy(env->pool);
    m2_arena_destroy(&env->arena);
    free(env);
    return 0;
}

/* ---- recorded data ---- */

static void open_data(test_env *env, const char *relative)
{
    m2_checkpoint_close(env->data);
    env->data = NULL;
    check_ok(m2_checkpoint_open(m2_test_path(relative), &env->data));
}

static int has(const test_env *env, const char *name)
{
    return m2_checkpoint_find(env->data, name) != NULL;
}

static m2_tensor take(test_env *env, m2_dtype dtype, const char *format, ...)
{
    char name[128];
    va_list args;
    va_start(args, format);
    vsnprintf(name, sizeof name, format, args);
    va_end(args);
    const m2_ckpt_tensor *entry = m2_checkpoint_find(env->data, name);
    if (!entry) fail_msg("%s is missing", name);
    m2_tensor tensor = m2_tensor_new(&env->arena, dtype, entry->n_dims, entry->shape);
    m2_checkpoint_read(entry, dtype, tensor.data);
    return tensor;
}

/* The error rule: at most twice the reference's own error, or the floor of the type. */
static void check_error(const m2_tensor *ours, const m2_tensor *reference, const m2_tensor *truth,
                        const char *what)
{
    const int64_t n = m2_tensor_count(truth);
    assert_int_equal(m2_tensor_count(ours), n);
    const double error =
        m2_test_relative_error(ours->data, ours->dtype, truth->data, truth->dtype, n);
    const double theirs =
        m2_test_relative_error(reference->data, reference->dtype, truth->data, truth->dtype, n);
    const double limit = fmax(2 * theirs, ours->dtype == M2_F32 ? FLOOR_F32 : FLOOR_BF16);
    if (!(error <= limit)) fail_msg("%s: error %.3e, limit %.3e", what, error, limit);
}

static m2_tensor random_tensor(test_env *env, m2_test_random *random, m2_dtype dtype, int n_dims,
                               const int64_t *shape, float scale)
{
    m2_tensor tensor = m2_tensor_new(&env->arena, dtype, n_dims, shape);
    for (int64_t i = 0; i < m2_tensor_count(&tensor); i++) {
        const float value = scale * m2_test_random_normal(random);
        m2_convert(&value, M2_F32, (char *)tensor.data + (size_t)i * m2_dtype_bytes(dtype), dtype,
                   1);
    }
    return tensor;
}
#define RANDOM(env, random, dtype, scale, ...)                                                     \
    random_tensor((env), (random), (dtype), M2_N_DIMS_(__VA_ARGS__), M2_DIMS_(__VA_ARGS__), (scale))

/* ---- norms ---- */

/* Catches a weight that is not an offset from 1, a wrong epsilon, the wrong slice for a modality (one
 * case has an empty group), heads of one token taken for tokens, and sums in one long chain. */
static void rms_norm_meets_the_error_rule_for_grouped_rows_and_heads(void **state)
{
    static const char *const cases[] = { "hidden_mm",           "hidden_mm_empty_group",
                                         "hidden_single",       "flat_to_f32",
                                         "flat_single_to_f32",  "heads_to_f32",
                                         "heads_single_to_f32", "f32_in" };
    test_env *env = *state;
    open_data(env, "data/ops/rmsnorm.safetensors");
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        char name[64];
        snprintf(name, sizeof name, "%s.in", cases[i]);
        const m2_tensor x = take(env, m2_checkpoint_find(env->data, name)->dtype, "%s", name);
        const m2_tensor w = take(env, M2_F32, "%s.weight", cases[i]);
        const m2_tensor truth = take(env, M2_F32, "%s.truth", cases[i]);
        snprintf(name, sizeof name, "%s.out", cases[i]);
        const m2_tensor out = take(env, m2_checkpoint_find(env->data, name)->dtype, "%s", name);
        m2_groups groups = { 0 };
        snprintf(name, sizeof name, "%s.sizes", cases[i]);
        if (has(env, name)) {
            const m2_tensor sizes = take(env, M2_I32, "%s", name);
            groups.n_groups = (int)sizes.shape[0];
            for (int g = 0; g < groups.n_groups; g++)
                groups.begin[g + 1] = groups.begin[g] + ((const int32_t *)sizes.data)[g];
        }
        m2_tensor y = m2_tensor_new(&env->arena, out.dtype, x.n_dims, x.shape);
        env->ops.rms_norm(&env->ops,
                          &(m2_rms_norm_args){ .x = &x,
                                               .w = &w,
                                               .groups = groups.n_groups ? &groups : NULL,
                                               .eps = EPS,
                                               .weight_offset = 1,
                                               .y = &y });
        check_error(&y, &out, &truth, cases[i]);
    }
}

/* ---- mHC ---- */

typedef struct mhc_case {
    m2_tensor s, phi, norm, alpha[3], bias_pre, bias_post, bias_res;
    m2_tensor pre, post, res, phi_out, pre_f32, post_f32, res_f32;
} mhc_case;

static mhc_case mhc_run(test_env *env, m2_ops *ops, int i)
{
    mhc_case c = { .s = take(env, M2_BF16, "%d.x", i),
                   .phi = take(env, M2_F32, "%d.phi", i),
                   .norm = take(env, M2_F32, "%d.norm_weight", i),
                   .bias_pre = take(env, M2_F32, "%d.bias_pre", i),
                   .bias_post = take(env, M2_F32, "%d.bias_post", i),
                   .bias_res = take(env, M2_F32, "%d.bias_res", i) };
    const m2_tensor alpha = take(env, M2_F32, "%d.alpha", i);
    for (int k = 0; k < 3; k++) c.alpha[k] = m2_tensor_rows(&alpha, k, k + 1);
    const int64_t n = c.s.shape[0];
    c.pre = m2_tensor_make(&env->arena, M2_BF16, n, 4);
    c.post = m2_tensor_make(&env->arena, M2_BF16, n, 4);
    c.res = m2_tensor_make(&env->arena, M2_BF16, n, 4, 4);
    c.phi_out = m2_tensor_make(&env->arena, M2_F32, n, 24);
    c.pre_f32 = m2_tensor_make(&env->arena, M2_F32, n, 4);
    c.post_f32 = m2_tensor_make(&env->arena, M2_F32, n, 4);
    c.res_f32 = m2_tensor_make(&env->arena, M2_F32, n, 4, 4);
    ops->mhc_coefficients(ops, &(m2_mhc_coefficients_args){ .s = &c.s,
                                                            .norm = &c.norm,
                                                            .phi = &c.phi,
                                                            .alpha_pre = &c.alpha[0],
                                                            .alpha_post = &c.alpha[1],
                                                            .alpha_res = &c.alpha[2],
                                                            .bias_pre = &c.bias_pre,
                                                            .bias_post = &c.bias_post,
                                                            .bias_res = &c.bias_res,
                                                            .eps = EPS,
                                                            .h_pre = &c.pre,
                                                            .h_post = &c.post,
                                                            .h_res = &c.res,
                                                            .phi_out = &c.phi_out,
                                                            .h_pre_f32 = &c.pre_f32,
                                                            .h_post_f32 = &c.post_f32,
                                                            .h_res_f32 = &c.res_f32 });
    return c;
}

/* Judged in f32, where bf16 would hide it: Sinkhorn rows first or of ten rounds, phi transposed or
 * rounded, one chain over all of K, a sum of squares over one stream. */
static void mhc_coefficients_meet_the_error_rule_in_f32(void **state)
{
    test_env *env = *state;
    open_data(env, "data/ops/mhc.safetensors");
    for (int i = 0; i < 3; i++) {
        const mhc_case c = mhc_run(env, &env->ops, i);
        m2_tensor reference = take(env, M2_F32, "%d.out.phi_out", i);
        m2_tensor truth = take(env, M2_F32, "%d.truth.phi_out", i);
        check_error(&c.phi_out, &reference, &truth, "phi_out");
        reference = take(env, M2_F32, "%d.out.h_pre_f32", i);
        truth = take(env, M2_F32, "%d.truth.h_pre_f32", i);
        check_error(&c.pre_f32, &reference, &truth, "h_pre_f32");
        reference = take(env, M2_F32, "%d.out.h_res_f32", i);
        truth = take(env, M2_F32, "%d.truth.h_res_f32", i);
        check_error(&c.res_f32, &reference, &truth, "h_res_f32");
        truth = take(env, M2_F32, "%d.truth.h_post", i);
        check_error(&c.post_f32, &truth, &truth, "h_post_f32");
    }
}

/* The last pass is over rows: their sums are 1 to f32, those of columns only almost.  Catches a
 * Sinkhorn that ends on columns, or mixes [target][source] up. */
static void rows_of_the_residual_mix_sum_to_one(void **state)
{
    test_env *env = *state;
    open_data(env, "data/ops/mhc.safetensors");
    const mhc_case c = mhc_run(env, &env->ops, 1);
    const float *m = c.res_f32.data;
    for (int64_t row = 0; row < c.s.shape[0] * 4; row++)
        check_near(m[4 * row] + m[4 * row + 1] + m[4 * row + 2] + m[4 * row + 3], 1, 1e-6,
                   "row %lld", (long long)row); /* four roundings: 2.4e-7 */
}

/* The streams are mixed by coefficients that are rounded to bf16 first, one rounding at the end; and
 * in place, where a stream that is already new must not be read for the next one. */
static void streams_are_read_and_written_back_also_in_place(void **state)
{
    test_env *env = *state;
    open_data(env, "data/ops/mhc.safetensors");
    for (int i = 0; i < 3; i++) {
        const mhc_case c = mhc_run(env, &env->ops, i);
        const m2_tensor o = take(env, M2_BF16, "%d.sub", i);
        m2_tensor x = m2_tensor_new(&env->arena, M2_BF16, 2, o.shape);
        m2_tensor mixed = m2_tensor_new(&env->arena, M2_BF16, 3, c.s.shape);
        m2_tensor in_place = m2_tensor_new(&env->arena, M2_BF16, 3, c.s.shape);
        memcpy(in_place.data, c.s.data, m2_tensor_bytes(&c.s));
        env->ops.mhc_read(&env->ops, &(m2_mhc_read_args){ .s = &c.s, .h_pre = &c.pre, .x = &x });
        env->ops.mhc_write(
            &env->ops,
            &(m2_mhc_write_args){
                .s = &c.s, .h_res = &c.res, .h_post = &c.post, .o = &o, .s_out = &mixed });
        env->ops.mhc_write(
            &env->ops,
            &(m2_mhc_write_args){
                .s = &in_place, .h_res = &c.res, .h_post = &c.post, .o = &o, .s_out = &in_place });
        m2_tensor reference = take(env, M2_BF16, "%d.out.branch_in", i);
        m2_tensor truth = take(env, M2_F32, "%d.truth.branch_in", i);
        check_error(&x, &reference, &truth, "branch_in");
        reference = take(env, M2_BF16, "%d.out.mixed", i);
        truth = take(env, M2_F32, "%d.truth.mixed", i);
        check_error(&mixed, &reference, &truth, "mixed");
        assert_memory_equal(mixed.data, in_place.data, m2_tensor_bytes(&mixed));
    }
}

/* ---- rotary table, time ---- */

/* Catches centring of time, scales the wrong way up, cosines before sines, axes out of order. */
static void rope_table_meets_the_error_rule(void **state)
{
    test_env *env = *state;
    open_data(env, "data/ops/rope_time.safetensors");
    for (int i = 0; i < 2; i++) {
        const m2_tensor coords = take(env, M2_F32, "%d.coords", i);
        const m2_tensor bands = take(env, M2_F32, "%d.bands", i);
        const m2_tensor reference = take(env, M2_F32, "%d.emb", i);
        const m2_tensor truth = take(env, M2_F32, "%d.emb.truth", i);
        m2_tensor table = m2_tensor_new(&env->arena, M2_F32, 2, reference.shape);
        env->ops.rope_table(&env->ops, &(m2_rope_table_args){
                                           .coords = &coords, .bands = &bands, .table = &table });
        check_error(&table, &reference, &truth, "emb");
    }
}

/* A text of one token turns by -1, a longer one not at all; the ninth audio latent stands at
 * 8 * 31 / 249 of a video frame, not at 1. */
static void text_turns_only_alone_and_audio_is_scaled(void **state)
{
    static const float coords_of[3][9] = {
        { -1, 0, 0, 1, 1, 1, 1, 1, 1 },
        { -4, 0, 0, 7, 1, 1, 1, 1, 1 },
        { 8, 0, 0, 250, 1, 1, 32, 1, 1 },
    };
    test_env *env = *state;
    m2_tensor coords = m2_tensor_make(&env->arena, M2_F32, 3, 9);
    m2_tensor bands = m2_tensor_make(&env->arena, M2_F32, 1);
    m2_tensor table = m2_tensor_make(&env->arena, M2_F32, 3, 6);
    memcpy(coords.data, coords_of, sizeof coords_of);
    *(float *)bands.data = 1;
    env->ops.rope_table(
        &env->ops, &(m2_rope_table_args){ .coords = &coords, .bands = &bands, .table = &table });
    const float *rows = table.data;
    check_near(rows[0], sin(-1.0), 2e-7, "one token of text");
    check_near(rows[3], cos(-1.0), 2e-7, "one token of text");
    assert_true(rows[6] == 0 && rows[9] == 1);
    check_near(rows[12], sin(8.0 * 31 / 249), 2e-7, "audio");
}

/* For every timestep, against f64.  Catches sines before cosines, f32 phases (3e-5 at 999), and a
 * timestep that comes back one bit off after its division by 1000, as 507 would. */
static void time_channels_are_exact_for_every_timestep(void **state)
{
    test_env *env = *state;
    const int64_t n = 1001, width = 80, n_channels = 64;
    m2_tensor tau = m2_tensor_make(&env->arena, M2_F32, n);
    m2_tensor x = m2_tensor_make(&env->arena, M2_F32, n, width);
    for (int64_t t = 0; t < n; t++) ((float *)tau.data)[t] = (float)t / 1000.0f;
    for (int64_t i = 0; i < n * width; i++) ((float *)x.data)[i] = 7;
    env->ops.time_channels(&env->ops,
                           &(m2_time_channels_args){ .tau = &tau, .n_channels = 64, .x = &x });
    for (int64_t t = 0; t < n; t++) {
        const float *row = (const float *)x.data + t * width;
        for (int i = 0; i < 32; i++) {
            const double phase = (double)t * exp(-log(10000.0) * i / 32);
            check_near(row[i], cos(phase), 3e-7, "t %d, cosine %d", (int)t, i);
            check_near(row[32 + i], sin(phase), 3e-7, "t %d, sine %d", (int)t, i);
        }
        for (int64_t i = n_channels; i < width; i++) assert_true(row[i] == 7);
    }
}

/* ---- attention's sides ---- */

/* Grouped heads (6 query heads on 2), rows sent to another order, weights by modality, all against
 * f64.  Catches q and k weights swapped, a pairing of neighbours instead of halves, values normed. */
static void queries_and_keys_are_normed_turned_and_reordered(void **state)
{
    enum { N = 5, H = 6, K = 2, D = 16, ROT = 6 };
    static const int32_t seq_of[N] = { 3, 0, 4, 1, 2 };
    test_env *env = *state;
    m2_test_random random = { 11 };
    const m2_groups groups = { 3, { 0, 2, 2, N } };
    const m2_tensor qkv = RANDOM(env, &random, M2_BF16, 2, N, (H + 2 * K) * D);
    const m2_tensor q_norm = RANDOM(env, &random, M2_F32, 0.3f, 3 * D);
    const m2_tensor k_norm = RANDOM(env, &random, M2_F32, 0.3f, 3 * D);
    const m2_tensor rope = RANDOM(env, &random, M2_F32, 0.7f, N, 2 * ROT);
    m2_tensor seq = m2_tensor_make(&env->arena, M2_I32, N);
    memcpy(seq.data, seq_of, sizeof seq_of);
    m2_tensor q = m2_tensor_make(&env->arena, M2_BF16, N, H, D);
    m2_tensor k = m2_tensor_make(&env->arena, M2_BF16, N, K, D);
    m2_tensor v = m2_tensor_make(&env->arena, M2_BF16, N, K, D);
    env->ops.qk_norm_rope(&env->ops, &(m2_qk_norm_rope_args){ .qkv = &qkv,
                                                              .q_norm = &q_norm,
                                                              .k_norm = &k_norm,
                                                              .groups = &groups,
                                                              .rope = &rope,
                                                              .seq = &seq,
                                                              .eps = EPS,
                                                              .q = &q,
                                                              .k = &k,
                                                              .v = &v });

    for (int row = 0; row < N; row++) {
        const float *table = (const float *)rope.data + row * 2 * ROT;
        for (int head = 0; head < H + 2 * K; head++) {
            const m2_bf16 *from = (const m2_bf16 *)qkv.data + (row * (H + 2 * K) + head) * D;
            const int to = seq_of[row];
            const m2_bf16 *got = head < H       ? (m2_bf16 *)q.data + (to * H + head) * D
                                 : head < H + K ? (m2_bf16 *)k.data + (to * K + head - H) * D
                                                : (m2_bf16 *)v.data + (to * K + head - H - K) * D;
            if (head >= H + K) {
                assert_memory_equal(got, from, D * sizeof *got);
                continue;
            }
            const float *w =
                (head < H ? (float *)q_norm.data : (float *)k_norm.data) + (row < 2 ? 0 : 2) * D;
            double x[D], squares = 0;
            for (int i = 0; i < D; i++) {
                x[i] = (double)m2_bf16_to_f32(from[i]);
                squares += x[i] * x[i];
            }
            for (int i = 0; i < D; i++) x[i] *= (w[i] + 1.0) / sqrt(squares / D + (double)EPS);
            for (int i = 0; i < D; i++) {
                double wanted = x[i];
                if (i < ROT) wanted = x[i] * table[ROT + i] - x[i + ROT] * table[i];
                if (i >= ROT && i < 2 * ROT) wanted = x[i] * table[i] + x[i - ROT] * table[i - ROT];
                /* half a step of bf16 at most */
                check_near(m2_bf16_to_f32(got[i]), wanted, fabs(wanted) * 0x1.02p-8 + 1e-6,
                           "row %d head %d dim %d", row, head, i);
            }
        }
    }
}

/* One rounding of the f32 product, rows fetched from the sequence order. */
static void gate_scales_heads_and_brings_rows_back(void **state)
{
    enum { N = 4, H = 3, D = 8 };
    static const int32_t seq_of[N] = { 2, 3, 1, 0 };
    test_env *env = *state;
    m2_test_random random = { 12 };
    const m2_tensor a = RANDOM(env, &random, M2_BF16, 1, N, H, D);
    const m2_tensor g = RANDOM(env, &random, M2_BF16, 2, N, H);
    m2_tensor seq = m2_tensor_make(&env->arena, M2_I32, N);
    m2_tensor y = m2_tensor_make(&env->arena, M2_BF16, N, H * D);
    memcpy(seq.data, seq_of, sizeof seq_of);
    env->ops.attention_gate(&env->ops,
                            &(m2_attention_gate_args){ .a = &a, .g = &g, .seq = &seq, .y = &y });
    for (int i = 0; i < N * H * D; i++) {
        const int row = i / (H * D), head = i / D % H;
        const double gate = (double)m2_bf16_to_f32(((m2_bf16 *)g.data)[row * H + head]);
        const double value =
            (double)m2_bf16_to_f32(((m2_bf16 *)a.data)[(seq_of[row] * H + head) * D + i % D]);
        const double wanted = value / (1 + exp(-gate));
        check_near(m2_bf16_to_f32(((m2_bf16 *)y.data)[i]), wanted, fabs(wanted) * 0x1.02p-8,
                   "value %d", i);
    }
}

/* Catches halves taken for pairs, a clamp of the gate below, and a rounding in the middle. */
static void swiglu7_meets_the_error_rule_in_f32_and_bf16(void **state)
{
    test_env *env = *state;
    open_data(env, "data/ops/swiglu7.safetensors");
    for (int i = 0; i < 3; i++) {
        for (int is_f32 = 0; is_f32 < 2; is_f32++) {
            const m2_dtype dtype = is_f32 ? M2_F32 : M2_BF16;
            const char *type = is_f32 ? "f32" : "bf16";
            const m2_tensor x = take(env, dtype, "%d.%s.in", i, type);
            const m2_tensor out = take(env, dtype, "%d.%s.out", i, type);
            const m2_tensor truth = take(env, M2_F32, "%d.%s.truth", i, type);
            m2_tensor y = m2_tensor_new(&env->arena, dtype, 2, out.shape);
            env->ops.swiglu7(&env->ops, &(m2_swiglu7_args){ .x = &x, .y = &y });
            check_error(&y, &out, &truth, type);
        }
    }
}

/* ---- routing ---- */

typedef struct choice {
    m2_tensor idx, prob;
} choice;

static choice select_experts(test_env *env, const m2_tensor *logits, const m2_tensor *bias,
                             const m2_tensor *forced, int64_t top_k, float route_scale)
{
    choice c = { m2_tensor_make(&env->arena, M2_I32, logits->shape[0], logits->shape[1], top_k),
                 m2_tensor_make(&env->arena, M2_F32, logits->shape[0], logits->shape[1], top_k) };
    env->ops.moe_select(&env->ops, &(m2_moe_select_args){ .logits = logits,
                                                          .bias = bias,
                                                          .forced = forced,
                                                          .route_scale = route_scale,
                                                          .topk_idx = &c.idx,
                                                          .topk_prob = &c.prob });
    return c;
}

/* Choices in order against the recorded ones where the bias makes keys distinct; weights come from
 * plain scores.  Catches a bias that enters the weights, and softmax for sigmoid. */
static void router_chooses_and_weighs_as_recorded(void **state)
{
    test_env *env = *state;
    open_data(env, "data/ops/router.safetensors");
    for (int i = 0; i < 4; i++) {
        const m2_tensor logits = take(env, M2_F32, "%d.logits", i);
        const m2_tensor bias = take(env, M2_F32, "%d.bias", i);
        const m2_tensor idx = take(env, M2_I32, "%d.bias.idx", i);
        const m2_tensor prob = take(env, M2_F32, "%d.bias.prob", i);
        const m2_tensor truth = take(env, M2_F32, "%d.bias.prob.truth", i);
        const choice c = select_experts(env, &logits, &bias, NULL, idx.shape[2], 1);
        assert_memory_equal(c.idx.data, idx.data, m2_tensor_bytes(&idx));
        check_error(&c.prob, &prob, &truth, "prob");
    }
}

/* Equal keys: the lowest ids win, in ascending order. */
static void equal_keys_go_to_the_lowest_experts(void **state)
{
    test_env *env = *state;
    m2_tensor logits = m2_tensor_make(&env->arena, M2_F32, 1, 2, 9);
    for (int e = 0; e < 9; e++) {
        ((float *)logits.data)[e] = 0.5f;
        ((float *)logits.data)[9 + e] = e == 7 ? 2.0f : e % 2 ? 0.5f : -1.0f;
    }
    const choice c = select_experts(env, &logits, NULL, NULL, 3, 3);
    static const int32_t wanted[] = { 0, 1, 2, 7, 1, 3 };
    assert_memory_equal(c.idx.data, wanted, sizeof wanted);
    check_near(((float *)c.prob.data)[0], 1, 1e-6, "three equal weights of sum 3");
}

/* A bias of the same size everywhere changes nothing; the weights sum to the route scale; forced ids
 * are taken as they are, weighed by their own scores. */
static void weights_do_not_know_the_bias_and_sum_to_the_scale(void **state)
{
    test_env *env = *state;
    m2_test_random random = { 13 };
    const m2_tensor logits = RANDOM(env, &random, M2_F32, 2, 2, 50, 16);
    m2_tensor bias = m2_tensor_make(&env->arena, M2_F32, 2 * 16);
    for (int i = 0; i < 32; i++) ((float *)bias.data)[i] = 0.25f;
    const choice plain = select_experts(env, &logits, NULL, NULL, 6, 4.9f);
    const choice same = select_experts(env, &logits, &bias, NULL, 6, 4.9f);
    const choice forced = select_experts(env, &logits, NULL, &plain.idx, 6, 4.9f);
    assert_memory_equal(plain.idx.data, same.idx.data, m2_tensor_bytes(&plain.idx));
    assert_memory_equal(plain.prob.data, same.prob.data, m2_tensor_bytes(&plain.prob));
    assert_memory_equal(plain.prob.data, forced.prob.data, m2_tensor_bytes(&plain.prob));
    for (int row = 0; row < 100; row++) {
        double sum = 0;
        for (int k = 0; k < 6; k++) sum += (double)((float *)plain.prob.data)[6 * row + k];
        check_near(sum, 4.9, 4e-6, "row %d", row); /* six roundings of 1 and one of 4.9 */
    }
}

/* Every route once, by (head, expert), tokens ascending inside one; experts without tokens have an
 * empty range; a token's positions ascend with its experts.  Catches offsets one off, an unstable
 * sort, heads that run into each other. */
static void dispatch_sorts_every_route_stably(void **state)
{
    enum { HM = 3, N = 41, E = 7, TOP_K = 3 };
    test_env *env = *state;
    m2_test_random random = { 14 };
    m2_tensor logits = RANDOM(env, &random, M2_F32, 1, HM, N, E);
    for (int r = 0; r < HM * N; r++) ((float *)logits.data)[r * E + 4] = -50; /* never chosen */
    const choice c = select_experts(env, &logits, NULL, NULL, TOP_K, 1);
    m2_tensor gather = m2_tensor_make(&env->arena, M2_I32, HM * N * TOP_K);
    m2_tensor probs = m2_tensor_make(&env->arena, M2_F32, HM * N * TOP_K);
    m2_tensor offsets = m2_tensor_make(&env->arena, M2_I32, HM * E + 1);
    m2_tensor pos = m2_tensor_make(&env->arena, M2_I32, HM, N, TOP_K);
    env->ops.moe_dispatch(&env->ops, &(m2_moe_dispatch_args){ .topk_idx = &c.idx,
                                                              .topk_prob = &c.prob,
                                                              .n_experts = E,
                                                              .gather_ids = &gather,
                                                              .probs_sorted = &probs,
                                                              .expert_offsets = &offsets,
                                                              .route_pos = &pos });

    const int32_t *begin = offsets.data, *ids = gather.data, *at = pos.data;
    assert_int_equal(begin[0], 0);
    assert_int_equal(begin[HM * E], HM * N * TOP_K);
    for (int h = 0; h < HM; h++) assert_int_equal(begin[h * E + 4], begin[h * E + 5]);
    for (int row = 0; row < HM * E; row++) {
        assert_true(begin[row] <= begin[row + 1]);
        for (int32_t i = begin[row] + 1; i < begin[row + 1]; i++) assert_true(ids[i - 1] < ids[i]);
    }
    for (int r = 0; r < HM * N; r++) {
        for (int k = 0; k < TOP_K; k++) {
            const int32_t e = ((int32_t *)c.idx.data)[r * TOP_K + k];
            int n_found = 0;
            for (int j = 0; j < TOP_K; j++) {
                const int32_t p = at[r * TOP_K + j];
                if (j > 0) assert_true(at[r * TOP_K + j - 1] < p);
                if (p < begin[r / N * E + e] || p >= begin[r / N * E + e + 1]) continue;
                n_found++;
                assert_int_equal(ids[p], r % N);
                assert_true(((float *)probs.data)[p] == ((float *)c.prob.data)[r * TOP_K + k]);
            }
            assert_int_equal(n_found, 1);
        }
    }
}

/* ---- bits ---- */

/* Rows are computed alone: one thread and three, ref and the best instruction set give the same
 * bits, for widths that are and are not a multiple of 16 and of the blocks. */
static void bits_do_not_depend_on_threads_or_instruction_set(void **state)
{
    test_env *env = *state;
    m2_test_random random = { 15 };
    m2_ops other[2];
    check_ok(m2_ops_init_cpu(&other[0], NULL, M2_ISA_REF));
    check_ok(m2_ops_init_cpu(&other[1], env->pool, M2_ISA_BEST));
    static const int64_t widths[] = { 5, 64, 520, 1200 };
    for (int i = 0; i < 4; i++) {
        const int64_t n = 19, width = widths[i];
        const m2_tensor x = RANDOM(env, &random, M2_BF16, 3, n, width);
        const m2_tensor w = RANDOM(env, &random, M2_F32, 0.2f, width);
        m2_tensor y[3];
        for (int k = 0; k < 3; k++) {
            m2_ops *ops = k == 0 ? &env->ops : &other[k - 1];
            y[k] = m2_tensor_make(&env->arena, M2_F32, n, width);
            ops->rms_norm(ops, &(m2_rms_norm_args){
                                   .x = &x, .w = &w, .eps = EPS, .weight_offset = 1, .y = &y[k] });
        }
        assert_memory_equal(y[0].data, y[1].data, m2_tensor_bytes(&y[0]));
        assert_memory_equal(y[0].data, y[2].data, m2_tensor_bytes(&y[0]));
    }
    open_data(env, "data/ops/mhc.safetensors");
    for (int i = 0; i < 3; i++) {
        const mhc_case a = mhc_run(env, &env->ops, i);
        for (int k = 0; k < 2; k++) {
            const mhc_case b = mhc_run(env, &other[k], i);
            assert_memory_equal(a.phi_out.data, b.phi_out.data, m2_tensor_bytes(&a.phi_out));
            assert_memory_equal(a.pre_f32.data, b.pre_f32.data, m2_tensor_bytes(&a.pre_f32));
            assert_memory_equal(a.res_f32.data, b.res_f32.data, m2_tensor_bytes(&a.res_f32));
        }
    }
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)
    const struct CMUnitTest tests[] = {
        TEST(rms_norm_meets_the_error_rule_for_grouped_rows_and_heads),
        TEST(mhc_coefficients_meet_the_error_rule_in_f32),
        TEST(rows_of_the_residual_mix_sum_to_one),
        TEST(streams_are_read_and_written_back_also_in_place),
        TEST(rope_table_meets_the_error_rule),
        TEST(text_turns_only_alone_and_audio_is_scaled),
        TEST(time_channels_are_exact_for_every_timestep),
        TEST(queries_and_keys_are_normed_turned_and_reordered),
        TEST(gate_scales_heads_and_brings_rows_back),
        TEST(swiglu7_meets_the_error_rule_in_f32_and_bf16),
        TEST(router_chooses_and_weighs_as_recorded),
        TEST(equal_keys_go_to_the_lowest_experts),
        TEST(weights_do_not_know_the_bias_and_sum_to_the_scale),
        TEST(dispatch_sorts_every_route_stably),
        TEST(bits_do_not_depend_on_threads_or_instruction_set),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
