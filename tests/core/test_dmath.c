#include "support/check.h"

#include "core/dmath.h"

#include <math.h>
#include <string.h>

/* Distance in units of the last place of an f64 near `exact`. */
static double ulps(double got, long double exact)
{
    if ((long double)got == exact) return 0;
    int exponent;
    frexpl(exact, &exponent);
    return (double)(fabsl((long double)got - exact) / ldexpl(1, exponent - 53));
}

#define ULPS_MAX 2.0

/* Catches a wrong series, a reduction that cancels, a table constant with a wrong digit. */
static void functions_are_exact_to_two_units_of_the_last_place(void **state)
{
    (void)state;
    m2_test_random random = { 1 };
    double worst[4] = { 0 };
    for (int i = 0; i < 500000; i++) {
        const double u = (double)(m2_test_random_u64(&random) >> 11) * 0x1p-53;
        /* The logarithm over the whole range, and where it is almost 0. */
        const double x = i % 2 ? ldexp(1 + u, (int)(m2_test_random_u64(&random) % 2044) - 1022)
                               : 1 + (u - 0.5) * ldexp(1, -(i % 40));
        const double e = i % 2 ? (u - 0.6) * 60 : (u - 0.5) * ldexp(1, -(i % 40));
        const double angle = i % 2 ? (u - 0.5) * 128 : u * 0x1.921fb54442d18p+2;
        const double errors[4] = { ulps(m2_log64(x), logl(x)), ulps(m2_expm1_64(e), expm1l(e)),
                                   ulps(m2_sin64(angle), sinl(angle)),
                                   ulps(m2_cos64(angle), cosl(angle)) };
        for (int f = 0; f < 4; f++) worst[f] = fmax(worst[f], errors[f]);
    }
    print_message("ulps: log %.2f, expm1 %.2f, sin %.2f, cos %.2f\n", worst[0], worst[1], worst[2],
                  worst[3]);
    for (int f = 0; f < 4; f++) assert_true(worst[f] <= ULPS_MAX);
}

/* Catches wrong limits: the last step of a schedule has log 0, a huge step expm1(-infinity). */
static void special_values_are_those_of_the_definition(void **state)
{
    (void)state;
    assert_true(m2_log64(0.0) == -INFINITY);
    assert_true(m2_log64(INFINITY) == INFINITY);
    assert_true(m2_log64(1.0) == 0);
    assert_true(isnan(m2_log64(-1.0)));
    assert_true(isnan(m2_log64(NAN)));
    check_near(m2_log64(0x1p-1074), -744.4400719213812, 1e-12, "smallest denormal");
    assert_true(m2_expm1_64(-INFINITY) == -1);
    assert_true(m2_expm1_64(-745) == -1);
    assert_true(m2_expm1_64(INFINITY) == INFINITY);
    assert_true(m2_expm1_64(710) == INFINITY);
    assert_true(m2_expm1_64(0) == 0);
    assert_true(signbit(m2_expm1_64(-0.0)));
    assert_true(isnan(m2_expm1_64(NAN)));
    assert_true(ulps(m2_expm1_64(709.5), expm1l(709.5L)) < 16);
    assert_true(m2_sin64(0) == 0);
    assert_true(m2_cos64(0) == 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(functions_are_exact_to_two_units_of_the_last_place),
        cmocka_unit_test(special_values_are_those_of_the_definition),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
