#include "model/audio/oobleck_weights.h"

#include <assert.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define PREFIX     "pretransform.model.decoder."
#define NAME_BYTES 160

/* ---- layout ----------------------------------------------------------------------------------- */

static m2_oobleck_conv conv_of(int c_in, int c_out, int n_taps, int has_bias)
{
    return (
        m2_oobleck_conv){ .c_in = c_in, .c_out = c_out, .n_taps = n_taps, .has_bias = has_bias };
}

void m2_oobleck_lay_out(const m2_oobleck_config *config, m2_oobleck *oobleck)
{
    const int last = config->n_blocks - 1;
    *oobleck = (m2_oobleck){ .config = *config };
    oobleck->conv_in = conv_of(config->latent_dim, config->c_in[0], M2_OOBLECK_TAPS, 1);
    for (int b = 0; b < config->n_blocks; b++) {
        m2_oobleck_block *block = &oobleck->blocks[b];
        const int c = config->c_out[b], nearest = config->use_nearest_upsample;
        block->act.channels = config->c_in[b];
        block->upsample = conv_of(config->c_in[b], c, 2 * config->strides[b], !nearest);
        block->upsample.is_transposed = !nearest;
        int dilation = 1;
        for (int u = 0; u < M2_OOBLECK_UNITS; u++) {
            m2_oobleck_unit *unit = &block->units[u];
            unit->dilation = dilation;
            unit->act1.channels = unit->act2.channels = c;
            unit->conv1 = conv_of(c, c, M2_OOBLECK_TAPS, 1);
            unit->conv2 = conv_of(c, c, 1, 1);
            dilation *= 3;
        }
    }
    oobleck->act_out.channels = config->c_out[last];
    oobleck->conv_out = conv_of(config->c_out[last], M2_OOBLECK_CHANNELS, M2_OOBLECK_TAPS, 0);
}

/* ---- one walk over all layers, by their names in the file ----------------------------------------- */

typedef struct layer_visit {
    m2_status (*conv)(void *user, const char *name, m2_oobleck_conv *conv);
    m2_status (*snake)(void *user, const char *name, m2_oobleck_snake *snake);
    void *user;
} layer_visit;

static m2_status visit_unit(const layer_visit *visit, const char *name, m2_oobleck_unit *unit,
                            int use_snake)
{
    char layer[NAME_BYTES];
    snprintf(layer, sizeof layer, "%s.layers.0", name);
    if (use_snake) M2_TRY(visit->snake(visit->user, layer, &unit->act1));
    snprintf(layer, sizeof layer, "%s.layers.1", name);
    M2_TRY(visit->conv(visit->user, layer, &unit->conv1));
    snprintf(layer, sizeof layer, "%s.layers.2", name);
    if (use_snake) M2_TRY(visit->snake(visit->user, layer, &unit->act2));
    snprintf(layer, sizeof layer, "%s.layers.3", name);
    return visit->conv(visit->user, layer, &unit->conv2);
}

static m2_status visit_layers(const layer_visit *visit, m2_oobleck *oobleck)
{
    const m2_oobleck_config *config = &oobleck->config;
    char name[NAME_BYTES / 2];
    M2_TRY(visit->conv(visit->user, "layers.0", &oobleck->conv_in));
    for (int b = 0; b < config->n_blocks; b++) {
        m2_oobleck_block *block = &oobleck->blocks[b];
        snprintf(name, sizeof name, "layers.%d.layers.0", b + 1);
        if (config->use_snake) M2_TRY(visit->snake(visit->user, name, &block->act));
        /* The repeat has no weights and is 1.0 of a pair whose 1.1 is the convolution. */
        snprintf(name, sizeof name, "layers.%d.layers.1%s", b + 1,
                 config->use_nearest_upsample ? ".1" : "");
        M2_TRY(visit->conv(visit->user, name, &block->upsample));
        for (int u = 0; u < M2_OOBLECK_UNITS; u++) {
            snprintf(name, sizeof name, "layers.%d.layers.%d", b + 1, u + 2);
            M2_TRY(visit_unit(visit, name, &block->units[u], config->use_snake));
        }
    }
    snprintf(name, sizeof name, "layers.%d", config->n_blocks + 1);
    if (config->use_snake) M2_TRY(visit->snake(visit->user, name, &oobleck->act_out));
    snprintf(name, sizeof name, "layers.%d", config->n_blocks + 2);
    return visit->conv(visit->user, name, &oobleck->conv_out);
}

/* ---- the tensors of a layer in the file ------------------------------------------------------------ */

/* Called for each with its full name and shape. */
typedef void param_visit(void *user, const char *name, int n_dims, const int64_t *shape);

static void each_param_of_conv(const char *layer, const m2_oobleck_conv *conv, param_visit *visit,
                               void *user)
{
    char name[NAME_BYTES];
    const int64_t outer = conv->is_transposed ? conv->c_in : conv->c_out;
    const int64_t inner = conv->is_transposed ? conv->c_out : conv->c_in;
    const int64_t c_out = conv->c_out;
    snprintf(name, sizeof name, "%s%s.weight_v", PREFIX, layer);
    visit(user, name, 3, (const int64_t[]){ outer, inner, conv->n_taps });
    snprintf(name, sizeof name, "%s%s.weight_g", PREFIX, layer);
    visit(user, name, 3, (const int64_t[]){ outer, 1, 1 });
    snprintf(name, sizeof name, "%s%s.bias", PREFIX, layer);
    if (conv->has_bias) visit(user, name, 1, &c_out);
}

static void each_param_of_snake(const char *layer, const m2_oobleck_snake *snake,
                                param_visit *visit, void *user)
{
    char name[NAME_BYTES];
    const int64_t channels = snake->channels;
    snprintf(name, sizeof name, "%s%s.alpha", PREFIX, layer);
    visit(user, name, 1, &channels);
    snprintf(name, sizeof name, "%s%s.beta", PREFIX, layer);
    visit(user, name, 1, &channels);
}

typedef struct param_walk {
    param_visit *visit;
    void *user;
} param_walk;

static m2_status walk_conv(void *user, const char *layer, m2_oobleck_conv *conv)
{
    const param_walk *walk = user;
    each_param_of_conv(layer, conv, walk->visit, walk->user);
    return M2_OK;
}

static m2_status walk_snake(void *user, const char *layer, m2_oobleck_snake *snake)
{
    const param_walk *walk = user;
    each_param_of_snake(layer, snake, walk->visit, walk->user);
    return M2_OK;
}

static m2_status each_param(m2_oobleck *oobleck, param_visit *visit, void *user)
{
    param_walk walk = { visit, user };
    return visit_layers(&(layer_visit){ walk_conv, walk_snake, &walk }, oobleck);
}

typedef struct description {
    m2_weight_visit *row;
    void *user;
} description;

static void describe_param(void *user, const char *name, int n_dims, const int64_t *shape)
{
    const description *to = user;
    to->row(to->user, name, M2_F32, n_dims, shape, 0);
}

m2_status m2_oobleck_describe(const m2_oobleck_config *config, m2_weight_visit *row, void *user)
{
    m2_oobleck *oobleck = malloc(sizeof *oobleck);
    if (!oobleck) return m2_fail(M2_ERR_MEMORY, "sound decoder: no memory for its layers");
    m2_oobleck_lay_out(config, oobleck);
    description to = { row, user };
    const m2_status status = each_param(oobleck, describe_param, &to);
    free(oobleck);
    return status;
}

/* ---- checking -------------------------------------------------------------------------------------- */

static void check_param(void *user, const char *name, int n_dims, const int64_t *shape)
{
    m2_weight_desc desc = { 0, name, M2_F32, { 0 }, 0 };
    m2_tensor unused;
    for (int i = 0; i < n_dims; i++) desc.shape[i] = (int)shape[i];
    m2_weights_bind(user, &desc, 1, "", &unused);
}

static void ignore_others(const m2_checkpoint *checkpoint, m2_weight_binder *binder)
{
    for (int64_t i = 0; i < m2_checkpoint_n_tensors(checkpoint); i++) {
        const char *name = m2_checkpoint_at(checkpoint, i)->name;
        if (strncmp(name, PREFIX, strlen(PREFIX)) != 0) m2_weight_binder_ignore(binder, name);
    }
}

/* The binder checks everything at once, on a table and an arena that only measure. */
static m2_status check_params(m2_oobleck *oobleck, const m2_checkpoint *checkpoint)
{
    m2_ops measure;
    m2_arena nothing;
    m2_weight_binder *binder = NULL;
    m2_ops_init_measure(&measure);
    m2_arena_init_measuring(&nothing, "sound decoder check");
    M2_TRY(m2_weight_binder_create(checkpoint, NULL, 0, &measure, &nothing, &binder));
    m2_status status = each_param(oobleck, check_param, binder);
    ignore_others(checkpoint, binder);
    if (status == M2_OK)
        status = m2_weight_binder_finish(binder, "the sound decoder of its config");
    m2_weight_binder_destroy(binder);
    return status;
}

/* ---- loading ----------------------------------------------------------------------------------------- */

typedef struct loader {
    const m2_checkpoint *checkpoint;
    const m2_ops *ops;
    m2_arena *arena;
} loader;

static const m2_ckpt_tensor *find(const loader *to, const char *layer, const char *part)
{
    char name[NAME_BYTES];
    snprintf(name, sizeof name, "%s%s.%s", PREFIX, layer, part);
    const m2_ckpt_tensor *found = m2_checkpoint_find(to->checkpoint, name);
    assert(found); /* checked */
    return found;
}

static m2_status no_memory(const m2_ckpt_tensor *tensor)
{
    return m2_fail(M2_ERR_MEMORY, "%s: no memory to load '%s'", tensor->file, tensor->name);
}

static m2_status load_plain(const loader *to, const char *layer, const char *part, m2_tensor *field)
{
    const m2_ckpt_tensor *from = find(to, layer, part);
    *field = m2_tensor_make(to->arena, M2_F32, from->count);
    if (to->ops->is_measuring) return M2_OK;
    float *values = malloc((size_t)from->count * sizeof *values);
    if (!values) return no_memory(from);
    m2_checkpoint_read(from, M2_F32, values);
    to->ops->upload(to->ops, field, values);
    free(values);
    return M2_OK;
}

/* v [outer, inner, taps] and g [outer] to w [taps, out, in]; the norm is summed in f64. */
static void fold(const m2_oobleck_conv *conv, const float *v, const float *g, float *w)
{
    const int64_t outer = conv->is_transposed ? conv->c_in : conv->c_out;
    const int64_t inner = conv->is_transposed ? conv->c_out : conv->c_in;
    const int64_t taps = conv->n_taps;
    for (int64_t o = 0; o < outer; o++) {
        const float *row = v + o * inner * taps;
        double squares = 0;
        for (int64_t i = 0; i < inner * taps; i++) squares += (double)row[i] * row[i];
        const float scale = (float)(g[o] / sqrt(squares));
        for (int64_t i = 0; i < inner; i++) {
            const int64_t to = conv->is_transposed ? i * outer + o : o * inner + i;
            for (int64_t tap = 0; tap < taps; tap++)
                w[tap * outer * inner + to] = row[i * taps + tap] * scale;
        }
    }
}

static m2_status load_conv(void *user, const char *layer, m2_oobleck_conv *conv)
{
    const loader *to = user;
    const m2_ckpt_tensor *v_from = find(to, layer, "weight_v");
    const m2_ckpt_tensor *g_from = find(to, layer, "weight_g");
    conv->w = m2_tensor_make(to->arena, M2_F32, conv->n_taps, conv->c_out, conv->c_in);
    if (conv->has_bias) M2_TRY(load_plain(to, layer, "bias", &conv->bias));
    if (to->ops->is_measuring) return M2_OK;
    m2_status status = M2_OK;
    float *v = malloc((size_t)v_from->count * sizeof *v);
    float *g = malloc((size_t)g_from->count * sizeof *g);
    float *w = malloc((size_t)v_from->count * sizeof *w);
    if (v && g && w) {
        m2_checkpoint_read(v_from, M2_F32, v);
        m2_checkpoint_read(g_from, M2_F32, g);
        fold(conv, v, g, w);
        to->ops->upload(to->ops, &conv->w, w);
    } else {
        status = no_memory(v_from);
    }
    free(v);
    free(g);
    free(w);
    return status;
}

static m2_status load_snake(void *user, const char *layer, m2_oobleck_snake *snake)
{
    M2_TRY(load_plain(user, layer, "alpha", &snake->alpha));
    return load_plain(user, layer, "beta", &snake->beta);
}

m2_status m2_oobleck_load_weights(m2_oobleck *oobleck, const m2_checkpoint *checkpoint,
                                  const m2_ops *ops, m2_arena *arena)
{
    M2_TRY(check_params(oobleck, checkpoint));
    loader to = { checkpoint, ops, arena };
    return visit_layers(&(layer_visit){ load_conv, load_snake, &to }, oobleck);
}
