/* resize.h - finished frames to the exact size that was asked for.
 *
 * Bilinear on u8 / 255 in f32, without antialiasing: output pixel i lies at input coordinate
 * max(0, (i + 0.5) * in / out - 0.5), neighbours beyond the edge repeat the edge; then times 255 and
 * truncated (not rounded), as the reference does.
 */
#ifndef M2_MEDIA_RESIZE_H
#define M2_MEDIA_RESIZE_H

#include "core/status.h"
#include "core/threads.h"

#include <stdint.h>

/* `in` [n_frames, height, width, 3] to `out` [n_frames, out_height, out_width, 3].  `pool` may be
 * NULL; the bits do not depend on it.
 * Errors  M2_ERR_ARG (a size outside 1 ... 16,384), M2_ERR_MEMORY */
m2_status m2_resize_frames(m2_pool *pool, const uint8_t *in, int64_t n_frames, int64_t width,
                           int64_t height, uint8_t *out, int64_t out_width, int64_t out_height);

#endif
