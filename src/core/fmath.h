/* fmath.h - exp, log, sin, cos and their kin in f32, of our own.
 *
 * Only sums, products, FMAs, divisions and bit operations, each correctly rounded: so a result has
 * the same bits with every compiler and library, and the versions of 16 lanes (cpu/lanes) follow
 * step by step.  Choices are written as `c ? a : b` that a vector does with a select; the one true
 * branch (angles beyond M2_ANGLE_FAST_MAX) is taken lane by lane there.
 *
 * Error   in units of the last place of the exact result, measured over every 61st f32 of the
 *         useful range (tests/core/test_fmath.c): exp, expm1, log, log1p, sin, cos below 2 (at
 *         most 1.6 seen), sigmoid, silu, tanh, softplus below 3 (2.6).
 * Denormals  arguments below 2^-126 are zero to a caller that flushes denormals and may be zero to
 *         one that does not; e^x below 2^-125.5 is zero.  NaN gives NaN; sin(-0) is +0.
 * Source  argument reduction after Cody and Waite; log after fdlibm's scheme; polynomials by a
 *         Remez exchange of our own, coefficients rounded to f32.
 */
#ifndef M2_CORE_FMATH_H
#define M2_CORE_FMATH_H

#include <math.h>
#include <stdint.h>
#include <string.h>

/* Adding and taking away 1.5 * 2^23 rounds a small f32 to a whole number, which is then found in
 * the low bits of the sum. */
#define M2_ROUND_MAGIC 0x1.8p23f

/* exp: r = x - n ln 2, |r| <= ln 2 / 2, e^r = 1 + r + r^2 P(r) */
#define M2_LOG2_E  0x1.715476p+0f
#define M2_LN2_HI  0x1.62e430p-1f
#define M2_LN2_LO  (-0x1.05c610p-29f)
#define M2_EXP_P0  0x1.fffffcp-2f
#define M2_EXP_P1  0x1.555490p-3f
#define M2_EXP_P2  0x1.5558f8p-5f
#define M2_EXP_P3  0x1.123ae0p-7f
#define M2_EXP_P4  0x1.6a22c0p-10f
#define M2_EXP_MIN (-87.3f) /* n = -126                */
#define M2_EXP_MAX 89.0f    /* n = 128, e^89 overflows */

/* log: m = 1 + f in [sqrt 1/2, sqrt 2), s = f / (2 + f), ln m = f - f^2/2 + s (f^2/2 + s^2 L(s^2)) */
#define M2_LOG_L0 0x1.555554p-1f
#define M2_LOG_L1 0x1.999a7ap-2f
#define M2_LOG_L2 0x1.24390ep-2f
#define M2_LOG_L3 0x1.e2f17ap-3f

/* sin, cos: r = x - n pi / 2, |r| <= 0.80 */
#define M2_2_PI              0x1.45f306p-1f
#define M2_PI_2_A            0x1.921fb6p+0f
#define M2_PI_2_B            (-0x1.777a5cp-25f)
#define M2_PI_2_C            (-0x1.ee59dap-50f)
#define M2_SIN_S0            (-0x1.555544p-3f)
#define M2_SIN_S1            0x1.1106aap-7f
#define M2_SIN_S2            (-0x1.990f88p-13f)
#define M2_COS_C0            0x1.55554ap-5f
#define M2_COS_C1            (-0x1.6c0bc8p-10f)
#define M2_COS_C2            0x1.99c93ep-16f
#define M2_ANGLE_FAST_MAX    0x1p17f /* up to here the f32 reduction is exact enough   */
#define M2_ANGLE_MEANING_MAX 0x1p48f /* neighbours are 2^25 apart: no angle is meant   */

static inline uint32_t m2_f32_bits(float x)
{
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return bits;
}

static inline float m2_f32_from_bits(uint32_t bits)
{
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

/* e^r - 1 for the reduced r */
static inline float m2_exp_poly(float r)
{
    float p = fmaf(M2_EXP_P4, r, M2_EXP_P3);
    p = fmaf(p, r, M2_EXP_P2);
    p = fmaf(p, r, M2_EXP_P1);
    p = fmaf(p, r, M2_EXP_P0);
    return fmaf(p, r * r, r);
}

static inline float m2_expf(float x)
{
    const float low = x < M2_EXP_MIN ? M2_EXP_MIN : x;
    const float clamped = low > M2_EXP_MAX ? M2_EXP_MAX : low;
    const float shifted = fmaf(clamped, M2_LOG2_E, M2_ROUND_MAGIC);
    const float n = shifted - M2_ROUND_MAGIC;
    const float r = fmaf(n, -M2_LN2_LO, fmaf(n, -M2_LN2_HI, clamped));
    /* n runs from -126 to 128, so e^r is doubled and the scale is 2^(n-1); its exponent field
     * is 0 for n = -126: that gives the zero of every smaller result. */
    const float scale = m2_f32_from_bits((m2_f32_bits(shifted) + 126u) << 23);
    return fmaf(m2_exp_poly(r), 2.0f, 2.0f) * scale;
}

static inline float m2_expm1f(float x)
{
    const float low = x < -30.0f ? -30.0f : x;
    const float clamped = low > M2_EXP_MAX ? M2_EXP_MAX : low;
    const float shifted = fmaf(clamped, M2_LOG2_E, M2_ROUND_MAGIC);
    const float n = shifted - M2_ROUND_MAGIC;
    const float r = fmaf(n, -M2_LN2_LO, fmaf(n, -M2_LN2_HI, clamped));
    const float half_scale = m2_f32_from_bits((m2_f32_bits(shifted) + 126u) << 23); /* 2^(n-1) */
    const float half = fmaf(half_scale, m2_exp_poly(r), half_scale - 0.5f);
    const float result = half + half;
    return x == 0.0f ? x : result; /* keeps -0 */
}

static inline float m2_logf(float x)
{
    const float normal = x >= 0x1p-126f ? x : 0x1p-126f;
    const uint32_t bits = m2_f32_bits(normal) - 0x3f3504f3u; /* below sqrt 1/2 */
    const uint32_t fraction = (bits & 0x007fffffu) + 0x3f3504f3u;
    const float e = (float)((int32_t)bits >> 23);
    const float f = m2_f32_from_bits(fraction) - 1.0f;
    const float s = f / (2.0f + f);
    const float z = s * s;
    float l = fmaf(M2_LOG_L3, z, M2_LOG_L2);
    l = fmaf(l, z, M2_LOG_L1);
    l = fmaf(l, z, M2_LOG_L0);
    const float half_square = 0.5f * f * f;
    const float rest = fmaf(s, fmaf(z, l, half_square), e * M2_LN2_LO);
    const float result = fmaf(e, M2_LN2_HI, f - (half_square - rest));
    const float positive = x == INFINITY ? x : result;
    const float any = x < 0x1p-126f ? (x < 0.0f ? NAN : -INFINITY) : positive;
    return x != x ? x : any;
}

static inline float m2_log1pf(float x)
{
    const float u = 1.0f + x;
    const float correction = (x - (u - 1.0f)) / u; /* what the rounding of u lost */
    const float log_u = m2_logf(u);
    return u == INFINITY || !(u > 0.0f) ? log_u : log_u + correction;
}

/* The reduced angle; *quadrant_out counts quarter turns, its low two bits are good. */
static inline float m2_angle_reduce(float x, uint32_t *quadrant_out)
{
    if (!(fabsf(x) > M2_ANGLE_FAST_MAX)) {
        const float shifted = fmaf(x, M2_2_PI, M2_ROUND_MAGIC);
        const float n = shifted - M2_ROUND_MAGIC;
        *quadrant_out = m2_f32_bits(shifted);
        return fmaf(n, -M2_PI_2_C, fmaf(n, -M2_PI_2_B, fmaf(n, -M2_PI_2_A, x)));
    }
    if (!(fabsf(x) <= M2_ANGLE_MEANING_MAX)) {
        *quadrant_out = 0;
        return x - x == 0.0f ? 0.0f : NAN; /* infinities have no sine */
    }
    const double shifted = fma((double)x, 0x1.45f306dc9c883p-1, 0x1.8p52);
    const double n = shifted - 0x1.8p52;
    uint64_t bits;
    memcpy(&bits, &shifted, sizeof bits);
    *quadrant_out = (uint32_t)bits;
    return (float)fma(n, -0x1.1a62633145c07p-54, fma(n, -0x1.921fb54442d18p+0, (double)x));
}

static inline float m2_sin_poly(float r)
{
    const float z = r * r;
    const float s = fmaf(fmaf(M2_SIN_S2, z, M2_SIN_S1), z, M2_SIN_S0);
    return fmaf(s, z * r, r);
}

static inline float m2_cos_poly(float r)
{
    const float z = r * r;
    const float c = fmaf(fmaf(M2_COS_C2, z, M2_COS_C1), z, M2_COS_C0);
    return fmaf(c, z * z, fmaf(z, -0.5f, 1.0f));
}

/* sin of r plus `quadrant` quarter turns */
static inline float m2_sin_quadrant(float r, uint32_t quadrant)
{
    const float value = quadrant & 1u ? m2_cos_poly(r) : m2_sin_poly(r);
    return m2_f32_from_bits(m2_f32_bits(value) ^ ((quadrant & 2u) << 30));
}

static inline float m2_sinf(float x)
{
    uint32_t quadrant;
    const float r = m2_angle_reduce(x, &quadrant);
    return m2_sin_quadrant(r, quadrant);
}

static inline float m2_cosf(float x)
{
    uint32_t quadrant;
    const float r = m2_angle_reduce(x, &quadrant);
    return m2_sin_quadrant(r, quadrant + 1u);
}

static inline float m2_sigmoidf(float x)
{
    return 1.0f / (1.0f + m2_expf(-x));
}

static inline float m2_siluf(float x)
{
    return x / (1.0f + m2_expf(-x));
}

static inline float m2_tanhf(float x)
{
    const float t = m2_expm1f(2.0f * fabsf(x)); /* at most 2^128, then infinite */
    const float ratio = t > 0x1p26f ? 1.0f : t / (t + 2.0f);
    return copysignf(ratio, x);
}

/* ln(1 + e^x) */
static inline float m2_softplusf(float x)
{
    const float small = m2_log1pf(m2_expf(-fabsf(x)));
    return (x > 0.0f ? x : 0.0f) + (x != x ? x : small);
}

#endif
