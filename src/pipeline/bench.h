/* bench.h - `bench step`: one denoising step of the preview transformer, measured whole and by parts.
 *
 * All of one run, so that the figures belong together: the machine's roofs, whole steps as a clip runs
 * them, one more step call by call, memory, and whether every way of running gives the same bits.
 */
#ifndef M2_PIPELINE_BENCH_H
#define M2_PIPELINE_BENCH_H

#include "backend/profile.h"
#include "core/hash.h"
#include "pipeline/bench_roof.h"
#include "pipeline/engine.h"
#include "pipeline/step_need.h"

#define M2_BENCH_RUNS_MAX 4

typedef struct m2_bench {
    const magi2_bench_request *request;
    m2_engine *engine;
    m2_settings settings;
    int is_synthetic;
    int n_moe_layers, n_resident; /* and those of them whose experts are their own */
    m2_step_need need;
    size_t step_bytes; /* of the step arena: of a step, or of what is measured around it */
    m2_arena request_arena, step_arena;
    m2_step_inputs inputs;
    m2_profile profile; /* every operator goes through it, timed or not */
    m2_step_loop loop;

    m2_roof roof;
    int n_steps, n_warm;
    double *step_ms; /* [n_steps] in the order of the steps */
    int is_replayed;
    m2_profile_report parts;
    int64_t rows_min, rows_max; /* of one expert, over all layers */
    double rows_mean;
    double velocity_rms;
    int n_runs; /* of the same steps: launched twice, then, where there are recordings, replayed twice */
    char digests[M2_BENCH_RUNS_MAX][M2_SHA256_HEX_BYTES];
    int n_to_run;            /* steps of all ways of running, about */
    double begin, last_said; /* by the clock: of the first step, of the last line about it */
    double done_flop;        /* since the first step                                     */
    size_t device_total, used_at_open, used_at_end; /* of a device, by its driver; else 0 */
} m2_bench;

/* Report for people or, a JSON object a line, for machines; *text_out is the caller's, also given when
 * the status is M2_ERR_NUMERIC: runs of the same steps differ.
 * Errors  as of m2_engine_open; M2_ERR_INTERRUPTED */
m2_status m2_bench_step(const magi2_params *params, const magi2_bench_request *request, int as_json,
                        char **text_out);

/* ---- what is said while it runs (bench_progress.c) ---- */

/* What is measured and what it takes, before it is taken. */
void m2_bench_say_head(const m2_bench *bench, size_t weights_bytes);
/* How long a step takes at the roof; from now on, on the host, how far the steps are. */
void m2_bench_say_steps(m2_bench *bench);

int m2_bench_has_equal_bits(const m2_bench *bench);
/* bench_report.c.  Errors  M2_ERR_MEMORY */
m2_status m2_bench_report(const m2_bench *bench, int as_json, char **text_out);

#endif
