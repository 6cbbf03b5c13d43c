#include "pipeline/engine.h"

#include "backend/gpu/limits.h"
#include "pipeline/memory.h"

#include <stdlib.h>
#include <string.h>

static m2_status open_cpu(const magi2_params *params, m2_engine *engine)
{
    if (params->vram_limit || params->device || params->needs_gpu)
        return m2_fail(M2_ERR_ARG,
                       "--vram-limit and --device are of a GPU, and the CPU computes "
                       "here: leave them out; `magi2 doctor` shows what GPUs there are");
    m2_isa isa = M2_ISA_BEST;
    if (params->isa && !m2_isa_parse(params->isa, &isa))
        return m2_fail(M2_ERR_ARG, "--isa %s: use ref, avx2 or avx512", params->isa);
    M2_TRY(m2_ops_init_cpu(&engine->ops, engine->pool, isa));
    m2_debug("pipeline", "backend cpu, isa %s, %d threads", engine->ops.isa,
             m2_pool_n_threads(engine->pool));
    return M2_OK;
}

static m2_status open_gpu(const magi2_params *params, m2_engine *engine)
{
    if (params->isa)
        return m2_fail(M2_ERR_ARG, "--isa %s is of the CPU: leave it out, or add --backend cpu",
                       params->isa);
    if (params->ram_limit)
        return m2_fail(M2_ERR_ARG, "--ram-limit is of the CPU, and a GPU computes here: use "
                                   "--vram-limit, or add --backend cpu");
    const m2_gpu_params gpu = { .device = params->device, .memory_limit = params->vram_limit };
    M2_TRY(m2_gpu_open(&gpu, &engine->gpu));
    m2_ops_init_gpu(&engine->ops, engine->gpu);
    m2_debug("pipeline", "backend %s", m2_gpu_banner(engine->gpu));
    return M2_OK;
}

/* "auto" takes a GPU where the build and the machine have one, unless an option is of the CPU. */
static m2_status open_backend(const magi2_params *params, m2_engine *engine)
{
    char why[256];
    const char *backend = params->backend ? params->backend : "auto";
    const int is_auto = strcmp(backend, "auto") == 0;
    M2_TRY(m2_pool_create(params->n_threads, &engine->pool));
    m2_group_init_solo(&engine->world, "world");
    if (strcmp(backend, "cpu") == 0) return open_cpu(params, engine);
    if (is_auto) {
        if (params->isa || m2_gpu_count(why, sizeof why) == 0) return open_cpu(params, engine);
        return open_gpu(params, engine);
    }
    if (strcmp(backend, "cuda") != 0 && strcmp(backend, "musa") != 0)
        return m2_fail(M2_ERR_ARG, "--backend %s: use auto, cpu, cuda or musa", backend);
    if (strcmp(backend, "musa") == 0 && strcmp(backend, m2_gpu_vendor()) != 0)
        return m2_fail(M2_ERR_UNSUPPORTED,
                       "--backend musa: programs for MUSA are not built yet (its sources are "
                       "checked by compiling them); use auto, cpu or cuda");
    if (strcmp(backend, m2_gpu_vendor()) != 0)
        return m2_fail(M2_ERR_UNSUPPORTED,
                       "--backend %s: this build has %s%s; `./run build %s` makes one that has it",
                       backend, *m2_gpu_vendor() ? m2_gpu_vendor() : "no GPU backend",
                       *m2_gpu_vendor() ? " alone" : "", backend);
    return open_gpu(params, engine);
}

static m2_status open_config(m2_engine *engine, const m2_model_paths *paths)
{
    m2_model_config_init(&engine->config);
    if (paths->config[0]) M2_TRY(m2_model_config_load(&engine->config, paths->config));
    return M2_OK;
}

/* The networks, bound on `ops` into `arena`: once on measuring ones for the size, once for good. */
static m2_status bind_networks(m2_engine *engine, const m2_ops *ops, m2_arena *arena,
                               const m2_text_config *text_config)
{
    m2_text_encoder_params text_params;
    size_t before = arena->used;
    m2_text_encoder_params_init(&text_params);
    M2_TRY(m2_text_encoder_create(engine->text_ckpt, text_config, ops, arena, &text_params,
                                  &engine->text));
    engine->copied_bytes[M2_NETWORK_TEXT] = arena->used - before;
    before = arena->used;
    M2_TRY(m2_preview_open(engine->preview_ckpt, &engine->config.arch,
                           engine->config.eval.time_channel_dim, ops, arena, &engine->preview));
    engine->copied_bytes[M2_NETWORK_PREVIEW] = arena->used - before;
    before = arena->used;
    M2_TRY(m2_turbo_create(&engine->video_config, engine->video_ckpt, M2_BF16, ops, arena,
                           &engine->video));
    engine->copied_bytes[M2_NETWORK_VIDEO] = arena->used - before;
    before = arena->used;
    M2_TRY(
        m2_oobleck_create(&engine->audio_config, engine->audio_ckpt, ops, arena, &engine->audio));
    engine->copied_bytes[M2_NETWORK_AUDIO] = arena->used - before;
    return M2_OK;
}

static void close_networks(m2_engine *engine)
{
    m2_text_encoder_destroy(engine->text);
    m2_preview_close(engine->preview);
    m2_turbo_destroy(engine->video);
    m2_oobleck_destroy(engine->audio);
    engine->text = NULL;
    engine->preview = NULL;
    engine->video = NULL;
    engine->audio = NULL;
}

static size_t checkpoint_bytes(const m2_checkpoint *checkpoint)
{
    size_t bytes = 0;
    for (int64_t i = 0; i < m2_checkpoint_n_tensors(checkpoint); i++) {
        const m2_ckpt_tensor *tensor = m2_checkpoint_at(checkpoint, i);
        bytes += (size_t)tensor->count * m2_dtype_bytes(tensor->dtype);
    }
    return bytes;
}

/* The configs of all parts, and whether they fit together. */
static m2_status load_configs(m2_engine *engine, const m2_model_paths *paths,
                              m2_text_config *text_config)
{
    M2_TRY(m2_text_config_load(paths->text_config, text_config));
    M2_TRY(m2_turbo_config_load(paths->video_config, &engine->video_config));
    M2_TRY(m2_oobleck_config_load(paths->audio_config, &engine->audio_config));
    if (text_config->hidden_size != engine->config.arch.text_in_channels)
        return m2_fail(
            M2_ERR_MODEL,
            "%s: the text encoder gives %d channels, the transformer takes %d "
            "(text_in_channels)%s",
            paths->text_config, text_config->hidden_size, engine->config.arch.text_in_channels,
            paths->config[0] ? "" : "; there is no magi2.json, so the released sizes count");
    return M2_OK;
}

/* The decoders' tensors are converted; what the other two share with a copy is small. */
size_t m2_engine_mapped_bytes(const m2_engine *engine, int network)
{
    if (!m2_device_is_host(&engine->ops)) return 0;
    if (network == M2_NETWORK_TEXT && engine->text_ckpt) return checkpoint_bytes(engine->text_ckpt);
    if (network == M2_NETWORK_PREVIEW && engine->preview_ckpt)
        return checkpoint_bytes(engine->preview_ckpt);
    return 0;
}

/* Networks that can be planned with and not run: `measuring` then holds their size. */
static m2_status measure_networks(m2_engine *engine, const m2_text_config *text_config,
                                  m2_arena *measuring)
{
    m2_ops measure;
    m2_ops_init_measure(&measure);
    measure.device_api = engine->ops.device_api;
    m2_arena_init_measuring(measuring, "weights");
    M2_TRY(bind_networks(engine, &measure, measuring, text_config));
    for (int i = 0; i < M2_NETWORKS; i++) engine->mapped_bytes += m2_engine_mapped_bytes(engine, i);
    return M2_OK;
}

static m2_status open_networks(m2_engine *engine, const m2_model_paths *paths)
{
    m2_text_config text_config;
    m2_arena measuring;
    M2_TRY(load_configs(engine, paths, &text_config));
    M2_TRY(measure_networks(engine, &text_config, &measuring));
    close_networks(engine);
    if (m2_device_is_host(&engine->ops)) {
        const m2_memory_plan plan = { .mapped = engine->mapped_bytes, .copied = measuring.peak };
        M2_TRY(m2_memory_check(&plan, engine->ram_limit));
    }
    M2_TRY(m2_device_arena_create(&engine->ops, &engine->weights, "weights", measuring.peak));
    M2_TRY(bind_networks(engine, &engine->ops, &engine->weights, &text_config));
    return m2_device_wait(&engine->ops);
}

static m2_status open_files(const magi2_params *params, const m2_model_paths *paths,
                            m2_engine *engine)
{
    engine->model_dir = strdup(params->model_dir);
    engine->ram_limit = params->ram_limit;
    M2_TRY(open_config(engine, paths));
    M2_TRY(m2_checkpoint_open(paths->text, &engine->text_ckpt));
    M2_TRY(m2_checkpoint_open(paths->preview, &engine->preview_ckpt));
    M2_TRY(m2_checkpoint_open(paths->video, &engine->video_ckpt));
    return m2_checkpoint_open(paths->audio, &engine->audio_ckpt);
}

static m2_status open_all(const magi2_params *params, const m2_model_paths *given,
                          m2_engine *engine)
{
    m2_model_paths found;
    if (!params->model_dir || !*params->model_dir)
        return m2_fail(M2_ERR_ARG, "no model directory is given");
    M2_TRY(open_backend(params, engine));
    if (!given) M2_TRY(m2_model_paths_find(params->model_dir, &found));
    const m2_model_paths *paths = given ? given : &found;
    M2_TRY(open_files(params, paths, engine));
    M2_TRY(m2_tokenizer_open(paths->tokenizer, &engine->tokenizer));
    return open_networks(engine, paths);
}

/* A device that is not there: a plan asks it not to be the host, and for its limits. */
static const m2_device_api absent_device = { .limits = &m2_gpu_limits };

/* `for_device` NULL: plan for the host. */
static m2_status open_measured(const magi2_params *params, const m2_model_paths *for_device,
                               m2_engine *engine)
{
    m2_ops_init_measure(&engine->ops);
    if (for_device) engine->ops.device_api = &absent_device;
    if (!params->model_dir) {
        m2_model_config_init(&engine->config);
        return m2_preview_open_shapes(&engine->config.arch, engine->config.eval.time_channel_dim,
                                      &engine->preview);
    }
    m2_model_paths paths;
    m2_text_config text_config;
    M2_TRY(m2_model_paths_find(params->model_dir, &paths));
    M2_TRY(open_files(params, &paths, engine));
    M2_TRY(load_configs(engine, &paths, &text_config));
    return measure_networks(engine, &text_config, &engine->weights);
}

static void forward_log(void *user, m2_log_level level, const char *component, const char *text)
{
    const m2_engine *engine = user;
    engine->user_log(engine->user_log_user, (magi2_log_level)level, component, text);
}

m2_status m2_engine_open(const magi2_params *params, m2_engine **engine_out)
{
    return m2_engine_open_paths(params, NULL, engine_out);
}

/* A backend and the released config, no model. */
static m2_status open_bare(const magi2_params *params, const m2_model_paths *none,
                           m2_engine *engine)
{
    (void)none;
    engine->ram_limit = params->ram_limit;
    M2_TRY(open_backend(params, engine));
    m2_model_config_init(&engine->config);
    return M2_OK;
}

typedef m2_status open_parts(const magi2_params *params, const m2_model_paths *paths,
                             m2_engine *engine);

static m2_status open_engine(open_parts *open, const magi2_params *params,
                             const m2_model_paths *paths, m2_engine **engine_out)
{
    m2_engine *engine = calloc(1, sizeof *engine);
    if (!engine) return m2_fail(M2_ERR_MEMORY, "no memory for an engine");
    engine->user_log = params->log;
    engine->user_log_user = params->log_user;
    engine->log = (m2_log){ .write = params->log ? forward_log : NULL,
                            .user = engine,
                            .level = (m2_log_level)params->log_level };
    const m2_log *log_before = m2_log_bind(&engine->log);
    const m2_status status = open(params, paths, engine);
    m2_log_bind(log_before);
    if (status != M2_OK) {
        m2_engine_close(engine);
        return status;
    }
    *engine_out = engine;
    return M2_OK;
}

m2_status m2_engine_open_paths(const magi2_params *params, const m2_model_paths *paths,
                               m2_engine **engine_out)
{
    return open_engine(open_all, params, paths, engine_out);
}

m2_status m2_engine_open_bare(const magi2_params *params, m2_engine **engine_out)
{
    return open_engine(open_bare, params, NULL, engine_out);
}

m2_status m2_engine_open_plan(const magi2_params *params, int is_for_device, m2_engine **engine_out)
{
    static const m2_model_paths some_device;
    return open_engine(open_measured, params, is_for_device ? &some_device : NULL, engine_out);
}

void m2_engine_close(m2_engine *engine)
{
    if (!engine) return;
    close_networks(engine);
    m2_tokenizer_close(engine->tokenizer);
    m2_checkpoint_close(engine->text_ckpt);
    m2_checkpoint_close(engine->preview_ckpt);
    m2_checkpoint_close(engine->video_ckpt);
    m2_checkpoint_close(engine->audio_ckpt);
    if (engine->ops.device_api) m2_device_arena_destroy(&engine->ops, &engine->weights);
    m2_gpu_close(engine->gpu);
    m2_model_config_free(&engine->config);
    m2_pool_destroy(engine->pool);
    free(engine->model_dir);
    free(engine);
}
