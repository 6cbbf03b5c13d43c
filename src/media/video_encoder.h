/* video_encoder.h - pictures to H.264 packets, through whichever encoder FFmpeg has.
 *
 * Picture    8-bit 4:2:0, limited range, BT.709 matrix, primaries and transfer, all tagged; chroma
 *            samples sit on the left luma sample of a pair, between two rows (H.264's default).
 * Quality    constant: crf 18 (libx264) or the like of it; a key frame at least every two seconds.
 * Bits       libx264's output depends on its thread count, so that is fixed; the conversion from
 *            RGB is swscale's exact C arithmetic.  Same machine, same pictures, same bits.
 * Threads    one encoder, one thread.
 */
#ifndef M2_MEDIA_VIDEO_ENCODER_H
#define M2_MEDIA_VIDEO_ENCODER_H

#include "core/status.h"

#include <libavcodec/avcodec.h>
#include <stdint.h>

typedef struct m2_video_encoder m2_video_encoder;

typedef struct m2_video_format {
    int width, height;    /* pixels, even                       */
    int fps_num, fps_den; /* frames per second as a fraction    */
} m2_video_format;

/* Open the encoder called `name` (one of m2_video_encoder_names), or with NULL or "auto" the first
 * of them that opens.
 * Errors  M2_ERR_ARG (no such name), M2_ERR_UNSUPPORTED (not in this FFmpeg, or it does not open:
 *         the message says why and which ones would) */
m2_status m2_video_encoder_open(const char *name, const m2_video_format *format,
                                m2_video_encoder **encoder_out);
void m2_video_encoder_destroy(m2_video_encoder *encoder);

/* Takes a packet; it must move or copy what it keeps. */
typedef m2_status m2_packet_sink(void *user, AVPacket *packet);

/* Encode the next picture [height, width, 3]; `sink` gets the packets that are ready, in decoding
 * order, timestamps counted in frames.  `rgb` NULL ends the stream and gives all that are left. */
m2_status m2_video_encoder_write(m2_video_encoder *encoder, const uint8_t *rgb,
                                 m2_packet_sink *sink, void *user);

/* Parameters and time base for a container; borrowed. */
const AVCodecContext *m2_video_encoder_context(const m2_video_encoder *encoder);

/* Hand a frame (NULL: the end) to any encoder and pass on what it has ready; shared with sound. */
m2_status m2_encode(AVCodecContext *context, const AVFrame *frame, AVPacket *packet,
                    m2_packet_sink *sink, void *user);

#endif
