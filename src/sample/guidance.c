#include "sample/guidance.h"

#include <assert.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#define SCALE_MAX 1000.0f

void m2_guidance_params_init(m2_guidance_params *params)
{
    *params = (m2_guidance_params){
        .video_scale = 5.0f,
        .audio_scale = 7.0f,
        .trick_n_frames = 13,
        .trick_scale = 2.0f,
        .dynamic_timestep = 500,
        .dynamic_scale_max = 2.0f,
        .skimmed_scale = 3.0f,
    };
}

typedef struct fault_list {
    char text[1024];
    size_t used;
} fault_list;

static void check_range(fault_list *faults, const char *name, double value, double low, double high)
{
    if (value >= low && value <= high) return;
    if (faults->used >= sizeof faults->text) return;
    faults->used += (size_t)snprintf(
        faults->text + faults->used, sizeof faults->text - faults->used,
        "%s%s is %g, must be %g to %g", faults->used ? "; " : "", name, value, low, high);
}

m2_status m2_guidance_params_check(const m2_guidance_params *params)
{
    fault_list faults = { .used = 0 };
    check_range(&faults, "video scale", params->video_scale, -SCALE_MAX, SCALE_MAX);
    check_range(&faults, "audio scale", params->audio_scale, -SCALE_MAX, SCALE_MAX);
    check_range(&faults, "trick frames", params->trick_n_frames, 0, 1e6);
    check_range(&faults, "trick scale", params->trick_scale, -SCALE_MAX, SCALE_MAX);
    check_range(&faults, "dynamic timestep", params->dynamic_timestep, 0, 1000);
    check_range(&faults, "dynamic scale", params->dynamic_scale_max, -SCALE_MAX, SCALE_MAX);
    check_range(&faults, "skimmed scale", params->skimmed_scale, -SCALE_MAX, SCALE_MAX);
    check_range(&faults, "rescale", params->rescale, 0, 1);
    return faults.used ? m2_fail(M2_ERR_ARG, "guidance: %s", faults.text) : M2_OK;
}

static float video_scale_of_frame(const m2_guidance_params *params, int timestep, int64_t frame)
{
    float scale = params->video_scale;
    if (params->use_trick && frame < params->trick_n_frames && params->trick_scale < scale)
        scale = params->trick_scale;
    if (params->use_dynamic && timestep < params->dynamic_timestep &&
        scale > params->dynamic_scale_max)
        scale = params->dynamic_scale_max;
    return scale;
}

int64_t m2_guidance_scales(const m2_guidance_params *params, m2_modality_latent modality,
                           int timestep, int64_t n_frames, float *scale_out)
{
    if (modality == M2_LATENT_AUDIO) {
        scale_out[0] = params->audio_scale;
        return 1;
    }
    const int64_t n = params->use_trick ? n_frames : 1;
    for (int64_t frame = 0; frame < n; frame++)
        scale_out[frame] = video_scale_of_frame(params, timestep, frame);
    return n;
}

m2_status m2_guidance_init(m2_guidance *guidance, m2_arena *arena, const m2_ops *ops,
                           const m2_guidance_params *params, const m2_guidance_run *run)
{
    assert(run->n_frames >= 1 && run->n_steps >= 1);
    M2_TRY(m2_guidance_params_check(params));
    const int64_t n_values =
        params->use_trick && run->modality == M2_LATENT_VIDEO ? run->n_frames : 1;
    const size_t count = (size_t)n_values * (size_t)run->n_steps;
    float *scales = malloc(m2_arena_array_bytes(count, sizeof *scales));
    if (!scales)
        return m2_fail(M2_ERR_MEMORY, "guidance: no memory for the scales of %lld frames, %d steps",
                       (long long)run->n_frames, run->n_steps);
    for (int step = 0; step < run->n_steps; step++) {
        const int64_t n = m2_guidance_scales(params, run->modality, run->timesteps[step],
                                             run->n_frames, scales + step * n_values);
        assert(n == n_values);
        (void)n;
    }
    m2_guidance made = {
        .ops = ops, .params = *params, .modality = run->modality, .step = run->step
    };
    made.scale = m2_tensor_make(arena, M2_F32, run->n_steps, n_values);
    if (!arena->is_measuring) ops->upload(ops, &made.scale, scales);
    free(scales);
    *guidance = made;
    return M2_OK;
}

/* As the operators want it: [channels, frames, inner], where frames count for the scale. */
static m2_tensor by_frames(const m2_guidance *guidance, const m2_tensor *x)
{
    if (guidance->modality == M2_LATENT_AUDIO)
        return m2_tensor_over(x->data, M2_F32, 1, 1, m2_tensor_count(x));
    assert(x->n_dims == 4);
    return m2_tensor_over(x->data, M2_F32, x->shape[0], x->shape[1], x->shape[2] * x->shape[3]);
}

static m2_tensor by_channels(const m2_guidance *guidance, const m2_tensor *x)
{
    if (guidance->modality == M2_LATENT_AUDIO) {
        assert(x->n_dims == 2);
        return *x;
    }
    return m2_tensor_over(x->data, M2_F32, x->shape[0], m2_tensor_count(x) / x->shape[0]);
}

void m2_guidance_apply(const m2_guidance *guidance, const m2_tensor *latent, const m2_tensor *cond,
                       m2_tensor *uncond, m2_tensor *velocity)
{
    const m2_ops *ops = guidance->ops;
    const m2_guidance_params *params = &guidance->params;
    assert(cond->dtype == M2_F32 && velocity->data != cond->data);
    m2_tensor cond_frames = by_frames(guidance, cond), uncond_frames = by_frames(guidance, uncond);
    m2_tensor v_frames = by_frames(guidance, velocity);

    if (params->use_skimmed) {
        const m2_tensor latent_frames = by_frames(guidance, latent);
        ops->guidance_skim(ops, &(m2_guidance_skim_args){ .cond = &cond_frames,
                                                          .latent = &latent_frames,
                                                          .scale = &guidance->scale,
                                                          .step = guidance->step,
                                                          .skim_scale = params->skimmed_scale,
                                                          .uncond = &uncond_frames });
    }
    ops->guidance_mix(ops, &(m2_guidance_mix_args){ .cond = &cond_frames,
                                                    .uncond = &uncond_frames,
                                                    .scale = &guidance->scale,
                                                    .step = guidance->step,
                                                    .v = &v_frames });
    if (params->rescale > 0) {
        const m2_tensor cond_channels = by_channels(guidance, cond);
        m2_tensor v_channels = by_channels(guidance, velocity);
        ops->guidance_rescale(ops, &(m2_guidance_rescale_args){
                                       .cond = &cond_channels,
                                       .rescale = params->rescale,
                                       .channels_last = guidance->modality == M2_LATENT_AUDIO,
                                       .v = &v_channels });
    }
}
