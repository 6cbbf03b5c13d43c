#include "model/vae/turbo_weights.h"

#include "model/vae/latent_stats.h"

#include <assert.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define KEY_BYTES     (M2_TURBO_NAME_BYTES + 64)
#define PARAMS_A_CONV 4

/* ---- layout ----------------------------------------------------------------------------------- */

typedef struct conv_shape {
    int c_in, c_out;
    int kernel[3];
    int is_2d;
    int depthwise_kernel; /* 0: an ordinary convolution */
} conv_shape;

__attribute__((format(printf, 4, 5))) static void
add_conv(m2_turbo *turbo, m2_turbo_conv *conv, conv_shape shape, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    const int bytes = vsnprintf(conv->name, sizeof conv->name, format, args);
    va_end(args);
    assert(bytes > 0 && (size_t)bytes < sizeof conv->name);
    (void)bytes;
    conv->c_in = shape.c_in;
    conv->c_out = shape.c_out;
    conv->is_2d = shape.is_2d;
    conv->is_depthwise = shape.depthwise_kernel > 0;
    memcpy(conv->kernel, shape.kernel, sizeof conv->kernel);
    if (conv->is_depthwise && shape.kernel[1] > 1)
        for (int i = 0; i < 3; i++) conv->kernel[i] = shape.depthwise_kernel;
    turbo->convs[turbo->n_convs++] = conv;
}

static void add_res(m2_turbo *turbo, m2_turbo_res *res, m2_activation first, int c_in, int c_out,
                    int depthwise_kernel, const char *name)
{
    const conv_shape cube = { c_in, c_out, { 3, 3, 3 }, 0, depthwise_kernel };
    conv_shape second = cube, point = cube;
    second.c_in = c_out;
    point.kernel[0] = point.kernel[1] = point.kernel[2] = 1;
    res->first = first;
    res->has_shortcut = c_in != c_out;
    add_conv(turbo, &res->conv1, cube, "%s.conv1", name);
    add_conv(turbo, &res->conv2, second, "%s.conv2", name);
    if (res->has_shortcut) add_conv(turbo, &res->shortcut, point, "%s.conv_shortcut", name);
}

static void add_resnets(m2_turbo *turbo, m2_turbo_block *block, int n, int channels,
                        int depthwise_kernel, const char *name)
{
    char res_name[KEY_BYTES];
    /* Blocks that enlarge begin their residuals with a ReLU: the reference swaps it in there. */
    const m2_activation first = block->has_upsampler ? M2_ACT_RELU : M2_ACT_SILU;
    block->n_resnets = n;
    for (int i = 0; i < n; i++) {
        snprintf(res_name, sizeof res_name, "%s.resnets.%d", name, i);
        add_res(turbo, &block->resnets[i], first, channels, channels, depthwise_kernel, res_name);
    }
}

static void add_block(m2_turbo *turbo, int b, int c_in)
{
    const m2_turbo_config *config = &turbo->config;
    const int c = config->channels[b];
    const int depthwise = config->is_depthwise[b + 1] ? config->depthwise_kernel : 0;
    m2_turbo_block *block = &turbo->blocks[b];
    char name[64], change_name[KEY_BYTES];
    snprintf(name, sizeof name, "decoder.up_blocks.%d", b);
    snprintf(change_name, sizeof change_name, "%s.conv_in", name);
    block->has_change = c_in != c;
    block->has_upsampler = config->has_upsampler[b];
    block->has_time = block->has_upsampler && !config->is_spatial_only[b];
    if (block->has_change)
        add_res(turbo, &block->change, M2_ACT_SILU, c_in, c, depthwise, change_name);
    if (block->has_time)
        add_conv(turbo, &block->time_conv, (conv_shape){ c, 2 * c, { 3, 1, 1 }, 0, 0 },
                 "%s.upsamplers.0.time_conv", name);
    if (block->has_upsampler)
        add_conv(turbo, &block->resample, (conv_shape){ c, c, { 1, 3, 3 }, 1, 0 },
                 "%s.upsamplers.0.resample.1", name);
    add_resnets(turbo, block, config->n_resnets[b + 1], c, depthwise, name);
}

static void add_all(m2_turbo *turbo)
{
    const m2_turbo_config *config = &turbo->config;
    const int top = config->channels[0], last = config->channels[config->n_blocks - 1];
    m2_turbo_res *resnets = turbo->all_resnets;
    turbo->mid.resnets = resnets;
    resnets += config->n_resnets[0];
    for (int b = 0; b < config->n_blocks; b++) {
        turbo->blocks[b].resnets = resnets;
        resnets += config->n_resnets[b + 1];
    }
    add_conv(turbo, &turbo->conv_in, (conv_shape){ M2_LATENT_CHANNELS, top, { 3, 3, 3 }, 0, 0 },
             "decoder.conv_in");
    add_resnets(turbo, &turbo->mid, config->n_resnets[0], top,
                config->is_depthwise[0] ? config->depthwise_kernel : 0, "decoder.mid_block");
    for (int b = 0; b < config->n_blocks; b++)
        add_block(turbo, b, config->channels[b > 0 ? b - 1 : 0]);
    conv_shape out = { last, 4 * M2_TURBO_COLOURS, { 3, 3, 3 }, 0, 0 };
    if (config->has_shuffle_head) {
        add_conv(turbo, &turbo->head_upsampler, (conv_shape){ last, last, { 1, 3, 3 }, 1, 0 },
                 "decoder.upsampler2d_1.conv");
        out.c_in = last / 4;
        out.c_out = M2_TURBO_COLOURS;
    }
    add_conv(turbo, &turbo->conv_out, out, "decoder.conv_out");
}

m2_status m2_turbo_lay_out(const m2_turbo_config *config, m2_dtype dtype, m2_turbo **turbo_out)
{
    size_t n_resnets = 0;
    for (int b = 0; b <= config->n_blocks; b++) n_resnets += (size_t)config->n_resnets[b];
    /* Two to a resnet; change (3), upsampler (2) to a block; conv_in, conv_out, the head's. */
    const size_t n_convs = 2 * n_resnets + 5 * (size_t)config->n_blocks + 3;
    m2_turbo *turbo = calloc(1, sizeof *turbo);
    if (turbo) {
        turbo->all_resnets = calloc(n_resnets, sizeof *turbo->all_resnets);
        turbo->convs = calloc(n_convs, sizeof *turbo->convs);
    }
    if (!turbo || !turbo->all_resnets || !turbo->convs) {
        m2_turbo_destroy(turbo);
        return m2_fail(M2_ERR_MEMORY, "video decoder: no memory for its layers");
    }
    turbo->config = *config;
    turbo->dtype = dtype;
    add_all(turbo);
    assert((size_t)turbo->n_convs <= n_convs);
    *turbo_out = turbo;
    return M2_OK;
}

/* ---- the tensors of one convolution in the file ------------------------------------------------- */

typedef struct conv_param {
    char name[KEY_BYTES];
    int n_dims;
    int shape[5];      /* in the file                      */
    int out, in, taps; /* the same, for the reordering     */
    m2_tensor *to;
    int is_bias, is_depthwise;
} conv_param;

static void set_pair(conv_param *pair, const m2_turbo_conv *conv, const char *part, int out, int in,
                     const int *kernel, m2_tensor *w, m2_tensor *bias)
{
    conv_param *weight = &pair[0], *offset = &pair[1];
    snprintf(weight->name, sizeof weight->name, "%s%s.weight", conv->name, part);
    snprintf(offset->name, sizeof offset->name, "%s%s.bias", conv->name, part);
    weight->out = offset->out = out;
    weight->in = in;
    weight->taps = kernel[0] * kernel[1] * kernel[2];
    weight->shape[weight->n_dims++] = out;
    weight->shape[weight->n_dims++] = in;
    for (int i = conv->is_2d; i < 3; i++) weight->shape[weight->n_dims++] = kernel[i];
    weight->to = w;
    offset->shape[offset->n_dims++] = out;
    offset->to = bias;
    offset->is_bias = 1;
}

/* Gives the number of them. */
static int list_params(m2_turbo_conv *conv, conv_param params[PARAMS_A_CONV])
{
    static const int point[3] = { 1, 1, 1 };
    memset(params, 0, PARAMS_A_CONV * sizeof *params);
    if (!conv->is_depthwise) {
        set_pair(params, conv, conv->is_2d ? "" : ".conv", conv->c_out, conv->c_in, conv->kernel,
                 &conv->w, &conv->bias);
        return 2;
    }
    set_pair(params, conv, ".depthwise_conv", conv->c_in, 1, conv->kernel, &conv->depthwise,
             &conv->depthwise_bias);
    params[0].is_depthwise = 1;
    set_pair(params + 2, conv, ".pointwise_conv", conv->c_out, conv->c_in, point, &conv->w,
             &conv->bias);
    return 4;
}

m2_status m2_turbo_describe(const m2_turbo_config *config, m2_weight_visit *row, void *user)
{
    m2_turbo *turbo = NULL;
    M2_TRY(m2_turbo_lay_out(config, M2_F32, &turbo));
    for (int i = 0; i < turbo->n_convs; i++) {
        conv_param params[PARAMS_A_CONV];
        const int n = list_params(turbo->convs[i], params);
        for (int p = 0; p < n; p++) {
            int64_t shape[5];
            for (int d = 0; d < params[p].n_dims; d++) shape[d] = params[p].shape[d];
            row(user, params[p].name, M2_F32, params[p].n_dims, shape, 0);
        }
    }
    m2_turbo_destroy(turbo);
    return M2_OK;
}

/* ---- where a training run put them -------------------------------------------------------------- */

#define MODULE  "module."
#define DECODER "decoder."

typedef struct key_rule {
    const m2_checkpoint *checkpoint;
    const char *root;   /* "ema_state_dict/", "state_dict/" or "" */
    int has_no_decoder; /* no key says "decoder.": all are its own */
} key_rule;

static int starts_with(const char *text, const char *start)
{
    return strncmp(text, start, strlen(start)) == 0;
}

/* The key below the root without "module.", or NULL outside of the root. */
static const char *bare_key(const key_rule *rule, const char *name)
{
    if (!starts_with(name, rule->root)) return NULL;
    name += strlen(rule->root);
    return starts_with(name, MODULE) ? name + strlen(MODULE) : name;
}

static key_rule find_rule(const m2_checkpoint *checkpoint)
{
    static const char *const roots[] = { "ema_state_dict/", "state_dict/" };
    const int64_t n = m2_checkpoint_n_tensors(checkpoint);
    key_rule rule = { .checkpoint = checkpoint, .root = "", .has_no_decoder = 1 };
    for (size_t r = 0; r < 2 && rule.root[0] == '\0'; r++)
        for (int64_t i = 0; i < n; i++)
            if (starts_with(m2_checkpoint_at(checkpoint, i)->name, roots[r])) rule.root = roots[r];
    for (int64_t i = 0; i < n; i++) {
        const char *key = bare_key(&rule, m2_checkpoint_at(checkpoint, i)->name);
        if (key && starts_with(key, DECODER)) rule.has_no_decoder = 0;
    }
    return rule;
}

/* The name in the file of our "decoder...." key; the plain form if it is in none. */
static void file_name(const key_rule *rule, const char *key, char *name, size_t bytes)
{
    const char *ours = rule->has_no_decoder ? key + strlen(DECODER) : key;
    snprintf(name, bytes, "%s%s%s", rule->root, MODULE, ours);
    if (m2_checkpoint_find(rule->checkpoint, name)) return;
    snprintf(name, bytes, "%s%s", rule->root, ours);
}

static void ignore_others(const key_rule *rule, m2_weight_binder *binder)
{
    if (rule->has_no_decoder) {
        m2_weight_binder_ignore(binder, "");
        return;
    }
    for (int64_t i = 0; i < m2_checkpoint_n_tensors(rule->checkpoint); i++) {
        const char *name = m2_checkpoint_at(rule->checkpoint, i)->name;
        const char *key = bare_key(rule, name);
        if (!key || !starts_with(key, DECODER)) m2_weight_binder_ignore(binder, name);
    }
}

/* ---- checking and loading ------------------------------------------------------------------------ */

/* The binder checks everything at once, on a table and an arena that only measure. */
static m2_status check_params(m2_turbo *turbo, const key_rule *rule)
{
    m2_ops measure;
    m2_arena nothing;
    m2_weight_binder *binder = NULL;
    m2_ops_init_measure(&measure);
    m2_arena_init_measuring(&nothing, "video decoder check");
    M2_TRY(m2_weight_binder_create(rule->checkpoint, NULL, 0, &measure, &nothing, &binder));
    for (int i = 0; i < turbo->n_convs; i++) {
        conv_param params[PARAMS_A_CONV];
        const int n = list_params(turbo->convs[i], params);
        for (int p = 0; p < n; p++) {
            char name[2 * KEY_BYTES];
            m2_tensor unused;
            file_name(rule, params[p].name, name, sizeof name);
            m2_weight_desc desc = { 0, name, M2_F32, { 0 }, 0 };
            memcpy(desc.shape, params[p].shape, sizeof params[p].shape);
            m2_weights_bind(binder, &desc, 1, "", &unused);
        }
    }
    ignore_others(rule, binder);
    const m2_status status = m2_weight_binder_finish(binder, "the video decoder of its config");
    m2_weight_binder_destroy(binder);
    return status;
}

/* [out, in, taps] to [taps, out, in] */
static void reorder(const conv_param *param, const float *from, m2_dtype dtype, void *to)
{
    const int64_t out = param->out, in = param->in, taps = param->taps;
    for (int64_t i = 0; i < out * in; i++) {
        for (int64_t tap = 0; tap < taps; tap++) {
            const float value = from[i * taps + tap];
            if (dtype == M2_BF16)
                ((m2_bf16 *)to)[tap * out * in + i] = m2_f32_to_bf16(value);
            else
                ((float *)to)[tap * out * in + i] = value;
        }
    }
}

static m2_status load_param(const m2_turbo *turbo, const key_rule *rule, const conv_param *param,
                            const m2_ops *ops, m2_arena *arena)
{
    char name[2 * KEY_BYTES];
    file_name(rule, param->name, name, sizeof name);
    const m2_ckpt_tensor *from = m2_checkpoint_find(rule->checkpoint, name);
    assert(from); /* checked */
    if (param->is_bias)
        *param->to = m2_tensor_make(arena, turbo->dtype, param->out);
    else if (param->is_depthwise)
        *param->to = m2_tensor_make(arena, turbo->dtype, param->taps, param->out);
    else
        *param->to = m2_tensor_make(arena, turbo->dtype, param->taps, param->out, param->in);
    if (ops->is_measuring) return M2_OK;
    float *values = malloc((size_t)from->count * sizeof *values);
    void *ordered = malloc((size_t)from->count * m2_dtype_bytes(turbo->dtype));
    m2_status status = M2_OK;
    if (values && ordered) {
        m2_checkpoint_read(from, M2_F32, values);
        if (param->is_bias)
            m2_convert(values, M2_F32, ordered, turbo->dtype, from->count);
        else
            reorder(param, values, turbo->dtype, ordered);
        ops->upload(ops, param->to, ordered);
    } else {
        status = m2_fail(M2_ERR_MEMORY, "%s: no memory to reorder '%s'", from->file, from->name);
    }
    free(values);
    free(ordered);
    return status;
}

m2_status m2_turbo_load_weights(m2_turbo *turbo, const m2_checkpoint *checkpoint, const m2_ops *ops,
                                m2_arena *arena)
{
    const key_rule rule = find_rule(checkpoint);
    M2_TRY(check_params(turbo, &rule));
    turbo->mean = m2_tensor_make(arena, M2_F32, M2_LATENT_CHANNELS);
    turbo->std = m2_tensor_make(arena, M2_F32, M2_LATENT_CHANNELS);
    ops->upload(ops, &turbo->mean, m2_latent_mean);
    ops->upload(ops, &turbo->std, m2_latent_std);
    for (int i = 0; i < turbo->n_convs; i++) {
        conv_param params[PARAMS_A_CONV];
        const int n = list_params(turbo->convs[i], params);
        for (int p = 0; p < n; p++) M2_TRY(load_param(turbo, &rule, &params[p], ops, arena));
    }
    return M2_OK;
}
