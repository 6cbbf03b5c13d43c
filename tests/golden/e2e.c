#include "e2e.h"
#include "recorded_errors.h"

#include "media/resample.h"
#include "model/text/prompt.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

m2_engine *e2e_engine(golden_run *run, const m2_model_paths *paths)
{
    const int is_host = m2_device_is_host(golden_ops(run));
    magi2_params params = { .model_dir = "golden",
                            .backend = golden_engine_backend(run),
                            .isa = is_host ? golden_ops(run)->isa : NULL,
                            .n_threads = m2_pool_n_threads(golden_pool(run)) };
    m2_engine *engine = NULL;
    if (m2_engine_open_paths(&params, paths, &engine) != M2_OK) {
        golden_result(run, 0, paths->preview, "%s", m2_last_error());
        return NULL;
    }
    return engine;
}

/* ---- the engine's device ---- */

static void init_measure(const m2_engine *engine, m2_ops *measure)
{
    m2_ops_init_measure(measure);
    measure->device_api = engine->ops.device_api;
}

m2_tensor e2e_fetch(golden_run *run, const m2_engine *engine, const m2_tensor *tensor)
{
    m2_tensor copy = *tensor;
    if (m2_device_is_host(&engine->ops)) return copy;
    copy.data = golden_alloc(run, m2_tensor_bytes(tensor));
    engine->ops.download(&engine->ops, copy.data, tensor);
    if (m2_device_wait(&engine->ops) != M2_OK)
        golden_result(run, 0, "device", "%s", m2_last_error());
    return copy;
}

/* An arena of the engine's device with `bytes` behind `tensor`, which is moved there. */
static m2_status step_arena(const m2_engine *engine, m2_arena *arena, size_t bytes,
                            m2_tensor *tensor)
{
    if (m2_device_is_host(&engine->ops)) return m2_arena_create(arena, "step", bytes);
    const void *host = tensor->data;
    M2_TRY(m2_device_arena_create(&engine->ops, arena, "step",
                                  bytes + m2_tensor_bytes(tensor) + M2_ARENA_ALIGN));
    *tensor = m2_tensor_new(arena, tensor->dtype, tensor->n_dims, tensor->shape);
    engine->ops.upload(&engine->ops, tensor, host);
    return M2_OK;
}

/* ---- one denoising run ---- */

static int wants_all(void *user, const char *name)
{
    (void)user;
    return strncmp(name, "step", 4) == 0;
}

/* 3 behind the first step: a run with free choices of experts drifts as the reference does. */
static double factor_of(const e2e_case *it, const char *name)
{
    return strncmp(name, "step0.", 6) == 0 ? 2 : it->later_factor;
}

/* Differences between two runs of one clip have long tails, as experts are chosen discontinuously: the
 * largest is up to 24 times the root mean square of the others (measured).  Damaged values stand out. */
#define OUTLIER_RATIO_MAX 30
#define OUTLIER_ROUNDING  1e-3
#define COSINE_MIN        0.99

static double largest_ratio(const float *a, const double *b, int64_t n, double *largest_out)
{
    double largest = 0, squares = 0;
    for (int64_t i = 0; i < n; i++) {
        const double difference = fabs((double)a[i] - b[i]);
        if (!isfinite(difference)) return *largest_out = INFINITY;
        largest = fmax(largest, difference);
        squares += difference * difference;
    }
    const double others = sqrt(fmax(0, squares - largest * largest) / (double)n);
    *largest_out = largest;
    return others > 0 ? largest / others : INFINITY;
}

/* No value of `a` lies far from `b` alone. */
static void check_outliers(e2e_case *it, const char *what, const float *a, const double *b,
                           int64_t n)
{
    double largest;
    const double ratio = largest_ratio(a, b, n, &largest);
    if (!(ratio <= OUTLIER_RATIO_MAX || largest <= OUTLIER_ROUNDING))
        golden_result(it->run, 0, golden_format(it->run, "%s %s", it->name, what),
                      "one value is off by %.3e, %.0f times the others (%d at most)", largest,
                      ratio, OUTLIER_RATIO_MAX);
}

/* The recorded value itself: its error is that of the report, and no value of it stands out. */
static void check_recorded(e2e_case *it, const char *name, const char *truth)
{
    int step = 0;
    char latent[16] = "", end = 0;
    if (sscanf(name, "step%d.%15[a-z]%c", &step, latent, &end) == 2)
        recorded_errors_check(it->run, it->report, it->file, it->name,
                              golden_format(it->run, "step %d %s latent", step, latent), name,
                              truth);
    const m2_tensor reference = golden_tensor(it->file, name, M2_F32);
    const m2_tensor exact = golden_tensor(it->file, truth, M2_F64);
    const int64_t n = m2_tensor_count(&exact);
    if (reference.data && exact.data && m2_tensor_count(&reference) == n)
        check_outliers(it, golden_format(it->run, "%s as recorded", name), reference.data,
                       exact.data, n);
}

static void judge_step(void *user, const char *name, m2_tensor *shown)
{
    e2e_case *it = user;
    const char *truth = golden_format(it->run, "%s.truth", name);
    if (!golden_has(it->file, name)) return;
    const m2_tensor copy = e2e_fetch(it->run, it->engine, shown), *tensor = &copy;
    if (golden_has(it->file, truth)) {
        golden_judge(it->file, name, tensor, name, truth, factor_of(it, name));
        check_recorded(it, name, truth);
        return;
    }
    /* Without a truth there is no error to compare with; the runs must still be one clip. */
    const m2_tensor reference = golden_tensor(it->file, name, M2_F64);
    const int64_t n = m2_tensor_count(tensor);
    const char *verdict = golden_format(it->run, "%s %s", it->name, name);
    if (!reference.data || m2_tensor_count(&reference) != n) {
        golden_result(it->run, 0, verdict, "another number of values than recorded");
        return;
    }
    const float *a = tensor->data;
    const double *b = reference.data;
    double ab = 0, aa = 0, bb = 0;
    for (int64_t i = 0; i < n; i++) {
        ab += (double)a[i] * b[i];
        aa += (double)a[i] * a[i];
        bb += b[i] * b[i];
    }
    const double cosine = ab / sqrt(aa * bb);
    golden_result(it->run, cosine > COSINE_MIN, verdict,
                  "cosine with the reference %.5f (above %g)", cosine, COSINE_MIN);
    check_outliers(it, name, a, b, n);
}

static void settings_of_noise(e2e_case *it, const m2_ckpt_tensor *video,
                              const m2_ckpt_tensor *audio, int n_steps)
{
    const m2_eval_config *eval = &it->engine->config.eval;
    it->clip.settings = (m2_settings){
        .tier = "golden",
        .latent_channels = (int)video->shape[1],
        .latent_frames = (int)video->shape[2],
        .latent_height = (int)video->shape[3],
        .latent_width = (int)video->shape[4],
        .height = (int)video->shape[3] * 16,
        .width = (int)video->shape[4] * 16,
        .n_audio = (int)audio->shape[1],
        .audio_channels = (int)audio->shape[2],
        .n_steps = n_steps,
        .shift = eval->shift,
        .guidance_video = eval->video_guidance,
        .guidance_audio = eval->audio_guidance,
        .use_negative = 1,
    };
}

int e2e_begin(e2e_case *it, const m2_tensor *text, const m2_tensor *null_text, int n_steps)
{
    const m2_ckpt_tensor *video = golden_take(it->file, "noise.video");
    const m2_ckpt_tensor *audio = golden_take(it->file, "noise.audio");
    if (!video || !audio || video->n_dims != 5 || audio->n_dims != 3) {
        golden_result(it->run, 0, it->path, "no noise.video and noise.audio of a batch of one");
        return 0;
    }
    memset(&it->clip, 0, sizeof it->clip);
    m2_clip_request_init(&it->request);
    it->request.noise = it->path;
    it->clip.engine = it->engine;
    it->clip.request = &it->request;
    it->trace = (m2_trace){ .wants = wants_all, .show = judge_step, .user = it };
    it->clip.trace = &it->trace;
    settings_of_noise(it, video, audio, n_steps);
    it->clip.n_ids[0] = text->shape[0];
    it->clip.n_ids[1] = null_text->data ? null_text->shape[0] : 0;
    if (m2_clip_take_memory(&it->clip, 1) != M2_OK) {
        golden_result(it->run, 0, it->path, "%s", m2_last_error());
        return 0;
    }
    const m2_ops *ops = &it->engine->ops;
    ops->upload(ops, &it->clip.features[0], text->data);
    if (null_text->data) ops->upload(ops, &it->clip.features[1], null_text->data);
    return 1;
}

void e2e_denoise(e2e_case *it)
{
    if (m2_clip_denoise(&it->clip) != M2_OK)
        golden_result(it->run, 0, it->path, "%s", m2_last_error());
}

void e2e_end(e2e_case *it)
{
    m2_clip_free(&it->clip);
}

/* ---- parts ---- */

typedef struct frame_sink {
    golden_run *run;
    const m2_engine *engine;
    char *to;
    size_t frame_bytes;
} frame_sink;

static m2_status keep_frames(void *user, int64_t first_frame, const m2_tensor *frames)
{
    frame_sink *sink = user;
    const m2_tensor copy = e2e_fetch(sink->run, sink->engine, frames);
    memcpy(sink->to + (size_t)first_frame * sink->frame_bytes, copy.data, m2_tensor_bytes(&copy));
    return M2_OK;
}

m2_tensor e2e_frames(golden_run *run, const m2_engine *engine, const m2_model_paths *paths,
                     const m2_tensor *video, m2_dtype dtype, m2_dtype frames_dtype)
{
    const m2_ops *ops = &engine->ops;
    m2_tensor latent = *video;
    if (latent.n_dims == 5) {
        latent.n_dims = 4;
        memmove(latent.shape, latent.shape + 1, 4 * sizeof latent.shape[0]);
    }
    m2_checkpoint *checkpoint = NULL;
    m2_turbo *turbo = NULL;
    m2_arena weights = { 0 }, step = { 0 }, measuring;
    m2_ops measure;
    init_measure(engine, &measure);
    const int64_t n = m2_turbo_n_frames(&engine->video_config, latent.shape[1]);
    const int64_t height = latent.shape[2] * engine->video_config.spatial_ratio;
    const int64_t width = latent.shape[3] * engine->video_config.spatial_ratio;
    m2_tensor frames = m2_tensor_over(NULL, frames_dtype, n, height, width, 3);
    frames.data = golden_alloc(run, m2_tensor_bytes(&frames));
    frame_sink to = { run, engine, frames.data,
                      (size_t)(height * width * 3) * m2_dtype_bytes(frames_dtype) };
    const m2_turbo_sink sink = { .emit = keep_frames, .user = &to };
    m2_status status = m2_checkpoint_open(paths->video, &checkpoint);
    if (status == M2_OK) status = m2_device_arena_create(ops, &weights, "weights", (size_t)1 << 30);
    if (status == M2_OK)
        status = m2_turbo_create(&engine->video_config, checkpoint, dtype, ops, &weights, &turbo);
    m2_arena_init_measuring(&measuring, "step");
    if (status == M2_OK)
        status = m2_turbo_decode(turbo, &measure, &measuring, &latent, frames_dtype, &sink);
    if (status == M2_OK) status = step_arena(engine, &step, measuring.peak, &latent);
    if (status == M2_OK) status = m2_turbo_decode(turbo, ops, &step, &latent, frames_dtype, &sink);
    if (status != M2_OK) {
        golden_result(run, 0, paths->video, "%s", m2_last_error());
        frames.data = NULL;
    }
    m2_turbo_destroy(turbo);
    m2_checkpoint_close(checkpoint);
    m2_device_arena_destroy(ops, &weights);
    m2_device_arena_destroy(ops, &step);
    return frames;
}

m2_tensor e2e_sound(golden_run *run, const m2_engine *engine, const m2_tensor *audio)
{
    m2_tensor latent = *audio;
    if (latent.n_dims == 3)
        latent = m2_tensor_over(audio->data, M2_F32, audio->shape[1], audio->shape[2]);
    m2_arena step = { 0 }, measuring;
    m2_ops measure;
    init_measure(engine, &measure);
    m2_arena_init_measuring(&measuring, "step");
    m2_tensor wave, sound = m2_tensor_over(NULL, M2_F32, 0, 2);
    m2_status status =
        m2_oobleck_decode(engine->audio, &measure, &measuring, &latent, NULL, NULL, &wave);
    if (status == M2_OK) status = step_arena(engine, &step, measuring.peak, &latent);
    if (status == M2_OK)
        status = m2_oobleck_decode(engine->audio, &engine->ops, &step, &latent, NULL, NULL, &wave);
    if (status == M2_OK) {
        wave = e2e_fetch(run, engine, &wave);
        sound.shape[0] = m2_resample_length(wave.shape[0]);
        sound.data = golden_alloc(run, m2_tensor_bytes(&sound));
        status = m2_resample_stereo(wave.data, wave.shape[0], sound.data, sound.shape[0]);
    }
    if (status != M2_OK) {
        golden_result(run, 0, "sound", "%s", m2_last_error());
        sound.data = NULL;
    }
    m2_device_arena_destroy(&engine->ops, &step);
    return sound;
}

static m2_status encode(golden_run *run, const m2_engine *engine, const m2_text_encoder *encoder,
                        const char *prompt, m2_dtype dtype, m2_tensor *features)
{
    char *rendered = NULL;
    m2_tokens tokens;
    size_t bytes;
    M2_TRY(m2_prompt_normalise(prompt, strlen(prompt), &rendered, &bytes));
    m2_status status = m2_tokenizer_encode(engine->tokenizer, rendered, bytes, NULL, &tokens);
    free(rendered);
    M2_TRY(status);
    *features = m2_tensor_over(NULL, dtype, tokens.n, m2_text_encoder_config(encoder)->hidden_size);
    features->data = golden_alloc(run, m2_tensor_bytes(features));
    m2_tensor placed = *features;
    m2_arena step = { 0 }, measuring;
    m2_ops measure;
    init_measure(engine, &measure);
    m2_arena_init_measuring(&measuring, "step");
    status =
        m2_text_encoder_run(encoder, &measure, &measuring, NULL, tokens.n, features, NULL, NULL);
    if (status == M2_OK) status = step_arena(engine, &step, measuring.peak, &placed);
    if (status == M2_OK)
        status = m2_text_encoder_run(encoder, &engine->ops, &step, tokens.id, tokens.n, &placed,
                                     NULL, NULL);
    if (status == M2_OK) *features = e2e_fetch(run, engine, &placed);
    m2_device_arena_destroy(&engine->ops, &step);
    m2_tokens_free(&tokens);
    return status;
}

m2_tensor e2e_features(golden_run *run, const m2_engine *engine, const m2_model_paths *paths,
                       const char *prompt, m2_dtype dtype)
{
    m2_tensor features = { 0 };
    m2_text_config config;
    m2_text_encoder_params params;
    m2_text_encoder *encoder = NULL;
    m2_arena weights = { 0 };
    m2_text_encoder_params_init(&params);
    params.dtype = dtype;
    m2_status status = m2_text_config_load(paths->text_config, &config);
    if (status == M2_OK)
        status = m2_device_arena_create(&engine->ops, &weights, "weights", (size_t)1 << 30);
    if (status == M2_OK)
        status = m2_text_encoder_create(engine->text_ckpt, &config, &engine->ops, &weights, &params,
                                        &encoder);
    if (status == M2_OK) status = encode(run, engine, encoder, prompt, dtype, &features);
    if (status != M2_OK) {
        golden_result(run, 0, paths->text, "%s", m2_last_error());
        features.data = NULL;
    }
    m2_text_encoder_destroy(encoder);
    m2_device_arena_destroy(&engine->ops, &weights);
    return features;
}
