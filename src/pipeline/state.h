/* state.h - the state file: what a clip needs to go on, or to be decoded, in another process.
 *
 * One .safetensors file with both latents, the samplers' history while steps are left, and as
 * metadata a version, the prompts and the settings.  Written whole or not at all.
 */
#ifndef M2_PIPELINE_STATE_H
#define M2_PIPELINE_STATE_H

#include "core/tensor.h"
#include "pipeline/settings.h"
#include "sample/sampler.h"

typedef struct m2_clip_state {
    m2_settings settings;
    char *prompt;                                  /* as given                                    */
    char *negative;                                /* NULL: the model's own                       */
    int n_done;                                    /* steps behind it                             */
    m2_tensor video;                               /* [channels, T, h, w] f32, host               */
    m2_tensor audio;                               /* [A, channels] f32, host                     */
    m2_tensor video_history[M2_SAMPLER_N_HISTORY]; /* without data when all steps are done  */
    m2_tensor audio_history[M2_SAMPLER_N_HISTORY];
    void *memory; /* of a state that was read                    */
} m2_clip_state;

/* Errors  M2_ERR_IO */
m2_status m2_state_write(const char *path, const m2_clip_state *state);

/* Read and check a state file; m2_state_free takes it.
 * Errors  M2_ERR_IO, M2_ERR_FORMAT (no state file, another version, shapes that do not fit) */
m2_status m2_state_read(const char *path, m2_clip_state *state_out);
void m2_state_free(m2_clip_state *state);

/* Every setting that the request gives must be the state's: a resumed run cannot change them.
 * Errors  M2_ERR_ARG, naming each one that differs */
m2_status m2_state_check_request(const m2_clip_state *state, const magi2_request *request);

#endif
