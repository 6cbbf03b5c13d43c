#include "pipeline/bench_stage.h"

#include "pipeline/clip.h"
#include "pipeline/memory.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define N_RUNS_DEFAULT   5
#define N_TOKENS_DEFAULT 2500
#define WARM_SECONDS     1.0 /* of a GPU: until its clock has settled under load */

/* ---- memory ------------------------------------------------------------------------------------ */

typedef struct stage_need {
    size_t weights, request, step; /* bytes of the arenas */
    int64_t n_calls;
} stage_need;

static m2_status count_run(m2_stage_bench *bench, m2_profile *profile, stage_need *need)
{
    m2_arena request, step;
    m2_profile_report report;
    m2_arena_init_measuring(&request, "request");
    m2_arena_init_measuring(&step, "step");
    M2_TRY(m2_stage_make_input(bench, &profile->ops, &request));
    M2_TRY(m2_stage_run(bench, &profile->ops, &step));
    M2_TRY(m2_profile_read(profile, &report));
    need->n_calls = report.n_calls;
    need->request = request.peak;
    need->step = step.peak;
    return M2_OK;
}

/* Counted by opening and running the network on measuring arenas. */
static m2_status count_need(m2_stage_bench *bench, stage_need *need_out)
{
    m2_ops measure;
    m2_arena weights;
    m2_profile profile;
    m2_ops_init_measure(&measure);
    measure.device_api = bench->engine->ops.device_api;
    m2_arena_init_measuring(&weights, "weights");
    M2_TRY(m2_profile_open(&profile, &measure, 0));
    m2_status status = m2_stage_open_network(bench, &measure, &weights);
    need_out->weights = weights.peak;
    if (status == M2_OK) status = count_run(bench, &profile, need_out);
    m2_stage_close_network(bench);
    m2_profile_close(&profile);
    return status;
}

/* Of files that are used where they are mapped. */
static size_t mapped_bytes(const m2_stage_bench *bench)
{
    size_t bytes = 0;
    if (bench->is_made_up || bench->stage != M2_BENCH_TEXT) return 0;
    for (int64_t i = 0; i < m2_checkpoint_n_tensors(bench->checkpoint); i++) {
        const m2_ckpt_tensor *tensor = m2_checkpoint_at(bench->checkpoint, i);
        bytes += (size_t)tensor->count * m2_dtype_bytes(tensor->dtype);
    }
    return bytes;
}

static m2_status take_memory(m2_stage_bench *bench, const stage_need *need)
{
    const m2_ops *ops = &bench->engine->ops;
    const size_t output = m2_stage_output_bytes(bench);
    if (m2_device_is_host(ops)) {
        const m2_memory_plan plan = { .mapped = mapped_bytes(bench),
                                      .copied = bench->made_up_bytes, /* taken by now */
                                      .wanted =
                                          need->weights + need->request + need->step + output };
        M2_TRY(m2_memory_check(&plan, bench->engine->ram_limit));
    }
    M2_TRY(m2_device_arena_create(ops, &bench->weights, "weights", need->weights));
    M2_TRY(m2_device_arena_create(ops, &bench->request_arena, "request", need->request));
    M2_TRY(m2_device_arena_create(ops, &bench->step, "step", need->step));
    bench->host = malloc(output);
    if (!bench->host)
        return m2_fail(M2_ERR_MEMORY, "no memory for %.0f MiB of output",
                       (double)output / 1048576.0);
    return M2_OK;
}

static void close_stage(m2_stage_bench *bench)
{
    const m2_ops *ops = &bench->engine->ops;
    m2_stage_close_network(bench);
    m2_device_arena_destroy(ops, &bench->weights);
    m2_device_arena_destroy(ops, &bench->request_arena);
    m2_device_arena_destroy(ops, &bench->step);
    m2_checkpoint_close(bench->checkpoint);
    free(bench->ids);
    free(bench->host);
    bench->checkpoint = NULL;
    bench->made_up_bytes = 0;
    bench->ids = NULL;
    bench->host = NULL;
}

static m2_status open_stage(m2_stage_bench *bench, m2_stage_result *result)
{
    const m2_ops *ops = &bench->engine->ops;
    const double begin = m2_clip_now();
    stage_need need = { 0 };
    M2_TRY(m2_stage_open_checkpoint(bench));
    M2_TRY(count_need(bench, &need));
    M2_TRY(take_memory(bench, &need));
    M2_TRY(m2_stage_open_network(bench, ops, &bench->weights));
    M2_TRY(m2_stage_make_input(bench, ops, &bench->request_arena));
    M2_TRY(m2_profile_open(&result->profile, ops, need.n_calls));
    m2_profile_switch(&result->profile, 0);
    M2_TRY(m2_device_wait(ops));
    result->open_seconds = m2_clip_now() - begin;
    result->weights_bytes = need.weights;
    result->step_bytes = need.step;
    result->output_bytes = m2_stage_output_bytes(bench);
    m2_stage_describe_work(bench, result->work, sizeof result->work);
    return M2_OK;
}

/* ---- runs -------------------------------------------------------------------------------------- */

static m2_status warm_up(m2_stage_bench *bench, m2_stage_result *result)
{
    const double begin = m2_clip_now();
    const double seconds = m2_device_is_host(&bench->engine->ops) ? 0 : WARM_SECONDS;
    bench->is_copying = 0;
    do {
        M2_TRY(m2_stage_run(bench, &bench->engine->ops, &bench->step));
        result->n_warm++;
    } while (m2_clip_now() - begin < seconds);
    return M2_OK;
}

static m2_status add_digest(m2_stage_bench *bench, m2_stage_result *result)
{
    char digest[M2_SHA256_HEX_BYTES];
    if (bench->n_host != result->output_bytes)
        return m2_fail(M2_ERR_INTERNAL, "the %s stage gave %zu bytes, not %zu", result->name,
                       bench->n_host, result->output_bytes);
    M2_TRY(m2_sha256_of(bench->host, bench->n_host, digest));
    if (result->n_runs == 0) memcpy(result->digest, digest, sizeof digest);
    result->n_equal += strcmp(digest, result->digest) == 0;
    return M2_OK;
}

static m2_status time_runs(m2_stage_bench *bench, m2_stage_result *result)
{
    const int n = bench->n_runs;
    result->run_ms = calloc((size_t)n, sizeof *result->run_ms);
    result->copy_ms = calloc((size_t)n, sizeof *result->copy_ms);
    if (!result->run_ms || !result->copy_ms)
        return m2_fail(M2_ERR_MEMORY, "no memory for %d times", n);
    bench->is_copying = 1;
    for (int i = 0; i < n; i++) {
        memset(bench->host, 0xff, result->output_bytes); /* nothing is left of the run before */
        const double begin = m2_clip_now();
        M2_TRY(m2_stage_run(bench, &bench->engine->ops, &bench->step));
        const double seconds = m2_clip_now() - begin;
        result->run_ms[i] = 1e3 * (seconds - bench->copy_seconds);
        result->copy_ms[i] = 1e3 * bench->copy_seconds;
        M2_TRY(add_digest(bench, result));
        result->n_runs++;
    }
    return M2_OK;
}

static m2_status measure_parts(m2_stage_bench *bench, m2_stage_result *result)
{
    bench->is_copying = 0;
    m2_profile_switch(&result->profile, 1);
    const m2_status status = m2_stage_run(bench, &result->profile.ops, &bench->step);
    m2_profile_switch(&result->profile, 0);
    return status == M2_OK ? m2_profile_read(&result->profile, &result->parts) : status;
}

/* Of the last timed run, whose output is still there. */
static m2_status look_at_values(const m2_stage_bench *bench, m2_stage_result *result)
{
    const m2_dtype dtype = m2_stage_output_dtype(bench);
    const size_t size = m2_dtype_bytes(dtype);
    const int64_t n = (int64_t)(result->output_bytes / size);
    double sum = 0;
    float values[1024];
    for (int64_t begin = 0; begin < n; begin += 1024) {
        const int64_t n_part = n - begin < 1024 ? n - begin : 1024;
        m2_convert(bench->host + (size_t)begin * size, dtype, values, M2_F32, n_part);
        for (int64_t i = 0; i < n_part; i++) sum += (double)values[i] * values[i];
    }
    result->rms = sqrt(sum / (double)n);
    if (isfinite(result->rms)) return M2_OK;
    return m2_fail(M2_ERR_NUMERIC, "the %s stage gives values that are not finite", result->name);
}

static m2_status measure_stage(m2_stage_bench *bench, m2_stage_result *result)
{
    M2_TRY(open_stage(bench, result));
    M2_TRY(warm_up(bench, result));
    M2_TRY(time_runs(bench, result));
    M2_TRY(look_at_values(bench, result));
    return measure_parts(bench, result);
}

static m2_status measure_roof(m2_stage_bench *bench)
{
    const m2_ops *ops = &bench->engine->ops;
    m2_arena scratch;
    if (m2_device_is_host(ops)) {
        const m2_memory_plan plan = { .wanted = m2_roof_scratch_bytes(ops) };
        M2_TRY(m2_memory_check(&plan, bench->engine->ram_limit));
    }
    M2_TRY(m2_device_arena_create(ops, &scratch, "roofs", m2_roof_scratch_bytes(ops)));
    const m2_status status = m2_roof_measure(ops, &scratch, &bench->roof);
    m2_device_arena_destroy(ops, &scratch);
    return status;
}

static m2_status check_stage_name(const char *stage)
{
    if (!stage || strcmp(stage, "all") == 0) return M2_OK;
    for (int i = 0; i < M2_BENCH_STAGES; i++)
        if (strcmp(stage, m2_stage_names[i]) == 0) return M2_OK;
    return m2_fail(M2_ERR_ARG, "--stage %s: use text, video, audio or all", stage);
}

static int is_asked(const m2_stage_bench *bench, int stage)
{
    const char *asked = bench->request->stage;
    return !asked || strcmp(asked, "all") == 0 || strcmp(asked, m2_stage_names[stage]) == 0;
}

static m2_status run_all(m2_stage_bench *bench)
{
    magi2_request defaults;
    m2_clip_request_init(&defaults);
    defaults.tier = bench->request->tier;
    M2_TRY(m2_settings_resolve(&bench->engine->config, &defaults, &bench->settings));
    M2_TRY(measure_roof(bench));
    for (int i = 0; i < M2_BENCH_STAGES; i++) {
        if (!is_asked(bench, i)) continue;
        bench->stage = i;
        bench->results[i].name = m2_stage_names[i];
        const m2_status status = measure_stage(bench, &bench->results[i]);
        close_stage(bench);
        M2_TRY(status);
    }
    return M2_OK;
}

int m2_stage_has_equal_bits(const m2_stage_bench *bench)
{
    for (int i = 0; i < M2_BENCH_STAGES; i++)
        if (bench->results[i].n_equal != bench->results[i].n_runs) return 0;
    return 1;
}

static void close_bench(m2_stage_bench *bench)
{
    for (int i = 0; i < M2_BENCH_STAGES; i++) {
        m2_profile_close(&bench->results[i].profile);
        free(bench->results[i].run_ms);
        free(bench->results[i].copy_ms);
    }
    m2_engine_close(bench->engine);
    free(bench);
}

static m2_status run_and_report(m2_stage_bench *bench, int as_json, char **text_out)
{
    M2_TRY(run_all(bench));
    M2_TRY(m2_stage_report(bench, as_json, text_out));
    if (m2_stage_has_equal_bits(bench)) return M2_OK;
    return m2_fail(M2_ERR_NUMERIC, "runs of the same stage do not have the same bits");
}

m2_status m2_bench_stage(const magi2_params *params, const magi2_stage_bench_request *request,
                         const m2_stage_configs *given, int as_json, char **text_out)
{
    M2_TRY(check_stage_name(request->stage));
    m2_stage_bench *bench = calloc(1, sizeof *bench);
    if (!bench) return m2_fail(M2_ERR_MEMORY, "no memory for a measurement");
    bench->request = request;
    bench->given = given;
    bench->n_runs = request->n_runs > 0 ? request->n_runs : N_RUNS_DEFAULT;
    bench->n_tokens = request->n_tokens > 0 ? request->n_tokens : N_TOKENS_DEFAULT;
    m2_status status = m2_stage_open_engine(bench, params);
    if (status == M2_OK) {
        const m2_log *log_before = m2_log_bind(&bench->engine->log);
        status = run_and_report(bench, as_json, text_out);
        m2_log_bind(log_before);
    }
    close_bench(bench);
    return status;
}
