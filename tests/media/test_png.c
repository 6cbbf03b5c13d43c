#include "media/png.h"
#include "support/check.h"
#include "support/media_file.h"

#include <dirent.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

enum { N = 7, H = 11, W = 13 };

typedef struct test_env {
    char *dir;
    char path[256];
    uint8_t *frames; /* [N, H, W, 3] of noise: every pixel is its own */
} test_env;

static int set_up(void **state)
{
    test_env *env = calloc(1, sizeof *env);
    env->dir = m2_test_make_dir();
    snprintf(env->path, sizeof env->path, "%s/out.png", env->dir);
    env->frames = malloc(N * H * W * 3);
    m2_test_random random = { 11 };
    for (int i = 0; i < N * H * W * 3; i++) env->frames[i] = (uint8_t)m2_test_random_u64(&random);
    *state = env;
    return 0;
}

static int tear_down(void **state)
{
    test_env *env = *state;
    m2_test_remove_tree(env->dir);
    free(env->frames);
    free(env);
    return 0;
}

static int n_files(const char *dir)
{
    int n = 0;
    DIR *handle = opendir(dir);
    if (!handle) return -1;
    while (readdir(handle)) n++;
    closedir(handle);
    return n - 2;
}

static void pixels_are_kept(void **state)
{
    test_env *env = *state;
    int64_t width, height;
    check_ok(m2_png_write(env->path, env->frames, W, H));
    uint8_t *rgb = m2_test_png_read(env->path, &width, &height);
    assert_int_equal(width, W);
    assert_int_equal(height, H);
    assert_memory_equal(rgb, env->frames, W * H * 3);
    free(rgb);
}

/* No date and no uninitialised byte in the file. */
static void same_pixels_give_the_same_bytes(void **state)
{
    test_env *env = *state;
    int64_t n_first, n;
    check_ok(m2_png_write(env->path, env->frames, W, H));
    uint8_t *first = m2_test_bytes_read(env->path, &n_first);
    sleep(1);
    check_ok(m2_png_write(env->path, env->frames, W, H));
    uint8_t *second = m2_test_bytes_read(env->path, &n);
    assert_int_equal(n, n_first);
    assert_memory_equal(first, second, (size_t)n);
    free(first);
    free(second);
}

static void folder_holds_the_frames_in_order(void **state)
{
    test_env *env = *state;
    char path[320], folder[280];
    snprintf(folder, sizeof folder, "%s/frames", env->dir);
    for (int twice = 0; twice < 2; twice++) { /* into the same folder again */
        check_ok(m2_png_write_folder(folder, env->frames, N, W, H));
        assert_int_equal(n_files(folder), N);
        for (int f = 0; f < N; f++) {
            int64_t width, height;
            snprintf(path, sizeof path, "%s/frame_%04d.png", folder, f);
            uint8_t *rgb = m2_test_png_read(path, &width, &height);
            assert_int_equal(width, W);
            assert_int_equal(height, H);
            assert_memory_equal(rgb, env->frames + f * H * W * 3, W * H * 3);
            free(rgb);
        }
    }
}

/* Frame i at row i / 3, column i % 3; what the last row lacks is black. */
static void sheet_puts_each_frame_in_its_place(void **state)
{
    test_env *env = *state;
    int64_t width, height;
    check_ok(m2_png_write_sheet(env->path, env->frames, N, W, H, 3));
    uint8_t *sheet = m2_test_png_read(env->path, &width, &height);
    assert_int_equal(width, 3 * W);
    assert_int_equal(height, 3 * H);
    for (int i = 0; i < 9; i++)
        for (int y = 0; y < H; y++)
            for (int x = 0; x < 3 * W; x++) {
                const int got = sheet[((i / 3 * H + y) * 3 * W + i % 3 * W) * 3 + x];
                const int wanted = i < N ? env->frames[(i * H + y) * W * 3 + x] : 0;
                if (got != wanted)
                    fail_msg("frame %d row %d byte %d: %d, not %d", i, y, x, got, wanted);
            }
    free(sheet);
}

static void faults_leave_no_file(void **state)
{
    test_env *env = *state;
    check_fails(m2_png_write(env->path, env->frames, 0, H), M2_ERR_ARG, "0x11");
    check_fails(m2_png_write(env->path, env->frames, 70000, 1), M2_ERR_ARG, "70000x1");
    check_fails(m2_png_write_sheet(env->path, env->frames, N, W, H, 0), M2_ERR_ARG, "0 a row");
    check_fails(m2_png_write_sheet(env->path, env->frames, N, W, H, INT64_MAX / 8), M2_ERR_ARG,
                "a row");
    char folder[280];
    snprintf(folder, sizeof folder, "%s/frames", env->dir);
    struct rlimit before, limit;
    getrlimit(RLIMIT_FSIZE, &before);
    signal(SIGXFSZ, SIG_IGN);
    limit = before;
    limit.rlim_cur = 100; /* as a full disk */
    setrlimit(RLIMIT_FSIZE, &limit);
    const m2_status one = m2_png_write(env->path, env->frames, W, H);
    const m2_status many = m2_png_write_folder(folder, env->frames, N, W, H);
    setrlimit(RLIMIT_FSIZE, &before);
    assert_int_equal(one, M2_ERR_IO);
    check_fails(many, M2_ERR_IO, "frame_0000.png: cannot write");
    assert_int_equal(n_files(env->dir), 0);
    check_fails(m2_png_write_folder("/dev/null/frames", env->frames, N, W, H), M2_ERR_IO,
                "/dev/null/frames");

    /* The fifth file cannot be made: the four before it go too, what was there stays. */
    char blocked[320];
    check_ok(m2_png_write(env->path, env->frames, W, H));
    snprintf(blocked, sizeof blocked, "%s/frame_0004.png", folder);
    assert_int_equal(mkdir(folder, 0777), 0);
    assert_int_equal(mkdir(blocked, 0777), 0);
    check_fails(m2_png_write_folder(folder, env->frames, N, W, H), M2_ERR_IO, "frame_0004.png");
    assert_int_equal(n_files(folder), 1);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(pixels_are_kept),
        TEST(same_pixels_give_the_same_bytes),
        TEST(folder_holds_the_frames_in_order),
        TEST(sheet_puts_each_frame_in_its_place),
        TEST(faults_leave_no_file),
    };
    return cmocka_run_group_tests_name("png", tests, NULL, NULL);
}
