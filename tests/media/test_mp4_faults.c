/* What the mp4 writer does with wrong counts, full disks, strange names: a clear error and no file. */
#include "clip_maker.h"
#include "support/check.h"
#include "support/media_file.h"

#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

/* A decoder that gives the wrong number of samples or frames must not end in a file: neither when
 * the figure is announced, nor when another one arrives than was announced. */
static void wrong_counts_are_refused(void **state)
{
    clip_env *env = *state;
    const m2_mp4_params params = clip_params(25, 32, 32, 25, 2);
    uint8_t *rgb = clip_frames(26, 32, 32);
    float *samples = clip_sound(4 * params.n_samples);
    static const double factors[] = { 0.5, 4.0, 0.95, 1.06 };
    for (size_t k = 0; k < sizeof factors / sizeof factors[0]; k++) {
        m2_mp4_params wrong = params;
        wrong.n_samples = (int64_t)(factors[k] * (double)params.n_samples);
        m2_mp4 *mp4 = NULL;
        check_fails(m2_mp4_open(env->path, &wrong, &mp4), M2_ERR_ARG, "apart");
        wrong.may_end_apart = 1;
        check_ok(clip_write(env->path, &wrong, rgb, samples));
        unlink(env->path);

        check_ok(m2_mp4_open(env->path, &params, &mp4));
        for (int f = 0; f < 25; f++) check_ok(m2_mp4_write_frame(mp4, rgb + f * 32 * 32 * 3));
        const m2_status status = m2_mp4_write_audio(mp4, samples, wrong.n_samples);
        assert_int_equal(status, factors[k] > 1 ? M2_ERR_ARG : M2_OK);
        check_fails(m2_mp4_finish(mp4), M2_ERR_ARG,
                    factors[k] > 1 ? "refused" : "of 88200 samples");
        m2_mp4_destroy(mp4);
        assert_int_equal(clip_n_files(env->dir), 0);
    }
    for (int n = 24; n <= 26; n += 2) {
        m2_mp4 *mp4 = NULL;
        check_ok(m2_mp4_open(env->path, &params, &mp4));
        check_ok(m2_mp4_write_audio(mp4, samples, params.n_samples));
        for (int f = 0; f < (n < 25 ? n : 25); f++)
            check_ok(m2_mp4_write_frame(mp4, rgb + f * 32 * 32 * 3));
        if (n > 25)
            check_fails(m2_mp4_write_frame(mp4, rgb), M2_ERR_ARG, "more than the 25 announced");
        check_fails(m2_mp4_finish(mp4), M2_ERR_ARG, n > 25 ? "refused" : "24 of 25 pictures");
        m2_mp4_destroy(mp4);
        assert_int_equal(clip_n_files(env->dir), 0);
    }
    check_ok(clip_write(env->path, &params, rgb, samples));
    free(samples);
    free(rgb);
}

static void sample_that_is_not_finite_is_refused(void **state)
{
    clip_env *env = *state;
    const m2_mp4_params params = clip_params(2, 32, 32, 25, 2);
    uint8_t *rgb = clip_frames(2, 32, 32);
    float *samples = clip_sound(params.n_samples);
    samples[2 * 5000 + 1] = NAN;
    check_fails(clip_write(env->path, &params, rgb, samples), M2_ERR_NUMERIC,
                "sample 5000 of channel 1");
    assert_int_equal(clip_n_files(env->dir), 0);
    free(samples);
    free(rgb);
}

/* The old file stays until the new one is whole, and temporaries go whatever happens. */
static void failures_leave_the_old_file_alone(void **state)
{
    clip_env *env = *state;
    m2_mp4_params params = clip_params(25, 160, 96, 25, 2);
    uint8_t *rgb = clip_frames(25, 160, 96);
    float *samples = clip_sound(params.n_samples);
    FILE *old = fopen(env->path, "w");
    fputs("old", old);
    fclose(old);

    m2_mp4 *mp4 = NULL;
    check_ok(m2_mp4_open(env->path, &params, &mp4));
    check_ok(m2_mp4_write_frame(mp4, rgb));
    m2_mp4_destroy(mp4);

    /* As on a full disk: no file may grow beyond so many bytes.  At the first the packets stop
     * fitting, at the second the move of moov to the front. */
    struct rlimit before, limit;
    getrlimit(RLIMIT_FSIZE, &before);
    signal(SIGXFSZ, SIG_IGN);
    check_ok(clip_write(env->path, &params, rgb, samples));
    struct stat info;
    assert_int_equal(stat(env->path, &info), 0);
    old = fopen(env->path, "w");
    fputs("old", old);
    fclose(old);
    const rlim_t sizes[] = { 10, 20000, (rlim_t)info.st_size - 1000, (rlim_t)info.st_size - 1 };
    for (size_t k = 0; k < sizeof sizes / sizeof sizes[0]; k++) {
        limit = before;
        limit.rlim_cur = sizes[k];
        setrlimit(RLIMIT_FSIZE, &limit);
        const m2_status status = clip_write(env->path, &params, rgb, samples);
        setrlimit(RLIMIT_FSIZE, &before);
        assert_int_equal(status, M2_ERR_IO);
        assert_non_null(strstr(m2_last_error(), "clip.mp4"));
        assert_non_null(strstr(m2_last_error(), "File too large"));
        assert_int_equal(clip_n_files(env->dir), 1);
    }
    int64_t n;
    uint8_t *bytes = m2_test_bytes_read(env->path, &n);
    assert_int_equal(n, 3);
    assert_memory_equal(bytes, "old", 3);
    free(bytes);
    free(samples);
    free(rgb);
}

typedef struct cancel_after {
    int n_asked, n_max;
} cancel_after;

static int is_cancelled(void *user)
{
    cancel_after *cancel = user;
    return ++cancel->n_asked > cancel->n_max;
}

static void cancelling_leaves_no_file(void **state)
{
    clip_env *env = *state;
    m2_mp4_params params = clip_params(25, 32, 32, 25, 2);
    uint8_t *rgb = clip_frames(25, 32, 32);
    float *samples = clip_sound(params.n_samples);
    cancel_after cancel = { 0, 1 << 30 };
    params.is_cancelled = is_cancelled;
    params.user = &cancel;
    check_ok(clip_write(env->path, &params, rgb, samples));
    unlink(env->path);
    const int n_asked = cancel.n_asked; /* in encoding and in writing */
    assert_in_range(n_asked, 100, 10000);
    for (int n = 0; n < n_asked; n += n < 10 || n > n_asked - 10 ? 1 : n_asked / 9) {
        cancel = (cancel_after){ 0, n };
        check_fails(clip_write(env->path, &params, rgb, samples), M2_ERR_INTERRUPTED, "stopped");
        assert_int_equal(clip_n_files(env->dir), 0);
    }
    free(samples);
    free(rgb);
}

static void path_that_cannot_be_written_is_said_at_open(void **state)
{
    clip_env *env = *state;
    const m2_mp4_params params = clip_params(25, 32, 32, 25, 2);
    m2_mp4 *mp4 = NULL;
    snprintf(env->path, sizeof env->path, "%s/none/clip.mp4", env->dir);
    check_fails(m2_mp4_open(env->path, &params, &mp4), M2_ERR_IO, "none/clip.mp4");
    check_fails(m2_mp4_open(env->dir, &params, &mp4), M2_ERR_IO, "directory");
    snprintf(env->path, sizeof env->path, "%s/file", env->dir);
    fclose(fopen(env->path, "w"));
    snprintf(env->path, sizeof env->path, "%s/file/clip.mp4", env->dir);
    check_fails(m2_mp4_open(env->path, &params, &mp4), M2_ERR_IO, "file/clip.mp4");
    assert_null(mp4);
}

/* A colon would make FFmpeg see a protocol, a percent sign a number. */
static void strange_names_are_only_names(void **state)
{
    clip_env *env = *state;
    static const char *const names[] = { "a:b.mp4", "%d %s.mp4", "-x.mp4", "no extension",
                                         "\xe7\x8c\xab.mp4" };
    const m2_mp4_params params = clip_params(3, 32, 32, 25, 2);
    uint8_t *rgb = clip_frames(3, 32, 32);
    float *samples = clip_sound(params.n_samples);
    char here[1024];
    assert_non_null(getcwd(here, sizeof here));
    assert_int_equal(chdir(env->dir), 0);
    for (size_t k = 0; k < sizeof names / sizeof names[0]; k++) {
        const m2_status status = clip_write(names[k], &params, rgb, samples);
        assert_int_equal(access(names[k], R_OK), 0);
        assert_int_equal(status, M2_OK);
        assert_int_equal(clip_n_files("."), k + 1);
    }
    assert_int_equal(chdir(here), 0);
    free(samples);
    free(rgb);
}

static void unknown_encoder_names_those_that_work(void **state)
{
    clip_env *env = *state;
    m2_mp4_params params = clip_params(3, 32, 32, 25, 2);
    m2_mp4 *mp4 = NULL;
    params.encoder = "mpeg4";
    check_fails(m2_mp4_open(env->path, &params, &mp4), M2_ERR_ARG, "'mpeg4'");
    assert_non_null(strstr(m2_last_error(), "available here: libx264"));
    int n_that_do_not_open = 0;
    const char *name = NULL;
    for (int i = 0, opens; (opens = m2_mp4_encoder_probe(i, &name)) >= 0; i++) {
        params.encoder = name;
        /* A size that hardware takes too. */
        params.width = 640;
        params.height = 352;
        if (opens) {
            check_ok(m2_mp4_open(env->path, &params, &mp4));
            m2_mp4_destroy(mp4);
        } else {
            check_fails(m2_mp4_open(env->path, &params, &mp4), M2_ERR_UNSUPPORTED, name);
            assert_non_null(strstr(m2_last_error(), "available here: libx264"));
            n_that_do_not_open++;
        }
    }
    if (n_that_do_not_open == 0) print_message("every encoder opens here: that case was not met\n");
    params.tags = &(m2_mp4_tag){ "colour", "red" };
    params.n_tags = 1;
    params.encoder = NULL;
    check_fails(m2_mp4_open(env->path, &params, &mp4), M2_ERR_ARG, "no tag 'colour'");
    assert_int_equal(clip_n_files(env->dir), 0);
}

/* FFmpeg and its encoders write to stderr unless kept from it. */
static void nothing_is_printed(void **state)
{
    clip_env *env = *state;
    m2_mp4_params params = clip_params(3, 640, 352, 25, 2);
    uint8_t *rgb = clip_frames(3, 640, 352);
    float *samples = clip_sound(params.n_samples);
    char log_path[300];
    snprintf(log_path, sizeof log_path, "%s/log", env->dir);
    fflush(NULL);
    const int out = dup(1), err = dup(2);
    assert_non_null(freopen(log_path, "w", stderr));
    dup2(2, 1);
    const m2_status status = clip_write(env->path, &params, rgb, samples);
    m2_mp4 *mp4 = NULL;
    params.encoder = "h264_vaapi";
    if (m2_mp4_open(env->path, &params, &mp4) == M2_OK) m2_mp4_destroy(mp4);
    fflush(NULL);
    dup2(out, 1);
    dup2(err, 2);
    close(out);
    close(err);
    check_ok(status);
    struct stat info;
    assert_int_equal(stat(log_path, &info), 0);
    assert_int_equal(info.st_size, 0);
    free(samples);
    free(rgb);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        CLIP_TEST(wrong_counts_are_refused),
        CLIP_TEST(sample_that_is_not_finite_is_refused),
        CLIP_TEST(failures_leave_the_old_file_alone),
        CLIP_TEST(cancelling_leaves_no_file),
        CLIP_TEST(path_that_cannot_be_written_is_said_at_open),
        CLIP_TEST(strange_names_are_only_names),
        CLIP_TEST(unknown_encoder_names_those_that_work),
        CLIP_TEST(nothing_is_printed),
    };
    return cmocka_run_group_tests_name("mp4_faults", tests, NULL, NULL);
}
