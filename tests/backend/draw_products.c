#include "backend/draw.h"

void draw_linear(random_case *c, const m2_ops *ops, m2_tensor *y_out)
{
    static const int64_t most[] = { 96, 1300 }; /* f32 sums are cut from 512 on */
    const int64_t kind = random_turn(c, 3);
    const m2_dtype act = turn_act(c), out_type = turn_act(c);
    const int64_t n = random_int(c, 0, 5) ? draw_size(c, 230) : 0;
    const int64_t k = draw_width(c, kind, most, random_int(c, 0, 3) ? 90 : 1300);
    const int64_t out = random_int(c, 0, 1) ? 8 * random_int(c, 1, 17) : draw_size(c, 140);
    m2_groups *groups = m2_new(&c->arena, m2_groups, 1);
    *groups = draw_groups(c, n);
    const int is_grouped = (int)random_int(c, 0, 1), has_bias = (int)random_int(c, 0, 1);
    const int64_t n_groups = is_grouped ? groups->n_groups : 1;
    m2_tensor x = draw_tensor(c, act, 1, n, k), w = draw_tensor(c, act, 0.3f, n_groups * out, k);
    m2_tensor bias = draw_tensor(c, draw_act(c), 1, n_groups * out);
    *y_out = m2_tensor_make(&c->arena, out_type, n, out);
    ops->linear(ops, &(m2_linear_args){ .x = &x,
                                        .w = &w,
                                        .bias = has_bias ? &bias : NULL,
                                        .groups = is_grouped ? groups : NULL,
                                        .y = y_out });
}

void draw_attention(random_case *c, const m2_ops *ops, m2_tensor *y_out)
{
    const m2_dtype act = draw_act(c);
    const int64_t n_kv = random_int(c, 1, 2), n_heads = n_kv * random_int(c, 1, 3);
    const int64_t dim = draw_size(c, random_int(c, 0, 5) ? 70 : 260);
    int64_t segments[5] = { 0 };
    const int n_segments = (int)random_int(c, 1, 4), n_sinks = (int)random_int(c, 0, 2);
    for (int i = 0; i < n_segments; i++) {
        const int64_t length = random_int(c, 0, 4) ? draw_size(c, 150) : random_int(c, 0, 1);
        segments[i + 1] = segments[i] + length;
    }
    const int64_t n = segments[n_segments];
    m2_tensor q = draw_tensor(c, act, 1.5f, n, n_heads, dim);
    m2_tensor k = draw_tensor(c, act, 1.5f, n, n_kv, dim);
    m2_tensor v = draw_tensor(c, act, 1, n, n_kv, dim);
    m2_tensor sinks = draw_tensor(c, M2_F32, 2, n_sinks ? n_sinks : 1, n_heads);
    *y_out = m2_tensor_make(&c->arena, act, n, n_heads, dim);
    ops->attention(ops, &(m2_attention_args){ .q = &q,
                                              .k = &k,
                                              .v = &v,
                                              .sinks = n_sinks ? &sinks : NULL,
                                              .segments = segments,
                                              .n_segments = n_segments,
                                              .scale = 1.0f / sqrtf((float)dim),
                                              .is_causal = (int)random_int(c, 0, 1),
                                              .y = y_out });
}

void draw_conv(random_case *c, const m2_ops *ops, m2_tensor *y_out)
{
    static const int kernels[][3] = { { 1, 1, 1 }, { 3, 3, 3 }, { 1, 3, 3 },
                                      { 3, 1, 1 }, { 1, 1, 7 }, { 1, 1, 4 } };
    static const int64_t most[] = { 72 };
    const int64_t c_in = draw_width(c, random_turn(c, 2), most, 70);
    const int64_t c_out = random_turn(c, 2) ? draw_size(c, 70) : 128;
    const m2_dtype act = turn_act(c);
    const int *k = kernels[random_int(c, 0, 5)];
    const int is_wide = k[1] == 1 && k[2] > 1;
    const int64_t t = random_int(c, 1, 3), h = is_wide ? 1 : random_int(c, 1, 6);
    const int64_t w = is_wide ? draw_size(c, 120) : random_int(c, 1, 7);
    const int has_bias = (int)random_int(c, 0, 1);
    m2_tensor x = draw_tensor(c, act, 1, t, h, w, c_in);
    m2_tensor weight = draw_tensor(c, act, 0.3f, k[0] * k[1] * k[2], c_out, c_in);
    m2_tensor bias = draw_tensor(c, draw_act(c), 1, c_out);
    *y_out = m2_tensor_make(&c->arena, act, t, h, w, c_out);
    ops->conv(ops, &(m2_conv_args){ .x = &x,
                                    .w = &weight,
                                    .bias = has_bias ? &bias : NULL,
                                    .kernel = { k[0], k[1], k[2] },
                                    .dilation = (int)random_int(c, 1, is_wide ? 9 : 1),
                                    .pad_left = k[2] % 2 ? -1 : (int)random_int(c, 0, 3),
                                    .y = y_out });
}

void draw_conv_transpose(random_case *c, const m2_ops *ops, m2_tensor *y_out)
{
    const int stride = (int)random_int(c, 1, 8);
    static const int64_t most[] = { 72 };
    const int64_t c_in = draw_width(c, random_turn(c, 2), most, 70);
    const int64_t length = draw_size(c, 120), c_out = random_turn(c, 2) ? draw_size(c, 50) : 128;
    const int has_bias = (int)random_int(c, 0, 1);
    m2_tensor x = draw_tensor(c, M2_F32, 1, length, c_in);
    m2_tensor w = draw_tensor(c, M2_F32, 0.3f, 2 * stride, c_out, c_in);
    m2_tensor bias = draw_tensor(c, M2_F32, 1, c_out);
    *y_out = m2_tensor_make(&c->arena, M2_F32, length * stride - stride % 2, c_out);
    ops->conv_transpose(
        ops, &(m2_conv_transpose_args){
                 .x = &x, .w = &w, .bias = has_bias ? &bias : NULL, .stride = stride, .y = y_out });
}

void draw_moe_logits(random_case *c, const m2_ops *ops, m2_tensor *y_out)
{
    const int64_t n = draw_size(c, 120), heads = random_int(c, 1, 3), dim = draw_size(c, 100);
    const int64_t experts = draw_size(c, 40);
    m2_tensor x = draw_tensor(c, M2_BF16, 1, n, heads, dim);
    m2_tensor gate = draw_tensor(c, M2_F32, 0.3f, heads * experts, dim);
    *y_out = m2_tensor_make(&c->arena, M2_F32, heads, n, experts);
    ops->moe_logits(ops, &(m2_moe_logits_args){ .x = &x, .gate = &gate, .logits = y_out });
}

void draw_moe_ffn(random_case *c, const m2_ops *ops, m2_tensor *y_out)
{
    const int64_t n = draw_size(c, 120), heads = random_int(c, 1, 3), dim = draw_size(c, 80);
    const int64_t experts = random_int(c, 2, 9), top_k = random_int(c, 1, 2);
    const int64_t width = draw_size(c, 70), n_routes = heads * n * top_k;
    m2_tensor logits =
        random_tensor(c, M2_F32, random_int(c, 0, 1) ? 1.0f : 0.0f, heads, n, experts);
    m2_tensor idx = m2_tensor_make(&c->arena, M2_I32, heads, n, top_k);
    m2_tensor prob = m2_tensor_make(&c->arena, M2_F32, heads, n, top_k);
    m2_tensor gather = m2_tensor_make(&c->arena, M2_I32, n_routes);
    m2_tensor sorted = m2_tensor_make(&c->arena, M2_F32, n_routes);
    m2_tensor offsets = m2_tensor_make(&c->arena, M2_I32, heads * experts + 1);
    m2_tensor pos = m2_tensor_make(&c->arena, M2_I32, heads, n, top_k);
    m2_tensor routes = m2_tensor_make(&c->arena, M2_BF16, n_routes, dim);
    m2_tensor x = draw_tensor(c, M2_BF16, 1, n, heads, dim);
    m2_tensor gate = draw_tensor(c, M2_BF16, 0.5f, heads * experts, dim, width);
    m2_tensor up = draw_tensor(c, M2_BF16, 0.5f, heads * experts, dim, width);
    m2_tensor down = draw_tensor(c, M2_BF16, 0.5f, heads * experts, width, dim);
    *y_out = m2_tensor_make(&c->arena, M2_BF16, n, heads, dim);
    ops->moe_select(
        ops, &(m2_moe_select_args){
                 .logits = &logits, .route_scale = 2, .topk_idx = &idx, .topk_prob = &prob });
    ops->moe_dispatch(ops, &(m2_moe_dispatch_args){ .topk_idx = &idx,
                                                    .topk_prob = &prob,
                                                    .n_experts = (int)experts,
                                                    .gather_ids = &gather,
                                                    .probs_sorted = &sorted,
                                                    .expert_offsets = &offsets,
                                                    .route_pos = &pos });
    ops->moe_ffn(ops, &(m2_moe_ffn_args){ .x = &x,
                                          .gather_ids = &gather,
                                          .probs_sorted = &sorted,
                                          .expert_offsets = &offsets,
                                          .route_pos = &pos,
                                          .w_gate = &gate,
                                          .w_up = &up,
                                          .w_down = &down,
                                          .routes = &routes,
                                          .y = y_out });
}

void draw_conv_depthwise(random_case *c, const m2_ops *ops, m2_tensor *y_out)
{
    static const int kernels[][3] = { { 1, 3, 3 }, { 3, 3, 3 }, { 1, 7, 7 }, { 3, 1, 1 } };
    const m2_dtype act = draw_act(c);
    const int *k = kernels[random_int(c, 0, 3)];
    const int64_t t = random_int(c, 1, 3), h = random_int(c, 1, 9), w = random_int(c, 1, 9);
    const int64_t channels = draw_size(c, 100);
    const int has_bias = (int)random_int(c, 0, 1);
    m2_tensor x = draw_tensor(c, act, 1, t, h, w, channels);
    m2_tensor weight = draw_tensor(c, act, 0.3f, k[0] * k[1] * k[2], channels);
    m2_tensor bias = draw_tensor(c, act, 1, channels);
    *y_out = m2_tensor_make(&c->arena, act, t, h, w, channels);
    ops->conv_depthwise(ops, &(m2_conv_depthwise_args){ .x = &x,
                                                        .w = &weight,
                                                        .bias = has_bias ? &bias : NULL,
                                                        .kernel = { k[0], k[1], k[2] },
                                                        .y = y_out });
}
