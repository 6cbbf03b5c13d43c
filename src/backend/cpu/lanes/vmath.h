/* vmath.h - core/fmath.h for sixteen lanes, step by step the same operations: the same bits. */
#ifndef M2_BACKEND_CPU_LANES_VMATH_H
#define M2_BACKEND_CPU_LANES_VMATH_H

#include "backend/cpu/lanes/lanes.h"
#include "core/fmath.h"

static inline v16 v_abs(v16 x)
{
    return v_as_float(vi_and(v_as_int(x), vi_set1(0x7fffffff)));
}

static inline v16 v_negate(v16 x)
{
    return v_as_float(vi_xor(v_as_int(x), vi_set1(INT32_MIN)));
}

static inline v16 v_exp_poly(v16 r)
{
    v16 p = v_fma(v_set1(M2_EXP_P4), r, v_set1(M2_EXP_P3));
    p = v_fma(p, r, v_set1(M2_EXP_P2));
    p = v_fma(p, r, v_set1(M2_EXP_P1));
    p = v_fma(p, r, v_set1(M2_EXP_P0));
    return v_fma(p, v_mul(r, r), r);
}

/* r of x = n ln 2 + r; *scale_out is 2^(n - 1). */
static inline v16 v_exp_reduce(v16 x, v16 *scale_out)
{
    const v16 magic = v_set1(M2_ROUND_MAGIC);
    const v16 shifted = v_fma(x, v_set1(M2_LOG2_E), magic);
    const v16 n = v_sub(shifted, magic);
    *scale_out = v_as_float(vi_shl(vi_add(v_as_int(shifted), vi_set1(126)), 23));
    return v_fma(n, v_set1(-M2_LN2_LO), v_fma(n, v_set1(-M2_LN2_HI), x));
}

static inline v16 v_exp(v16 x)
{
    const v16 low = v_max(v_set1(M2_EXP_MIN), x);
    v16 scale;
    const v16 r = v_exp_reduce(v_min(v_set1(M2_EXP_MAX), low), &scale);
    return v_mul(v_fma(v_exp_poly(r), v_set1(2.0f), v_set1(2.0f)), scale);
}

/* v_exp where x <= 89 or x is NaN: the same value. */
static inline v16 v_exp_small(v16 x)
{
    v16 scale;
    const v16 r = v_exp_reduce(v_max(v_set1(M2_EXP_MIN), x), &scale);
    return v_mul(v_fma(v_exp_poly(r), v_set1(2.0f), v_set1(2.0f)), scale);
}

static inline v16 v_expm1(v16 x)
{
    const v16 low = v_max(v_set1(-30.0f), x);
    v16 half_scale;
    const v16 r = v_exp_reduce(v_min(v_set1(M2_EXP_MAX), low), &half_scale);
    const v16 half = v_fma(half_scale, v_exp_poly(r), v_sub(half_scale, v_set1(0.5f)));
    return v_select(vm_equal(x, v_zero()), x, v_add(half, half));
}

static inline v16 v_sigmoid(v16 x)
{
    return v_div(v_set1(1.0f), v_add(v_set1(1.0f), v_exp(v_negate(x))));
}

static inline v16 v_silu(v16 x)
{
    return v_div(x, v_add(v_set1(1.0f), v_exp(v_negate(x))));
}

static inline v16 v_tanh(v16 x)
{
    const v16 t = v_expm1(v_mul(v_set1(2.0f), v_abs(x)));
    const v16 ratio =
        v_select(vm_less(v_set1(0x1p26f), t), v_set1(1.0f), v_div(t, v_add(t, v_set1(2.0f))));
    const vi16 sign = vi_and(v_as_int(x), vi_set1(INT32_MIN));
    return v_as_float(vi_or(v_as_int(v_abs(ratio)), sign));
}

static inline v16 v_sin_large(v16 x)
{
    float lane[LANES];
    v_store(lane, x);
    for (int i = 0; i < LANES; i++) lane[i] = m2_sinf(lane[i]);
    return v_load(lane);
}

static inline v16 v_sin(v16 x)
{
    if (vm_any(vm_less(v_set1(M2_ANGLE_FAST_MAX), v_abs(x)))) return v_sin_large(x);
    const v16 magic = v_set1(M2_ROUND_MAGIC);
    const v16 shifted = v_fma(x, v_set1(M2_2_PI), magic);
    const v16 n = v_sub(shifted, magic);
    const vi16 quadrant = v_as_int(shifted);
    const v16 r =
        v_fma(n, v_set1(-M2_PI_2_C), v_fma(n, v_set1(-M2_PI_2_B), v_fma(n, v_set1(-M2_PI_2_A), x)));
    const v16 z = v_mul(r, r);
    const v16 s = v_fma(v_fma(v_set1(M2_SIN_S2), z, v_set1(M2_SIN_S1)), z, v_set1(M2_SIN_S0));
    const v16 c = v_fma(v_fma(v_set1(M2_COS_C2), z, v_set1(M2_COS_C1)), z, v_set1(M2_COS_C0));
    const v16 sine = v_fma(s, v_mul(z, r), r);
    const v16 cosine = v_fma(c, v_mul(z, z), v_fma(z, v_set1(-0.5f), v_set1(1.0f)));
    const v16 value = v_select(vm_any_bit(quadrant, vi_set1(1)), cosine, sine);
    return v_as_float(vi_xor(v_as_int(value), vi_shl(vi_and(quadrant, vi_set1(2)), 30)));
}

#endif
