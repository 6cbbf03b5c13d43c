/* Mapped files: what may be mapped, and how a run ends whose file is cut under it. */
#include "support/check.h"
#include "support/files.h"

#include "core/temp_file.h"
#include "io/checkpoint.h"
#include "io/map.h"

#include <dirent.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

typedef struct test_env {
    char *dir, *file, *other;
} test_env;

static int set_up(void **state)
{
    test_env *env = calloc(1, sizeof *env);
    env->dir = m2_test_make_dir();
    env->file = m2_test_join(env->dir, "model.safetensors");
    env->other = m2_test_join(env->dir, "other");
    *state = env;
    return 0;
}

static int tear_down(void **state)
{
    test_env *env = *state;
    m2_test_remove_tree(env->dir);
    free(env->file);
    free(env->other);
    free(env);
    return 0;
}

/* Run `body` in a child with the guard installed; gives its wait status and what it wrote. */
static int run_guarded(const test_env *env, void (*body)(const test_env *), char *text,
                       size_t bytes)
{
    int ends[2];
    assert_int_equal(pipe(ends), 0);
    fflush(NULL);
    const pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        dup2(ends[1], STDERR_FILENO);
        setrlimit(RLIMIT_CORE, &(struct rlimit){ 0, 0 });
        m2_map_guard_install();
        body(env);
        _exit(77);
    }
    close(ends[1]);
    size_t used = 0;
    for (ssize_t n; (n = read(ends[0], text + used, bytes - 1 - used)) > 0;) used += (size_t)n;
    text[used] = '\0';
    close(ends[0]);
    int status;
    assert_int_equal(waitpid(child, &status, 0), child);
    return status;
}

static void read_cut_file(const test_env *env)
{
    m2_map *other = NULL;
    m2_checkpoint *checkpoint = NULL;
    float value;
    if (m2_map_open(env->other, &other) != M2_OK) _exit(70);
    if (m2_checkpoint_open(env->file, &checkpoint) != M2_OK) _exit(71);
    m2_map_close(other); /* a free place in the registry must be passed over */
    m2_temp_file half;
    char *result = m2_test_join(env->dir, "result");
    if (m2_temp_create(&half, result) != M2_OK) _exit(73);
    free(result);
    if (truncate(env->file, 100) != 0) _exit(72);
    const m2_ckpt_tensor *tensor = m2_checkpoint_find(checkpoint, "w");
    m2_checkpoint_read(tensor, M2_F32, &value);
}

/* The page of the data is gone: the message must name the file, the exit code be 1. */
static void file_cut_during_the_run_is_named(void **state)
{
    const test_env *env = *state;
    char text[2000];
    /* The header fills the first page, so that the value lies in one that the cut takes away. */
    char header[8200];
    memset(header, ' ', sizeof header);
    header[sizeof header - 1] = '\0';
    const char *const json = "{\"w\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]}}";
    memcpy(header, json, strlen(json));
    m2_test_write_safetensors(env->file, header, 4);
    m2_test_write_file(env->other, "x", 1);
    const int status = run_guarded(env, read_cut_file, text, sizeof text);
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), 1);
    assert_non_null(strstr(text, env->file));
    assert_non_null(strstr(text, "cannot be read any more"));
    /* The half-written result of the run is gone. */
    int n = 0;
    DIR *entries = opendir(env->dir);
    while (readdir(entries)) n++;
    closedir(entries);
    assert_int_equal(n, 4); /* ".", "..", the two files of this test */
}

static void fault_elsewhere(const test_env *env)
{
    const int descriptor = open(env->other, O_RDONLY);
    volatile const char *page = mmap(NULL, 8192, PROT_READ, MAP_PRIVATE, descriptor, 0);
    (void)page[4096];
}

/* A bus error of other memory must not be swallowed: it ends the process by the signal (under the
 * address sanitizer, by its report). */
static void other_bus_errors_end_as_they_would(void **state)
{
    const test_env *env = *state;
    char text[20000];
    m2_test_write_file(env->other, "x", 1);
    const int status = run_guarded(env, fault_elsewhere, text, sizeof text);
    assert_true(WIFSIGNALED(status));
    assert_int_equal(WTERMSIG(status), SIGBUS);
    assert_null(strstr(text, "cannot be read any more"));
}

/* An empty file has nothing to map, and is not an error of mapping. */
static void files_map_and_directories_do_not(void **state)
{
    const test_env *env = *state;
    m2_map *map = NULL;
    m2_test_write_file(env->other, "", 0);
    check_ok(m2_map_open(env->other, &map));
    assert_int_equal(map->bytes, 0);
    assert_non_null(map->data);
    m2_map_close(map);
    map = NULL;
    m2_test_write_file(env->other, "abc", 3);
    check_ok(m2_map_open(env->other, &map));
    assert_memory_equal(map->data, "abc", 3);
    m2_map_close(map);
    map = NULL;
    check_fails(m2_map_open(env->dir, &map), M2_ERR_IO, "is a directory");
    check_fails(m2_map_open("/dev/zero", &map), M2_ERR_IO, "not a regular file");
    check_fails(m2_map_open("/nonexistent", &map), M2_ERR_IO, "No such file");
    assert_null(map);
    m2_map_close(NULL);
}

/* A slip in the name, a folder that lacks the file, no folder: each is told apart. */
static void a_missing_file_comes_with_what_to_try(void **state)
{
    const test_env *env = *state;
    m2_map *map = NULL;
    char *slip = m2_test_join(env->dir, "modle.safetensors");
    char *right = m2_test_join(env->dir, "model.safetensors");
    char *other = m2_test_join(env->dir, "tokenizer.json");
    char *deep = m2_test_join(slip, "model.safetensors");
    char part[300];
    m2_test_write_file(right, "x", 1);
    snprintf(part, sizeof part, "%s: cannot open: No such file or directory; did you mean %s?",
             slip, right);
    check_fails(m2_map_open(slip, &map), M2_ERR_IO, part);
    snprintf(part, sizeof part, "the folder %s holds model.safetensors", env->dir);
    check_fails(m2_map_open(other, &map), M2_ERR_IO, part);
    check_fails(m2_map_open(deep, &map), M2_ERR_IO, "its folder is not there either");
    free(deep);
    free(other);
    free(right);
    free(slip);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(file_cut_during_the_run_is_named, set_up, tear_down),
        cmocka_unit_test_setup_teardown(other_bus_errors_end_as_they_would, set_up, tear_down),
        cmocka_unit_test_setup_teardown(a_missing_file_comes_with_what_to_try, set_up, tear_down),
        cmocka_unit_test_setup_teardown(files_map_and_directories_do_not, set_up, tear_down),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
