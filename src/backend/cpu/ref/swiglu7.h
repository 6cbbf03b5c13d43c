/* swiglu7.h - the activation that the dense MLP and every expert share. */
#ifndef M2_BACKEND_CPU_REF_SWIGLU7_H
#define M2_BACKEND_CPU_REF_SWIGLU7_H

#include "core/fmath.h"

/* (g * sigmoid(1.702 g)) * (l + 1), g cut at +7, l at -7 and +7; NaN stays NaN. */
static inline float m2_ref_swiglu7_of(float gate, float linear)
{
    gate = gate > 7.0f ? 7.0f : gate;
    linear = linear > 7.0f ? 7.0f : linear;
    linear = linear < -7.0f ? -7.0f : linear;
    return (gate * m2_sigmoidf(1.702f * gate)) * (linear + 1.0f);
}

#endif
