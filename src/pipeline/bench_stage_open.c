/* bench_stage_open.c - the networks that `bench stage` runs: from files, or made up. */
#include "pipeline/bench_stage.h"

#include "io/checkpoint_made_up.h"
#include "model/text/encoder_weights.h"
#include "pipeline/clip.h"
#include "pipeline/memory.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define SEED 20261201u
/* Of made-up weights.  0.02 is what networks are initialised with; the sound decoder's are normalised
 * at load, and 0.5 keeps its sound and the exponents of its activations of order one. */
#define SCALE       0.02
#define SCALE_AUDIO 0.5

const char *const m2_stage_names[M2_BENCH_STAGES] = { "text", "video", "audio" };

/* ---- backend and configs ----------------------------------------------------------------------- */

static m2_status open_made_up(m2_stage_bench *bench)
{
    bench->is_made_up = 1;
    if (bench->given) {
        bench->configs = *bench->given;
        return M2_OK;
    }
    m2_text_config_init(&bench->configs.text);
    m2_turbo_config_init(&bench->configs.video);
    m2_oobleck_config_init(&bench->configs.audio);
    return M2_OK;
}

static m2_status open_model(m2_stage_bench *bench, const char *model_dir)
{
    m2_engine *engine = bench->engine;
    m2_model_paths *paths = &bench->paths;
    engine->model_dir = strdup(model_dir);
    if (!engine->model_dir) return m2_fail(M2_ERR_MEMORY, "no memory for a path");
    M2_TRY(m2_model_paths_find(model_dir, paths));
    if (paths->config[0]) M2_TRY(m2_model_config_load(&engine->config, paths->config));
    M2_TRY(m2_text_config_load(paths->text_config, &bench->configs.text));
    M2_TRY(m2_turbo_config_load(paths->video_config, &bench->configs.video));
    return m2_oobleck_config_load(paths->audio_config, &bench->configs.audio);
}

/* As `bench step`: the small model where the CPU computes and nothing else is asked for. */
m2_status m2_stage_open_engine(m2_stage_bench *bench, const magi2_params *params)
{
    const magi2_stage_bench_request *request = bench->request;
    M2_TRY(m2_engine_open_bare(params, &bench->engine));
    const int wants_small =
        m2_device_is_host(&bench->engine->ops) && !request->tier && !bench->given;
    const char *model_dir = params->model_dir;
    if (!model_dir && wants_small) model_dir = request->small_model_dir;
    return model_dir ? open_model(bench, model_dir) : open_made_up(bench);
}

/* ---- checkpoints ------------------------------------------------------------------------------- */

typedef struct maker {
    m2_checkpoint *checkpoint;
    m2_status status;
} maker;

static void add_row(void *user, const char *name, m2_dtype dtype, int n_dims, const int64_t *shape,
                    unsigned flags)
{
    maker *to = user;
    (void)flags;
    if (to->status == M2_OK)
        to->status = m2_made_up_add(to->checkpoint, name, dtype, n_dims, shape);
}

static m2_status add_all(const m2_stage_bench *bench, maker *to)
{
    const m2_stage_configs *configs = &bench->configs;
    if (bench->stage == M2_BENCH_VIDEO)
        M2_TRY(m2_turbo_describe(&configs->video, add_row, to));
    else if (bench->stage == M2_BENCH_AUDIO)
        M2_TRY(m2_oobleck_describe(&configs->audio, add_row, to));
    else
        m2_text_weights_describe(&configs->text, "model.language_model.", add_row, to);
    return to->status;
}

/* Of the host, whatever computes; before they are made. */
static m2_status check_made_up(const m2_stage_bench *bench)
{
    const m2_memory_plan plan = { .copied = bench->made_up_bytes };
    M2_TRY(m2_memory_check(&plan, bench->engine->ram_limit));
    const size_t available = m2_memory_available();
    if (!available || bench->made_up_bytes <= available) return M2_OK;
    return m2_fail(
        M2_ERR_MEMORY,
        "the made-up weights of the %s stage need %.0f MiB, %.0f MiB are free; end other "
        "programs or choose another --stage",
        m2_stage_names[bench->stage], (double)bench->made_up_bytes / 1048576.0,
        (double)available / 1048576.0);
}

m2_status m2_stage_open_checkpoint(m2_stage_bench *bench)
{
    const m2_model_paths *paths = &bench->paths;
    const char *const files[M2_BENCH_STAGES] = { paths->text, paths->video, paths->audio };
    char name[64];
    if (!bench->is_made_up) return m2_checkpoint_open(files[bench->stage], &bench->checkpoint);
    snprintf(name, sizeof name, "made-up %s network", m2_stage_names[bench->stage]);
    M2_TRY(m2_made_up_create(name, &bench->checkpoint));
    maker to = { bench->checkpoint, M2_OK };
    M2_TRY(add_all(bench, &to));
    bench->made_up_bytes = m2_made_up_bytes(bench->checkpoint);
    M2_TRY(check_made_up(bench));
    return m2_made_up_finish(bench->checkpoint,
                             bench->stage == M2_BENCH_AUDIO ? SCALE_AUDIO : SCALE, SEED);
}

/* ---- networks ---------------------------------------------------------------------------------- */

m2_status m2_stage_open_network(m2_stage_bench *bench, const m2_ops *ops, m2_arena *weights)
{
    const m2_checkpoint *checkpoint = bench->checkpoint;
    if (bench->stage == M2_BENCH_VIDEO)
        return m2_turbo_create(&bench->configs.video, checkpoint, M2_BF16, ops, weights,
                               &bench->video);
    if (bench->stage == M2_BENCH_AUDIO)
        return m2_oobleck_create(&bench->configs.audio, checkpoint, ops, weights, &bench->audio);
    m2_text_encoder_params params;
    m2_text_encoder_params_init(&params);
    return m2_text_encoder_create(checkpoint, &bench->configs.text, ops, weights, &params,
                                  &bench->text);
}

void m2_stage_close_network(m2_stage_bench *bench)
{
    m2_text_encoder_destroy(bench->text);
    m2_turbo_destroy(bench->video);
    m2_oobleck_destroy(bench->audio);
    bench->text = NULL;
    bench->video = NULL;
    bench->audio = NULL;
}

/* ---- what a run reads -------------------------------------------------------------------------- */

static m2_status make_ids(m2_stage_bench *bench)
{
    if (bench->ids) return M2_OK;
    uint64_t state = SEED;
    bench->ids = malloc((size_t)bench->n_tokens * sizeof *bench->ids);
    if (!bench->ids) return m2_fail(M2_ERR_MEMORY, "no memory for the tokens");
    for (int64_t i = 0; i < bench->n_tokens; i++) {
        state = state * 6364136223846793005u + 1442695040888963407u; /* Knuth's MMIX */
        bench->ids[i] = (int32_t)((state >> 33) % (uint64_t)bench->configs.text.vocab_size);
    }
    return M2_OK;
}

m2_status m2_stage_make_input(m2_stage_bench *bench, const m2_ops *ops, m2_arena *request)
{
    const m2_settings *s = &bench->settings;
    if (bench->stage == M2_BENCH_TEXT) {
        bench->input = m2_tensor_make(request, M2_BF16, bench->n_tokens,
                                      bench->configs.text.hidden_size); /* the features */
        return make_ids(bench);
    }
    if (bench->stage == M2_BENCH_VIDEO)
        bench->input = m2_tensor_make(request, M2_F32, s->latent_channels, s->latent_frames,
                                      s->latent_height, s->latent_width);
    else
        bench->input = m2_tensor_make(request, M2_F32, s->n_audio, bench->configs.audio.latent_dim);
    return ops->is_measuring ? M2_OK : m2_fill_normals(ops, SEED + 1, &bench->input);
}

/* ---- what it gives ----------------------------------------------------------------------------- */

m2_dtype m2_stage_output_dtype(const m2_stage_bench *bench)
{
    static const m2_dtype dtypes[M2_BENCH_STAGES] = { M2_BF16, M2_U8, M2_F32 };
    return dtypes[bench->stage];
}

static int64_t frame_height(const m2_stage_bench *bench)
{
    return (int64_t)bench->settings.latent_height * bench->configs.video.spatial_ratio;
}

static int64_t frame_width(const m2_stage_bench *bench)
{
    return (int64_t)bench->settings.latent_width * bench->configs.video.spatial_ratio;
}

static int64_t n_values(const m2_stage_bench *bench)
{
    const m2_stage_configs *configs = &bench->configs;
    const m2_settings *s = &bench->settings;
    if (bench->stage == M2_BENCH_TEXT) return bench->n_tokens * configs->text.hidden_size;
    if (bench->stage == M2_BENCH_AUDIO)
        return m2_oobleck_n_samples(&configs->audio, s->n_audio) * M2_OOBLECK_CHANNELS;
    return m2_turbo_n_frames(&configs->video, s->latent_frames) * frame_height(bench) *
           frame_width(bench) * M2_TURBO_COLOURS;
}

size_t m2_stage_output_bytes(const m2_stage_bench *bench)
{
    return (size_t)n_values(bench) * m2_dtype_bytes(m2_stage_output_dtype(bench));
}

void m2_stage_describe_work(const m2_stage_bench *bench, char *text, size_t bytes)
{
    const m2_stage_configs *configs = &bench->configs;
    const m2_settings *s = &bench->settings;
    if (bench->stage == M2_BENCH_TEXT)
        snprintf(text, bytes, "%lld tokens to features, %d layers", (long long)bench->n_tokens,
                 m2_text_layers_needed(&configs->text, 0));
    else if (bench->stage == M2_BENCH_VIDEO)
        snprintf(text, bytes, "%d latents to %lld frames of %lldx%lld in %lld windows",
                 s->latent_frames, (long long)m2_turbo_n_frames(&configs->video, s->latent_frames),
                 (long long)frame_width(bench), (long long)frame_height(bench),
                 (long long)m2_turbo_n_windows(&configs->video, s->latent_frames));
    else
        snprintf(text, bytes, "%d latents to %lld samples", s->n_audio,
                 (long long)m2_oobleck_n_samples(&configs->audio, s->n_audio));
}

/* ---- one run ----------------------------------------------------------------------------------- */

/* Copying is left out of the stage's time: the clock of the copy starts where the device is done. */
static m2_status copy_output(m2_stage_bench *bench, const m2_tensor *output)
{
    const m2_ops *ops = &bench->engine->ops;
    M2_TRY(m2_device_wait(ops));
    if (!bench->is_copying) return M2_OK;
    const double begin = m2_clip_now();
    ops->download(ops, bench->host + bench->n_host, output);
    M2_TRY(m2_device_wait(ops));
    bench->n_host += m2_tensor_bytes(output);
    bench->copy_seconds += m2_clip_now() - begin;
    return M2_OK;
}

static m2_status check_cancel(void *user)
{
    const m2_stage_bench *bench = user;
    if (!bench->request->cancel || !*bench->request->cancel) return M2_OK;
    return m2_fail(M2_ERR_INTERRUPTED, "interrupted; nothing was kept");
}

static m2_status emit_frames(void *user, int64_t first_frame, const m2_tensor *frames)
{
    (void)first_frame; /* windows come in order */
    return copy_output(user, frames);
}

static m2_status go_on(void *user, int idx, const m2_tensor *hidden)
{
    (void)idx;
    (void)hidden;
    return check_cancel(user);
}

m2_status m2_stage_run(m2_stage_bench *bench, const m2_ops *ops, m2_arena *step)
{
    m2_tensor wave;
    M2_TRY(check_cancel(bench));
    m2_arena_reset(step);
    bench->n_host = 0;
    bench->copy_seconds = 0;
    if (bench->stage == M2_BENCH_VIDEO) {
        const m2_turbo_sink sink = { .emit = emit_frames, .check = check_cancel, .user = bench };
        return m2_turbo_decode(bench->video, ops, step, &bench->input, M2_U8, &sink);
    }
    if (bench->stage == M2_BENCH_AUDIO)
        M2_TRY(
            m2_oobleck_decode(bench->audio, ops, step, &bench->input, check_cancel, bench, &wave));
    else
        M2_TRY(m2_text_encoder_run(bench->text, ops, step, bench->ids, bench->n_tokens,
                                   &bench->input, go_on, bench));
    if (ops->is_measuring) return M2_OK;
    return copy_output(bench, bench->stage == M2_BENCH_AUDIO ? &wave : &bench->input);
}
