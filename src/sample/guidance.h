/* guidance.h - one velocity of the two predictions of a step: with the prompt, and without.
 *
 *   velocity = uncond + scale * (cond - uncond)
 *
 * and its variants, all off in the release: a smaller scale for the first frames ("trick"), a smaller
 * one at late timesteps ("dynamic"), pulling the unconditional prediction in where the sum would
 * overshoot ("skimmed"), bringing the spread back to that of `cond` ("rescale").  They combine.
 *
 * Knows no network.  The scales of every step are on the device before the first one, which a counter
 * there picks from: nothing of a step is known to the host alone, so it can be recorded and replayed.
 *
 * Threads  one object, one thread at a time.
 */
#ifndef M2_SAMPLE_GUIDANCE_H
#define M2_SAMPLE_GUIDANCE_H

#include "backend/ops.h"

typedef struct m2_guidance_params {
    float video_scale; /* 5 */
    float audio_scale; /* 7 */

    int use_trick;      /* 0; video: the first frames use min(trick_scale, video_scale) */
    int trick_n_frames; /* 13 latent frames                                              */
    float trick_scale;  /* 2                                                             */

    int use_dynamic;         /* 0; video: at timesteps below dynamic_timestep ...           */
    int dynamic_timestep;    /* 500                                                         */
    float dynamic_scale_max; /* 2: ... no scale is above this                               */

    int use_skimmed;     /* 0 */
    float skimmed_scale; /* 3 */

    float rescale; /* 0 is off, 1 takes the spread of `cond` whole */
} m2_guidance_params;

/* What the release runs with. */
void m2_guidance_params_init(m2_guidance_params *params);

/* Errors  M2_ERR_ARG, naming every field that is out of range. */
m2_status m2_guidance_params_check(const m2_guidance_params *params);

typedef enum m2_modality_latent {
    M2_LATENT_VIDEO = 0, /* [channels, frames, height, width] */
    M2_LATENT_AUDIO      /* [frames, channels]                */
} m2_modality_latent;

/* What of a run the guidance of one latent follows. */
typedef struct m2_guidance_run {
    m2_modality_latent modality;
    int64_t n_frames;      /* of the latent                                  */
    int n_steps;           /* of the schedule                                */
    const int *timesteps;  /* [n_steps] host, read by m2_guidance_init alone */
    const m2_tensor *step; /* [1] i32 on the device, borrowed: steps done    */
} m2_guidance_run;

typedef struct m2_guidance {
    const m2_ops *ops;
    m2_guidance_params params;
    m2_modality_latent modality;
    const m2_tensor *step;
    m2_tensor scale; /* [n_steps, n_frames] or [n_steps, 1] f32 */
} m2_guidance;

/* The scale of each frame at a timestep, to scale_out [n_frames]; gives back how many values there
 * are: 1 when one is good for all, else n_frames. */
int64_t m2_guidance_scales(const m2_guidance_params *params, m2_modality_latent modality,
                           int timestep, int64_t n_frames, float *scale_out);

/* Lays out in `arena` and uploads the scales of all steps.  `ops` is borrowed.
 * Errors  M2_ERR_ARG (m2_guidance_params_check), M2_ERR_MEMORY */
m2_status m2_guidance_init(m2_guidance *guidance, m2_arena *arena, const m2_ops *ops,
                           const m2_guidance_params *params, const m2_guidance_run *run);

/* The guided velocity of step number *step; nothing is allocated.  All tensors are f32 of the
 * latent's shape.
 *   latent    read by skimmed guidance alone
 *   uncond    in/out: skimmed guidance changes it
 *   velocity  may be uncond, not cond */
void m2_guidance_apply(const m2_guidance *guidance, const m2_tensor *latent, const m2_tensor *cond,
                       m2_tensor *uncond, m2_tensor *velocity);

#endif
