/* wav.h - sound as a RIFF/WAVE file: 16-bit integers or 32-bit floats, little-endian. */
#ifndef M2_MEDIA_WAV_H
#define M2_MEDIA_WAV_H

#include "core/status.h"

#include <stdint.h>

typedef enum m2_wav_format {
    M2_WAV_PCM_16, /* nearest whole number of 32,767 x, clipped */
    M2_WAV_F32     /* as it is                                  */
} m2_wav_format;

/* Write `samples` [n_samples, n_channels] to `path`, beside it first and renamed when whole.
 * Errors  M2_ERR_ARG (a count or rate, more than a WAVE file holds), M2_ERR_NUMERIC (a sample that is
 *         not finite, PCM only), M2_ERR_IO (nothing is left behind) */
m2_status m2_wav_write(const char *path, m2_wav_format format, const float *samples,
                       int64_t n_samples, int n_channels, int sample_rate);

#endif
