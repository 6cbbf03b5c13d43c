#include "core/fmath.h"
#include "support/check.h"

/* Distance in units of the last place of the exact result (of 2^-126 below the normal numbers). */
static double ulps(float got, double exact)
{
    if (isnan(exact)) return isnan(got) ? 0 : INFINITY;
    if (isinf(exact) || fabs(exact) > 0x1.ffffffp127) /* rounds to infinity */
        return isinf(got) && (got > 0) == (exact > 0) ? 0 : INFINITY;
    int exponent;
    frexp(exact, &exponent);
    if (exponent < -125 || exact == 0) exponent = -125;
    return fabs((double)got - exact) / ldexp(1.0, exponent - 24);
}

/* Largest error over every `stride`-th f32 between low and high (one sign). */
static double worst_error(float (*ours)(float), double (*exact)(double), float low, float high,
                          uint32_t stride, float *where_out)
{
    double worst = 0;
    const uint32_t sign = m2_f32_bits(low) & 0x80000000u;
    const uint32_t a = m2_f32_bits(fabsf(low)), b = m2_f32_bits(fabsf(high));
    for (uint32_t bits = a < b ? a : b; bits <= (a < b ? b : a); bits += stride) {
        const float x = m2_f32_from_bits(bits | sign);
        const double error = ulps(ours(x), exact(x));
        if (error > worst) {
            worst = error;
            *where_out = x;
        }
    }
    return worst;
}

static void check_range(const char *name, float (*ours)(float), double (*exact)(double), float low,
                        float high, double ulps_max)
{
    float where = 0;
    const double worst = worst_error(ours, exact, low, high, 61, &where);
    print_message("%-9s [%g, %g]: %.3f ulp at %.9g\n", name, (double)low, (double)high, worst,
                  (double)where);
    if (!(worst <= ulps_max)) fail_msg("%s: %.3f ulp at %a", name, worst, (double)where);
}

static double sigmoid_exact(double x)
{
    return 1 / (1 + exp(-x));
}

static double silu_exact(double x)
{
    return x / (1 + exp(-x));
}

static double softplus_exact(double x)
{
    return x > 0 ? x + log1p(exp(-x)) : log1p(exp(x));
}

/* Catches a wrong coefficient, a reduction that loses bits near its ends, a scale one off. */
static void functions_are_within_their_error(void **state)
{
    (void)state;
    check_range("exp", m2_expf, exp, 1e-30f, 90.0f, 2.0);
    check_range("exp", m2_expf, exp, -1e-30f, -86.9f, 2.0);
    check_range("expm1", m2_expm1f, expm1, 1e-30f, 90.0f, 2.0);
    check_range("expm1", m2_expm1f, expm1, -1e-30f, -100.0f, 2.0);
    check_range("log", m2_logf, log, 0x1p-126f, 3e38f, 2.0);
    check_range("log1p", m2_log1pf, log1p, 1e-30f, 3e38f, 2.0);
    check_range("log1p", m2_log1pf, log1p, -1e-30f, -0.9999999f, 2.0);
    check_range("tanh", m2_tanhf, tanh, 1e-30f, 100.0f, 3.0);
    check_range("tanh", m2_tanhf, tanh, -1e-30f, -100.0f, 3.0);
    check_range("sigmoid", m2_sigmoidf, sigmoid_exact, 1e-30f, 100.0f, 3.0);
    check_range("sigmoid", m2_sigmoidf, sigmoid_exact, -1e-30f, -86.9f, 3.0);
    check_range("silu", m2_siluf, silu_exact, 1e-30f, 100.0f, 3.0);
    check_range("silu", m2_siluf, silu_exact, -1e-30f, -86.9f, 3.0);
    check_range("softplus", m2_softplusf, softplus_exact, 1e-30f, 100.0f, 3.0);
    check_range("softplus", m2_softplusf, softplus_exact, -1e-30f, -86.9f, 3.0);
}

/* RoPE turns by up to some thousands, a snake by as much as its learned frequency asks; catches a
 * pi / 2 of too few bits, which shows next to the zeros alone. */
static void sine_and_cosine_hold_for_large_angles(void **state)
{
    (void)state;
    check_range("sin", m2_sinf, sin, 1e-30f, 1e5f, 2.0);
    check_range("sin", m2_sinf, sin, -1e-30f, -1e5f, 2.0);
    check_range("cos", m2_cosf, cos, 1e-30f, 1e5f, 2.0);
    check_range("cos", m2_cosf, cos, -1e-30f, -1e5f, 2.0);
    check_range("sin", m2_sinf, sin, 1e5f, 0x1p40f, 2.0);
    check_range("cos", m2_cosf, cos, -1e5f, -0x1p40f, 2.0);
    for (int i = 1; i < 80000; i++) { /* the f32 nearest to each zero */
        const float x = (float)(i * 1.57079632679489661923);
        const float zero = i % 2 ? m2_cosf(x) : m2_sinf(x);
        check_near(ulps(zero, i % 2 ? cos(x) : sin(x)), 0, 2.0, "zero number %d", i);
    }
}

/* Catches NaN lost in a clamp, a sign lost at zero, an overflow that wraps into garbage. */
static void edge_values_come_out_right(void **state)
{
    (void)state;
    assert_true(isnan(m2_expf(NAN)) && isnan(m2_expm1f(NAN)) && isnan(m2_logf(NAN)));
    assert_true(isnan(m2_log1pf(NAN)) && isnan(m2_sinf(NAN)) && isnan(m2_cosf(NAN)));
    assert_true(isnan(m2_sigmoidf(NAN)) && isnan(m2_siluf(NAN)) && isnan(m2_tanhf(NAN)));
    assert_true(isnan(m2_softplusf(NAN)));
    assert_true(m2_expf(0.0f) == 1.0f && m2_expf(-0.0f) == 1.0f);
    assert_true(m2_expf(INFINITY) == INFINITY && m2_expf(-INFINITY) == 0.0f);
    assert_true(m2_expf(88.8f) == INFINITY && isfinite(m2_expf(88.7f)));
    assert_true(m2_expf(-87.1f) == 0.0f && m2_expf(-86.9f) > 0.0f);
    assert_true(m2_expm1f(INFINITY) == INFINITY && m2_expm1f(-INFINITY) == -1.0f);
    assert_true(m2_expm1f(-0.0f) == 0.0f && signbit(m2_expm1f(-0.0f)));
    assert_true(m2_logf(0.0f) == -INFINITY && m2_logf(-0.0f) == -INFINITY);
    assert_true(m2_logf(1.0f) == 0.0f && isnan(m2_logf(-1.0f)));
    assert_true(m2_logf(INFINITY) == INFINITY && isnan(m2_logf(-INFINITY)));
    assert_true(m2_log1pf(-1.0f) == -INFINITY && isnan(m2_log1pf(-1.5f)));
    assert_true(m2_log1pf(INFINITY) == INFINITY && m2_log1pf(0.0f) == 0.0f);
    assert_true(isnan(m2_sinf(INFINITY)) && isnan(m2_cosf(-INFINITY)));
    assert_true(m2_sinf(0.0f) == 0.0f && m2_cosf(0.0f) == 1.0f);
    assert_true(fabsf(m2_sinf(3e38f)) <= 1.0f && fabsf(m2_cosf(3e38f)) <= 1.0f);
    assert_true(m2_sigmoidf(INFINITY) == 1.0f && m2_sigmoidf(-INFINITY) == 0.0f);
    assert_true(m2_sigmoidf(0.0f) == 0.5f && m2_siluf(0.0f) == 0.0f);
    assert_true(m2_tanhf(INFINITY) == 1.0f && m2_tanhf(-INFINITY) == -1.0f);
    assert_true(signbit(m2_tanhf(-0.0f)) && m2_tanhf(-0.0f) == 0.0f);
    assert_true(m2_softplusf(INFINITY) == INFINITY && m2_softplusf(-INFINITY) == 0.0f);
    assert_true(m2_softplusf(25.0f) == 25.0f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(functions_are_within_their_error),
        cmocka_unit_test(sine_and_cosine_hold_for_large_angles),
        cmocka_unit_test(edge_values_come_out_right),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
