/* bench_stage_report.c - what `bench stage` measured, as a page or as JSON lines. */
#include "pipeline/bench_stage.h"

#include "pipeline/bench_table.h"
#include "pipeline/memory.h"

#include <stdlib.h>
#include <string.h>

#define MIB 1048576.0

/* ---- for people -------------------------------------------------------------------------------- */

static void print_head(FILE *out, const m2_stage_bench *bench)
{
    const m2_engine *engine = bench->engine;
    fprintf(out, "bench stage %s, tier %s, backend %s\n",
            bench->is_made_up ? "the release's architecture with made-up weights"
                              : engine->model_dir,
            bench->settings.tier, engine->ops.backend);
    fprintf(out, "machine     %s, %d threads\n", m2_bench_device(engine),
            m2_pool_n_threads(engine->pool));
    m2_bench_print_roofs(out, &bench->roof, m2_bench_device(engine));
}

static const char *bits_text(const m2_stage_result *result)
{
    if (result->n_runs < 2) return "one run alone";
    return result->n_equal == result->n_runs ? "equal" : "DIFFERENT";
}

static void print_stage(FILE *out, const m2_stage_bench *bench, const m2_stage_result *result)
{
    const m2_spread run = m2_spread_of(result->run_ms, result->n_runs);
    const m2_spread copy = m2_spread_of(result->copy_ms, result->n_runs);
    const m2_profile_report *parts = &result->parts;
    const double limit = m2_roof_limit_of_rows(&bench->roof, parts);
    char title[64];
    fprintf(out, "\n%-11s %.3f ms (least %.3f, most %.3f) of %d, after %d to warm up: %s\n",
            result->name, run.median, run.min, run.max, result->n_runs, result->n_warm,
            result->work);
    fprintf(out, "copy        %.3f ms (least %.3f, most %.3f) more for %.1f MiB to the host\n",
            copy.median, copy.min, copy.max, (double)result->output_bytes / MIB);
    fprintf(out, "work        %.4g TFLOP, %.4g GB: %.4g TFLOP/s, %.1f%% of the product's roof\n",
            parts->flop / 1e12, parts->bytes / 1e9, parts->flop / run.median / 1e9,
            100 * parts->flop * 1e3 / run.median / bench->roof.flop_s);
    fprintf(out, "limit       %.3f ms with every part at its roof: %.1f%% reached\n", limit,
            100 * limit / run.median);
    fprintf(out, "memory      weights %.0f MiB, step %.0f MiB; opened in %.1f s\n",
            (double)result->weights_bytes / MIB, (double)result->step_bytes / MIB,
            result->open_seconds);
    fprintf(out, "bits        %s: %d of %d runs; values finite, rms %.4g\n", bits_text(result),
            result->n_equal, result->n_runs, result->rms);
    fprintf(out, "            sha256 %s\n", result->digest);
    snprintf(title, sizeof title, "one more run (%s), call by call", result->name);
    m2_bench_print_rows(out, title, &bench->roof, parts);
    fprintf(out, "The parts add up to %.1f%% of a run; first to last call took %.3f ms.\n",
            100 * parts->ms / run.median, parts->whole_ms);
}

static void print_page(FILE *out, const m2_stage_bench *bench)
{
    print_head(out, bench);
    for (int i = 0; i < M2_BENCH_STAGES; i++)
        if (bench->results[i].name) print_stage(out, bench, &bench->results[i]);
    fprintf(
        out,
        "\nFLOP counts products, attention and mixing; GB what cannot be avoided: inputs once, "
        "outputs once.\nThe limit is the larger of FLOP and bytes over the roofs, of f32 the bytes "
        "alone: there is no roof of f32 here.\nThis process took at most %.0f MiB of the host.\n",
        (double)m2_memory_peak() / MIB);
}

/* ---- for machines ------------------------------------------------------------------------------ */

static json_t *times_json(const double *ms, int n)
{
    json_t *times = json_array();
    for (int i = 0; i < n; i++) json_array_append_new(times, json_real(ms[i]));
    return times;
}

static int put_stage(FILE *out, const m2_stage_bench *bench, const m2_stage_result *result)
{
    const m2_spread run = m2_spread_of(result->run_ms, result->n_runs);
    const m2_spread copy = m2_spread_of(result->copy_ms, result->n_runs);
    const m2_profile_report *parts = &result->parts;
    if (!m2_bench_put_rows(out, result->name, &bench->roof, parts)) return 0;
    return m2_bench_put_line(
        out,
        json_pack("{s:s,s:s,s:s,s:f,s:f,s:f,s:o,s:f,s:o,s:i,s:i,s:I,s:I,s:I,s:f,s:f,s:f,s:f,s:f,"
                  "s:f,s:f,s:b,s:s}",
                  "event", "stage", "stage", result->name, "work", result->work, "ms", run.median,
                  "ms_min", run.min, "ms_max", run.max, "runs_ms",
                  times_json(result->run_ms, result->n_runs), "copy_ms", copy.median, "copies_ms",
                  times_json(result->copy_ms, result->n_runs), "runs", result->n_runs, "warm_runs",
                  result->n_warm, "output_bytes", (json_int_t)result->output_bytes, "weights_bytes",
                  (json_int_t)result->weights_bytes, "step_bytes", (json_int_t)result->step_bytes,
                  "open_seconds", result->open_seconds, "flop", parts->flop, "bytes", parts->bytes,
                  "limit_ms", m2_roof_limit_of_rows(&bench->roof, parts), "parts_ms", parts->ms,
                  "parts_whole_ms", parts->whole_ms, "rms", result->rms, "bits_equal",
                  result->n_equal == result->n_runs, "sha256", result->digest));
}

static int put_lines(FILE *out, const m2_stage_bench *bench)
{
    const m2_engine *engine = bench->engine;
    int is_put = m2_bench_put_line(
        out,
        json_pack("{s:s,s:s,s:s?,s:b,s:s,s:s,s:s,s:i}", "event", "bench", "version", MAGI2_VERSION,
                  "model", bench->is_made_up ? NULL : engine->model_dir, "synthetic",
                  bench->is_made_up, "tier", bench->settings.tier, "backend", engine->ops.backend,
                  "device", m2_bench_device(engine), "threads", m2_pool_n_threads(engine->pool)));
    is_put = is_put && m2_bench_put_roofs(out, &bench->roof, m2_bench_device(engine));
    for (int i = 0; i < M2_BENCH_STAGES && is_put; i++)
        if (bench->results[i].name) is_put = put_stage(out, bench, &bench->results[i]);
    return is_put;
}

m2_status m2_stage_report(const m2_stage_bench *bench, int as_json, char **text_out)
{
    char *text = NULL;
    size_t bytes = 0;
    int is_whole = 1;
    FILE *out = open_memstream(&text, &bytes);
    if (!out) return m2_fail(M2_ERR_MEMORY, "no memory for the report");
    if (as_json)
        is_whole = put_lines(out, bench);
    else
        print_page(out, bench);
    if (fclose(out) != 0 || !is_whole) {
        free(text);
        return m2_fail(M2_ERR_MEMORY, "no memory for the report");
    }
    *text_out = text;
    return M2_OK;
}
