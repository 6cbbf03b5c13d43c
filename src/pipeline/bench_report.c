/* bench_report.c - what `bench step` measured, as a page or as JSON lines. */
#include "pipeline/bench.h"

#include "pipeline/bench_table.h"
#include "pipeline/memory.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MIB 1048576.0

static size_t planned_bytes(const m2_bench *bench)
{
    return bench->engine->weights.used + bench->need.request_bytes + bench->step_bytes;
}

/* ---- for people -------------------------------------------------------------------------------- */

static void print_head(FILE *out, const m2_bench *bench)
{
    const m2_step_need *need = &bench->need;
    const m2_engine *engine = bench->engine;
    fprintf(out, "bench step  %s, tier %s, backend %s\n",
            bench->is_synthetic ? "the release's architecture with made-up weights"
                                : engine->model_dir,
            bench->settings.tier, engine->ops.backend);
    fprintf(out, "machine     %s, %d threads\n", m2_bench_device(bench->engine),
            m2_pool_n_threads(engine->pool));
    fprintf(out, "tokens      %lld of both branches (prompts of %d and %d tokens), %d layers\n",
            (long long)need->n_tokens, M2_NEED_PROMPT_TOKENS, M2_NEED_NEGATIVE_TOKENS,
            engine->config.arch.num_layers);
    if (bench->is_synthetic)
        fprintf(out, "weights     %.1f GB; %d of %d MoE layers have experts of their own%s\n",
                (double)engine->weights.used / 1e9, bench->n_resident, bench->n_moe_layers,
                bench->n_resident < bench->n_moe_layers ? ", the others share them" : "");
    fprintf(out, "routing     %lld / %.0f / %lld rows for an expert (least, mean, most)\n",
            (long long)bench->rows_min, bench->rows_mean, (long long)bench->rows_max);
}

static void print_steps(FILE *out, const m2_bench *bench, const m2_spread *f)
{
    const m2_roof *roof = &bench->roof;
    m2_bench_print_roofs(out, roof, m2_bench_device(bench->engine));
    fprintf(out, "a step      %.3f ms (least %.3f, most %.3f) of %d, %s, after %d to warm up\n",
            f->median, f->min, f->max, bench->n_steps,
            bench->is_replayed ? "replayed" : "launched call by call", bench->n_warm);
    fprintf(out, "work        %.4g TFLOP, %.4g GB: %.4g TFLOP/s, %.1f%% of the product's roof\n",
            bench->parts.flop / 1e12, bench->parts.bytes / 1e9, bench->parts.flop / f->median / 1e9,
            100 * bench->parts.flop * 1e3 / f->median / roof->flop_s);
    const double limit = m2_roof_limit_of_rows(roof, &bench->parts);
    fprintf(out, "limit       %.3f ms with every part at its roof: %.1f%% reached\n\n", limit,
            100 * limit / f->median);
}

static void print_parts(FILE *out, const m2_bench *bench, const m2_spread *f)
{
    m2_bench_print_rows(out, "one more step, call by call", &bench->roof, &bench->parts);
    fprintf(
        out,
        "FLOP counts products, attention and mixing; GB what cannot be avoided: inputs once, "
        "outputs once.\nThe limit is the larger of FLOP and bytes over the roofs, of f32 the bytes "
        "alone.  The parts add up to %.1f%% of a step; first to last call took %.3f ms.\n\n",
        100 * bench->parts.ms / f->median, bench->parts.whole_ms);
}

static void print_foot(FILE *out, const m2_bench *bench)
{
    fprintf(out,
            "memory      planned %.0f MiB: weights %.0f, request %.0f, step %.0f (of which a step "
            "takes %.0f)\n",
            (double)planned_bytes(bench) / MIB, (double)bench->engine->weights.used / MIB,
            (double)bench->need.request_bytes / MIB, (double)bench->step_bytes / MIB,
            (double)bench->need.step_bytes / MIB);
    if (bench->device_total)
        fprintf(out,
                "            the device's driver counts %.0f of %.0f MiB in use at the end, "
                "%.0f when it was opened\n",
                (double)bench->used_at_end / MIB, (double)bench->device_total / MIB,
                (double)bench->used_at_open / MIB);
    fprintf(out, "            this process at most %.0f MiB of the host\n",
            (double)m2_memory_peak() / MIB);
    fprintf(out, "bits        %s: %d runs of the same steps%s; velocity rms %.3f\n",
            m2_bench_has_equal_bits(bench) ? "equal" : "DIFFERENT", bench->n_runs,
            bench->n_runs > 2 ? ", launched twice and replayed twice" : "", bench->velocity_rms);
    for (int i = 0; i < bench->n_runs; i++)
        if (i == 0 || !m2_bench_has_equal_bits(bench))
            fprintf(out, "            sha256 %s\n", bench->digests[i]);
}

/* ---- for machines ------------------------------------------------------------------------------ */

static int put_run(FILE *out, const m2_bench *bench)
{
    const m2_engine *engine = bench->engine;
    int is_put = m2_bench_put_line(
        out, json_pack("{s:s,s:s,s:s?,s:b,s:s,s:s,s:s,s:i,s:I,s:i,s:i,s:i,s:I,s:I,s:f,s:I}",
                       "event", "bench", "version", MAGI2_VERSION, "model",
                       bench->is_synthetic ? NULL : engine->model_dir, "synthetic",
                       bench->is_synthetic, "tier", bench->settings.tier, "backend",
                       engine->ops.backend, "device", m2_bench_device(bench->engine), "threads",
                       m2_pool_n_threads(engine->pool), "tokens", (json_int_t)bench->need.n_tokens,
                       "layers", engine->config.arch.num_layers, "moe_layers", bench->n_moe_layers,
                       "resident_moe_layers", bench->n_resident, "weights_bytes",
                       (json_int_t)engine->weights.used, "rows_min", (json_int_t)bench->rows_min,
                       "rows_mean", bench->rows_mean, "rows_max", (json_int_t)bench->rows_max));
    return is_put && m2_bench_put_roofs(out, &bench->roof, m2_bench_device(engine));
}

static int put_parts(FILE *out, const m2_bench *bench)
{
    for (int i = 0; i < bench->n_steps; i++)
        if (!m2_bench_put_line(out, json_pack("{s:s,s:i,s:f}", "event", "step", "step", i, "ms",
                                              bench->step_ms[i])))
            return 0;
    return m2_bench_put_rows(out, NULL, &bench->roof, &bench->parts);
}

static int put_result(FILE *out, const m2_bench *bench, const m2_spread *f)
{
    json_t *digests = json_array();
    for (int i = 0; i < bench->n_runs; i++)
        json_array_append_new(digests, json_string(bench->digests[i]));
    return m2_bench_put_line(
        out,
        json_pack(
            "{s:s,s:f,s:f,s:f,s:i,s:b,s:i,s:f,s:f,s:f,s:f,s:f,s:I,s:I,s:I,s:I,s:I,s:I,s:I,"
            "s:f,s:b,s:o}",
            "event", "result", "step_ms", f->median, "step_ms_min", f->min, "step_ms_max", f->max,
            "steps", bench->n_steps, "replayed", bench->is_replayed, "warm_steps", bench->n_warm,
            "flop", bench->parts.flop, "bytes", bench->parts.bytes, "limit_ms",
            m2_roof_limit_of_rows(&bench->roof, &bench->parts), "parts_ms", bench->parts.ms,
            "parts_whole_ms", bench->parts.whole_ms, "planned_bytes",
            (json_int_t)planned_bytes(bench), "request_bytes",
            (json_int_t)bench->need.request_bytes, "step_bytes", (json_int_t)bench->need.step_bytes,
            "device_used_at_open", (json_int_t)bench->used_at_open, "device_used_at_end",
            (json_int_t)bench->used_at_end, "device_bytes", (json_int_t)bench->device_total,
            "host_peak_bytes", (json_int_t)m2_memory_peak(), "velocity_rms", bench->velocity_rms,
            "bits_equal", m2_bench_has_equal_bits(bench), "sha256", digests));
}

m2_status m2_bench_report(const m2_bench *bench, int as_json, char **text_out)
{
    char *text = NULL;
    size_t bytes = 0;
    int is_whole = 1;
    const m2_spread f = m2_spread_of(bench->step_ms, bench->n_steps);
    FILE *out = open_memstream(&text, &bytes);
    if (!out) return m2_fail(M2_ERR_MEMORY, "no memory for the report");
    if (as_json) {
        is_whole = put_run(out, bench) && put_parts(out, bench) && put_result(out, bench, &f);
    } else {
        print_head(out, bench);
        print_steps(out, bench, &f);
        print_parts(out, bench, &f);
        print_foot(out, bench);
    }
    if (fclose(out) != 0 || !is_whole) {
        free(text);
        return m2_fail(M2_ERR_MEMORY, "no memory for the report");
    }
    *text_out = text;
    return M2_OK;
}
