/* Binding of checkpoint tensors to tables: values, all faults at once, and the same plan as run. */
#include "support/check.h"
#include "support/files.h"

#include "backend/device.h"
#include "model/weights.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { HIDDEN = -1, HEADS = -2, QKV = -3 };
static const int64_t dims[] = { 4, 2, 12 };

typedef struct toy_weights {
    m2_tensor norm, qkv, extra, scale;
} toy_weights;

static const m2_weight_desc table[] = {
    { offsetof(toy_weights, norm), "norm.weight", M2_F32, { HIDDEN }, 0 },
    { offsetof(toy_weights, qkv), "qkv.weight", M2_BF16, { QKV, HIDDEN }, M2_WEIGHT_EXPERTS },
    { offsetof(toy_weights, extra), "extra", M2_F32, { HEADS, 3 }, M2_WEIGHT_OPTIONAL },
    { offsetof(toy_weights, scale), "scale", M2_F32, { 0 }, 0 },
};
enum { N_ROWS = sizeof table / sizeof table[0] };

typedef struct test_env {
    char *dir, *file;
    m2_arena arena;
    m2_ops ops;
} test_env;

static void copy_in(const m2_ops *ops, m2_tensor *to, const void *from)
{
    (void)ops;
    memcpy(to->data, from, m2_tensor_bytes(to));
}

static int set_up(void **state)
{
    test_env *env = calloc(1, sizeof *env);
    env->dir = m2_test_make_dir();
    env->file = m2_test_join(env->dir, "model.safetensors");
    check_ok(m2_arena_create(&env->arena, "weights", 1 << 16));
    m2_ops_init_measure(&env->ops);
    env->ops.is_measuring = 0;
    env->ops.upload = copy_in;
    *state = env;
    return 0;
}

static int tear_down(void **state)
{
    test_env *env = *state;
    m2_arena_destroy(&env->arena);
    m2_test_remove_tree(env->dir);
    free(env->file);
    free(env);
    return 0;
}

/* A file of the toy network; norm is f32, qkv is stored as f32 and must become bf16. */
static m2_checkpoint *write_toy(test_env *env)
{
    const char *const header =
        "{\"net.norm.weight\":{\"dtype\":\"F32\",\"shape\":[4],\"data_offsets\":[0,16]},"
        "\"net.qkv.weight\":{\"dtype\":\"F32\",\"shape\":[12,4],\"data_offsets\":[16,208]},"
        "\"net.scale\":{\"dtype\":\"F32\",\"shape\":[],\"data_offsets\":[208,212]},"
        "\"optimizer.step\":{\"dtype\":\"I64\",\"shape\":[1],\"data_offsets\":[212,220]}}";
    char padded[1024];
    snprintf(padded, sizeof padded, "%s%*s", header, (int)(8 - strlen(header) % 8), "");
    m2_test_write_safetensors(env->file, padded, 220);
    size_t n;
    char *bytes = m2_test_read_file(env->file, &n);
    for (int i = 0; i < 53; i++) {
        const float value = 1.0f + (float)i / 1024.0f;
        memcpy(bytes + 8 + strlen(padded) + 4 * i, &value, 4);
    }
    m2_test_write_file(env->file, bytes, n);
    free(bytes);
    m2_checkpoint *checkpoint = NULL;
    check_ok(m2_checkpoint_open(env->file, &checkpoint));
    return checkpoint;
}

static m2_status bind_toy(test_env *env, const m2_checkpoint *checkpoint, const m2_ops *ops,
                          m2_arena *arena, int ignore, toy_weights *weights)
{
    (void)env;
    m2_weight_binder *binder = NULL;
    check_ok(m2_weight_binder_create(checkpoint, dims, 3, ops, arena, &binder));
    m2_weights_bind(binder, table, N_ROWS, "net.", weights);
    if (ignore) m2_weight_binder_ignore(binder, "optimizer.");
    const m2_status status = m2_weight_binder_finish(binder, "the toy network");
    m2_weight_binder_destroy(binder);
    return status;
}

/* Catches: a copy where the mapping would do, a conversion left out or rounded wrongly, a missing
 * optional tensor taken for a fault, a scalar taken for a vector. */
static void weights_are_mapped_or_converted(void **state)
{
    test_env *env = *state;
    m2_checkpoint *checkpoint = write_toy(env);
    toy_weights weights;
    check_ok(bind_toy(env, checkpoint, &env->ops, &env->arena, 1, &weights));
    assert_ptr_equal(weights.norm.data, m2_checkpoint_find(checkpoint, "net.norm.weight")->data);
    assert_int_equal(weights.qkv.dtype, M2_BF16);
    assert_int_equal(weights.qkv.shape[0], 12);
    for (int i = 0; i < 48; i++)
        assert_int_equal(((m2_bf16 *)weights.qkv.data)[i].bits,
                         m2_f32_to_bf16(1.0f + (float)(4 + i) / 1024.0f).bits);
    assert_null(weights.extra.data);
    assert_int_equal(weights.extra.shape[0], 2);
    assert_int_equal(weights.scale.n_dims, 0);
    assert_true(*(const float *)weights.scale.data == 1.0f + 52.0f / 1024.0f);
    m2_checkpoint_close(checkpoint);
}

/* The plan must ask for exactly what the run takes, on the host and on a device. */
static void plan_takes_the_bytes_of_the_run(void **state)
{
    test_env *env = *state;
    m2_checkpoint *checkpoint = write_toy(env);
    static const m2_device_api other_device = { 0 };
    const m2_device_api *const devices[] = { &m2_host_device, &other_device };
    for (int i = 0; i < 2; i++) {
        toy_weights weights;
        m2_arena measuring;
        m2_ops planning;
        m2_arena_init_measuring(&measuring, "weights");
        m2_ops_init_measure(&planning);
        planning.device_api = devices[i];
        env->ops.device_api = devices[i];
        check_ok(bind_toy(env, checkpoint, &planning, &measuring, 1, &weights));
        m2_arena_reset(&env->arena);
        check_ok(bind_toy(env, checkpoint, &env->ops, &env->arena, 1, &weights));
        assert_int_equal(measuring.peak, env->arena.used);
        assert_int_equal(measuring.peak, i == 0 ? 128 : 64 + 128 + 64); /* 96 bytes round to 128 */
        assert_true(((const float *)weights.norm.data)[3] == 1.0f + 3.0f / 1024.0f);
    }
    m2_checkpoint_close(checkpoint);
}

/* One message must hold each fault: a fault found first must not hide the others. */
static void all_faults_come_in_one_message(void **state)
{
    test_env *env = *state;
    m2_test_write_safetensors(
        env->file,
        "{\"net.norm.weight\":{\"dtype\":\"F32\",\"shape\":[5],\"data_offsets\":[0,20]},"
        "\"net.scale\":{\"dtype\":\"I32\",\"shape\":[],\"data_offsets\":[20,24]},"
        "\"net.surplus\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[24,25]}}",
        25);
    m2_checkpoint *checkpoint = NULL;
    toy_weights weights;
    check_ok(m2_checkpoint_open(env->file, &checkpoint));
    static const char *const parts[] = {
        "missing 'net.qkv.weight' BF16 [12, 4]",
        "'net.norm.weight' is F32 [5], must be F32 [4]",
        "'net.scale' is I32 [], must be F32 []",
        "unexpected 'net.surplus' U8 [1]",
        "1 missing, 2 of another shape or type, 1 unexpected",
        "does not fit the toy network",
        "magi2 inspect",
    };
    for (size_t i = 0; i < sizeof parts / sizeof parts[0]; i++)
        check_fails(bind_toy(env, checkpoint, &env->ops, &env->arena, 0, &weights), M2_ERR_MODEL,
                    parts[i]);
    m2_checkpoint_close(checkpoint);
}

/* A wholly wrong file has a thousand faults: the list is cut, counted, and still ends in advice. */
static void long_lists_are_cut_with_a_count(void **state)
{
    test_env *env = *state;
    char *header = malloc(200000), *at = header;
    for (int i = 0; i < 1000; i++)
        at += sprintf(at,
                      "%s\"some.long.prefix.of.a.layer.%d.weight\":{\"dtype\":\"U8\",\"shape\":[1],"
                      "\"data_offsets\":[%d,%d]}",
                      i ? "," : "{", i, i, i + 1);
    strcpy(at, "}");
    char *shard = m2_test_join(env->dir, "model-00001-of-00056.safetensors");
    m2_test_write_safetensors(shard, header, 1000);
    free(header);
    m2_checkpoint *checkpoint = NULL;
    toy_weights weights;
    check_ok(m2_checkpoint_open(shard, &checkpoint));
    check_fails(bind_toy(env, checkpoint, &env->ops, &env->arena, 0, &weights), M2_ERR_MODEL,
                "missing 'net.scale'");
    check_fails(bind_toy(env, checkpoint, &env->ops, &env->arena, 0, &weights), M2_ERR_MODEL,
                "\n  ... and 9");
    check_fails(bind_toy(env, checkpoint, &env->ops, &env->arena, 0, &weights), M2_ERR_MODEL,
                "one shard of several");
    check_fails(bind_toy(env, checkpoint, &env->ops, &env->arena, 0, &weights), M2_ERR_MODEL,
                "lists what it holds");
    int lines = 0;
    for (const char *c = m2_last_error(); *c; c++) lines += *c == '\n';
    assert_in_range(lines, 10, M2_MAX_DIMS + 40);
    m2_checkpoint_close(checkpoint);
    free(shard);
}

static void count_row(void *user, const char *name, m2_dtype dtype, int n_dims,
                      const int64_t *shape, unsigned flags)
{
    int *rows = user;
    if (*rows == 1) {
        assert_string_equal(name, "net.qkv.weight");
        assert_int_equal(dtype, M2_BF16);
        assert_int_equal(n_dims, 2);
        assert_int_equal(shape[0], 12);
        assert_int_equal(shape[1], 4);
        assert_int_equal(flags, M2_WEIGHT_EXPERTS);
    }
    ++*rows;
}

/* Catches symbols resolved in another order than by the binder. */
static void description_resolves_symbols(void **state)
{
    (void)state;
    int rows = 0;
    m2_weights_describe(table, N_ROWS, "net.", dims, count_row, &rows);
    assert_int_equal(rows, N_ROWS);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(weights_are_mapped_or_converted, set_up, tear_down),
        cmocka_unit_test_setup_teardown(plan_takes_the_bytes_of_the_run, set_up, tear_down),
        cmocka_unit_test_setup_teardown(all_faults_come_in_one_message, set_up, tear_down),
        cmocka_unit_test_setup_teardown(long_lists_are_cut_with_a_count, set_up, tear_down),
        cmocka_unit_test(description_resolves_symbols),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
