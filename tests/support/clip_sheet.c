#include "support/clip_judge.h"

#include <png.h>
#include <stdlib.h>

uint8_t *judge_sheet_read(const char *path, int64_t *width_out, int64_t *height_out)
{
    png_image image = { .version = PNG_IMAGE_VERSION };
    if (!png_image_begin_read_from_file(&image, path)) return NULL;
    image.format = PNG_FORMAT_RGB;
    uint8_t *pixels = malloc(PNG_IMAGE_SIZE(image));
    if (!pixels || !png_image_finish_read(&image, NULL, pixels, 0, NULL)) {
        png_image_free(&image);
        free(pixels);
        return NULL;
    }
    *width_out = image.width;
    *height_out = image.height;
    return pixels;
}
