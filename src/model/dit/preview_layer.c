/* preview_layer.c - one layer: attention, then a dense MLP or experts, each read from and written
 * back to the four streams by mHC.
 *
 * Each half takes its activations from the step arena and gives them back when its output has joined
 * the streams, so the arena holds one half at a time.
 */
#include "model/dit/preview_parts.h"

#include <math.h>

void m2_preview_show(const preview_call *call, const char *what, const m2_tensor *tensor)
{
    if (call->layer_idx < 0)
        m2_tap(call->hooks.trace, tensor, "preview.%s", what);
    else
        m2_tap(call->hooks.trace, tensor, "preview.%02d.%s", call->layer_idx, what);
}

m2_tensor m2_preview_linear(const preview_call *call, const m2_tensor *x, const m2_tensor *w,
                            const m2_tensor *bias, const m2_groups *groups, m2_dtype dtype)
{
    const int64_t n_out = w->shape[0] / (groups ? groups->n_groups : 1);
    m2_tensor y = m2_tensor_make(call->arena, dtype, x->shape[0], n_out);
    call->ops->linear(call->ops,
                      &(m2_linear_args){ .x = x, .w = w, .bias = bias, .groups = groups, .y = &y });
    return y;
}

static m2_tensor norm(const preview_call *call, const m2_tensor *x, const m2_tensor *w,
                      const m2_groups *groups)
{
    m2_tensor y = m2_tensor_make(call->arena, M2_BF16, x->shape[0], x->shape[1]);
    call->ops->rms_norm(call->ops, &(m2_rms_norm_args){ .x = x,
                                                        .w = w,
                                                        .groups = groups,
                                                        .eps = M2_PREVIEW_EPS,
                                                        .weight_offset = 1.0f,
                                                        .y = &y });
    return y;
}

static m2_tensor swiglu7(const preview_call *call, const m2_tensor *x)
{
    m2_tensor y = m2_tensor_make(call->arena, M2_BF16, x->shape[0], x->shape[1] / 2);
    call->ops->swiglu7(call->ops, &(m2_swiglu7_args){ .x = x, .y = &y });
    return y;
}

/* x [n, hidden] bf16, modality order, to o of the same shape.  Queries, keys and values go to
 * sequence order on the way in and the gated heads come back: rank groups that trade tokens for
 * heads do it there. */
static m2_tensor attention(const preview_call *call, const m2_preview_layer_weights *w,
                           const m2_groups *groups, const m2_tensor *x)
{
    const m2_preview_sizes *sizes = &call->net->sizes;
    const m2_preview_request *request = call->request;
    const m2_ops *ops = call->ops;
    const int64_t n = x->shape[0], H = sizes->n_heads, K = sizes->n_kv_heads, d = sizes->head_dim;

    const m2_tensor normed = norm(call, x, &w->attn_norm, groups);
    const m2_tensor qkv = m2_preview_linear(call, &normed, &w->linear_qkv, NULL, groups, M2_BF16);
    m2_tensor q = m2_tensor_make(call->arena, M2_BF16, n, H, d);
    m2_tensor k = m2_tensor_make(call->arena, M2_BF16, n, K, d);
    m2_tensor v = m2_tensor_make(call->arena, M2_BF16, n, K, d);
    ops->qk_norm_rope(ops, &(m2_qk_norm_rope_args){ .qkv = &qkv,
                                                    .q_norm = &w->q_norm,
                                                    .k_norm = &w->k_norm,
                                                    .groups = groups,
                                                    .rope = &request->rope,
                                                    .seq = &request->seq,
                                                    .eps = M2_PREVIEW_EPS,
                                                    .q = &q,
                                                    .k = &k,
                                                    .v = &v });

    m2_tensor a = m2_tensor_make(call->arena, M2_BF16, n, H, d);
    ops->attention(ops,
                   &(m2_attention_args){ .q = &q,
                                         .k = &k,
                                         .v = &v,
                                         .sinks = call->net->arch.attn_sinks ? &w->sinks : NULL,
                                         .segments = request->packing.segments,
                                         .n_segments = M2_BRANCHES,
                                         .scale = (float)(1.0 / sqrt((double)d)),
                                         .y = &a });
    m2_preview_show(call, "attn_heads_seq", &a);

    m2_tensor gated = m2_tensor_make(call->arena, M2_BF16, n, H * d);
    if (call->net->arch.attn_gating) {
        const m2_tensor g = m2_preview_linear(call, &normed, &w->linear_g, NULL, groups, M2_BF16);
        ops->attention_gate(
            ops, &(m2_attention_gate_args){ .a = &a, .g = &g, .seq = &request->seq, .y = &gated });
    } else {
        ops->gather_rows(ops, &(m2_gather_rows_args){ .x = &a, .idx = &request->seq, .y = &gated });
    }
    return m2_preview_linear(call, &gated, &w->linear_proj, NULL, groups, M2_BF16);
}

static m2_tensor dense_mlp(const preview_call *call, const m2_preview_layer_weights *w,
                           const m2_groups *groups, const m2_tensor *x)
{
    const m2_tensor normed = norm(call, x, &w->mlp_norm, groups);
    const m2_tensor up = m2_preview_linear(call, &normed, &w->up_gate, NULL, groups, M2_BF16);
    const m2_tensor hidden = swiglu7(call, &up);
    return m2_preview_linear(call, &hidden, &w->down, NULL, groups, M2_BF16);
}

/* Routed experts on x [n, Hm, dh] bf16, to the same shape.  Rank groups that own experts trade the
 * sorted routes around moe_ffn. */
static m2_tensor routed_experts(const preview_call *call, const m2_preview_layer_weights *w,
                                const m2_tensor *x)
{
    const m2_preview_sizes *sizes = &call->net->sizes;
    const m2_ops *ops = call->ops;
    m2_arena *arena = call->arena;
    const int64_t n = x->shape[0], Hm = sizes->n_moe_heads, E = sizes->n_experts;
    const int64_t top_k = sizes->top_k, n_routes = Hm * n * top_k;

    m2_tensor logits = m2_tensor_make(arena, M2_F32, Hm, n, E);
    ops->moe_logits(ops, &(m2_moe_logits_args){ .x = x, .gate = &w->router, .logits = &logits });
    const m2_tensor *forced = call->hooks.forced ? &call->hooks.forced[call->layer_idx] : NULL;
    m2_tensor topk_idx = m2_tensor_make(arena, M2_I32, Hm, n, top_k);
    m2_tensor topk_prob = m2_tensor_make(arena, M2_F32, Hm, n, top_k);
    ops->moe_select(ops,
                    &(m2_moe_select_args){ .logits = &logits,
                                           .bias = &w->expert_bias_ema,
                                           .forced = forced && forced->data ? forced : NULL,
                                           .route_scale = (float)call->net->arch.moe_route_scale,
                                           .topk_idx = &topk_idx,
                                           .topk_prob = &topk_prob });
    m2_preview_show(call, "moe_logits", &logits);
    m2_preview_show(call, "topk_idx", &topk_idx);
    m2_preview_show(call, "topk_prob", &topk_prob);

    m2_tensor gather_ids = m2_tensor_make(arena, M2_I32, n_routes);
    m2_tensor probs_sorted = m2_tensor_make(arena, M2_F32, n_routes);
    m2_tensor expert_offsets = m2_tensor_make(arena, M2_I32, Hm * E + 1);
    m2_tensor route_pos = m2_tensor_make(arena, M2_I32, Hm, n, top_k);
    ops->moe_dispatch(ops, &(m2_moe_dispatch_args){ .topk_idx = &topk_idx,
                                                    .topk_prob = &topk_prob,
                                                    .n_experts = (int)E,
                                                    .gather_ids = &gather_ids,
                                                    .probs_sorted = &probs_sorted,
                                                    .expert_offsets = &expert_offsets,
                                                    .route_pos = &route_pos });

    m2_tensor routes = m2_tensor_make(arena, M2_BF16, n_routes, sizes->moe_dim);
    m2_tensor y = m2_tensor_make(arena, M2_BF16, n, Hm, sizes->moe_dim);
    ops->moe_ffn(ops, &(m2_moe_ffn_args){ .x = x,
                                          .gather_ids = &gather_ids,
                                          .probs_sorted = &probs_sorted,
                                          .expert_offsets = &expert_offsets,
                                          .route_pos = &route_pos,
                                          .w_gate = &w->w_gate,
                                          .w_up = &w->w_up,
                                          .w_down = &w->w_down,
                                          .routes = &routes,
                                          .y = &y });
    return y;
}

/* Routed experts between two projections, a shared expert, and one shared within each modality. */
static m2_tensor moe(const preview_call *call, const m2_preview_layer_weights *w,
                     const m2_tensor *x)
{
    const m2_preview_sizes *sizes = &call->net->sizes;
    const m2_groups *modalities = &call->request->packing.groups;
    const int64_t n = x->shape[0];
    m2_tensor o = m2_tensor_make(call->arena, M2_BF16, n, sizes->hidden);

    const m2_tensor normed = norm(call, x, &w->mlp_norm, modalities);
    m2_tensor split = m2_preview_linear(call, &normed, &w->split, NULL, NULL, M2_BF16);
    const m2_tensor heads =
        m2_tensor_over(split.data, M2_BF16, n, sizes->n_moe_heads, sizes->moe_dim);
    m2_preview_show(call, "moe_heads", &heads);
    const m2_tensor routed = routed_experts(call, w, &heads);
    const m2_tensor flat = m2_tensor_over(routed.data, M2_BF16, n, sizes->hidden);
    const m2_tensor merged = m2_preview_linear(call, &flat, &w->merge, NULL, NULL, M2_BF16);

    const m2_tensor f1 = m2_preview_linear(call, &normed, &w->shared_fc1, NULL, NULL, M2_BF16);
    const m2_tensor a1 = swiglu7(call, &f1);
    const m2_tensor x1 = m2_preview_linear(call, &a1, &w->shared_fc2, NULL, NULL, M2_BF16);
    const m2_tensor f2 =
        m2_preview_linear(call, &normed, &w->modality_fc1, NULL, modalities, M2_BF16);
    const m2_tensor a2 = swiglu7(call, &f2);
    const m2_tensor x2 = m2_preview_linear(call, &a2, &w->modality_fc2, NULL, modalities, M2_BF16);

    /* merged + (x1 + x2), in f32 */
    call->ops->add(call->ops, &(m2_add_args){ .a = &x1, .b = &x2, .c = &merged, .y = &o });
    return o;
}

/* Coefficients come from the streams as they are before the half runs. */
typedef struct mhc_state {
    m2_tensor h_pre, h_post, h_res;
} mhc_state;

static m2_tensor mhc_open(const preview_call *call, const m2_preview_layer_weights *w,
                          const m2_preview_mhc *mhc, const m2_groups *groups, const m2_tensor *s,
                          mhc_state *state)
{
    const m2_ops *ops = call->ops;
    const int64_t n = s->shape[0];
    state->h_pre = m2_tensor_make(call->arena, M2_BF16, n, M2_STREAMS);
    state->h_post = m2_tensor_make(call->arena, M2_BF16, n, M2_STREAMS);
    state->h_res = m2_tensor_make(call->arena, M2_BF16, n, M2_STREAMS, M2_STREAMS);
    m2_tensor x = m2_tensor_make(call->arena, M2_BF16, n, s->shape[2]);
    ops->mhc_open(ops, &(m2_mhc_open_args){ .coefficients = { .s = s,
                                                              .norm = &w->mhc_norm,
                                                              .groups = groups,
                                                              .phi = &mhc->phi,
                                                              .alpha_pre = &mhc->alpha_pre,
                                                              .alpha_post = &mhc->alpha_post,
                                                              .alpha_res = &mhc->alpha_res,
                                                              .bias_pre = &mhc->bias_pre,
                                                              .bias_post = &mhc->bias_post,
                                                              .bias_res = &mhc->bias_res,
                                                              .eps = M2_PREVIEW_EPS,
                                                              .h_pre = &state->h_pre,
                                                              .h_post = &state->h_post,
                                                              .h_res = &state->h_res },
                                            .x = &x });
    return x;
}

static void mhc_close(const preview_call *call, const mhc_state *state, const m2_tensor *o,
                      m2_tensor *s)
{
    call->ops->mhc_write(
        call->ops,
        &(m2_mhc_write_args){
            .s = s, .h_res = &state->h_res, .h_post = &state->h_post, .o = o, .s_out = s });
}

void m2_preview_run_layer(preview_call *call, int layer_idx, m2_tensor *s)
{
    const m2_preview_layer_weights *w = &call->net->weights.layers[layer_idx];
    const m2_groups *groups = w->is_mm ? &call->request->packing.groups : NULL;
    const size_t mark = m2_arena_save(call->arena);
    mhc_state state;
    call->layer_idx = layer_idx;

    m2_tensor x = mhc_open(call, w, &w->mhc_attn, groups, s, &state);
    m2_preview_show(call, "attn_in", &x);
    m2_tensor o = attention(call, w, groups, &x);
    m2_preview_show(call, "attn_out", &o);
    mhc_close(call, &state, &o, s);
    m2_arena_restore(call->arena, mark);

    x = mhc_open(call, w, &w->mhc_mlp, groups, s, &state);
    m2_preview_show(call, "mlp_in", &x);
    o = w->is_moe ? moe(call, w, &x) : dense_mlp(call, w, groups, &x);
    m2_preview_show(call, "mlp_out", &o);
    mhc_close(call, &state, &o, s);
    m2_arena_restore(call->arena, mark);

    m2_preview_show(call, "out", s);
    call->layer_idx = -1;
}
