/* Shards with an index: the index alone decides, and what does not fit it is named. */
#include "support/check.h"
#include "support/files.h"

#include "io/checkpoint.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

typedef struct test_env {
    char *dir, *index, *one, *two;
} test_env;

static int set_up(void **state)
{
    test_env *env = calloc(1, sizeof *env);
    env->dir = m2_test_make_dir();
    env->index = m2_test_join(env->dir, "model.safetensors.index.json");
    env->one = m2_test_join(env->dir, "model-00001-of-00002.safetensors");
    env->two = m2_test_join(env->dir, "model-00002-of-00002.safetensors");
    /* "b" is in both shards, with different values and shapes. */
    m2_test_write_safetensors(env->one,
                              "{\"a\":{\"dtype\":\"U8\",\"shape\":[2],\"data_offsets\":[0,2]},"
                              "\"b\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[2,3]}}",
                              3);
    m2_test_write_safetensors(env->two,
                              "{\"c\":{\"dtype\":\"U8\",\"shape\":[9],\"data_offsets\":[0,9]},"
                              "\"b\":{\"dtype\":\"U8\",\"shape\":[3],\"data_offsets\":[9,12]}}",
                              12);
    *state = env;
    return 0;
}

static int tear_down(void **state)
{
    test_env *env = *state;
    m2_test_remove_tree(env->dir);
    free(env->index);
    free(env->one);
    free(env->two);
    free(env);
    return 0;
}

static void write_index(const test_env *env, const char *text)
{
    m2_test_write_file(env->index, text, strlen(text));
}

static const char whole_index[] = "{\"metadata\":{\"total_size\":14},\"weight_map\":{"
                                  "\"a\":\"model-00001-of-00002.safetensors\","
                                  "\"b\":\"model-00002-of-00002.safetensors\","
                                  "\"c\":\"model-00002-of-00002.safetensors\"}}";

/* Catches: a tensor taken from the last shard opened instead of the one the index names. */
static void index_decides_which_shard_a_tensor_is_in(void **state)
{
    const test_env *env = *state;
    write_index(env, whole_index);
    const char *const paths[] = { env->dir, env->index };
    for (int i = 0; i < 2; i++) {
        m2_checkpoint *checkpoint = NULL;
        check_ok(m2_checkpoint_open(paths[i], &checkpoint));
        assert_int_equal(m2_checkpoint_n_tensors(checkpoint), 3);
        const m2_ckpt_tensor *b = m2_checkpoint_find(checkpoint, "b");
        assert_int_equal(b->shape[0], 3);
        assert_int_equal(*(const unsigned char *)b->data, 9);
        assert_string_equal(b->file, env->two);
        m2_checkpoint_close(checkpoint);
    }
}

/* A line deleted from the index hides the tensor, even if its shard holds it. */
static void tensor_without_a_line_in_the_index_is_not_there(void **state)
{
    const test_env *env = *state;
    write_index(env, "{\"weight_map\":{\"a\":\"model-00001-of-00002.safetensors\","
                     "\"c\":\"model-00002-of-00002.safetensors\"}}");
    m2_checkpoint *checkpoint = NULL;
    check_ok(m2_checkpoint_open(env->dir, &checkpoint));
    assert_int_equal(m2_checkpoint_n_tensors(checkpoint), 2);
    assert_null(m2_checkpoint_find(checkpoint, "b"));
    m2_checkpoint_close(checkpoint);
}

/* A missing shard and names that another lacks must come together in one message. */
static void missing_shards_and_names_are_all_listed(void **state)
{
    const test_env *env = *state;
    m2_checkpoint *checkpoint = NULL;
    write_index(env, "{\"weight_map\":{\"a\":\"model-00001-of-00002.safetensors\","
                     "\"x\":\"model-00001-of-00002.safetensors\","
                     "\"y\":\"model-00001-of-00002.safetensors\","
                     "\"c\":\"model-00002-of-00002.safetensors\"}}");
    unlink(env->two);
    static const char *const parts[] = { "model-00001-of-00002.safetensors lacks 'x'", "lacks 'y'",
                                         "model-00002-of-00002.safetensors is missing" };
    for (int i = 0; i < 3; i++)
        check_fails(m2_checkpoint_open(env->dir, &checkpoint), M2_ERR_FORMAT, parts[i]);
    /* A shard cut at 60 % must give its size and the size it should have. */
    write_index(env, whole_index);
    m2_test_write_safetensors(env->two,
                              "{\"c\":{\"dtype\":\"U8\",\"shape\":[9],\"data_offsets\":[0,9]},"
                              "\"b\":{\"dtype\":\"U8\",\"shape\":[3],\"data_offsets\":[9,12]}}",
                              12);
    size_t n;
    char *bytes = m2_test_read_file(env->two, &n), part[100];
    free(bytes);
    assert_int_equal(truncate(env->two, (off_t)n - 5), 0);
    snprintf(part, sizeof part, "is %zu bytes, its header describes %zu", n - 5, n);
    check_fails(m2_checkpoint_open(env->dir, &checkpoint), M2_ERR_FORMAT, part);
    assert_null(checkpoint);
}

/* One head with what to do, then a line for each fault and nothing else: no advice of a shard's own
 * among them, no second one at the end. */
static void faults_of_shards_are_laid_out_one_a_line(void **state)
{
    const test_env *env = *state;
    m2_checkpoint *checkpoint = NULL;
    write_index(env, "{\"weight_map\":{\"x\":\"model-00001-of-00002.safetensors\","
                     "\"c\":\"model-00002-of-00002.safetensors\","
                     "\"d\":\"model-00003-of-00003.safetensors\"}}");
    size_t n;
    char *bytes = m2_test_read_file(env->two, &n), wanted[2048];
    free(bytes);
    assert_int_equal(truncate(env->two, (off_t)n - 5), 0);
    assert_int_equal(m2_checkpoint_open(env->dir, &checkpoint), M2_ERR_FORMAT);
    snprintf(
        wanted, sizeof wanted,
        "%s: its shards do not hold what it lists, 3 faults in 3 files; download again what is "
        "named:\n"
        "  model-00001-of-00002.safetensors lacks 'x'\n"
        "  %s: is %zu bytes, its header describes %zu: the file is cut short\n"
        "  model-00003-of-00003.safetensors is missing",
        env->index, env->two, n - 5, n);
    assert_string_equal(m2_last_error(), wanted);
}

/* The decoders' folders hold one file of another name. */
static void a_folder_of_one_checkpoint_opens_and_a_choice_does_not(void **state)
{
    const test_env *env = *state;
    char *dir = m2_test_join(env->dir, "part");
    char *one = m2_test_join(dir, "weights.safetensors"), *two = m2_test_join(dir, "more.ckpt");
    char *config = m2_test_join(dir, "config.json");
    m2_checkpoint *checkpoint = NULL;
    assert_int_equal(mkdir(dir, 0700), 0);
    m2_test_write_file(config, "{}", 2);
    check_fails(m2_checkpoint_open(dir, &checkpoint), M2_ERR_IO, "but config.json");
    m2_test_write_safetensors(one,
                              "{\"c\":{\"dtype\":\"U8\",\"shape\":[9],"
                              "\"data_offsets\":[0,9]}}",
                              9);
    check_ok(m2_checkpoint_open(dir, &checkpoint));
    assert_non_null(m2_checkpoint_find(checkpoint, "c"));
    m2_checkpoint_close(checkpoint);
    checkpoint = NULL;
    m2_test_write_file(two, "x", 1);
    check_fails(m2_checkpoint_open(dir, &checkpoint), M2_ERR_IO,
                "but config.json, more.ckpt, weights.safetensors");
    free(config);
    free(two);
    free(one);
    free(dir);
}

/* Catches: paths out of the folder, values that are no text, an index of another kind. */
static void broken_indices_are_refused(void **state)
{
    const test_env *env = *state;
    static const struct {
        const char *text, *part;
    } cases[] = {
        { "{\"weight_map\":{\"a\":\"../model.safetensors\"}}", "file in this folder" },
        { "{\"weight_map\":{\"a\":\"/etc/passwd\"}}", "/etc/passwd" },
        { "{\"weight_map\":{\"a\":\"\"}}", "file in this folder" },
        { "{\"weight_map\":{\"a\":1}}", "no text" },
        { "{\"weight_map\":{}}", "no index of shards" },
        { "{\"weight_map\":[]}", "no index of shards" },
        { "{\"num_layers\":3}", "no index of shards" },
        { "{\"weight_map\":{\"a\":\"x\",\"a\":\"y\"}}", "not JSON" },
        { "{\"weight_map\":", "not JSON" },
        { "<html></html>", "web page" },
        { "", "is empty" },
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        m2_checkpoint *checkpoint = NULL;
        write_index(env, cases[i].text);
        check_fails(m2_checkpoint_open(env->dir, &checkpoint), M2_ERR_FORMAT, cases[i].part);
        assert_non_null(strstr(m2_last_error(), env->index));
    }
}

/* A hub's cache: a folder of links to blobs of other names, with a slash at the end. */
static void folder_of_links_opens(void **state)
{
    const test_env *env = *state;
    write_index(env, whole_index);
    char *dir = m2_test_join(env->dir, "snapshot");
    char *slashed = m2_test_join(dir, "");
    static const char *const names[] = { "model.safetensors.index.json",
                                         "model-00001-of-00002.safetensors",
                                         "model-00002-of-00002.safetensors" };
    assert_int_equal(mkdir(dir, 0700), 0);
    for (int i = 0; i < 3; i++) {
        char blob[32];
        snprintf(blob, sizeof blob, "blob%d", i);
        char *from = m2_test_join(env->dir, names[i]), *to = m2_test_join(env->dir, blob);
        char *link = m2_test_join(dir, names[i]), *target = m2_test_join("..", blob);
        assert_int_equal(rename(from, to), 0);
        assert_int_equal(symlink(target, link), 0);
        free(from);
        free(to);
        free(link);
        free(target);
    }
    m2_checkpoint *checkpoint = NULL;
    check_ok(m2_checkpoint_open(slashed, &checkpoint));
    assert_int_equal(m2_checkpoint_n_tensors(checkpoint), 3);
    m2_checkpoint_close(checkpoint);
    free(slashed);
    free(dir);
}

/* The bundled model is laid out as the release is. */
static void demo_model_opens(void **state)
{
    (void)state;
    m2_checkpoint *checkpoint = NULL;
    check_ok(m2_checkpoint_open(M2_DEMO_DIR "/preview", &checkpoint));
    const m2_ckpt_tensor *bands = m2_checkpoint_find(checkpoint, "pre_adapter.rope.bands");
    assert_non_null(bands);
    assert_int_equal(bands->dtype, M2_F32);
    m2_checkpoint_close(checkpoint);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(index_decides_which_shard_a_tensor_is_in, set_up,
                                        tear_down),
        cmocka_unit_test_setup_teardown(tensor_without_a_line_in_the_index_is_not_there, set_up,
                                        tear_down),
        cmocka_unit_test_setup_teardown(missing_shards_and_names_are_all_listed, set_up, tear_down),
        cmocka_unit_test_setup_teardown(faults_of_shards_are_laid_out_one_a_line, set_up,
                                        tear_down),
        cmocka_unit_test_setup_teardown(a_folder_of_one_checkpoint_opens_and_a_choice_does_not,
                                        set_up, tear_down),
        cmocka_unit_test_setup_teardown(broken_indices_are_refused, set_up, tear_down),
        cmocka_unit_test_setup_teardown(folder_of_links_opens, set_up, tear_down),
        cmocka_unit_test(demo_model_opens),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
