/* clip.c - the order of the stages, written down once. */
#include "pipeline/clip.h"

#include "core/temp_file.h"
#include "pipeline/memory.h"
#include "pipeline/negative_prompt.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

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

m2_status m2_clip_interrupted(m2_clip *clip)
{
    if (clip->has_state_file)
        return m2_fail(M2_ERR_INTERRUPTED,
                       "interrupted; its state is kept: go on with --resume %s %s %s",
                       clip->state_path, clip->request->output ? "-o" : "--save",
                       clip->request->output ? clip->request->output : clip->request->save_dir);
    if (clip->request->resume)
        return m2_fail(M2_ERR_INTERRUPTED, "interrupted; %s is unchanged: give the command again",
                       clip->request->resume);
    return m2_fail(M2_ERR_INTERRUPTED,
                   "interrupted before a step was done; there was nothing to keep");
}

m2_status m2_clip_write_state(m2_clip *clip, const char *path, int n_done,
                              const m2_tensor *video_history, const m2_tensor *audio_history)
{
    const m2_ops *ops = &clip->engine->ops;
    m2_clip_state state = { .settings = clip->settings,
                            .prompt = (char *)clip->prompt,
                            .negative = (char *)clip->negative,
                            .n_done = n_done,
                            .video = clip->video,
                            .audio = clip->audio };
    const int n_history = video_history ? M2_SAMPLER_N_HISTORY : 0;
    const size_t video_bytes = m2_tensor_bytes(&clip->video);
    const size_t audio_bytes = m2_tensor_bytes(&clip->audio);
    char *memory = malloc((size_t)(1 + n_history) * (video_bytes + audio_bytes));
    if (!memory) return m2_fail(M2_ERR_MEMORY, "%s: no memory to write it", path);
    char *at = memory;
    for (int i = -1; i < n_history; i++) {
        m2_tensor *video = i < 0 ? &state.video : &state.video_history[i];
        m2_tensor *audio = i < 0 ? &state.audio : &state.audio_history[i];
        /* Histories are flat in the sampler; in the file they have the latents' shapes. */
        *video = clip->video;
        *audio = clip->audio;
        ops->download(ops, at, i < 0 ? &clip->video : &video_history[i]);
        video->data = at;
        at += video_bytes;
        ops->download(ops, at, i < 0 ? &clip->audio : &audio_history[i]);
        audio->data = at;
        at += audio_bytes;
    }
    const m2_status status = m2_state_write(path, &state);
    free(memory);
    return status;
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

/* Beside the file, or in the directory of a run that only saves. */
static m2_status pick_state_path(m2_clip *clip)
{
    const magi2_request *request = clip->request;
    const int n = request->output ? snprintf(clip->state_path, sizeof clip->state_path, "%s.state",
                                             request->output)
                                  : snprintf(clip->state_path, sizeof clip->state_path,
                                             "%s/clip.state", request->save_dir);
    if (n >= (int)sizeof clip->state_path)
        return m2_fail(M2_ERR_ARG, "the name of the output is too long");
    return M2_OK;
}

/* A file that is read must not be replaced by one that is written.  `output` is at `path`. */
static m2_status check_is_no_input(const magi2_request *request, const char *output,
                                   const char *path)
{
    const char *const inputs[] = { request->resume, request->noise };
    static const char *const names[] = { "the file to go on from or to decode", "the noise" };
    for (int i = 0; i < 2; i++)
        if (path && inputs[i] && m2_is_same_file(path, inputs[i]))
            return m2_fail(M2_ERR_ARG, "%s: %s would replace %s (%s); give the output another name",
                           path, output, names[i], inputs[i]);
    return M2_OK;
}

static m2_status probe_file(const char *path)
{
    m2_temp_file probe;
    M2_TRY(m2_temp_create(&probe, path));
    m2_temp_discard(&probe);
    return M2_OK;
}

static m2_status probe_save_dir(m2_clip *clip)
{
    static const char *const names[] = { "video_latent.safetensors",
                                         "audio_latent.safetensors",
                                         "text.safetensors",
                                         "negative_text.safetensors",
                                         "frames.safetensors",
                                         "wave.safetensors",
                                         "manifest.json" };
    M2_TRY(m2_save_open(clip->request->save_dir, &clip->save));
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        char path[4096];
        if (snprintf(path, sizeof path, "%s/%s", clip->request->save_dir, names[i]) >=
            (int)sizeof path)
            return m2_fail(M2_ERR_ARG, "the name of the directory to save to is too long");
        M2_TRY(check_is_no_input(clip->request, "an array to save", path));
        M2_TRY(probe_file(path));
    }
    return M2_OK;
}

/* The state file is replaced and, once the clip is whole, removed: only one of ours may be. */
static m2_status check_state_is_ours(const m2_clip *clip)
{
    static const char mark[] = "magi2_state";
    char head[65536];
    FILE *file = fopen(clip->state_path, "rb");
    if (!file) return M2_OK;
    const size_t n = fread(head, 1, sizeof head, file);
    fclose(file);
    if (n == 0 || memmem(head, n, mark, sizeof mark - 1)) return M2_OK;
    return m2_fail(M2_ERR_ARG,
                   "%s: is no state file of magi2, and the run would replace it; move it away or "
                   "give the output another name",
                   clip->state_path);
}

/* A file that cannot be read or written is known before the first step, not after the last. */
static m2_status check_outputs(m2_clip *clip)
{
    const magi2_request *request = clip->request;
    if (request->noise) {
        m2_checkpoint *noise = NULL;
        M2_TRY(m2_checkpoint_open(request->noise, &noise));
        m2_checkpoint_close(noise);
    }
    M2_TRY(check_is_no_input(request, "the clip", request->output));
    M2_TRY(check_is_no_input(request, "the kept latent", request->save_latent));
    /* It may be the file to go on from: that is what it is for. */
    if (request->noise && m2_is_same_file(request->noise, clip->state_path))
        return m2_fail(M2_ERR_ARG,
                       "%s: the run's state file would replace the noise (%s); give the output "
                       "another name",
                       clip->state_path, request->noise);
    if (request->output) M2_TRY(m2_clip_check_output(clip));
    if (request->save_latent) {
        if (m2_is_same_file(request->save_latent, clip->state_path) ||
            (request->output && m2_is_same_file(request->save_latent, request->output)))
            return m2_fail(M2_ERR_ARG,
                           "%s: the latents cannot be kept under the name of the clip or "
                           "of its state file; use another",
                           request->save_latent);
        M2_TRY(probe_file(request->save_latent));
    }
    if (request->save_dir) M2_TRY(probe_save_dir(clip));
    M2_TRY(check_state_is_ours(clip));
    return probe_file(clip->state_path);
}

static m2_status prepare_request(m2_clip *clip)
{
    const magi2_request *request = clip->request;
    if ((request->output && !*request->output) || (request->save_dir && !*request->save_dir) ||
        (request->save_latent && !*request->save_latent))
        return m2_fail(M2_ERR_ARG, "an output has an empty name; give it one, or leave it out");
    if (!request->output && !request->save_dir)
        return m2_fail(M2_ERR_ARG,
                       "nowhere to write; name an output file or a directory to save to");
    if (request->checkpoint_every < 0 || request->checkpoint_every > 1000)
        return m2_fail(M2_ERR_ARG, "a state file every %d steps: must be from 0 (none) to 1000",
                       request->checkpoint_every);
    if (request->resume) {
        M2_TRY(m2_state_read(request->resume, &clip->resumed));
        M2_TRY(m2_state_check_request(&clip->resumed, request));
        clip->settings = clip->resumed.settings;
        clip->prompt = clip->resumed.prompt;
        clip->negative = clip->resumed.negative;
        M2_TRY(m2_settings_check_model(&clip->settings, &clip->engine->config));
        if (request->output_width || request->output_height)
            M2_TRY(m2_settings_set_output(&clip->settings, request));
    } else {
        if (!request->prompt || !request->prompt[strspn(request->prompt, " \t\r\n\v\f")])
            return m2_fail(M2_ERR_ARG, "the prompt is empty; say what to show");
        M2_TRY(m2_settings_resolve(&clip->engine->config, request, &clip->settings));
        clip->prompt = request->prompt;
        clip->negative = request->negative;
    }
    if (!clip->settings.use_negative) clip->negative = NULL;
    return pick_state_path(clip);
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

/* Latents are on the disk before anything can go wrong with decoding them. */
static m2_status keep_latents(m2_clip *clip)
{
    const int n_steps = clip->settings.n_steps;
    if (clip->request->save_latent)
        M2_TRY(m2_clip_write_state(clip, clip->request->save_latent, n_steps, NULL, NULL));
    M2_TRY(m2_clip_write_state(clip, clip->state_path, n_steps, NULL, NULL));
    clip->has_state_file = 1;
    return M2_OK;
}

static m2_status run_stages(m2_clip *clip)
{
    const m2_clip_state *resumed = &clip->resumed;
    const int is_denoised = resumed->memory && resumed->n_done == clip->settings.n_steps;
    M2_TRY(check_outputs(clip));
    if (!is_denoised) M2_TRY(m2_clip_tokenize(clip));
    M2_TRY(m2_clip_take_memory(clip, !is_denoised));
    double before = m2_clip_now();
    if (is_denoised) {
        clip->engine->ops.upload(&clip->engine->ops, &clip->video, resumed->video.data);
        clip->engine->ops.upload(&clip->engine->ops, &clip->audio, resumed->audio.data);
        if (clip->request->save_latent)
            M2_TRY(m2_clip_write_state(clip, clip->request->save_latent, clip->settings.n_steps,
                                       NULL, NULL));
    } else {
        M2_TRY(m2_clip_encode(clip));
        clip->result.encode_seconds = m2_clip_now() - before;
        before = m2_clip_now();
        M2_TRY(m2_clip_denoise(clip));
        clip->result.preview_seconds = m2_clip_now() - before;
        M2_TRY(keep_latents(clip));
    }
    M2_TRY(save_inputs(clip));
    if (m2_clip_is_cancelled(clip)) return m2_clip_interrupted(clip);
    M2_TRY(m2_clip_decode(clip));
    /* The clip is whole: its state file has done its work. */
    if (clip->has_state_file ||
        (clip->request->resume && m2_is_same_file(clip->request->resume, clip->state_path)))
        unlink(clip->state_path);
    return M2_OK;
}

void m2_clip_free(m2_clip *clip)
{
    for (int i = 0; i < 2; i++) {
        free(clip->rendered[i]);
        free(clip->ids[i]);
    }
    m2_device_arena_destroy(&clip->engine->ops, &clip->request_arena);
    m2_device_arena_destroy(&clip->engine->ops, &clip->step_arena);
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
        status = prepare_request(clip);
        if (status == M2_OK) status = run_stages(clip);
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
    M2_TRY(check_is_no_input(&from_file, "the clip", from_file.output));
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
