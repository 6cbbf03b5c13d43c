/* vactivation.h - the activations of ops.h for sixteen lanes. */
#ifndef M2_BACKEND_CPU_LANES_VACTIVATION_H
#define M2_BACKEND_CPU_LANES_VACTIVATION_H

#include "backend/cpu/lanes/vmath.h"
#include "backend/ops.h"

static inline v16 v_activation(m2_activation activation, v16 x)
{
    switch (activation) {
    case M2_ACT_SILU:
        return v_silu(x);
    case M2_ACT_RELU:
        return v_select(vm_less(v_zero(), x), x, v_select(vm_unordered(x, x), x, v_zero()));
    case M2_ACT_ELU:
        return v_select(vm_less(v_zero(), x), x, v_expm1(x));
    case M2_ACT_TANH:
        return v_tanh(x);
    case M2_ACT_NONE:
        break;
    }
    return x;
}

#endif
