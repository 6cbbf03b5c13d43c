#include "model/vae/turbo_config.h"

#include "io/json_file.h"
#include "model/vae/latent_stats.h"

#include <stdlib.h>
#include <string.h>

#define FILE_BYTES_MAX ((size_t)1 << 20)
#define CHANNELS_MAX   16384
#define CHUNK_MAX      4096

void m2_turbo_config_init(m2_turbo_config *config)
{
    *config = (m2_turbo_config){ .n_blocks = 4,
                                 .channels = { 512, 256, 128, 64 },
                                 .has_upsampler = { 1, 1, 1, 0 },
                                 .is_spatial_only = { 0, 0, 1, 0 },
                                 .n_resnets = { 3, 3, 2, 2, 2 },
                                 .depthwise_kernel = 1,
                                 .shortcut_eps = 1e-6f,
                                 .first_chunk = 7,
                                 .step = 7,
                                 .spatial_ratio = 16,
                                 .temporal_ratio = 4 };
}

typedef struct turbo_file {
    const char *path;
    const json_t *root;
} turbo_file;

static m2_status get_field(const turbo_file *file, const char *key, const json_t **value_out)
{
    *value_out = json_object_get(file->root, key);
    if (*value_out) return M2_OK;
    return m2_fail(M2_ERR_FORMAT, "%s: no field '%s'; is this a TurboVAED decoder's config?",
                   file->path, key);
}

static m2_status check_int(const turbo_file *file, const char *key, const json_t *value, int low,
                           int high, int *out)
{
    if (!json_is_integer(value) || json_integer_value(value) < low ||
        json_integer_value(value) > high)
        return m2_fail(M2_ERR_FORMAT, "%s: '%s' must be whole numbers from %d to %d", file->path,
                       key, low, high);
    *out = (int)json_integer_value(value);
    return M2_OK;
}

static m2_status get_int(const turbo_file *file, const char *key, int low, int high, int *out)
{
    const json_t *value;
    M2_TRY(get_field(file, key, &value));
    return check_int(file, key, value, low, high, out);
}

static m2_status get_bool(const turbo_file *file, const char *key, int *out)
{
    const json_t *value;
    M2_TRY(get_field(file, key, &value));
    if (!json_is_boolean(value))
        return m2_fail(M2_ERR_FORMAT, "%s: '%s' must be true or false", file->path, key);
    *out = json_is_true(value);
    return M2_OK;
}

static m2_status get_list(const turbo_file *file, const char *key, size_t n, const json_t **out)
{
    M2_TRY(get_field(file, key, out));
    if (json_is_array(*out) && json_array_size(*out) == n) return M2_OK;
    return m2_fail(M2_ERR_FORMAT, "%s: '%s' must be a list of %zu entries", file->path, key, n);
}

/* Lists are reversed here, and nowhere else. */
static m2_status get_ints(const turbo_file *file, const char *key, int n, int low, int high,
                          int *out)
{
    const json_t *list;
    M2_TRY(get_list(file, key, (size_t)n, &list));
    for (int i = 0; i < n; i++)
        M2_TRY(check_int(file, key, json_array_get(list, (size_t)(n - 1 - i)), low, high, &out[i]));
    return M2_OK;
}

static m2_status get_bools(const turbo_file *file, const char *key, int n, unsigned char *out)
{
    const json_t *list;
    M2_TRY(get_list(file, key, (size_t)n, &list));
    for (int i = 0; i < n; i++) {
        const json_t *value = json_array_get(list, (size_t)(n - 1 - i));
        if (!json_is_boolean(value))
            return m2_fail(M2_ERR_FORMAT, "%s: '%s' must hold true or false only", file->path, key);
        out[i] = json_is_true(value);
    }
    return M2_OK;
}

/* A field that may be left out and has one value that is implemented. */
static m2_status check_only(const turbo_file *file, const char *key, double only)
{
    const json_t *value = json_object_get(file->root, key);
    if (!value) return M2_OK;
    if (json_is_number(value) && json_number_value(value) == only) return M2_OK;
    if (only == 0 && json_is_false(value)) return M2_OK;
    char *text = json_dumps(value, JSON_ENCODE_ANY | JSON_COMPACT);
    const m2_status status =
        m2_fail(M2_ERR_UNSUPPORTED, "%s: '%s' is %.60s; only %g is implemented", file->path, key,
                text ? text : "?", only);
    free(text);
    return status;
}

static int is_off(const json_t *value)
{
    if (json_is_array(value)) {
        for (size_t i = 0; i < json_array_size(value); i++)
            if (!is_off(json_array_get(value, i))) return 0;
        return 1;
    }
    return json_is_null(value) || json_is_false(value) ||
           (json_is_number(value) && json_number_value(value) == 0);
}

/* Settings of the decoder that we do not know must be off; those of other parts do not concern us. */
static m2_status check_unknown(const turbo_file *file)
{
    static const char *const known[] = {
        "decoder_block_out_channels",
        "decoder_layers_per_block",
        "decoder_spatio_temporal_scaling",
        "decoder_spatio_only",
        "decoder_is_dw_conv",
        "decoder_dw_kernel_size",
        "decoder_causal",
    };
    const char *key;
    json_t *value;
    json_object_foreach((json_t *)(uintptr_t)file->root, key, value)
    {
        if (strncmp(key, "decoder_", 8) != 0 || is_off(value)) continue;
        int is_known = 0;
        for (size_t i = 0; i < sizeof known / sizeof known[0]; i++)
            is_known |= strcmp(key, known[i]) == 0;
        if (!is_known)
            return m2_fail(M2_ERR_UNSUPPORTED, "%s: the decoder setting '%s' is not implemented",
                           file->path, key);
    }
    return M2_OK;
}

static m2_status check_fixed(const turbo_file *file)
{
    static const struct {
        const char *key;
        double only;
    } fixed[] = {
        { "latent_channels", M2_LATENT_CHANNELS },
        { "out_channels", M2_TURBO_COLOURS },
        { "patch_size", 2 },
        { "patch_size_t", 1 },
        { "scaling_factor", 1 },
        { "decoder_causal", 0 },
    };
    for (size_t i = 0; i < sizeof fixed / sizeof fixed[0]; i++)
        M2_TRY(check_only(file, fixed[i].key, fixed[i].only));
    return M2_OK;
}

static m2_status read_blocks(const turbo_file *file, m2_turbo_config *config)
{
    const json_t *list;
    M2_TRY(get_field(file, "decoder_block_out_channels", &list));
    const size_t n = json_array_size(list);
    if (!json_is_array(list) || n < 1 || n > M2_TURBO_BLOCKS_MAX)
        return m2_fail(M2_ERR_FORMAT, "%s: 'decoder_block_out_channels' must list 1 to %d blocks",
                       file->path, M2_TURBO_BLOCKS_MAX);
    config->n_blocks = (int)n;
    const int n_blocks = config->n_blocks;
    M2_TRY(
        get_ints(file, "decoder_block_out_channels", n_blocks, 1, CHANNELS_MAX, config->channels));
    M2_TRY(get_ints(file, "decoder_layers_per_block", n_blocks + 1, 1, M2_TURBO_RESNETS_MAX,
                    config->n_resnets));
    M2_TRY(get_bools(file, "decoder_spatio_temporal_scaling", n_blocks, config->has_upsampler));
    M2_TRY(get_bools(file, "decoder_spatio_only", n_blocks, config->is_spatial_only));
    M2_TRY(get_bools(file, "decoder_is_dw_conv", n_blocks + 1, config->is_depthwise));
    config->depthwise_kernel = 1;
    for (int b = 0; b <= n_blocks; b++) {
        if (!config->is_depthwise[b]) continue;
        M2_TRY(get_int(file, "decoder_dw_kernel_size", 1, 15, &config->depthwise_kernel));
        if (config->depthwise_kernel % 2 == 0)
            return m2_fail(M2_ERR_UNSUPPORTED,
                           "%s: 'decoder_dw_kernel_size' is %d; only odd sizes "
                           "are implemented",
                           file->path, config->depthwise_kernel);
    }
    return M2_OK;
}

/* Compression is what the upsamplers make it; a file that says otherwise is not understood. */
static m2_status check_ratios(const turbo_file *file, m2_turbo_config *config)
{
    config->spatial_ratio = 2;
    config->temporal_ratio = 1;
    for (int b = 0; b < config->n_blocks; b++) {
        if (!config->has_upsampler[b]) continue;
        config->spatial_ratio *= 2;
        if (!config->is_spatial_only[b]) config->temporal_ratio *= 2;
    }
    int spatial, temporal;
    M2_TRY(get_int(file, "spatial_compression_ratio", 1, 1 << 16, &spatial));
    M2_TRY(get_int(file, "temporal_compression_ratio", 1, 1 << 16, &temporal));
    if (spatial != config->spatial_ratio || temporal != config->temporal_ratio)
        return m2_fail(
            M2_ERR_UNSUPPORTED,
            "%s: compression ratios %d (space) and %d (time), but the upsamplers make %d "
            "and %d",
            file->path, spatial, temporal, config->spatial_ratio, config->temporal_ratio);
    return M2_OK;
}

static m2_status read_config(const turbo_file *file, m2_turbo_config *config)
{
    int use_unpatchify = 0;
    const json_t *eps;
    M2_TRY(check_fixed(file));
    M2_TRY(check_unknown(file));
    M2_TRY(read_blocks(file, config));
    M2_TRY(get_bool(file, "use_unpatchify", &use_unpatchify));
    config->has_shuffle_head = !use_unpatchify;
    if (config->has_shuffle_head && config->channels[config->n_blocks - 1] % 4 != 0)
        return m2_fail(M2_ERR_FORMAT,
                       "%s: the last block has %d channels; without 'use_unpatchify' "
                       "they must be a multiple of 4",
                       file->path, config->channels[config->n_blocks - 1]);
    M2_TRY(get_field(file, "resnet_norm_eps", &eps));
    if (!json_is_number(eps) || !(json_number_value(eps) > 0 && json_number_value(eps) < 1))
        return m2_fail(M2_ERR_FORMAT, "%s: 'resnet_norm_eps' must be a number between 0 and 1",
                       file->path);
    config->shortcut_eps = (float)json_number_value(eps);
    M2_TRY(get_int(file, "first_chunk_size", 1, CHUNK_MAX, &config->first_chunk));
    M2_TRY(get_int(file, "step_size", 1, CHUNK_MAX, &config->step));
    return check_ratios(file, config);
}

m2_status m2_turbo_config_load(const char *path, m2_turbo_config *config_out)
{
    json_t *root = NULL;
    M2_TRY(m2_json_load(path, FILE_BYTES_MAX, &root));
    m2_turbo_config config = { 0 };
    const m2_status status = read_config(&(turbo_file){ path, root }, &config);
    json_decref(root);
    if (status == M2_OK) *config_out = config;
    return status;
}

int64_t m2_turbo_n_frames(const m2_turbo_config *config, int64_t n_latents)
{
    return config->temporal_ratio * (n_latents - 1) + 1;
}
