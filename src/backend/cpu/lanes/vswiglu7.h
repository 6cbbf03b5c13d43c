/* vswiglu7.h - cpu/ref/swiglu7.h for sixteen lanes. */
#ifndef M2_BACKEND_CPU_LANES_VSWIGLU7_H
#define M2_BACKEND_CPU_LANES_VSWIGLU7_H

#include "backend/cpu/lanes/vmath.h"

static inline v16 v_swiglu7(v16 gate, v16 linear)
{
    const v16 g = v_min(v_set1(7.0f), gate);
    const v16 l = v_max(v_set1(-7.0f), v_min(v_set1(7.0f), linear));
    return v_mul(v_mul(g, v_sigmoid(v_mul(v_set1(1.702f), g))), v_add(l, v_set1(1.0f)));
}

#endif
