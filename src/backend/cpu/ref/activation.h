/* activation.h - the activations of ops.h, one value at a time in f32. */
#ifndef M2_BACKEND_CPU_REF_ACTIVATION_H
#define M2_BACKEND_CPU_REF_ACTIVATION_H

#include "backend/ops.h"
#include "core/fmath.h"

static inline float activation_of(m2_activation activation, float x)
{
    switch (activation) {
    case M2_ACT_SILU:
        return m2_siluf(x);
    case M2_ACT_RELU:
        return x > 0.0f || x != x ? x : 0.0f; /* a NaN must be seen */
    case M2_ACT_ELU:
        return x > 0.0f ? x : m2_expm1f(x);
    case M2_ACT_TANH:
        return m2_tanhf(x);
    case M2_ACT_NONE:
        break;
    }
    return x;
}

#endif
