/* bench_stage.h - `bench stage`: the stages beside denoising, each measured whole and by operators.
 *
 * Prompt to features, latents to frames, latents to sound: one network is open at a time.  A run is
 * timed by the host's clock, from its first call to where the device is done with it; what copies the
 * result to the host is counted apart.
 */
#ifndef M2_PIPELINE_BENCH_STAGE_H
#define M2_PIPELINE_BENCH_STAGE_H

#include "backend/profile.h"
#include "core/hash.h"
#include "pipeline/bench_roof.h"
#include "pipeline/engine.h"
#include "pipeline/settings.h"

enum { M2_BENCH_TEXT = 0, M2_BENCH_VIDEO, M2_BENCH_AUDIO, M2_BENCH_STAGES };

typedef struct m2_stage_configs {
    m2_text_config text;
    m2_turbo_config video;
    m2_oobleck_config audio;
} m2_stage_configs;

/* What one stage gave. */
typedef struct m2_stage_result {
    const char *name; /* NULL: not asked for */
    char work[96];    /* what one run does, in words */
    double open_seconds;
    int n_warm, n_runs;
    double *run_ms, *copy_ms; /* [n_runs] in the order of the runs */
    size_t output_bytes, weights_bytes, step_bytes;
    m2_profile profile; /* keeps `parts` */
    m2_profile_report parts;
    char digest[M2_SHA256_HEX_BYTES]; /* of the first run's output */
    int n_equal;                      /* runs that have it         */
    double rms;                       /* of the output's values    */
} m2_stage_result;

typedef struct m2_stage_bench {
    const magi2_stage_bench_request *request;
    const m2_stage_configs *given; /* made-up networks of these sizes; NULL: the release's */
    m2_engine *engine;
    m2_model_paths paths;
    int is_made_up;
    m2_stage_configs configs;
    m2_settings settings;
    m2_roof roof;
    int n_runs;
    int64_t n_tokens;

    /* of the stage under way */
    int stage;
    m2_checkpoint *checkpoint;
    size_t made_up_bytes; /* of the host, for values that come from no file */
    m2_text_encoder *text;
    m2_turbo *video;
    m2_oobleck *audio;
    m2_arena weights, request_arena, step;
    int32_t *ids;        /* [n_tokens] host */
    m2_tensor input;     /* latents         */
    unsigned char *host; /* the output      */
    size_t n_host;       /* bytes of it that the run under way has copied */
    double copy_seconds; /* and what that took                            */
    int is_copying;

    m2_stage_result results[M2_BENCH_STAGES];
} m2_stage_bench;

/* Report for people or, a JSON object a line, for machines; *text_out is the caller's, also given when
 * the status is M2_ERR_NUMERIC: runs differ.  `given` replaces the release's sizes, else NULL.
 * Errors  M2_ERR_ARG (no such stage), those of opening; M2_ERR_INTERRUPTED */
m2_status m2_bench_stage(const magi2_params *params, const magi2_stage_bench_request *request,
                         const m2_stage_configs *given, int as_json, char **text_out);

/* ---- the stages' networks (bench_stage_open.c) ---- */

extern const char *const m2_stage_names[M2_BENCH_STAGES];

/* Backend and configs; no network yet. */
m2_status m2_stage_open_engine(m2_stage_bench *bench, const magi2_params *params);
m2_status m2_stage_open_checkpoint(m2_stage_bench *bench);
/* The network of the stage under way, from the checkpoint. */
m2_status m2_stage_open_network(m2_stage_bench *bench, const m2_ops *ops, m2_arena *weights);
void m2_stage_close_network(m2_stage_bench *bench);
/* Lays out what a run reads; on the device the values are made too. */
m2_status m2_stage_make_input(m2_stage_bench *bench, const m2_ops *ops, m2_arena *request);
size_t m2_stage_output_bytes(const m2_stage_bench *bench);
void m2_stage_describe_work(const m2_stage_bench *bench, char *text, size_t bytes);
/* One run, whose output ends in `host` if is_copying; waits for the device. */
m2_status m2_stage_run(m2_stage_bench *bench, const m2_ops *ops, m2_arena *step);
/* As type and number of values. */
m2_dtype m2_stage_output_dtype(const m2_stage_bench *bench);

/* bench_stage_report.c.  Errors  M2_ERR_MEMORY */
m2_status m2_stage_report(const m2_stage_bench *bench, int as_json, char **text_out);
int m2_stage_has_equal_bits(const m2_stage_bench *bench);

#endif
