/* resample.h - the decoder's 51.2 kHz sound at the 44.1 kHz that it is labelled with.
 *
 * The Fourier method: the spectrum is cut (or padded) to the new length, so a clip is taken as one
 * period and its ends wrap.  Everything inside is double.
 *
 * Source  scipy.signal.resample of a real signal, as the reference calls it.
 */
#ifndef M2_MEDIA_RESAMPLE_H
#define M2_MEDIA_RESAMPLE_H

#include <stdint.h>

#include "core/status.h"

/* Samples of the output for n samples of the decoder: floor(441 n / 512). */
int64_t m2_resample_length(int64_t n);

/* Stereo, interleaved: `in` [n, 2] to `out` [m, 2]; n, m >= 1.
 * Errors  M2_ERR_ARG (a length that the Fourier transform does not take), M2_ERR_MEMORY */
m2_status m2_resample_stereo(const float *in, int64_t n, float *out, int64_t m);

#endif
