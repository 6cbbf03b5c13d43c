/* ffmpeg.h - what the files that call FFmpeg share: its errors and its log.
 *
 * FFmpeg has one log callback for the whole process and writes to stderr until told otherwise.
 * m2_ffmpeg_init() gives its messages to the log bound to the calling thread, at level debug;
 * messages of threads without one (the encoder's own) are dropped.
 */
#ifndef M2_MEDIA_FFMPEG_H
#define M2_MEDIA_FFMPEG_H

#include "core/status.h"

/* Once a process, from any thread, as often as one likes. */
void m2_ffmpeg_init(void);

/* m2_fail with "name: what: FFmpeg's text for `error`".  Out of memory gives M2_ERR_MEMORY. */
m2_status m2_ffmpeg_fail(m2_status status, int error, const char *name, const char *what);

#endif
