/* Every allocation of the readers and the writer fails once: the error must be M2_ERR_MEMORY, and
 * nothing may leak or be left half-made (the sanitizers judge).  The linker puts the functions below
 * in the place of malloc, calloc and realloc of our own code. */
#include "support/check.h"
#include "support/files.h"

#include "io/checkpoint.h"
#include "io/checkpoint_made_up.h"
#include "io/config.h"
#include "io/safetensors_write.h"

#include <stdlib.h>
#include <unistd.h>

void *__real_malloc(size_t bytes);
void *__real_calloc(size_t count, size_t bytes);
void *__real_realloc(void *memory, size_t bytes);
void *__wrap_malloc(size_t bytes);
void *__wrap_calloc(size_t count, size_t bytes);
void *__wrap_realloc(void *memory, size_t bytes);

static int n_left = -1; /* allocations that still succeed; below 0: all do */

static int must_fail(void)
{
    return n_left >= 0 && n_left-- == 0;
}

void *__wrap_malloc(size_t bytes)
{
    return must_fail() ? NULL : __real_malloc(bytes);
}

void *__wrap_calloc(size_t count, size_t bytes)
{
    return must_fail() ? NULL : __real_calloc(count, bytes);
}

void *__wrap_realloc(void *memory, size_t bytes)
{
    return must_fail() ? NULL : __real_realloc(memory, bytes);
}

typedef m2_status attempt(const char *path);

/* Fail the 1st, 2nd ... allocation of `body` until it gets through; gives how many there were. */
static int fail_each(attempt *body, const char *path)
{
    for (int n = 0; n < 10000; n++) {
        n_left = n;
        const m2_status status = body(path);
        const int has_failed = n_left < 0;
        n_left = -1;
        if (!has_failed) {
            assert_int_equal(status, M2_OK);
            return n;
        }
        if (status != M2_ERR_MEMORY)
            fail_msg("%s: allocation %d: %s: %s", path, n + 1, m2_status_name(status),
                     m2_last_error());
    }
    fail_msg("%s: allocates without end", path);
    return 0;
}

static m2_status open_checkpoint(const char *path)
{
    m2_checkpoint *checkpoint = NULL;
    const m2_status status = m2_checkpoint_open(path, &checkpoint);
    assert_true((status == M2_OK) == (checkpoint != NULL));
    m2_checkpoint_close(checkpoint);
    return status;
}

static void readers_survive_each_failed_allocation(void **state)
{
    (void)state;
    static const char *const files[] = { "data/checkpoint/tensors.safetensors",
                                         "data/checkpoint/tensors.pth",
                                         "data/fixtures/torch/protocol4.pth" };
    for (int i = 0; i < 3; i++)
        assert_true(fail_each(open_checkpoint, m2_test_path(files[i])) >= 5);
    assert_true(fail_each(open_checkpoint, M2_DEMO_DIR "/preview") >= 8);
}

static m2_status add_and_finish(m2_checkpoint *checkpoint)
{
    M2_TRY(m2_made_up_add(checkpoint, "a", M2_F32, 1, (int64_t[]){ 4 }));
    M2_TRY(m2_made_up_add(checkpoint, "b", M2_BF16, 1, (int64_t[]){ 4 }));
    return m2_made_up_finish(checkpoint, 1, 1);
}

static m2_status make_up(const char *name)
{
    m2_checkpoint *checkpoint = NULL;
    M2_TRY(m2_made_up_create(name, &checkpoint));
    const m2_status status = add_and_finish(checkpoint);
    m2_checkpoint_close(checkpoint);
    return status;
}

static void a_checkpoint_is_made_up_or_gives_everything_back(void **state)
{
    (void)state;
    assert_true(fail_each(make_up, "made-up") >= 8);
}

static m2_status write_file(const char *path)
{
    static const float values[3] = { 1, 2, 3 };
    const m2_tensor tensor = m2_tensor_over((void *)(uintptr_t)values, M2_F32, 3);
    const m2_named_tensor tensors[] = { { "b", tensor }, { "a", tensor } };
    const m2_metadata_entry metadata[] = { { "k", "v" } };
    return m2_safetensors_write(path, tensors, 2, metadata, 1);
}

static void writer_survives_each_failed_allocation(void **state)
{
    (void)state;
    char *dir = m2_test_make_dir(), *path = m2_test_join(dir, "a.safetensors");
    assert_true(fail_each(write_file, path) >= 3);
    free(path);
    m2_test_remove_tree(dir);
}

static m2_status load_config(const char *path)
{
    m2_model_config config;
    m2_model_config_init(&config);
    const m2_status status = m2_model_config_load(&config, path);
    m2_model_config_free(&config);
    return status;
}

static void config_survives_each_failed_allocation(void **state)
{
    (void)state;
    assert_true(fail_each(load_config, M2_DEMO_DIR "/magi2.json") >= 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(readers_survive_each_failed_allocation),
        cmocka_unit_test(writer_survives_each_failed_allocation),
        cmocka_unit_test(config_survives_each_failed_allocation),
        cmocka_unit_test(a_checkpoint_is_made_up_or_gives_everything_back),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
