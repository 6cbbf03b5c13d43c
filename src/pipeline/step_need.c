#include "pipeline/step_need.h"

#include "backend/profile.h"

const int64_t m2_need_text_len[M2_BRANCHES] = { M2_NEED_PROMPT_TOKENS, M2_NEED_NEGATIVE_TOKENS };

void m2_step_inputs_make(m2_step_inputs *inputs, m2_arena *arena, const m2_model_config *config,
                         const m2_settings *settings, const int64_t text_len[M2_BRANCHES])
{
    const m2_settings *s = settings;
    *inputs =
        (m2_step_inputs){ .shape = { .frames = s->latent_frames,
                                     .height = s->latent_height,
                                     .width = s->latent_width,
                                     .audio_len = s->n_audio,
                                     .text_len = { text_len[0], text_len[1] },
                                     .use_ref_for_uncond = config->eval.use_ref_for_uncond } };
    for (int i = 0; i < M2_BRANCHES; i++)
        inputs->features[i] =
            m2_tensor_make(arena, M2_BF16, text_len[i], config->arch.text_in_channels);
    inputs->video = m2_tensor_make(arena, M2_F32, s->latent_channels, s->latent_frames,
                                   s->latent_height, s->latent_width);
    inputs->audio = m2_tensor_make(arena, M2_F32, s->n_audio, s->audio_channels);
}

m2_step_loop_params m2_step_inputs_params(m2_step_inputs *inputs, const m2_preview *preview,
                                          const m2_settings *settings)
{
    return (m2_step_loop_params){ .preview = preview,
                                  .settings = settings,
                                  .shape = inputs->shape,
                                  .conditions = { .text = { &inputs->features[0],
                                                            &inputs->features[1] } },
                                  .video = &inputs->video,
                                  .audio = &inputs->audio };
}

static m2_status count_with(m2_profile *profile, const m2_preview *preview,
                            const m2_model_config *config, const m2_settings *settings,
                            const int64_t text_len[M2_BRANCHES], m2_step_need *need)
{
    m2_arena request, step;
    m2_step_inputs inputs;
    m2_step_loop loop;
    m2_profile_report report;
    m2_arena_init_measuring(&request, "request");
    m2_arena_init_measuring(&step, "step");
    m2_step_inputs_make(&inputs, &request, config, settings, text_len);
    const m2_step_loop_params params = m2_step_inputs_params(&inputs, preview, settings);
    M2_TRY(m2_step_loop_prepare(&loop, &profile->ops, &request, &step, &params));
    M2_TRY(m2_profile_read(profile, &report));
    need->n_calls = report.n_calls;

    const m2_preview_step forward = { .video = &inputs.video,
                                      .audio = &inputs.audio,
                                      .tau = &loop.tau,
                                      .counter = &loop.counter,
                                      .video_out = &loop.video_velocity,
                                      .audio_out = &loop.audio_velocity };
    m2_preview_forward(preview, &profile->ops, &step, &loop.request, &forward, NULL);
    M2_TRY(m2_profile_read(profile, &report));
    need->flop = report.flop;
    need->bytes = report.bytes;
    need->n_tokens = loop.request.packing.n_tokens;
    need->request_bytes = request.peak;
    need->step_bytes = step.peak;
    return M2_OK;
}

m2_status m2_step_need_count(const m2_preview *preview, const m2_model_config *config,
                             const m2_settings *settings, const int64_t text_len[M2_BRANCHES],
                             const m2_device_api *device, m2_step_need *need_out)
{
    m2_ops measure;
    m2_profile profile;
    m2_ops_init_measure(&measure);
    measure.device_api = device;
    M2_TRY(m2_profile_open(&profile, &measure, 0));
    const m2_status status = count_with(&profile, preview, config, settings, text_len, need_out);
    m2_profile_close(&profile);
    return status;
}
