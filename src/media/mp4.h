/* mp4.h - a clip's pictures and sound into one mp4 that plays everywhere.
 *
 * File       H.264 4:2:0 8-bit, limited range BT.709, beside AAC-LC stereo of 44,100 Hz; what a
 *            player needs comes first (moov before mdat); tags as given, no dates: the same clip
 *            on the same machine gives the same bytes.
 * Lengths    said at the start and held to: a picture or a sample too many or too few is an error
 *            and leaves no file.  Nothing is padded or cut.  The encoder's run-in of 1,024 samples
 *            is taken off by an edit list: the first sample given is the first one played.
 * Writing    pictures are encoded as they come, all packets kept in memory; finish() writes them to
 *            a temporary beside the target and renames it when whole.  The temporary is made by
 *            open(), so that a directory that cannot be written to is known before the clip is.
 * Threads    one writer, one thread.  FFmpeg's log is taken over for the whole process (ffmpeg.h).
 *
 * Built with MAGI2_WITH_MEDIA=OFF every call says so with M2_ERR_UNSUPPORTED (mp4_none.c).
 */
#ifndef M2_MEDIA_MP4_H
#define M2_MEDIA_MP4_H

#include "core/status.h"

#include <stdint.h>

#define M2_MP4_SAMPLE_RATE 44100
#define M2_MP4_SIZE_MAX    16384

typedef struct m2_mp4 m2_mp4;

typedef struct m2_mp4_tag {
    const char *key;   /* title, comment, description, artist, copyright or encoder */
    const char *value; /* UTF-8                                                     */
} m2_mp4_tag;

typedef struct m2_mp4_params {
    int width, height;      /* pixels, even, 2 ... M2_MP4_SIZE_MAX                              */
    int fps_num, fps_den;   /* 25/2 or 25/1                                                     */
    int64_t n_frames;       /* pictures that will be written, >= 1                              */
    int64_t n_samples;      /* stereo samples that will be written, >= 1                        */
    int may_end_apart;      /* 0: pictures and sound that end more than 0.1 s apart are refused */
    const char *encoder;    /* NULL or "auto": the first that opens; else its name              */
    const m2_mp4_tag *tags; /* borrowed for the call                                          */
    int n_tags;
    int (*is_cancelled)(void *user); /* asked once a picture and a packet; may be NULL         */
    void *user;
} m2_mp4_params;

/* Start a clip for `path`.
 * Out     *mp4_out, written only on M2_OK
 * Errors  M2_ERR_ARG (a parameter), M2_ERR_UNSUPPORTED (encoder), M2_ERR_IO (path) */
m2_status m2_mp4_open(const char *path, const m2_mp4_params *params, m2_mp4 **mp4_out);
/* The next picture, [height, width, 3] full-range RGB.
 * Errors  M2_ERR_ARG (one more than n_frames), M2_ERR_INTERNAL (encoder), M2_ERR_INTERRUPTED */
m2_status m2_mp4_write_frame(m2_mp4 *mp4, const uint8_t *rgb);
/* The next samples, [n_samples, 2]; beyond +-1 they are clipped.
 * Errors  M2_ERR_ARG (more than said), M2_ERR_NUMERIC (a sample that is not finite) */
m2_status m2_mp4_write_audio(m2_mp4 *mp4, const float *samples, int64_t n_samples);
/* Check the counts, write the file, rename it.  Once; any failure, this call's or an earlier one's,
 * leaves the target untouched and removes the temporary.
 * Errors  M2_ERR_ARG (counts), M2_ERR_IO (disk full ...), M2_ERR_INTERRUPTED (is_cancelled) */
m2_status m2_mp4_finish(m2_mp4 *mp4);
/* Free everything; unless finish() succeeded, no file is left.  Takes NULL. */
void m2_mp4_destroy(m2_mp4 *mp4);

/* Encoder `idx` in the order of preference: 1 if it opens on this machine, 0 if not, -1 past the
 * last one. */
int m2_mp4_encoder_probe(int idx, const char **name_out);

#endif
