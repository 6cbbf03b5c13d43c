/* dtype.h - element types, and the conversions between them.
 *
 * Storage types are structs of their own (m2_bf16, m2_f16), so that no integer is taken for one.
 * Narrowing rounds to nearest, ties to even; NaN stays NaN.  f32 denormals are kept: whether
 * arithmetic flushes them is the backend's business.
 */
#ifndef M2_CORE_DTYPE_H
#define M2_CORE_DTYPE_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

typedef enum m2_dtype {
    M2_F32 = 0,
    M2_BF16,
    M2_F16,
    M2_F64,
    M2_I64,
    M2_I32,
    M2_I16,
    M2_I8,
    M2_U8,
    M2_BOOL,
    M2_DTYPE_COUNT
} m2_dtype;

typedef struct m2_bf16 {
    uint16_t bits;
} m2_bf16;

typedef struct m2_f16 {
    uint16_t bits;
} m2_f16;

/* Four bits of exponent (bias 7), three of mantissa: no infinity, one NaN of each sign (0x7f, 0xff),
 * largest 448. */
typedef struct m2_f8_e4m3 {
    uint8_t bits;
} m2_f8_e4m3;

/* Five bits of exponent (bias 15), two of mantissa: the top half of an f16, largest 57344. */
typedef struct m2_f8_e5m2 {
    uint8_t bits;
} m2_f8_e5m2;

size_t m2_dtype_bytes(m2_dtype dtype);
/* As safetensors spells it: "F32", "BF16" ... */
const char *m2_dtype_name(m2_dtype dtype);
/* Gives 1 and the type for a safetensors spelling, 0 for an unknown one. */
int m2_dtype_parse(const char *name, m2_dtype *dtype_out);

static inline float m2_bf16_to_f32(m2_bf16 value)
{
    const uint32_t bits = (uint32_t)value.bits << 16;
    float result;
    memcpy(&result, &bits, sizeof result);
    return result;
}

static inline m2_bf16 m2_f32_to_bf16(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    if ((bits & 0x7fffffffu) > 0x7f800000u) return (m2_bf16){ (uint16_t)((bits >> 16) | 0x0040u) };
    return (m2_bf16){ (uint16_t)((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16) };
}

/* Round to bf16 and widen again. */
static inline float m2_round_bf16(float value)
{
    return m2_bf16_to_f32(m2_f32_to_bf16(value));
}

float m2_f16_to_f32(m2_f16 value);
m2_f16 m2_f32_to_f16(float value);

float m2_f8_e4m3_to_f32(m2_f8_e4m3 value);
float m2_f8_e5m2_to_f32(m2_f8_e5m2 value);
/* To nearest, ties to even.  What rounds to more than the largest value becomes NaN in e4m3, which
 * has no infinity, and infinity in e5m2: as PyTorch's .to() does. */
m2_f8_e4m3 m2_f32_to_f8_e4m3(float value);
m2_f8_e5m2 m2_f32_to_f8_e5m2(float value);
/* The same, but what is beyond, infinities too, becomes the largest value of its sign; NaN stays. */
m2_f8_e4m3 m2_f32_to_f8_e4m3_sat(float value);
m2_f8_e5m2 m2_f32_to_f8_e5m2_sat(float value);

/* Convert n elements; `from` and `to` must not overlap unless equal types.  Integers convert by
 * value (to an integer type only if it fits is the caller's concern); f64 and integers round once,
 * whatever the type they go to. */
void m2_convert(const void *from, m2_dtype from_dtype, void *to, m2_dtype to_dtype, int64_t n);

#endif
