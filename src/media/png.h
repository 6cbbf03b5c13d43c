/* png.h - pictures as PNG files: one, a numbered folder of them, or a sheet of small ones.
 *
 * Pictures are 8-bit RGB, [height, width, 3].  Files are written beside their name and renamed when
 * whole.  Built with MAGI2_WITH_MEDIA=OFF every call fails with M2_ERR_UNSUPPORTED (png_none.c).
 */
#ifndef M2_MEDIA_PNG_H
#define M2_MEDIA_PNG_H

#include "core/status.h"

#include <stdint.h>

#define M2_PNG_SIDE_MAX 65535

/* Errors  M2_ERR_ARG (size), M2_ERR_IO, M2_ERR_MEMORY */
m2_status m2_png_write(const char *path, const uint8_t *rgb, int64_t width, int64_t height);

/* `frames` [n_frames, height, width, 3] as dir/frame_0000.png, dir/frame_0001.png ...; the folder is
 * made if it is missing.  When one cannot be written, none of this call's files are left. */
m2_status m2_png_write_folder(const char *dir, const uint8_t *frames, int64_t n_frames,
                              int64_t width, int64_t height);

/* All frames in one picture, `n_columns` a row, the last row filled up with black. */
m2_status m2_png_write_sheet(const char *path, const uint8_t *frames, int64_t n_frames,
                             int64_t width, int64_t height, int64_t n_columns);

#endif
