#include "media/png.h"

#include "core/temp_file.h"

#include <errno.h>
#include <png.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

m2_status m2_png_write(const char *path, const uint8_t *rgb, int64_t width, int64_t height)
{
    if (width < 1 || height < 1 || width > M2_PNG_SIDE_MAX || height > M2_PNG_SIDE_MAX)
        return m2_fail(M2_ERR_ARG, "%s: a picture of %lldx%lld; sides of 1 to %d are possible",
                       path, (long long)width, (long long)height, M2_PNG_SIDE_MAX);
    m2_temp_file temp;
    M2_TRY(m2_temp_create(&temp, path));
    char reason[128] = "";
    FILE *file = fopen(temp.path, "wb");
    if (file) {
        png_image image = { .version = PNG_IMAGE_VERSION,
                            .width = (png_uint_32)width,
                            .height = (png_uint_32)height,
                            .format = PNG_FORMAT_RGB };
        errno = 0;
        if (!png_image_write_to_stdio(&image, file, 0, rgb, (png_int_32)(3 * width), NULL))
            snprintf(reason, sizeof reason, "%s", errno ? strerror(errno) : image.message);
        png_image_free(&image);
    }
    if ((!file || fclose(file) != 0) && !reason[0])
        snprintf(reason, sizeof reason, "%s", strerror(errno));
    if (reason[0]) {
        m2_temp_discard(&temp);
        return m2_fail(M2_ERR_IO, "%s: cannot write: %s", path, reason);
    }
    return m2_temp_commit(&temp);
}

m2_status m2_png_write_folder(const char *dir, const uint8_t *frames, int64_t n_frames,
                              int64_t width, int64_t height)
{
    const int is_new = mkdir(dir, 0777) == 0;
    if (!is_new && errno != EEXIST)
        return m2_fail(M2_ERR_IO, "%s: cannot make the folder: %s", dir, strerror(errno));
    char path[M2_TEMP_PATH_MAX];
    m2_status status = M2_OK;
    int64_t n_written = 0;
    while (n_written < n_frames && status == M2_OK) {
        const int n = snprintf(path, sizeof path, "%s/frame_%04lld.png", dir, (long long)n_written);
        if (n < 0 || (size_t)n >= sizeof path)
            status = m2_fail(M2_ERR_ARG, "%.200s...: the name is too long", dir);
        else
            status = m2_png_write(path, frames + (size_t)(n_written * width * height * 3), width,
                                  height);
        if (status == M2_OK) n_written++;
    }
    if (status == M2_OK) return M2_OK;
    while (n_written-- > 0) {
        snprintf(path, sizeof path, "%s/frame_%04lld.png", dir, (long long)n_written);
        unlink(path);
    }
    if (is_new) rmdir(dir);
    return status;
}

m2_status m2_png_write_sheet(const char *path, const uint8_t *frames, int64_t n_frames,
                             int64_t width, int64_t height, int64_t n_columns)
{
    if (n_frames < 1 || n_columns < 1 || width < 1 || height < 1 || width > M2_PNG_SIDE_MAX ||
        height > M2_PNG_SIDE_MAX || n_columns > M2_PNG_SIDE_MAX / width)
        return m2_fail(M2_ERR_ARG, "%s: %lld pictures of %lldx%lld, %lld a row, make no sheet",
                       path, (long long)n_frames, (long long)width, (long long)height,
                       (long long)n_columns);
    const int64_t n_rows = (n_frames + n_columns - 1) / n_columns;
    if (n_rows > M2_PNG_SIDE_MAX / height)
        return m2_fail(M2_ERR_ARG, "%s: %lld rows of pictures are too many for a sheet", path,
                       (long long)n_rows);
    const size_t row_bytes = (size_t)(width * 3), sheet_row_bytes = row_bytes * (size_t)n_columns;
    uint8_t *sheet = calloc((size_t)(n_rows * height), sheet_row_bytes);
    if (!sheet) return m2_fail(M2_ERR_MEMORY, "%s: no memory for the sheet", path);
    for (int64_t i = 0; i < n_frames; i++) {
        const int64_t row = i / n_columns, column = i % n_columns;
        for (int64_t y = 0; y < height; y++)
            memcpy(sheet + (size_t)(row * height + y) * sheet_row_bytes +
                       (size_t)column * row_bytes,
                   frames + (size_t)(i * height + y) * row_bytes, row_bytes);
    }
    const m2_status status = m2_png_write(path, sheet, n_columns * width, n_rows * height);
    free(sheet);
    return status;
}
