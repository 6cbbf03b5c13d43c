/* The text encoder's weight table against the names and shapes of the release, and against files. */
#include "support/check.h"

#include "backend/cpu/cpu.h"
#include "model/text/encoder_weights.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define ROWS_MAX 1024

typedef struct release_row {
    char name[160], dtype[16], shape[64];
    int is_loaded, is_ignored;
} release_row;

typedef struct release {
    release_row rows[ROWS_MAX];
    int n_rows, n_described;
} release;

static release *read_release(void)
{
    release *all = calloc(1, sizeof *all);
    FILE *file = fopen(m2_test_path("data/fixtures/tensors/text_encoder.tsv"), "r");
    assert_non_null(all);
    assert_non_null(file);
    char line[512];
    while (fgets(line, sizeof line, file)) {
        if (line[0] == '#') continue;
        assert_true(all->n_rows < ROWS_MAX);
        release_row *row = &all->rows[all->n_rows++];
        assert_int_equal(sscanf(line, "%159s %15s %63s", row->name, row->dtype, row->shape), 3);
    }
    fclose(file);
    return all;
}

static void find_row(void *user, const char *name, m2_dtype dtype, int n_dims, const int64_t *shape,
                     unsigned flags)
{
    release *all = user;
    (void)flags;
    char text[64] = "";
    for (int i = 0; i < n_dims; i++)
        snprintf(text + strlen(text), sizeof text - strlen(text), "%s%lld", i ? "x" : "",
                 (long long)shape[i]);
    all->n_described++;
    for (int i = 0; i < all->n_rows; i++) {
        if (strcmp(all->rows[i].name, name) != 0) continue;
        assert_string_equal(all->rows[i].dtype, m2_dtype_name(dtype));
        assert_string_equal(all->rows[i].shape, text);
        assert_false(all->rows[i].is_loaded);
        all->rows[i].is_loaded = 1;
        return;
    }
    fail_msg("'%s' is not in the release", name);
}

static void ignore_rows(void *user, const char *prefix)
{
    release *all = user;
    for (int i = 0; i < all->n_rows; i++)
        all->rows[i].is_ignored |= strncmp(all->rows[i].name, prefix, strlen(prefix)) == 0;
}

/* Catches a misspelt name, a shape of the wrong sizes, a tensor forgotten or asked for twice. */
static void the_table_and_the_ignored_names_cover_the_release_exactly(void **state)
{
    (void)state;
    release *all = read_release();
    m2_text_config config;
    m2_text_config_init(&config);
    m2_text_weights_describe(&config, "model.language_model.", find_row, all);
    m2_text_weights_ignored(&config, "model.language_model.", 0, ignore_rows, all);
    assert_int_equal(all->n_rows, 850);
    assert_int_equal(all->n_described, 1 + 47 * 14 + 15 * 11);
    for (int i = 0; i < all->n_rows; i++) {
        if (all->rows[i].is_loaded == all->rows[i].is_ignored)
            fail_msg("'%s' is %s", all->rows[i].name,
                     all->rows[i].is_loaded ? "loaded and ignored" : "neither loaded nor ignored");
    }
    free(all);
}

typedef struct test_env {
    m2_ops ops;
    m2_arena arena;
    m2_text_config config;
    m2_checkpoint *checkpoint;
    m2_text_weights weights;
} test_env;

static int set_up(void **state)
{
    test_env *env = calloc(1, sizeof *env);
    check_ok(m2_ops_init_cpu(&env->ops, NULL, M2_ISA_REF));
    check_ok(m2_arena_create(&env->arena, "weights", (size_t)8 << 20));
    check_ok(m2_text_config_load(m2_test_path("data/text/nested/config.json"), &env->config));
    check_ok(m2_checkpoint_open(m2_test_path("data/text/nested"), &env->checkpoint));
    *state = env;
    return 0;
}

static int tear_down(void **state)
{
    test_env *env = *state;
    m2_checkpoint_close(env->checkpoint);
    m2_arena_destroy(&env->arena);
    free(env);
    return 0;
}

/* A_log and the gated norm are f32 in the file; catches them kept so, or bits cut off. */
static void f32_tensors_of_a_file_are_rounded_to_bf16(void **state)
{
    test_env *env = *state;
    check_ok(m2_text_weights_load(env->checkpoint, &env->config, &env->ops, &env->arena, M2_BF16, 0,
                                  &env->weights));
    assert_int_equal(env->weights.n_layers, 6);
    const char *const names[] = { "model.language_model.layers.0.linear_attn.A_log",
                                  "model.language_model.layers.0.linear_attn.norm.weight" };
    const m2_tensor bound[] = { env->weights.layers[0].a_log, env->weights.layers[0].gated_norm };
    for (int i = 0; i < 2; i++) {
        const m2_ckpt_tensor *stored = m2_checkpoint_find(env->checkpoint, names[i]);
        assert_int_equal(stored->dtype, M2_F32);
        assert_int_equal(bound[i].dtype, M2_BF16);
        float values[64];
        m2_checkpoint_read(stored, M2_F32, values);
        for (int64_t k = 0; k < stored->count; k++)
            assert_int_equal(((m2_bf16 *)bound[i].data)[k].bits, m2_f32_to_bf16(values[k]).bits);
    }
}

/* For judging, stored f32 values keep all their bits. */
static void f32_weights_are_the_stored_values(void **state)
{
    test_env *env = *state;
    check_ok(m2_text_weights_load(env->checkpoint, &env->config, &env->ops, &env->arena, M2_F32, 1,
                                  &env->weights));
    assert_int_equal(env->weights.n_layers, 8);
    assert_int_equal(env->weights.norm.dtype, M2_F32);
    const m2_ckpt_tensor *stored =
        m2_checkpoint_find(env->checkpoint, "model.language_model.layers.0.linear_attn.A_log");
    float values[64];
    m2_checkpoint_read(stored, M2_F32, values);
    assert_memory_equal(env->weights.layers[0].a_log.data, values,
                        (size_t)stored->count * sizeof(float));
}

/* Catches a shape that is trusted, and a report that stops at the first fault. */
static void misshapen_and_missing_tensors_are_refused_all_at_once(void **state)
{
    test_env *env = *state;
    env->config.mlp_size += 1;
    env->config.is_full[1] = 1; /* asks for attention where the file has a delta net */
    const m2_status status = m2_text_weights_load(env->checkpoint, &env->config, &env->ops,
                                                  &env->arena, M2_BF16, 0, &env->weights);
    assert_int_equal(status, M2_ERR_MODEL);
    assert_non_null(strstr(m2_last_error(), "mlp.gate_proj.weight"));
    assert_non_null(strstr(m2_last_error(), "layers.1.self_attn.q_proj.weight"));
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_table_and_the_ignored_names_cover_the_release_exactly),
        TEST(f32_tensors_of_a_file_are_rounded_to_bf16),
        TEST(f32_weights_are_the_stored_values),
        TEST(misshapen_and_missing_tensors_are_refused_all_at_once),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
