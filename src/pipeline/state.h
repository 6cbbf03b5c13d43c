/* state.h - the state file: what a clip needs to go on, or to be decoded, in another process.
 *
 * One .safetensors file with both latents, the samplers' history while steps are left, and as
 * metadata a version, the prompts and the settings.  Written whole or not at all.
 */
#ifndef M2_PIPELINE_STATE_H
#define M2_PIPELINE_STATE_H

#include "core/temp_file.h"
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

/* *id_out (which may be NULL): the file that now has the name.
 * Errors  M2_ERR_IO */
m2_status m2_state_write(const char *path, const m2_clip_state *state, m2_file_id *id_out);

/* Read and check a state file; m2_state_free takes it.
 * Errors  M2_ERR_IO, M2_ERR_FORMAT (no state file, another version, shapes that do not fit) */
m2_status m2_state_read(const char *path, m2_clip_state *state_out);
void m2_state_free(m2_clip_state *state);

typedef enum m2_state_kind {
    M2_STATE_NONE,   /* nothing is there, or an empty file            */
    M2_STATE_OTHER,  /* something that no run of magi2 has left there */
    M2_STATE_CLOSED, /* a file that cannot be read: errno is why      */
    M2_STATE_KEPT    /* what a run has left to go on from             */
} m2_state_kind;

/* What is at `path`, by its beginning: never waits on a pipe, and a damaged state file is one still.
 * Of what is kept: the steps behind it and all of them, 0 and 0 if that cannot be read. */
m2_state_kind m2_state_look(const char *path, int *n_done_out, int *n_steps_out);

/* Every setting that the request gives must be the state's: a resumed run cannot change them.
 * Errors  M2_ERR_ARG, naming each one that differs */
m2_status m2_state_check_request(const m2_clip_state *state, const magi2_request *request);

#endif
