/* decode.c - clean latents to frames and sound, window by window into the file. */
#include "pipeline/clip.h"

#include "media/mp4.h"
#include "media/resample.h"
#include "media/resize.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct output {
    m2_clip *clip;
    m2_mp4 *mp4;      /* NULL: no file asked for                            */
    uint8_t *resized; /* one frame of the output size, NULL if not needed   */
    uint8_t *frames;  /* all frames as decoded, for --save; NULL without it */
    int n_windows, n_windows_done;
    float *wave; /* [n_samples, 2] at 44.1 kHz                         */
    int64_t n_samples;
} output;

static m2_status write_frames(output *out, int64_t first_frame, const m2_tensor *frames)
{
    m2_clip *clip = out->clip;
    const m2_settings *s = &clip->settings;
    const size_t frame_bytes = (size_t)s->width * (size_t)s->height * 3;
    const uint8_t *pixels = frames->data;
    if (out->frames)
        memcpy(out->frames + (size_t)first_frame * frame_bytes, pixels,
               (size_t)frames->shape[0] * frame_bytes);
    for (int64_t i = 0; out->mp4 && i < frames->shape[0]; i++) {
        const uint8_t *frame = pixels + (size_t)i * frame_bytes;
        if (out->resized) {
            M2_TRY(m2_resize_frames(clip->engine->pool, frame, 1, s->width, s->height, out->resized,
                                    s->output_width, s->output_height));
            frame = out->resized;
        }
        const m2_status status = m2_mp4_write_frame(out->mp4, frame);
        if (status == M2_ERR_INTERRUPTED) return m2_clip_interrupted(clip);
        M2_TRY(status);
    }
    m2_clip_report(clip, MAGI2_STAGE_DECODE, ++out->n_windows_done, out->n_windows + 1);
    return m2_clip_is_cancelled(clip) ? m2_clip_interrupted(clip) : M2_OK;
}

static m2_status emit_frames(void *user, int64_t first_frame, const m2_tensor *frames)
{
    output *out = user;
    m2_tensor host;
    void *copy = NULL;
    M2_TRY(m2_device_fetch(&out->clip->engine->ops, frames, &host, &copy));
    const m2_status status = write_frames(out, first_frame, &host);
    free(copy);
    return status;
}

static m2_status check_cancel(void *user)
{
    output *out = user;
    return m2_clip_is_cancelled(out->clip) ? m2_clip_interrupted(out->clip) : M2_OK;
}

static int mp4_is_cancelled(void *user)
{
    return m2_clip_is_cancelled(((output *)user)->clip);
}

/* ---- sound ---- */

static m2_status decode_audio(output *out)
{
    m2_clip *clip = out->clip;
    const m2_ops *ops = &clip->engine->ops;
    m2_arena_reset(&clip->step_arena);
    const int64_t n_decoded =
        m2_oobleck_n_samples(&clip->engine->audio_config, clip->settings.n_audio);
    m2_tensor wave;
    M2_TRY(m2_oobleck_decode(clip->engine->audio, ops, &clip->step_arena, &clip->audio,
                             check_cancel, out, &wave));
    out->n_samples = m2_resample_length(n_decoded);
    float *host = malloc(m2_tensor_bytes(&wave));
    out->wave = malloc((size_t)out->n_samples * 2 * sizeof *out->wave);
    if (!host || !out->wave) {
        free(host);
        return m2_fail(M2_ERR_MEMORY, "no memory for %lld samples of sound", (long long)n_decoded);
    }
    ops->download(ops, host, &wave);
    const m2_status status = m2_resample_stereo(host, n_decoded, out->wave, out->n_samples);
    free(host);
    return status;
}

/* ---- the file ---- */

static m2_status open_file(output *out)
{
    m2_clip *clip = out->clip;
    const m2_settings *s = &clip->settings;
    if (!clip->request->output) return M2_OK;
    char comment[1024], title[256];
    const int n = snprintf(comment, sizeof comment, "magi2 %s; ", MAGI2_VERSION);
    m2_settings_text(s, comment + n, sizeof comment - (size_t)n);
    snprintf(title, sizeof title, "MAGI-2 Preview");
    const m2_mp4_tag tags[] = { { "title", title },
                                { "description", clip->prompt },
                                { "comment", comment } };
    const m2_mp4_params params = { .width = s->output_width,
                                   .height = s->output_height,
                                   .fps_num = s->fps_num,
                                   .fps_den = s->fps_den,
                                   .n_frames = s->n_frames,
                                   .n_samples = out->n_samples,
                                   .encoder = clip->request->video_encoder,
                                   .tags = tags,
                                   .n_tags = 3,
                                   .is_cancelled = mp4_is_cancelled,
                                   .user = out };
    M2_TRY(m2_mp4_open(clip->request->output, &params, &out->mp4));
    if (s->output_width == s->width && s->output_height == s->height) return M2_OK;
    out->resized = malloc((size_t)s->output_width * (size_t)s->output_height * 3);
    return out->resized ? M2_OK
                        : m2_fail(M2_ERR_MEMORY, "no memory for a frame of %dx%d", s->output_width,
                                  s->output_height);
}

m2_status m2_clip_check_output(m2_clip *clip)
{
    const int64_t n = m2_oobleck_n_samples(&clip->engine->audio_config, clip->settings.n_audio);
    output probe = { .clip = clip, .n_samples = m2_resample_length(n) };
    const m2_status status = open_file(&probe);
    m2_mp4_destroy(probe.mp4);
    free(probe.resized);
    return status;
}

static m2_status finish_file(output *out)
{
    m2_clip *clip = out->clip;
    const double before = m2_clip_now();
    m2_clip_report(clip, MAGI2_STAGE_MUX, 0, 0);
    if (out->mp4) {
        M2_TRY(m2_mp4_write_audio(out->mp4, out->wave, out->n_samples));
        const m2_status status = m2_mp4_finish(out->mp4);
        if (status == M2_ERR_INTERRUPTED) return m2_clip_interrupted(clip);
        M2_TRY(status);
    }
    clip->result.mux_seconds = m2_clip_now() - before;
    return M2_OK;
}

static m2_status save_arrays(output *out)
{
    m2_clip *clip = out->clip;
    const m2_settings *s = &clip->settings;
    if (!clip->save) return M2_OK;
    const m2_tensor frames =
        m2_tensor_over(out->frames, M2_U8, s->n_frames, s->height, s->width, 3);
    const m2_tensor wave = m2_tensor_over(out->wave, M2_F32, out->n_samples, 2);
    M2_TRY(m2_save_array(clip->save, "frames", &frames));
    M2_TRY(m2_save_array(clip->save, "wave", &wave));
    char settings[1024];
    m2_settings_text(s, settings, sizeof settings);
    return m2_save_finish(clip->save, clip->engine->ops.isa, settings);
}

static m2_status decode_into(output *out)
{
    m2_clip *clip = out->clip;
    const m2_settings *s = &clip->settings;
    const double before = m2_clip_now();
    out->n_windows = (int)m2_turbo_n_windows(&clip->engine->video_config, s->latent_frames);
    m2_clip_report(clip, MAGI2_STAGE_DECODE, 0, out->n_windows + 1);
    /* Sound first: the file is told its length when it is opened. */
    M2_TRY(decode_audio(out));
    M2_TRY(check_cancel(out));
    M2_TRY(open_file(out));
    if (clip->save) {
        out->frames = malloc((size_t)s->n_frames * (size_t)s->width * (size_t)s->height * 3);
        if (!out->frames) return m2_fail(M2_ERR_MEMORY, "no memory to keep all frames for --save");
    }
    m2_arena_reset(&clip->step_arena);
    const m2_turbo_sink sink = { .emit = emit_frames, .check = check_cancel, .user = out };
    M2_TRY(m2_turbo_decode(clip->engine->video, &clip->engine->ops, &clip->step_arena, &clip->video,
                           M2_U8, &sink));
    m2_clip_report(clip, MAGI2_STAGE_DECODE, out->n_windows + 1, out->n_windows + 1);
    clip->result.decode_seconds = m2_clip_now() - before;
    M2_TRY(finish_file(out));
    return save_arrays(out);
}

m2_status m2_clip_plan_decode(m2_clip *clip, const m2_ops *measure, m2_arena *step)
{
    m2_arena_reset(step);
    m2_tensor wave;
    M2_TRY(m2_oobleck_decode(clip->engine->audio, measure, step, &clip->audio, NULL, NULL, &wave));
    m2_arena_reset(step);
    const m2_turbo_sink sink = { .emit = emit_frames };
    return m2_turbo_decode(clip->engine->video, measure, step, &clip->video, M2_U8, &sink);
}

m2_status m2_clip_decode(m2_clip *clip)
{
    output out = { .clip = clip };
    const m2_status status = decode_into(&out);
    m2_mp4_destroy(out.mp4);
    free(out.resized);
    free(out.frames);
    free(out.wave);
    if (status != M2_OK) return status;
    const m2_settings *s = &clip->settings;
    clip->result.width = s->output_width;
    clip->result.height = s->output_height;
    clip->result.n_frames = s->n_frames;
    clip->result.fps_num = s->fps_num;
    clip->result.fps_den = s->fps_den;
    clip->result.sample_rate = M2_MP4_SAMPLE_RATE;
    clip->result.n_samples = out.n_samples;
    return M2_OK;
}
