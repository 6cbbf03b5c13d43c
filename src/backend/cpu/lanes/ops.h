/* ops.h - the operators that this folder makes faster, one list for every instruction set. */
#ifndef M2_BACKEND_CPU_LANES_OPS_H
#define M2_BACKEND_CPU_LANES_OPS_H

#include "backend/cpu/lanes/lanes.h"
#include "backend/cpu/ref/ref.h"
#include "backend/ops.h"

/* clang-format off */
#define M2_LANES_OPS(X)                                                                            \
    X(linear) X(attention) X(conv) X(conv_transpose) X(add) X(activate) X(rms_norm)                \
    M2_LANES_DIT_OPS(X) M2_LANES_TEXT_OPS(X) M2_LANES_DECODER_OPS(X)
#define M2_LANES_DIT_OPS(X)                                                                        \
    X(mhc_coefficients) X(mhc_read) X(mhc_write) X(qk_norm_rope) X(attention_gate) X(swiglu7)      \
    X(moe_logits) X(moe_ffn)
#define M2_LANES_TEXT_OPS(X)                                                                       \
    X(text_qk_norm_rope) X(text_gate) X(silu_mul) X(causal_conv_silu) X(gated_delta_rule)          \
    X(gated_rms_norm)
#define M2_LANES_DECODER_OPS(X) X(rms_act) X(frames_u8) X(snake)
/* clang-format on */

#define M2_LANES_DECLARE(name)                                                                     \
    void M2_LANES_NAME(name)(const m2_ops *ops, const m2_##name##_args *args);
M2_LANES_OPS(M2_LANES_DECLARE)
#undef M2_LANES_DECLARE

#endif
