/* profile_cost.c - what each operator has to compute and to move, by its arguments alone.
 *
 * Byte counts follow one rule and are one line each; arithmetic is counted where an operator sums
 * products.  Tensors may have no data: plans are counted too.
 */
#include "backend/profile.h"

#include <stdio.h>

static double sum_bytes(int n, const m2_tensor *const *tensors)
{
    double sum = 0;
    for (int i = 0; i < n; i++)
        if (tensors[i]) sum += (double)m2_tensor_bytes(tensors[i]);
    return sum;
}

/* All of the tensors named, those that are NULL left out. */
#define BYTES(...)                                                                                 \
    sum_bytes(                                                                                     \
        (int)(sizeof((const m2_tensor *const[]){ __VA_ARGS__ }) / sizeof(const m2_tensor *)),      \
        (const m2_tensor *const[]){ __VA_ARGS__ })

static int64_t last_dim(const m2_tensor *tensor)
{
    return tensor->shape[tensor->n_dims - 1];
}

static double count(const m2_tensor *tensor)
{
    return (double)m2_tensor_count(tensor);
}

static const char *type_prefix(m2_dtype dtype)
{
    return dtype == M2_F32 ? "f32 " : "";
}

/* The last dimension says which of the calls of a row-wise operator it is. */
static m2_cost row_wise(const m2_tensor *x, double bytes)
{
    m2_cost cost = { .bytes = bytes };
    snprintf(cost.detail, sizeof cost.detail, "%s%lld", type_prefix(x->dtype),
             (long long)last_dim(x));
    return cost;
}

static m2_cost element_wise(double bytes)
{
    return (m2_cost){ .bytes = bytes };
}

/* The part of grouped weights that some row uses. */
static double used_share(const m2_groups *groups)
{
    if (!groups) return 1;
    int n_used = 0;
    for (int g = 0; g < groups->n_groups; g++) n_used += groups->begin[g + 1] > groups->begin[g];
    return (double)n_used / groups->n_groups;
}

/* ---- for every network ---- */

m2_cost m2_cost_of_linear(const m2_linear_args *args)
{
    const int n_groups = args->groups ? args->groups->n_groups : 1;
    const int64_t k = last_dim(args->w), out = args->w->shape[0] / n_groups;
    m2_cost cost = { .flop = 2.0 * count(args->x) * (double)out };
    cost.bytes = BYTES(args->x, args->y) + used_share(args->groups) * BYTES(args->w, args->bias);
    char sets[16] = "";
    if (n_groups > 1) snprintf(sets, sizeof sets, " of %d", n_groups);
    snprintf(cost.detail, sizeof cost.detail, "%s%lld->%lld%s", type_prefix(args->x->dtype),
             (long long)k, (long long)out, sets);
    return cost;
}

m2_cost m2_cost_of_rms_norm(const m2_rms_norm_args *args)
{
    return row_wise(args->x, BYTES(args->x, args->y) + used_share(args->groups) * BYTES(args->w));
}

m2_cost m2_cost_of_add(const m2_add_args *args)
{
    return row_wise(args->y, BYTES(args->a, args->b, args->c, args->y));
}

m2_cost m2_cost_of_gather_rows(const m2_gather_rows_args *args)
{
    return row_wise(args->y, BYTES(args->y, args->idx, args->y));
}

m2_cost m2_cost_of_convert(const m2_convert_args *args)
{
    m2_cost cost = { .bytes = BYTES(args->x, args->y) };
    snprintf(cost.detail, sizeof cost.detail, "%s to %s", m2_dtype_name(args->x->dtype),
             m2_dtype_name(args->y->dtype));
    return cost;
}

m2_cost m2_cost_of_transpose(const m2_transpose_args *args)
{
    return element_wise(BYTES(args->x, args->y));
}

m2_cost m2_cost_of_activate(const m2_activate_args *args)
{
    return element_wise(BYTES(args->x, args->y));
}

m2_cost m2_cost_of_find_nonfinite(const m2_find_nonfinite_args *args)
{
    return element_wise(BYTES(args->x));
}

m2_cost m2_cost_of_attention(const m2_attention_args *args)
{
    const int64_t heads = args->q->shape[1], dim = args->q->shape[2];
    m2_cost cost = { .bytes = BYTES(args->q, args->k, args->v, args->sinks, args->y) };
    for (int i = 0; i < args->n_segments; i++) {
        const double n = (double)(args->segments[i + 1] - args->segments[i]);
        const double pairs = args->is_causal ? n * (n + 1) / 2 : n * n;
        cost.flop += 4.0 * (double)(heads * dim) * pairs;
    }
    snprintf(cost.detail, sizeof cost.detail, "%s%lld x %lld%s", type_prefix(args->q->dtype),
             (long long)heads, (long long)dim, args->is_causal ? " causal" : "");
    return cost;
}

m2_cost m2_cost_of_mean_rows(const m2_mean_rows_args *args)
{
    const double row = (double)last_dim(args->x) * (double)m2_dtype_bytes(args->x->dtype);
    return element_wise(count(args->idx) * row + BYTES(args->idx, args->y));
}

/* ---- preview transformer ---- */

m2_cost m2_cost_of_rope_table(const m2_rope_table_args *args)
{
    return element_wise(BYTES(args->coords, args->bands, args->table));
}

m2_cost m2_cost_of_time_channels(const m2_time_channels_args *args)
{
    return element_wise(BYTES(args->tau) + count(args->tau) * args->n_channels * 4.0);
}

m2_cost m2_cost_of_mhc_coefficients(const m2_mhc_coefficients_args *args)
{
    m2_cost cost = { .flop = 2.0 * count(args->s) * (double)last_dim(args->phi) };
    cost.bytes = BYTES(args->s, args->phi, args->h_pre, args->h_post, args->h_res) +
                 used_share(args->groups) * BYTES(args->norm);
    return cost;
}

m2_cost m2_cost_of_mhc_read(const m2_mhc_read_args *args)
{
    return (m2_cost){ .flop = 2.0 * count(args->s), .bytes = BYTES(args->s, args->h_pre, args->x) };
}

m2_cost m2_cost_of_mhc_open(const m2_mhc_open_args *args)
{
    m2_cost cost = m2_cost_of_mhc_coefficients(&args->coefficients);
    cost.flop += 2.0 * count(args->coefficients.s);
    cost.bytes += BYTES(args->x);
    return cost;
}

m2_cost m2_cost_of_mhc_write(const m2_mhc_write_args *args)
{
    return (m2_cost){ .flop = 2.0 * count(args->s) * (M2_STREAMS + 1),
                      .bytes = BYTES(args->s, args->h_res, args->h_post, args->o, args->s_out) };
}

/* The streams between the two are written, and not read again. */
m2_cost m2_cost_of_mhc_write_open(const m2_mhc_write_open_args *args)
{
    m2_cost cost = m2_cost_of_mhc_open(&args->open);
    const m2_cost written = m2_cost_of_mhc_write(&args->write);
    cost.flop += written.flop;
    cost.bytes += written.bytes - BYTES(args->write.s_out);
    return cost;
}

m2_cost m2_cost_of_qk_norm_rope(const m2_qk_norm_rope_args *args)
{
    return element_wise(BYTES(args->qkv, args->rope, args->seq, args->q, args->k, args->v));
}

m2_cost m2_cost_of_attention_gate(const m2_attention_gate_args *args)
{
    return element_wise(BYTES(args->a, args->g, args->seq, args->y));
}

/* What an operator costs that takes `between` over from the one before it. */
static m2_cost joined(m2_cost cost, m2_cost then, const m2_tensor *between)
{
    cost.flop += then.flop;
    cost.bytes += then.bytes - 2 * BYTES(between);
    return cost;
}

m2_cost m2_cost_of_attention_gated(const m2_attention_gated_args *args)
{
    return joined(m2_cost_of_attention(&args->attention), m2_cost_of_attention_gate(&args->gate),
                  args->attention.y);
}

m2_cost m2_cost_of_swiglu7(const m2_swiglu7_args *args)
{
    return row_wise(args->y, BYTES(args->x, args->y));
}

m2_cost m2_cost_of_linear_swiglu7(const m2_linear_swiglu7_args *args)
{
    return joined(m2_cost_of_linear(&args->linear),
                  row_wise(args->y, BYTES(args->linear.y, args->y)), args->linear.y);
}

m2_cost m2_cost_of_linear_qk_norm_rope(const m2_linear_qk_norm_rope_args *args)
{
    return joined(m2_cost_of_linear(&args->linear), m2_cost_of_qk_norm_rope(&args->heads),
                  args->linear.y);
}

m2_cost m2_cost_of_linear_add(const m2_linear_add_args *args)
{
    return joined(m2_cost_of_linear(&args->linear), m2_cost_of_add(&args->add), args->linear.y);
}

m2_cost m2_cost_of_moe_logits(const m2_moe_logits_args *args)
{
    return (m2_cost){ .flop = 2.0 * count(args->logits) * (double)last_dim(args->gate),
                      .bytes = BYTES(args->x, args->gate, args->logits) };
}

m2_cost m2_cost_of_moe_select(const m2_moe_select_args *args)
{
    return element_wise(
        BYTES(args->logits, args->bias, args->forced, args->topk_idx, args->topk_prob));
}

m2_cost m2_cost_of_moe_dispatch(const m2_moe_dispatch_args *args)
{
    return element_wise(BYTES(args->topk_idx, args->topk_prob, args->gather_ids, args->probs_sorted,
                              args->expert_offsets, args->route_pos));
}

m2_cost m2_cost_of_moe_ffn(const m2_moe_ffn_args *args)
{
    const int64_t dim = args->w_gate->shape[1], width = args->w_gate->shape[2];
    m2_cost cost = { .flop = 6.0 * count(args->gather_ids) * (double)(dim * width) };
    cost.bytes = BYTES(args->x, args->gather_ids, args->probs_sorted, args->expert_offsets,
                       args->route_pos, args->w_gate, args->w_up, args->w_down, args->y);
    snprintf(cost.detail, sizeof cost.detail, "%lld x %lld->%lld->%lld",
             (long long)args->w_gate->shape[0], (long long)dim, (long long)width, (long long)dim);
    return cost;
}

/* ---- sampler ---- */

m2_cost m2_cost_of_guidance_mix(const m2_guidance_mix_args *args)
{
    return element_wise(BYTES(args->cond, args->uncond, args->v));
}

m2_cost m2_cost_of_guidance_skim(const m2_guidance_skim_args *args)
{
    return element_wise(BYTES(args->cond, args->latent, args->uncond, args->uncond));
}

m2_cost m2_cost_of_guidance_rescale(const m2_guidance_rescale_args *args)
{
    return element_wise(BYTES(args->cond, args->v, args->v));
}

/* Reads the velocity, two clean latents, the start and the latent; writes one of each but the first. */
m2_cost m2_cost_of_unipc_step(const m2_unipc_step_args *args)
{
    return element_wise(8.0 * BYTES(args->latent));
}

m2_cost m2_cost_of_advance(const m2_advance_args *args)
{
    return element_wise(BYTES(args->counter, args->counter));
}

/* ---- text encoder ---- */

m2_cost m2_cost_of_text_rope_table(const m2_text_rope_table_args *args)
{
    return element_wise(BYTES(args->cos, args->sin));
}

m2_cost m2_cost_of_text_qk_norm_rope(const m2_text_qk_norm_rope_args *args)
{
    return element_wise(0.5 * BYTES(args->qg) +
                        BYTES(args->k_in, args->cos, args->sin, args->q, args->k));
}

m2_cost m2_cost_of_text_gate(const m2_text_gate_args *args)
{
    return element_wise(BYTES(args->a, args->y) + 0.5 * BYTES(args->qg));
}

m2_cost m2_cost_of_silu_mul(const m2_silu_mul_args *args)
{
    return row_wise(args->y, BYTES(args->gate, args->up, args->y));
}

m2_cost m2_cost_of_causal_conv_silu(const m2_causal_conv_silu_args *args)
{
    return (m2_cost){ .flop = 2.0 * count(args->x) * (double)last_dim(args->w),
                      .bytes = BYTES(args->x, args->w, args->y) };
}

/* Read out, correct and write in: three sums of products over the state for every token. */
m2_cost m2_cost_of_gated_delta_rule(const m2_gated_delta_rule_args *args)
{
    const double state = (double)args->key_dim * args->value_dim;
    return (m2_cost){ .flop = 6.0 * count(args->a) * state,
                      .bytes = BYTES(args->qkv, args->a, args->b, args->o) };
}

m2_cost m2_cost_of_gated_rms_norm(const m2_gated_rms_norm_args *args)
{
    return element_wise(BYTES(args->o, args->w, args->z, args->y));
}

/* ---- decoders ---- */

m2_cost m2_cost_of_conv(const m2_conv_args *args)
{
    const int64_t c_out = args->w->shape[1], c_in = args->w->shape[2];
    m2_cost cost = { .flop = 2.0 * count(args->y) * (double)(args->w->shape[0] * c_in),
                     .bytes = BYTES(args->x, args->w, args->bias, args->y) };
    snprintf(cost.detail, sizeof cost.detail, "%s%dx%dx%d %lld->%lld", type_prefix(args->x->dtype),
             args->kernel[0], args->kernel[1], args->kernel[2], (long long)c_in, (long long)c_out);
    return cost;
}

m2_cost m2_cost_of_conv_depthwise(const m2_conv_depthwise_args *args)
{
    m2_cost cost = { .flop = 2.0 * count(args->y) * (double)args->w->shape[0],
                     .bytes = BYTES(args->x, args->w, args->bias, args->y) };
    snprintf(cost.detail, sizeof cost.detail, "%s%dx%dx%d %lld", type_prefix(args->x->dtype),
             args->kernel[0], args->kernel[1], args->kernel[2], (long long)last_dim(args->w));
    return cost;
}

/* Every sample of x meets every tap. */
m2_cost m2_cost_of_conv_transpose(const m2_conv_transpose_args *args)
{
    const int64_t c_out = args->w->shape[1], c_in = args->w->shape[2];
    m2_cost cost = { .flop = 2.0 * count(args->x) * (double)(args->w->shape[0] * c_out),
                     .bytes = BYTES(args->x, args->w, args->bias, args->y) };
    snprintf(cost.detail, sizeof cost.detail, "/%d %lld->%lld", args->stride, (long long)c_in,
             (long long)c_out);
    return cost;
}

m2_cost m2_cost_of_rms_act(const m2_rms_act_args *args)
{
    return row_wise(args->x, BYTES(args->x, args->y));
}

m2_cost m2_cost_of_upsample_nearest(const m2_upsample_nearest_args *args)
{
    return element_wise(BYTES(args->x, args->y));
}

m2_cost m2_cost_of_split_time(const m2_split_time_args *args)
{
    return element_wise(BYTES(args->y, args->y));
}

m2_cost m2_cost_of_pixel_shuffle(const m2_pixel_shuffle_args *args)
{
    return element_wise(BYTES(args->x, args->y));
}

m2_cost m2_cost_of_denormalise(const m2_denormalise_args *args)
{
    return element_wise(count(args->y) * 4.0 + BYTES(args->mean, args->std, args->y));
}

m2_cost m2_cost_of_frames_u8(const m2_frames_u8_args *args)
{
    return element_wise(BYTES(args->x, args->y));
}

m2_cost m2_cost_of_snake(const m2_snake_args *args)
{
    return element_wise(BYTES(args->x, args->alpha, args->beta, args->y));
}
