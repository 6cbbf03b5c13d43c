#include "support/op_fields.h"

#include <string.h>

#define IN(op, field)                                                                              \
    {                                                                                              \
#field, offsetof(m2_##op##_args, field), M2_FIELD_IN, 0                                    \
    }
#define OUT(op, field)                                                                             \
    {                                                                                              \
#field, offsetof(m2_##op##_args, field), M2_FIELD_OUT, 0                                   \
    }
#define INOUT(op, field)                                                                           \
    {                                                                                              \
#field, offsetof(m2_##op##_args, field), M2_FIELD_INOUT, 0                                 \
    }
#define SCRATCH(op, field)                                                                         \
    {                                                                                              \
#field, offsetof(m2_##op##_args, field), M2_FIELD_SCRATCH, 0                               \
    }
/* The same, one entry of the outermost dimension for each row. */
#define ROWS_IN(op, field)                                                                         \
    {                                                                                              \
#field, offsetof(m2_##op##_args, field), M2_FIELD_IN, 1                                    \
    }
#define ROWS_OUT(op, field)                                                                        \
    {                                                                                              \
#field, offsetof(m2_##op##_args, field), M2_FIELD_OUT, 1                                   \
    }
#define ROWS_SCRATCH(op, field)                                                                    \
    {                                                                                              \
#field, offsetof(m2_##op##_args, field), M2_FIELD_SCRATCH, 1                               \
    }
#define ROWS_INOUT(op, field)                                                                      \
    {                                                                                              \
#field, offsetof(m2_##op##_args, field), M2_FIELD_INOUT, 1                                 \
    }

#define FIELDS(op) static const m2_op_field op##_fields[]

/* clang-format off */
FIELDS(linear) = { ROWS_IN(linear, x), IN(linear, w), IN(linear, bias), ROWS_OUT(linear, y) };
FIELDS(rms_norm) = { ROWS_IN(rms_norm, x), IN(rms_norm, w), ROWS_OUT(rms_norm, y) };
FIELDS(add) = { ROWS_IN(add, a), ROWS_IN(add, b), ROWS_IN(add, c), ROWS_OUT(add, y) };
FIELDS(gather_rows) = { IN(gather_rows, x), ROWS_IN(gather_rows, idx), ROWS_OUT(gather_rows, y) };
FIELDS(convert) = { ROWS_IN(convert, x), ROWS_OUT(convert, y) };
FIELDS(transpose) = { IN(transpose, x), OUT(transpose, y) };
FIELDS(activate) = { ROWS_IN(activate, x), ROWS_OUT(activate, y) };
FIELDS(find_nonfinite) = { IN(find_nonfinite, x), INOUT(find_nonfinite, flag) };
FIELDS(attention) = { IN(attention, q), IN(attention, k), IN(attention, v), IN(attention, sinks),
                      OUT(attention, y) };
FIELDS(mean_rows) = { IN(mean_rows, x), IN(mean_rows, idx), OUT(mean_rows, y) };

FIELDS(rope_table) = { ROWS_IN(rope_table, coords), IN(rope_table, bands),
                       ROWS_OUT(rope_table, table) };
FIELDS(time_channels) = { ROWS_IN(time_channels, tau), ROWS_INOUT(time_channels, x) };
#define COEFFICIENT_FIELDS(op, prefix)                                                             \
    ROWS_IN(op, prefix s), IN(op, prefix norm), IN(op, prefix phi), IN(op, prefix alpha_pre),      \
    IN(op, prefix alpha_post), IN(op, prefix alpha_res), IN(op, prefix bias_pre),                  \
    IN(op, prefix bias_post), IN(op, prefix bias_res), ROWS_OUT(op, prefix h_pre),                 \
    ROWS_OUT(op, prefix h_post), ROWS_OUT(op, prefix h_res), ROWS_OUT(op, prefix phi_out),         \
    ROWS_OUT(op, prefix h_pre_f32), ROWS_OUT(op, prefix h_post_f32), ROWS_OUT(op, prefix h_res_f32)
FIELDS(mhc_coefficients) = { COEFFICIENT_FIELDS(mhc_coefficients, ) };
#define WRITE_FIELDS(op, prefix)                                                                   \
    ROWS_IN(op, prefix s), ROWS_IN(op, prefix h_res), ROWS_IN(op, prefix h_post),                  \
    ROWS_IN(op, prefix o), ROWS_OUT(op, prefix s_out)
FIELDS(mhc_open) = { COEFFICIENT_FIELDS(mhc_open, coefficients.), ROWS_OUT(mhc_open, x) };
FIELDS(mhc_read) = { ROWS_IN(mhc_read, s), ROWS_IN(mhc_read, h_pre), ROWS_OUT(mhc_read, x) };
FIELDS(mhc_write) = { WRITE_FIELDS(mhc_write, ) };
FIELDS(mhc_write_open) = { WRITE_FIELDS(mhc_write_open, write.),
                           COEFFICIENT_FIELDS(mhc_write_open, open.coefficients.),
                           ROWS_OUT(mhc_write_open, open.x) };
FIELDS(qk_norm_rope) = { IN(qk_norm_rope, qkv), IN(qk_norm_rope, q_norm), IN(qk_norm_rope, k_norm),
                         IN(qk_norm_rope, rope), IN(qk_norm_rope, seq), OUT(qk_norm_rope, q),
                         OUT(qk_norm_rope, k), OUT(qk_norm_rope, v) };
FIELDS(attention_gate) = { IN(attention_gate, a), IN(attention_gate, g), IN(attention_gate, seq),
                           OUT(attention_gate, y) };
FIELDS(attention_gated) = { IN(attention_gated, attention.q), IN(attention_gated, attention.k),
                            IN(attention_gated, attention.v), IN(attention_gated, attention.sinks),
                            SCRATCH(attention_gated, attention.y), SCRATCH(attention_gated, gate.a),
                            IN(attention_gated, gate.g), IN(attention_gated, gate.seq),
                            OUT(attention_gated, gate.y), IN(attention_gated, row) };
FIELDS(swiglu7) = { ROWS_IN(swiglu7, x), ROWS_OUT(swiglu7, y) };
FIELDS(linear_swiglu7) = { ROWS_IN(linear_swiglu7, linear.x), IN(linear_swiglu7, linear.w),
                           IN(linear_swiglu7, linear.bias), ROWS_SCRATCH(linear_swiglu7, linear.y),
                           ROWS_OUT(linear_swiglu7, y) };
FIELDS(linear_qk_norm_rope) = {
    IN(linear_qk_norm_rope, linear.x), IN(linear_qk_norm_rope, linear.w),
    IN(linear_qk_norm_rope, linear.bias), SCRATCH(linear_qk_norm_rope, linear.y),
    SCRATCH(linear_qk_norm_rope, heads.qkv),
    IN(linear_qk_norm_rope, heads.q_norm), IN(linear_qk_norm_rope, heads.k_norm),
    IN(linear_qk_norm_rope, heads.rope), IN(linear_qk_norm_rope, heads.seq),
    OUT(linear_qk_norm_rope, heads.q), OUT(linear_qk_norm_rope, heads.k),
    OUT(linear_qk_norm_rope, heads.v) };
FIELDS(linear_add) = { ROWS_IN(linear_add, linear.x), IN(linear_add, linear.w),
                       IN(linear_add, linear.bias), ROWS_SCRATCH(linear_add, linear.y),
                       ROWS_IN(linear_add, add.a), ROWS_IN(linear_add, add.b),
                       ROWS_SCRATCH(linear_add, add.c), ROWS_OUT(linear_add, add.y) };
FIELDS(moe_logits) = { IN(moe_logits, x), IN(moe_logits, gate), OUT(moe_logits, logits) };
FIELDS(moe_select) = { IN(moe_select, logits), IN(moe_select, bias), IN(moe_select, forced),
                       OUT(moe_select, topk_idx), OUT(moe_select, topk_prob) };
FIELDS(moe_dispatch) = { IN(moe_dispatch, topk_idx), IN(moe_dispatch, topk_prob),
                         OUT(moe_dispatch, gather_ids), OUT(moe_dispatch, probs_sorted),
                         OUT(moe_dispatch, expert_offsets), OUT(moe_dispatch, route_pos) };
FIELDS(moe_ffn) = { IN(moe_ffn, x), IN(moe_ffn, gather_ids), IN(moe_ffn, probs_sorted),
                    IN(moe_ffn, expert_offsets), IN(moe_ffn, route_pos), IN(moe_ffn, w_gate),
                    IN(moe_ffn, w_up), IN(moe_ffn, w_down), SCRATCH(moe_ffn, routes),
                    OUT(moe_ffn, y) };

FIELDS(guidance_mix) = { IN(guidance_mix, cond), IN(guidance_mix, uncond), IN(guidance_mix, scale),
                         IN(guidance_mix, step), OUT(guidance_mix, v) };
FIELDS(guidance_skim) = { IN(guidance_skim, cond), IN(guidance_skim, latent),
                          IN(guidance_skim, scale), IN(guidance_skim, step),
                          INOUT(guidance_skim, uncond) };
FIELDS(guidance_rescale) = { IN(guidance_rescale, cond), INOUT(guidance_rescale, v) };
FIELDS(unipc_step) = { IN(unipc_step, velocity), IN(unipc_step, table), IN(unipc_step, step),
                       INOUT(unipc_step, clean[0]), INOUT(unipc_step, clean[1]),
                       INOUT(unipc_step, clean[2]), INOUT(unipc_step, start),
                       INOUT(unipc_step, latent) };
_Static_assert(sizeof((m2_unipc_step_args){ 0 }.clean) == 3 * sizeof(m2_tensor *),
               "unipc_step has a field for each clean latent");
FIELDS(advance) = { INOUT(advance, counter) };

FIELDS(text_rope_table) = { ROWS_OUT(text_rope_table, cos), ROWS_OUT(text_rope_table, sin) };
FIELDS(text_qk_norm_rope) = { ROWS_IN(text_qk_norm_rope, qg), ROWS_IN(text_qk_norm_rope, k_in),
                              IN(text_qk_norm_rope, q_norm), IN(text_qk_norm_rope, k_norm),
                              ROWS_IN(text_qk_norm_rope, cos), ROWS_IN(text_qk_norm_rope, sin),
                              ROWS_OUT(text_qk_norm_rope, q), ROWS_OUT(text_qk_norm_rope, k) };
FIELDS(text_gate) = { ROWS_IN(text_gate, a), ROWS_IN(text_gate, qg), ROWS_OUT(text_gate, y) };
FIELDS(silu_mul) = { ROWS_IN(silu_mul, gate), ROWS_IN(silu_mul, up), ROWS_OUT(silu_mul, y) };
FIELDS(causal_conv_silu) = { ROWS_IN(causal_conv_silu, x), IN(causal_conv_silu, w),
                             ROWS_OUT(causal_conv_silu, y) };
FIELDS(gated_delta_rule) = { ROWS_IN(gated_delta_rule, qkv), ROWS_IN(gated_delta_rule, a),
                             ROWS_IN(gated_delta_rule, b), IN(gated_delta_rule, a_log),
                             IN(gated_delta_rule, dt_bias), SCRATCH(gated_delta_rule, scratch),
                             ROWS_OUT(gated_delta_rule, o) };
FIELDS(gated_rms_norm) = { ROWS_IN(gated_rms_norm, o), IN(gated_rms_norm, w),
                           ROWS_IN(gated_rms_norm, z), ROWS_OUT(gated_rms_norm, y) };

FIELDS(conv) = { IN(conv, x), IN(conv, w), IN(conv, bias), OUT(conv, y) };
FIELDS(conv_depthwise) = { IN(conv_depthwise, x), IN(conv_depthwise, w), IN(conv_depthwise, bias),
                           OUT(conv_depthwise, y) };
FIELDS(conv_transpose) = { IN(conv_transpose, x), IN(conv_transpose, w), IN(conv_transpose, bias),
                           OUT(conv_transpose, y) };
FIELDS(rms_act) = { ROWS_IN(rms_act, x), ROWS_OUT(rms_act, y) };
FIELDS(upsample_nearest) = { ROWS_IN(upsample_nearest, x), ROWS_OUT(upsample_nearest, y) };
FIELDS(split_time) = { IN(split_time, x), OUT(split_time, y) };
FIELDS(pixel_shuffle) = { ROWS_IN(pixel_shuffle, x), ROWS_OUT(pixel_shuffle, y) };
FIELDS(denormalise) = { IN(denormalise, z), IN(denormalise, mean), IN(denormalise, std),
                        OUT(denormalise, y) };
FIELDS(frames_u8) = { ROWS_IN(frames_u8, x), ROWS_OUT(frames_u8, y) };
FIELDS(snake) = { ROWS_IN(snake, x), IN(snake, alpha), IN(snake, beta), ROWS_OUT(snake, y) };
/* clang-format on */

#define CHECK_ROOM(name)                                                                           \
    _Static_assert(sizeof(m2_##name##_args) <= M2_OP_ARGS_BYTES_MAX, #name ": args");              \
    _Static_assert(sizeof name##_fields / sizeof name##_fields[0] <= M2_OP_FIELDS_MAX,             \
                   #name ": fields");
M2_OPS(CHECK_ROOM)
#undef CHECK_ROOM

#define CALL_SLOT(name)                                                                            \
    static void call_##name(const m2_ops *ops, const void *args)                                   \
    {                                                                                              \
        ops->name(ops, args);                                                                      \
    }
M2_OPS(CALL_SLOT)
#undef CALL_SLOT

const m2_op_info m2_op_infos[M2_OP_COUNT] = {
#define INFO(name)                                                                                 \
    [M2_OP_##name] = { #name, sizeof(m2_##name##_args), name##_fields,                             \
                       (int)(sizeof name##_fields / sizeof name##_fields[0]), call_##name },
    M2_OPS(INFO)
#undef INFO
};

m2_tensor *m2_field_get(const m2_op_field *field, const void *args)
{
    m2_tensor *tensor;
    memcpy(&tensor, (const char *)args + field->offset, sizeof tensor);
    return tensor;
}

void m2_field_set(const m2_op_field *field, void *args, const m2_tensor *tensor)
{
    memcpy((char *)args + field->offset, &tensor, sizeof tensor);
}

ptrdiff_t m2_op_groups_offset(m2_op_idx op)
{
    switch (op) {
    case M2_OP_linear:
        return offsetof(m2_linear_args, groups);
    case M2_OP_rms_norm:
        return offsetof(m2_rms_norm_args, groups);
    case M2_OP_mhc_coefficients:
        return offsetof(m2_mhc_coefficients_args, groups);
    case M2_OP_mhc_open:
        return offsetof(m2_mhc_open_args, coefficients.groups);
    case M2_OP_mhc_write_open:
        return offsetof(m2_mhc_write_open_args, open.coefficients.groups);
    case M2_OP_linear_swiglu7:
        return offsetof(m2_linear_swiglu7_args, linear.groups);
    case M2_OP_linear_add:
        return offsetof(m2_linear_add_args, linear.groups);
    default:
        return -1;
    }
}
