#include "clip_maker.h"

#include "support/check.h"

#include <dirent.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int clip_set_up(void **state)
{
    clip_env *env = calloc(1, sizeof *env);
    env->dir = m2_test_make_dir();
    snprintf(env->path, sizeof env->path, "%s/clip.mp4", env->dir);
    *state = env;
    return 0;
}

int clip_tear_down(void **state)
{
    clip_env *env = *state;
    m2_test_remove_tree(env->dir);
    free(env);
    return 0;
}

int clip_n_files(const char *dir)
{
    int n = 0;
    DIR *handle = opendir(dir);
    assert_non_null(handle);
    for (struct dirent *entry; (entry = readdir(handle));)
        if (strcmp(entry->d_name, ".") != 0 && strcmp(entry->d_name, "..") != 0) n++;
    closedir(handle);
    return n;
}

float *clip_sound(int64_t n)
{
    float *samples = malloc((size_t)n * 2 * sizeof *samples);
    for (int64_t i = 0; i < n; i++) {
        const double t = (double)i / M2_MP4_SAMPLE_RATE;
        const double beat = 0.5 + 0.5 * sin(6.283185307 * 2.3 * t);
        samples[2 * i] = (float)(0.6 * sin(6.283185307 * (200 * t + 150 * t * t)));
        samples[2 * i + 1] = (float)(0.5 * beat * sin(6.283185307 * 1234.5 * t + 1));
    }
    return samples;
}

uint8_t *clip_frames(int n_frames, int width, int height)
{
    uint8_t *rgb = malloc((size_t)n_frames * (size_t)(width * height) * 3), *to = rgb;
    for (int f = 0; f < n_frames; f++)
        for (int y = 0; y < height; y++)
            for (int x = 0; x < width; x++, to += 3) {
                const double dx = x - width * (0.5 + 0.3 * cos(0.1 * f));
                const double dy = y - height * (0.5 + 0.3 * sin(0.1 * f));
                const double disc = exp(-(dx * dx + dy * dy) / (0.02 * width * height));
                to[0] = (uint8_t)(40 + 60.0 * x / width + 150 * disc);
                to[1] = (uint8_t)(60 + 40 * sin(0.05 * (x + y + 2 * f)) + 100 * disc);
                to[2] = (uint8_t)(150 - 80.0 * y / height + 20 * disc);
            }
    return rgb;
}

m2_mp4_params clip_params(int n_frames, int width, int height, int fps_num, int fps_den)
{
    return (m2_mp4_params){ .width = width,
                            .height = height,
                            .fps_num = fps_num,
                            .fps_den = fps_den,
                            .n_frames = n_frames,
                            .n_samples =
                                (int64_t)n_frames * M2_MP4_SAMPLE_RATE * fps_den / fps_num };
}

m2_status clip_write(const char *path, const m2_mp4_params *params, const uint8_t *rgb,
                     const float *samples)
{
    m2_mp4 *mp4 = NULL;
    m2_status status = m2_mp4_open(path, params, &mp4);
    const size_t frame_bytes = (size_t)params->width * (size_t)params->height * 3;
    for (int64_t f = 0; f < params->n_frames && status == M2_OK; f++)
        status = m2_mp4_write_frame(mp4, rgb + (size_t)f * frame_bytes);
    /* In uneven pieces, as a decoder gives them. */
    for (int64_t i = 0; i < params->n_samples && status == M2_OK; i += 10007) {
        const int64_t n = params->n_samples - i < 10007 ? params->n_samples - i : 10007;
        status = m2_mp4_write_audio(mp4, samples + 2 * i, n);
    }
    if (status == M2_OK) status = m2_mp4_finish(mp4);
    m2_mp4_destroy(mp4);
    return status;
}
