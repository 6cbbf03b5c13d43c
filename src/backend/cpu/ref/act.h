/* act.h - roundings inside operators whose activations are bf16 or f32: where the reference rounds
 * an intermediate value to the activations' type, f32 runs (for judging) do not round at all. */
#ifndef M2_BACKEND_CPU_REF_ACT_H
#define M2_BACKEND_CPU_REF_ACT_H

#include "backend/cpu/ref/reduce.h"

static inline float m2_ref_round(m2_dtype dtype, float value)
{
    return dtype == M2_BF16 ? m2_round_bf16(value) : value;
}

#endif
