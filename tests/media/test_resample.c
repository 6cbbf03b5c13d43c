#include "support/check.h"

#include "io/checkpoint.h"
#include "media/resample.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* 512,000 samples are 10 s and must become 441,000; a float ratio would lose one here and there. */
static void length_is_the_floor_of_the_exact_ratio(void **state)
{
    (void)state;
    assert_int_equal(m2_resample_length(512000), 441000);
    assert_int_equal(m2_resample_length(1), 0);
    assert_int_equal(m2_resample_length(2), 1);
    for (int64_t n = 1; n < 5000; n++) assert_int_equal(m2_resample_length(n), 441 * n / 512);
}

/* A tone keeps its frequency in Hz and its height, left and right apart.  Catches a spectrum cut at
 * the wrong end, a lost factor M / N, channels that leak into each other. */
static void a_tone_keeps_its_pitch_and_height(void **state)
{
    (void)state;
    const int64_t n = 51200, m = 44100;
    const double two_pi = 2 * acos(-1.0);
    float *in = malloc((size_t)n * 2 * sizeof *in), *out = malloc((size_t)m * 2 * sizeof *out);
    assert_non_null(in);
    assert_non_null(out);
    for (int64_t i = 0; i < n; i++) {
        in[2 * i] = (float)(0.7 * sin(two_pi * 1000 * (double)i / (double)n));
        in[2 * i + 1] = (float)(0.4 * cos(two_pi * 440 * (double)i / (double)n));
    }
    check_ok(m2_resample_stereo(in, n, out, m));
    double worst = 0;
    for (int64_t i = 0; i < m; i++) {
        const double t = (double)i / (double)m;
        worst = fmax(worst, fabs(out[2 * i] - 0.7 * sin(two_pi * 1000 * t)));
        worst = fmax(worst, fabs(out[2 * i + 1] - 0.4 * cos(two_pi * 440 * t)));
    }
    check_near(worst, 0, 1e-7, "two tones"); /* the rounding of the input */
    free(in);
    free(out);
}

/* At the outermost bin of an even K a real cosine is one number for two bins: shortening folds, so
 * that its height stays, lengthening shares.  Catches a bin counted once or twice. */
static void the_outermost_bin_keeps_its_height(void **state)
{
    (void)state;
    float in[12 * 2], shorter[6 * 2], longer[24 * 2];
    const double pi = acos(-1.0);
    for (int i = 0; i < 12; i++) {
        in[2 * i] = (float)cos(pi * i / 2); /* bin 3 of 12, the outermost of 6 */
        in[2 * i + 1] = i % 2 ? -1 : 1;     /* bin 6 of 12, its own outermost  */
    }
    check_ok(m2_resample_stereo(in, 12, shorter, 6));
    for (int i = 0; i < 6; i++) {
        check_near(shorter[2 * i], i % 2 ? -1 : 1, 1e-6, "sample %d", i);
        check_near(shorter[2 * i + 1], 0, 1e-6, "sample %d", i);
    }
    check_ok(m2_resample_stereo(in, 12, longer, 24));
    for (int i = 0; i < 24; i++)
        check_near(longer[2 * i + 1], cos(pi * i / 2), 1e-6, "sample %d", i);
    float same[12 * 2];
    check_ok(m2_resample_stereo(in, 12, same, 12));
    for (int i = 0; i < 24; i++) check_near(same[i], in[i], 1e-6, "value %d", i);
}

/* Awkward lengths (2, 3, primes) recorded from scipy in f32, with truths in f64. */
static void recorded_lengths_meet_the_error_rule(void **state)
{
    (void)state;
    m2_checkpoint *file = NULL;
    check_ok(m2_checkpoint_open(m2_test_path("data/audio/resample.safetensors"), &file));
    int n_cases = 0;
    for (int64_t i = 0; i < m2_checkpoint_n_tensors(file); i++) {
        const m2_ckpt_tensor *entry = m2_checkpoint_at(file, i);
        const char *dot = strrchr(entry->name, '.');
        if (strcmp(dot, ".in") != 0) continue;
        const int64_t n = entry->shape[0], m = m2_resample_length(n);
        char name[64];
        snprintf(name, sizeof name, "%.*s.truth", (int)(dot - entry->name), entry->name);
        const m2_ckpt_tensor *truth = m2_checkpoint_find(file, name);
        float *in = malloc((size_t)n * 2 * sizeof *in),
              *out = calloc((size_t)m * 2 + 1, sizeof *out);
        double *expected = calloc((size_t)m * 2 + 1, sizeof *expected);
        assert_true(in && out && expected);
        m2_checkpoint_read(entry, M2_F32, in);
        if (m == 0) {
            assert_null(truth);
            check_fails(m2_resample_stereo(in, n, out, m), M2_ERR_ARG, "at least 1");
        } else {
            assert_non_null(truth);
            assert_int_equal(truth->shape[0], m);
            m2_checkpoint_read(truth, M2_F64, expected);
            check_ok(m2_resample_stereo(in, n, out, m));
            const double error = m2_test_relative_error(out, M2_F32, expected, M2_F64, m * 2);
            check_near(error, 0, 6e-8, "%s", name); /* one rounding to f32; measured: 2.7e-8 */
            n_cases++;
        }
        free(in);
        free(out);
        free(expected);
    }
    assert_int_equal(n_cases, 7);
    m2_checkpoint_close(file);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(length_is_the_floor_of_the_exact_ratio),
        cmocka_unit_test(a_tone_keeps_its_pitch_and_height),
        cmocka_unit_test(the_outermost_bin_keeps_its_height),
        cmocka_unit_test(recorded_lengths_meet_the_error_rule),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
