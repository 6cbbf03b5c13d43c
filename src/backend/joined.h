/* joined.h - what a joined operator is: its two operators, one after the other, by the table.
 *
 * The definition on the CPU, and on a GPU where no kernel does both in one pass. */
#ifndef M2_BACKEND_JOINED_H
#define M2_BACKEND_JOINED_H

#include "backend/ops.h"

static inline void m2_joined_mhc_open(const m2_ops *ops, const m2_mhc_open_args *args)
{
    m2_mhc_read_args read;
    read.s = args->coefficients.s;
    read.h_pre = args->coefficients.h_pre;
    read.x = args->x;
    ops->mhc_coefficients(ops, &args->coefficients);
    ops->mhc_read(ops, &read);
}

static inline void m2_joined_mhc_write_open(const m2_ops *ops, const m2_mhc_write_open_args *args)
{
    ops->mhc_write(ops, &args->write);
    ops->mhc_open(ops, &args->open);
}

static inline void m2_joined_linear_swiglu7(const m2_ops *ops, const m2_linear_swiglu7_args *args)
{
    m2_swiglu7_args act;
    act.x = args->linear.y;
    act.y = args->y;
    ops->linear(ops, &args->linear);
    ops->swiglu7(ops, &act);
}

static inline void m2_joined_linear_qk_norm_rope(const m2_ops *ops,
                                                 const m2_linear_qk_norm_rope_args *args)
{
    ops->linear(ops, &args->linear);
    ops->qk_norm_rope(ops, &args->heads);
}

static inline void m2_joined_linear_add(const m2_ops *ops, const m2_linear_add_args *args)
{
    ops->linear(ops, &args->linear);
    ops->add(ops, &args->add);
}

static inline void m2_joined_attention_gated(const m2_ops *ops, const m2_attention_gated_args *args)
{
    ops->attention(ops, &args->attention);
    ops->attention_gate(ops, &args->gate);
}

#endif
