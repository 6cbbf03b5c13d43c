#include "core/dtype.h"

static const struct {
    const char *name;
    size_t bytes;
} dtypes[M2_DTYPE_COUNT] = {
    [M2_F32] = { "F32", 4 }, [M2_BF16] = { "BF16", 2 }, [M2_F16] = { "F16", 2 },
    [M2_F64] = { "F64", 8 }, [M2_I64] = { "I64", 8 },   [M2_I32] = { "I32", 4 },
    [M2_I16] = { "I16", 2 }, [M2_I8] = { "I8", 1 },     [M2_U8] = { "U8", 1 },
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
        ((m2_bf16 *)to)[i] = m2_f32_to_bf16((float)value);
        break;
    case M2_F16:
        ((m2_f16 *)to)[i] = m2_f32_to_f16((float)value);
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
        for (int64_t i = 0; i < n; i++) ((m2_bf16 *)to)[i] = m2_f32_to_bf16(((const float *)from)[i]);
        return;
    }
    if (from_dtype == M2_BF16 && to_dtype == M2_F32) {
        for (int64_t i = 0; i < n; i++) ((float *)to)[i] = m2_bf16_to_f32(((const m2_bf16 *)from)[i]);
        return;
    }
    for (int64_t i = 0; i < n; i++) store_element(to, to_dtype, i, load_element(from, from_dtype, i));
}
