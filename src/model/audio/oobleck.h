/* oobleck.h - the sound decoder of Stable Audio Open: latent frames in, stereo samples out.
 *
 * f32 throughout.  The whole clip is one call: three buffers of the largest activation take turns
 * (3 x 262 MB for ten seconds of the release).
 *
 * Source      the decoder of Stable Audio Open (stable-audio-tools).
 * Planning    m2_oobleck_decode on a measuring arena with the table of m2_ops_init_measure().
 * Threads     the network is read-only once created; each decode needs an arena of its own.
 */
#ifndef M2_MODEL_AUDIO_OOBLECK_H
#define M2_MODEL_AUDIO_OOBLECK_H

#include "backend/ops.h"
#include "core/arena.h"
#include "io/checkpoint.h"
#include "model/audio/oobleck_config.h"
#include "model/weights.h"

typedef struct m2_oobleck m2_oobleck;

/* Bring the weights below `pretransform.model.decoder.` into `weights`; all else in the file is
 * ignored.
 * Errors  M2_ERR_MODEL (every missing, unexpected and misshapen tensor), M2_ERR_MEMORY */
m2_status m2_oobleck_create(const m2_oobleck_config *config, const m2_checkpoint *checkpoint,
                            const m2_ops *ops, m2_arena *weights, m2_oobleck **oobleck_out);
void m2_oobleck_destroy(m2_oobleck *oobleck);

/* The tensors that a checkpoint must hold.
 * Errors  M2_ERR_MEMORY */
m2_status m2_oobleck_describe(const m2_oobleck_config *config, m2_weight_visit *row, void *user);

/* Decode a clip.
 *   latent    [n, latent_dim] f32, n >= 1
 *   check     asked between layers whether to go on; NULL: go on
 *   wave_out  [m2_oobleck_n_samples, 2] f32 in `step`
 * Errors  what `check` returned */
m2_status m2_oobleck_decode(const m2_oobleck *oobleck, const m2_ops *ops, m2_arena *step,
                            const m2_tensor *latent, m2_status (*check)(void *user), void *user,
                            m2_tensor *wave_out);

#endif
