/* magi2.h - the public interface of magi2: MAGI-2 Preview, a prompt in, video with sound out.
 *
 * An engine is one opened model on one backend.  A clip is made by one call that takes a request,
 * reports progress through a callback, and writes an mp4 file and, if asked, the arrays.
 *
 *     magi2_params params;
 *     magi2_params_init(&params);
 *     magi2_engine *engine = NULL;
 *     params.model_dir = "demo";
 *     if (magi2_open(&params, &engine) != MAGI2_OK) return fail(magi2_last_error());
 *     magi2_request request;
 *     magi2_request_init(&request);
 *     request.prompt = "a red ball bouncing on a blue background";
 *     request.output = "ball.mp4";
 *     magi2_generate(engine, &request, NULL);
 *     magi2_close(engine);
 *
 * Errors    every function that can fail returns magi2_status; magi2_last_error() is the reason, one
 *           message for people, kept per thread.
 * Threads   one engine, one thread at a time; two engines are independent.  `cancel` of a request
 *           may be set from any thread or from a signal handler.
 * Memory    strings and structs given in are borrowed for the call (magi2_open copies its own).
 */
#ifndef MAGI2_H
#define MAGI2_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef enum magi2_status {
    MAGI2_OK = 0,
    MAGI2_ERR_ARG,         /* a parameter is out of range               */
    MAGI2_ERR_IO,          /* a file cannot be opened, read or written  */
    MAGI2_ERR_FORMAT,      /* a file is not what it should be           */
    MAGI2_ERR_MODEL,       /* a checkpoint or config does not fit       */
    MAGI2_ERR_MEMORY,      /* not enough memory                         */
    MAGI2_ERR_NUMERIC,     /* a value that is not finite                */
    MAGI2_ERR_UNSUPPORTED, /* a part that this build does not have      */
    MAGI2_ERR_INTERRUPTED, /* cancelled; the message says what was kept */
    MAGI2_ERR_INTERNAL     /* a library underneath failed               */
} magi2_status;

typedef enum magi2_log_level {
    MAGI2_LOG_ERROR = 0,
    MAGI2_LOG_WARNING,
    MAGI2_LOG_INFO,
    MAGI2_LOG_DEBUG
} magi2_log_level;

typedef struct magi2_engine magi2_engine;

typedef struct magi2_params {
    const char *model_dir; /* checkpoint root; required                                       */
    const char *backend;   /* "auto" (a GPU if the build and the machine have one), "cpu",
                              "cuda" or "musa"                                                */
    int device;            /* which GPU, from 0; with the CPU, anything else is refused       */
    int needs_gpu;         /* 1: "auto" must not end up on the CPU                            */
    size_t vram_limit;     /* bytes that may be taken on it, the driver's part counted; 0: all
                              that are free; with the CPU, anything else is refused           */
    const char *isa;       /* CPU: NULL is the best of the machine; "ref", "avx2", "avx512"   */
    int n_threads;         /* 0: every CPU that the process may use                           */
    size_t ram_limit;      /* bytes that the plan must stay under; 0: none; with a GPU, anything
                              else is refused                                                 */
    void (*log)(void *user, magi2_log_level level, const char *component, const char *text);
    void *log_user;
    magi2_log_level log_level; /* messages above it are dropped; MAGI2_LOG_WARNING by default */
} magi2_params;

typedef enum magi2_stage {
    MAGI2_STAGE_ENCODE = 0, /* prompt -> text features     */
    MAGI2_STAGE_PREVIEW,    /* denoising                   */
    MAGI2_STAGE_DECODE,     /* latents -> frames and sound */
    MAGI2_STAGE_MUX,        /* the file                    */
    MAGI2_STAGE_DONE
} magi2_stage;

typedef struct magi2_progress {
    magi2_stage stage;
    int step, n_steps;   /* finished and all, of this stage      */
    double seconds;      /* since the request began              */
    double step_seconds; /* of the last step                     */
    float sigma;         /* of the step just done (preview)      */
    size_t memory_bytes; /* resident set of the process          */
} magi2_progress;

/* Use the model's own value. */
#define MAGI2_DEFAULT      (-1)
#define MAGI2_SEED_DEFAULT INT64_MIN /* the model's default seed */
#define MAGI2_SEED_RANDOM  (-1)      /* draw one                 */

typedef struct magi2_request {
    const char *prompt;   /* UTF-8, not empty; JSON prompts are rendered as the model expects */
    const char *negative; /* NULL: the model's negative prompt                                */
    const char *tier;     /* NULL: the model's default; else a name such as "272p"            */
    int64_t seed;         /* 0 ... 2^63-1, MAGI2_SEED_RANDOM or MAGI2_SEED_DEFAULT            */
    const char *noise;    /* .safetensors with noise.video and noise.audio; NULL: drawn       */
    int noise_sms, noise_threads; /* the card whose noise is drawn; 132 x 2048                 */
    int n_steps;  /* MAGI2_DEFAULT or 1 ... 1000                                      */
    double shift; /* sigma shift, > 0, or MAGI2_DEFAULT                               */
    double guidance_video, guidance_audio; /* MAGI2_DEFAULT, or >= 0                           */
    double guidance_rescale;               /* 0 ... 1, or MAGI2_DEFAULT                        */
    int guidance_trick, guidance_trick_frames; /* 0, 1; first frames with a smaller scale    */
    double guidance_trick_value;
    int guidance_dynamic, guidance_dynamic_start; /* 0, 1; below this timestep                 */
    double guidance_dynamic_cutoff;
    int guidance_skim; /* 0, 1                                      */
    double guidance_skim_scale;
    int use_negative; /* 0: the uncond branch has no text                                 */

    const char *output;              /* .mp4 to write, replaced if it exists; NULL: only save_dir */
    int output_width, output_height; /* exact final size, even; 0: the model's                 */
    const char *video_encoder; /* NULL: the first that opens                                   */
    const char *save_dir;      /* arrays and manifest.json; NULL: none                         */
    const char *save_latent;   /* latent file kept; NULL: OUTPUT.state while running           */
    const char *resume;        /* state file of an interrupted run; NULL: from the start       */
    int checkpoint_every;      /* steps between state files; 0: only when interrupted          */

    void (*progress)(void *user, const magi2_progress *progress);
    void *progress_user;
    const volatile int *cancel; /* non-zero: stop within a step; may be NULL                   */
} magi2_request;

typedef struct magi2_result {
    int64_t seed; /* the one used                         */
    int n_steps;
    int width, height; /* of the written frames                */
    int n_frames;
    int fps_num, fps_den;
    int sample_rate;
    int64_t n_samples; /* per channel                          */
    int n_tokens, n_negative_tokens;
    int n_tokens_cut; /* prompt tokens beyond 7,000, cut off  */
    double encode_seconds, preview_seconds, decode_seconds, mux_seconds, total_seconds;
    size_t peak_memory_bytes;
} magi2_result;

const char *magi2_version(void);
/* The thread's last error, "" if none; valid until the thread's next failing call. */
const char *magi2_last_error(void);

void magi2_params_init(magi2_params *params);
void magi2_request_init(magi2_request *request);

/* Open a model: configs are read, weights mapped and checked whole, memory planned.
 * Out     *engine_out, only on MAGI2_OK; the caller closes it */
magi2_status magi2_open(const magi2_params *params, magi2_engine **engine_out);
void magi2_close(magi2_engine *engine);

/* Whether a request can begin, as far as can be known without a model: that there is a prompt, names,
 * the files to read, that those to write can be written, and that no state of an interrupted run would
 * be lost.  Leaves nothing behind.  Worth asking before a large model is opened; magi2_generate asks it
 * itself. */
magi2_status magi2_check_request(const magi2_request *request);

/* Make one clip.  Nothing is written under a final name unless it is whole.  `result_out` may be
 * NULL.  On MAGI2_ERR_INTERRUPTED, once a step was done, OUTPUT.state is there for `resume`.  A state
 * file that another run left under that name is an error, unless it is the one to resume; one that
 * appears there while the clip is made is replaced, with a warning. */
magi2_status magi2_generate(magi2_engine *engine, const magi2_request *request,
                            magi2_result *result_out);

/* Latents of a finished denoising (a state file, or one of save_latent) -> mp4.  Uses output,
 * output_width, output_height, video_encoder, save_dir, progress and cancel of `request`. */
magi2_status magi2_decode(magi2_engine *engine, const char *latent_path,
                          const magi2_request *request, magi2_result *result_out);

/* Texts for people or (as_json) machines; *text_out is the caller's, magi2_free() takes it. */

/* Prompt -> token ids as the encoder of `model_dir` will see them. */
magi2_status magi2_tokenize(const char *model_dir, const char *prompt, int as_json,
                            char **text_out);
/* What a model directory, a part of it, or a single checkpoint file holds, checked strictly against
 * the model's tables where it is a part of a model.  The text is given on MAGI2_ERR_MODEL too. */
magi2_status magi2_inspect(const char *path, int as_json, char **text_out);
/* This machine on one page: what a bug report needs. */
magi2_status magi2_doctor(int as_json, char **text_out);
/* What a model needs in memory on a kind of machine (backend, ram_limit and vram_limit of `params`),
 * and whether it fits, by its files' headers alone; with params->model_dir NULL, the released
 * transformer by its tables.  `tier` NULL: the model's default.  The text is given on
 * MAGI2_ERR_MEMORY too: it does not fit. */
magi2_status magi2_plan(const magi2_params *params, const char *tier, int as_json, char **text_out);

typedef struct magi2_bench_request {
    const char *tier; /* NULL: the model's default                                      */
    int n_steps;      /* that are timed; 0: 5                                           */
    int n_layers;     /* made-up weights: MoE layers with experts of their own; 0: all that fit */
    /* Taken when the CPU computes and no tier is asked for; NULL: none. */
    const char *small_model_dir;
    const volatile int *cancel; /* non-zero: stop behind a step; may be NULL            */
    /* A line at a time while it runs: what is measured, what it takes, on the CPU how far it is; NULL:
     * none. */
    void (*say)(void *user, const char *line);
    void *say_user;
} magi2_bench_request;
/* One denoising step, measured: whole, by operators, against what the machine reaches at best.  With
 * params->model_dir NULL, the released architecture with made-up weights, as many as fit.  The text is
 * given on MAGI2_ERR_NUMERIC too: the same steps did not give the same bits. */
magi2_status magi2_bench_step(const magi2_params *params, const magi2_bench_request *request,
                              int as_json, char **text_out);

typedef struct magi2_stage_bench_request {
    const char *tier;  /* NULL: the model's default                                     */
    const char *stage; /* "text", "video" or "audio"; NULL or "all": each of them       */
    int n_runs;        /* that are timed; 0: 5                                          */
    int n_tokens;      /* of the text; 0: 2500                                          */
    /* Taken when the CPU computes and no tier is asked for; NULL: none. */
    const char *small_model_dir;
    const volatile int *cancel; /* non-zero: stop within a run; may be NULL             */
} magi2_stage_bench_request;
/* The stages beside denoising, each whole and by operators: prompt to features, latents to frames (on
 * the device, the copy to the host apart), latents to sound.  Without params->model_dir and on
 * MAGI2_ERR_NUMERIC as magi2_bench_step. */
magi2_status magi2_bench_stage(const magi2_params *params, const magi2_stage_bench_request *request,
                               int as_json, char **text_out);
void magi2_free(char *text);

/* For signal handlers of a program that must end at once: removes files under way. */
void magi2_remove_temp_files(void);
/* Let a page of a mapped file that can no longer be read end the program with the file's name
 * instead of a bare SIGBUS.  For programs, not for libraries: it installs a signal handler. */
void magi2_install_map_guard(void);

#ifdef __cplusplus
}
#endif

#endif
