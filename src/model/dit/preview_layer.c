/* preview_layer.c - the layers: attention, then a dense MLP or experts, each read from and written
 * back to the four streams by mHC.
 *
 * Each half takes its activations from the step arena and gives them back when its output has joined
 * the streams, so the arena holds one half at a time.  The streams are written and opened for the
 * next half in one operator, across layers too.
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

/* swiglu7(x . w^T) */
static m2_tensor linear_swiglu7(const preview_call *call, const m2_tensor *x, const m2_tensor *w,
                                const m2_groups *groups)
{
    const int64_t n = x->shape[0], out = w->shape[0] / (groups ? groups->n_groups : 1);
    m2_tensor between = m2_tensor_make(call->arena, M2_BF16, n, out);
    m2_tensor y = m2_tensor_make(call->arena, M2_BF16, n, out / 2);
    call->ops->linear_swiglu7(
        call->ops, &(m2_linear_swiglu7_args){
                       .linear = { .x = x, .w = w, .groups = groups, .y = &between }, .y = &y });
    return y;
}

/* The heads of all tokens, in sequence order. */
typedef struct attention_heads {
    m2_tensor q, k, v;
} attention_heads;

static attention_heads make_heads(const preview_call *call, const m2_preview_layer_weights *w,
                                  const m2_groups *groups, const m2_tensor *normed)
{
    const m2_preview_sizes *sizes = &call->net->sizes;
    const m2_preview_request *request = call->request;
    const int64_t n = normed->shape[0], H = sizes->n_heads, K = sizes->n_kv_heads;
    const int64_t d = sizes->head_dim;
    m2_tensor qkv = m2_tensor_make(call->arena, M2_BF16, n, (H + 2 * K) * d);
    attention_heads heads = { .q = m2_tensor_make(call->arena, M2_BF16, n, H, d),
                              .k = m2_tensor_make(call->arena, M2_BF16, n, K, d),
                              .v = m2_tensor_make(call->arena, M2_BF16, n, K, d) };
    call->ops->linear_qk_norm_rope(
        call->ops, &(m2_linear_qk_norm_rope_args){
                       .linear = { .x = normed, .w = &w->linear_qkv, .groups = groups, .y = &qkv },
                       .heads = { .qkv = &qkv,
                                  .q_norm = &w->q_norm,
                                  .k_norm = &w->k_norm,
                                  .groups = groups,
                                  .rope = &request->rope,
                                  .seq = &request->seq,
                                  .eps = M2_PREVIEW_EPS,
                                  .q = &heads.q,
                                  .k = &heads.k,
                                  .v = &heads.v } });
    return heads;
}

/* Attention and its gate, joined unless somebody wants to see what is between. */
static void gated_attention(const preview_call *call, const m2_attention_args *attention,
                            const m2_tensor *g, m2_tensor *gated)
{
    const m2_ops *ops = call->ops;
    const m2_preview_request *request = call->request;
    const m2_attention_gated_args args = {
        .attention = *attention,
        .gate = { .a = attention->y, .g = g, .seq = &request->seq, .y = gated },
        .row = &request->row,
    };
    if (!call->hooks.trace) {
        ops->attention_gated(ops, &args);
        return;
    }
    ops->attention(ops, attention);
    m2_preview_show(call, "attn_heads_seq", attention->y);
    ops->attention_gate(ops, &args.gate);
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
    const int64_t n = x->shape[0], H = sizes->n_heads, d = sizes->head_dim;

    const m2_tensor normed = norm(call, x, &w->attn_norm, groups);
    const attention_heads heads = make_heads(call, w, groups, &normed);
    m2_tensor a = m2_tensor_make(call->arena, M2_BF16, n, H, d);
    m2_tensor gated = m2_tensor_make(call->arena, M2_BF16, n, H * d);
    const m2_attention_args args = {
        .q = &heads.q,
        .k = &heads.k,
        .v = &heads.v,
        .sinks = call->net->arch.attn_sinks ? &w->sinks : NULL,
        .segments = request->packing.segments,
        .n_segments = M2_BRANCHES,
        .scale = (float)(1.0 / sqrt((double)d)),
        .y = &a,
    };
    if (call->net->arch.attn_gating) {
        const m2_tensor g = m2_preview_linear(call, &normed, &w->linear_g, NULL, groups, M2_BF16);
        gated_attention(call, &args, &g, &gated);
    } else {
        ops->attention(ops, &args);
        m2_preview_show(call, "attn_heads_seq", &a);
        ops->gather_rows(ops, &(m2_gather_rows_args){ .x = &a, .idx = &request->seq, .y = &gated });
    }
    return m2_preview_linear(call, &gated, &w->linear_proj, NULL, groups, M2_BF16);
}

static m2_tensor dense_mlp(const preview_call *call, const m2_preview_layer_weights *w,
                           const m2_groups *groups, const m2_tensor *x)
{
    const m2_tensor normed = norm(call, x, &w->mlp_norm, groups);
    const m2_tensor hidden = linear_swiglu7(call, &normed, &w->up_gate, groups);
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

    const m2_tensor a1 = linear_swiglu7(call, &normed, &w->shared_fc1, NULL);
    const m2_tensor x1 = m2_preview_linear(call, &a1, &w->shared_fc2, NULL, NULL, M2_BF16);
    const m2_tensor a2 = linear_swiglu7(call, &normed, &w->modality_fc1, modalities);
    const m2_tensor x2 = m2_preview_linear(call, &a2, &w->modality_fc2, NULL, modalities, M2_BF16);

    /* merged + (x1 + x2), in f32 */
    m2_tensor merged = m2_tensor_make(call->arena, M2_BF16, n, sizes->hidden);
    call->ops->linear_add(
        call->ops, &(m2_linear_add_args){ .linear = { .x = &flat, .w = &w->merge, .y = &merged },
                                          .add = { .a = &x1, .b = &x2, .c = &merged, .y = &o } });
    return o;
}

/* ---- the streams ---------------------------------------------------------------------------- */

/* What a half reads, and how its output will join the streams. */
typedef struct half_in {
    m2_tensor x, h_pre, h_post, h_res;
} half_in;

static half_in make_half(const preview_call *call, int64_t n)
{
    m2_arena *arena = call->arena;
    half_in half;
    half.x = m2_tensor_make(arena, M2_BF16, n, call->net->sizes.hidden);
    half.h_pre = m2_tensor_make(arena, M2_BF16, n, M2_STREAMS);
    half.h_post = m2_tensor_make(arena, M2_BF16, n, M2_STREAMS);
    half.h_res = m2_tensor_make(arena, M2_BF16, n, M2_STREAMS, M2_STREAMS);
    return half;
}

/* A half by its number: layers have two, attention first. */
static const m2_preview_layer_weights *layer_of(const preview_call *call, int half_idx)
{
    return &call->net->weights.layers[half_idx / 2];
}

static const m2_groups *groups_of(const preview_call *call, int half_idx)
{
    return layer_of(call, half_idx)->is_mm ? &call->request->packing.groups : NULL;
}

static m2_mhc_open_args open_args(const preview_call *call, int half_idx, const m2_tensor *s,
                                  half_in *half)
{
    const m2_preview_layer_weights *w = layer_of(call, half_idx);
    const m2_preview_mhc *mhc = half_idx % 2 == 0 ? &w->mhc_attn : &w->mhc_mlp;
    return (m2_mhc_open_args){ .coefficients = { .s = s,
                                                 .norm = &w->mhc_norm,
                                                 .groups = groups_of(call, half_idx),
                                                 .phi = &mhc->phi,
                                                 .alpha_pre = &mhc->alpha_pre,
                                                 .alpha_post = &mhc->alpha_post,
                                                 .alpha_res = &mhc->alpha_res,
                                                 .bias_pre = &mhc->bias_pre,
                                                 .bias_post = &mhc->bias_post,
                                                 .bias_res = &mhc->bias_res,
                                                 .eps = M2_PREVIEW_EPS,
                                                 .h_pre = &half->h_pre,
                                                 .h_post = &half->h_post,
                                                 .h_res = &half->h_res },
                               .x = &half->x };
}

static m2_tensor run_half(const preview_call *call, int half_idx, const m2_tensor *x)
{
    const m2_preview_layer_weights *w = layer_of(call, half_idx);
    const m2_groups *groups = groups_of(call, half_idx);
    if (half_idx % 2 == 0) return attention(call, w, groups, x);
    return w->is_moe ? moe(call, w, x) : dense_mlp(call, w, groups, x);
}

/* The output of a half joins the streams, and the next half, if any, opens them. */
static void join(const preview_call *call, const half_in *half, const m2_tensor *o, int next_idx,
                 half_in *next, m2_tensor *s)
{
    const m2_mhc_write_args write = {
        .s = s, .h_res = &half->h_res, .h_post = &half->h_post, .o = o, .s_out = s
    };
    if (next_idx < 0) {
        call->ops->mhc_write(call->ops, &write);
        return;
    }
    call->ops->mhc_write_open(
        call->ops,
        &(m2_mhc_write_open_args){ .write = write, .open = open_args(call, next_idx, s, next) });
}

void m2_preview_run_layers(preview_call *call, int begin, int end, m2_tensor *s)
{
    static const char *const in[] = { "attn_in", "mlp_in" }, *const out[] = { "attn_out",
                                                                              "mlp_out" };
    const size_t mark = m2_arena_save(call->arena);
    /* x serves one half after the other, coefficients are read while the next are made. */
    half_in halves[2] = { make_half(call, s->shape[0]), make_half(call, s->shape[0]) };
    halves[1].x = halves[0].x;
    const m2_mhc_open_args first = open_args(call, 2 * begin, s, &halves[0]);
    call->ops->mhc_open(call->ops, &first);
    for (int i = 2 * begin; i < 2 * end; i++) {
        half_in *half = &halves[i % 2], *next = &halves[(i + 1) % 2];
        const size_t inner = m2_arena_save(call->arena);
        call->layer_idx = i / 2;
        m2_preview_show(call, in[i % 2], &half->x);
        const m2_tensor o = run_half(call, i, &half->x);
        m2_preview_show(call, out[i % 2], &o);
        join(call, half, &o, i + 1 < 2 * end ? i + 1 : -1, next, s);
        if (i % 2 == 1) m2_preview_show(call, "out", s);
        m2_arena_restore(call->arena, inner);
    }
    call->layer_idx = -1;
    m2_arena_restore(call->arena, mark);
}
