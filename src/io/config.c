#include "io/config.h"

#include "io/config_fields.h"
#include "io/json_file.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CONFIG_BYTES_MAX ((size_t)1 << 20)
#define SIZE_MAX_INT                                                                               \
    1048576 /* no width of a network here comes near it; products stay in 64 bits */
#define LARGE            1e9
#define TIER_NAMES_BYTES (M2_TIERS_MAX * 40)

/* ---- the release ------------------------------------------------------------------------------ */

static void init_arch(m2_arch_config *arch)
{
    *arch = (m2_arch_config){
        .num_layers = 40,
        .hidden_size = 3072,
        .head_dim = 128,
        .num_query_groups = 24,
        .video_in_channels = 48,
        .audio_in_channels = 64,
        .text_in_channels = 5120,
        .intermediate_factor = 4,
        .attn_gating = 1,
        .attn_sinks = 1,
        .sink_token_num = 1,
        .mhc_num_stream = 4,
        .moe_num_experts = 256,
        .moe_top_k = 6,
        .moe_num_heads = 12,
        .moe_route_scale = 4.9,
        .moe_expert_intermediate = 1280,
        .moe_shared_intermediate = 1280,
        .moe_modality_intermediate = 1280,
    };
    static const int mm_layers[] = { 0, 1, 38, 39 };
    for (int i = 0; i < 4; i++) arch->is_mm_layer[mm_layers[i]] = 1;
    for (int i = 2; i < 38; i++) arch->is_moe_layer[i] = 1;
}

static void init_eval(m2_eval_config *eval)
{
    *eval = (m2_eval_config){
        .fps = 12.5,
        .shift = 7.0,
        .vae_stride = { 8, 16, 16 },
        .z_dim = 48,
        .video_guidance = 5.0,
        .audio_guidance = 7.0,
        .cfg_trick_start_frame = 13,
        .cfg_trick_value = 2.0,
        .dynamic_cfg_start_t = 500,
        .dynamic_cfg_cutoff = 2.0,
        .use_negative_prompt = 1,
        .use_ref_for_uncond = 1,
        .skimmed_cfg_scale = 3.0,
        .num_inference_steps = 100,
        .time_channel_dim = 64,
        .audio_latent_fps = 25.0,
    };
}

void m2_model_config_init(m2_model_config *config)
{
    *config = (m2_model_config){
        .seed = 42,
        .n_tiers = 3,
        .tiers = { { "272p", 448, 256, 0 }, { "540p", 896, 512, 0 }, { "1080p", 896, 512, 1 } },
        .default_tier = "272p",
    };
    init_arch(&config->arch);
    init_eval(&config->eval);
}

void m2_model_config_free(m2_model_config *config)
{
    if (!config) return;
    free(config->eval.negative_prompt);
    config->eval.negative_prompt = NULL;
}

/* ---- fields ------------------------------------------------------------------------------------- */

static m2_status take_negative_prompt(void *into, const char *where, const char *text)
{
    m2_model_config *const config = into;
    char *copy = strdup(text);
    if (!copy) return m2_fail(M2_ERR_MEMORY, "%snegative_prompt: no memory", where);
    free(config->eval.negative_prompt);
    config->eval.negative_prompt = copy;
    return M2_OK;
}

static m2_status take_default_tier(void *into, const char *where, const char *text)
{
    m2_model_config *const config = into;
    if (strlen(text) >= sizeof config->default_tier)
        return m2_fail(M2_ERR_FORMAT, "%sdefault_tier: a name of more than %zu bytes", where,
                       sizeof config->default_tier - 1);
    strcpy(config->default_tier, text);
    return M2_OK;
}

#define ARCH(member) offsetof(m2_model_config, arch.member)
#define EVAL(member) offsetof(m2_model_config, eval.member)
#define INT(name, at, low, high)                                                                   \
    {                                                                                              \
        name, M2_FIELD_INT, at, low, high, NULL, NULL, NULL                                        \
    }
#define NUMBER(name, at, low, high)                                                                \
    {                                                                                              \
        name, M2_FIELD_NUMBER, at, low, high, NULL, NULL, NULL                                     \
    }
#define BOOL(name, at)                                                                             \
    {                                                                                              \
        name, M2_FIELD_BOOL, at, 0, 0, NULL, NULL, NULL                                            \
    }
#define LAYERS(name, at)                                                                           \
    {                                                                                              \
        name, M2_FIELD_LAYERS, at, 0, M2_LAYERS_MAX - 1, NULL, NULL, NULL                          \
    }
#define ONLY(name, json)                                                                           \
    {                                                                                              \
        name, M2_FIELD_ONLY, 0, 0, 0, json, NULL, NULL                                             \
    }
#define OBJECT(name, table)                                                                        \
    {                                                                                              \
        name, M2_FIELD_OBJECT, 0, 0, 0, NULL, table, NULL                                          \
    }
#define TEXT(name, take)                                                                           \
    {                                                                                              \
        name, M2_FIELD_TEXT, 0, 0, 0, NULL, NULL, take                                             \
    }
#define NO_USE(name)                                                                               \
    {                                                                                              \
        name, M2_FIELD_NO_USE, 0, 0, 0, NULL, NULL, NULL                                           \
    }
#define END                                                                                        \
    {                                                                                              \
        NULL, M2_FIELD_NO_USE, 0, 0, 0, NULL, NULL, NULL                                           \
    }

/* The layout of ranks is a matter of the command line, never of the model. */
static const m2_field engine_fields[] = {
    { "seed", M2_FIELD_INT64, offsetof(m2_model_config, seed), 0, 9223372036854775807.0, NULL, NULL,
      NULL },
    NO_USE("load"),
    NO_USE("distributed_backend"),
    NO_USE("cp_size"),
    NO_USE("ep_size"),
    NO_USE("cp_strategy"),
    END,
};

static const m2_field gating_fields[] = { BOOL("enable", ARCH(attn_gating)), END };

static const m2_field sink_fields[] = {
    BOOL("enable", ARCH(attn_sinks)),
    INT("sink_token_num", ARCH(sink_token_num), 1, 1024),
    END,
};

static const m2_field mhc_fields[] = {
    ONLY("enable", "true"),
    ONLY("num_stream", "4"),
    NO_USE("alpha_init"), /* where training starts from */
    END,
};

static const m2_field moe_fields[] = {
    INT("num_experts", ARCH(moe_num_experts), 1, 65536),
    INT("top_k", ARCH(moe_top_k), 1, 65536),
    ONLY("score_func", "\"sigmoid\""),
    ONLY("route_norm", "true"),
    NUMBER("route_scale", ARCH(moe_route_scale), -LARGE, LARGE),
    LAYERS("moe_layers", ARCH(is_moe_layer)),
    INT("expert_intermediate_size", ARCH(moe_expert_intermediate), 1, SIZE_MAX_INT),
    INT("shared_expert_intermediate_size", ARCH(moe_shared_intermediate), 1, SIZE_MAX_INT),
    INT("modality_specific_expert_intermediate_size", ARCH(moe_modality_intermediate), 1,
        SIZE_MAX_INT),
    INT("num_heads", ARCH(moe_num_heads), 1, 65536),
    END,
};

static const m2_field arch_fields[] = {
    INT("num_layers", ARCH(num_layers), 1, M2_LAYERS_MAX),
    INT("hidden_size", ARCH(hidden_size), 1, SIZE_MAX_INT),
    INT("head_dim", ARCH(head_dim), 8, 65536),
    INT("num_query_groups", ARCH(num_query_groups), 1, 65536),
    INT("video_in_channels", ARCH(video_in_channels), 1, SIZE_MAX_INT),
    INT("audio_in_channels", ARCH(audio_in_channels), 1, SIZE_MAX_INT),
    INT("text_in_channels", ARCH(text_in_channels), 1, SIZE_MAX_INT),
    ONLY("params_dtype", "\"bfloat16\""),
    NUMBER("intermediate_factor", ARCH(intermediate_factor), 1e-6, 1024),
    LAYERS("mm_layers", ARCH(is_mm_layer)),
    ONLY("activation_type", "\"swiglu7\""),
    ONLY("attn_softcap", "-1"),
    OBJECT("attn_gating", gating_fields),
    OBJECT("attn_sinks", sink_fields),
    OBJECT("mhc_config", mhc_fields),
    OBJECT("moe_config", moe_fields),
    END,
};

static const m2_field proxy_fields[] = {
    ONLY("t_patch_size", "1"),
    ONLY("patch_size", "1"),
    ONLY("spatial_rope_interpolation", "\"extra\""),
    ONLY("add_time_token", "false"),
    INT("time_channel_dim", EVAL(time_channel_dim), 0, SIZE_MAX_INT),
    NUMBER("audio_latent_fps", EVAL(audio_latent_fps), 1e-3, 1e5),
    NO_USE("time_aligned_rope"),
    NO_USE("time_pos_fps"),
    NO_USE("vae_first_latent_is_image"),
    NO_USE("video_fps"),
    END,
};

static const m2_field eval_fields[] = {
    NUMBER("fps", EVAL(fps), 1e-3, 1000),
    NUMBER("shift", EVAL(shift), 1e-6, 1e6),
    { "vae_stride", M2_FIELD_SIZES3, EVAL(vae_stride), 1, 64, NULL, NULL, NULL },
    ONLY("patch_size", "[1, 1, 1]"),
    INT("z_dim", EVAL(z_dim), 1, SIZE_MAX_INT),
    NUMBER("video_txt_guidance_scale", EVAL(video_guidance), 0, 1000),
    NUMBER("audio_txt_guidance_scale", EVAL(audio_guidance), 0, 1000),
    BOOL("use_cfg_trick", EVAL(use_cfg_trick)),
    INT("cfg_trick_start_frame", EVAL(cfg_trick_start_frame), 0, SIZE_MAX_INT),
    NUMBER("cfg_trick_value", EVAL(cfg_trick_value), 0, 1000),
    BOOL("use_dynamic_cfg", EVAL(use_dynamic_cfg)),
    INT("dynamic_cfg_start_t", EVAL(dynamic_cfg_start_t), 0, 1000),
    NUMBER("dynamic_cfg_cutoff_value", EVAL(dynamic_cfg_cutoff), 0, 1000),
    BOOL("use_negative_prompt", EVAL(use_negative_prompt)),
    TEXT("negative_prompt", take_negative_prompt),
    BOOL("use_ref_for_uncond", EVAL(use_ref_for_uncond)),
    BOOL("use_skimmed_cfg_linear", EVAL(use_skimmed_cfg)),
    NUMBER("skimmed_cfg_scale", EVAL(skimmed_cfg_scale), -1000, 1000),
    NUMBER("cfg_rescale", EVAL(cfg_rescale), 0, 1),
    ONLY("ref_image_type", "\"original\""),
    INT("num_inference_steps", EVAL(num_inference_steps), 1, 10000),
    ONLY("txt_encoder_type", "\"qwen35\""),
    ONLY("use_turbo_vae", "true"),
    /* Where the parts lie is fixed by the layout of the model directory. */
    NO_USE("vae_model_path"),
    NO_USE("txt_model_path"),
    NO_USE("student_config"),
    NO_USE("student_ckpt"),
    OBJECT("data_proxy_config", proxy_fields),
    END,
};

static const m2_field top_fields[] = {
    OBJECT("engine_config", engine_fields),   OBJECT("arch_config", arch_fields),
    OBJECT("evaluation_config", eval_fields), NO_USE("tiers"), /* names of its own: read_tiers */
    TEXT("default_tier", take_default_tier),  END,
};

static const m2_field tier_fields[] = {
    INT("width", offsetof(m2_tier, width), 16, 16384),
    INT("height", offsetof(m2_tier, height), 16, 16384),
    BOOL("needs_refiner", offsetof(m2_tier, needs_refiner)),
    END,
};

/* ---- tiers ---------------------------------------------------------------------------------------- */

static m2_status read_tier(m2_model_config *config, const char *path, const char *name,
                           json_t *value)
{
    char where[5000];
    m2_tier tier = { .width = 0 };
    const size_t n = strlen(name);
    if (n == 0 || n >= sizeof tier.name ||
        strspn(name, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-") != n)
        return m2_fail(M2_ERR_FORMAT,
                       "%s: tiers.%.40s: a tier's name is 1 to %zu letters, digits and '._-'", path,
                       name, sizeof tier.name - 1);
    snprintf(where, sizeof where, "%s: tiers.%s", path, name);
    if (!json_is_object(value)) return m2_fail(M2_ERR_FORMAT, "%s must be an object", where);
    strcpy(tier.name, name);
    strcat(where, ".");
    M2_TRY(m2_fields_read(tier_fields, value, where, &tier));
    if (tier.width == 0 || tier.height == 0)
        return m2_fail(M2_ERR_FORMAT, "%swidth and height are both needed", where);
    if (tier.width % 16 != 0 || tier.height % 16 != 0)
        return m2_fail(M2_ERR_FORMAT,
                       "%swidth and height are %d and %d, both must be multiples of 16", where,
                       tier.width, tier.height);
    int idx = 0;
    while (idx < config->n_tiers && strcmp(config->tiers[idx].name, name) != 0) idx++;
    if (idx == M2_TIERS_MAX)
        return m2_fail(M2_ERR_FORMAT, "%s: more than %d tiers", path, M2_TIERS_MAX);
    config->tiers[idx] = tier;
    if (idx == config->n_tiers) config->n_tiers++;
    return M2_OK;
}

static m2_status read_tiers(m2_model_config *config, const char *path, json_t *root)
{
    json_t *tiers = json_object_get(root, "tiers"), *value;
    const char *name;
    if (!tiers) return M2_OK;
    if (!json_is_object(tiers)) return m2_fail(M2_ERR_FORMAT, "%s: tiers must be an object", path);
    json_object_foreach(tiers, name, value) M2_TRY(read_tier(config, path, name, value));
    return M2_OK;
}

static const m2_tier *find_tier(const m2_model_config *config, const char *name)
{
    for (int i = 0; i < config->n_tiers; i++)
        if (strcmp(config->tiers[i].name, name) == 0) return &config->tiers[i];
    return NULL;
}

static const char *list_tiers(const m2_model_config *config, char *text, size_t bytes)
{
    size_t used = 0;
    for (int i = 0; i < config->n_tiers; i++)
        used += (size_t)snprintf(text + used, bytes - used, "%s%s", i ? ", " : "",
                                 config->tiers[i].name);
    return text;
}

const m2_tier *m2_model_config_tier(const m2_model_config *config, const char *name)
{
    char names[TIER_NAMES_BYTES];
    const m2_tier *tier = find_tier(config, name);
    if (!tier)
        m2_fail(M2_ERR_ARG, "there is no tier '%.60s'; this model has %s", name,
                list_tiers(config, names, sizeof names));
    return tier;
}

/* ---- loading -------------------------------------------------------------------------------------- */

static m2_status check_layers(const m2_arch_config *arch, const char *path)
{
    for (int i = arch->num_layers; i < M2_LAYERS_MAX; i++)
        if (arch->is_mm_layer[i] || arch->is_moe_layer[i])
            return m2_fail(
                M2_ERR_FORMAT,
                "%s: arch_config.%s names layer %d, num_layers is %d (a list that is not "
                "given is the release's)",
                path, arch->is_mm_layer[i] ? "mm_layers" : "moe_config.moe_layers", i,
                arch->num_layers);
    return M2_OK;
}

/* What fields say of each other; everything is in range by now. */
static m2_status check_whole(const m2_model_config *config, const char *path)
{
    const m2_arch_config *const arch = &config->arch;
    M2_TRY(check_layers(arch, path));
    if (arch->head_dim % 8 != 0)
        return m2_fail(M2_ERR_FORMAT, "%s: arch_config.head_dim is %d, it must be a multiple of 8",
                       path, arch->head_dim);
    if (arch->hidden_size % arch->head_dim != 0)
        return m2_fail(M2_ERR_FORMAT, "%s: arch_config: head_dim %d does not divide hidden_size %d",
                       path, arch->head_dim, arch->hidden_size);
    const int n_heads = arch->hidden_size / arch->head_dim;
    if (n_heads % arch->num_query_groups != 0)
        return m2_fail(
            M2_ERR_FORMAT,
            "%s: arch_config: num_query_groups %d does not divide the %d attention heads", path,
            arch->num_query_groups, n_heads);
    if (arch->hidden_size % arch->moe_num_heads != 0)
        return m2_fail(M2_ERR_FORMAT,
                       "%s: arch_config: moe_config.num_heads %d does not divide hidden_size %d",
                       path, arch->moe_num_heads, arch->hidden_size);
    if (arch->moe_top_k > arch->moe_num_experts)
        return m2_fail(M2_ERR_FORMAT,
                       "%s: arch_config.moe_config: top_k %d is more than num_experts %d", path,
                       arch->moe_top_k, arch->moe_num_experts);
    if (arch->hidden_size * arch->intermediate_factor * 2 / 3 < 128)
        return m2_fail(
            M2_ERR_FORMAT,
            "%s: arch_config: intermediate_factor %g of hidden_size %d leaves no width of "
            "128 for the dense layers",
            path, arch->intermediate_factor, arch->hidden_size);
    if (config->eval.time_channel_dim % 2 != 0 ||
        config->eval.time_channel_dim > arch->hidden_size * arch->mhc_num_stream)
        return m2_fail(M2_ERR_FORMAT,
                       "%s: evaluation_config.data_proxy_config.time_channel_dim is %d, it must be "
                       "even and at most %d",
                       path, config->eval.time_channel_dim,
                       arch->hidden_size * arch->mhc_num_stream);
    if (config->eval.z_dim != arch->video_in_channels)
        return m2_fail(
            M2_ERR_FORMAT,
            "%s: evaluation_config.z_dim is %d, arch_config.video_in_channels is %d: both "
            "are the channels of the video latent",
            path, config->eval.z_dim, arch->video_in_channels);
    char names[TIER_NAMES_BYTES];
    if (!find_tier(config, config->default_tier))
        return m2_fail(M2_ERR_FORMAT, "%s: default_tier is '%s', the tiers are %s", path,
                       config->default_tier, list_tiers(config, names, sizeof names));
    return M2_OK;
}

m2_status m2_model_config_load(m2_model_config *config, const char *path)
{
    char where[4200];
    json_t *root = NULL;
    M2_TRY(m2_json_load(path, CONFIG_BYTES_MAX, &root));
    snprintf(where, sizeof where, "%.4000s: ", path);
    m2_model_config changed = *config;
    changed.eval.negative_prompt = NULL;
    m2_status status = m2_fields_read(top_fields, root, where, &changed);
    if (status == M2_OK) status = read_tiers(&changed, path, root);
    if (status == M2_OK) status = check_whole(&changed, path);
    json_decref(root);
    if (status != M2_OK) {
        m2_model_config_free(&changed);
        return status;
    }
    if (changed.eval.negative_prompt)
        free(config->eval.negative_prompt);
    else
        changed.eval.negative_prompt = config->eval.negative_prompt;
    *config = changed;
    return M2_OK;
}
