/* turbo_config.h - the architecture of a TurboVAED video decoder, from its JSON file.
 *
 * The file lists blocks from the picture to the latent; here index 0 is the block next to the
 * latent, the order in which a decoder runs.
 */
#ifndef M2_MODEL_VAE_TURBO_CONFIG_H
#define M2_MODEL_VAE_TURBO_CONFIG_H

#include <stdint.h>

#include "core/status.h"

#define M2_TURBO_BLOCKS_MAX  8
#define M2_TURBO_RESNETS_MAX 64 /* of one block */
#define M2_TURBO_COLOURS     3

typedef struct m2_turbo_config {
    int n_blocks;                      /* up blocks                         */
    int channels[M2_TURBO_BLOCKS_MAX]; /* of up block b                     */
    unsigned char has_upsampler[M2_TURBO_BLOCKS_MAX];
    unsigned char is_spatial_only[M2_TURBO_BLOCKS_MAX];  /* its upsampler leaves time alone   */
    int n_resnets[M2_TURBO_BLOCKS_MAX + 1];              /* [0] the mid block, [b + 1] block b */
    unsigned char is_depthwise[M2_TURBO_BLOCKS_MAX + 1]; /* likewise                          */
    int depthwise_kernel;                                /* odd                               */
    int has_shuffle_head;  /* convolve, pixel shuffle, conv_out; else conv_out, unpatchify     */
    float shortcut_eps;    /* of the norm before a shortcut; all other norms have 1e-8         */
    int first_chunk, step; /* latent frames of the first and of every other window             */
    int spatial_ratio;     /* pixels per latent, each way                                      */
    int temporal_ratio;    /* frames per latent, but one for the first                         */
} m2_turbo_config;

/* The released decoder: of TurboV3-Wan22-TinyShallow_7_7.json. */
void m2_turbo_config_init(m2_turbo_config *config);

/* Fields that name other networks' sizes are ignored; every field that this decoder reads must be
 * there and have a value that is implemented.
 * Errors  M2_ERR_IO, M2_ERR_FORMAT (not JSON, a field missing, of the wrong type or out of range),
 *         M2_ERR_UNSUPPORTED (a value that names maths not implemented); `config_out` is unchanged */
m2_status m2_turbo_config_load(const char *path, m2_turbo_config *config_out);

/* Frames of a clip of n_latents latent frames (>= 1). */
int64_t m2_turbo_n_frames(const m2_turbo_config *config, int64_t n_latents);

#endif
