#include "model/text/encoder_weights.h"

#include <stddef.h>
#include <stdio.h>
#include <string.h>

/* Sizes that the tables' shapes stand for. */
enum {
    VOCAB = -1,
    HIDDEN = -2,
    MLP = -3,
    Q_GATE = -4, /* H * 2 * d */
    HEADS = -5,  /* H * d     */
    KV = -6,     /* K * d     */
    HEAD_DIM = -7,
    CHANNELS = -8, /* 2 * Hk * dk + Hv * dv */
    VALUES = -9,   /* Hv * dv   */
    VALUE_HEADS = -10,
    VALUE_DIM = -11,
    KERNEL = -12
};
#define N_DIMS 12

static void fill_dims(const m2_text_config *config, int64_t dims[N_DIMS])
{
    const int64_t values = (int64_t)config->n_value_heads * config->value_dim;
    dims[-VOCAB - 1] = config->vocab_size;
    dims[-HIDDEN - 1] = config->hidden_size;
    dims[-MLP - 1] = config->mlp_size;
    dims[-Q_GATE - 1] = 2 * (int64_t)config->n_heads * config->head_dim;
    dims[-HEADS - 1] = (int64_t)config->n_heads * config->head_dim;
    dims[-KV - 1] = (int64_t)config->n_kv_heads * config->head_dim;
    dims[-HEAD_DIM - 1] = config->head_dim;
    dims[-CHANNELS - 1] = 2 * (int64_t)config->n_key_heads * config->key_dim + values;
    dims[-VALUES - 1] = values;
    dims[-VALUE_HEADS - 1] = config->n_value_heads;
    dims[-VALUE_DIM - 1] = config->value_dim;
    dims[-KERNEL - 1] = config->conv_kernel;
}

/* Every table exists as bf16 and, for judging, as f32: TABLE(rows) makes both. */
#define LAYER(field) offsetof(m2_text_layer, field)
#define COMMON_ROWS(T)                                                                             \
    { LAYER(input_norm), "input_layernorm.weight", T, { HIDDEN }, 0 },                             \
        { LAYER(post_norm), "post_attention_layernorm.weight", T, { HIDDEN }, 0 },                 \
        { LAYER(gate_proj), "mlp.gate_proj.weight", T, { MLP, HIDDEN }, 0 },                       \
        { LAYER(up_proj), "mlp.up_proj.weight", T, { MLP, HIDDEN }, 0 },                           \
        { LAYER(down_proj), "mlp.down_proj.weight", T, { HIDDEN, MLP }, 0 },
#define FULL_ROWS(T)                                                                               \
    { LAYER(q_proj), "self_attn.q_proj.weight", T, { Q_GATE, HIDDEN }, 0 },                        \
        { LAYER(k_proj), "self_attn.k_proj.weight", T, { KV, HIDDEN }, 0 },                        \
        { LAYER(v_proj), "self_attn.v_proj.weight", T, { KV, HIDDEN }, 0 },                        \
        { LAYER(o_proj), "self_attn.o_proj.weight", T, { HIDDEN, HEADS }, 0 },                     \
        { LAYER(q_norm), "self_attn.q_norm.weight", T, { HEAD_DIM }, 0 },                          \
        { LAYER(k_norm), "self_attn.k_norm.weight", T, { HEAD_DIM }, 0 },
#define LINEAR_ROWS(T)                                                                             \
    { LAYER(in_proj_qkv), "linear_attn.in_proj_qkv.weight", T, { CHANNELS, HIDDEN }, 0 },          \
        { LAYER(in_proj_z), "linear_attn.in_proj_z.weight", T, { VALUES, HIDDEN }, 0 },            \
        { LAYER(in_proj_b), "linear_attn.in_proj_b.weight", T, { VALUE_HEADS, HIDDEN }, 0 },       \
        { LAYER(in_proj_a), "linear_attn.in_proj_a.weight", T, { VALUE_HEADS, HIDDEN }, 0 },       \
        { LAYER(conv), "linear_attn.conv1d.weight", T, { CHANNELS, 1, KERNEL }, 0 },               \
        { LAYER(dt_bias), "linear_attn.dt_bias", T, { VALUE_HEADS }, 0 },                          \
        { LAYER(a_log), "linear_attn.A_log", T, { VALUE_HEADS }, 0 },                              \
        { LAYER(gated_norm), "linear_attn.norm.weight", T, { VALUE_DIM }, 0 },                     \
        { LAYER(out_proj), "linear_attn.out_proj.weight", T, { HIDDEN, VALUES }, 0 },
#define EMBED_ROWS(T)                                                                              \
    { offsetof(m2_text_weights, embed_tokens), "embed_tokens.weight", T, { VOCAB, HIDDEN }, 0 },
#define NORM_ROWS(T) { offsetof(m2_text_weights, norm), "norm.weight", T, { HIDDEN }, 0 },

typedef struct weight_table {
    const m2_weight_desc *rows;
    int n_rows;
} weight_table;

#define TABLE(name, ROWS)                                                                          \
    static const m2_weight_desc name##_bf16[] = { ROWS(M2_BF16) };                                 \
    static const m2_weight_desc name##_f32[] = { ROWS(M2_F32) };                                   \
    static weight_table name##_table(m2_dtype dtype)                                               \
    {                                                                                              \
        const int n_rows = (int)(sizeof name##_f32 / sizeof name##_f32[0]);                        \
        return (weight_table){ dtype == M2_BF16 ? name##_bf16 : name##_f32, n_rows };              \
    }
TABLE(common, COMMON_ROWS)
TABLE(full, FULL_ROWS)
TABLE(linear, LINEAR_ROWS)
TABLE(embed, EMBED_ROWS)
TABLE(norm, NORM_ROWS)

int m2_text_layers_needed(const m2_text_config *config, int want_all)
{
    return want_all ? config->n_layers : config->n_layers - 2;
}

/* The released files hold a multimodal model, text-only folders the bare text model. */
static const char *find_prefix(const m2_checkpoint *checkpoint)
{
    static const char *const prefixes[] = { "model.language_model.", "model.", "" };
    for (size_t i = 0; i < sizeof prefixes / sizeof prefixes[0]; i++) {
        char name[64];
        snprintf(name, sizeof name, "%sembed_tokens.weight", prefixes[i]);
        if (m2_checkpoint_find(checkpoint, name)) return prefixes[i];
    }
    return prefixes[0]; /* nothing will be found, and the message shows the released names */
}

void m2_text_weights_ignored(const m2_text_config *config, const char *prefix, int want_all,
                             void (*name)(void *user, const char *prefix), void *user)
{
    static const char *const others[] = { "lm_head.", "mtp.", "model.mtp.", "model.visual.",
                                          "visual." };
    for (size_t i = 0; i < sizeof others / sizeof others[0]; i++) name(user, others[i]);
    if (want_all) return;
    char text[96];
    for (int i = m2_text_layers_needed(config, 0); i < config->n_layers; i++) {
        snprintf(text, sizeof text, "%slayers.%d.", prefix, i);
        name(user, text);
    }
    snprintf(text, sizeof text, "%snorm.", prefix);
    name(user, text);
}

static void ignore_name(void *user, const char *prefix)
{
    m2_weight_binder_ignore(user, prefix);
}

m2_status m2_text_weights_load(const m2_checkpoint *checkpoint, const m2_text_config *config,
                               const m2_ops *ops, m2_arena *arena, m2_dtype dtype, int want_all,
                               m2_text_weights *weights_out)
{
    const char *prefix = find_prefix(checkpoint);
    int64_t dims[N_DIMS];
    fill_dims(config, dims);
    m2_weight_binder *binder = NULL;
    M2_TRY(m2_weight_binder_create(checkpoint, dims, N_DIMS, ops, arena, &binder));

    memset(weights_out, 0, sizeof *weights_out);
    weights_out->n_layers = m2_text_layers_needed(config, want_all);
    weight_table table = embed_table(dtype);
    m2_weights_bind(binder, table.rows, table.n_rows, prefix, weights_out);
    for (int i = 0; i < weights_out->n_layers; i++) {
        char layer[96];
        snprintf(layer, sizeof layer, "%slayers.%d.", prefix, i);
        table = common_table(dtype);
        m2_weights_bind(binder, table.rows, table.n_rows, layer, &weights_out->layers[i]);
        table = config->is_full[i] ? full_table(dtype) : linear_table(dtype);
        m2_weights_bind(binder, table.rows, table.n_rows, layer, &weights_out->layers[i]);
    }
    if (want_all) {
        table = norm_table(dtype);
        m2_weights_bind(binder, table.rows, table.n_rows, prefix, weights_out);
    }
    m2_text_weights_ignored(config, prefix, want_all, ignore_name, binder);
    const m2_status status = m2_weight_binder_finish(binder, "the text encoder");
    m2_weight_binder_destroy(binder);
    return status;
}

void m2_text_weights_describe(const m2_text_config *config, const char *prefix,
                              m2_weight_visit *row, void *user)
{
    int64_t dims[N_DIMS];
    fill_dims(config, dims);
    weight_table table = embed_table(M2_BF16);
    m2_weights_describe(table.rows, table.n_rows, prefix, dims, row, user);
    for (int i = 0; i < m2_text_layers_needed(config, 0); i++) {
        char layer[96];
        snprintf(layer, sizeof layer, "%slayers.%d.", prefix, i);
        table = common_table(M2_BF16);
        m2_weights_describe(table.rows, table.n_rows, layer, dims, row, user);
        table = config->is_full[i] ? full_table(M2_BF16) : linear_table(M2_BF16);
        m2_weights_describe(table.rows, table.n_rows, layer, dims, row, user);
    }
}
