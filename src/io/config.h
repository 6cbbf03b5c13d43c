/* config.h - the numbers that no checkpoint holds: architecture, sampling defaults, tiers.
 *
 * The released model's values are built in; a `magi2.json` (or a config in the reference's layout)
 * overrides them field by field.  An unknown field is an error that names it, except those that the
 * reference reads without effect (listed in config.c).
 */
#ifndef M2_IO_CONFIG_H
#define M2_IO_CONFIG_H

#include "core/status.h"

#include <stdint.h>

#define M2_LAYERS_MAX 256
#define M2_TIERS_MAX  16

typedef struct m2_arch_config {
    int num_layers, hidden_size, head_dim, num_query_groups;
    int video_in_channels, audio_in_channels, text_in_channels;
    double intermediate_factor;
    int attn_gating, attn_sinks, sink_token_num;
    int mhc_num_stream;
    int moe_num_experts, moe_top_k, moe_num_heads;
    double moe_route_scale;
    int moe_expert_intermediate, moe_shared_intermediate, moe_modality_intermediate;
    unsigned char is_mm_layer[M2_LAYERS_MAX]; /* one weight set per modality */
    unsigned char is_moe_layer[M2_LAYERS_MAX];
} m2_arch_config;

typedef struct m2_eval_config {
    double fps; /* 12.5                                        */
    double shift;
    int vae_stride[3], z_dim;
    double video_guidance, audio_guidance;
    int use_cfg_trick, cfg_trick_start_frame;
    double cfg_trick_value;
    int use_dynamic_cfg, dynamic_cfg_start_t;
    double dynamic_cfg_cutoff;
    int use_negative_prompt;
    char *negative_prompt; /* NULL: the released one; owned by the config */
    int use_ref_for_uncond;
    int use_skimmed_cfg;
    double skimmed_cfg_scale, cfg_rescale;
    int num_inference_steps;
    int time_channel_dim;
    double audio_latent_fps;
} m2_eval_config;

typedef struct m2_tier {
    char name[32];
    int width, height; /* pixels of the preview, multiples of 16 */
    int needs_refiner;
} m2_tier;

typedef struct m2_model_config {
    m2_arch_config arch;
    m2_eval_config eval;
    int64_t seed; /* default seed                                    */
    int n_tiers;
    m2_tier tiers[M2_TIERS_MAX]; /* 272p, 540p, 1080p, and those of magi2.json  */
    char default_tier[32];
} m2_model_config;

/* The released model. */
void m2_model_config_init(m2_model_config *config);
void m2_model_config_free(m2_model_config *config);

/* Apply the file at `path` over `config`.
 * Errors  M2_ERR_IO, M2_ERR_FORMAT (not JSON, unknown field, wrong type, a number out of range),
 *         M2_ERR_UNSUPPORTED (a value that names maths not implemented); `config` is unchanged then */
m2_status m2_model_config_load(m2_model_config *config, const char *path);

/* By name; NULL and a list of the names in the error text. */
const m2_tier *m2_model_config_tier(const m2_model_config *config, const char *name);

#endif
