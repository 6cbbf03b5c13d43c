/* draw_text.c - cases of the text encoder's operators. */
#include "backend/draw.h"

void draw_text_rope_table(random_case *c, const m2_ops *ops, m2_tensor *y_out)
{
    const m2_dtype act = draw_act(c);
    const int64_t n = draw_size(c, 600), half = random_int(c, 1, 40);
    m2_tensor sines = m2_tensor_make(&c->arena, act, n, half);
    *y_out = m2_tensor_make(&c->arena, act, n, half);
    ops->text_rope_table(ops,
                         &(m2_text_rope_table_args){ .theta = 1e7, .cos = y_out, .sin = &sines });
}

void draw_text_qk_norm_rope(random_case *c, const m2_ops *ops, m2_tensor *y_out)
{
    const m2_dtype act = draw_act(c);
    const int64_t n = draw_size(c, 60), kv = random_int(c, 1, 3), heads = kv * random_int(c, 1, 3);
    const int64_t dim = random_int(c, 2, 130), n_rot = random_int(c, 1, dim / 2);
    m2_tensor qg = draw_tensor(c, act, 2, n, heads, 2 * dim),
              k_in = draw_tensor(c, act, 2, n, kv, dim);
    m2_tensor q_norm = draw_tensor(c, act, 0.3f, dim), k_norm = draw_tensor(c, act, 0.3f, dim);
    m2_tensor cosines = draw_tensor(c, act, 0.7f, n, n_rot),
              sines = draw_tensor(c, act, 0.7f, n, n_rot);
    m2_tensor k = m2_tensor_make(&c->arena, act, n, kv, dim);
    *y_out = m2_tensor_make(&c->arena, act, n, heads, dim);
    ops->text_qk_norm_rope(ops, &(m2_text_qk_norm_rope_args){ .qg = &qg,
                                                              .k_in = &k_in,
                                                              .q_norm = &q_norm,
                                                              .k_norm = &k_norm,
                                                              .cos = &cosines,
                                                              .sin = &sines,
                                                              .eps = 1e-6f,
                                                              .q = y_out,
                                                              .k = &k });
}

void draw_text_gate(random_case *c, const m2_ops *ops, m2_tensor *y_out)
{
    static const int64_t most[] = { 136 };
    const int64_t kind = random_turn(c, 2), dim = draw_width(c, kind, most, 130);
    const m2_dtype act = turn_act(c);
    const int64_t n = draw_size(c, 60), heads = random_int(c, 1, 5);
    m2_tensor a = draw_tensor(c, act, 1, n, heads, dim),
              qg = draw_tensor(c, act, 4, n, heads, 2 * dim);
    *y_out = m2_tensor_make(&c->arena, act, n, heads * dim);
    ops->text_gate(ops, &(m2_text_gate_args){ .a = &a, .qg = &qg, .y = y_out });
}

void draw_silu_mul(random_case *c, const m2_ops *ops, m2_tensor *y_out)
{
    const m2_dtype act = turn_act(c);
    const int64_t n = draw_size(c, 60), width = draw_size(c, 300);
    m2_tensor gate = draw_tensor(c, act, 6, n, width), up = draw_tensor(c, act, 1, n, width);
    *y_out = random_int(c, 0, 1) ? gate : m2_tensor_make(&c->arena, act, n, width);
    ops->silu_mul(ops, &(m2_silu_mul_args){ .gate = &gate, .up = &up, .y = y_out });
}

void draw_causal_conv_silu(random_case *c, const m2_ops *ops, m2_tensor *y_out)
{
    static const int64_t most[] = { 320 };
    const int64_t kind = random_turn(c, 2), channels = draw_width(c, kind, most, 300);
    const m2_dtype act = turn_act(c);
    const int64_t n = draw_size(c, 90), kernel = kind == 0 ? 4 : random_int(c, 1, 5);
    m2_tensor x = draw_tensor(c, act, 1, n, channels);
    m2_tensor w = draw_tensor(c, act, 1, channels, 1, kernel);
    *y_out = m2_tensor_make(&c->arena, act, n, channels);
    ops->causal_conv_silu(ops, &(m2_causal_conv_silu_args){ .x = &x, .w = &w, .y = y_out });
}

/* The widths that kernels tell apart, the release's 128 among them. */
static int draw_key_dim(random_case *c)
{
    static const int64_t kinds[][2] = { { 128, 128 }, { 64, 64 },  { 256, 256 }, { 257, 270 },
                                        { 129, 200 }, { 65, 127 }, { 1, 63 } };
    const int64_t *kind = kinds[random_turn(c, 7)];
    return (int)random_int(c, kind[0], kind[1]);
}

void draw_gated_delta_rule(random_case *c, const m2_ops *ops, m2_tensor *y_out)
{
    const int dk = draw_key_dim(c), dv = dk == 128 ? 128 : (int)random_int(c, 1, 40);
    const m2_dtype act = turn_act(c);
    const int n_key = (int)random_int(c, 1, 2), n_value = n_key * (int)random_int(c, 1, 3);
    const int64_t n = draw_size(c, 200);
    const int use_chunks = (int)random_int(c, 0, 1);
    m2_tensor qkv = random_tensor(c, act, 1, n, 2 * n_key * dk + n_value * dv);
    m2_tensor a = random_tensor(c, act, 1, n, n_value), b = random_tensor(c, act, 1, n, n_value);
    m2_tensor a_log = random_tensor(c, act, 0.5f, n_value);
    m2_tensor dt_bias = random_tensor(c, act, 1, n_value);
    m2_tensor scratch = m2_tensor_make(
        &c->arena, M2_F32, m2_gated_delta_scratch(n, n_key, dk, n_value, dv, use_chunks));
    *y_out = m2_tensor_make(&c->arena, act, n, n_value, dv);
    ops->gated_delta_rule(ops, &(m2_gated_delta_rule_args){ .qkv = &qkv,
                                                            .a = &a,
                                                            .b = &b,
                                                            .a_log = &a_log,
                                                            .dt_bias = &dt_bias,
                                                            .n_key_heads = n_key,
                                                            .key_dim = dk,
                                                            .n_value_heads = n_value,
                                                            .value_dim = dv,
                                                            .use_chunks = use_chunks,
                                                            .scratch = &scratch,
                                                            .o = y_out });
}

void draw_gated_rms_norm(random_case *c, const m2_ops *ops, m2_tensor *y_out)
{
    static const int64_t most[] = { 128, 200 };
    const int64_t kind = random_turn(c, 3), dim = draw_width(c, kind, most, 200);
    const m2_dtype act = turn_act(c);
    const int64_t n = draw_size(c, 60), heads = random_int(c, 1, 4);
    m2_tensor o = draw_tensor(c, act, 0.1f, n, heads, dim), w = draw_tensor(c, act, 1, dim);
    m2_tensor z = draw_tensor(c, act, 3, n, heads * dim);
    *y_out = m2_tensor_make(&c->arena, act, n, heads * dim);
    ops->gated_rms_norm(
        ops, &(m2_gated_rms_norm_args){ .o = &o, .w = &w, .z = &z, .eps = 1e-6f, .y = y_out });
}
