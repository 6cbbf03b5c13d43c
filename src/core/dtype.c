#include "core/dtype.h"

#include <math.h>

static const struct {
    const char *name;
    size_t bytes;
} dtypes[M2_DTYPE_COUNT] = {
    [M2_F32] = { "F32", 4 },   [M2_BF16] = { "BF16", 2 }, [M2_F16] = { "F16", 2 },
    [M2_F64] = { "F64", 8 },   [M2_I64] = { "I64", 8 },   [M2_I32] = { "I32", 4 },
    [M2_I16] = { "I16", 2 },   [M2_I8] = { "I8", 1 },     [M2_U8] = { "U8", 1 },
    [M2_BOOL] = { "BOOL", 1 },
};

size_t m2_dtype_bytes(m2_dtype dtype)
{
    return dtypes[dtype].bytes;
}

const char *m2_dtype_name(m2_dtype dtype)
{
    return dtypes[dtype].name;
}

int m2_dtype_parse(const char *name, m2_dtype *dtype_out)
{
    for (int i = 0; i < M2_DTYPE_COUNT; i++) {
        if (strcmp(dtypes[i].name, name) == 0) {
            *dtype_out = (m2_dtype)i;
            return 1;
        }
    }
    return 0;
}

float m2_f16_to_f32(m2_f16 value)
{
    const uint32_t sign = (uint32_t)(value.bits & 0x8000u) << 16;
    const uint32_t exponent = (value.bits >> 10) & 0x1fu;
    uint32_t mantissa = value.bits & 0x3ffu;
    uint32_t bits;
    if (exponent == 0x1fu) {
        bits = sign | 0x7f800000u | (mantissa << 13);
    } else if (exponent != 0) {
        bits = sign | ((exponent + 112u) << 23) | (mantissa << 13);
    } else if (mantissa == 0) {
        bits = sign;
    } else {
        uint32_t e = 113;
        while (!(mantissa & 0x400u)) {
            mantissa <<= 1;
            e--;
        }
        bits = sign | (e << 23) | ((mantissa & 0x3ffu) << 13);
    }
    float result;
    memcpy(&result, &bits, sizeof result);
    return result;
}

m2_f16 m2_f32_to_f16(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    const uint16_t sign = (uint16_t)((bits >> 16) & 0x8000u);
    const uint32_t magnitude = bits & 0x7fffffffu;
    if (magnitude > 0x7f800000u) return (m2_f16){ (uint16_t)(sign | 0x7e00u) };
    if (magnitude >= 0x477ff000u) return (m2_f16){ (uint16_t)(sign | 0x7c00u) };
    if (magnitude < 0x33000001u) return (m2_f16){ sign };
    const uint32_t exponent = magnitude >> 23;
    uint32_t mantissa = (magnitude & 0x7fffffu) | 0x800000u;
    /* Normal results drop 13 bits, subnormal ones more; the exponent then comes out as 0. */
    const uint32_t drop = exponent >= 113 ? 13 : 126 - exponent;
    const uint32_t base = exponent >= 113 ? (exponent - 113) << 10 : 0;
    const uint32_t half = 1u << (drop - 1);
    const uint32_t rest = mantissa & ((1u << drop) - 1u);
    mantissa >>= drop;
    if (rest > half || (rest == half && (mantissa & 1u))) mantissa++;
    return (m2_f16){ (uint16_t)(sign | (base + mantissa)) };
}

/* |value| in a small float type of `n_mantissa` bits whose exponent has `bias`, not yet judged against
 * the largest: the bits of an unbounded exponent, to nearest, ties to even.  Finite values only. */
static uint32_t round_small_float(float value, int n_mantissa, int bias)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    bits &= 0x7fffffffu;
    const int exponent = (int)(bits >> 23) - 127; /* f32 subnormals are below every half step */
    const uint32_t mantissa = (bits & 0x7fffffu) | (bits >> 23 ? 0x800000u : 0u);
    const int lowest = 1 - bias; /* exponent of subnormals */
    int drop = 23 - n_mantissa;
    if (exponent < lowest) drop += lowest - exponent;
    if (drop > 25) return 0;
    const uint32_t half = 1u << (drop - 1), rest = mantissa & ((1u << drop) - 1u);
    uint32_t kept = mantissa >> drop;
    if (rest > half || (rest == half && (kept & 1u))) kept++;
    /* A carry out of the mantissa lands in the exponent, as it should. */
    const uint32_t base = exponent < lowest ? 0 : (uint32_t)(exponent - lowest) << n_mantissa;
    return base + kept;
}

static uint8_t to_small_float(float value, int n_mantissa, int bias, uint32_t largest,
                              uint8_t beyond, uint8_t nan)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    const uint8_t sign = (uint8_t)(bits >> 24) & 0x80u;
    bits &= 0x7fffffffu;
    if (bits > 0x7f800000u) return sign | nan;
    if (bits == 0x7f800000u) return sign | beyond;
    const uint32_t rounded = round_small_float(value, n_mantissa, bias);
    return sign | (rounded > largest ? beyond : (uint8_t)rounded);
}

m2_f8_e4m3 m2_f32_to_f8_e4m3(float value)
{
    return (m2_f8_e4m3){ to_small_float(value, 3, 7, 0x7e, 0x7f, 0x7f) };
}

m2_f8_e4m3 m2_f32_to_f8_e4m3_sat(float value)
{
    return (m2_f8_e4m3){ to_small_float(value, 3, 7, 0x7e, 0x7e, 0x7f) };
}

m2_f8_e5m2 m2_f32_to_f8_e5m2(float value)
{
    return (m2_f8_e5m2){ to_small_float(value, 2, 15, 0x7b, 0x7c, 0x7f) };
}

m2_f8_e5m2 m2_f32_to_f8_e5m2_sat(float value)
{
    return (m2_f8_e5m2){ to_small_float(value, 2, 15, 0x7b, 0x7b, 0x7f) };
}

float m2_f8_e4m3_to_f32(m2_f8_e4m3 value)
{
    const uint32_t sign = (uint32_t)(value.bits & 0x80u) << 24;
    const uint32_t exponent = (value.bits >> 3) & 15u, mantissa = value.bits & 7u;
    float magnitude;
    if (exponent == 15 && mantissa == 7) {
        const uint32_t nan = sign | 0x7fc00000u;
        memcpy(&magnitude, &nan, sizeof magnitude);
        return magnitude;
    }
    if (exponent == 0) {
        magnitude = (float)mantissa * 0x1p-9f;
        return sign ? -magnitude : magnitude;
    }
    const uint32_t bits = sign | (exponent + 120u) << 23 | mantissa << 20;
    memcpy(&magnitude, &bits, sizeof magnitude);
    return magnitude;
}

float m2_f8_e5m2_to_f32(m2_f8_e5m2 value)
{
    return m2_f16_to_f32((m2_f16){ (uint16_t)(value.bits << 8) });
}

/* f64 to f32 "to odd": a result that is not exact ends in a one, so that rounding it once more, to
 * fewer bits, gives what rounding the f64 there at once would give. */
static float narrow_to_odd(double value)
{
    const float nearest = (float)value;
    uint32_t bits;
    memcpy(&bits, &nearest, sizeof bits);
    if (!(fabs(value) <= 0x1.fffffep127) || (double)nearest == value) return nearest;
    /* Towards zero first, then odd. */
    if (fabs((double)nearest) > fabs(value)) bits--;
    bits |= 1u;
    float odd;
    memcpy(&odd, &bits, sizeof odd);
    return odd;
}

/* The same for an i64 that may be no f64: 52 bits are kept, the last one says if any were lost. */
static double i64_to_odd(int64_t value)
{
    const int64_t exact = (int64_t)1 << 53;
    if (value >= -exact && value <= exact) return (double)value;
    const int64_t lost = value & 0x7ff;
    return (double)((value & ~(int64_t)0x7ff) | (lost ? 0x800 : 0));
}

static double load_element(const void *from, m2_dtype dtype, int64_t i)
{
    switch (dtype) {
    case M2_F32:
        return ((const float *)from)[i];
    case M2_BF16:
        return m2_bf16_to_f32(((const m2_bf16 *)from)[i]);
    case M2_F16:
        return m2_f16_to_f32(((const m2_f16 *)from)[i]);
    case M2_F64:
        return ((const double *)from)[i];
    case M2_I64:
        return (double)((const int64_t *)from)[i];
    case M2_I32:
        return ((const int32_t *)from)[i];
    case M2_I16:
        return ((const int16_t *)from)[i];
    case M2_I8:
        return ((const int8_t *)from)[i];
    default:
        return ((const uint8_t *)from)[i];
    }
}

static void store_element(void *to, m2_dtype dtype, int64_t i, double value)
{
    switch (dtype) {
    case M2_F32:
        ((float *)to)[i] = (float)value;
        break;
    case M2_BF16:
        ((m2_bf16 *)to)[i] = m2_f32_to_bf16(narrow_to_odd(value));
        break;
    case M2_F16:
        ((m2_f16 *)to)[i] = m2_f32_to_f16(narrow_to_odd(value));
        break;
    case M2_F64:
        ((double *)to)[i] = value;
        break;
    case M2_I64:
        ((int64_t *)to)[i] = (int64_t)value;
        break;
    case M2_I32:
        ((int32_t *)to)[i] = (int32_t)value;
        break;
    case M2_I16:
        ((int16_t *)to)[i] = (int16_t)value;
        break;
    case M2_I8:
        ((int8_t *)to)[i] = (int8_t)value;
        break;
    default:
        ((uint8_t *)to)[i] = (uint8_t)value;
        break;
    }
}

void m2_convert(const void *from, m2_dtype from_dtype, void *to, m2_dtype to_dtype, int64_t n)
{
    if (from_dtype == to_dtype) {
        memmove(to, from, (size_t)n * m2_dtype_bytes(to_dtype));
        return;
    }
    if (from_dtype == M2_F32 && to_dtype == M2_BF16) {
        for (int64_t i = 0; i < n; i++)
            ((m2_bf16 *)to)[i] = m2_f32_to_bf16(((const float *)from)[i]);
        return;
    }
    if (from_dtype == M2_BF16 && to_dtype == M2_F32) {
        for (int64_t i = 0; i < n; i++)
            ((float *)to)[i] = m2_bf16_to_f32(((const m2_bf16 *)from)[i]);
        return;
    }
    if (from_dtype == M2_I64 && to_dtype != M2_F64) {
        for (int64_t i = 0; i < n; i++)
            store_element(to, to_dtype, i, i64_to_odd(((const int64_t *)from)[i]));
        return;
    }
    for (int64_t i = 0; i < n; i++)
        store_element(to, to_dtype, i, load_element(from, from_dtype, i));
}
