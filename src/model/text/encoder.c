#include "model/text/encoder.h"

#include "backend/device.h"
#include "model/text/encoder_weights.h"

#include <assert.h>
#include <math.h>
#include <stdlib.h>

struct m2_text_encoder {
    m2_text_config config;
    m2_text_encoder_params params;
    m2_text_weights weights;
};

void m2_text_encoder_params_init(m2_text_encoder_params *params)
{
    *params = (m2_text_encoder_params){ .dtype = M2_BF16 };
}

static int has_layer(const m2_text_config *config, int is_full)
{
    for (int i = 0; i < config->n_layers; i++)
        if ((config->is_full[i] != 0) == is_full) return 1;
    return 0;
}

/* n_tokens 0: of the config alone, before a weight is read. */
static m2_status check_device(const m2_text_config *config, const m2_ops *ops, int64_t n_tokens)
{
    const m2_device_limits *limits = ops->device_api->limits;
    if (!limits) return M2_OK;
    if (has_layer(config, 1))
        M2_TRY(m2_device_check_size("the text encoder's head_dim", config->head_dim,
                                    limits->head_dim));
    if (!has_layer(config, 0)) return M2_OK;
    return m2_device_check_size("tokens of the text", n_tokens,
                                limits->delta_tokens(config->n_key_heads, config->n_value_heads));
}

m2_status m2_text_encoder_create(const m2_checkpoint *checkpoint, const m2_text_config *config,
                                 const m2_ops *ops, m2_arena *arena,
                                 const m2_text_encoder_params *params,
                                 m2_text_encoder **encoder_out)
{
    assert(params->dtype == M2_BF16 || params->dtype == M2_F32);
    M2_TRY(check_device(config, ops, 0));
    m2_text_encoder *encoder = malloc(sizeof *encoder);
    if (!encoder) return m2_fail(M2_ERR_MEMORY, "text encoder: out of memory");
    encoder->config = *config;
    encoder->params = *params;
    const m2_status status = m2_text_weights_load(checkpoint, config, ops, arena, params->dtype,
                                                  params->want_all_layers, &encoder->weights);
    if (status != M2_OK) {
        free(encoder);
        return status;
    }
    *encoder_out = encoder;
    return M2_OK;
}

void m2_text_encoder_destroy(m2_text_encoder *encoder)
{
    free(encoder);
}

const m2_text_config *m2_text_encoder_config(const m2_text_encoder *encoder)
{
    return &encoder->config;
}

/* One call: what every layer needs. */
typedef struct text_run {
    const m2_text_encoder *encoder;
    const m2_text_config *config;
    const m2_ops *ops;
    m2_arena *step;
    m2_dtype dtype;
    int64_t n;
    m2_tensor cos, sin; /* [n, n_rot] */
} text_run;

static m2_tensor project(const text_run *run, const m2_tensor *x, const m2_tensor *w)
{
    m2_tensor y = m2_tensor_make(run->step, run->dtype, run->n, w->shape[0]);
    run->ops->linear(run->ops, &(m2_linear_args){ .x = x, .w = w, .y = &y });
    return y;
}

static m2_tensor norm(const text_run *run, const m2_tensor *x, const m2_tensor *w)
{
    m2_tensor y = m2_tensor_make(run->step, run->dtype, run->n, x->shape[1]);
    run->ops->rms_norm(
        run->ops,
        &(m2_rms_norm_args){
            .x = x, .w = w, .eps = (float)run->config->rms_eps, .weight_offset = 1.0f, .y = &y });
    return y;
}

static m2_tensor reshape(const m2_tensor *x, int64_t heads, int64_t dim)
{
    return m2_tensor_over(x->data, x->dtype, x->shape[0], heads, dim);
}

/* Causal attention with a gate on its output; h [n, hidden] -> [n, hidden]. */
static m2_tensor full_attention(const text_run *run, const m2_text_layer *layer, const m2_tensor *h)
{
    const m2_text_config *config = run->config;
    const m2_ops *ops = run->ops;
    const int64_t n = run->n, n_heads = config->n_heads, n_kv = config->n_kv_heads;
    const int64_t dim = config->head_dim;
    const int64_t segments[2] = { 0, n };

    const m2_tensor qg_rows = project(run, h, &layer->q_proj);
    const m2_tensor k_rows = project(run, h, &layer->k_proj);
    const m2_tensor v_rows = project(run, h, &layer->v_proj);
    const m2_tensor qg = reshape(&qg_rows, n_heads, 2 * dim);
    const m2_tensor k_in = reshape(&k_rows, n_kv, dim), v = reshape(&v_rows, n_kv, dim);
    m2_tensor q = m2_tensor_make(run->step, run->dtype, n, n_heads, dim);
    m2_tensor k = m2_tensor_make(run->step, run->dtype, n, n_kv, dim);
    ops->text_qk_norm_rope(ops, &(m2_text_qk_norm_rope_args){ .qg = &qg,
                                                              .k_in = &k_in,
                                                              .q_norm = &layer->q_norm,
                                                              .k_norm = &layer->k_norm,
                                                              .cos = &run->cos,
                                                              .sin = &run->sin,
                                                              .eps = (float)config->rms_eps,
                                                              .q = &q,
                                                              .k = &k });
    m2_tensor a = m2_tensor_make(run->step, run->dtype, n, n_heads, dim);
    ops->attention(ops, &(m2_attention_args){ .q = &q,
                                              .k = &k,
                                              .v = &v,
                                              .segments = segments,
                                              .n_segments = 1,
                                              .scale = (float)(1.0 / sqrt((double)dim)),
                                              .is_causal = 1,
                                              .y = &a });
    m2_tensor gated = m2_tensor_make(run->step, run->dtype, n, n_heads * dim);
    ops->text_gate(ops, &(m2_text_gate_args){ .a = &a, .qg = &qg, .y = &gated });
    return project(run, &gated, &layer->o_proj);
}

/* Gated delta net; h [n, hidden] -> [n, hidden]. */
static m2_tensor linear_attention(const text_run *run, const m2_text_layer *layer,
                                  const m2_tensor *h)
{
    const m2_text_config *config = run->config;
    const m2_ops *ops = run->ops;
    const int64_t n = run->n, n_value = config->n_value_heads, dv = config->value_dim;
    const int use_chunks = run->encoder->params.use_chunks;

    const m2_tensor qkv_in = project(run, h, &layer->in_proj_qkv);
    const m2_tensor z = project(run, h, &layer->in_proj_z);
    const m2_tensor b = project(run, h, &layer->in_proj_b);
    const m2_tensor a = project(run, h, &layer->in_proj_a);
    m2_tensor qkv = m2_tensor_make(run->step, run->dtype, n, qkv_in.shape[1]);
    ops->causal_conv_silu(
        ops, &(m2_causal_conv_silu_args){ .x = &qkv_in, .w = &layer->conv, .y = &qkv });

    m2_tensor scratch = m2_tensor_make(
        run->step, M2_F32,
        m2_gated_delta_scratch(n, config->n_key_heads, config->key_dim, config->n_value_heads,
                               config->value_dim, use_chunks));
    m2_tensor o = m2_tensor_make(run->step, run->dtype, n, n_value, dv);
    ops->gated_delta_rule(ops, &(m2_gated_delta_rule_args){ .qkv = &qkv,
                                                            .a = &a,
                                                            .b = &b,
                                                            .a_log = &layer->a_log,
                                                            .dt_bias = &layer->dt_bias,
                                                            .n_key_heads = config->n_key_heads,
                                                            .key_dim = config->key_dim,
                                                            .n_value_heads = config->n_value_heads,
                                                            .value_dim = config->value_dim,
                                                            .use_chunks = use_chunks,
                                                            .scratch = &scratch,
                                                            .o = &o });
    m2_tensor y = m2_tensor_make(run->step, run->dtype, n, n_value * dv);
    ops->gated_rms_norm(
        ops,
        &(m2_gated_rms_norm_args){
            .o = &o, .w = &layer->gated_norm, .z = &z, .eps = (float)config->rms_eps, .y = &y });
    return project(run, &y, &layer->out_proj);
}

static m2_tensor mlp(const text_run *run, const m2_text_layer *layer, const m2_tensor *h)
{
    m2_tensor gate = project(run, h, &layer->gate_proj);
    const m2_tensor up = project(run, h, &layer->up_proj);
    run->ops->silu_mul(run->ops, &(m2_silu_mul_args){ .gate = &gate, .up = &up, .y = &gate });
    return project(run, &gate, &layer->down_proj);
}

/* x += y, rounded once. */
static void add_to(const text_run *run, m2_tensor *x, const m2_tensor *y)
{
    run->ops->add(run->ops, &(m2_add_args){ .a = x, .b = y, .y = x });
}

static void run_layer(const text_run *run, int idx, m2_tensor *x)
{
    const m2_text_layer *layer = &run->encoder->weights.layers[idx];
    const size_t mark = m2_arena_save(run->step);
    const m2_tensor h = norm(run, x, &layer->input_norm);
    const m2_tensor mixed = run->config->is_full[idx] ? full_attention(run, layer, &h)
                                                      : linear_attention(run, layer, &h);
    add_to(run, x, &mixed);
    m2_arena_restore(run->step, mark);

    const m2_tensor h2 = norm(run, x, &layer->post_norm);
    const m2_tensor fed = mlp(run, layer, &h2);
    add_to(run, x, &fed);
    m2_arena_restore(run->step, mark);
}

static m2_status check_ids(const m2_text_encoder *encoder, const int32_t *ids, int64_t n)
{
    if (n < 1) return m2_fail(M2_ERR_ARG, "the prompt has no token; give it some text");
    for (int64_t i = 0; ids && i < n; i++) {
        if (ids[i] < 0 || ids[i] >= encoder->config.vocab_size)
            return m2_fail(M2_ERR_MODEL,
                           "token %lld has id %d, the text encoder's table ends at %d; "
                           "are tokenizer.json and the weights of one release?",
                           (long long)i, (int)ids[i], encoder->config.vocab_size - 1);
    }
    return M2_OK;
}

static void embed(const text_run *run, const int32_t *ids, m2_tensor *x)
{
    const m2_ops *ops = run->ops;
    m2_tensor idx = m2_tensor_make(run->step, M2_I32, run->n);
    if (ids) ops->upload(ops, &idx, ids);
    ops->gather_rows(ops, &(m2_gather_rows_args){
                              .x = &run->encoder->weights.embed_tokens, .idx = &idx, .y = x });
}

/* The last two layers and the final norm, which only a tap asks for. */
static m2_status run_rest(const text_run *run, const m2_tensor *features, m2_text_tap *tap,
                          void *user)
{
    const m2_ops *ops = run->ops;
    const int n_layers = run->config->n_layers;
    m2_tensor x = m2_tensor_make(run->step, run->dtype, run->n, features->shape[1]);
    ops->convert(ops, &(m2_convert_args){ .x = features, .y = &x });
    for (int i = n_layers - 2; i < n_layers; i++) {
        run_layer(run, i, &x);
        if (tap && i < n_layers - 1) M2_TRY(tap(user, i + 1, &x));
    }
    const m2_tensor last = norm(run, &x, &run->encoder->weights.norm);
    return tap ? tap(user, n_layers, &last) : M2_OK;
}

static m2_status run_layers(const text_run *run, const int32_t *ids, m2_tensor *features,
                            m2_text_tap *tap, void *user)
{
    embed(run, ids, features);
    if (tap) M2_TRY(tap(user, 0, features));
    for (int i = 0; i < run->config->n_layers - 2; i++) {
        run_layer(run, i, features);
        if (tap) M2_TRY(tap(user, i + 1, features));
    }
    return run->encoder->params.want_all_layers ? run_rest(run, features, tap, user) : M2_OK;
}

m2_status m2_text_encoder_run(const m2_text_encoder *encoder, const m2_ops *ops, m2_arena *step,
                              const int32_t *ids, int64_t n, m2_tensor *features, m2_text_tap *tap,
                              void *tap_user)
{
    const m2_text_config *config = &encoder->config;
    M2_TRY(check_ids(encoder, ids, n));
    M2_TRY(check_device(config, ops, n));
    assert(ids || ops->is_measuring);
    assert(features->dtype == encoder->params.dtype && features->shape[0] == n &&
           features->shape[1] == config->hidden_size);

    const size_t mark = m2_arena_save(step);
    text_run run = { .encoder = encoder,
                     .config = config,
                     .ops = ops,
                     .step = step,
                     .dtype = encoder->params.dtype,
                     .n = n };
    run.cos = m2_tensor_make(step, run.dtype, n, config->n_rot);
    run.sin = m2_tensor_make(step, run.dtype, n, config->n_rot);
    ops->text_rope_table(ops, &(m2_text_rope_table_args){
                                  .theta = config->rope_theta, .cos = &run.cos, .sin = &run.sin });
    const m2_status status = run_layers(&run, ids, features, tap, tap_user);
    m2_arena_restore(step, mark);
    return status;
}

void m2_text_special_token(const m2_ops *ops, m2_arena *step, const m2_tensor *features,
                           const int32_t *rows, int64_t n_rows, m2_tensor *y)
{
    const size_t mark = m2_arena_save(step);
    m2_tensor idx = m2_tensor_make(step, M2_I32, n_rows);
    if (rows && n_rows > 0) ops->upload(ops, &idx, rows);
    ops->mean_rows(ops, &(m2_mean_rows_args){ .x = features, .idx = &idx, .y = y });
    m2_arena_restore(step, mark);
}
