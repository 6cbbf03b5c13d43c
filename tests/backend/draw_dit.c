/* draw_dit.c - cases of the preview transformer's tables and of its choice of experts. */
#include "backend/draw.h"

void draw_rope_table(random_case *c, const m2_ops *ops, m2_tensor *y_out)
{
    const int64_t n = draw_size(c, 200), n_bands = random_int(c, 1, 17);
    m2_tensor coords = m2_tensor_make(&c->arena, M2_F32, n, 9);
    m2_tensor bands = m2_tensor_make(&c->arena, M2_F32, n_bands);
    float *at = coords.data;
    for (int64_t i = 0; i < n; i++, at += 9) {
        for (int axis = 0; axis < 3; axis++) {
            const int64_t size = random_int(c, 1, 60);
            at[axis] = (float)random_int(c, 0, size - 1);
            at[3 + axis] = (float)size;
            at[6 + axis] = size == 1 ? 1.0f : (float)random_int(c, 1, 60);
        }
    }
    for (int64_t i = 0; i < n_bands; i++)
        ((float *)bands.data)[i] = expf(-9.0f * (float)i / (float)n_bands);
    *y_out = m2_tensor_make(&c->arena, M2_F32, n, 6 * n_bands);
    ops->rope_table(ops,
                    &(m2_rope_table_args){ .coords = &coords, .bands = &bands, .table = y_out });
}

void draw_time_channels(random_case *c, const m2_ops *ops, m2_tensor *y_out)
{
    const int64_t n = draw_size(c, 100), n_channels = 2 * random_int(c, 1, 40);
    m2_tensor tau = m2_tensor_make(&c->arena, M2_F32, n);
    for (int64_t i = 0; i < n; i++)
        ((float *)tau.data)[i] = (float)random_int(c, 0, 1000) / 1000.0f;
    *y_out = random_tensor(c, M2_F32, 1, n, n_channels + random_int(c, 0, 50));
    ops->time_channels(
        ops, &(m2_time_channels_args){ .tau = &tau, .n_channels = (int)n_channels, .x = y_out });
}

void draw_mhc_open(random_case *c, const m2_ops *ops, m2_tensor *y_out)
{
    const int64_t n = draw_size(c, 150), dim = draw_size(c, 300);
    m2_groups groups = draw_groups(c, n);
    m2_tensor s = draw_tensor(c, M2_BF16, 1, n, 4, dim);
    m2_tensor norm = draw_tensor(c, M2_F32, 0.3f, groups.n_groups * 4 * dim);
    m2_tensor phi = draw_tensor(c, M2_F32, 0.5f, 4 * dim, 24);
    m2_tensor alpha = random_tensor(c, M2_F32, 1, 3);
    m2_tensor bias = random_tensor(c, M2_F32, 1, 2, 4),
              bias_res = random_tensor(c, M2_F32, 1, 4, 4);
    m2_tensor alphas[3], biases[2];
    for (int i = 0; i < 3; i++) alphas[i] = m2_tensor_rows(&alpha, i, i + 1);
    for (int i = 0; i < 2; i++) biases[i] = m2_tensor_over((float *)bias.data + 4 * i, M2_F32, 4);
    m2_tensor pre = m2_tensor_make(&c->arena, M2_BF16, n, 4);
    m2_tensor post = m2_tensor_make(&c->arena, M2_BF16, n, 4);
    m2_tensor res = m2_tensor_make(&c->arena, M2_BF16, n, 4, 4);
    *y_out = m2_tensor_make(&c->arena, M2_BF16, n, dim);
    m2_mhc_open_args args = { .coefficients = { .s = &s,
                                                .norm = &norm,
                                                .groups = &groups,
                                                .phi = &phi,
                                                .alpha_pre = &alphas[0],
                                                .alpha_post = &alphas[1],
                                                .alpha_res = &alphas[2],
                                                .bias_pre = &biases[0],
                                                .bias_post = &biases[1],
                                                .bias_res = &bias_res,
                                                .eps = 1e-6f,
                                                .h_pre = &pre,
                                                .h_post = &post,
                                                .h_res = &res },
                              .x = y_out };
    ops->mhc_open(ops, &args);
}

/* top_k different experts for every token of every head. */
static m2_tensor draw_choice(random_case *c, int64_t heads, int64_t n, int64_t top_k,
                             int64_t experts)
{
    m2_tensor idx = m2_tensor_make(&c->arena, M2_I32, heads, n, top_k);
    int32_t *ids = idx.data;
    for (int64_t row = 0; row < heads * n; row++, ids += top_k) {
        for (int64_t i = 0; i < top_k;) {
            ids[i] = (int32_t)random_int(c, 0, experts - 1);
            int64_t j = 0;
            while (ids[j] != ids[i]) j++;
            i += i == j;
        }
    }
    return idx;
}

void draw_moe_select(random_case *c, const m2_ops *ops, m2_tensor *y_out)
{
    const int64_t n = draw_size(c, 120), heads = random_int(c, 1, 3);
    static const int64_t fewest[] = { 6, 65, 257 }, most[] = { 64, 255, 400 };
    const int64_t kind = random_turn(c, 4), top_k = random_int(c, 1, 6);
    const int64_t experts = kind == 3 ? 256 : random_int(c, fewest[kind], most[kind]);
    const int has_bias = (int)random_int(c, 0, 1), is_forced = random_int(c, 0, 3) == 0;
    m2_tensor logits = random_tensor(c, M2_F32, 2, heads, n, experts);
    m2_tensor bias = random_tensor(c, M2_F32, 0.1f, heads * experts);
    if (random_int(c, 0, 3) == 0) { /* equal keys: the lower id goes first */
        float *at = logits.data;
        for (int64_t i = 0; i < heads * n * experts; i++) at[i] = rintf(at[i]);
        memset(bias.data, 0, m2_tensor_bytes(&bias));
    }
    m2_tensor forced = draw_choice(c, heads, n, top_k, experts);
    m2_tensor prob = m2_tensor_make(&c->arena, M2_F32, heads, n, top_k);
    *y_out = m2_tensor_make(&c->arena, M2_I32, heads, n, top_k);
    ops->moe_select(ops, &(m2_moe_select_args){ .logits = &logits,
                                                .bias = has_bias ? &bias : NULL,
                                                .forced = is_forced ? &forced : NULL,
                                                .route_scale = 2.0f,
                                                .topk_idx = y_out,
                                                .topk_prob = &prob });
}

void draw_moe_dispatch(random_case *c, const m2_ops *ops, m2_tensor *y_out)
{
    const int64_t n = draw_size(c, random_int(c, 0, 3) ? 200 : 3000), heads = random_int(c, 1, 3);
    const int64_t experts = random_int(c, 0, 2) ? random_int(c, 6, 70) : 256;
    /* Now and then almost all tokens at a few experts, and most experts without any. */
    const int64_t used = random_int(c, 0, 1) ? experts : 6;
    const int64_t top_k = random_int(c, 1, 6), n_routes = heads * n * top_k;
    m2_tensor idx = draw_choice(c, heads, n, top_k, used);
    m2_tensor prob = random_tensor(c, M2_F32, 1, heads, n, top_k);
    m2_tensor gather = m2_tensor_make(&c->arena, M2_I32, n_routes);
    m2_tensor sorted = m2_tensor_make(&c->arena, M2_F32, n_routes);
    m2_tensor offsets = m2_tensor_make(&c->arena, M2_I32, heads * experts + 1);
    *y_out = m2_tensor_make(&c->arena, M2_I32, heads, n, top_k);
    ops->moe_dispatch(ops, &(m2_moe_dispatch_args){ .topk_idx = &idx,
                                                    .topk_prob = &prob,
                                                    .n_experts = (int)experts,
                                                    .gather_ids = &gather,
                                                    .probs_sorted = &sorted,
                                                    .expert_offsets = &offsets,
                                                    .route_pos = y_out });
}
