/* denoise.c - noise (or a resumed state) to clean latents: the loop, and what the caller learns of it. */
#include "pipeline/clip.h"

#include "pipeline/step_loop.h"
#include "sample/schedule.h"

static m2_step_loop_params loop_params(m2_clip *clip)
{
    const m2_settings *s = &clip->settings;
    const m2_step_loop_params params = {
        .preview = clip->engine->preview,
        .settings = s,
        .shape = { .frames = s->latent_frames,
                   .height = s->latent_height,
                   .width = s->latent_width,
                   .audio_len = s->n_audio,
                   .text_len = { clip->n_ids[0], clip->n_ids[1] },
                   .use_ref_for_uncond = clip->engine->config.eval.use_ref_for_uncond },
        .conditions = { .text = { &clip->features[0], &clip->features[1] } },
        .video = &clip->video,
        .audio = &clip->audio,
        .trace = clip->trace,
    };
    return params;
}

m2_status m2_clip_plan_denoise(m2_clip *clip, const m2_ops *measure, m2_arena *request,
                               m2_arena *step)
{
    m2_step_loop loop;
    const m2_step_loop_params params = loop_params(clip);
    return m2_step_loop_prepare(&loop, measure, request, step, &params);
}

static void restore(m2_clip *clip, const m2_step_loop *loop)
{
    const m2_clip_state *from = &clip->resumed;
    const m2_ops *ops = &clip->engine->ops;
    ops->upload(ops, &clip->video, from->video.data);
    ops->upload(ops, &clip->audio, from->audio.data);
    m2_tensor history[M2_SAMPLER_N_HISTORY];
    m2_sampler_history(&loop->video_sampler, from->n_done, history);
    for (int i = 0; i < M2_SAMPLER_N_HISTORY; i++)
        ops->upload(ops, &history[i], from->video_history[i].data);
    m2_sampler_history(&loop->audio_sampler, from->n_done, history);
    for (int i = 0; i < M2_SAMPLER_N_HISTORY; i++)
        ops->upload(ops, &history[i], from->audio_history[i].data);
}

static m2_status save_state(m2_clip *clip, const m2_step_loop *loop, int n_done)
{
    m2_tensor video[M2_SAMPLER_N_HISTORY], audio[M2_SAMPLER_N_HISTORY];
    m2_sampler_history(&loop->video_sampler, n_done, video);
    m2_sampler_history(&loop->audio_sampler, n_done, audio);
    return m2_clip_keep_state(clip, n_done, video, audio);
}

static void report(m2_clip *clip, int done, double seconds)
{
    const m2_settings *s = &clip->settings;
    clip->progress.step_seconds = seconds;
    clip->progress.sigma = m2_schedule_sigma(s->n_steps, s->shift, done);
    m2_clip_report(clip, MAGI2_STAGE_PREVIEW, done, s->n_steps);
}

/* A state file is due after every so many steps, unless it was just written. */
static int is_due(const m2_clip *clip, int done, int last_saved)
{
    const int every = clip->request->checkpoint_every;
    return every && done % every == 0 && done != last_saved;
}

/* Steps are enqueued as far ahead as the device wants; where a state is to be saved, or on Ctrl-C, the
 * queue is left to run empty first. */
static m2_status run_steps(m2_clip *clip, m2_step_loop *loop, const int begin)
{
    const int n_steps = clip->settings.n_steps, lag = m2_step_loop_lag(loop);
    int done = begin, enqueued = begin, last_saved = begin;
    double before = m2_clip_now();
    while (done < n_steps) {
        const int is_cancelled = done > begin && m2_clip_is_cancelled(clip);
        while (enqueued < n_steps && enqueued - done <= lag && !is_cancelled &&
               !is_due(clip, enqueued, last_saved)) {
            M2_TRY(m2_step_loop_enqueue(loop));
            enqueued++;
        }
        if (enqueued == done) {
            M2_TRY(save_state(clip, loop, done));
            if (is_cancelled) return m2_clip_interrupted(clip);
            last_saved = done;
            continue;
        }
        done++;
        /* A velocity that is not finite ends the run before anything is made of it. */
        M2_TRY(m2_group_agree(&clip->engine->world, m2_step_loop_wait(loop, done)));
        const double now = m2_clip_now();
        report(clip, done, now - before);
        before = now;
    }
    return M2_OK;
}

static m2_status run_loop(m2_clip *clip, m2_step_loop *loop)
{
    const m2_settings *s = &clip->settings;
    const int is_resumed = clip->resumed.memory != NULL;
    const int n_done = is_resumed ? clip->resumed.n_done : 0;
    if (is_resumed)
        restore(clip, loop);
    else
        M2_TRY(m2_clip_noise(clip));
    M2_TRY(m2_step_loop_start(loop, n_done));
    clip->progress.sigma = m2_schedule_sigma(s->n_steps, s->shift, n_done);
    m2_clip_report(clip, MAGI2_STAGE_PREVIEW, n_done, s->n_steps);
    return run_steps(clip, loop, n_done);
}

m2_status m2_clip_denoise(m2_clip *clip)
{
    m2_step_loop loop;
    const m2_step_loop_params params = loop_params(clip);
    m2_arena_reset(&clip->step_arena);
    M2_TRY(m2_step_loop_prepare(&loop, &clip->engine->ops, &clip->request_arena, &clip->step_arena,
                                &params));
    const m2_status status = run_loop(clip, &loop);
    m2_step_loop_finish(&loop);
    return status;
}
