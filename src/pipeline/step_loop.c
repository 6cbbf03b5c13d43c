#include "pipeline/step_loop.h"

#include "core/log.h"
#include "sample/schedule.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { STATE_VIDEO_FLAG, STATE_AUDIO_FLAG, STATE_DONE, STATE_COUNT };

/* A look at the mailbox costs nothing; asking the device itself is for when it has long been silent,
 * which is how a fault of it is found. */
#define LOOK_NANOSECONDS 50000
#define SILENCE_SECONDS  5.0

static m2_guidance_params guidance_params(const m2_settings *s)
{
    m2_guidance_params params;
    m2_guidance_params_init(&params);
    params.video_scale = (float)s->guidance_video;
    params.audio_scale = (float)s->guidance_audio;
    params.use_trick = s->use_trick;
    params.trick_n_frames = s->trick_frames;
    params.trick_scale = (float)s->trick_value;
    params.use_dynamic = s->use_dynamic;
    params.dynamic_timestep = s->dynamic_start;
    params.dynamic_scale_max = (float)s->dynamic_cutoff;
    params.use_skimmed = s->use_skim;
    params.skimmed_scale = (float)s->skim_scale;
    params.rescale = (float)s->guidance_rescale;
    return params;
}

/* What both the guidance and the transformer look up by the counter. */
static m2_status prepare_tables(m2_step_loop *loop, m2_arena *request)
{
    const m2_settings *s = loop->params.settings;
    const m2_guidance_params params = guidance_params(s);
    const size_t n = (size_t)s->n_steps;
    int *timesteps = malloc(m2_arena_array_bytes(n, sizeof *timesteps));
    float *tau = malloc(m2_arena_array_bytes(n, sizeof *tau));
    m2_status status = M2_OK;
    if (timesteps && tau) {
        m2_schedule_timesteps(s->n_steps, s->shift, timesteps);
        for (size_t i = 0; i < n; i++) tau[i] = m2_preview_tau(timesteps[i]);
        loop->tau = m2_tensor_make(request, M2_F32, s->n_steps);
        loop->ops->upload(loop->ops, &loop->tau, tau);
        m2_guidance_run run = { .modality = M2_LATENT_VIDEO,
                                .n_frames = s->latent_frames,
                                .n_steps = s->n_steps,
                                .timesteps = timesteps,
                                .step = &loop->counter };
        status = m2_guidance_init(&loop->video_guidance, request, loop->ops, &params, &run);
        run.modality = M2_LATENT_AUDIO;
        run.n_frames = s->n_audio;
        if (status == M2_OK)
            status = m2_guidance_init(&loop->audio_guidance, request, loop->ops, &params, &run);
    } else {
        status = m2_fail(M2_ERR_MEMORY, "no memory for the timesteps of %d steps", s->n_steps);
    }
    free(timesteps);
    free(tau);
    return status;
}

/* Branch `idx` of a velocity, without the branch axis. */
static m2_tensor branch(const m2_tensor *velocity, int idx)
{
    m2_tensor rows = m2_tensor_rows(velocity, idx, idx + 1);
    rows.n_dims--;
    memmove(rows.shape, rows.shape + 1, (size_t)rows.n_dims * sizeof rows.shape[0]);
    return rows;
}

static void guide_and_step(const m2_step_loop *loop, const char *name, const m2_guidance *guidance,
                           m2_sampler *sampler, int n_done, const m2_tensor *velocity,
                           m2_tensor *latent)
{
    const m2_trace *trace = loop->params.trace;
    const m2_tensor cond = branch(velocity, 0);
    m2_tensor uncond = branch(velocity, 1);
    m2_guidance_apply(guidance, latent, &cond, &uncond, &uncond);
    m2_tap(trace, &uncond, "step%d.velocity.%s", n_done, name);
    m2_sampler_step(sampler, latent, &uncond);
    m2_tap(trace, latent, "step%d.%s", n_done, name);
}

/* The operators of a step; `n_done` is for the names of taps alone. */
static void run_step(m2_step_loop *loop, int n_done)
{
    const m2_ops *ops = loop->ops;
    const m2_step_loop_params *p = &loop->params;
    m2_tensor video_flag = m2_tensor_rows(&loop->state, STATE_VIDEO_FLAG, STATE_VIDEO_FLAG + 1);
    m2_tensor audio_flag = m2_tensor_rows(&loop->state, STATE_AUDIO_FLAG, STATE_AUDIO_FLAG + 1);
    const m2_preview_step step = { .video = p->video,
                                   .audio = p->audio,
                                   .tau = &loop->tau,
                                   .counter = &loop->counter,
                                   .video_out = &loop->video_velocity,
                                   .audio_out = &loop->audio_velocity };
    m2_arena_reset(loop->step_arena);
    m2_preview_forward(p->preview, ops, loop->step_arena, &loop->request, &step, NULL);
    ops->find_nonfinite(
        ops, &(m2_find_nonfinite_args){ .x = &loop->video_velocity, .flag = &video_flag });
    ops->find_nonfinite(
        ops, &(m2_find_nonfinite_args){ .x = &loop->audio_velocity, .flag = &audio_flag });
    guide_and_step(loop, "video", &loop->video_guidance, &loop->video_sampler, n_done,
                   &loop->video_velocity, p->video);
    guide_and_step(loop, "audio", &loop->audio_guidance, &loop->audio_sampler, n_done,
                   &loop->audio_velocity, p->audio);
    ops->advance(ops, &(m2_advance_args){ .counter = &loop->counter });
}

m2_status m2_step_loop_prepare(m2_step_loop *loop, const m2_ops *ops, m2_arena *request,
                               m2_arena *step_arena, const m2_step_loop_params *params)
{
    const m2_settings *s = params->settings;
    *loop = (m2_step_loop){ .params = *params, .ops = ops, .step_arena = step_arena };
    M2_TRY(m2_preview_prepare(params->preview, ops, request, step_arena, &params->shape,
                              &params->conditions, NULL, &loop->request));
    loop->params.conditions = (m2_preview_conditions){ 0 };
    loop->state = m2_tensor_make(request, M2_I32, STATE_COUNT);
    loop->counter = m2_tensor_rows(&loop->state, STATE_DONE, STATE_DONE + 1);
    const m2_sampler_params video = { m2_tensor_count(params->video), s->n_steps, s->shift,
                                      &loop->counter };
    const m2_sampler_params audio = { m2_tensor_count(params->audio), s->n_steps, s->shift,
                                      &loop->counter };
    M2_TRY(m2_sampler_init(&loop->video_sampler, request, ops, &video));
    M2_TRY(m2_sampler_init(&loop->audio_sampler, request, ops, &audio));
    M2_TRY(prepare_tables(loop, request));
    loop->video_velocity = m2_tensor_make(request, M2_F32, M2_BRANCHES, s->latent_channels,
                                          s->latent_frames, s->latent_height, s->latent_width);
    loop->audio_velocity =
        m2_tensor_make(request, M2_F32, M2_BRANCHES, s->n_audio, s->audio_channels);
    if (ops->is_measuring) {
        loop->params.trace = NULL;
        run_step(loop, 0);
    }
    return M2_OK;
}

m2_status m2_step_loop_start(m2_step_loop *loop, int n_done)
{
    const m2_device_api *device = loop->ops->device_api;
    const int32_t state[STATE_COUNT] = { [STATE_DONE] = n_done };
    void *mailbox = NULL;
    M2_TRY(device->mailbox_create(loop->ops, sizeof state, &mailbox));
    loop->mailbox = mailbox;
    loop->ops->upload(loop->ops, &loop->state, state);
    loop->n_enqueued = n_done;
    loop->may_record = device->record_begin && !loop->params.trace;
    return M2_OK;
}

/* The second step: the first has loaded every kernel and found every algorithm. */
static m2_status record(m2_step_loop *loop)
{
    const m2_device_api *device = loop->ops->device_api;
    loop->may_record = 0;
    M2_TRY(device->record_begin(loop->ops));
    run_step(loop, loop->n_enqueued);
    device->publish(loop->ops, (void *)(uintptr_t)loop->mailbox, &loop->state);
    M2_TRY(device->record_end(loop->ops, &loop->recording));
    if (loop->recording) m2_debug("pipeline", "steps are replayed from one recording");
    return M2_OK;
}

m2_status m2_step_loop_enqueue(m2_step_loop *loop)
{
    const m2_device_api *device = loop->ops->device_api;
    if (loop->may_record && loop->n_run == 1) M2_TRY(record(loop));
    if (loop->recording) {
        M2_TRY(device->replay(loop->ops, loop->recording));
    } else {
        run_step(loop, loop->n_enqueued);
        device->publish(loop->ops, (void *)(uintptr_t)loop->mailbox, &loop->state);
    }
    loop->n_enqueued++;
    loop->n_run++;
    return M2_OK;
}

int m2_step_loop_lag(const m2_step_loop *loop)
{
    return !m2_device_is_host(loop->ops) && !loop->params.trace;
}

static double now(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + 1e-9 * (double)time.tv_nsec;
}

/* A flag is never taken back, so what is found one step late is still found. */
static m2_status check_flags(const m2_step_loop *loop)
{
    const int is_video = loop->mailbox[STATE_VIDEO_FLAG];
    if (!is_video && !loop->mailbox[STATE_AUDIO_FLAG]) return M2_OK;
    return m2_fail(M2_ERR_NUMERIC,
                   "step %d of %d: the velocity of the %s is not finite; no clip was "
                   "written; a damaged weight file is likely: compare checksums with the release's",
                   (int)loop->mailbox[STATE_DONE], loop->params.settings->n_steps,
                   is_video ? "video" : "sound");
}

m2_status m2_step_loop_wait(m2_step_loop *loop, int n_done)
{
    const double begin = now();
    while (loop->mailbox[STATE_DONE] < n_done) {
        const struct timespec look = { 0, LOOK_NANOSECONDS };
        nanosleep(&look, NULL);
        if (now() - begin > SILENCE_SECONDS) {
            M2_TRY(m2_device_wait(loop->ops));
            break;
        }
    }
    /* The last step's news is whole only when the device is done with everything. */
    if (n_done == loop->n_enqueued) M2_TRY(m2_device_wait(loop->ops));
    return check_flags(loop);
}

void m2_step_loop_finish(m2_step_loop *loop)
{
    if (!loop->mailbox) return;
    const m2_device_api *device = loop->ops->device_api;
    m2_device_wait(loop->ops);
    if (loop->recording) device->recording_destroy(loop->ops, loop->recording);
    device->mailbox_destroy(loop->ops, (void *)(uintptr_t)loop->mailbox);
    loop->recording = NULL;
    loop->mailbox = NULL;
}
