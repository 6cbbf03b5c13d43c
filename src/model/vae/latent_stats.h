/* latent_stats.h - mean and standard deviation of the 48 latent channels of the video VAE.
 *
 * The picture encoder normalises with them, the video decoder undoes it.
 */
#ifndef M2_MODEL_VAE_LATENT_STATS_H
#define M2_MODEL_VAE_LATENT_STATS_H

#define M2_LATENT_CHANNELS 48

extern const float m2_latent_mean[M2_LATENT_CHANNELS];
extern const float m2_latent_std[M2_LATENT_CHANNELS];

#endif
