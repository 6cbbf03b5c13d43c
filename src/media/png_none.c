#include "media/png.h"

static m2_status is_missing(void)
{
    return m2_fail(M2_ERR_UNSUPPORTED, "built without PNG files; configure with "
                                       "-DMAGI2_WITH_MEDIA=ON (libpng is needed)");
}

m2_status m2_png_write(const char *path, const uint8_t *rgb, int64_t width, int64_t height)
{
    (void)path;
    (void)rgb;
    (void)width;
    (void)height;
    return is_missing();
}

m2_status m2_png_write_folder(const char *dir, const uint8_t *frames, int64_t n_frames,
                              int64_t width, int64_t height)
{
    (void)n_frames;
    return m2_png_write(dir, frames, width, height);
}

m2_status m2_png_write_sheet(const char *path, const uint8_t *frames, int64_t n_frames,
                             int64_t width, int64_t height, int64_t n_columns)
{
    (void)n_frames;
    (void)n_columns;
    return m2_png_write(path, frames, width, height);
}
