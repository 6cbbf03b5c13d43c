#include "model/dit/preview_synthetic.h"

#include "core/rng.h"
#include "model/dit/preview_parts.h"

#include <math.h>
#include <stdlib.h>

/* A block is copied in pieces of three quarters, each from a place in its first quarter. */
#define BLOCK_VALUES ((int64_t)1 << 22)
#define PIECE_VALUES (BLOCK_VALUES / 4 * 3)
#define OFFSET_STEP  ((int64_t)12289 * 64) /* coprime to the number of places, and aligned */
#define BLOCKS_MAX   24

/* Products that end a branch add to the streams.  They are small, so that eighty of them leave a token
 * mostly itself: attention over random keys is close to a mean over all tokens, and what all tokens
 * share sends them to the same experts. */
#define BRANCH_GAIN 0.05f
/* Added to scores of deviation 0.2.  With what tokens have in common, the busiest of 3,072 experts then
 * gets about four times the mean, as where a bias was trained to balance them. */
#define ROUTE_BIAS 0.005f

typedef enum rule {
    PRODUCT, /* normal, `a` / sqrt(inner dimension): keeps the size of what it multiplies */
    EXPERTS, /* the same, for [rows, in, out]; shared where memory is short               */
    NORMAL,  /* normal of deviation `a`                                                   */
    AROUND,  /* a short f32 vector: `a` + `b` * normal                                    */
    BANDS    /* 10000^(-i / n)                                                            */
} rule;

typedef struct field_rule {
    size_t offset; /* of an m2_tensor in the struct */
    rule rule;
    float a, b;
} field_rule;

#define TOP(field) offsetof(m2_preview_weights, field)
static const field_rule top_rules[] = {
    { TOP(video_w), PRODUCT, 1, 0 },      { TOP(video_b), AROUND, 0, 0.02f },
    { TOP(audio_w), PRODUCT, 1, 0 },      { TOP(audio_b), AROUND, 0, 0.02f },
    { TOP(text_w), PRODUCT, 1, 0 },       { TOP(text_b), AROUND, 0, 0.02f },
    { TOP(rope_bands), BANDS, 0, 0 },     { TOP(video_norm), AROUND, 0, 0.1f },
    { TOP(audio_norm), AROUND, 0, 0.1f }, { TOP(video_linear), PRODUCT, 1, 0 },
    { TOP(audio_linear), PRODUCT, 1, 0 },
};

/* The product with phi is divided by the root of its length, so phi is of order one.  Sinks of 6 lie
 * some way below the log-sum-exp of thousands of keys: they take part, and do not win. */
#define LAYER(field) offsetof(m2_preview_layer_weights, field)
#define MHC(half)                                                                                  \
    { LAYER(mhc_##half.alpha_pre), AROUND, 0.5f, 0 },                                              \
        { LAYER(mhc_##half.alpha_post), AROUND, 0.5f, 0 },                                         \
        { LAYER(mhc_##half.alpha_res), AROUND, 0.5f, 0 },                                          \
        { LAYER(mhc_##half.bias_pre), AROUND, 0, 0.3f },                                           \
        { LAYER(mhc_##half.bias_post), AROUND, 0, 0.3f },                                          \
        { LAYER(mhc_##half.bias_res), AROUND, 0, 1 },                                              \
    {                                                                                              \
        LAYER(mhc_##half.phi), NORMAL, 1, 0                                                        \
    }
static const field_rule layer_rules[] = {
    { LAYER(mhc_norm), AROUND, 0, 0.1f },
    MHC(attn),
    MHC(mlp),
    { LAYER(attn_norm), AROUND, 0, 0.1f },
    { LAYER(linear_g), PRODUCT, 1, 0 },
    { LAYER(linear_qkv), PRODUCT, 1, 0 },
    { LAYER(linear_proj), PRODUCT, BRANCH_GAIN, 0 },
    { LAYER(q_norm), AROUND, 0, 0.1f },
    { LAYER(k_norm), AROUND, 0, 0.1f },
    { LAYER(sinks), AROUND, 6, 1 },
    { LAYER(mlp_norm), AROUND, 0, 0.1f },
    { LAYER(up_gate), PRODUCT, 1, 0 },
    { LAYER(down), PRODUCT, BRANCH_GAIN, 0 },
    { LAYER(split), PRODUCT, 1, 0 },
    { LAYER(merge), PRODUCT, BRANCH_GAIN, 0 },
    { LAYER(shared_fc1), PRODUCT, 1, 0 },
    { LAYER(shared_fc2), PRODUCT, BRANCH_GAIN, 0 },
    { LAYER(modality_fc1), PRODUCT, 1, 0 },
    { LAYER(modality_fc2), PRODUCT, BRANCH_GAIN, 0 },
    { LAYER(router), PRODUCT, 1, 0 },
    { LAYER(w_gate), EXPERTS, 1, 0 },
    { LAYER(w_up), EXPERTS, 1, 0 },
    { LAYER(w_down), EXPERTS, 1, 0 },
    { LAYER(expert_bias), AROUND, 0, ROUTE_BIAS },
    { LAYER(expert_bias_ema), AROUND, 0, ROUTE_BIAS },
};
#define N_OF(table) ((int)(sizeof(table) / sizeof((table)[0])))

typedef struct block {
    m2_dtype dtype;
    float deviation;
    m2_tensor values; /* [BLOCK_VALUES] */
} block;

typedef struct maker {
    const m2_ops *ops;
    m2_arena *arena, *scratch;
    m2_rng rng;
    float *normals; /* [BLOCK_VALUES] on the host; NULL when measuring */
    void *host;     /* the same room, for scaled values                */
    block blocks[BLOCKS_MAX];
    int n_blocks;
    int64_t n_pieces; /* copied so far: the next begins elsewhere */
    m2_status status;
} maker;

/* Normals times `deviation`, as `dtype`, on the device. */
static const m2_tensor *block_of(maker *m, m2_dtype dtype, float deviation)
{
    for (int i = 0; i < m->n_blocks; i++)
        if (m->blocks[i].dtype == dtype && m->blocks[i].deviation == deviation)
            return &m->blocks[i].values;
    if (m->n_blocks == BLOCKS_MAX) {
        m->status = m2_fail(M2_ERR_INTERNAL, "synthetic weights of more than %d sizes", BLOCKS_MAX);
        return &m->blocks[0].values;
    }
    block *made = &m->blocks[m->n_blocks++];
    *made = (block){ dtype, deviation, m2_tensor_make(m->scratch, dtype, BLOCK_VALUES) };
    if (m->ops->is_measuring) return &made->values;
    for (int64_t i = 0; i < BLOCK_VALUES; i++) {
        const float value = deviation * m->normals[i];
        if (dtype == M2_BF16)
            ((m2_bf16 *)m->host)[i] = m2_f32_to_bf16(value);
        else
            ((float *)m->host)[i] = value;
    }
    m->ops->upload(m->ops, &made->values, m->host);
    return &made->values;
}

static void fill_normal(maker *m, m2_tensor *tensor, float deviation)
{
    const m2_tensor *from = block_of(m, tensor->dtype, deviation);
    const int64_t n = m2_tensor_count(tensor);
    const m2_tensor flat = m2_tensor_over(tensor->data, tensor->dtype, n);
    for (int64_t begin = 0; begin < n; begin += PIECE_VALUES) {
        const int64_t count = n - begin < PIECE_VALUES ? n - begin : PIECE_VALUES;
        const int64_t at = m->n_pieces++ * OFFSET_STEP % (BLOCK_VALUES - PIECE_VALUES);
        const m2_tensor x = m2_tensor_rows(from, at, at + count);
        m2_tensor y = m2_tensor_rows(&flat, begin, begin + count);
        m->ops->convert(m->ops, &(m2_convert_args){ .x = &x, .y = &y });
    }
}

/* Vectors are shorter than a block: no layer of a config that fits memory is wider. */
static void fill_vector(maker *m, const field_rule *how, m2_tensor *tensor)
{
    const int64_t n = m2_tensor_count(tensor);
    if (n > BLOCK_VALUES) {
        m->status = m2_fail(M2_ERR_MODEL, "a vector of %lld values in the config", (long long)n);
        return;
    }
    if (m->ops->is_measuring) return;
    float *values = m->host;
    m2_rng_normal(&m->rng, m->ops->pool, values, n);
    for (int64_t i = 0; i < n; i++)
        values[i] =
            how->rule == BANDS ? powf(10000.0f, -(float)i / (float)n) : how->a + how->b * values[i];
    m->ops->upload(m->ops, tensor, values);
}

static void fill(maker *m, const field_rule *how, m2_tensor *tensor)
{
    *tensor = m2_tensor_new(m->arena, tensor->dtype, tensor->n_dims, tensor->shape);
    if (how->rule == AROUND || how->rule == BANDS) {
        fill_vector(m, how, tensor);
        return;
    }
    const int64_t inner = tensor->shape[how->rule == EXPERTS ? 1 : tensor->n_dims - 1];
    fill_normal(m, tensor, how->rule == NORMAL ? how->a : how->a / sqrtf((float)inner));
}

/* Fields that this layer does not have are without a shape. */
static void fill_layer(maker *m, m2_preview_layer_weights *layer,
                       const m2_preview_layer_weights *twin)
{
    for (int i = 0; i < N_OF(layer_rules); i++) {
        const field_rule *how = &layer_rules[i];
        m2_tensor *field = (m2_tensor *)((char *)layer + how->offset);
        if (field->n_dims == 0) continue;
        if (how->rule == EXPERTS && twin)
            *field = *(const m2_tensor *)((const char *)twin + how->offset);
        else
            fill(m, how, field);
    }
}

int m2_preview_n_moe_layers(const m2_arch_config *arch)
{
    int n = 0;
    for (int i = 0; i < arch->num_layers; i++) n += arch->is_moe_layer[i] != 0;
    return n;
}

static void fill_all(maker *m, const m2_arch_config *arch, int n_resident, m2_preview_weights *w)
{
    const m2_preview_layer_weights *residents[M2_LAYERS_MAX];
    int n_moe = 0;
    for (int i = 0; i < N_OF(top_rules); i++)
        fill(m, &top_rules[i], (m2_tensor *)((char *)w + top_rules[i].offset));
    for (int i = 0; i < arch->num_layers; i++) {
        m2_preview_layer_weights *layer = &w->layers[i];
        const m2_preview_layer_weights *twin = NULL;
        if (layer->is_moe && n_moe >= n_resident) twin = residents[n_moe % n_resident];
        fill_layer(m, layer, twin);
        if (layer->is_moe && !twin) residents[n_moe] = layer;
        n_moe += layer->is_moe;
    }
}

static m2_status make_normals(maker *m, uint64_t seed)
{
    M2_TRY(m2_rng_init(&m->rng, seed, M2_RNG_GRID_DEFAULT));
    if (m->ops->is_measuring) return M2_OK;
    m->normals = malloc((size_t)BLOCK_VALUES * sizeof *m->normals);
    m->host = malloc((size_t)BLOCK_VALUES * sizeof *m->normals);
    if (!m->normals || !m->host)
        return m2_fail(M2_ERR_MEMORY, "no memory for a block of synthetic weights");
    m2_rng_normal(&m->rng, m->ops->pool, m->normals, BLOCK_VALUES);
    return M2_OK;
}

m2_status m2_preview_open_synthetic(const m2_arch_config *arch, int n_time_channels,
                                    const m2_ops *ops, m2_arena *arena, m2_arena *scratch,
                                    const m2_preview_synthetic *params, m2_preview **preview_out)
{
    m2_preview *preview = NULL;
    M2_TRY(m2_preview_open_shapes(arch, n_time_channels, &preview));
    maker m = { .ops = ops, .arena = arena, .scratch = scratch };
    const size_t mark = m2_arena_save(scratch);
    m2_status status = make_normals(&m, params->seed);
    if (status == M2_OK) {
        const int n_resident = params->n_resident > 0 ? params->n_resident : arch->num_layers;
        fill_all(&m, arch, n_resident, &preview->weights);
        status = m.status;
    }
    m2_arena_restore(scratch, mark);
    free(m.normals);
    free(m.host);
    if (status != M2_OK) {
        m2_preview_close(preview);
        return status;
    }
    *preview_out = preview;
    return M2_OK;
}

m2_status m2_preview_synthetic_measure(const m2_arch_config *arch, int n_time_channels,
                                       int n_resident, m2_preview_synthetic_size *size_out)
{
    m2_ops measure;
    m2_arena weights, scratch;
    m2_preview *preview = NULL;
    const m2_preview_synthetic params = { .n_resident = n_resident };
    m2_ops_init_measure(&measure);
    m2_arena_init_measuring(&weights, "weights");
    m2_arena_init_measuring(&scratch, "step");
    M2_TRY(m2_preview_open_synthetic(arch, n_time_channels, &measure, &weights, &scratch, &params,
                                     &preview));
    m2_preview_close(preview);
    *size_out = (m2_preview_synthetic_size){ weights.peak, scratch.peak };
    return M2_OK;
}
