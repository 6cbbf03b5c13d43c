#include "support/check.h"

#include "core/dtype.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* A small float type as its definition has it: exponent and mantissa bits, bias, and a decoder of
 * our own in f64, so that rounding can be judged by distance alone. */
typedef struct small_type {
    const char *name;
    int n_bits, n_mantissa, bias;
    int has_infinity;
    uint32_t largest; /* bits of the largest finite value */
    uint32_t (*narrow)(float value);
    float (*widen)(uint32_t bits);
} small_type;

static uint32_t narrow_bf16(float value)
{
    return m2_f32_to_bf16(value).bits;
}
static float widen_bf16(uint32_t bits)
{
    return m2_bf16_to_f32((m2_bf16){ (uint16_t)bits });
}
static uint32_t narrow_f16(float value)
{
    return m2_f32_to_f16(value).bits;
}
static float widen_f16(uint32_t bits)
{
    return m2_f16_to_f32((m2_f16){ (uint16_t)bits });
}
static uint32_t narrow_e4m3(float value)
{
    return m2_f32_to_f8_e4m3(value).bits;
}
static float widen_e4m3(uint32_t bits)
{
    return m2_f8_e4m3_to_f32((m2_f8_e4m3){ (uint8_t)bits });
}
static uint32_t narrow_e5m2(float value)
{
    return m2_f32_to_f8_e5m2(value).bits;
}
static float widen_e5m2(uint32_t bits)
{
    return m2_f8_e5m2_to_f32((m2_f8_e5m2){ (uint8_t)bits });
}

static const small_type types[] = {
    { "bf16", 16, 7, 127, 1, 0x7f7f, narrow_bf16, widen_bf16 },
    { "f16", 16, 10, 15, 1, 0x7bff, narrow_f16, widen_f16 },
    { "e4m3", 8, 3, 7, 0, 0x7e, narrow_e4m3, widen_e4m3 },
    { "e5m2", 8, 2, 15, 1, 0x7b, narrow_e5m2, widen_e5m2 },
};
#define N_TYPES (sizeof types / sizeof types[0])

static double value_of(const small_type *type, uint32_t bits)
{
    const uint32_t sign_bit = 1u << (type->n_bits - 1), magnitude = bits & (sign_bit - 1);
    const double sign = bits & sign_bit ? -1 : 1;
    if (magnitude > type->largest)
        return type->has_infinity && magnitude == type->largest + 1 ? sign * INFINITY : NAN;
    const int exponent = (int)(magnitude >> type->n_mantissa);
    const double mantissa = magnitude & ((1u << type->n_mantissa) - 1);
    const double one = 1u << type->n_mantissa;
    return sign * ldexp(exponent ? one + mantissa : mantissa,
                        (exponent ? exponent : 1) - type->bias - type->n_mantissa);
}

/* Every pattern of every type.  Catches a wrong bias, lost subnormals or signs of zero, a NaN or
 * infinity that turns into a number. */
static void every_pattern_widens_to_its_value_and_back(void **state)
{
    (void)state;
    for (size_t t = 0; t < N_TYPES; t++) {
        const small_type *type = &types[t];
        for (uint32_t bits = 0; bits < 1u << type->n_bits; bits++) {
            const double value = value_of(type, bits);
            const float wide = type->widen(bits);
            if (isnan(value)) {
                if (!isnan(wide) || !isnan(type->widen(type->narrow(wide))))
                    fail_msg("%s %#x is a NaN", type->name, bits);
            } else if (wide != value || !!signbit(wide) != !!signbit(value) ||
                       type->narrow(wide) != bits) {
                fail_msg("%s %#x is %g, got %g and back %#x", type->name, bits, value, (double)wide,
                         type->narrow(wide));
            }
        }
    }
}

/* What nearest, ties to even, must give: found by the values on both sides, in f64. */
static uint32_t expected_narrow(const small_type *type, double value)
{
    const uint32_t sign = signbit(value) ? 1u << (type->n_bits - 1) : 0;
    const double magnitude = fabs(value);
    uint32_t low = 0, high = type->largest + 1;
    while (high - low > 1) { /* largest value that is not above */
        const uint32_t middle = (low + high) / 2;
        if (value_of(type, middle) <= magnitude)
            low = middle;
        else
            high = middle;
    }
    /* Beyond the largest, the next step would be where the exponent runs on. */
    const double below = value_of(type, low);
    const double above =
        low == type->largest ? below + (below - value_of(type, low - 1)) : value_of(type, low + 1);
    const double middle = (below + above) / 2;
    if (magnitude > middle || (magnitude == middle && (low & 1))) low++;
    return sign | low; /* largest + 1 is infinity, or the NaN of e4m3 */
}

static void check_narrow(const small_type *type, float value)
{
    const uint32_t got = type->narrow(value), expected = expected_narrow(type, value);
    if (got != expected)
        fail_msg("%a to %s is %#x, got %#x", (double)value, type->name, expected, got);
}

/* Every value, every midpoint between two neighbours, and one f32 to each side of both: all the
 * places where rounding can go wrong.  Then random bits.  Catches ties away from zero, truncation, a
 * carry that stops at the exponent, subnormals rounded twice, overflow one step early or late. */
static void narrowing_rounds_to_nearest_even(void **state)
{
    (void)state;
    for (size_t t = 0; t < N_TYPES; t++) {
        const small_type *type = &types[t];
        for (uint32_t bits = 0; bits <= type->largest; bits++) {
            const double here = value_of(type, bits);
            const double next = bits == type->largest ? here + (here - value_of(type, bits - 1))
                                                      : value_of(type, bits + 1);
            const float places[] = { (float)here, (float)((here + next) / 2) };
            for (int p = 0; p < 2; p++) {
                if (isinf(places[p])) continue;
                check_narrow(type, places[p]);
                check_narrow(type, -places[p]);
                check_narrow(type, nextafterf(places[p], 0));
                if (nextafterf(places[p], INFINITY) < INFINITY)
                    check_narrow(type, nextafterf(places[p], INFINITY));
            }
        }
        m2_test_random random = { 7 };
        for (int i = 0; i < 2000000; i++) {
            const uint32_t bits = (uint32_t)m2_test_random_u64(&random);
            float value;
            memcpy(&value, &bits, sizeof value);
            if (isfinite(value)) check_narrow(type, value);
        }
    }
}

/* Catches an infinity that becomes a number (or, in e4m3, the largest value) unasked. */
static void what_is_beyond_the_largest_is_marked_or_saturates(void **state)
{
    (void)state;
    assert_int_equal(m2_f32_to_f8_e4m3(INFINITY).bits, 0x7f);
    assert_int_equal(m2_f32_to_f8_e4m3(-1e9f).bits, 0xff);
    assert_int_equal(m2_f32_to_f8_e4m3(464.0f).bits, 0x7e); /* half way to 480: to even, 448 */
    assert_int_equal(m2_f32_to_f8_e4m3(nextafterf(464.0f, 1e9f)).bits, 0x7f);
    assert_int_equal(m2_f32_to_f8_e4m3_sat(INFINITY).bits, 0x7e);
    assert_int_equal(m2_f32_to_f8_e4m3_sat(-465.0f).bits, 0xfe);
    assert_int_equal(m2_f32_to_f8_e4m3_sat(NAN).bits & 0x7f, 0x7f);
    assert_int_equal(m2_f32_to_f8_e5m2(-INFINITY).bits, 0xfc);
    assert_int_equal(m2_f32_to_f8_e5m2(61440.0f).bits, 0x7c); /* half way to 65536: to even */
    assert_int_equal(m2_f32_to_f8_e5m2(nextafterf(61440.0f, 0)).bits, 0x7b);
    assert_int_equal(m2_f32_to_f8_e5m2_sat(1e9f).bits, 0x7b);
    assert_int_equal(m2_f32_to_f8_e5m2_sat(-INFINITY).bits, 0xfb);
    assert_true(isnan(widen_e5m2(m2_f32_to_f8_e5m2_sat(NAN).bits)));
    for (size_t t = 0; t < N_TYPES; t++) {
        assert_true(isnan(types[t].widen(types[t].narrow(NAN))));
        assert_true(isnan(types[t].widen(types[t].narrow(-NAN))));
        if (!types[t].has_infinity) continue;
        assert_true(types[t].widen(types[t].narrow(INFINITY)) == INFINITY);
        assert_true(types[t].widen(types[t].narrow(-INFINITY)) == -INFINITY);
    }
}

/* Saturating and plain narrowing agree wherever the value fits. */
static void saturation_changes_nothing_in_range(void **state)
{
    (void)state;
    m2_test_random random = { 8 };
    for (int i = 0; i < 100000; i++) {
        const float value = m2_test_random_uniform(&random, -448, 448);
        assert_int_equal(m2_f32_to_f8_e4m3(value).bits, m2_f32_to_f8_e4m3_sat(value).bits);
        assert_int_equal(m2_f32_to_f8_e5m2(value).bits, m2_f32_to_f8_e5m2_sat(value).bits);
    }
}

/* Catches f64 rounded to f32 on its way to a smaller type: just above a midpoint, the f32 is the
 * midpoint itself and goes to even, the wrong way. */
static void f64_rounds_once(void **state)
{
    (void)state;
    const double above = 1.0 + 0x1p-8 + 0x1p-40, below = 1.0 + 0x1p-8 + 0x1p-7 - 0x1p-40;
    m2_bf16 b;
    m2_convert(&above, M2_F64, &b, M2_BF16, 1);
    assert_int_equal(b.bits, 0x3f81);
    m2_convert(&below, M2_F64, &b, M2_BF16, 1);
    assert_int_equal(b.bits, 0x3f81);
    m2_test_random random = { 9 };
    for (int i = 0; i < 300000; i++) {
        /* Near midpoints of f16, a little to one side or the other. */
        const uint32_t bits = (uint32_t)(m2_test_random_u64(&random) % 0x7bff);
        const double middle = (value_of(&types[1], bits) + value_of(&types[1], bits + 1)) / 2;
        const double value = middle * (1 + ((int)(m2_test_random_u64(&random) % 3) - 1) * 0x1p-45);
        m2_f16 f;
        m2_convert(&value, M2_F64, &f, M2_F16, 1);
        if (f.bits != expected_narrow(&types[1], value))
            fail_msg("%a to f16 is %#x, got %#x", value, expected_narrow(&types[1], value), f.bits);
        const double negative = -value;
        m2_convert(&negative, M2_F64, &f, M2_F16, 1);
        assert_int_equal(f.bits, expected_narrow(&types[1], negative));
    }
    const double huge = 1e300, tiny = 1e-300;
    m2_convert(&huge, M2_F64, &b, M2_BF16, 1);
    assert_int_equal(b.bits, 0x7f80);
    m2_convert(&tiny, M2_F64, &b, M2_BF16, 1);
    assert_int_equal(b.bits, 0);
    float f32;
    m2_convert(&above, M2_F64, &f32, M2_F32, 1);
    assert_true(f32 == (float)above);
}

/* Catches an i64 that passes through f64: 2^53 and up are not all there. */
static void i64_rounds_once_and_keeps_its_value(void **state)
{
    (void)state;
    /* Above the midpoint of two f32 by less than an f64 can tell. */
    const int64_t above = ((int64_t)1 << 62) + ((int64_t)1 << 38) + 1;
    float f32;
    m2_convert(&above, M2_I64, &f32, M2_F32, 1);
    assert_true(f32 == (float)above);
    assert_true(f32 > 0x1p62f);
    m2_test_random random = { 10 };
    for (int i = 0; i < 100000; i++) {
        const int64_t value = (int64_t)m2_test_random_u64(&random) >> (i % 64);
        double f64;
        m2_convert(&value, M2_I64, &f32, M2_F32, 1);
        m2_convert(&value, M2_I64, &f64, M2_F64, 1);
        assert_true(f32 == (float)value);
        assert_true(f64 == (double)value);
    }
}

/* Every pair of types, with values that all can hold.  Catches a case missing in a switch. */
static void any_type_converts_to_any_other(void **state)
{
    (void)state;
    const double values[] = { 0, 1, 2, 100, 64, 7 };
    const int n = 6;
    for (int from = 0; from < M2_DTYPE_COUNT; from++) {
        for (int to = 0; to < M2_DTYPE_COUNT; to++) {
            char a[64], b[64];
            double back[6];
            m2_convert(values, M2_F64, a, (m2_dtype)from, n);
            m2_convert(a, (m2_dtype)from, b, (m2_dtype)to, n);
            m2_convert(b, (m2_dtype)to, back, M2_F64, n);
            for (int i = 0; i < n; i++) {
                if (back[i] != values[i])
                    fail_msg("%s to %s: %g became %g", m2_dtype_name((m2_dtype)from),
                             m2_dtype_name((m2_dtype)to), values[i], back[i]);
            }
        }
    }
    const double negative = -77;
    int8_t i8;
    int64_t i64;
    m2_convert(&negative, M2_F64, &i8, M2_I8, 1);
    m2_convert(&i8, M2_I8, &i64, M2_I64, 1);
    assert_int_equal(i64, -77);
}

/* The bulk paths and the single ones must agree. */
static void bulk_conversion_equals_single(void **state)
{
    (void)state;
    enum { N = 1000 };
    float x[N], wide[N];
    m2_bf16 narrow[N];
    m2_test_random random = { 11 };
    for (int i = 0; i < N; i++) x[i] = m2_test_random_normal(&random);
    m2_convert(x, M2_F32, narrow, M2_BF16, N);
    m2_convert(narrow, M2_BF16, wide, M2_F32, N);
    for (int i = 0; i < N; i++) {
        assert_int_equal(narrow[i].bits, m2_f32_to_bf16(x[i]).bits);
        assert_true(wide[i] == m2_round_bf16(x[i]));
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_pattern_widens_to_its_value_and_back),
        cmocka_unit_test(narrowing_rounds_to_nearest_even),
        cmocka_unit_test(what_is_beyond_the_largest_is_marked_or_saturates),
        cmocka_unit_test(saturation_changes_nothing_in_range),
        cmocka_unit_test(f64_rounds_once),
        cmocka_unit_test(i64_rounds_once_and_keeps_its_value),
        cmocka_unit_test(any_type_converts_to_any_other),
        cmocka_unit_test(bulk_conversion_equals_single),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
