#include "pipeline/settings.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <sys/random.h>

#define STEPS_MAX 1000

static m2_status pick_number(double asked, double fallback, double low, double high,
                             const char *name, double *value_out)
{
    *value_out = asked == MAGI2_DEFAULT ? fallback : asked;
    if (!isfinite(*value_out) || *value_out < low || *value_out > high)
        return m2_fail(M2_ERR_ARG, "%s is %g; it must be from %g to %g", name, *value_out, low,
                       high);
    return M2_OK;
}

static int pick_switch(int asked, int fallback)
{
    return asked == MAGI2_DEFAULT ? fallback : asked != 0;
}

static m2_status resolve_seed(const m2_model_config *config, const magi2_request *request,
                              m2_settings *settings)
{
    settings->seed = request->seed;
    if (request->seed == MAGI2_SEED_DEFAULT) {
        settings->seed = config->seed;
    } else if (request->seed == MAGI2_SEED_RANDOM) {
        uint64_t drawn;
        if (getrandom(&drawn, sizeof drawn, 0) != (ssize_t)sizeof drawn)
            return m2_fail(M2_ERR_IO, "no random seed from the system: %s", strerror(errno));
        settings->seed = (int64_t)(drawn >> 1);
    } else if (request->seed < 0) {
        return m2_fail(M2_ERR_ARG, "seed %lld: must be from 0 to 2^63-1, or -1 to draw one",
                       (long long)request->seed);
    }
    return M2_OK;
}

static m2_status resolve_guidance(const m2_eval_config *eval, const magi2_request *request,
                                  m2_settings *settings)
{
    M2_TRY(pick_number(request->guidance_video, eval->video_guidance, 0, 1000, "the video guidance",
                       &settings->guidance_video));
    M2_TRY(pick_number(request->guidance_audio, eval->audio_guidance, 0, 1000, "the audio guidance",
                       &settings->guidance_audio));
    M2_TRY(pick_number(request->guidance_rescale, eval->cfg_rescale, 0, 1, "the guidance rescale",
                       &settings->guidance_rescale));
    settings->use_trick = pick_switch(request->guidance_trick, eval->use_cfg_trick);
    const int has_trick = request->guidance_trick == 1;
    settings->trick_frames =
        has_trick ? request->guidance_trick_frames : eval->cfg_trick_start_frame;
    settings->trick_value = has_trick ? request->guidance_trick_value : eval->cfg_trick_value;
    settings->use_dynamic = pick_switch(request->guidance_dynamic, eval->use_dynamic_cfg);
    const int has_dynamic = request->guidance_dynamic == 1;
    settings->dynamic_start =
        has_dynamic ? request->guidance_dynamic_start : eval->dynamic_cfg_start_t;
    settings->dynamic_cutoff =
        has_dynamic ? request->guidance_dynamic_cutoff : eval->dynamic_cfg_cutoff;
    settings->use_skim = pick_switch(request->guidance_skim, eval->use_skimmed_cfg);
    settings->skim_scale =
        request->guidance_skim == 1 ? request->guidance_skim_scale : eval->skimmed_cfg_scale;
    settings->use_negative = request->use_negative && eval->use_negative_prompt;
    return M2_OK;
}

/* Sizes follow from the tier, the strides and the one length (the reference's rounding). */
static m2_status resolve_shape(const m2_model_config *config, const m2_tier *tier,
                               m2_settings *settings)
{
    const m2_eval_config *eval = &config->eval;
    if (tier->needs_refiner)
        return m2_fail(M2_ERR_UNSUPPORTED, "tier %s needs the refiner, which is not built yet",
                       tier->name);
    snprintf(settings->tier, sizeof settings->tier, "%s", tier->name);
    settings->width = tier->width;
    settings->height = tier->height;
    settings->latent_channels = config->arch.video_in_channels;
    settings->audio_channels = config->arch.audio_in_channels;
    const int n_model_frames = (int)nearbyint(M2_CLIP_SECONDS * eval->fps * 2);
    settings->latent_frames = (n_model_frames - 1) / eval->vae_stride[0] + 1;
    settings->latent_height = tier->height / eval->vae_stride[1];
    settings->latent_width = tier->width / eval->vae_stride[2];
    settings->n_audio = (int)nearbyint(M2_CLIP_SECONDS * eval->audio_latent_fps);
    settings->n_frames = 4 * settings->latent_frames - 3;
    settings->fps_num = (int)nearbyint(eval->fps * 2);
    settings->fps_den = 2;
    return M2_OK;
}

m2_status m2_settings_set_output(m2_settings *settings, const magi2_request *request)
{
    const int width = request->output_width, height = request->output_height;
    if (!width != !height)
        return m2_fail(M2_ERR_ARG, "output size %dx%d: give both numbers or none", width, height);
    if (width &&
        (width % 2 || height % 2 || width < 16 || height < 16 || width > 16384 || height > 16384))
        return m2_fail(M2_ERR_ARG, "output size %dx%d: both must be even and from 16 to 16384",
                       width, height);
    settings->output_width = width ? width : settings->width;
    settings->output_height = height ? height : settings->height;
    return M2_OK;
}

m2_status m2_settings_check_model(const m2_settings *settings, const m2_model_config *config)
{
    const m2_arch_config *arch = &config->arch;
    const int *stride = config->eval.vae_stride;
    if (settings->latent_channels != arch->video_in_channels ||
        settings->audio_channels != arch->audio_in_channels)
        return m2_fail(
            M2_ERR_MODEL,
            "the state file has %d video and %d audio channels, the model %d and %d; it was "
            "made with another model",
            settings->latent_channels, settings->audio_channels, arch->video_in_channels,
            arch->audio_in_channels);
    if (settings->latent_height * stride[1] != settings->height ||
        settings->latent_width * stride[2] != settings->width ||
        settings->n_frames != 4 * settings->latent_frames - 3)
        return m2_fail(M2_ERR_MODEL,
                       "the state file's sizes (%dx%d, latent %dx%d, %d frames) do not "
                       "fit together for this model",
                       settings->width, settings->height, settings->latent_width,
                       settings->latent_height, settings->n_frames);
    return M2_OK;
}

m2_status m2_settings_resolve(const m2_model_config *config, const magi2_request *request,
                              m2_settings *settings_out)
{
    m2_settings settings = { 0 };
    const m2_tier *tier =
        m2_model_config_tier(config, request->tier ? request->tier : config->default_tier);
    if (!tier) return M2_ERR_ARG;
    M2_TRY(resolve_shape(config, tier, &settings));
    settings.n_steps =
        request->n_steps == MAGI2_DEFAULT ? config->eval.num_inference_steps : request->n_steps;
    if (settings.n_steps < 1 || settings.n_steps > STEPS_MAX)
        return m2_fail(M2_ERR_ARG, "%d steps: must be from 1 to %d", settings.n_steps, STEPS_MAX);
    M2_TRY(
        pick_number(request->shift, config->eval.shift, 1e-6, 1e6, "the shift", &settings.shift));
    M2_TRY(resolve_guidance(&config->eval, request, &settings));
    M2_TRY(resolve_seed(config, request, &settings));
    settings.noise_sms = request->noise_sms;
    settings.noise_threads = request->noise_threads;
    settings.has_given_noise = request->noise != NULL;
    M2_TRY(m2_settings_set_output(&settings, request));
    *settings_out = settings;
    return M2_OK;
}

void m2_settings_text(const m2_settings *settings, char *text, size_t bytes)
{
    int n = snprintf(text, bytes,
                     "tier=%s; steps=%d; shift=%g; guidance_video=%g; guidance_audio=%g; "
                     "guidance_rescale=%g; negative=%d",
                     settings->tier, settings->n_steps, settings->shift, settings->guidance_video,
                     settings->guidance_audio, settings->guidance_rescale, settings->use_negative);
    if (settings->use_trick && n < (int)bytes)
        n += snprintf(text + n, bytes - (size_t)n, "; trick=%d:%g", settings->trick_frames,
                      settings->trick_value);
    if (settings->use_dynamic && n < (int)bytes)
        n += snprintf(text + n, bytes - (size_t)n, "; dynamic=%d:%g", settings->dynamic_start,
                      settings->dynamic_cutoff);
    if (settings->use_skim && n < (int)bytes)
        n += snprintf(text + n, bytes - (size_t)n, "; skim=%g", settings->skim_scale);
    if (n >= (int)bytes) return;
    if (settings->has_given_noise)
        snprintf(text + n, bytes - (size_t)n, "; noise=given");
    else
        snprintf(text + n, bytes - (size_t)n, "; seed=%lld; noise_grid=%dx%d",
                 (long long)settings->seed, settings->noise_sms, settings->noise_threads);
}
