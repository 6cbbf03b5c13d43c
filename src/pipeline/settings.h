/* settings.h - a request with every default filled in and every number checked.
 *
 * What a clip depends on is decided here once, before anything is computed; the later stages read
 * these settings and never the request's "use the default" values.
 */
#ifndef M2_PIPELINE_SETTINGS_H
#define M2_PIPELINE_SETTINGS_H

#include "core/status.h"
#include "io/config.h"
#include "magi2.h"

/* The model's one length. */
#define M2_CLIP_SECONDS 10

typedef struct m2_settings {
    char tier[32];
    int width, height;               /* of the decoded frames                            */
    int output_width, output_height; /* of the file; equal to the decoded size unless asked */
    int latent_channels, latent_frames, latent_height, latent_width;
    int n_audio; /* audio latents                                    */
    int audio_channels;
    int n_frames;         /* 4 * latent_frames - 3                            */
    int fps_num, fps_den; /* 25/2                                             */
    int n_steps;
    double shift;
    double guidance_video, guidance_audio, guidance_rescale;
    int use_trick, trick_frames;
    double trick_value;
    int use_dynamic, dynamic_start;
    double dynamic_cutoff;
    int use_skim;
    double skim_scale;
    int use_negative;
    int64_t seed; /* the one used                                     */
    int noise_sms, noise_threads;
    int has_given_noise;
} m2_settings;

/* Errors  M2_ERR_ARG (out of range, unknown tier), M2_ERR_UNSUPPORTED (a tier that needs a part that
 *         is not built) */
m2_status m2_settings_resolve(const m2_model_config *config, const magi2_request *request,
                              m2_settings *settings_out);

/* Settings of a file (state.h) must be of this model.
 * Errors  M2_ERR_MODEL, naming what differs */
m2_status m2_settings_check_model(const m2_settings *settings, const m2_model_config *config);
/* The final size of the request, or the decoded one.  Errors  M2_ERR_ARG */
m2_status m2_settings_set_output(m2_settings *settings, const magi2_request *request);

/* "key=value; ..." for the file's comment and for comparing a state with a request. */
void m2_settings_text(const m2_settings *settings, char *text, size_t bytes);

#endif
