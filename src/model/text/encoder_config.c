#include "model/text/encoder_config.h"

#include "io/json_file.h"

#include <math.h>
#include <string.h>

#define CONFIG_BYTES_MAX ((size_t)4 << 20)
#define SIZE_MAX_FIELD   (1 << 24)

void m2_text_config_init(m2_text_config *config)
{
    *config = (m2_text_config){ .n_layers = 64,
                                .hidden_size = 5120,
                                .mlp_size = 17408,
                                .vocab_size = 248320,
                                .rms_eps = 1e-6,
                                .n_heads = 24,
                                .n_kv_heads = 4,
                                .head_dim = 256,
                                .n_rot = 32,
                                .rope_theta = 1e7,
                                .n_key_heads = 16,
                                .key_dim = 128,
                                .n_value_heads = 48,
                                .value_dim = 128,
                                .conv_kernel = 4 };
    for (int i = 0; i < config->n_layers; i++) config->is_full[i] = i % 4 == 3;
}

/* A file being read: where fields are looked up, and its path for messages. */
typedef struct config_file {
    const char *path;
    const json_t *fields;
} config_file;

/* NULL if the field is absent or null. */
static const json_t *field(const json_t *object, const char *name)
{
    const json_t *value = json_object_get(object, name);
    return json_is_null(value) ? NULL : value;
}

static m2_status read_size(const config_file *file, const char *name, int *size_out)
{
    const json_t *value = field(file->fields, name);
    if (!value)
        return m2_fail(M2_ERR_FORMAT, "%s: \"%s\" is missing; is it the config of a text encoder?",
                       file->path, name);
    if (!json_is_integer(value) || json_integer_value(value) < 1 ||
        json_integer_value(value) > SIZE_MAX_FIELD)
        return m2_fail(M2_ERR_FORMAT, "%s: \"%s\" is not a whole number from 1 to %d", file->path,
                       name, SIZE_MAX_FIELD);
    *size_out = (int)json_integer_value(value);
    return M2_OK;
}

/* A number above 0, from `object` or else from the fields of the file. */
static m2_status read_real(const config_file *file, const json_t *object, const char *name,
                           double *real_out)
{
    const json_t *value = field(object, name);
    if (!value) value = field(file->fields, name);
    if (!value)
        return m2_fail(M2_ERR_FORMAT, "%s: \"%s\" is missing; is it the config of a text encoder?",
                       file->path, name);
    if (!json_is_number(value) || !(json_number_value(value) > 0.0))
        return m2_fail(M2_ERR_FORMAT, "%s: \"%s\" is not a number above 0", file->path, name);
    *real_out = json_number_value(value);
    return M2_OK;
}

static m2_status refuse_other_maths(const config_file *file)
{
    static const char *const must_be_false[] = { "attention_bias", "mlp_bias", "use_sliding_window",
                                                 "linear_attention_bias", "linear_conv_bias" };
    static const char *const must_be_absent[] = { "num_experts", "rope_scaling",
                                                  "attention_chunk_size" };
    const json_t *activation = field(file->fields, "hidden_act");
    if (activation &&
        (!json_is_string(activation) || strcmp(json_string_value(activation), "silu") != 0))
        return m2_fail(M2_ERR_UNSUPPORTED, "%s: \"hidden_act\" is %s; the text encoder knows silu",
                       file->path,
                       json_is_string(activation) ? json_string_value(activation) : "no string");
    for (size_t i = 0; i < sizeof must_be_false / sizeof must_be_false[0]; i++) {
        const json_t *value = field(file->fields, must_be_false[i]);
        if (value && !json_is_false(value))
            return m2_fail(M2_ERR_UNSUPPORTED, "%s: \"%s\" is not false; that is not implemented",
                           file->path, must_be_false[i]);
    }
    for (size_t i = 0; i < sizeof must_be_absent / sizeof must_be_absent[0]; i++) {
        if (field(file->fields, must_be_absent[i]))
            return m2_fail(M2_ERR_UNSUPPORTED, "%s: \"%s\" is set; that is not implemented",
                           file->path, must_be_absent[i]);
    }
    const json_t *gate = field(file->fields, "attn_output_gate");
    if (gate && !json_is_true(gate))
        return m2_fail(M2_ERR_UNSUPPORTED,
                       "%s: \"attn_output_gate\" is not true; attention without "
                       "its gate is not implemented",
                       file->path);
    return M2_OK;
}

static m2_status read_rope(const config_file *file, m2_text_config *config)
{
    const json_t *rope = field(file->fields, "rope_parameters");
    const json_t *type = field(rope, "rope_type");
    if (rope && !json_is_object(rope))
        return m2_fail(M2_ERR_FORMAT, "%s: \"rope_parameters\" is not an object", file->path);
    if (type && (!json_is_string(type) || strcmp(json_string_value(type), "default") != 0))
        return m2_fail(M2_ERR_UNSUPPORTED,
                       "%s: \"rope_type\" is %s; the text encoder knows default", file->path,
                       json_is_string(type) ? json_string_value(type) : "no string");
    M2_TRY(read_real(file, rope, "rope_theta", &config->rope_theta));
    double share;
    M2_TRY(read_real(file, rope, "partial_rotary_factor", &share));
    const double pairs = config->head_dim * share / 2.0;
    if (!(pairs <= config->head_dim / 2) || pairs != floor(pairs))
        return m2_fail(M2_ERR_FORMAT,
                       "%s: \"partial_rotary_factor\" %g of heads of %d is not a "
                       "whole number of pairs",
                       file->path, share, config->head_dim);
    config->n_rot = (int)pairs;
    return M2_OK;
}

static m2_status read_layer_types(const config_file *file, m2_text_config *config)
{
    const json_t *types = field(file->fields, "layer_types");
    if (!types) {
        int interval;
        M2_TRY(read_size(file, "full_attention_interval", &interval));
        for (int i = 0; i < config->n_layers; i++) config->is_full[i] = (i + 1) % interval == 0;
        return M2_OK;
    }
    if (!json_is_array(types) || json_array_size(types) != (size_t)config->n_layers)
        return m2_fail(M2_ERR_FORMAT, "%s: \"layer_types\" is not a list of %d types", file->path,
                       config->n_layers);
    for (int i = 0; i < config->n_layers; i++) {
        const json_t *type = json_array_get(types, (size_t)i);
        const char *name = json_is_string(type) ? json_string_value(type) : "no string";
        config->is_full[i] = strcmp(name, "full_attention") == 0;
        if (!config->is_full[i] && strcmp(name, "linear_attention") != 0)
            return m2_fail(M2_ERR_UNSUPPORTED,
                           "%s: layer %d is of type \"%s\"; the text encoder "
                           "knows full_attention and linear_attention",
                           file->path, i, name);
    }
    return M2_OK;
}

static m2_status read_sizes(const config_file *file, m2_text_config *config)
{
    const struct {
        const char *name;
        int *size;
    } sizes[] = {
        { "num_hidden_layers", &config->n_layers },
        { "hidden_size", &config->hidden_size },
        { "intermediate_size", &config->mlp_size },
        { "vocab_size", &config->vocab_size },
        { "num_attention_heads", &config->n_heads },
        { "num_key_value_heads", &config->n_kv_heads },
        { "head_dim", &config->head_dim },
        { "linear_num_key_heads", &config->n_key_heads },
        { "linear_key_head_dim", &config->key_dim },
        { "linear_num_value_heads", &config->n_value_heads },
        { "linear_value_head_dim", &config->value_dim },
        { "linear_conv_kernel_dim", &config->conv_kernel },
    };
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++)
        M2_TRY(read_size(file, sizes[i].name, sizes[i].size));
    if (config->n_layers < 2 || config->n_layers > M2_TEXT_LAYERS_MAX)
        return m2_fail(M2_ERR_FORMAT, "%s: \"num_hidden_layers\" is %d, not 2 to %d", file->path,
                       config->n_layers, M2_TEXT_LAYERS_MAX);
    if (config->n_heads % config->n_kv_heads != 0)
        return m2_fail(M2_ERR_FORMAT, "%s: %d query heads do not share %d key/value heads evenly",
                       file->path, config->n_heads, config->n_kv_heads);
    if (config->n_value_heads % config->n_key_heads != 0)
        return m2_fail(M2_ERR_FORMAT, "%s: %d linear value heads do not share %d key heads evenly",
                       file->path, config->n_value_heads, config->n_key_heads);
    return M2_OK;
}

/* Widths are products of two sizes and go into `int` tables and matrices. */
static m2_status check_widths(const config_file *file, const m2_text_config *config)
{
    const double full = 2.0 * config->n_heads * config->head_dim;
    const double kv = (double)config->n_kv_heads * config->head_dim;
    const double linear = 2.0 * config->n_key_heads * config->key_dim +
                          (double)config->n_value_heads * config->value_dim;
    if (full > SIZE_MAX_FIELD || kv > SIZE_MAX_FIELD || linear > SIZE_MAX_FIELD)
        return m2_fail(M2_ERR_FORMAT, "%s: heads times their width is above %d", file->path,
                       SIZE_MAX_FIELD);
    return M2_OK;
}

static m2_status read_config(const config_file *file, m2_text_config *config)
{
    M2_TRY(read_sizes(file, config));
    M2_TRY(check_widths(file, config));
    M2_TRY(refuse_other_maths(file));
    M2_TRY(read_real(file, NULL, "rms_norm_eps", &config->rms_eps));
    M2_TRY(read_rope(file, config));
    return read_layer_types(file, config);
}

m2_status m2_text_config_load(const char *path, m2_text_config *config_out)
{
    json_t *root = NULL;
    M2_TRY(m2_json_load(path, CONFIG_BYTES_MAX, &root));
    const json_t *nested = field(root, "text_config");
    const config_file file = { .path = path, .fields = nested ? nested : root };
    m2_text_config config = { 0 };
    const m2_status status = read_config(&file, &config);
    json_decref(root);
    if (status == M2_OK) *config_out = config;
    return status;
}
