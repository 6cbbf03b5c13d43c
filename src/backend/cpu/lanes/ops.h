/* ops.h - the operators that this folder makes faster, one list for every instruction set. */
#ifndef M2_BACKEND_CPU_LANES_OPS_H
#define M2_BACKEND_CPU_LANES_OPS_H

#include "backend/cpu/lanes/lanes.h"
#include "backend/cpu/ref/ref.h"
#include "backend/ops.h"

#define M2_LANES_OPS(X)                                                                            \
    M2_LANES_TEXT_OPS(X) M2_LANES_DECODER_OPS(X)                                                   \
    X(linear) X(attention) X(moe_logits) X(moe_ffn) X(conv) X(conv_transpose)
#define M2_LANES_TEXT_OPS(X)                                                                       \
    X(text_qk_norm_rope) X(text_gate) X(silu_mul) X(causal_conv_silu) X(gated_delta_rule)          \
    X(gated_rms_norm)
#define M2_LANES_DECODER_OPS(X) X(rms_act) X(frames_u8) X(snake)

#define M2_LANES_DECLARE(name)                                                                     \
    void M2_LANES_NAME(name)(const m2_ops *ops, const m2_##name##_args *args);
M2_LANES_OPS(M2_LANES_DECLARE)
#undef M2_LANES_DECLARE

#endif
