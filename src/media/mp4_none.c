#include "media/mp4.h"

static m2_status is_missing(void)
{
    return m2_fail(M2_ERR_UNSUPPORTED, "built without mp4 files; configure with "
                                       "-DMAGI2_WITH_MEDIA=ON (FFmpeg's libraries are needed)");
}

m2_status m2_mp4_open(const char *path, const m2_mp4_params *params, m2_mp4 **mp4_out)
{
    (void)path;
    (void)params;
    (void)mp4_out;
    return is_missing();
}

m2_status m2_mp4_write_frame(m2_mp4 *mp4, const uint8_t *rgb)
{
    (void)mp4;
    (void)rgb;
    return is_missing();
}

m2_status m2_mp4_write_audio(m2_mp4 *mp4, const float *samples, int64_t n_samples)
{
    (void)mp4;
    (void)samples;
    (void)n_samples;
    return is_missing();
}

m2_status m2_mp4_finish(m2_mp4 *mp4)
{
    (void)mp4;
    return is_missing();
}

void m2_mp4_destroy(m2_mp4 *mp4)
{
    (void)mp4;
}

int m2_mp4_encoder_probe(int idx, const char **name_out)
{
    (void)idx;
    (void)name_out;
    return -1;
}
