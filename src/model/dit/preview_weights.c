#include "model/dit/preview_weights.h"

#include <stdio.h>

/* Sizes that shapes name; each of the "_M" pairs is for one weight set and for three. */
enum {
    RESIDUAL_1 = -1,
    RESIDUAL_3 = -2,
    HIDDEN_1 = -3,
    HIDDEN_3 = -4,
    HEADS_1 = -5,
    HEADS_3 = -6,
    QKV_1 = -7,
    QKV_3 = -8,
    HEAD_DIM_1 = -9,
    HEAD_DIM_3 = -10,
    UP_1 = -11,
    UP_3 = -12,
    DENSE = -13,
    SINKS = -14,
    BANDS = -15,
    VIDEO = -16,
    AUDIO = -17,
    TEXT = -18,
    SHARED = -19,
    SHARED_UP = -20,
    MODALITY = -21,
    MODALITY_UP_3 = -22,
    EXPERT_ROWS = -23, /* (MoE head, expert) pairs, head-major */
    MOE_DIM = -24,
    EXPERT = -25,
    N_SYMBOLS = 25
};

#define N_COEFFICIENTS (2 * M2_STREAMS + M2_STREAMS * M2_STREAMS)
#define N_ROWS(table)  ((int)(sizeof(table) / sizeof((table)[0])))

/* clang-format off: one row, one line. */
#define TOP(field) offsetof(m2_preview_weights, field)
static const m2_weight_desc top_table[] = {
    { TOP(video_w), "pre_adapter.video_embedder.weight", M2_F32, { RESIDUAL_1, VIDEO }, 0 },
    { TOP(video_b), "pre_adapter.video_embedder.bias", M2_F32, { RESIDUAL_1 }, 0 },
    { TOP(audio_w), "pre_adapter.audio_embedder.weight", M2_F32, { RESIDUAL_1, AUDIO }, 0 },
    { TOP(audio_b), "pre_adapter.audio_embedder.bias", M2_F32, { RESIDUAL_1 }, 0 },
    { TOP(text_w), "pre_adapter.text_embedder.weight", M2_F32, { RESIDUAL_1, TEXT }, 0 },
    { TOP(text_b), "pre_adapter.text_embedder.bias", M2_F32, { RESIDUAL_1 }, 0 },
    { TOP(rope_bands), "pre_adapter.rope.bands", M2_F32, { BANDS }, 0 },
    { TOP(video_norm), "post_adapter.final_norm_video.weight", M2_F32, { RESIDUAL_1 }, 0 },
    { TOP(audio_norm), "post_adapter.final_norm_audio.weight", M2_F32, { RESIDUAL_1 }, 0 },
    { TOP(video_linear),
      "post_adapter.final_linear_video.weight",
      M2_F32,
      { VIDEO, RESIDUAL_1 },
      0 },
    { TOP(audio_linear),
      "post_adapter.final_linear_audio.weight",
      M2_F32,
      { AUDIO, RESIDUAL_1 },
      0 },
};

#define LAYER(field) offsetof(m2_preview_layer_weights, field)

/* Rows of one half layer's mHC; phi is [in, out]. */
#define MHC_ROWS(half)                                                                             \
    { LAYER(mhc_##half.alpha_pre), "mhc_alpha_pre_" #half, M2_F32, { 1 }, 0 },                     \
        { LAYER(mhc_##half.alpha_post), "mhc_alpha_post_" #half, M2_F32, { 1 }, 0 },               \
        { LAYER(mhc_##half.alpha_res), "mhc_alpha_res_" #half, M2_F32, { 1 }, 0 },                 \
        { LAYER(mhc_##half.bias_pre), "mhc_bias_pre_" #half, M2_F32, { M2_STREAMS }, 0 },          \
        { LAYER(mhc_##half.bias_post), "mhc_bias_post_" #half, M2_F32, { M2_STREAMS }, 0 },        \
        { LAYER(mhc_##half.bias_res),                                                              \
          "mhc_bias_res_" #half,                                                                   \
          M2_F32,                                                                                  \
          { M2_STREAMS, M2_STREAMS },                                                              \
          0 },                                                                                     \
    {                                                                                              \
        LAYER(mhc_##half.phi), "mhc_phi_fused_" #half, M2_F32, { RESIDUAL_1, N_COEFFICIENTS }, 0   \
    }

static const m2_weight_desc mhc_table[] = { MHC_ROWS(attn), MHC_ROWS(mlp) };

/* Attention with one weight set (M = 1) or one for each modality (M = 3). */
#define ATTENTION_ROWS(M)                                                                          \
    { LAYER(mhc_norm), "mhc_norm.weight", M2_F32, { RESIDUAL_##M }, 0 },                           \
        { LAYER(attn_norm), "attention.pre_norm.weight", M2_F32, { HIDDEN_##M }, 0 },              \
        { LAYER(linear_qkv), "attention.linear_qkv.weight", M2_BF16, { QKV_##M, HIDDEN_1 }, 0 },   \
        { LAYER(linear_proj),                                                                      \
          "attention.linear_proj.weight",                                                          \
          M2_BF16,                                                                                 \
          { HIDDEN_##M, HIDDEN_1 },                                                                \
          0 },                                                                                     \
        { LAYER(q_norm), "attention.q_norm.weight", M2_F32, { HEAD_DIM_##M }, 0 },                 \
    {                                                                                              \
        LAYER(k_norm), "attention.k_norm.weight", M2_F32, { HEAD_DIM_##M }, 0                      \
    }
#define GATE_ROW(M)                                                                                \
    {                                                                                              \
        LAYER(linear_g), "attention.linear_g.weight", M2_BF16, { HEADS_##M, HIDDEN_1 }, 0          \
    }

static const m2_weight_desc attention_table[] = { ATTENTION_ROWS(1) };
static const m2_weight_desc attention_mm_table[] = { ATTENTION_ROWS(3) };
static const m2_weight_desc gate_table[] = { GATE_ROW(1) };
static const m2_weight_desc gate_mm_table[] = { GATE_ROW(3) };
static const m2_weight_desc sinks_table[] = {
    { LAYER(sinks), "attention.sinks", M2_F32, { SINKS, HEADS_1 }, 0 },
};

#define DENSE_ROWS(M)                                                                              \
    { LAYER(mlp_norm), "mlp.pre_norm.weight", M2_F32, { HIDDEN_##M }, 0 },                         \
        { LAYER(up_gate), "mlp.up_gate_proj.weight", M2_BF16, { UP_##M, HIDDEN_1 }, 0 },           \
    {                                                                                              \
        LAYER(down), "mlp.down_proj.weight", M2_BF16, { HIDDEN_##M, DENSE }, 0                     \
    }

static const m2_weight_desc dense_table[] = { DENSE_ROWS(1) };
static const m2_weight_desc dense_mm_table[] = { DENSE_ROWS(3) };

/* The norm and one shared expert are always per modality here.  expert_bias_ema replaces
 * expert_bias, as the reference's loader does: routing with the raw one gives plausible but worse
 * video. */
static const m2_weight_desc moe_table[] = {
    { LAYER(mlp_norm), "mlp.pre_norm.weight", M2_F32, { HIDDEN_3 }, 0 },
    { LAYER(split), "mlp.split_linear.weight", M2_BF16, { HIDDEN_1, HIDDEN_1 }, 0 },
    { LAYER(merge), "mlp.merge_linear.weight", M2_BF16, { HIDDEN_1, HIDDEN_1 }, 0 },
    { LAYER(shared_fc1), "mlp.shared_expert_fc1.weight", M2_BF16, { SHARED_UP, HIDDEN_1 }, 0 },
    { LAYER(shared_fc2), "mlp.shared_expert_fc2.weight", M2_BF16, { HIDDEN_1, SHARED }, 0 },
    { LAYER(modality_fc1),
      "mlp.modality_specific_shared_expert_fc1.weight",
      M2_BF16,
      { MODALITY_UP_3, HIDDEN_1 },
      0 },
    { LAYER(modality_fc2),
      "mlp.modality_specific_shared_expert_fc2.weight",
      M2_BF16,
      { HIDDEN_3, MODALITY },
      0 },
    { LAYER(router), "mlp.moe_mlp.gate", M2_F32, { EXPERT_ROWS, MOE_DIM }, M2_WEIGHT_EXPERTS },
    { LAYER(w_gate),
      "mlp.moe_mlp.W_gate",
      M2_BF16,
      { EXPERT_ROWS, MOE_DIM, EXPERT },
      M2_WEIGHT_EXPERTS },
    { LAYER(w_up),
      "mlp.moe_mlp.W_up",
      M2_BF16,
      { EXPERT_ROWS, MOE_DIM, EXPERT },
      M2_WEIGHT_EXPERTS },
    { LAYER(w_down),
      "mlp.moe_mlp.W_down",
      M2_BF16,
      { EXPERT_ROWS, EXPERT, MOE_DIM },
      M2_WEIGHT_EXPERTS },
    { LAYER(expert_bias),
      "mlp.moe_mlp.router.expert_bias",
      M2_F32,
      { EXPERT_ROWS },
      M2_WEIGHT_EXPERTS },
    { LAYER(expert_bias_ema),
      "mlp.moe_mlp.router.expert_bias_ema",
      M2_F32,
      { EXPERT_ROWS },
      M2_WEIGHT_EXPERTS },
};
/* clang-format on */

/* What is wrong with a config, or NULL. */
static const char *config_fault(const m2_arch_config *arch)
{
    if (arch->num_layers < 1 || arch->num_layers > M2_LAYERS_MAX)
        return "num_layers is out of range";
    if (arch->hidden_size < 1 || arch->head_dim < 1 || arch->hidden_size % arch->head_dim != 0)
        return "hidden_size must be a multiple of head_dim";
    if (arch->head_dim % 8 != 0) return "head_dim must be a multiple of 8 (rotary bands)";
    if (arch->num_query_groups < 1 ||
        arch->hidden_size / arch->head_dim % arch->num_query_groups != 0)
        return "the number of heads must be a multiple of num_query_groups";
    if (arch->mhc_num_stream != M2_STREAMS) return "mhc num_stream must be 4";
    if (arch->video_in_channels < 1 || arch->audio_in_channels < 1 || arch->text_in_channels < 1)
        return "channel counts must be positive";
    if (arch->moe_num_heads < 1 || arch->hidden_size % arch->moe_num_heads != 0)
        return "hidden_size must be a multiple of the MoE heads";
    if (arch->moe_top_k < 1 || arch->moe_top_k > arch->moe_num_experts)
        return "moe top_k must be between 1 and num_experts";
    if (arch->moe_expert_intermediate < 1 || arch->moe_shared_intermediate < 1 ||
        arch->moe_modality_intermediate < 1)
        return "expert widths must be positive";
    if (arch->attn_sinks && arch->sink_token_num < 1) return "sink_token_num must be positive";
    if (!(arch->hidden_size * arch->intermediate_factor * 2 / 3 >= 128))
        return "hidden_size * intermediate_factor * 2 / 3 must be 128 or more";
    return NULL;
}

m2_status m2_preview_sizes_init(const m2_arch_config *arch, m2_preview_sizes *sizes_out)
{
    const char *fault = config_fault(arch);
    if (fault) return m2_fail(M2_ERR_MODEL, "preview config: %s", fault);
    *sizes_out = (m2_preview_sizes){
        .hidden = arch->hidden_size,
        .residual = (int64_t)M2_STREAMS * arch->hidden_size,
        .n_heads = arch->hidden_size / arch->head_dim,
        .n_kv_heads = arch->num_query_groups,
        .head_dim = arch->head_dim,
        .n_bands = arch->head_dim / 8,
        .n_sinks = arch->sink_token_num,
        .dense_width = (int64_t)(arch->hidden_size * arch->intermediate_factor * 2 / 3) / 128 * 128,
        .n_moe_heads = arch->moe_num_heads,
        .moe_dim = arch->hidden_size / arch->moe_num_heads,
        .n_experts = arch->moe_num_experts,
        .top_k = arch->moe_top_k,
        .expert_width = arch->moe_expert_intermediate,
        .shared_width = arch->moe_shared_intermediate,
        .modality_width = arch->moe_modality_intermediate,
        .video_channels = arch->video_in_channels,
        .audio_channels = arch->audio_in_channels,
        .text_channels = arch->text_in_channels,
    };
    return M2_OK;
}

static void set_dim(int64_t *dims, int symbol, int64_t size)
{
    dims[-symbol - 1] = size;
}

static void fill_dims(const m2_preview_sizes *sizes, int64_t *dims)
{
    const int64_t qkv = (sizes->n_heads + 2 * sizes->n_kv_heads) * sizes->head_dim;
    const int64_t three = M2_MODALITIES;
    set_dim(dims, RESIDUAL_1, sizes->residual);
    set_dim(dims, RESIDUAL_3, sizes->residual * three);
    set_dim(dims, HIDDEN_1, sizes->hidden);
    set_dim(dims, HIDDEN_3, sizes->hidden * three);
    set_dim(dims, HEADS_1, sizes->n_heads);
    set_dim(dims, HEADS_3, sizes->n_heads * three);
    set_dim(dims, QKV_1, qkv);
    set_dim(dims, QKV_3, qkv * three);
    set_dim(dims, HEAD_DIM_1, sizes->head_dim);
    set_dim(dims, HEAD_DIM_3, sizes->head_dim * three);
    set_dim(dims, UP_1, 2 * sizes->dense_width);
    set_dim(dims, UP_3, 2 * sizes->dense_width * three);
    set_dim(dims, DENSE, sizes->dense_width);
    set_dim(dims, SINKS, sizes->n_sinks);
    set_dim(dims, BANDS, sizes->n_bands);
    set_dim(dims, VIDEO, sizes->video_channels);
    set_dim(dims, AUDIO, sizes->audio_channels);
    set_dim(dims, TEXT, sizes->text_channels);
    set_dim(dims, SHARED, sizes->shared_width);
    set_dim(dims, SHARED_UP, 2 * sizes->shared_width);
    set_dim(dims, MODALITY, sizes->modality_width);
    set_dim(dims, MODALITY_UP_3, 2 * sizes->modality_width * three);
    set_dim(dims, EXPERT_ROWS, sizes->n_moe_heads * sizes->n_experts);
    set_dim(dims, MOE_DIM, sizes->moe_dim);
    set_dim(dims, EXPERT, sizes->expert_width);
}

/* One walk over all tables serves binding and listing. */
typedef void table_visit(void *user, const m2_weight_desc *table, int n_rows, const char *prefix,
                         void *fields);

static void visit_tables(const m2_arch_config *arch, table_visit *visit, void *user,
                         m2_preview_weights *weights)
{
    visit(user, top_table, N_ROWS(top_table), "", weights);
    for (int i = 0; i < arch->num_layers; i++) {
        const int is_mm = arch->is_mm_layer[i];
        char prefix[40];
        snprintf(prefix, sizeof prefix, "block.layers.%d.", i);
        m2_preview_layer_weights *layer = weights ? &weights->layers[i] : NULL;
        if (layer) {
            *layer = (m2_preview_layer_weights){ .is_mm = is_mm, .is_moe = arch->is_moe_layer[i] };
        }
        visit(user, is_mm ? attention_mm_table : attention_table, N_ROWS(attention_table), prefix,
              layer);
        if (arch->attn_gating)
            visit(user, is_mm ? gate_mm_table : gate_table, N_ROWS(gate_table), prefix, layer);
        if (arch->attn_sinks) visit(user, sinks_table, N_ROWS(sinks_table), prefix, layer);
        visit(user, mhc_table, N_ROWS(mhc_table), prefix, layer);
        if (arch->is_moe_layer[i])
            visit(user, moe_table, N_ROWS(moe_table), prefix, layer);
        else
            visit(user, is_mm ? dense_mm_table : dense_table, N_ROWS(dense_table), prefix, layer);
    }
}

static void bind_table(void *user, const m2_weight_desc *table, int n_rows, const char *prefix,
                       void *fields)
{
    m2_weights_bind(user, table, n_rows, prefix, fields);
}

m2_status m2_preview_weights_bind(const m2_checkpoint *checkpoint, const m2_arch_config *arch,
                                  const m2_ops *ops, m2_arena *arena, m2_preview_weights *weights)
{
    m2_preview_sizes sizes;
    int64_t dims[N_SYMBOLS] = { 0 };
    M2_TRY(m2_preview_sizes_init(arch, &sizes));
    fill_dims(&sizes, dims);

    m2_weight_binder *binder = NULL;
    M2_TRY(m2_weight_binder_create(checkpoint, dims, N_SYMBOLS, ops, arena, &binder));
    visit_tables(arch, bind_table, binder, weights);
    const m2_status status = m2_weight_binder_finish(binder, "preview transformer");
    m2_weight_binder_destroy(binder);
    return status;
}

static void shape_table(void *user, const m2_weight_desc *table, int n_rows, const char *prefix,
                        void *fields)
{
    const int64_t *dims = user;
    (void)prefix;
    for (int i = 0; i < n_rows; i++) {
        int64_t shape[M2_MAX_DIMS];
        int n = 0;
        for (; n < M2_MAX_DIMS && table[i].shape[n] != 0; n++) {
            const int size = table[i].shape[n];
            shape[n] = size < 0 ? dims[-size - 1] : size;
        }
        m2_tensor *field = (m2_tensor *)((char *)fields + table[i].offset);
        *field = m2_tensor_wrap(NULL, table[i].dtype, n, shape);
    }
}

m2_status m2_preview_weights_shapes(const m2_arch_config *arch, m2_preview_weights *weights)
{
    m2_preview_sizes sizes;
    int64_t dims[N_SYMBOLS] = { 0 };
    M2_TRY(m2_preview_sizes_init(arch, &sizes));
    fill_dims(&sizes, dims);
    visit_tables(arch, shape_table, dims, weights);
    return M2_OK;
}

typedef struct describer {
    const int64_t *dims;
    m2_weight_visit *row;
    void *user;
} describer;

static void describe_table(void *user, const m2_weight_desc *table, int n_rows, const char *prefix,
                           void *fields)
{
    const describer *to = user;
    (void)fields;
    m2_weights_describe(table, n_rows, prefix, to->dims, to->row, to->user);
}

m2_status m2_preview_weights_describe(const m2_arch_config *arch, m2_weight_visit *row, void *user)
{
    m2_preview_sizes sizes;
    int64_t dims[N_SYMBOLS] = { 0 };
    M2_TRY(m2_preview_sizes_init(arch, &sizes));
    fill_dims(&sizes, dims);
    visit_tables(arch, describe_table, &(describer){ dims, row, user }, NULL);
    return M2_OK;
}
