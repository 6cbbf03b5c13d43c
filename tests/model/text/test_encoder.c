/* The whole text encoder on a small multimodal checkpoint with recorded hidden states. */
#include "support/check.h"

#include "backend/cpu/cpu.h"
#include "backend/gpu/limits.h"
#include "io/safetensors_write.h"
#include "model/text/encoder.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MODEL "data/text/nested"

typedef struct test_env {
    m2_ops ops, measure;
    m2_text_config config;
    m2_checkpoint *checkpoint, *hidden;
    m2_arena weights, step, data;
    m2_text_encoder *encoder;
} test_env;

static int set_up(void **state)
{
    test_env *env = calloc(1, sizeof *env);
    check_ok(m2_ops_init_cpu(&env->ops, NULL, M2_ISA_REF));
    m2_ops_init_measure(&env->measure);
    check_ok(m2_text_config_load(m2_test_path(MODEL "/config.json"), &env->config));
    check_ok(m2_checkpoint_open(m2_test_path(MODEL), &env->checkpoint));
    check_ok(m2_checkpoint_open(m2_test_path(MODEL "/hidden.safetensors"), &env->hidden));
    check_ok(m2_arena_create(&env->weights, "weights", (size_t)16 << 20));
    check_ok(m2_arena_create(&env->step, "step", (size_t)16 << 20));
    check_ok(m2_arena_create(&env->data, "data", (size_t)16 << 20));
    *state = env;
    return 0;
}

static int tear_down(void **state)
{
    test_env *env = *state;
    m2_text_encoder_destroy(env->encoder);
    m2_arena_destroy(&env->data);
    m2_arena_destroy(&env->step);
    m2_arena_destroy(&env->weights);
    m2_checkpoint_close(env->hidden);
    m2_checkpoint_close(env->checkpoint);
    free(env);
    return 0;
}

static void create(test_env *env, m2_text_encoder_params params)
{
    m2_text_encoder_destroy(env->encoder);
    env->encoder = NULL;
    m2_arena_reset(&env->weights);
    check_ok(m2_text_encoder_create(env->checkpoint, &env->config, &env->ops, &env->weights,
                                    &params, &env->encoder));
}

static m2_tensor recorded(test_env *env, const char *prefix, const char *name, m2_dtype dtype)
{
    char full[64];
    snprintf(full, sizeof full, "%s.%s", prefix, name);
    const m2_ckpt_tensor *entry = m2_checkpoint_find(env->hidden, full);
    if (!entry) fail_msg("no '%s'", full);
    m2_tensor tensor = m2_tensor_new(&env->data, dtype, entry->n_dims, entry->shape);
    m2_checkpoint_read(entry, dtype, tensor.data);
    return tensor;
}

static m2_tensor run(test_env *env, const m2_ops *ops, const int32_t *ids, int64_t n,
                     m2_dtype dtype, m2_text_tap *tap, void *user)
{
    m2_tensor features = m2_tensor_make(&env->data, dtype, n, env->config.hidden_size);
    check_ok(m2_text_encoder_run(env->encoder, ops, &env->step, ids, n, &features, tap, user));
    return features;
}

static double error_of(const m2_tensor *x, const m2_tensor *truth)
{
    return m2_test_relative_error(x->data, x->dtype, truth->data, truth->dtype,
                                  m2_tensor_count(truth));
}

/* error <= max(factor * the reference's, floor) */
static void check_rule(const m2_tensor *ours, const m2_tensor *reference, const m2_tensor *truth,
                       double factor, const char *what)
{
    const double floor = ours->dtype == M2_BF16 ? 0x1p-10 : 3e-7;
    const double allowed = factor * error_of(reference, truth);
    check_near(error_of(ours, truth), 0.0, allowed > floor ? allowed : floor, "%s", what);
}

static const char *const lengths[] = { "L1", "L7", "L70" };

/* Catches anything in the network: order of layers, norms, the gate, RoPE, the delta rule, how many
 * layers run.  The recurrent form is judged at the error rule.  The chunked one in f32 is allowed 3x:
 * at 7 tokens this narrow model magnifies one direction of any error (exact products alone give
 * 2.2x there; measured 2.3x), at the other lengths it is below 1. */
static void features_meet_the_error_rule(void **state)
{
    test_env *env = *state;
    for (int is_f32 = 0; is_f32 < 2; is_f32++) {
        for (int use_chunks = 0; use_chunks < 2; use_chunks++) {
            const m2_dtype dtype = is_f32 ? M2_F32 : M2_BF16;
            create(env, (m2_text_encoder_params){ .dtype = dtype, .use_chunks = use_chunks });
            for (int i = 0; i < 3; i++) {
                m2_arena_reset(&env->data);
                const m2_tensor ids = recorded(env, lengths[i], "ids", M2_I32);
                const m2_tensor reference =
                    recorded(env, lengths[i], is_f32 ? "f32" : "bf16", M2_F64);
                const m2_tensor truth =
                    recorded(env, lengths[i], is_f32 ? "truth" : "truth_bf16_weights", M2_F64);
                const m2_tensor ours =
                    run(env, &env->ops, ids.data, m2_tensor_count(&ids), dtype, NULL, NULL);
                check_rule(&ours, &reference, &truth, is_f32 && use_chunks ? 3 : 2, lengths[i]);
            }
        }
    }
}

typedef struct tap_seen {
    test_env *env;
    int n_seen;
} tap_seen;

static m2_status judge_state(void *user, int idx, const m2_tensor *hidden)
{
    tap_seen *seen = user;
    char reference[32], truth[48];
    assert_int_equal(idx, seen->n_seen++);
    snprintf(reference, sizeof reference, "h%d.bf16", idx);
    snprintf(truth, sizeof truth, "h%d.truth_bf16_weights", idx);
    const m2_tensor reference_values = recorded(seen->env, "L7", reference, M2_F64);
    const m2_tensor truth_values = recorded(seen->env, "L7", truth, M2_F64);
    check_rule(hidden, &reference_values, &truth_values, 2, reference);
    return M2_OK;
}

static m2_status stop_at_three(void *user, int idx, const m2_tensor *hidden)
{
    (void)hidden;
    *(int *)user = idx;
    return idx == 3 ? m2_fail(M2_ERR_INTERRUPTED, "enough") : M2_OK;
}

/* Ctrl-C is looked at between layers: catches a run that goes on, and one that keeps its memory. */
static void the_tap_can_end_the_run(void **state)
{
    test_env *env = *state;
    create(env, (m2_text_encoder_params){ .dtype = M2_BF16 });
    const m2_tensor ids = recorded(env, "L7", "ids", M2_I32);
    m2_tensor features = m2_tensor_make(&env->data, M2_BF16, 7, env->config.hidden_size);
    const size_t mark = m2_arena_save(&env->step);
    int last = -1;
    assert_int_equal(m2_text_encoder_run(env->encoder, &env->ops, &env->step, ids.data, 7,
                                         &features, stop_at_three, &last),
                     M2_ERR_INTERRUPTED);
    assert_int_equal(last, 3);
    assert_int_equal(m2_arena_save(&env->step), mark);
}

/* Catches a layer in the wrong place, which the features alone might hide, and a tap off by one. */
static void the_tap_sees_every_hidden_state_in_order(void **state)
{
    test_env *env = *state;
    create(env, (m2_text_encoder_params){ .dtype = M2_BF16, .want_all_layers = 1 });
    const m2_tensor ids = recorded(env, "L7", "ids", M2_I32);
    tap_seen seen = { env, 0 };
    const m2_tensor all = run(env, &env->ops, ids.data, 7, M2_BF16, judge_state, &seen);
    assert_int_equal(seen.n_seen, 9);

    /* The features do not know the layers behind them. */
    create(env, (m2_text_encoder_params){ .dtype = M2_BF16 });
    const m2_tensor needed = run(env, &env->ops, ids.data, 7, M2_BF16, NULL, NULL);
    assert_memory_equal(all.data, needed.data, m2_tensor_bytes(&all));
}

/* Every layer is causal and no order of sums depends on the length: catches padding that leaks, a
 * form chosen by length, a mask off by one. */
static void a_prefix_has_the_bits_that_it_has_alone(void **state)
{
    test_env *env = *state;
    create(env, (m2_text_encoder_params){ .dtype = M2_BF16 });
    const m2_tensor ids = recorded(env, "L70", "ids", M2_I32);
    const m2_tensor whole = run(env, &env->ops, ids.data, 70, M2_BF16, NULL, NULL);
    static const int64_t cuts[] = { 1, 2, 3, 30, 64, 65 };
    for (size_t i = 0; i < sizeof cuts / sizeof cuts[0]; i++) {
        const m2_tensor part = run(env, &env->ops, ids.data, cuts[i], M2_BF16, NULL, NULL);
        assert_memory_equal(part.data, whole.data, m2_tensor_bytes(&part));
    }
}

/* Scalar and vector code, one worker and three. */
static void bits_do_not_depend_on_threads_or_instruction_set(void **state)
{
    test_env *env = *state;
    m2_pool *pool = NULL;
    check_ok(m2_pool_create(3, &pool));
    for (int is_f32 = 0; is_f32 < 2; is_f32++) {
        const m2_dtype dtype = is_f32 ? M2_F32 : M2_BF16;
        create(env, (m2_text_encoder_params){ .dtype = dtype });
        const m2_tensor ids = recorded(env, "L70", "ids", M2_I32);
        const m2_tensor scalar = run(env, &env->ops, ids.data, 70, dtype, NULL, NULL);
        for (int isa = M2_ISA_REF; isa <= (int)m2_isa_detect(); isa++) {
            m2_ops ops;
            check_ok(m2_ops_init_cpu(&ops, pool, (m2_isa)isa));
            const m2_tensor other = run(env, &ops, ids.data, 70, dtype, NULL, NULL);
            assert_memory_equal(scalar.data, other.data, m2_tensor_bytes(&scalar));
        }
    }
    m2_pool_destroy(pool);
}

/* The plan is the run on a measuring arena; catches memory that only one of the two takes. */
static void the_plan_is_exactly_what_a_run_takes(void **state)
{
    test_env *env = *state;
    for (int want_all = 0; want_all < 2; want_all++) {
        const m2_text_encoder_params params = { .dtype = M2_BF16, .want_all_layers = want_all };
        m2_arena plan;
        m2_arena_init_measuring(&plan, "plan");
        m2_text_encoder *planned = NULL;
        check_ok(m2_text_encoder_create(env->checkpoint, &env->config, &env->measure, &plan,
                                        &params, &planned));
        create(env, params);
        assert_int_equal(plan.used, env->weights.used);

        m2_arena_init_measuring(&plan, "plan");
        m2_tensor features = m2_tensor_over(NULL, M2_BF16, 70, env->config.hidden_size);
        check_ok(
            m2_text_encoder_run(planned, &env->measure, &plan, NULL, 70, &features, NULL, NULL));
        m2_text_encoder_destroy(planned);
        const m2_tensor ids = recorded(env, "L70", "ids", M2_I32);
        m2_arena_destroy(&env->step);
        check_ok(m2_arena_create(&env->step, "step", plan.peak)); /* not a byte more */
        run(env, &env->ops, ids.data, 70, M2_BF16, NULL, NULL);
        assert_int_equal(env->step.peak, plan.peak);
        assert_int_equal(env->step.used, 0);
    }
}

/* The kernels for GPUs end the program at a size that they have no room for; a plan for one, without any
 * GPU, has to say it before.  The release's heads leave room for 46,260 tokens. */
static void what_a_gpu_cannot_take_is_refused_by_the_plan(void **state)
{
    test_env *env = *state;
    static const m2_device_api gpu = { .limits = &m2_gpu_limits };
    const m2_text_encoder_params params = { .dtype = M2_BF16 };
    const m2_text_config config = env->config;
    m2_arena plan;
    m2_text_encoder *planned = NULL;
    env->measure.device_api = &gpu;
    m2_arena_init_measuring(&plan, "plan");
    assert_int_equal(m2_gpu_limits.delta_tokens(16, 48), 46260);
    check_ok(
        m2_text_encoder_create(env->checkpoint, &config, &env->measure, &plan, &params, &planned));
    const int64_t most = m2_gpu_limits.delta_tokens(config.n_key_heads, config.n_value_heads);
    for (int64_t more = 0; more < 2; more++) {
        m2_tensor features = m2_tensor_over(NULL, M2_BF16, most + more, config.hidden_size);
        const m2_status status = m2_text_encoder_run(planned, &env->measure, &plan, NULL,
                                                     most + more, &features, NULL, NULL);
        if (more)
            check_fails(status, M2_ERR_UNSUPPORTED, "tokens of the text");
        else
            check_ok(status);
    }
    m2_text_encoder_destroy(planned);

    m2_text_config wide = config;
    wide.head_dim = 264;
    check_fails(
        m2_text_encoder_create(env->checkpoint, &wide, &env->measure, &plan, &params, &planned),
        M2_ERR_UNSUPPORTED, "head_dim: 264, and the GPU's kernels take 256 at most");
}

/* Catches a read outside the embedding table. */
static void ids_beyond_the_table_and_empty_prompts_are_refused(void **state)
{
    test_env *env = *state;
    create(env, (m2_text_encoder_params){ .dtype = M2_BF16 });
    const int32_t bad[][2] = { { 5, 96 }, { 5, -1 }, { INT32_MAX, 5 } };
    m2_tensor features = m2_tensor_make(&env->data, M2_BF16, 2, env->config.hidden_size);
    memset(features.data, 0x5a, m2_tensor_bytes(&features));
    for (int i = 0; i < 3; i++)
        check_fails(m2_text_encoder_run(env->encoder, &env->ops, &env->step, bad[i], 2, &features,
                                        NULL, NULL),
                    M2_ERR_MODEL, "tokenizer.json");
    check_fails(
        m2_text_encoder_run(env->encoder, &env->ops, &env->step, bad[0], 0, &features, NULL, NULL),
        M2_ERR_ARG, "no token");
    for (size_t i = 0; i < m2_tensor_bytes(&features); i++)
        assert_int_equal(((unsigned char *)features.data)[i], 0x5a);
    assert_int_equal(env->step.used, 0);
}

/* The vector of a picture whose name is not in the prompt is zeros; else the mean of its tokens. */
static void a_special_token_is_the_mean_of_its_rows_or_zeros(void **state)
{
    test_env *env = *state;
    create(env, (m2_text_encoder_params){ .dtype = M2_BF16 });
    const m2_tensor ids = recorded(env, "L7", "ids", M2_I32);
    const m2_tensor features = run(env, &env->ops, ids.data, 7, M2_BF16, NULL, NULL);
    const int64_t width = env->config.hidden_size;
    const m2_bf16 *values = features.data;
    m2_tensor y = m2_tensor_make(&env->data, M2_BF16, width);
    const int32_t rows[] = { 2, 3, 6 };
    m2_text_special_token(&env->ops, &env->step, &features, rows, 3, &y);
    for (int64_t i = 0; i < width; i++) {
        const float sum = m2_bf16_to_f32(values[2 * width + i]) +
                          m2_bf16_to_f32(values[3 * width + i]) +
                          m2_bf16_to_f32(values[6 * width + i]);
        assert_int_equal(((m2_bf16 *)y.data)[i].bits, m2_f32_to_bf16(sum * (1.0f / 3.0f)).bits);
    }
    m2_text_special_token(&env->ops, &env->step, &features, NULL, 0, &y);
    for (int64_t i = 0; i < width; i++) assert_int_equal(((m2_bf16 *)y.data)[i].bits, 0);
}

/* Writes what is needed of the model, under other names, into a folder's model.safetensors. */
static void write_renamed(test_env *env, const char *dir, const char *prefix)
{
    static const char released[] = "model.language_model.";
    m2_named_tensor tensors[256];
    int n = 0;
    for (int64_t i = 0; i < m2_checkpoint_n_tensors(env->checkpoint); i++) {
        const m2_ckpt_tensor *from = m2_checkpoint_at(env->checkpoint, i);
        const char *name = from->name + strlen(released);
        if (strncmp(from->name, released, strlen(released)) != 0 ||
            strncmp(name, "layers.6.", 9) == 0 || strncmp(name, "layers.7.", 9) == 0 ||
            strcmp(name, "norm.weight") == 0)
            continue;
        char *renamed = m2_new(&env->data, char, strlen(prefix) + strlen(name) + 1);
        sprintf(renamed, "%s%s", prefix, name);
        tensors[n].name = renamed;
        tensors[n].tensor = m2_tensor_new(&env->data, from->dtype, from->n_dims, from->shape);
        m2_checkpoint_read(from, from->dtype, tensors[n++].tensor.data);
        assert_true(n < 256);
    }
    char path[4096];
    snprintf(path, sizeof path, "%s/model.safetensors", dir);
    check_ok(m2_safetensors_write(path, tensors, n, NULL, 0));
}

/* Text-only folders name tensors without the released prefix.  Catches a prefix that is assumed,
 * and layers asked for that no feature needs. */
static void names_without_the_released_prefix_give_the_same_bits(void **state)
{
    test_env *env = *state;
    create(env, (m2_text_encoder_params){ .dtype = M2_BF16 });
    const m2_tensor ids = recorded(env, "L7", "ids", M2_I32);
    const m2_tensor wanted = run(env, &env->ops, ids.data, 7, M2_BF16, NULL, NULL);
    static const char *const prefixes[] = { "", "model." };
    for (int i = 0; i < 2; i++) {
        char *dir = m2_test_make_dir();
        write_renamed(env, dir, prefixes[i]);
        m2_checkpoint *released = env->checkpoint;
        check_ok(m2_checkpoint_open(dir, &env->checkpoint));
        create(env, (m2_text_encoder_params){ .dtype = M2_BF16 });
        const m2_tensor features = run(env, &env->ops, ids.data, 7, M2_BF16, NULL, NULL);
        assert_memory_equal(features.data, wanted.data, m2_tensor_bytes(&wanted));
        m2_checkpoint_close(env->checkpoint);
        env->checkpoint = released;
        m2_test_remove_tree(dir);
    }
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)
    const struct CMUnitTest tests[] = {
        TEST(features_meet_the_error_rule),
        TEST(the_tap_sees_every_hidden_state_in_order),
        TEST(the_tap_can_end_the_run),
        TEST(a_prefix_has_the_bits_that_it_has_alone),
        TEST(bits_do_not_depend_on_threads_or_instruction_set),
        TEST(the_plan_is_exactly_what_a_run_takes),
        TEST(what_a_gpu_cannot_take_is_refused_by_the_plan),
        TEST(ids_beyond_the_table_and_empty_prompts_are_refused),
        TEST(a_special_token_is_the_mean_of_its_rows_or_zeros),
        TEST(names_without_the_released_prefix_give_the_same_bits),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
