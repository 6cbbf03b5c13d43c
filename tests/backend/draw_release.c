#include "backend/draw_release.h"

/* The preview transformer of the release. */
#define HIDDEN       3072
#define HEAD_DIM     128
#define N_HEADS      24
#define N_ROT        48
#define EXPERT_DIM   256
#define N_EXPERTS    256
#define TOP_K        6
#define EXPERT_WIDTH 1280

/* Uniform, of deviation `scale`: several values from each number drawn, as there are millions. */
static m2_tensor fast_tensor(random_case *c, float scale, m2_tensor tensor)
{
    const int64_t n = m2_tensor_count(&tensor);
    const float factor = scale * sqrtf(12.0f) * 0x1p-16f;
    uint64_t bits = 0;
    for (int64_t i = 0; i < n; i++) {
        if (i % 4 == 0) bits = m2_test_random_u64(&c->random);
        const float value = ((float)(bits >> i % 4 * 16 & 0xffff) - 32767.5f) * factor;
        if (tensor.dtype == M2_BF16)
            ((m2_bf16 *)tensor.data)[i] = m2_f32_to_bf16(value);
        else
            ((float *)tensor.data)[i] = value;
    }
    return tensor;
}
#define fast(c, dtype, scale, ...)                                                                 \
    fast_tensor((c), (scale), m2_tensor_make(&(c)->arena, (dtype), __VA_ARGS__))

/* Three groups, the middle one small. */
static m2_groups three_groups(int64_t n)
{
    return (m2_groups){ .n_groups = 3, .begin = { 0, n / 2, n / 2 + n / 16, n } };
}

static m2_groups one_group(int64_t n)
{
    return (m2_groups){ .n_groups = 1, .begin = { 0, n } };
}

typedef struct attention_sizes {
    int64_t heads, kv, dim, n_rot;
} attention_sizes;

static void run_attention_part(random_case *c, const m2_ops *ops, int64_t n, attention_sizes size)
{
    const int64_t heads = size.heads, kv = size.kv, dim = size.dim;
    const m2_groups groups = three_groups(n);
    m2_tensor qkv = fast(c, M2_BF16, 1, n, (heads + 2 * kv) * dim);
    m2_tensor q_norm = fast(c, M2_F32, 0.2f, 3 * dim), k_norm = fast(c, M2_F32, 0.2f, 3 * dim);
    m2_tensor rope = fast(c, M2_F32, 0.7f, n, 2 * size.n_rot), seq = draw_order(c, n);
    m2_tensor q = m2_tensor_make(&c->arena, M2_BF16, n, heads, dim);
    m2_tensor k = m2_tensor_make(&c->arena, M2_BF16, n, kv, dim);
    m2_tensor v = m2_tensor_make(&c->arena, M2_BF16, n, kv, dim);
    m2_tensor y = m2_tensor_make(&c->arena, M2_BF16, n, heads, dim);
    m2_tensor gated = m2_tensor_make(&c->arena, M2_BF16, n, heads * dim);
    m2_tensor gate = fast(c, M2_BF16, 2, n, heads), sinks = fast(c, M2_F32, 2, 1, heads);
    const int64_t segments[] = { 0, n / 3, n };
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
    m2_tensor row = m2_tensor_make(&c->arena, M2_I32, n);
    for (int64_t i = 0; i < n; i++)
        ((int32_t *)row.data)[((const int32_t *)seq.data)[i]] = (int32_t)i;
    const m2_attention_gated_args args = {
        .attention = { .q = &q,
                       .k = &k,
                       .v = &v,
                       .sinks = &sinks,
                       .segments = segments,
                       .n_segments = 2,
                       .scale = 1.0f / sqrtf((float)dim),
                       .y = &y },
        .gate = { .a = &y, .g = &gate, .seq = &seq, .y = &gated },
        .row = &row,
    };
    ops->attention(ops, &args.attention);
    ops->attention_gate(ops, &args.gate);
    ops->attention_gated(ops, &args);
}

void release_attention_part(random_case *c, const m2_ops *ops, int64_t n)
{
    run_attention_part(c, ops, n, (attention_sizes){ N_HEADS, N_HEADS, HEAD_DIM, N_ROT });
}

/* The last key's scores are 80 to 96 above all others', where exp leaves the range of f32. */
void release_far_scores(random_case *c, const m2_ops *ops, int64_t n)
{
    m2_tensor q = m2_tensor_make(&c->arena, M2_BF16, n, N_HEADS, HEAD_DIM);
    m2_tensor k = m2_tensor_make(&c->arena, M2_BF16, n, N_HEADS, HEAD_DIM);
    m2_tensor v = fast(c, M2_BF16, 0.5f, n, N_HEADS, HEAD_DIM);
    m2_tensor y = m2_tensor_make(&c->arena, M2_BF16, n, N_HEADS, HEAD_DIM);
    memset(q.data, 0, m2_tensor_bytes(&q));
    memset(k.data, 0, m2_tensor_bytes(&k));
    for (int64_t i = 0; i < n * N_HEADS; i++) {
        m2_bf16 *to = (m2_bf16 *)q.data + i * HEAD_DIM;
        to[0] = m2_f32_to_bf16(64.0f);
        to[1] = m2_f32_to_bf16(16.0f + 0.125f * (float)(i % 128));
        if (i < (n - 1) * N_HEADS) continue;
        to = (m2_bf16 *)k.data + i * HEAD_DIM;
        to[0] = to[1] = m2_f32_to_bf16(1.0f);
    }
    ops->attention(ops, &(m2_attention_args){ .q = &q,
                                              .k = &k,
                                              .v = &v,
                                              .segments = (const int64_t[]){ 0, n },
                                              .n_segments = 1,
                                              .scale = 1.0f,
                                              .y = &y });
}

static void run_streams(random_case *c, const m2_ops *ops, int64_t n, int64_t dim, m2_groups groups)
{
    const int64_t n_groups = groups.n_groups;
    m2_tensor s = fast(c, M2_BF16, 1, n, 4, dim), o = fast(c, M2_BF16, 1, n, dim);
    m2_tensor norm = fast(c, M2_F32, 0.2f, n_groups * 4 * dim);
    m2_tensor phi = fast(c, M2_F32, 1.0f / sqrtf(4.0f * (float)dim), 4 * dim, 24);
    m2_tensor alpha[3], bias[2];
    for (int i = 0; i < 3; i++) alpha[i] = fast(c, M2_F32, 1, 1);
    for (int i = 0; i < 2; i++) bias[i] = fast(c, M2_F32, 1, 4);
    m2_tensor bias_res = fast(c, M2_F32, 1, 4, 4), x = m2_tensor_make(&c->arena, M2_BF16, n, dim);
    m2_tensor pre = m2_tensor_make(&c->arena, M2_BF16, n, 4);
    m2_tensor post = m2_tensor_make(&c->arena, M2_BF16, n, 4);
    m2_tensor res = m2_tensor_make(&c->arena, M2_BF16, n, 4, 4);
    m2_tensor w = fast(c, M2_F32, 0.2f, n_groups * dim);
    m2_tensor normed = m2_tensor_make(&c->arena, M2_BF16, n, dim);
    m2_tensor phi_out = m2_tensor_make(&c->arena, M2_F32, n, 24);
    m2_mhc_open_args open = { .coefficients = { .s = &s,
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
                                                .h_pre = &pre,
                                                .h_post = &post,
                                                .h_res = &res },
                              .x = &x };
    ops->mhc_open(ops, &open);
    open.coefficients.phi_out = &phi_out;
    ops->mhc_coefficients(ops, &open.coefficients);
    ops->mhc_read(ops, &(m2_mhc_read_args){ .s = &s, .h_pre = &pre, .x = &x });
    ops->rms_norm(
        ops,
        &(m2_rms_norm_args){
            .x = &x, .w = &w, .groups = &groups, .eps = 1e-6f, .weight_offset = 1, .y = &normed });
    m2_mhc_write_open_args both = {
        .write = { .s = &s, .h_res = &res, .h_post = &post, .o = &o, .s_out = &s }
    };
    ops->mhc_write(ops, &both.write);
    m2_tensor next_post = m2_tensor_make(&c->arena, M2_BF16, n, 4);
    m2_tensor next_res = m2_tensor_make(&c->arena, M2_BF16, n, 4, 4);
    both.open = open;
    both.open.coefficients.phi_out = NULL;
    both.open.coefficients.h_post = &next_post;
    both.open.coefficients.h_res = &next_res;
    ops->mhc_write_open(ops, &both);
}

void release_streams(random_case *c, const m2_ops *ops, int64_t n)
{
    run_streams(c, ops, n, HIDDEN, one_group(n));
    run_streams(c, ops, n, HIDDEN, three_groups(n));
}

static void run_product(random_case *c, const m2_ops *ops, int64_t n, int64_t k, int64_t out,
                        m2_dtype type, const m2_groups *groups)
{
    const int64_t n_groups = groups ? groups->n_groups : 1;
    const size_t mark = m2_arena_save(&c->arena);
    m2_tensor x = fast(c, type, 1, n, k);
    m2_tensor w = fast(c, type, 1.0f / sqrtf((float)k), n_groups * out, k);
    m2_tensor y = m2_tensor_make(&c->arena, type, n, out);
    ops->linear(ops, &(m2_linear_args){ .x = &x, .w = &w, .groups = groups, .y = &y });
    m2_arena_restore(&c->arena, mark);
}

/* A product of HIDDEN and what takes its result over. */
static void run_joined_products(random_case *c, const m2_ops *ops, int64_t n,
                                const m2_groups *groups)
{
    const int64_t n_groups = groups ? groups->n_groups : 1, out = 3 * N_HEADS * HEAD_DIM;
    const float scale = 1.0f / sqrtf((float)HIDDEN);
    const size_t mark = m2_arena_save(&c->arena);
    m2_tensor x = fast(c, M2_BF16, 1, n, HIDDEN);
    m2_tensor w = fast(c, M2_BF16, scale, n_groups * out, HIDDEN);
    m2_tensor between = m2_tensor_make(&c->arena, M2_BF16, n, out);
    m2_tensor q_norm = fast(c, M2_F32, 0.2f, n_groups * HEAD_DIM);
    m2_tensor k_norm = fast(c, M2_F32, 0.2f, n_groups * HEAD_DIM);
    m2_tensor rope = fast(c, M2_F32, 0.7f, n, 2 * N_ROT), seq = draw_order(c, n);
    m2_tensor q = m2_tensor_make(&c->arena, M2_BF16, n, N_HEADS, HEAD_DIM);
    m2_tensor k = m2_tensor_make(&c->arena, M2_BF16, n, N_HEADS, HEAD_DIM);
    m2_tensor v = m2_tensor_make(&c->arena, M2_BF16, n, N_HEADS, HEAD_DIM);
    ops->linear_qk_norm_rope(ops,
                             &(m2_linear_qk_norm_rope_args){
                                 .linear = { .x = &x, .w = &w, .groups = groups, .y = &between },
                                 .heads = { .qkv = &between,
                                            .q_norm = &q_norm,
                                            .k_norm = &k_norm,
                                            .groups = groups,
                                            .rope = &rope,
                                            .seq = &seq,
                                            .eps = 1e-6f,
                                            .q = &q,
                                            .k = &k,
                                            .v = &v } });

    w = m2_tensor_over(w.data, M2_BF16, n_groups * 2 * EXPERT_WIDTH, HIDDEN);
    between = m2_tensor_over(between.data, M2_BF16, n, 2 * EXPERT_WIDTH);
    m2_tensor y = m2_tensor_over(q.data, M2_BF16, n, EXPERT_WIDTH);
    ops->linear_swiglu7(
        ops, &(m2_linear_swiglu7_args){
                 .linear = { .x = &x, .w = &w, .groups = groups, .y = &between }, .y = &y });

    w = m2_tensor_over(w.data, M2_BF16, n_groups * HIDDEN, HIDDEN);
    between = m2_tensor_over(between.data, M2_BF16, n, HIDDEN);
    m2_tensor a = fast(c, M2_BF16, 1, n, HIDDEN), b = fast(c, M2_BF16, 1, n, HIDDEN);
    y = m2_tensor_over(v.data, M2_BF16, n, HIDDEN);
    ops->linear_add(
        ops, &(m2_linear_add_args){ .linear = { .x = &x, .w = &w, .groups = groups, .y = &between },
                                    .add = { .a = &a, .b = &b, .c = &between, .y = &y } });
    m2_arena_restore(&c->arena, mark);
}

void release_products(random_case *c, const m2_ops *ops, int64_t n)
{
    const m2_groups groups = three_groups(n);
    run_product(c, ops, n, HIDDEN, N_HEADS, M2_BF16, NULL);             /* gates of heads     */
    run_product(c, ops, n, HIDDEN, HIDDEN, M2_BF16, NULL);              /* split, merge       */
    run_product(c, ops, n, HIDDEN, 2 * EXPERT_WIDTH, M2_BF16, &groups); /* shared experts  */
    run_product(c, ops, n, EXPERT_WIDTH, HIDDEN, M2_BF16, &groups);
    run_product(c, ops, n, 48, 4 * HIDDEN, M2_F32, NULL); /* adapters           */
    run_product(c, ops, n, 4 * HIDDEN, 64, M2_F32, NULL); /* the final ones     */
    run_joined_products(c, ops, n, NULL);
    run_joined_products(c, ops, n, &groups);
    m2_tensor x = fast(c, M2_BF16, 4, n, 2 * 8192);
    m2_tensor y = m2_tensor_make(&c->arena, M2_BF16, n, 8192);
    ops->swiglu7(ops, &(m2_swiglu7_args){ .x = &x, .y = &y });
}

typedef struct expert_sizes {
    int64_t heads, dim, experts, top_k, width;
} expert_sizes;

static void run_experts(random_case *c, const m2_ops *ops, int64_t n, expert_sizes size)
{
    const int64_t heads = size.heads, dim = size.dim, experts = size.experts, top_k = size.top_k;
    const int64_t n_routes = heads * n * top_k, width = size.width;
    m2_tensor x = fast(c, M2_BF16, 1, n, heads, dim);
    m2_tensor gate = fast(c, M2_F32, 2.0f / sqrtf((float)dim), heads * experts, dim);
    m2_tensor bias = fast(c, M2_F32, 0.1f, heads * experts);
    m2_tensor logits = m2_tensor_make(&c->arena, M2_F32, heads, n, experts);
    m2_tensor idx = m2_tensor_make(&c->arena, M2_I32, heads, n, top_k);
    m2_tensor prob = m2_tensor_make(&c->arena, M2_F32, heads, n, top_k);
    m2_tensor gather = m2_tensor_make(&c->arena, M2_I32, n_routes);
    m2_tensor sorted = m2_tensor_make(&c->arena, M2_F32, n_routes);
    m2_tensor offsets = m2_tensor_make(&c->arena, M2_I32, heads * experts + 1);
    m2_tensor pos = m2_tensor_make(&c->arena, M2_I32, heads, n, top_k);
    m2_tensor routes = m2_tensor_make(&c->arena, M2_BF16, n_routes, dim);
    const float in_scale = 2.0f / sqrtf((float)dim), out_scale = 1.0f / sqrtf((float)width);
    m2_tensor w_gate = fast(c, M2_BF16, in_scale, heads * experts, dim, width);
    m2_tensor w_up = fast(c, M2_BF16, in_scale, heads * experts, dim, width);
    m2_tensor w_down = fast(c, M2_BF16, out_scale, heads * experts, width, dim);
    m2_tensor y = m2_tensor_make(&c->arena, M2_BF16, n, heads, dim);
    ops->moe_logits(ops, &(m2_moe_logits_args){ .x = &x, .gate = &gate, .logits = &logits });
    ops->moe_select(ops, &(m2_moe_select_args){ .logits = &logits,
                                                .bias = &bias,
                                                .route_scale = 2.5f,
                                                .topk_idx = &idx,
                                                .topk_prob = &prob });
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
                                          .w_gate = &w_gate,
                                          .w_up = &w_up,
                                          .w_down = &w_down,
                                          .routes = &routes,
                                          .y = &y });
}

void release_experts(random_case *c, const m2_ops *ops, int64_t n)
{
    run_experts(c, ops, n, (expert_sizes){ 1, EXPERT_DIM, N_EXPERTS, TOP_K, EXPERT_WIDTH });
}

/* All twelve heads, with few experts each: many rows an expert.  Then fewer experts a token. */
void release_heads_of_experts(random_case *c, const m2_ops *ops, int64_t n)
{
    run_experts(c, ops, n, (expert_sizes){ 12, EXPERT_DIM, 8, TOP_K, EXPERT_WIDTH });
    run_experts(c, ops, n, (expert_sizes){ 2, EXPERT_DIM, 3, 2, EXPERT_WIDTH });
    run_experts(c, ops, n, (expert_sizes){ 1, EXPERT_DIM, 3, 1, EXPERT_WIDTH });
}

void demo_layer(random_case *c, const m2_ops *ops, int64_t n)
{
    run_attention_part(c, ops, n, (attention_sizes){ 6, 3, 32, 12 });
    run_streams(c, ops, n, 192, three_groups(n));
    run_experts(c, ops, n, (expert_sizes){ 3, 64, 16, 2, 32 });
}

/* The text encoder's two kinds of layer. */
void release_text(random_case *c, const m2_ops *ops, int64_t n)
{
    const int64_t heads = 24, kv = 4, dim = 256, n_rot = 32;
    m2_tensor qg = fast(c, M2_BF16, 1, n, heads, 2 * dim), k_in = fast(c, M2_BF16, 1, n, kv, dim);
    m2_tensor w = fast(c, M2_BF16, 0.2f, dim), v = fast(c, M2_BF16, 1, n, kv, dim);
    m2_tensor cosines = m2_tensor_make(&c->arena, M2_BF16, n, n_rot);
    m2_tensor sines = m2_tensor_make(&c->arena, M2_BF16, n, n_rot);
    m2_tensor q = m2_tensor_make(&c->arena, M2_BF16, n, heads, dim);
    m2_tensor k = m2_tensor_make(&c->arena, M2_BF16, n, kv, dim);
    m2_tensor y = m2_tensor_make(&c->arena, M2_BF16, n, heads, dim);
    m2_tensor gated = m2_tensor_make(&c->arena, M2_BF16, n, heads * dim);
    const int64_t segments[] = { 0, n };
    ops->text_rope_table(
        ops, &(m2_text_rope_table_args){ .theta = 1e7, .cos = &cosines, .sin = &sines });
    ops->text_qk_norm_rope(ops, &(m2_text_qk_norm_rope_args){ .qg = &qg,
                                                              .k_in = &k_in,
                                                              .q_norm = &w,
                                                              .k_norm = &w,
                                                              .cos = &cosines,
                                                              .sin = &sines,
                                                              .eps = 1e-6f,
                                                              .q = &q,
                                                              .k = &k });
    ops->attention(ops, &(m2_attention_args){ .q = &q,
                                              .k = &k,
                                              .v = &v,
                                              .segments = segments,
                                              .n_segments = 1,
                                              .scale = 0.0625f,
                                              .is_causal = 1,
                                              .y = &y });
    ops->text_gate(ops, &(m2_text_gate_args){ .a = &y, .qg = &qg, .y = &gated });
}

/* A stage of the video decoder and one of the audio decoder. */
void release_decoder(random_case *c, const m2_ops *ops, int64_t n)
{
    const int64_t width = n < 40 ? n : 40, c_in = 128, c_out = 256;
    m2_tensor x = fast(c, M2_BF16, 1, 3, 5, width, c_in);
    m2_tensor w = fast(c, M2_BF16, 0.03f, 27, c_out, c_in), bias = fast(c, M2_BF16, 0.1f, c_out);
    m2_tensor y = m2_tensor_make(&c->arena, M2_BF16, 3, 5, width, c_out);
    ops->conv(ops, &(m2_conv_args){ .x = &x,
                                    .w = &w,
                                    .bias = &bias,
                                    .kernel = { 3, 3, 3 },
                                    .dilation = 1,
                                    .pad_left = -1,
                                    .y = &y });
    m2_tensor sound = fast(c, M2_F32, 1, n, 256), taps = fast(c, M2_F32, 0.05f, 16, 128, 256);
    m2_tensor longer = m2_tensor_make(&c->arena, M2_F32, 8 * n, 128);
    ops->conv_transpose(
        ops, &(m2_conv_transpose_args){ .x = &sound, .w = &taps, .stride = 8, .y = &longer });
    m2_tensor line = m2_tensor_over(longer.data, M2_F32, 1, 1, 8 * n, 128);
    m2_tensor filter = fast(c, M2_F32, 0.03f, 7, 128, 128);
    m2_tensor out = m2_tensor_make(&c->arena, M2_F32, 1, 1, 8 * n, 128);
    ops->conv(ops, &(m2_conv_args){ .x = &line,
                                    .w = &filter,
                                    .kernel = { 1, 1, 7 },
                                    .dilation = 9,
                                    .pad_left = -1,
                                    .y = &out });
}
