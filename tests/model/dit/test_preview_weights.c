/* The preview transformer's weight tables: the released names, strictness, configs that do not fit. */
#include "support/check.h"
#include "support/tensor_list.h"

#include "backend/cpu/cpu.h"
#include "backend/gpu/limits.h"
#include "model/dit/preview.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The 1,371 tensors of the release, name by name with type and shape.  Catches a misspelt name, a
 * modality factor forgotten, a shape the other way round. */
static void tables_ask_for_the_released_tensors(void **state)
{
    (void)state;
    m2_model_config config;
    m2_model_config_init(&config);
    tensor_list *list = calloc(1, sizeof *list);
    check_ok(m2_preview_weights_describe(&config.arch, tensor_list_add, list));
    assert_int_equal(list->n, 1371);
    tensor_list_check(list, m2_test_path("data/fixtures/tensors/preview.tsv"));
    free(list);
    m2_model_config_free(&config);
}

typedef struct totals {
    int64_t values, bytes, expert_values;
} totals;

static void add_totals(void *user, const char *name, m2_dtype dtype, int n_dims,
                       const int64_t *shape, unsigned flags)
{
    totals *sum = user;
    int64_t n = 1;
    for (int i = 0; i < n_dims; i++) n *= shape[i];
    sum->values += n;
    sum->bytes += n * (int64_t)m2_dtype_bytes(dtype);
    if ((flags & M2_WEIGHT_EXPERTS) && strstr(name, ".W_")) sum->expert_values += n;
}

/* 113,934,953,536 parameters in 228,107,858,176 bytes, as published. */
static void released_sizes_add_up(void **state)
{
    (void)state;
    m2_model_config config;
    totals sum = { 0 };
    m2_model_config_init(&config);
    check_ok(m2_preview_weights_describe(&config.arch, add_totals, &sum));
    assert_true(sum.values == 113934953536);
    assert_true(sum.bytes == 228107858176);
    assert_true(sum.expert_values == (int64_t)36 * 3 * 3072 * 256 * 1280);
    m2_model_config_free(&config);
}

/* ---- binding ---- */

typedef struct test_env {
    m2_model_config config;
    m2_checkpoint *checkpoint;
    m2_arena arena;
    m2_ops ops;
} test_env;

static int set_up(void **state)
{
    test_env *env = calloc(1, sizeof *env);
    m2_model_config_init(&env->config);
    check_ok(m2_model_config_load(&env->config, m2_test_path("data/dit/c/config.json")));
    check_ok(m2_checkpoint_open(m2_test_path("data/dit/c/ckpt"), &env->checkpoint));
    check_ok(m2_arena_create(&env->arena, "weights", (size_t)8 << 20));
    check_ok(m2_ops_init_cpu(&env->ops, NULL, M2_ISA_REF));
    *state = env;
    return 0;
}

static int tear_down(void **state)
{
    test_env *env = *state;
    m2_arena_destroy(&env->arena);
    m2_checkpoint_close(env->checkpoint);
    m2_model_config_free(&env->config);
    free(env);
    return 0;
}

static m2_status open_with(test_env *env, const m2_arch_config *arch, m2_preview **preview)
{
    return m2_preview_open(env->checkpoint, arch, 64, &env->ops, &env->arena, preview);
}

/* Everything is bound, and the bias that counts is the averaged one: the file holds both, different.
 * Catches a table row that points to its neighbour's field. */
static void a_checkpoint_is_bound_field_by_field(void **state)
{
    test_env *env = *state;
    m2_preview *preview = NULL;
    check_ok(open_with(env, &env->config.arch, &preview));
    const m2_preview_layer_weights *moe = &m2_preview_weights_of(preview)->layers[1];
    const m2_ckpt_tensor *ema =
        m2_checkpoint_find(env->checkpoint, "block.layers.1.mlp.moe_mlp.router.expert_bias_ema");
    float values[64];
    assert_true(ema && ema->count <= 64 && m2_tensor_count(&moe->expert_bias_ema) == ema->count);
    m2_checkpoint_read(ema, M2_F32, values);
    assert_memory_equal(moe->expert_bias_ema.data, values, (size_t)ema->count * 4);
    assert_memory_not_equal(moe->expert_bias.data, values, (size_t)ema->count * 4);
    assert_null(moe->up_gate.data);
    assert_null(m2_preview_weights_of(preview)->layers[0].router.data);
    m2_preview_close(preview);
}

/* A layer more, a layer less, other sizes: each is an error that names what it means, and nothing is
 * given out. */
static void what_does_not_fit_is_reported_by_name(void **state)
{
    test_env *env = *state;
    m2_preview *preview = NULL;
    m2_arch_config arch = env->config.arch;
    arch.num_layers = 3;
    check_fails(open_with(env, &arch, &preview), M2_ERR_MODEL, "block.layers.2.mhc_norm.weight");
    arch = env->config.arch;
    arch.num_layers = 1;
    check_fails(open_with(env, &arch, &preview), M2_ERR_MODEL, "unexpected 'block.layers.1.");
    arch = env->config.arch;
    arch.moe_num_experts = 16;
    check_fails(open_with(env, &arch, &preview), M2_ERR_MODEL, "mlp.moe_mlp.W_gate");
    arch = env->config.arch;
    arch.is_mm_layer[1] = 1;
    check_fails(open_with(env, &arch, &preview), M2_ERR_MODEL, "attention.linear_qkv.weight");
    arch = env->config.arch;
    arch.attn_gating = 0;
    check_fails(open_with(env, &arch, &preview), M2_ERR_MODEL, "attention.linear_g.weight");
    assert_null(preview);
}

/* Numbers that cannot be a network are refused before any file is looked at. */
static void impossible_configs_are_refused(void **state)
{
    test_env *env = *state;
    const m2_arch_config good = env->config.arch;
    m2_preview *preview = NULL;
    m2_arch_config arch = good;
    arch.head_dim = 12;
    check_fails(open_with(env, &arch, &preview), M2_ERR_MODEL, "head_dim");
    arch = good;
    arch.num_query_groups = 3;
    check_fails(open_with(env, &arch, &preview), M2_ERR_MODEL, "num_query_groups");
    arch = good;
    arch.mhc_num_stream = 2;
    check_fails(open_with(env, &arch, &preview), M2_ERR_MODEL, "num_stream");
    arch = good;
    arch.moe_num_heads = 3;
    check_fails(open_with(env, &arch, &preview), M2_ERR_MODEL, "MoE heads");
    arch = good;
    arch.moe_top_k = good.moe_num_experts + 1;
    check_fails(open_with(env, &arch, &preview), M2_ERR_MODEL, "top_k");
    check_fails(m2_preview_open(env->checkpoint, &good, 63, &env->ops, &env->arena, &preview),
                M2_ERR_MODEL, "time_channel_dim");
    assert_null(preview);
}

/* The kernels for GPUs end the program at a size that they have no room for: before a weight is read, a
 * plan for one says which it is.  The CPU takes them. */
static void what_a_gpu_cannot_take_is_refused_by_name(void **state)
{
    test_env *env = *state;
    static const m2_device_api gpu = { .limits = &m2_gpu_limits };
    const m2_arch_config good = env->config.arch;
    m2_preview *preview = NULL;
    m2_ops_init_measure(&env->ops);
    env->ops.device_api = &gpu;
    check_ok(open_with(env, &good, &preview));
    m2_preview_close(preview);
    preview = NULL;
    m2_arch_config arch = good;
    arch.moe_num_experts = 1025;
    check_fails(open_with(env, &arch, &preview), M2_ERR_UNSUPPORTED,
                "num_experts: 1025, and the GPU's kernels take 1024 at most; --backend cpu");
    arch = good;
    arch.moe_num_experts = 32;
    arch.moe_top_k = 17;
    check_fails(open_with(env, &arch, &preview), M2_ERR_UNSUPPORTED, "top_k: 17, and");
    arch = good;
    arch.head_dim = 264;
    check_fails(open_with(env, &arch, &preview), M2_ERR_UNSUPPORTED, "head_dim: 264, and");
    assert_null(preview);
}

/* The release's layers could take nine times the tokens of 540p: 96 bytes of coefficients each are the
 * first to fill the workspace. */
static void a_gpu_takes_a_million_tokens_of_the_release(void **state)
{
    (void)state;
    static const m2_device_api gpu = { .limits = &m2_gpu_limits };
    m2_model_config config;
    m2_preview *net = NULL;
    m2_preview_request laid;
    m2_arena request, step;
    m2_ops ops;
    m2_model_config_init(&config);
    check_ok(m2_preview_open_shapes(&config.arch, config.eval.time_channel_dim, &net));
    m2_ops_init_measure(&ops);
    ops.device_api = &gpu;
    m2_preview_shape shape = { .frames = 2, .height = 512, .width = 511, .audio_len = 1024 };
    for (int more = 0; more < 2; more++) {
        m2_arena_init_measuring(&request, "request");
        m2_arena_init_measuring(&step, "step");
        shape.text_len[0] = more;
        const m2_status status =
            m2_preview_prepare(net, &ops, &request, &step, &shape, NULL, NULL, &laid);
        if (more)
            check_fails(status, M2_ERR_UNSUPPORTED,
                        "1048577, and the GPU's kernels take 1048576 at most");
        else
            check_ok(status);
    }
    m2_preview_close(net);
    m2_model_config_free(&config);

    /* by the sort's counts, the list of work and the 32 bits of a route's number */
    assert_int_equal(m2_gpu_limits.routed_tokens(12, 256, 6), (8192 - 1) * 992 / 6);
    assert_int_equal(m2_gpu_limits.routed_tokens(64, 1, 16), (2796202 - 64 - 1) * 256ll / 1024);
    assert_int_equal(m2_gpu_limits.routed_tokens(65536, 1024, 16), 0);
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(tables_ask_for_the_released_tensors),
        cmocka_unit_test(released_sizes_add_up),
        TEST(a_checkpoint_is_bound_field_by_field),
        TEST(what_does_not_fit_is_reported_by_name),
        TEST(what_a_gpu_cannot_take_is_refused_by_name),
        cmocka_unit_test(a_gpu_takes_a_million_tokens_of_the_release),
        TEST(impossible_configs_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
