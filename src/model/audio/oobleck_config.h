/* oobleck_config.h - the architecture of a Stable Audio Open decoder, from its model_config.json. */
#ifndef M2_MODEL_AUDIO_OOBLECK_CONFIG_H
#define M2_MODEL_AUDIO_OOBLECK_CONFIG_H

#include <stdint.h>

#include "core/status.h"

#define M2_OOBLECK_BLOCKS_MAX 12
#define M2_OOBLECK_CHANNELS   2 /* of the sound */

typedef struct m2_oobleck_config {
    int latent_dim;                   /* 64 in the release                                      */
    int n_blocks;                     /* index 0 is next to the latent                          */
    int c_in[M2_OOBLECK_BLOCKS_MAX];  /* channels into block i                                  */
    int c_out[M2_OOBLECK_BLOCKS_MAX]; /* and out of it                                          */
    int strides[M2_OOBLECK_BLOCKS_MAX];
    int use_snake;             /* else ELU                                               */
    int use_nearest_upsample;  /* repeat and convolve instead of a transposed convolution */
    int final_tanh, soft_clip; /* a tanh each, after the last convolution                */
} m2_oobleck_config;

/* The released decoder: of Stable Audio Open 1.0. */
void m2_oobleck_config_init(m2_oobleck_config *config);

/* Only the decoder's part of the file is read.
 * Errors  M2_ERR_IO, M2_ERR_FORMAT (not JSON, a field missing, of the wrong type or out of range),
 *         M2_ERR_UNSUPPORTED (a value that names maths not implemented); `config_out` is unchanged */
m2_status m2_oobleck_config_load(const char *path, m2_oobleck_config *config_out);

/* Samples that n_latents (>= 1) latent frames become. */
int64_t m2_oobleck_n_samples(const m2_oobleck_config *config, int64_t n_latents);

#endif
