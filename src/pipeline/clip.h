/* clip.h - one clip on its way: what the stages hand to each other.
 *
 * Stages are one function each, in the order of clip.c: encode, noise, denoise, decode.  Memory of
 * the clip is the request arena; each stage uses the step arena from its start.
 */
#ifndef M2_PIPELINE_CLIP_H
#define M2_PIPELINE_CLIP_H

#include "core/trace.h"
#include "pipeline/engine.h"
#include "pipeline/save.h"
#include "pipeline/settings.h"
#include "pipeline/state.h"

typedef struct m2_clip {
    m2_engine *engine;
    const magi2_request *request;
    m2_settings settings;
    const char *prompt;   /* as given                                       */
    const char *negative; /* as given, or the model's                       */
    char *rendered[2];    /* what is encoded: prompt, negative; owned       */
    int32_t *ids[2];      /* tokens of both, owned; NULL for none           */
    int64_t n_ids[2];
    int64_t n_cut; /* tokens of the prompt beyond the limit          */
    m2_arena request_arena, step_arena;
    m2_tensor features[2]; /* [n_ids, text channels] bf16                   */
    m2_tensor video;       /* [channels, T, h, w] f32                       */
    m2_tensor audio;       /* [A, channels] f32                             */
    m2_clip_state resumed; /* of --resume, else empty                       */
    m2_file_id resumed_id; /* the file that it was read from                */
    m2_save *save;         /* NULL without save_dir                         */
    const m2_trace *trace; /* NULL: none; sees "step0.velocity.video" ...   */
    char state_path[4096]; /* OUTPUT.state, or clip.state in save_dir      */
    m2_file_id state_id;   /* the file of this run that is there, if any   */
    int has_state_file;    /* this run has written it                      */
    int n_kept;            /* steps that are behind it                     */
    double begin;          /* seconds, monotonic                            */
    magi2_progress progress;
    magi2_result result;
} m2_clip;

/* A request that asks for nothing but the defaults. */
void m2_clip_request_init(magi2_request *request);

/* Seconds of a clock that only goes forward. */
double m2_clip_now(void);
/* Tell the caller where the clip is. */
void m2_clip_report(m2_clip *clip, magi2_stage stage, int step, int n_steps);
int m2_clip_is_cancelled(const m2_clip *clip);

/* ---- files (clip_files.c) ---- */

/* All that can be known of a request without its model: prompt, names, the files to read, that those
 * to write can be, and that no state file of another run would be replaced.  Sets prompts, settings of
 * a resumed run and the path of the state file; leaves no file behind. */
m2_status m2_clip_look_at_files(m2_clip *clip);
/* A file that is read must not be replaced by one that is written.  `output` is at `path`. */
m2_status m2_clip_check_is_no_input(const magi2_request *request, const char *output,
                                    const char *path);
/* Is decoding all that is left? */
int m2_clip_is_denoised(const m2_clip *clip);
/* The rest of it: what needs the model's sizes, and the directory to save to, which is made.  What
 * cannot be written is known before the first step, not after the last. */
m2_status m2_clip_check_outputs(m2_clip *clip);
/* Write the state file: `n_done` steps are behind it; the histories may be NULL when that is all. */
m2_status m2_clip_keep_state(m2_clip *clip, int n_done, const m2_tensor *video_history,
                             const m2_tensor *audio_history);
/* Write the latents of all steps where the request wants them, if it does. */
m2_status m2_clip_save_latent(m2_clip *clip);
/* Remove the state file, if it is still as this run wrote it; one that is left is warned of. */
void m2_clip_drop_state(const m2_clip *clip);
/* M2_ERR_INTERRUPTED, with what to do next in the message. */
m2_status m2_clip_interrupted(m2_clip *clip);
/* Gives back `status`; where a state is kept of a run that failed, the message says so. */
m2_status m2_clip_tell_state(const m2_clip *clip, m2_status status);

/* ---- stages ---- */

/* Prompts -> ids (clip->ids), before any memory is planned. */
m2_status m2_clip_tokenize(m2_clip *clip);
/* What both arenas will need, by running the stages' own code on measuring ones. */
m2_status m2_clip_plan(m2_clip *clip, int with_denoise, size_t *request_bytes, size_t *step_bytes);
/* Plan, check that the machine and the limit have room, make both arenas, and lay out latents and
 * features.
 * Errors  M2_ERR_MEMORY, before anything is computed */
m2_status m2_clip_take_memory(m2_clip *clip, int with_denoise);
/* Everything that the clip owns. */
void m2_clip_free(m2_clip *clip);
/* Latents and features in `arena`. */
void m2_clip_layout(m2_clip *clip, m2_arena *arena, int with_features);
/* The denoising part of the plan. */
m2_status m2_clip_plan_denoise(m2_clip *clip, const m2_ops *measure, m2_arena *request,
                               m2_arena *step);
/* ids -> features. */
m2_status m2_clip_encode(m2_clip *clip);
/* Draw or read the noise into video and audio. */
m2_status m2_clip_noise(m2_clip *clip);
/* Noise (or a resumed state) -> clean latents. */
m2_status m2_clip_denoise(m2_clip *clip);
/* The decoding part of the plan. */
m2_status m2_clip_plan_decode(m2_clip *clip, const m2_ops *measure, m2_arena *step);
/* Can the file be made: encoder, size, directory?  Leaves nothing behind. */
m2_status m2_clip_check_output(m2_clip *clip);
/* Latents -> frames and sound -> the file. */
m2_status m2_clip_decode(m2_clip *clip);

/* Whether a request can begin, as far as that is known before a model is loaded. */
m2_status m2_clip_check_request(const magi2_request *request);
/* The whole: request -> file. */
m2_status m2_clip_generate(m2_engine *engine, const magi2_request *request, magi2_result *result);
/* Latents of a file -> file. */
m2_status m2_clip_decode_file(m2_engine *engine, const char *path, const magi2_request *request,
                              magi2_result *result);

#endif
