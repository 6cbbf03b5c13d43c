/* turbo.h - TurboVAED: latent frames in, pixels out.
 *
 * A clip is decoded in windows of a few latent frames that share one or two with their neighbours
 * and are otherwise independent: memory does not grow with the clip's length, and windows may be
 * computed anywhere, in any order, with the same bits.  Activations are channels last.
 *
 * Source      the TurboVAED decoder of the MAGI-2 reference.
 * Numerics    bf16 as released: each operator rounds once.  f32 runs the same code unrounded.
 * Planning    m2_turbo_decode on a measuring arena with the table of m2_ops_init_measure().
 * Threads     the network is read-only once created; each decode needs an arena of its own.
 */
#ifndef M2_MODEL_VAE_TURBO_H
#define M2_MODEL_VAE_TURBO_H

#include "backend/ops.h"
#include "core/arena.h"
#include "io/checkpoint.h"
#include "model/vae/turbo_config.h"
#include "model/weights.h"

typedef struct m2_turbo m2_turbo;

/* Bring the decoder's weights into `weights`, as `dtype` (M2_BF16 as released, or M2_F32).  The
 * decoder's tensors are looked for in `ema_state_dict`, else `state_dict`, else at the top of the
 * file; a leading "module." is taken off, other networks' tensors are ignored.
 * Errors  M2_ERR_MODEL (every missing, unexpected and misshapen tensor), M2_ERR_MEMORY */
m2_status m2_turbo_create(const m2_turbo_config *config, const m2_checkpoint *checkpoint,
                          m2_dtype dtype, const m2_ops *ops, m2_arena *weights,
                          m2_turbo **turbo_out);
void m2_turbo_destroy(m2_turbo *turbo);

/* The tensors that a checkpoint must hold, by names without "module.".
 * Errors  M2_ERR_MEMORY */
m2_status m2_turbo_describe(const m2_turbo_config *config, m2_weight_visit *row, void *user);

/* One window of a clip: latents [latent_begin, latent_begin + n_latents), where those past the
 * clip's end repeat its last, become frames of which n_drop are left out and n_frames kept. */
typedef struct m2_turbo_window {
    int64_t latent_begin, n_latents;
    int is_first; /* its first latent makes one frame, not temporal_ratio */
    int64_t n_drop;
    int64_t first_frame; /* of the clip */
    int64_t n_frames;
} m2_turbo_window;

int64_t m2_turbo_n_windows(const m2_turbo_config *config, int64_t n_latents);
m2_turbo_window m2_turbo_window_at(const m2_turbo_config *config, int64_t n_latents, int64_t idx);

/* Where frames go.  A status other than M2_OK ends the decode and is what it returns. */
typedef struct m2_turbo_sink {
    /* `frames` [n, H, W, 3] from frame `first_frame` of the clip on, good for the call. */
    m2_status (*emit)(void *user, int64_t first_frame, const m2_tensor *frames);
    m2_status (*check)(void *user); /* asked between layers whether to go on; NULL: go on */
    void *user;
} m2_turbo_sink;

/* Decode a clip window by window, in order.
 *   latent        [48, T, h, w] f32, T >= 1
 *   step          the arena of activations; left as it was
 *   frames_dtype  M2_U8 for pixels, or the network's type for its output (about -1 ... 1)
 * Nothing is emitted on a measuring table. */
m2_status m2_turbo_decode(const m2_turbo *turbo, const m2_ops *ops, m2_arena *step,
                          const m2_tensor *latent, m2_dtype frames_dtype,
                          const m2_turbo_sink *sink);

/* One window of it; `frames_out` [n_frames, H, W, 3] lies in `step`. */
m2_status m2_turbo_decode_window(const m2_turbo *turbo, const m2_ops *ops, m2_arena *step,
                                 const m2_tensor *latent, const m2_turbo_window *window,
                                 m2_dtype frames_dtype, const m2_turbo_sink *sink,
                                 m2_tensor *frames_out);

#endif
