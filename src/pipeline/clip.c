/* clip.c - the order of the stages, written down once. */
#include "pipeline/clip.h"

#include "pipeline/memory.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

double m2_clip_now(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

void m2_clip_report(m2_clip *clip, magi2_stage stage, int step, int n_steps)
{
    if (!clip->request->progress) return;
    if (stage != MAGI2_STAGE_PREVIEW) {
        clip->progress.sigma = 0;
        clip->progress.step_seconds = 0;
    }
    clip->progress.stage = stage;
    clip->progress.step = step;
    clip->progress.n_steps = n_steps;
    clip->progress.seconds = m2_clip_now() - clip->begin;
    clip->progress.memory_bytes = m2_memory_resident();
    clip->request->progress(clip->request->progress_user, &clip->progress);
}

int m2_clip_is_cancelled(const m2_clip *clip)
{
    return clip->request->cancel && *clip->request->cancel;
}

void m2_clip_request_init(magi2_request *request)
{
    *request = (magi2_request){
        .seed = MAGI2_SEED_DEFAULT,
        .noise_sms = 132,
        .noise_threads = 2048,
        .n_steps = MAGI2_DEFAULT,
        .shift = MAGI2_DEFAULT,
        .guidance_video = MAGI2_DEFAULT,
        .guidance_audio = MAGI2_DEFAULT,
        .guidance_rescale = MAGI2_DEFAULT,
        .guidance_trick = MAGI2_DEFAULT,
        .guidance_dynamic = MAGI2_DEFAULT,
        .guidance_skim = MAGI2_DEFAULT,
        .use_negative = 1,
    };
}

/* ---- a clip from a request ---- */

void m2_clip_layout(m2_clip *clip, m2_arena *arena, int with_features)
{
    const m2_settings *s = &clip->settings;
    const int width = m2_text_encoder_config(clip->engine->text)->hidden_size;
    clip->video = m2_tensor_make(arena, M2_F32, s->latent_channels, s->latent_frames,
                                 s->latent_height, s->latent_width);
    clip->audio = m2_tensor_make(arena, M2_F32, s->n_audio, s->audio_channels);
    for (int i = 0; with_features && i < 2; i++)
        clip->features[i] = m2_tensor_make(arena, M2_BF16, clip->n_ids[i], width);
}

m2_status m2_clip_plan(m2_clip *clip, int with_denoise, size_t *request_bytes, size_t *step_bytes)
{
    m2_ops measure;
    m2_arena request, step;
    m2_ops_init_measure(&measure);
    measure.device_api = clip->engine->ops.device_api;
    m2_arena_init_measuring(&request, "request");
    m2_arena_init_measuring(&step, "step");
    m2_clip_layout(clip, &request, with_denoise);
    if (with_denoise) {
        for (int i = 0; i < 2; i++) {
            if (clip->n_ids[i] > 0)
                M2_TRY(m2_text_encoder_run(clip->engine->text, &measure, &step, NULL,
                                           clip->n_ids[i], &clip->features[i], NULL, NULL));
            m2_arena_reset(&step);
        }
        M2_TRY(m2_clip_plan_denoise(clip, &measure, &request, &step));
    }
    M2_TRY(m2_clip_plan_decode(clip, &measure, &step));
    *request_bytes = request.peak;
    *step_bytes = step.peak;
    return M2_OK;
}

m2_status m2_clip_take_memory(m2_clip *clip, int with_denoise)
{
    size_t request_bytes, step_bytes;
    M2_TRY(m2_clip_plan(clip, with_denoise, &request_bytes, &step_bytes));
    m2_debug("pipeline",
             "plan: request %.1f MiB, step %.1f MiB, weights %.1f MiB beside the mapped ones",
             (double)request_bytes / 1048576.0, (double)step_bytes / 1048576.0,
             (double)clip->engine->weights.used / 1048576.0);
    const m2_ops *ops = &clip->engine->ops;
    if (m2_device_is_host(ops)) {
        const m2_memory_plan plan = { .mapped = clip->engine->mapped_bytes,
                                      .copied = clip->engine->weights.used,
                                      .wanted = request_bytes + step_bytes };
        M2_TRY(m2_memory_check(&plan, clip->engine->ram_limit));
    }
    M2_TRY(m2_device_arena_create(ops, &clip->request_arena, "request", request_bytes));
    M2_TRY(m2_device_arena_create(ops, &clip->step_arena, "step", step_bytes));
    m2_clip_layout(clip, &clip->request_arena, with_denoise);
    return M2_OK;
}

/* What needs the model: all else was looked at before it was loaded. */
static m2_status resolve_settings(m2_clip *clip)
{
    const magi2_request *request = clip->request;
    if (!request->resume)
        M2_TRY(m2_settings_resolve(&clip->engine->config, request, &clip->settings));
    else
        M2_TRY(m2_settings_check_model(&clip->settings, &clip->engine->config));
    if (request->resume && (request->output_width || request->output_height))
        M2_TRY(m2_settings_set_output(&clip->settings, request));
    if (!clip->settings.use_negative) clip->negative = NULL;
    return M2_OK;
}

static m2_status save_tensor(m2_clip *clip, const char *name, const m2_tensor *tensor)
{
    m2_tensor host;
    void *copy = NULL;
    M2_TRY(m2_device_fetch(&clip->engine->ops, tensor, &host, &copy));
    const m2_status status = m2_save_array(clip->save, name, &host);
    free(copy);
    return status;
}

static m2_status save_inputs(m2_clip *clip)
{
    if (!clip->save) return M2_OK;
    M2_TRY(save_tensor(clip, "video_latent", &clip->video));
    M2_TRY(save_tensor(clip, "audio_latent", &clip->audio));
    if (clip->features[0].data) M2_TRY(save_tensor(clip, "text", &clip->features[0]));
    if (clip->features[1].data) M2_TRY(save_tensor(clip, "negative_text", &clip->features[1]));
    return M2_OK;
}

/* Latents are on the disk before anything can go wrong with decoding them, or with the place that they
 * are wanted in. */
static m2_status make_latents(m2_clip *clip)
{
    const double before = m2_clip_now();
    M2_TRY(m2_clip_encode(clip));
    const double encoded = m2_clip_now();
    clip->result.encode_seconds = encoded - before;
    M2_TRY(m2_clip_denoise(clip));
    clip->result.preview_seconds = m2_clip_now() - encoded;
    M2_TRY(m2_clip_keep_state(clip, clip->settings.n_steps, NULL, NULL));
    return m2_clip_save_latent(clip);
}

static m2_status run_stages(m2_clip *clip)
{
    const int is_denoised = m2_clip_is_denoised(clip);
    M2_TRY(m2_clip_check_outputs(clip));
    if (!is_denoised) M2_TRY(m2_clip_tokenize(clip));
    M2_TRY(m2_clip_take_memory(clip, !is_denoised));
    if (is_denoised) {
        clip->engine->ops.upload(&clip->engine->ops, &clip->video, clip->resumed.video.data);
        clip->engine->ops.upload(&clip->engine->ops, &clip->audio, clip->resumed.audio.data);
        M2_TRY(m2_clip_save_latent(clip));
    } else {
        M2_TRY(make_latents(clip));
    }
    M2_TRY(save_inputs(clip));
    if (m2_clip_is_cancelled(clip)) return m2_clip_interrupted(clip);
    M2_TRY(m2_clip_decode(clip));
    /* The clip is whole: its state file has done its work. */
    m2_clip_drop_state(clip);
    return M2_OK;
}

void m2_clip_free(m2_clip *clip)
{
    for (int i = 0; i < 2; i++) {
        free(clip->rendered[i]);
        free(clip->ids[i]);
    }
    if (clip->engine) {
        m2_device_arena_destroy(&clip->engine->ops, &clip->request_arena);
        m2_device_arena_destroy(&clip->engine->ops, &clip->step_arena);
    }
    m2_state_free(&clip->resumed);
    m2_save_close(clip->save);
}

static m2_status run_clip(m2_engine *engine, const magi2_request *request, magi2_result *result_out)
{
    const m2_log *log_before = m2_log_bind(&engine->log);
    m2_clip *clip = calloc(1, sizeof *clip);
    m2_status status = clip ? M2_OK : m2_fail(M2_ERR_MEMORY, "no memory for a clip");
    /* A device belongs to the thread that works on it: the caller's may be another than at open. */
    if (status == M2_OK) status = m2_device_wait(&engine->ops);
    if (status == M2_OK) {
        clip->engine = engine;
        clip->request = request;
        clip->begin = m2_clip_now();
        status = m2_clip_look_at_files(clip);
        if (status == M2_OK) status = resolve_settings(clip);
        if (status == M2_OK) status = m2_clip_tell_state(clip, run_stages(clip));
        if (status == M2_OK) {
            clip->result.seed = clip->settings.seed;
            clip->result.n_steps = clip->settings.n_steps;
            clip->result.n_tokens = (int)clip->n_ids[0];
            clip->result.n_negative_tokens = (int)clip->n_ids[1];
            clip->result.n_tokens_cut = (int)clip->n_cut;
            clip->result.total_seconds = m2_clip_now() - clip->begin;
            clip->result.peak_memory_bytes = m2_memory_peak();
            m2_clip_report(clip, MAGI2_STAGE_DONE, 0, 0);
            if (result_out) *result_out = clip->result;
        }
        m2_clip_free(clip);
    }
    free(clip);
    m2_log_bind(log_before);
    return status;
}

m2_status m2_clip_check_request(const magi2_request *request)
{
    m2_clip *clip = calloc(1, sizeof *clip);
    if (!clip) return m2_fail(M2_ERR_MEMORY, "no memory for a clip");
    clip->request = request;
    const m2_status status = m2_clip_look_at_files(clip);
    m2_clip_free(clip);
    free(clip);
    return status;
}

m2_status m2_clip_generate(m2_engine *engine, const magi2_request *request, magi2_result *result)
{
    return run_clip(engine, request, result);
}

m2_status m2_clip_decode_file(m2_engine *engine, const char *path, const magi2_request *request,
                              magi2_result *result)
{
    /* Only what decode's own comment names; all else comes from the file. */
    magi2_request from_file;
    m2_clip_request_init(&from_file);
    from_file.resume = path;
    from_file.output = request->output;
    from_file.output_width = request->output_width;
    from_file.output_height = request->output_height;
    from_file.video_encoder = request->video_encoder;
    from_file.save_dir = request->save_dir;
    from_file.progress = request->progress;
    from_file.progress_user = request->progress_user;
    from_file.cancel = request->cancel;
    m2_clip_state state;
    M2_TRY(m2_clip_check_is_no_input(&from_file, "the clip", from_file.output));
    M2_TRY(m2_state_read(path, &state));
    const int n_left = state.settings.n_steps - state.n_done;
    m2_state_free(&state);
    if (n_left > 0)
        return m2_fail(M2_ERR_ARG,
                       "%s: %d steps are left; go on with `magi2 generate --resume %s %s %s`", path,
                       n_left, path, request->output ? "-o" : "--save",
                       request->output     ? request->output
                       : request->save_dir ? request->save_dir
                                           : "DIR");
    return run_clip(engine, &from_file, result);
}
