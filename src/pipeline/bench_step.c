#include "pipeline/bench.h"

#include "model/dit/preview_synthetic.h"
#include "pipeline/clip.h"
#include "pipeline/memory.h"
#include "pipeline/synthetic_fit.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define N_STEPS_DEFAULT 5
#define WARM_SECONDS    3.0 /* of a GPU: until its clock has settled under load */
#define N_BITS_STEPS    3   /* the second is recorded, the third replayed with a history of steps */
#define SEED            20261130u

/* ---- the model --------------------------------------------------------------------------------- */

static m2_status open_engine(m2_bench *bench, const magi2_params *params)
{
    const magi2_bench_request *request = bench->request;
    if (params->model_dir) return m2_engine_open(params, &bench->engine);
    M2_TRY(m2_engine_open_bare(params, &bench->engine));
    bench->is_synthetic = 1;
    const int wants_small = m2_device_is_host(&bench->engine->ops) && !request->tier;
    if (!wants_small || !request->small_model_dir) return M2_OK;
    m2_engine_close(bench->engine);
    bench->engine = NULL;
    bench->is_synthetic = 0;
    magi2_params small = *params;
    small.model_dir = request->small_model_dir;
    return m2_engine_open(&small, &bench->engine);
}

/* Bytes that weights, request and step may take; a device counts the limit that it was opened with. */
static size_t room_of(const m2_engine *engine)
{
    const m2_ops *ops = &engine->ops;
    if (!m2_device_is_host(ops)) return ops->device_api->room(ops);
    const size_t available = m2_memory_available(), limit = engine->ram_limit;
    if (!limit) return available;
    const size_t allowed = limit > M2_MEMORY_PROGRAM_BYTES ? limit - M2_MEMORY_PROGRAM_BYTES : 0;
    return allowed < available ? allowed : available;
}

/* On the host what does not fit is refused before it is touched; a device's arenas do that. */
static m2_status check_host_memory(const m2_bench *bench, size_t weights_bytes)
{
    const m2_engine *engine = bench->engine;
    if (!m2_device_is_host(&engine->ops)) return M2_OK;
    const m2_memory_plan plan = { .mapped = engine->mapped_bytes,
                                  .copied = engine->weights.used,
                                  .wanted = weights_bytes + bench->need.request_bytes +
                                            bench->step_bytes };
    return m2_memory_check(&plan, engine->ram_limit);
}

static m2_status count_need(m2_bench *bench)
{
    const m2_engine *engine = bench->engine;
    m2_preview *shapes = NULL;
    if (bench->is_synthetic)
        M2_TRY(m2_preview_open_shapes(&engine->config.arch, engine->config.eval.time_channel_dim,
                                      &shapes));
    const m2_status status =
        m2_step_need_count(shapes ? shapes : engine->preview, &engine->config, &bench->settings,
                           m2_need_text_len, engine->ops.device_api, &bench->need);
    m2_preview_close(shapes);
    return status;
}

/* Where the weights are made up, those that fit. */
static m2_status count_memory(m2_bench *bench, size_t *weights_out)
{
    const m2_engine *engine = bench->engine;
    m2_synthetic_fit fit;
    M2_TRY(count_need(bench));
    bench->step_bytes = m2_bench_step_bytes(&engine->ops, &bench->need);
    *weights_out = 0;
    if (!bench->is_synthetic) return M2_OK;
    M2_TRY(m2_synthetic_fit_make(&engine->config, &engine->ops, &bench->need,
                                 bench->request->n_layers, room_of(engine), &fit));
    bench->n_moe_layers = fit.n_moe_layers;
    bench->n_resident = fit.n_resident;
    bench->step_bytes = fit.step_bytes;
    *weights_out = fit.weights_bytes;
    return M2_OK;
}

static m2_status take_memory(m2_bench *bench)
{
    m2_engine *engine = bench->engine;
    const m2_ops *ops = &engine->ops;
    size_t weights_bytes;
    M2_TRY(count_memory(bench, &weights_bytes));
    m2_bench_say_head(bench, weights_bytes);
    M2_TRY(check_host_memory(bench, weights_bytes));
    if (bench->is_synthetic)
        M2_TRY(m2_device_arena_create(ops, &engine->weights, "weights", weights_bytes));
    M2_TRY(
        m2_device_arena_create(ops, &bench->request_arena, "request", bench->need.request_bytes));
    M2_TRY(m2_device_arena_create(ops, &bench->step_arena, "step", bench->step_bytes));
    if (!bench->is_synthetic) return M2_OK;
    const m2_preview_synthetic synthetic = { bench->n_resident, SEED };
    return m2_preview_open_synthetic(&engine->config.arch, engine->config.eval.time_channel_dim,
                                     ops, &engine->weights, &bench->step_arena, &synthetic,
                                     &engine->preview);
}

static m2_status lay_out(m2_bench *bench)
{
    m2_engine *engine = bench->engine;
    m2_step_inputs_make(&bench->inputs, &bench->request_arena, &engine->config, &bench->settings,
                        m2_need_text_len);
    for (int i = 0; i < M2_BRANCHES; i++)
        M2_TRY(m2_fill_normals(&engine->ops, SEED + 1 + (unsigned)i, &bench->inputs.features[i]));
    M2_TRY(m2_profile_open(&bench->profile, &engine->ops, bench->need.n_calls));
    m2_profile_switch(&bench->profile, 0);
    const m2_step_loop_params params =
        m2_step_inputs_params(&bench->inputs, engine->preview, &bench->settings);
    return m2_step_loop_prepare(&bench->loop, &bench->profile.ops, &bench->request_arena,
                                &bench->step_arena, &params);
}

/* ---- steps ------------------------------------------------------------------------------------- */

static m2_status check_cancel(const m2_bench *bench)
{
    if (!bench->request->cancel || !*bench->request->cancel) return M2_OK;
    return m2_fail(M2_ERR_INTERRUPTED, "interrupted; nothing was kept");
}

/* Back to the noise, before the first step. */
static m2_status restart(m2_bench *bench, int may_record)
{
    const m2_ops *ops = &bench->engine->ops;
    m2_step_loop_finish(&bench->loop);
    M2_TRY(m2_fill_normals(ops, SEED + 3, &bench->inputs.video));
    M2_TRY(m2_fill_normals(ops, SEED + 4, &bench->inputs.audio));
    M2_TRY(m2_step_loop_start(&bench->loop, 0));
    bench->loop.n_run = 0;
    if (!may_record) bench->loop.may_record = 0;
    return M2_OK;
}

static m2_status run_steps(m2_bench *bench, int n)
{
    m2_step_loop *loop = &bench->loop;
    const int lag = m2_step_loop_lag(loop);
    for (int i = 0; i < n; i++) {
        M2_TRY(check_cancel(bench));
        M2_TRY(m2_step_loop_enqueue(loop));
        if (i >= lag) M2_TRY(m2_step_loop_wait(loop, loop->n_enqueued - lag));
    }
    return m2_step_loop_wait(loop, loop->n_enqueued);
}

/* The schedule has an end: begin it anew, up to where steps are replayed, when it is near. */
static m2_status keep_going(m2_bench *bench)
{
    if (bench->loop.n_enqueued < bench->settings.n_steps) return M2_OK;
    M2_TRY(restart(bench, 1));
    return bench->settings.n_steps > N_BITS_STEPS ? run_steps(bench, 2) : M2_OK;
}

static m2_status add_to_digest(const m2_ops *ops, m2_sha256 *hash, const m2_tensor *tensor)
{
    m2_tensor host;
    void *copy = NULL;
    M2_TRY(m2_device_fetch(ops, tensor, &host, &copy));
    const m2_status status = m2_sha256_update(hash, host.data, m2_tensor_bytes(&host));
    free(copy);
    return status;
}

static m2_status digest_state(const m2_bench *bench, char *hex_out)
{
    const m2_tensor *const tensors[] = { &bench->loop.video_velocity, &bench->loop.audio_velocity,
                                         &bench->inputs.video, &bench->inputs.audio };
    m2_sha256 *hash = NULL;
    M2_TRY(m2_sha256_create(&hash));
    m2_status status = M2_OK;
    for (int i = 0; i < 4 && status == M2_OK; i++)
        status = add_to_digest(&bench->engine->ops, hash, tensors[i]);
    if (status == M2_OK) status = m2_sha256_finish(hash, hex_out);
    m2_sha256_destroy(hash);
    return status;
}

static int n_bits_steps(const m2_bench *bench)
{
    return bench->settings.n_steps < N_BITS_STEPS ? bench->settings.n_steps : N_BITS_STEPS;
}

/* The same few steps, launched twice and replayed twice. */
static m2_status compare_runs(m2_bench *bench)
{
    const int can_record = bench->engine->ops.device_api->record_begin != NULL;
    const int n_steps = n_bits_steps(bench);
    bench->n_runs = can_record ? 4 : 2;
    for (int i = 0; i < bench->n_runs; i++) {
        M2_TRY(restart(bench, i >= 2));
        M2_TRY(run_steps(bench, n_steps));
        M2_TRY(digest_state(bench, bench->digests[i]));
    }
    return M2_OK;
}

int m2_bench_has_equal_bits(const m2_bench *bench)
{
    for (int i = 1; i < bench->n_runs; i++)
        if (strcmp(bench->digests[i], bench->digests[0]) != 0) return 0;
    return 1;
}

static m2_status warm_up(m2_bench *bench)
{
    const double begin = m2_clip_now();
    const double seconds = m2_device_is_host(&bench->engine->ops) ? 0 : WARM_SECONDS;
    M2_TRY(restart(bench, 1));
    do {
        M2_TRY(keep_going(bench));
        M2_TRY(run_steps(bench, 1));
        bench->n_warm++;
    } while (bench->n_warm < 2 || m2_clip_now() - begin < seconds);
    return M2_OK;
}

/* As a clip runs them: never more in the queue than a clip lets there be. */
static m2_status time_steps(m2_bench *bench, m2_timer *timer)
{
    const m2_ops *ops = &bench->engine->ops;
    m2_step_loop *loop = &bench->loop;
    const int lag = m2_step_loop_lag(loop);
    for (int i = 0; i < bench->n_steps; i++) {
        M2_TRY(check_cancel(bench));
        M2_TRY(keep_going(bench));
        ops->device_api->timer_mark(ops, timer, 2 * i);
        M2_TRY(m2_step_loop_enqueue(loop));
        ops->device_api->timer_mark(ops, timer, 2 * i + 1);
        M2_TRY(m2_step_loop_wait(loop, loop->n_enqueued - lag));
    }
    M2_TRY(m2_step_loop_wait(loop, loop->n_enqueued));
    bench->is_replayed = loop->recording != NULL;
    for (int i = 0; i < bench->n_steps; i++)
        bench->step_ms[i] = ops->device_api->timer_ms(ops, timer, 2 * i, 2 * i + 1);
    return M2_OK;
}

static m2_status measure_steps(m2_bench *bench)
{
    const m2_ops *ops = &bench->engine->ops;
    m2_timer *timer = NULL;
    bench->step_ms = calloc((size_t)bench->n_steps, sizeof *bench->step_ms);
    if (!bench->step_ms) return m2_fail(M2_ERR_MEMORY, "no memory for %d times", bench->n_steps);
    M2_TRY(ops->device_api->timer_create(ops, 2 * bench->n_steps, &timer));
    const m2_status status = time_steps(bench, timer);
    ops->device_api->timer_destroy(ops, timer);
    return status;
}

static m2_status measure_parts(m2_bench *bench)
{
    M2_TRY(restart(bench, 0));
    M2_TRY(run_steps(bench, 1));
    m2_profile_switch(&bench->profile, 1);
    m2_status status = M2_OK;
    if (bench->settings.n_steps > 1) status = run_steps(bench, 1);
    m2_profile_switch(&bench->profile, 0);
    return status == M2_OK ? m2_profile_read(&bench->profile, &bench->parts) : status;
}

/* ---- what the run was like --------------------------------------------------------------------- */

typedef struct route_count {
    m2_bench *bench;
    int64_t *rows; /* [Hm * E] of one layer */
    int64_t n_layers;
    m2_status status;
} route_count;

static int wants_routes(void *user, const char *name)
{
    (void)user;
    const size_t n = strlen(name), n_end = strlen(".topk_idx");
    return n > n_end && strcmp(name + n - n_end, ".topk_idx") == 0;
}

static void count_routes(void *user, const char *name, m2_tensor *topk_idx)
{
    route_count *counts = user;
    m2_bench *bench = counts->bench;
    const int64_t n_experts = bench->engine->config.arch.moe_num_experts;
    const int64_t n_heads = topk_idx->shape[0], n = m2_tensor_count(topk_idx) / n_heads;
    m2_tensor host;
    void *copy = NULL;
    (void)name;
    if (counts->status == M2_OK)
        counts->status = m2_device_fetch(&bench->engine->ops, topk_idx, &host, &copy);
    if (counts->status != M2_OK) return;
    memset(counts->rows, 0, (size_t)(n_heads * n_experts) * sizeof *counts->rows);
    for (int64_t i = 0; i < n_heads * n; i++)
        counts->rows[i / n * n_experts + ((const int32_t *)host.data)[i]]++;
    free(copy);
    for (int64_t e = 0; e < n_heads * n_experts; e++) {
        const int64_t rows = counts->rows[e];
        if ((counts->n_layers == 0 && e == 0) || rows < bench->rows_min) bench->rows_min = rows;
        if (rows > bench->rows_max) bench->rows_max = rows;
    }
    bench->rows_mean = (double)n / (double)n_experts;
    counts->n_layers++;
}

/* One more forward, looked into. */
static m2_status look_at_routes(m2_bench *bench)
{
    const m2_arch_config *arch = &bench->engine->config.arch;
    route_count counts = { .bench = bench };
    counts.rows =
        calloc((size_t)arch->moe_num_heads * (size_t)arch->moe_num_experts, sizeof *counts.rows);
    if (!counts.rows) return m2_fail(M2_ERR_MEMORY, "no memory to count routes");
    const m2_trace trace = { wants_routes, count_routes, &counts };
    const m2_preview_hooks hooks = { .trace = &trace };
    const m2_preview_step step = { .video = &bench->inputs.video,
                                   .audio = &bench->inputs.audio,
                                   .timestep = 500,
                                   .video_out = &bench->loop.video_velocity,
                                   .audio_out = &bench->loop.audio_velocity };
    m2_arena_reset(&bench->step_arena);
    m2_preview_forward(bench->engine->preview, &bench->engine->ops, &bench->step_arena,
                       &bench->loop.request, &step, &hooks);
    free(counts.rows);
    M2_TRY(counts.status);
    return m2_device_wait(&bench->engine->ops);
}

static m2_status look_at_velocity(m2_bench *bench)
{
    m2_tensor host;
    void *copy = NULL;
    M2_TRY(m2_device_fetch(&bench->engine->ops, &bench->loop.video_velocity, &host, &copy));
    const int64_t n = m2_tensor_count(&host);
    double sum = 0;
    for (int64_t i = 0; i < n; i++) {
        const double value = ((const float *)host.data)[i];
        sum += value * value;
    }
    free(copy);
    bench->velocity_rms = sqrt(sum / (double)n);
    if (isfinite(bench->velocity_rms)) return M2_OK;
    return m2_fail(M2_ERR_NUMERIC, "the velocity is not finite");
}

static void look_at_memory(const m2_bench *bench, size_t *used_out, size_t *total_out)
{
    const m2_ops *ops = &bench->engine->ops;
    size_t free_bytes = 0;
    ops->device_api->memory(ops, &free_bytes, total_out);
    *used_out = *total_out - free_bytes;
}

/* A device is measured at the clock that it has under load.  A host's steps may take hours: its roofs come
 * first and say how many. */
static m2_status measure_roof(m2_bench *bench)
{
    return m2_roof_measure(&bench->engine->ops, &bench->step_arena, &bench->roof);
}

static m2_status measure_host_roof(m2_bench *bench)
{
    M2_TRY(measure_roof(bench));
    /* compared, to warm up, timed, by parts */
    bench->n_to_run = 2 * n_bits_steps(bench) + 2 + bench->n_steps + 2;
    m2_bench_say_steps(bench);
    return M2_OK;
}

static m2_status run_all(m2_bench *bench)
{
    magi2_request defaults;
    m2_clip_request_init(&defaults);
    defaults.tier = bench->request->tier;
    M2_TRY(m2_settings_resolve(&bench->engine->config, &defaults, &bench->settings));
    look_at_memory(bench, &bench->used_at_open, &bench->device_total);
    M2_TRY(take_memory(bench));
    M2_TRY(lay_out(bench));
    const int is_host = m2_device_is_host(&bench->engine->ops);
    if (is_host) M2_TRY(measure_host_roof(bench));
    M2_TRY(compare_runs(bench));
    M2_TRY(warm_up(bench));
    if (!is_host) M2_TRY(measure_roof(bench));
    M2_TRY(measure_steps(bench));
    look_at_memory(bench, &bench->used_at_end, &bench->device_total);
    M2_TRY(measure_parts(bench));
    M2_TRY(look_at_routes(bench));
    return look_at_velocity(bench);
}

static void close_bench(m2_bench *bench)
{
    if (bench->engine) {
        const m2_ops *ops = &bench->engine->ops;
        m2_step_loop_finish(&bench->loop);
        m2_profile_close(&bench->profile);
        m2_device_arena_destroy(ops, &bench->request_arena);
        m2_device_arena_destroy(ops, &bench->step_arena);
    }
    m2_engine_close(bench->engine);
    free(bench->step_ms);
    free(bench);
}

m2_status m2_bench_step(const magi2_params *params, const magi2_bench_request *request, int as_json,
                        char **text_out)
{
    m2_bench *bench = calloc(1, sizeof *bench);
    if (!bench) return m2_fail(M2_ERR_MEMORY, "no memory for a measurement");
    bench->request = request;
    bench->n_steps = request->n_steps > 0 ? request->n_steps : N_STEPS_DEFAULT;
    m2_status status = open_engine(bench, params);
    if (status == M2_OK) {
        const m2_log *log_before = m2_log_bind(&bench->engine->log);
        status = run_all(bench);
        if (status == M2_OK) status = m2_bench_report(bench, as_json, text_out);
        m2_log_bind(log_before);
    }
    if (status == M2_OK && !m2_bench_has_equal_bits(bench))
        status = m2_fail(M2_ERR_NUMERIC, "runs of the same steps do not have the same bits");
    close_bench(bench);
    return status;
}
