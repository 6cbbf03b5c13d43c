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
    m2_save *save;         /* NULL without save_dir                         */
    const m2_trace *trace; /* NULL: none; sees "step0.velocity.video" ...   */
    char state_path[4096]; /* OUTPUT.state, or clip.state in save_dir      */
    int has_state_file;
    double begin; /* seconds, monotonic                            */
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
/* M2_ERR_INTERRUPTED, with what to do next in the message. */
m2_status m2_clip_interrupted(m2_clip *clip);

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

/* Write the state file: `n_done` steps are behind it; the histories may be NULL when that is all. */
m2_status m2_clip_write_state(m2_clip *clip, const char *path, int n_done,
                              const m2_tensor *video_history, const m2_tensor *audio_history);

/* The whole: request -> file. */
m2_status m2_clip_generate(m2_engine *engine, const magi2_request *request, magi2_result *result);
/* Latents of a file -> file. */
m2_status m2_clip_decode_file(m2_engine *engine, const char *path, const magi2_request *request,
                              magi2_result *result);

#endif
