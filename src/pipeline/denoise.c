/* denoise.c - the loop: one forward of both branches, guidance, one step of each sampler. */
#include "pipeline/clip.h"

#include "sample/guidance.h"
#include "sample/sampler.h"
#include "sample/schedule.h"

#include <stdlib.h>
#include <string.h>

typedef struct loop {
    m2_preview_request request;
    m2_tensor step; /* [1] i32: the steps done, which samplers and guidance look up */
    m2_sampler video_sampler, audio_sampler;
    m2_guidance video_guidance, audio_guidance;
    m2_tensor video_velocity; /* [2, channels, T, h, w] f32 */
    m2_tensor audio_velocity; /* [2, A, channels] f32       */
    m2_tensor flags;          /* [2] i32: a velocity that is not finite, video and audio */
} loop;

static m2_preview_shape packing_shape(const m2_clip *clip)
{
    const m2_settings *s = &clip->settings;
    m2_preview_shape shape = {
        .frames = s->latent_frames,
        .height = s->latent_height,
        .width = s->latent_width,
        .audio_len = s->n_audio,
        .text_len = { clip->n_ids[0], clip->n_ids[1] },
        .use_ref_for_uncond = clip->engine->config.eval.use_ref_for_uncond,
    };
    return shape;
}

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

static m2_status guidance_prepare(m2_clip *clip, const m2_ops *ops, m2_arena *request, loop *it)
{
    const m2_settings *s = &clip->settings;
    const m2_guidance_params params = guidance_params(s);
    int *timesteps = malloc(m2_arena_array_bytes((size_t)s->n_steps, sizeof *timesteps));
    if (!timesteps)
        return m2_fail(M2_ERR_MEMORY, "no memory for the timesteps of %d steps", s->n_steps);
    m2_schedule_timesteps(s->n_steps, s->shift, timesteps);
    m2_guidance_run run = { .modality = M2_LATENT_VIDEO,
                            .n_frames = s->latent_frames,
                            .n_steps = s->n_steps,
                            .timesteps = timesteps,
                            .step = &it->step };
    m2_status status = m2_guidance_init(&it->video_guidance, request, ops, &params, &run);
    run.modality = M2_LATENT_AUDIO;
    run.n_frames = s->n_audio;
    if (status == M2_OK)
        status = m2_guidance_init(&it->audio_guidance, request, ops, &params, &run);
    free(timesteps);
    return status;
}

/* Lay out everything that the loop needs in the request arena; `it` must stay where it is. */
static m2_status loop_prepare(m2_clip *clip, const m2_ops *ops, m2_arena *request, m2_arena *step,
                              loop *it)
{
    const m2_settings *s = &clip->settings;
    const m2_preview_shape shape = packing_shape(clip);
    const m2_preview_conditions conditions = { .text = { &clip->features[0], &clip->features[1] } };
    M2_TRY(m2_preview_prepare(clip->engine->preview, ops, request, step, &shape, &conditions, NULL,
                              &it->request));
    it->step = m2_tensor_make(request, M2_I32, 1);
    const m2_sampler_params video = { m2_tensor_count(&clip->video), s->n_steps, s->shift,
                                      &it->step };
    const m2_sampler_params audio = { m2_tensor_count(&clip->audio), s->n_steps, s->shift,
                                      &it->step };
    M2_TRY(m2_sampler_init(&it->video_sampler, request, ops, &video));
    M2_TRY(m2_sampler_init(&it->audio_sampler, request, ops, &audio));
    M2_TRY(guidance_prepare(clip, ops, request, it));
    it->video_velocity = m2_tensor_make(request, M2_F32, M2_BRANCHES, s->latent_channels,
                                        s->latent_frames, s->latent_height, s->latent_width);
    it->audio_velocity =
        m2_tensor_make(request, M2_F32, M2_BRANCHES, s->n_audio, s->audio_channels);
    it->flags = m2_tensor_make(request, M2_I32, 2);
    return M2_OK;
}

/* Branch `idx` of a velocity, without the branch axis. */
static m2_tensor branch(const m2_tensor *velocity, int idx)
{
    m2_tensor rows = m2_tensor_rows(velocity, idx, idx + 1);
    rows.n_dims--;
    memmove(rows.shape, rows.shape + 1, (size_t)rows.n_dims * sizeof rows.shape[0]);
    return rows;
}

static void guide_and_step(const m2_trace *trace, const char *name, m2_guidance *guidance,
                           m2_sampler *sampler, int step, const m2_tensor *velocity,
                           m2_tensor *latent)
{
    const m2_tensor cond = branch(velocity, 0);
    m2_tensor uncond = branch(velocity, 1);
    m2_guidance_apply(guidance, latent, &cond, &uncond, &uncond);
    m2_tap(trace, &uncond, "step%d.velocity.%s", step, name);
    m2_sampler_step(sampler, latent, &uncond);
    m2_tap(trace, latent, "step%d.%s", step, name);
}

/* Step number `n_done`. */
static void loop_step(m2_clip *clip, const m2_ops *ops, m2_arena *step_arena, loop *it, int n_done)
{
    const m2_settings *s = &clip->settings;
    const m2_trace *trace = ops->is_measuring ? NULL : clip->trace;
    const m2_preview_step step = { .video = &clip->video,
                                   .audio = &clip->audio,
                                   .timestep = m2_schedule_timestep(s->n_steps, s->shift, n_done),
                                   .video_out = &it->video_velocity,
                                   .audio_out = &it->audio_velocity };
    m2_preview_forward(clip->engine->preview, ops, step_arena, &it->request, &step, NULL);
    m2_tensor video_flag = m2_tensor_rows(&it->flags, 0, 1),
              audio_flag = m2_tensor_rows(&it->flags, 1, 2);
    ops->find_nonfinite(ops,
                        &(m2_find_nonfinite_args){ .x = &it->video_velocity, .flag = &video_flag });
    ops->find_nonfinite(ops,
                        &(m2_find_nonfinite_args){ .x = &it->audio_velocity, .flag = &audio_flag });
    guide_and_step(trace, "video", &it->video_guidance, &it->video_sampler, n_done,
                   &it->video_velocity, &clip->video);
    guide_and_step(trace, "audio", &it->audio_guidance, &it->audio_sampler, n_done,
                   &it->audio_velocity, &clip->audio);
    ops->advance(ops, &(m2_advance_args){ .counter = &it->step });
}

m2_status m2_clip_plan_denoise(m2_clip *clip, const m2_ops *measure, m2_arena *request,
                               m2_arena *step)
{
    loop it;
    M2_TRY(loop_prepare(clip, measure, request, step, &it));
    loop_step(clip, measure, step, &it, 0);
    return M2_OK;
}

/* A velocity that is not finite ends the run before anything is made of it. */
static m2_status check_flags(m2_clip *clip, const loop *it, int step)
{
    const m2_ops *ops = &clip->engine->ops;
    int32_t flags[2];
    ops->download(ops, flags, &it->flags);
    if (!flags[0] && !flags[1]) return M2_OK;
    return m2_fail(M2_ERR_NUMERIC,
                   "step %d of %d: the velocity of the %s is not finite; nothing was "
                   "written; a damaged weight file is likely: compare checksums with the release's",
                   step, clip->settings.n_steps, flags[0] ? "video" : "sound");
}

static void restore(m2_clip *clip, loop *it)
{
    const m2_clip_state *from = &clip->resumed;
    const m2_ops *ops = &clip->engine->ops;
    ops->upload(ops, &clip->video, from->video.data);
    ops->upload(ops, &clip->audio, from->audio.data);
    m2_tensor history[M2_SAMPLER_N_HISTORY];
    m2_sampler_history(&it->video_sampler, from->n_done, history);
    for (int i = 0; i < M2_SAMPLER_N_HISTORY; i++)
        ops->upload(ops, &history[i], from->video_history[i].data);
    m2_sampler_history(&it->audio_sampler, from->n_done, history);
    for (int i = 0; i < M2_SAMPLER_N_HISTORY; i++)
        ops->upload(ops, &history[i], from->audio_history[i].data);
}

static m2_status save_state(m2_clip *clip, const loop *it, int n_done)
{
    m2_tensor video[M2_SAMPLER_N_HISTORY], audio[M2_SAMPLER_N_HISTORY];
    m2_sampler_history(&it->video_sampler, n_done, video);
    m2_sampler_history(&it->audio_sampler, n_done, audio);
    M2_TRY(m2_clip_write_state(clip, clip->state_path, n_done, video, audio));
    clip->has_state_file = 1;
    return M2_OK;
}

static m2_status run_steps(m2_clip *clip, loop *it, int done)
{
    const m2_settings *s = &clip->settings;
    const int every = clip->request->checkpoint_every;
    while (done < s->n_steps) {
        m2_arena_reset(&clip->step_arena);
        const double before = m2_clip_now();
        loop_step(clip, &clip->engine->ops, &clip->step_arena, it, done);
        done++;
        M2_TRY(m2_group_agree(&clip->engine->world, check_flags(clip, it, done)));
        clip->progress.step_seconds = m2_clip_now() - before;
        clip->progress.sigma = m2_schedule_sigma(s->n_steps, s->shift, done);
        m2_clip_report(clip, MAGI2_STAGE_PREVIEW, done, s->n_steps);
        const int is_last = done == s->n_steps;
        const int is_cancelled = m2_clip_is_cancelled(clip) && !is_last;
        if (!is_last && (is_cancelled || (every && done % every == 0)))
            M2_TRY(save_state(clip, it, done));
        if (is_cancelled) return m2_clip_interrupted(clip);
    }
    return M2_OK;
}

m2_status m2_clip_denoise(m2_clip *clip)
{
    const m2_ops *ops = &clip->engine->ops;
    const m2_settings *s = &clip->settings;
    const int is_resumed = clip->resumed.memory != NULL;
    const int32_t n_done = is_resumed ? clip->resumed.n_done : 0;
    loop it;
    m2_arena_reset(&clip->step_arena);
    M2_TRY(loop_prepare(clip, ops, &clip->request_arena, &clip->step_arena, &it));
    const int32_t zeros[2] = { 0, 0 };
    ops->upload(ops, &it.flags, zeros);
    ops->upload(ops, &it.step, &n_done);
    if (is_resumed)
        restore(clip, &it);
    else
        M2_TRY(m2_clip_noise(clip));
    clip->progress.sigma = m2_schedule_sigma(s->n_steps, s->shift, n_done);
    m2_clip_report(clip, MAGI2_STAGE_PREVIEW, n_done, s->n_steps);
    return run_steps(clip, &it, n_done);
}
