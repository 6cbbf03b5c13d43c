/* simt_fmath.cuh - exp and sigmoid of core/fmath.h on a device, step by step: the same bits, so that
 * a choice by score falls as on the CPU.
 *
 * Intrinsics name the rounding of each step, since a compiler may otherwise contract a product and
 * a sum. */
#ifndef M2_BACKEND_GPU_KERNELS_SIMT_FMATH_CUH
#define M2_BACKEND_GPU_KERNELS_SIMT_FMATH_CUH

#include "backend/gpu/launch.h"
#include "core/fmath.h"

static __device__ __forceinline__ float simt_fmath_exp(float x)
{
    const float low = x < M2_EXP_MIN ? M2_EXP_MIN : x;
    const float clamped = low > M2_EXP_MAX ? M2_EXP_MAX : low;
    const float shifted = fmaf(clamped, M2_LOG2_E, M2_ROUND_MAGIC);
    const float n = __fadd_rn(shifted, -M2_ROUND_MAGIC);
    const float r = fmaf(n, -M2_LN2_LO, fmaf(n, -M2_LN2_HI, clamped));
    const float scale = __uint_as_float((__float_as_uint(shifted) + 126u) << 23);
    float p = fmaf(M2_EXP_P4, r, M2_EXP_P3);
    p = fmaf(p, r, M2_EXP_P2);
    p = fmaf(p, r, M2_EXP_P1);
    p = fmaf(p, r, M2_EXP_P0);
    p = fmaf(p, __fmul_rn(r, r), r);
    return __fmul_rn(fmaf(p, 2.0f, 2.0f), scale);
}

/* One step of Newton's takes the reciprocal of a number above 1 to the correctly rounded one.  The CPU
 * flushes denormals, so a score below 2^-126 is zero. */
static __device__ __forceinline__ float simt_fmath_sigmoid(float x)
{
    const float y = __fadd_rn(1.0f, simt_fmath_exp(-x)), r = gpu_rcp(y);
    const float score = fmaf(r, -fmaf(y, r, -1.0f), r);
    return y > 0x1p126f ? 0.0f : score;
}

#endif
