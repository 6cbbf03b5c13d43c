#include "support/check.h"

#include "sample/schedule.h"

#include <math.h>
#include <string.h>

/* Timesteps of the preview's 100 steps at shift 7, as the reference has them. */
static const int timesteps_100[100] = {
    999, 998, 996, 995, 993, 992, 990, 989, 987, 985, 984, 982, 980, 978, 977, 975, 973,
    971, 969, 967, 965, 963, 961, 958, 956, 954, 952, 949, 947, 944, 942, 939, 936, 934,
    931, 928, 925, 922, 919, 916, 912, 909, 906, 902, 898, 895, 891, 887, 883, 879, 874,
    870, 865, 861, 856, 851, 845, 840, 834, 829, 823, 817, 810, 804, 797, 790, 782, 774,
    766, 758, 749, 740, 731, 721, 710, 699, 688, 676, 663, 650, 636, 621, 605, 588, 571,
    552, 532, 510, 488, 463, 437, 408, 378, 344, 308, 269, 225, 177, 124, 65
};

/* Bits of the f32 sigmas of the same run. */
static const uint32_t sigma_bits_100[101] = {
    0x3f7ff6a1, 0x3f7f9821, 0x3f7f37fc, 0x3f7ed625, 0x3f7e7291, 0x3f7e0d35, 0x3f7da605, 0x3f7d3cf2,
    0x3f7cd1f1, 0x3f7c64f3, 0x3f7bf5e9, 0x3f7b84c6, 0x3f7b117a, 0x3f7a9bf4, 0x3f7a2424, 0x3f79a9f9,
    0x3f792d60, 0x3f78ae48, 0x3f782c9c, 0x3f77a848, 0x3f772138, 0x3f769755, 0x3f760a89, 0x3f757abb,
    0x3f74e7d2, 0x3f7451b5, 0x3f73b849, 0x3f731b70, 0x3f727b0f, 0x3f71d704, 0x3f712f31, 0x3f708373,
    0x3f6fd3a6, 0x3f6f1fa6, 0x3f6e674c, 0x3f6daa6e, 0x3f6ce8e1, 0x3f6c2278, 0x3f6b5705, 0x3f6a8655,
    0x3f69b033, 0x3f68d469, 0x3f67f2bc, 0x3f670aee, 0x3f661cc0, 0x3f6527ed, 0x3f642c2c, 0x3f632932,
    0x3f621eac, 0x3f610c47, 0x3f5ff1a7, 0x3f5ece6c, 0x3f5da230, 0x3f5c6c86, 0x3f5b2cfa, 0x3f59e312,
    0x3f588e4b, 0x3f572e18, 0x3f55c1e5, 0x3f544910, 0x3f52c2f0, 0x3f512ecd, 0x3f4f8be2, 0x3f4dd95b,
    0x3f4c1656, 0x3f4a41dd, 0x3f485ae7, 0x3f466056, 0x3f4450f7, 0x3f422b78, 0x3f3fee6f, 0x3f3d9850,
    0x3f3b276b, 0x3f3899ea, 0x3f35edca, 0x3f3320d7, 0x3f3030a5, 0x3f2d1a8a, 0x3f29db95, 0x3f267087,
    0x3f22d5c3, 0x3f1f0746, 0x3f1b0099, 0x3f16bcb8, 0x3f123607, 0x3f0d6631, 0x3f084611, 0x3f02cd87,
    0x3ef9e6ad, 0x3eed59d1, 0x3edfdc26, 0x3ed15189, 0x3ec1994a, 0x3eb08d36, 0x3e9e0059, 0x3e89bd77,
    0x3e670a10, 0x3e361534, 0x3dffc57b, 0x3d871e21, 0x00000000
};

static uint32_t bits_of(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

/* Bit for bit.  Catches f32 where the reference has f64, 0.999 where it has its f32, a schedule that
 * ends at 0 one step early, rounding of timesteps instead of truncation. */
static void the_previews_table_is_the_references(void **state)
{
    (void)state;
    check_ok(m2_schedule_check(100, 7));
    for (int step = 0; step <= 100; step++) {
        assert_int_equal(bits_of(m2_schedule_sigma(100, 7, step)), sigma_bits_100[step]);
        if (step < 100) assert_int_equal(m2_schedule_timestep(100, 7, step), timesteps_100[step]);
    }
}

static void the_refiners_table_is_the_references(void **state)
{
    (void)state;
    static const int timesteps[5] = { 999, 952, 882, 768, 555 };
    static const uint32_t bits[6] = { 0x3f7ff2e2, 0x3f73c05e, 0x3f61d0dd,
                                      0x3f44d8e8, 0x3f0e24a7, 0x00000000 };
    for (int step = 0; step <= 5; step++) {
        assert_int_equal(bits_of(m2_schedule_sigma(5, 5, step)), bits[step]);
        if (step < 5) assert_int_equal(m2_schedule_timestep(5, 5, step), timesteps[step]);
    }
    static const int four[4] = { 999, 954, 874, 699 };
    for (int step = 0; step < 4; step++)
        assert_int_equal(m2_schedule_timestep(4, 7, step), four[step]);
    assert_int_equal(m2_schedule_timestep(1, 7, 0), 999);
}

/* Any number of steps has a table that falls from noise to clean, the ones where the reference
 * stumbles over equal timesteps included. */
static void any_number_of_steps_falls_to_zero(void **state)
{
    (void)state;
    static const double shifts[] = { 0.1, 0.5, 1, 3.3, 5, 7, 12 };
    static const int counts[] = { 1, 2, 3, 50, 168, 251, 1000, 5000 };
    for (size_t s = 0; s < sizeof shifts / sizeof shifts[0]; s++) {
        for (size_t c = 0; c < sizeof counts / sizeof counts[0]; c++) {
            const int n = counts[c];
            check_ok(m2_schedule_check(n, shifts[s]));
            assert_int_equal(m2_schedule_sigma(n, shifts[s], n), 0);
            for (int step = 0; step < n; step++) {
                const float sigma = m2_schedule_sigma(n, shifts[s], step);
                const int timestep = m2_schedule_timestep(n, shifts[s], step);
                assert_true(sigma < 1 && sigma > m2_schedule_sigma(n, shifts[s], step + 1));
                assert_true(timestep <= 1000 * (double)sigma + 1e-4 &&
                            timestep > 1000 * (double)sigma - 1.0001);
            }
        }
    }
}

/* Catches a table that would divide by zero or by the logarithm of zero in the sampler. */
static void a_table_that_cannot_be_is_an_error(void **state)
{
    (void)state;
    check_fails(m2_schedule_check(0, 7), M2_ERR_ARG, "0 steps");
    check_fails(m2_schedule_check(-3, 7), M2_ERR_ARG, "-3 steps");
    check_fails(m2_schedule_check(10, 0), M2_ERR_ARG, "shift is 0");
    check_fails(m2_schedule_check(10, -1), M2_ERR_ARG, "shift is -1");
    check_fails(m2_schedule_check(10, (double)NAN), M2_ERR_ARG, "shift is");
    check_fails(m2_schedule_check(10, (double)INFINITY), M2_ERR_ARG, "shift is inf");
    check_fails(m2_schedule_check(10, 1e12), M2_ERR_ARG, "10 steps with shift 1e+12");
    check_fails(m2_schedule_check(10, 1e-60), M2_ERR_ARG, "10 steps with shift 1e-60");
    check_fails(m2_schedule_check(1 << 30, 7), M2_ERR_ARG, "fewer steps");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_previews_table_is_the_references),
        cmocka_unit_test(the_refiners_table_is_the_references),
        cmocka_unit_test(any_number_of_steps_falls_to_zero),
        cmocka_unit_test(a_table_that_cannot_be_is_an_error),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
