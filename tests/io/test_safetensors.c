/* Safetensors files: what is read, and that every way to be wrong is refused by name. */
#include "support/check.h"
#include "support/files.h"

#include "io/checkpoint.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

typedef struct test_env {
    char *dir, *file;
} test_env;

static int set_up(void **state)
{
    test_env *env = calloc(1, sizeof *env);
    env->dir = m2_test_make_dir();
    env->file = m2_test_join(env->dir, "model.safetensors");
    *state = env;
    return 0;
}

static int tear_down(void **state)
{
    test_env *env = *state;
    m2_test_remove_tree(env->dir);
    free(env->file);
    free(env);
    return 0;
}

/* Opening `path` must fail with a message that names it and holds `part`. */
static void check_refused(const char *path, m2_status status, const char *part)
{
    m2_checkpoint *checkpoint = NULL;
    check_fails(m2_checkpoint_open(path, &checkpoint), status, part);
    assert_null(checkpoint);
    if (!strstr(m2_last_error(), path)) fail_msg("the path is not named: %s", m2_last_error());
}

/* Catches: wrong data start, shapes or metadata lost, a file argument and its folder read apart. */
static void plain_file_is_read_by_file_and_by_folder(void **state)
{
    const test_env *env = *state;
    m2_test_write_safetensors(env->file,
                              "{\"__metadata__\":{\"a\\u00e9\":\"x\\ny\"},"
                              "\"b\":{\"dtype\":\"U8\",\"shape\":[2,3],\"data_offsets\":[4,10]},"
                              "\"a.w\":{\"shape\":[2],\"data_offsets\":[0,4],\"dtype\":\"BF16\"},"
                              "\"none\":{\"dtype\":\"F64\",\"shape\":[3,0],\"data_offsets\":[4,4]},"
                              "\"s\":{\"dtype\":\"I8\",\"shape\":[],\"data_offsets\":[10,11]}}   ",
                              11);
    char *slashed = m2_test_join(env->dir, "/");
    const char *const paths[] = { env->file, env->dir, slashed };
    for (int i = 0; i < 3; i++) {
        m2_checkpoint *checkpoint = NULL;
        check_ok(m2_checkpoint_open(paths[i], &checkpoint));
        assert_int_equal(m2_checkpoint_n_tensors(checkpoint), 4);
        assert_string_equal(m2_checkpoint_metadata(checkpoint, "a\xc3\xa9"), "x\ny");
        assert_null(m2_checkpoint_metadata(checkpoint, "b"));
        const m2_ckpt_tensor *b = m2_checkpoint_find(checkpoint, "b");
        assert_ptr_equal(b, m2_checkpoint_at(checkpoint, 0));
        assert_int_equal(b->n_dims, 2);
        assert_int_equal(b->shape[1], 3);
        assert_int_equal(((const unsigned char *)b->data)[0], 4);
        const m2_ckpt_tensor *s = m2_checkpoint_find(checkpoint, "s");
        assert_int_equal(s->n_dims, 0);
        assert_int_equal(s->count, 1);
        float value = 0;
        m2_checkpoint_read(s, M2_F32, &value);
        assert_true(value == 10.0f);
        assert_int_equal(m2_checkpoint_find(checkpoint, "none")->count, 0);
        assert_null(m2_checkpoint_find(checkpoint, "c"));
        assert_null(m2_checkpoint_find(checkpoint, ""));
        m2_checkpoint_close(checkpoint);
    }
    free(slashed);
}

/* Values at odd addresses: `data` must be withheld, m2_checkpoint_read must still give them.
 * Catches misaligned loads (the undefined behaviour sanitizer sees them). */
static void unaligned_values_are_read_through_a_copy(void **state)
{
    const test_env *env = *state;
    const char *const header =
        "{\"o\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]},"
        "\"x\":{\"dtype\":\"I32\",\"shape\":[2000],\"data_offsets\":[1,8001]}}";
    m2_test_write_safetensors(env->file, header, 8001);
    m2_checkpoint *checkpoint = NULL;
    check_ok(m2_checkpoint_open(env->file, &checkpoint));
    const m2_ckpt_tensor *x = m2_checkpoint_find(checkpoint, "x");
    if ((uintptr_t)x->source % 4 != 0) assert_null(x->data);
    int64_t *wide = malloc(2000 * sizeof *wide);
    m2_checkpoint_read(x, M2_I64, wide);
    for (int i = 0; i < 2000; i++) {
        uint32_t expected = 0;
        for (int b = 3; b >= 0; b--) expected = expected << 8 | (uint32_t)((1 + 4 * i + b) % 251);
        assert_true(wide[i] == (int64_t)(int32_t)expected);
    }
    free(wide);
    m2_checkpoint_close(checkpoint);
}

/* One case a rule of the header.  Catches a check that is missing, and a message without the fact. */
static void broken_headers_are_refused_with_the_reason(void **state)
{
    const test_env *env = *state;
    static const struct {
        const char *header;
        size_t data;
        const char *part;
    } cases[] = {
        { "{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]}}", 5,
          "1 bytes are left" },
        { "{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]}}", 7, "cut short" },
        { "{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]},"
          "\"b\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[3,7]}}",
          7, "overlap" },
        { "{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[1,5]}}", 5, "a hole" },
        { "{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,4]}}", 4, "span 4 bytes" },
        { "{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[4,0]}}", 4, "end before" },
        { "{\"a\":{\"dtype\":\"X32\",\"shape\":[1],\"data_offsets\":[0,4]}}", 4,
          "unknown type 'X32'" },
        { "{\"a\":{\"dtype\":\"U8\",\"shape\":[0,9223372036854775807,2],\"data_offsets\":[0,0]}}",
          0, "64 bits" },
        { "{\"a\":{\"dtype\":\"F64\",\"shape\":[4611686018427387904],\"data_offsets\":[0,0]}}", 0,
          "64 bits" },
        { "{\"a\":{\"dtype\":\"U8\",\"shape\":[9223372036854775808],\"data_offsets\":[0,0]}}", 0,
          "2^63" },
        { "{\"a\":{\"dtype\":\"U8\",\"shape\":[-1],\"data_offsets\":[0,0]}}", 0, "0 or more" },
        { "{\"a\":{\"dtype\":\"U8\",\"shape\":[1.0],\"data_offsets\":[0,1]}}", 1, "',' or ']'" },
        { "{\"a\":{\"dtype\":\"U8\",\"shape\":[01],\"data_offsets\":[0,1]}}", 1, "leading zero" },
        { "{\"a\":{\"dtype\":\"U8\",\"shape\":[1,1,1,1,1,1,1],\"data_offsets\":[0,1]}}", 1,
          "too long" },
        { "{\"a\":{\"dtype\":\"U8\",\"shape\":[[1]],\"data_offsets\":[0,1]}}", 1, "whole number" },
        { "{\"a\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0]}}", 1, "two data_offsets" },
        { "{\"a\":{\"dtype\":\"U8\",\"shape\":[1]}}", 1, "needs dtype, shape" },
        { "{\"a\":{\"dtype\":\"U8\",\"shape\":[1],\"shape\":[1],\"data_offsets\":[0,1]}}", 1,
          "twice" },
        { "{\"a\":{\"dtype\":\"U8\",\"shape\":[1],\"more\":1,\"data_offsets\":[0,1]}}", 1,
          "none of" },
        { "{\"a\":[1]}", 0, "not an object" },
        { "{\"a\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]},"
          "\"\\u0061\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[1,2]}}",
          2, "named 'a'" },
        { "{\"a\\n\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]}}", 1, "control" },
        { "{\"a\\u0000\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]}}", 1,
          "\\u escape" },
        { "{\"\\ud800\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]}}", 1, "surrogate" },
        { "{\"\xff\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]}}", 1, "UTF-8" },
        { "{\"__metadata__\":{\"a\":\"\",\"b\":\"\",\"a\":\"\"}}", 0, "'a' twice" },
        { "{\"__metadata__\":{\"a\":1}}", 0, "string was expected" },
        { "{\"__metadata__\":{},\"__metadata__\":{}}", 0, "twice" },
        { "{\"a\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]}} x", 1, "behind" },
        { "{\"a\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]},}", 1, "string was" },
        { "{\"a\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]}", 1, "',' or '}'" },
        { "{\"a", 0, "not closed" },
        { "{\"a\\", 0, "not closed" },
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        m2_test_write_safetensors(env->file, cases[i].header, cases[i].data);
        check_refused(env->file, M2_ERR_FORMAT, cases[i].part);
    }
}

/* Files of another kind under the right name: each message says what it is, and its size. */
static void files_of_another_kind_are_named(void **state)
{
    const test_env *env = *state;
    static const struct {
        const char *text, *part;
    } cases[] = {
        { "", "is empty (0 bytes)" },
        { "abc", "3 bytes, too short" },
        { "version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 4967260448\n",
          "4967260448 bytes" },
        { "\n <!DOCTYPE html><html>not found</html>", "web page of 39 bytes" },
        { "<HTML></HTML>", "web page" },
        { "{\"error\": \"Access to this model is restricted\"}", "is restricted" },
        { "plain words, no file at all", "not a safetensors file" },
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        m2_test_write_file(env->file, cases[i].text, strlen(cases[i].text));
        check_refused(env->file, M2_ERR_FORMAT, cases[i].part);
    }
}

/* A header length past the file, and one past any file, must not be added or allocated first. */
static void header_lengths_out_of_range_are_refused(void **state)
{
    const test_env *env = *state;
    unsigned char bytes[64] = { 200, 0, 0, 0, 0, 0, 0, 0, '{' };
    m2_test_write_file(env->file, bytes, sizeof bytes);
    check_refused(env->file, M2_ERR_FORMAT, "its header alone needs 208");
    memset(bytes, 0xff, 8);
    m2_test_write_file(env->file, bytes, sizeof bytes);
    check_refused(env->file, M2_ERR_FORMAT, "18446744073709551615");
}

/* A folder without a checkpoint must say what it holds instead. */
static void wrong_paths_say_what_is_there(void **state)
{
    const test_env *env = *state;
    check_refused("/nonexistent/model", M2_ERR_IO, "No such file");
    check_refused(env->dir, M2_ERR_IO, "but nothing");
    char *sub = m2_test_join(env->dir, "preview");
    assert_int_equal(mkdir(sub, 0700), 0);
    check_refused(env->dir, M2_ERR_IO, "preview");
    free(sub);
    assert_int_equal(symlink("gone", env->file), 0);
    check_refused(env->dir, M2_ERR_IO, "No such file");
    unlink(env->file);
    assert_int_equal(mkfifo(env->file, 0600), 0);
    check_refused(env->file, M2_ERR_IO, "not a regular file");
}

/* 200,000 tensors: catches a search or a check that is quadratic (this takes well under 1 s). */
static void many_tensors_are_found_quickly(void **state)
{
    const test_env *env = *state;
    enum { N = 200000 };
    char *header = malloc((size_t)N * 80), *at = header;
    for (int i = 0; i < N; i++)
        at += sprintf(at, "%s\"t%d\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[%d,%d]}",
                      i ? "," : "{", i * 7 % N, i, i + 1);
    strcpy(at, "}");
    m2_test_write_safetensors(env->file, header, N);
    free(header);
    m2_checkpoint *checkpoint = NULL;
    check_ok(m2_checkpoint_open(env->file, &checkpoint));
    for (int i = 0; i < N; i++) {
        char name[16];
        sprintf(name, "t%d", i * 7 % N);
        const m2_ckpt_tensor *tensor = m2_checkpoint_find(checkpoint, name);
        assert_non_null(tensor);
        assert_int_equal(*(const unsigned char *)tensor->data, i % 251);
    }
    m2_checkpoint_close(checkpoint);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(plain_file_is_read_by_file_and_by_folder, set_up,
                                        tear_down),
        cmocka_unit_test_setup_teardown(unaligned_values_are_read_through_a_copy, set_up,
                                        tear_down),
        cmocka_unit_test_setup_teardown(broken_headers_are_refused_with_the_reason, set_up,
                                        tear_down),
        cmocka_unit_test_setup_teardown(files_of_another_kind_are_named, set_up, tear_down),
        cmocka_unit_test_setup_teardown(header_lengths_out_of_range_are_refused, set_up, tear_down),
        cmocka_unit_test_setup_teardown(wrong_paths_say_what_is_there, set_up, tear_down),
        cmocka_unit_test_setup_teardown(many_tensors_are_found_quickly, set_up, tear_down),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
