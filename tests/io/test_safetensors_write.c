/* Written safetensors files: read back whole, the same bytes each time, never half a file. */
#include "support/check.h"
#include "support/files.h"

#include "io/checkpoint.h"
#include "io/safetensors_write.h"

#include <dirent.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

typedef struct test_env {
    char *dir, *file;
} test_env;

static int set_up(void **state)
{
    test_env *env = calloc(1, sizeof *env);
    env->dir = m2_test_make_dir();
    env->file = m2_test_join(env->dir, "latent.safetensors");
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

static int count_files(const char *dir)
{
    int n = 0;
    DIR *entries = opendir(dir);
    for (const struct dirent *entry; (entry = readdir(entries));) n += entry->d_name[0] != '.';
    rewinddir(entries);
    for (const struct dirent *entry; (entry = readdir(entries));)
        n += entry->d_name[0] == '.' && strlen(entry->d_name) > 2;
    closedir(entries);
    return n;
}

/* One tensor of each type, in one order or the other. */
static m2_status write_all_types(const char *path, int is_reversed)
{
    static const char *const names[] = {
        "q\"\\", "a", "\xc3\xa9", "c", "d", "e", "f", "g", "h", "i"
    };
    static _Alignas(8) unsigned char values[M2_DTYPE_COUNT][48];
    m2_named_tensor tensors[M2_DTYPE_COUNT];
    for (int i = 0; i < M2_DTYPE_COUNT; i++) {
        const int at = is_reversed ? M2_DTYPE_COUNT - 1 - i : i;
        for (int k = 0; k < 48; k++) values[i][k] = (unsigned char)(i * 16 + k);
        tensors[at].name = names[i];
        tensors[at].tensor = m2_tensor_over(values[i], (m2_dtype)i, 3, 2);
    }
    const m2_metadata_entry metadata[] = { { "version", "1" }, { "prompt", "b\"\\\n" } };
    const m2_metadata_entry turned[] = { metadata[1], metadata[0] };
    return m2_safetensors_write(path, tensors, M2_DTYPE_COUNT, is_reversed ? turned : metadata, 2);
}

/* Catches: offsets that drift, escapes, types spelled wrongly, data that are not aligned. */
static void what_is_written_is_read_back(void **state)
{
    const test_env *env = *state;
    check_ok(write_all_types(env->file, 0));
    m2_checkpoint *checkpoint = NULL;
    check_ok(m2_checkpoint_open(env->file, &checkpoint));
    assert_int_equal(m2_checkpoint_n_tensors(checkpoint), M2_DTYPE_COUNT);
    assert_string_equal(m2_checkpoint_metadata(checkpoint, "version"), "1");
    assert_string_equal(m2_checkpoint_metadata(checkpoint, "prompt"), "b\"\\\n");
    for (int64_t i = 0; i < M2_DTYPE_COUNT; i++) {
        const m2_ckpt_tensor *tensor = m2_checkpoint_at(checkpoint, i);
        const size_t bytes = 6 * m2_dtype_bytes(tensor->dtype);
        unsigned char values[48];
        assert_int_equal(tensor->count, 6);
        m2_checkpoint_read(tensor, tensor->dtype, values);
        for (size_t k = 0; k < bytes; k++)
            assert_int_equal(values[k], (unsigned char)((size_t)tensor->dtype * 16 + k));
        if (i > 0) assert_true(strcmp(m2_checkpoint_at(checkpoint, i - 1)->name, tensor->name) < 0);
    }
    assert_int_equal((uintptr_t)m2_checkpoint_at(checkpoint, 0)->source % 8, 0);
    m2_checkpoint_close(checkpoint);
}

/* The order of the call must not show in the file. */
static void same_tensors_give_the_same_bytes(void **state)
{
    const test_env *env = *state;
    char *other = m2_test_join(env->dir, "other.safetensors");
    check_ok(write_all_types(env->file, 0));
    check_ok(write_all_types(other, 1));
    size_t n, m;
    char *a = m2_test_read_file(env->file, &n), *b = m2_test_read_file(other, &m);
    assert_int_equal(n, m);
    assert_memory_equal(a, b, n);
    free(a);
    free(b);
    free(other);
}

static void scalars_and_empty_files_are_written(void **state)
{
    const test_env *env = *state;
    const float value = 2.5f;
    const m2_named_tensor tensors[] = {
        { "none", m2_tensor_over(NULL, M2_F32, 0, 7) },
        { "scalar", m2_tensor_wrap((void *)(uintptr_t)&value, M2_F32, 0, NULL) },
    };
    m2_checkpoint *checkpoint = NULL;
    check_ok(m2_safetensors_write(env->file, tensors, 2, NULL, 0));
    check_ok(m2_checkpoint_open(env->file, &checkpoint));
    assert_int_equal(m2_checkpoint_find(checkpoint, "none")->count, 0);
    assert_true(*(const float *)m2_checkpoint_find(checkpoint, "scalar")->data == 2.5f);
    m2_checkpoint_close(checkpoint);
    check_ok(m2_safetensors_write(env->file, NULL, 0, NULL, 0));
    check_ok(m2_checkpoint_open(env->file, &checkpoint));
    assert_int_equal(m2_checkpoint_n_tensors(checkpoint), 0);
    m2_checkpoint_close(checkpoint);
}

/* After a failure the old file stands and nothing lies beside it. */
static void failure_leaves_the_old_file_and_nothing_else(void **state)
{
    const test_env *env = *state;
    const float value = 1;
    const m2_tensor tensor = m2_tensor_wrap((void *)(uintptr_t)&value, M2_F32, 0, NULL);
    const m2_named_tensor twice[] = { { "a", tensor }, { "b", tensor }, { "a", tensor } };
    const m2_named_tensor own[] = { { "__metadata__", tensor } };
    const m2_named_tensor broken[] = { { "\xff", tensor } };
    const m2_named_tensor control[] = { { "a\n", tensor } };
    const m2_metadata_entry keys[] = { { "k", "1" }, { "k", "2" } };
    const m2_metadata_entry text[] = { { "k", "\xc3" } };
    check_ok(write_all_types(env->file, 0));
    size_t n, m;
    char *before = m2_test_read_file(env->file, &n);
    check_fails(m2_safetensors_write(env->file, twice, 3, NULL, 0), M2_ERR_ARG,
                "'a' is given twice");
    check_fails(m2_safetensors_write(env->file, own, 1, NULL, 0), M2_ERR_ARG, "own name");
    check_fails(m2_safetensors_write(env->file, broken, 1, NULL, 0), M2_ERR_ARG, "UTF-8");
    check_fails(m2_safetensors_write(env->file, control, 1, NULL, 0), M2_ERR_ARG, "UTF-8");
    check_fails(m2_safetensors_write(env->file, twice, 1, keys, 2), M2_ERR_ARG,
                "'k' is given twice");
    check_fails(m2_safetensors_write(env->file, twice, 1, text, 1), M2_ERR_ARG, "not UTF-8");
    char *after = m2_test_read_file(env->file, &m);
    assert_int_equal(n, m);
    assert_memory_equal(before, after, n);
    assert_int_equal(count_files(env->dir), 1);
    free(before);
    free(after);
    char *nowhere = m2_test_join(env->dir, "no/such/latent.safetensors");
    check_fails(m2_safetensors_write(nowhere, twice, 1, NULL, 0), M2_ERR_IO, nowhere);
    free(nowhere);
    assert_int_equal(count_files(env->dir), 1);
}

/* A disk that fills up: the error comes from fwrite or from fclose, and both must count. */
static void full_disk_is_an_error(void **state)
{
    const test_env *env = *state;
    static float values[64 * 1024];
    const m2_named_tensor big[] = { { "a", m2_tensor_over(values, M2_F32, 64 * 1024) } };
    const m2_named_tensor small[] = { { "a", m2_tensor_over(values, M2_F32, 500) } };
    struct rlimit before, limit;
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &before), 0);
    limit = before;
    limit.rlim_cur = 1000;
    signal(SIGXFSZ, SIG_IGN);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &limit), 0);
    const m2_status first = m2_safetensors_write(env->file, big, 1, NULL, 0);
    const m2_status second = m2_safetensors_write(env->file, small, 1, NULL, 0);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &before), 0);
    assert_int_equal(first, M2_ERR_IO);
    assert_int_equal(second, M2_ERR_IO);
    assert_non_null(strstr(m2_last_error(), env->file));
    assert_int_equal(count_files(env->dir), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(what_is_written_is_read_back, set_up, tear_down),
        cmocka_unit_test_setup_teardown(same_tensors_give_the_same_bytes, set_up, tear_down),
        cmocka_unit_test_setup_teardown(scalars_and_empty_files_are_written, set_up, tear_down),
        cmocka_unit_test_setup_teardown(full_disk_is_an_error, set_up, tear_down),
        cmocka_unit_test_setup_teardown(failure_leaves_the_old_file_and_nothing_else, set_up,
                                        tear_down),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
