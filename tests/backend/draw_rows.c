#include "backend/draw.h"

void draw_rms_norm(random_case *c, const m2_ops *ops, m2_tensor *y_out)
{
    static const int64_t most[] = { 256, 1024, 3072, 4096, 4600 };
    const int64_t kind = random_turn(c, 7);
    const int64_t dim =
        kind < 6 ? draw_width(c, kind, most, 1024) : 2 * random_int(c, 512, 650) + 1;
    const m2_dtype act = turn_act(c), out_type = turn_act(c);
    const int64_t n = draw_size(c, dim < 500 ? 60 : 12), heads = random_int(c, 1, 3);
    const m2_groups groups = draw_groups(c, n);
    const int has_weight = (int)random_int(c, 0, 2);
    m2_tensor x = draw_tensor(c, act, 1, n, heads, dim);
    m2_tensor w = draw_tensor(c, draw_act(c), 0.3f, groups.n_groups * dim);
    *y_out = m2_tensor_make(&c->arena, out_type, n, heads, dim);
    ops->rms_norm(ops, &(m2_rms_norm_args){ .x = &x,
                                            .w = has_weight ? &w : NULL,
                                            .groups = &groups,
                                            .eps = 1e-6f,
                                            .weight_offset = has_weight == 1,
                                            .y = y_out });
}

void draw_mhc_coefficients(random_case *c, const m2_ops *ops, m2_tensor *y_out)
{
    const int64_t n = draw_size(c, 230), dim = draw_size(c, 300);
    const m2_groups groups = draw_groups(c, n);
    m2_tensor s = draw_tensor(c, M2_BF16, 1, n, 4, dim);
    m2_tensor norm = draw_tensor(c, M2_F32, 0.3f, groups.n_groups * 4 * dim);
    m2_tensor phi = draw_tensor(c, M2_F32, 0.5f, 4 * dim, 24);
    m2_tensor alpha = random_tensor(c, M2_F32, 1, 1);
    m2_tensor bias = random_tensor(c, M2_F32, 1, 4), bias_res = random_tensor(c, M2_F32, 1, 4, 4);
    m2_tensor pre = m2_tensor_make(&c->arena, M2_BF16, n, 4);
    m2_tensor post = m2_tensor_make(&c->arena, M2_BF16, n, 4);
    m2_tensor res = m2_tensor_make(&c->arena, M2_BF16, n, 4, 4);
    /* Everything that comes out, as one row of f32 after the other. */
    *y_out = m2_tensor_make(&c->arena, M2_F32, 3 * n, 24);
    float *exact = y_out->data;
    m2_tensor phi_out = m2_tensor_over(exact, M2_F32, n, 24);
    m2_tensor pre_f32 = m2_tensor_over(exact + n * 24, M2_F32, n, 4);
    m2_tensor post_f32 = m2_tensor_over(exact + n * 28, M2_F32, n, 4);
    m2_tensor res_f32 = m2_tensor_over(exact + n * 32, M2_F32, n, 4, 4);
    ops->mhc_coefficients(ops, &(m2_mhc_coefficients_args){ .s = &s,
                                                            .norm = &norm,
                                                            .groups = &groups,
                                                            .phi = &phi,
                                                            .alpha_pre = &alpha,
                                                            .alpha_post = &alpha,
                                                            .alpha_res = &alpha,
                                                            .bias_pre = &bias,
                                                            .bias_post = &bias,
                                                            .bias_res = &bias_res,
                                                            .eps = 1e-6f,
                                                            .h_pre = &pre,
                                                            .h_post = &post,
                                                            .h_res = &res,
                                                            .phi_out = &phi_out,
                                                            .h_pre_f32 = &pre_f32,
                                                            .h_post_f32 = &post_f32,
                                                            .h_res_f32 = &res_f32 });
    float *rounded = exact + n * 48;
    m2_convert(pre.data, M2_BF16, rounded, M2_F32, n * 4);
    m2_convert(post.data, M2_BF16, rounded + n * 4, M2_F32, n * 4);
    m2_convert(res.data, M2_BF16, rounded + n * 8, M2_F32, n * 16);
}

void draw_mhc_read(random_case *c, const m2_ops *ops, m2_tensor *y_out)
{
    const int64_t n = draw_size(c, 60), dim = draw_size(c, 200);
    m2_tensor s = draw_tensor(c, M2_BF16, 1, n, 4, dim), h = draw_tensor(c, M2_BF16, 1, n, 4);
    *y_out = m2_tensor_make(&c->arena, M2_BF16, n, dim);
    ops->mhc_read(ops, &(m2_mhc_read_args){ .s = &s, .h_pre = &h, .x = y_out });
}

void draw_mhc_write(random_case *c, const m2_ops *ops, m2_tensor *y_out)
{
    const int64_t n = draw_size(c, 60), dim = draw_size(c, 200);
    m2_tensor s = draw_tensor(c, M2_BF16, 1, n, 4, dim), o = draw_tensor(c, M2_BF16, 1, n, dim);
    m2_tensor res = draw_tensor(c, M2_BF16, 1, n, 4, 4), post = draw_tensor(c, M2_BF16, 1, n, 4);
    *y_out = random_int(c, 0, 1) ? s : m2_tensor_make(&c->arena, M2_BF16, n, 4, dim);
    ops->mhc_write(ops, &(m2_mhc_write_args){
                            .s = &s, .h_res = &res, .h_post = &post, .o = &o, .s_out = y_out });
}

void draw_qk_norm_rope(random_case *c, const m2_ops *ops, m2_tensor *y_out)
{
    const int64_t n = draw_size(c, 60), n_kv = random_int(c, 1, 3);
    const int64_t n_heads = n_kv * random_int(c, 1, 2), dim = draw_head_dim(c);
    const m2_groups groups = draw_groups(c, n);
    m2_tensor qkv = draw_tensor(c, M2_BF16, 1, n, (n_heads + 2 * n_kv) * dim);
    m2_tensor q_norm = draw_tensor(c, M2_F32, 0.3f, groups.n_groups * dim);
    m2_tensor k_norm = draw_tensor(c, M2_F32, 0.3f, groups.n_groups * dim);
    m2_tensor rope = draw_tensor(c, M2_F32, 1, n, 2 * (dim / 8 * 3)), seq = draw_order(c, n);
    *y_out = m2_tensor_make(&c->arena, M2_BF16, n, n_heads + 2 * n_kv, dim);
    m2_bf16 *y = y_out->data;
    m2_tensor q = m2_tensor_over(y, M2_BF16, n, n_heads, dim);
    m2_tensor k = m2_tensor_over(y + n * n_heads * dim, M2_BF16, n, n_kv, dim);
    m2_tensor v = m2_tensor_over(y + n * (n_heads + n_kv) * dim, M2_BF16, n, n_kv, dim);
    ops->qk_norm_rope(ops, &(m2_qk_norm_rope_args){ .qkv = &qkv,
                                                    .q_norm = &q_norm,
                                                    .k_norm = &k_norm,
                                                    .groups = &groups,
                                                    .rope = &rope,
                                                    .seq = &seq,
                                                    .eps = 1e-6f,
                                                    .q = &q,
                                                    .k = &k,
                                                    .v = &v });
}

void draw_attention_gate(random_case *c, const m2_ops *ops, m2_tensor *y_out)
{
    const int64_t n = draw_size(c, 60), heads = random_int(c, 1, 5), dim = draw_size(c, 130);
    m2_tensor a = draw_tensor(c, M2_BF16, 1, n, heads, dim);
    m2_tensor g = draw_tensor(c, M2_BF16, 3, n, heads), seq = draw_order(c, n);
    *y_out = m2_tensor_make(&c->arena, M2_BF16, n, heads * dim);
    ops->attention_gate(ops,
                        &(m2_attention_gate_args){ .a = &a, .g = &g, .seq = &seq, .y = y_out });
}

void draw_swiglu7(random_case *c, const m2_ops *ops, m2_tensor *y_out)
{
    const m2_dtype act = turn_act(c);
    const int64_t n = draw_size(c, 60), width = draw_size(c, 200);
    m2_tensor x = draw_tensor(c, act, 5, n, 2 * width);
    *y_out = m2_tensor_make(&c->arena, act, n, width);
    ops->swiglu7(ops, &(m2_swiglu7_args){ .x = &x, .y = y_out });
}

void draw_add(random_case *c, const m2_ops *ops, m2_tensor *y_out)
{
    const m2_dtype act = turn_act(c);
    const int64_t n = random_int(c, 0, 20000);
    m2_tensor a = draw_tensor(c, act, 1, n), b = draw_tensor(c, act, 1, n);
    m2_tensor third = draw_tensor(c, act, 1, n);
    const int has_third = (int)random_int(c, 0, 1);
    *y_out = random_int(c, 0, 1) ? a : m2_tensor_make(&c->arena, act, n);
    ops->add(ops, &(m2_add_args){ .a = &a, .b = &b, .c = has_third ? &third : NULL, .y = y_out });
}

void draw_activate(random_case *c, const m2_ops *ops, m2_tensor *y_out)
{
    const m2_dtype act = turn_act(c), out_type = turn_act(c);
    const int64_t n = random_int(c, 1, 9000);
    const float scale = random_int(c, 0, 1) ? 3.0f : 60.0f; /* into overflow of the exponential */
    m2_tensor x = draw_tensor(c, act, scale, n);
    *y_out = m2_tensor_make(&c->arena, out_type, n);
    ops->activate(ops, &(m2_activate_args){
                           .x = &x, .activation = (m2_activation)random_int(c, 0, 4), .y = y_out });
}
