/* draw_joined.c - cases of the operators that are two in sequence. */
#include "backend/draw.h"

void draw_mhc_write_open(random_case *c, const m2_ops *ops, m2_tensor *y_out)
{
    const int64_t n = draw_size(c, 100), dim = draw_size(c, 200);
    m2_groups groups = draw_groups(c, n);
    m2_tensor s = draw_tensor(c, M2_BF16, 1, n, 4, dim), o = draw_tensor(c, M2_BF16, 1, n, dim);
    m2_tensor res = draw_tensor(c, M2_BF16, 1, n, 4, 4), post = draw_tensor(c, M2_BF16, 1, n, 4);
    m2_tensor s_out = random_int(c, 0, 1) ? s : m2_tensor_make(&c->arena, M2_BF16, n, 4, dim);
    m2_tensor norm = draw_tensor(c, M2_F32, 0.3f, groups.n_groups * 4 * dim);
    m2_tensor phi = draw_tensor(c, M2_F32, 0.5f, 4 * dim, 24);
    m2_tensor alpha[3], bias[2];
    for (int i = 0; i < 3; i++) alpha[i] = random_tensor(c, M2_F32, 1, 1);
    for (int i = 0; i < 2; i++) bias[i] = random_tensor(c, M2_F32, 1, 4);
    m2_tensor bias_res = random_tensor(c, M2_F32, 1, 4, 4);
    m2_tensor h_pre = m2_tensor_make(&c->arena, M2_BF16, n, 4);
    m2_tensor h_post = m2_tensor_make(&c->arena, M2_BF16, n, 4);
    m2_tensor h_res = m2_tensor_make(&c->arena, M2_BF16, n, 4, 4);
    *y_out = m2_tensor_make(&c->arena, M2_BF16, n, dim);
    ops->mhc_write_open(
        ops, &(m2_mhc_write_open_args){
                 .write = { .s = &s, .h_res = &res, .h_post = &post, .o = &o, .s_out = &s_out },
                 .open = { .coefficients = { .s = &s_out,
                                             .norm = &norm,
                                             .groups = &groups,
                                             .phi = &phi,
                                             .alpha_pre = &alpha[0],
                                             .alpha_post = &alpha[1],
                                             .alpha_res = &alpha[2],
                                             .bias_pre = &bias[0],
                                             .bias_post = &bias[1],
                                             .bias_res = &bias_res,
                                             .eps = 1e-6f,
                                             .h_pre = &h_pre,
                                             .h_post = &h_post,
                                             .h_res = &h_res },
                           .x = y_out } });
}

/* A product into scratch that has no values yet. */
typedef struct drawn_product {
    m2_tensor x, w, y;
    m2_groups groups;
    m2_linear_args args;
} drawn_product;

static drawn_product *draw_product(random_case *c, int64_t n, int64_t out)
{
    drawn_product *made = m2_new(&c->arena, drawn_product, 1);
    const int64_t k = draw_size(c, random_int(c, 0, 3) ? 90 : 700);
    const int is_grouped = (int)random_int(c, 0, 1);
    made->groups = draw_groups(c, n);
    made->x = draw_tensor(c, M2_BF16, 1, n, k);
    made->w = draw_tensor(c, M2_BF16, 0.3f, (is_grouped ? made->groups.n_groups : 1) * out, k);
    made->y = m2_tensor_make(&c->arena, M2_BF16, n, out);
    made->args = (m2_linear_args){
        .x = &made->x, .w = &made->w, .groups = is_grouped ? &made->groups : NULL, .y = &made->y
    };
    return made;
}

void draw_linear_swiglu7(random_case *c, const m2_ops *ops, m2_tensor *y_out)
{
    const int64_t n = draw_size(c, 200), width = draw_size(c, 140);
    const drawn_product *product = draw_product(c, n, 2 * width);
    *y_out = m2_tensor_make(&c->arena, M2_BF16, n, width);
    ops->linear_swiglu7(ops, &(m2_linear_swiglu7_args){ .linear = product->args, .y = y_out });
}

void draw_linear_add(random_case *c, const m2_ops *ops, m2_tensor *y_out)
{
    const int64_t n = draw_size(c, 200), out = draw_size(c, 140);
    drawn_product *product = draw_product(c, n, out);
    m2_tensor a = draw_tensor(c, M2_BF16, 1, n, out), b = draw_tensor(c, M2_BF16, 1, n, out);
    *y_out = m2_tensor_make(&c->arena, M2_BF16, n, out);
    ops->linear_add(
        ops, &(m2_linear_add_args){ .linear = product->args,
                                    .add = { .a = &a, .b = &b, .c = &product->y, .y = y_out } });
}

void draw_linear_qk_norm_rope(random_case *c, const m2_ops *ops, m2_tensor *y_out)
{
    const int64_t n = draw_size(c, 100), n_kv = random_int(c, 1, 3);
    const int64_t n_heads = n_kv * random_int(c, 1, 2), dim = draw_head_dim(c);
    const drawn_product *product = draw_product(c, n, (n_heads + 2 * n_kv) * dim);
    const int64_t n_groups = product->args.groups ? product->groups.n_groups : 1;
    m2_tensor q_norm = draw_tensor(c, M2_F32, 0.3f, n_groups * dim);
    m2_tensor k_norm = draw_tensor(c, M2_F32, 0.3f, n_groups * dim);
    m2_tensor rope = draw_tensor(c, M2_F32, 1, n, 2 * (dim / 8 * 3)), seq = draw_order(c, n);
    *y_out = m2_tensor_make(&c->arena, M2_BF16, n, n_heads + 2 * n_kv, dim);
    m2_bf16 *y = y_out->data;
    m2_tensor q = m2_tensor_over(y, M2_BF16, n, n_heads, dim);
    m2_tensor k = m2_tensor_over(y + n * n_heads * dim, M2_BF16, n, n_kv, dim);
    m2_tensor v = m2_tensor_over(y + n * (n_heads + n_kv) * dim, M2_BF16, n, n_kv, dim);
    ops->linear_qk_norm_rope(
        ops, &(m2_linear_qk_norm_rope_args){ .linear = product->args,
                                             .heads = { .qkv = &product->y,
                                                        .q_norm = &q_norm,
                                                        .k_norm = &k_norm,
                                                        .groups = product->args.groups,
                                                        .rope = &rope,
                                                        .seq = &seq,
                                                        .eps = 1e-6f,
                                                        .q = &q,
                                                        .k = &k,
                                                        .v = &v } });
}

void draw_attention_gated(random_case *c, const m2_ops *ops, m2_tensor *y_out)
{
    const int64_t n_kv = random_int(c, 1, 2), n_heads = n_kv * random_int(c, 1, 3);
    const int64_t dim = draw_size(c, 140), n_sinks = random_int(c, 0, 2);
    const int64_t first = draw_size(c, 150), n = first + random_int(c, 0, 150);
    const int64_t segments[] = { 0, first, n };
    m2_tensor q = draw_tensor(c, M2_BF16, 1.5f, n, n_heads, dim);
    m2_tensor k = draw_tensor(c, M2_BF16, 1.5f, n, n_kv, dim);
    m2_tensor v = draw_tensor(c, M2_BF16, 1, n, n_kv, dim);
    m2_tensor sinks = draw_tensor(c, M2_F32, 2, n_sinks ? n_sinks : 1, n_heads);
    m2_tensor g = draw_tensor(c, M2_BF16, 3, n, n_heads), seq = draw_order(c, n);
    m2_tensor row = m2_tensor_make(&c->arena, M2_I32, n);
    for (int64_t i = 0; i < n; i++)
        ((int32_t *)row.data)[((const int32_t *)seq.data)[i]] = (int32_t)i;
    m2_tensor a = m2_tensor_make(&c->arena, M2_BF16, n, n_heads, dim);
    *y_out = m2_tensor_make(&c->arena, M2_BF16, n, n_heads * dim);
    ops->attention_gated(
        ops, &(m2_attention_gated_args){ .attention = { .q = &q,
                                                        .k = &k,
                                                        .v = &v,
                                                        .sinks = n_sinks ? &sinks : NULL,
                                                        .segments = segments,
                                                        .n_segments = 2,
                                                        .scale = 1.0f / sqrtf((float)dim),
                                                        .y = &a },
                                         .gate = { .a = &a, .g = &g, .seq = &seq, .y = y_out },
                                         .row = &row });
}
