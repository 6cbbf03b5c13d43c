#include "support/check.h"

#include "core/rng.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Recorded from PyTorch 2.11 on an H200; its sine is a fast intrinsic. */
#define TORCH_TOLERANCE 2e-6

static void check_values(const float *got, const float *expected, int n, const char *what)
{
    for (int i = 0; i < n; i++)
        check_near(got[i], expected[i], TORCH_TOLERANCE, "%s, value %d", what, i);
}

static m2_rng rng_of(uint64_t seed, int n_multiprocessors, int n_threads)
{
    m2_rng rng;
    check_ok(m2_rng_init(&rng, seed, (m2_rng_grid){ n_multiprocessors, n_threads }));
    return rng;
}

/* The draws of one clip at 272p, then those of one at 540p, from one generator: values of PyTorch.
 * Catches a wrong Philox constant, swapped sine and cosine, a grid that is not the card's, and an
 * offset that does not move on as the card's does. */
static void draws_are_those_of_an_h200(void **state)
{
    (void)state;
    const float video_first[] = { 0.19401880f, 2.1613736f, -0.17205022f, 0.84906012f };
    const float audio_first[] = { 0.13913755f, -0.10821664f, -0.71742225f };
    const float audio2_first[] = { -0.69736588f, -1.8688258f, -0.88318741f };
    const int64_t n_video = 688128, n_audio = 16000, n_video2 = 2752512;
    float *values = malloc((size_t)n_video2 * sizeof *values);
    assert_non_null(values);
    m2_rng rng = rng_of(42, 132, 2048);

    m2_rng_normal(&rng, NULL, values, n_video);
    check_values(values, video_first, 4, "272p video");
    check_near(values[n_video - 1], 0.87389028, TORCH_TOLERANCE, "last of 272p video");
    assert_int_equal(rng.offset, 4);
    m2_rng_normal(&rng, NULL, values, n_audio);
    check_values(values, audio_first, 3, "272p audio");
    check_near(values[n_audio - 1], -0.27433148, TORCH_TOLERANCE, "last of 272p audio");
    assert_int_equal(rng.offset, 8);

    rng = rng_of(42, 132, 2048);
    m2_rng_normal(&rng, NULL, values, n_video2);
    check_values(values, video_first, 4, "540p video"); /* 270,336 threads either way */
    check_near(values[811008], -1.2356210, TORCH_TOLERANCE, "540p video, last lane");
    check_near(values[n_video2 - 1], 0.37042052, TORCH_TOLERANCE, "last of 540p video");
    assert_int_equal(rng.offset, 12);
    m2_rng_normal(&rng, NULL, values, n_audio);
    check_values(values, audio2_first, 3, "540p audio");
    check_near(values[n_audio - 1], 0.07511123, TORCH_TOLERANCE, "last of 540p audio");
    assert_int_equal(rng.offset, 16);
    free(values);
}

/* 24.7 million values, and the offset after them. */
static void the_refiners_draw_is_that_of_an_h200(void **state)
{
    (void)state;
    const int64_t n = 24675840;
    float *values = malloc((size_t)n * sizeof *values);
    assert_non_null(values);
    m2_pool *pool = NULL;
    check_ok(m2_pool_create(0, &pool));
    m2_rng rng = rng_of(42, 132, 2048);
    rng.offset = 16; /* after the video and audio of 540p */
    m2_rng_normal(&rng, pool, values, n);
    check_near(values[0], -1.2682215, TORCH_TOLERANCE, "first");
    check_near(values[1], -0.03829635, TORCH_TOLERANCE, "second");
    check_near(values[n - 1], -0.45508698, TORCH_TOLERANCE, "last");
    assert_int_equal(rng.offset, 108);
    m2_pool_destroy(pool);
    free(values);
}

/* Both words of the seed are the key. */
static void a_long_seed_counts_whole(void **state)
{
    (void)state;
    const float expected[] = { 1.81813717f,  0.740697742f,  -0.884077787f, 2.3840704f,
                               0.448722333f, 0.0196934175f, -0.117740259f, 1.87450039f };
    float values[15];
    m2_rng rng = rng_of(123456789012u, 132, 2048);
    m2_rng_normal(&rng, NULL, values, 15);
    check_values(values, expected, 8, "seed 123456789012");
    m2_rng low = rng_of((uint32_t)123456789012u, 132, 2048);
    m2_rng_normal(&low, NULL, values, 15);
    assert_true(fabsf(values[0] - expected[0]) > 1e-3f);
}

/* Philox4x32-10 of the paper's test vectors is checked through one value: the words of counter 0
 * and key 0 are 6627e8d5 e169c58d bc57ac4c 9b00dbd8 (Random123). */
static void philox_gives_the_words_of_its_paper(void **state)
{
    (void)state;
    const double u = (0x6627e8d5 + 0.5) * 0x1p-32, v = (0xe169c58d + 0.5) * 0x1p-32;
    const double u2 = (0xbc57ac4c + 0.5) * 0x1p-32, v2 = (0x9b00dbd8u + 0.5) * 0x1p-32;
    const double two_pi = 2 * acos(-1.0);
    float values[1024];
    m2_rng rng = rng_of(0, 1, 256); /* 256 threads: thread 0 makes 0, 256, 512, 768 */
    m2_rng_normal(&rng, NULL, values, 1024);
    check_near(values[0], sqrt(-2 * log(u)) * sin(two_pi * v), 1e-6, "lane 0");
    check_near(values[256], sqrt(-2 * log(u)) * cos(two_pi * v), 1e-6, "lane 1");
    check_near(values[512], sqrt(-2 * log(u2)) * sin(two_pi * v2), 1e-6, "lane 2");
    check_near(values[768], sqrt(-2 * log(u2)) * cos(two_pi * v2), 1e-6, "lane 3");
}

/* A card with fewer processors makes other noise from the same seed, as it does in PyTorch: element
 * e of a grid of G threads is lane e / G % 4 of thread e % G.  Catches a grid that is ignored. */
static void the_grid_places_the_values(void **state)
{
    (void)state;
    enum { N = 20000 };
    static float small[N], large[N];
    m2_rng a = rng_of(7, 4, 1024), b = rng_of(7, 132, 2048); /* 16 blocks; as many as needed */
    m2_rng_normal(&a, NULL, small, N);
    m2_rng_normal(&b, NULL, large, N);
    const int g_small = 4 * 4 * 256, g_large = (N + 255) / 256 * 256;
    for (int thread = 0; thread < g_small; thread++)
        assert_true(small[thread] == large[thread]); /* lane 0 */
    assert_true(small[g_small] != large[g_small]);
    assert_true(g_large > N);
    assert_int_equal(a.offset, 8); /* two rounds of 4 x 4096 */
    assert_int_equal(b.offset, 4);
}

/* Catches a split of the draw that changes it, and values written past the end. */
static void draws_have_the_same_bits_for_any_number_of_threads(void **state)
{
    (void)state;
    static const int64_t counts[] = { 0, 1, 2, 255, 256, 257, 4095, 4097, 100003, 1200000 };
    float *expected = malloc(1200001 * sizeof *expected), *got = malloc(1200001 * sizeof *got);
    assert_non_null(expected);
    assert_non_null(got);
    for (int n_threads = 1; n_threads <= 5; n_threads += 2) {
        m2_pool *pool = NULL;
        check_ok(m2_pool_create(n_threads, &pool));
        m2_rng a = rng_of(99, 132, 2048), b = rng_of(99, 132, 2048);
        for (size_t i = 0; i < sizeof counts / sizeof counts[0]; i++) {
            expected[counts[i]] = got[counts[i]] = 12345;
            m2_rng_normal(&a, NULL, expected, counts[i]);
            m2_rng_normal(&b, pool, got, counts[i]);
            assert_memory_equal(expected, got, (size_t)counts[i] * sizeof *got);
            assert_true(got[counts[i]] == 12345);
            assert_int_equal(a.offset, b.offset);
        }
        m2_pool_destroy(pool);
    }
    free(expected);
    free(got);
}

/* Moments of 2^20 normals: mean, variance, third and fourth moment within five of their own standard
 * errors.  Catches a pair used twice, or a lane that is constant. */
static void values_are_normal(void **state)
{
    (void)state;
    enum { N = 1 << 20 };
    float *values = malloc(N * sizeof *values);
    assert_non_null(values);
    m2_rng rng = rng_of(5, 132, 2048);
    m2_rng_normal(&rng, NULL, values, N);
    double moments[5] = { 0 };
    for (int i = 0; i < N; i++) {
        double power = 1;
        for (int m = 1; m <= 4; m++) moments[m] += (power *= values[i]);
    }
    const double error = 5 / sqrt(N);
    check_near(moments[1] / N, 0, error, "mean");
    check_near(moments[2] / N, 1, error * sqrt(2), "variance");
    check_near(moments[3] / N, 0, error * sqrt(15), "third moment");
    check_near(moments[4] / N, 3, error * sqrt(96), "fourth moment");
    free(values);
}

static void an_impossible_grid_is_an_error(void **state)
{
    (void)state;
    m2_rng rng = { .seed = 1 };
    check_fails(m2_rng_init(&rng, 0, (m2_rng_grid){ 0, 2048 }), M2_ERR_ARG, "0x2048");
    check_fails(m2_rng_init(&rng, 0, (m2_rng_grid){ 132, 255 }), M2_ERR_ARG, "132x255");
    check_fails(m2_rng_init(&rng, 0, (m2_rng_grid){ -1, 2048 }), M2_ERR_ARG, "132x2048");
    check_fails(m2_rng_init(&rng, 0, (m2_rng_grid){ 1 << 30, 2048 }), M2_ERR_ARG, "65536");
    assert_int_equal(rng.seed, 1);
}

/* PyTorch's CPU generator: draws below 16 keep the second value of a pair for the next, those of 16
 * and more take another way, and a ragged end replaces the last 16. */
static void cpu_draws_are_those_of_pytorch(void **state)
{
    (void)state;
    const float fresh15[] = { 0.336690366f, 0.128809407f,  0.234462366f, 0.23033303f,
                              -1.12285638f, -0.186328292f, 2.20820141f,  -0.637997031f,
                              0.461657226f, 0.267350882f,  0.534904659f, 0.809357226f,
                              1.11029029f,  -1.68979895f,  -0.988959908f };
    const float fresh16[] = { 1.92691529f,   1.48728406f,   0.900717199f,   -2.10552096f,
                              0.678418458f,  -1.23454487f,  -0.0430674776f, -1.60466695f,
                              -0.752135277f, 1.64872301f,   -0.392478645f,  -1.40360713f,
                              -0.727881312f, -0.559430182f, -0.768838882f,  0.76244539f };
    const float fresh17[] = { 1.92691529f,   -0.159597471f, -0.497397542f, 0.439589262f,
                              -0.758131146f, 1.07831764f,   0.800800562f,  1.68062055f,
                              0.355859905f,  1.29642284f,   0.61046648f,   1.33473778f,
                              -0.23162432f,  0.041759491f,  -0.251575291f, 0.859858513f,
                              -0.309726775f };
    float values[17];
    m2_cpu_rng rng;
    m2_cpu_rng_init(&rng, 42);
    m2_cpu_rng_normal(&rng, values, 15);
    check_values(values, fresh15, 15, "15 values");
    m2_cpu_rng_init(&rng, 42);
    m2_cpu_rng_normal(&rng, values, 16);
    check_values(values, fresh16, 16, "16 values");
    m2_cpu_rng_init(&rng, 42);
    m2_cpu_rng_normal(&rng, values, 17);
    check_values(values, fresh17, 17, "17 values");
    /* One at a time is the same stream, odd draws and empty ones in between. */
    m2_cpu_rng_init(&rng, 42);
    for (int i = 0; i < 15; i++) {
        m2_cpu_rng_normal(&rng, values, 0);
        m2_cpu_rng_normal(&rng, values, 1);
        check_values(values, &fresh15[i], 1, "one value");
    }
}

/* A kept value survives a draw of 16 and more in between. */
static void a_kept_value_waits_for_the_next_small_draw(void **state)
{
    (void)state;
    float first[2], large[64], second[1];
    m2_cpu_rng rng, plain;
    m2_cpu_rng_init(&plain, 1);
    m2_cpu_rng_normal(&plain, first, 2);
    m2_cpu_rng_init(&rng, 1);
    m2_cpu_rng_normal(&rng, second, 1);
    m2_cpu_rng_normal(&rng, large, 64);
    m2_cpu_rng_normal(&rng, second, 1);
    assert_true(second[0] == first[1]);
}

/* PyTorch seeds the twister with 32 bits: the rest is cut off. */
static void the_cpu_seed_is_cut_to_32_bits(void **state)
{
    (void)state;
    const float expected[] = { -0.353359878f, -0.263496399f, -1.37336195f, -3.36067057f };
    float a[16], b[16];
    m2_cpu_rng rng;
    m2_cpu_rng_init(&rng, 123456789012u);
    m2_cpu_rng_normal(&rng, a, 16);
    check_values(a, expected, 4, "seed 123456789012");
    m2_cpu_rng_init(&rng, (uint32_t)123456789012u);
    m2_cpu_rng_normal(&rng, b, 16);
    assert_memory_equal(a, b, sizeof a);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(draws_are_those_of_an_h200),
        cmocka_unit_test(the_refiners_draw_is_that_of_an_h200),
        cmocka_unit_test(a_long_seed_counts_whole),
        cmocka_unit_test(philox_gives_the_words_of_its_paper),
        cmocka_unit_test(the_grid_places_the_values),
        cmocka_unit_test(draws_have_the_same_bits_for_any_number_of_threads),
        cmocka_unit_test(values_are_normal),
        cmocka_unit_test(an_impossible_grid_is_an_error),
        cmocka_unit_test(cpu_draws_are_those_of_pytorch),
        cmocka_unit_test(a_kept_value_waits_for_the_next_small_draw),
        cmocka_unit_test(the_cpu_seed_is_cut_to_32_bits),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
