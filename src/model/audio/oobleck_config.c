#include "model/audio/oobleck_config.h"

#include "io/json_file.h"

#include <string.h>

#define FILE_BYTES_MAX ((size_t)1 << 20)
#define CHANNELS_MAX   65536
#define STRIDE_MAX     256

void m2_oobleck_config_init(m2_oobleck_config *config)
{
    *config = (m2_oobleck_config){ .latent_dim = 64,
                                   .n_blocks = 5,
                                   .c_in = { 2048, 1024, 512, 256, 128 },
                                   .c_out = { 1024, 512, 256, 128, 128 },
                                   .strides = { 8, 8, 4, 4, 2 },
                                   .use_snake = 1 };
}

static m2_status get(const char *path, const json_t *object, const char *key, json_t **out)
{
    *out = json_object_get(object, key);
    if (*out) return M2_OK;
    return m2_fail(M2_ERR_FORMAT,
                   "%s: no field '%s' where Stable Audio Open's model_config.json has it", path,
                   key);
}

static m2_status get_object(const char *path, const json_t *object, const char *key, json_t **out)
{
    M2_TRY(get(path, object, key, out));
    if (json_is_object(*out)) return M2_OK;
    return m2_fail(M2_ERR_FORMAT, "%s: '%s' must be an object", path, key);
}

static m2_status check_int(const char *path, const char *key, const json_t *value, int low,
                           int high, int *out)
{
    if (!json_is_integer(value) || json_integer_value(value) < low ||
        json_integer_value(value) > high)
        return m2_fail(M2_ERR_FORMAT, "%s: '%s' must be whole numbers from %d to %d", path, key,
                       low, high);
    *out = (int)json_integer_value(value);
    return M2_OK;
}

static m2_status get_int(const char *path, const json_t *object, const char *key, int low, int high,
                         int *out)
{
    json_t *value;
    M2_TRY(get(path, object, key, &value));
    return check_int(path, key, value, low, high, out);
}

static m2_status get_bool(const char *path, const json_t *object, const char *key, int *out)
{
    json_t *value;
    M2_TRY(get(path, object, key, &value));
    if (!json_is_boolean(value))
        return m2_fail(M2_ERR_FORMAT, "%s: '%s' must be true or false", path, key);
    *out = json_is_true(value);
    return M2_OK;
}

/* The same where the file may leave the field out: false then. */
static m2_status get_switch(const char *path, const json_t *object, const char *key, int *out)
{
    *out = 0;
    return json_object_get(object, key) ? get_bool(path, object, key, out) : M2_OK;
}

static m2_status check_type(const char *path, const char *what, const json_t *object,
                            const char *type)
{
    json_t *value;
    M2_TRY(get(path, object, "type", &value));
    if (json_is_string(value) && strcmp(json_string_value(value), type) == 0) return M2_OK;
    return m2_fail(M2_ERR_UNSUPPORTED, "%s: the %s's type is '%.60s'; only '%s' is implemented",
                   path, what, json_is_string(value) ? json_string_value(value) : "not a string",
                   type);
}

/* The file counts blocks from the sound to the latent, with channel counts as multiples. */
static m2_status read_blocks(const char *path, const json_t *decoder, m2_oobleck_config *config)
{
    json_t *mults, *strides;
    int channels, below = 1;
    M2_TRY(get_int(path, decoder, "channels", 1, CHANNELS_MAX, &channels));
    M2_TRY(get(path, decoder, "c_mults", &mults));
    M2_TRY(get(path, decoder, "strides", &strides));
    const size_t n = json_array_size(mults);
    if (!json_is_array(mults) || !json_is_array(strides) || json_array_size(strides) != n ||
        n < 1 || n > M2_OOBLECK_BLOCKS_MAX)
        return m2_fail(M2_ERR_FORMAT, "%s: 'c_mults' and 'strides' must list 1 to %d blocks each",
                       path, M2_OOBLECK_BLOCKS_MAX);
    config->n_blocks = (int)n;
    for (int i = 0; i < (int)n; i++) {
        const int b = (int)n - 1 - i;
        int mult = 0;
        M2_TRY(check_int(path, "c_mults", json_array_get(mults, (size_t)i), 1,
                         CHANNELS_MAX / channels, &mult));
        M2_TRY(check_int(path, "strides", json_array_get(strides, (size_t)i), 1, STRIDE_MAX,
                         &config->strides[b]));
        config->c_in[b] = channels * mult;
        config->c_out[b] = channels * below;
        below = mult;
    }
    return M2_OK;
}

static m2_status check_ratio(const char *path, const json_t *config_json,
                             const m2_oobleck_config *config)
{
    int ratio, latent_dim, io_channels;
    int64_t product = 1;
    M2_TRY(get_int(path, config_json, "downsampling_ratio", 1, 1 << 30, &ratio));
    M2_TRY(get_int(path, config_json, "latent_dim", 1, CHANNELS_MAX, &latent_dim));
    M2_TRY(get_int(path, config_json, "io_channels", 1, 64, &io_channels));
    for (int b = 0; b < config->n_blocks && product <= 1 << 30; b++) product *= config->strides[b];
    if (product != ratio)
        return m2_fail(M2_ERR_UNSUPPORTED,
                       "%s: 'downsampling_ratio' is %d, but the decoder's strides make %lld", path,
                       ratio, (long long)product);
    if (latent_dim != config->latent_dim || io_channels != M2_OOBLECK_CHANNELS)
        return m2_fail(
            M2_ERR_UNSUPPORTED,
            "%s: the autoencoder has %d latent and %d sound channels, its decoder %d and "
            "%d",
            path, latent_dim, io_channels, config->latent_dim, M2_OOBLECK_CHANNELS);
    return M2_OK;
}

static m2_status read_decoder(const char *path, const json_t *decoder, m2_oobleck_config *config)
{
    json_t *inner;
    int out_channels = 0, use_antialias = 0;
    M2_TRY(check_type(path, "decoder", decoder, "oobleck"));
    M2_TRY(get_switch(path, decoder, "soft_clip", &config->soft_clip));
    M2_TRY(get_object(path, decoder, "config", &inner));
    M2_TRY(get_int(path, inner, "out_channels", 1, 64, &out_channels));
    if (out_channels != M2_OOBLECK_CHANNELS)
        return m2_fail(M2_ERR_UNSUPPORTED,
                       "%s: the decoder's 'out_channels' is %d; only %d (stereo) "
                       "is implemented",
                       path, out_channels, M2_OOBLECK_CHANNELS);
    M2_TRY(get_int(path, inner, "latent_dim", 1, CHANNELS_MAX, &config->latent_dim));
    M2_TRY(get_bool(path, inner, "use_snake", &config->use_snake));
    M2_TRY(get_bool(path, inner, "final_tanh", &config->final_tanh));
    M2_TRY(get_switch(path, inner, "use_nearest_upsample", &config->use_nearest_upsample));
    M2_TRY(get_switch(path, inner, "antialias_activation", &use_antialias));
    if (use_antialias)
        return m2_fail(M2_ERR_UNSUPPORTED, "%s: 'antialias_activation' is not implemented", path);
    return read_blocks(path, inner, config);
}

static m2_status read_config(const char *path, const json_t *root, m2_oobleck_config *config)
{
    json_t *model, *pretransform, *inner, *decoder, *bottleneck;
    M2_TRY(get_object(path, root, "model", &model));
    M2_TRY(get_object(path, model, "pretransform", &pretransform));
    M2_TRY(check_type(path, "pretransform", pretransform, "autoencoder"));
    const json_t *scale = json_object_get(pretransform, "scale");
    if (scale && !(json_is_number(scale) && json_number_value(scale) == 1))
        return m2_fail(M2_ERR_UNSUPPORTED, "%s: the pretransform's 'scale' must be 1", path);
    M2_TRY(get_object(path, pretransform, "config", &inner));
    M2_TRY(get_object(path, inner, "bottleneck", &bottleneck));
    M2_TRY(check_type(path, "bottleneck", bottleneck, "vae"));
    M2_TRY(get_object(path, inner, "decoder", &decoder));
    M2_TRY(read_decoder(path, decoder, config));
    return check_ratio(path, inner, config);
}

m2_status m2_oobleck_config_load(const char *path, m2_oobleck_config *config_out)
{
    json_t *root = NULL;
    M2_TRY(m2_json_load(path, FILE_BYTES_MAX, &root));
    m2_oobleck_config config = { 0 };
    const m2_status status = read_config(path, root, &config);
    json_decref(root);
    if (status == M2_OK) *config_out = config;
    return status;
}

int64_t m2_oobleck_n_samples(const m2_oobleck_config *config, int64_t n_latents)
{
    int64_t n = n_latents;
    for (int b = 0; b < config->n_blocks; b++) {
        const int stride = config->strides[b];
        /* A transposed convolution with an odd stride loses one sample to its padding. */
        n = n * stride - (config->use_nearest_upsample ? 0 : stride % 2);
    }
    return n;
}
