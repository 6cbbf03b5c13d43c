/* audio_encoder.h - samples to AAC-LC packets (FFmpeg's own encoder), 44,100 Hz stereo.
 *
 * Threads  one encoder, one thread.
 */
#ifndef M2_MEDIA_AUDIO_ENCODER_H
#define M2_MEDIA_AUDIO_ENCODER_H

#include "core/status.h"
#include "media/video_encoder.h"

/* Errors  M2_ERR_UNSUPPORTED (FFmpeg without AAC), M2_ERR_INTERNAL, M2_ERR_MEMORY.
 * Free it with avcodec_free_context. */
m2_status m2_audio_encoder_open(AVCodecContext **context_out);

/* All samples of the sound at once, [n_samples] per channel, and the end of the stream.  Packets'
 * timestamps are counted in samples; the first lies before 0 (the encoder's run-in).  `sink` gets
 * them in order; what it returns other than M2_OK ends the call. */
m2_status m2_audio_encoder_write_all(AVCodecContext *context, const float *left, const float *right,
                                     int64_t n_samples, m2_packet_sink *sink, void *user);

#endif
