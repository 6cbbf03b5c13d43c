/* clip_maker.h - clips and sounds for the tests of the mp4 writer. */
#ifndef M2_TESTS_MEDIA_CLIP_MAKER_H
#define M2_TESTS_MEDIA_CLIP_MAKER_H

#include "media/mp4.h"

typedef struct clip_env {
    char *dir;      /* gone after the test */
    char path[256]; /* dir/clip.mp4        */
} clip_env;

#define CLIP_TEST(name) cmocka_unit_test_setup_teardown(name, clip_set_up, clip_tear_down)
int clip_set_up(void **state);
int clip_tear_down(void **state);
int clip_n_files(const char *dir);

/* [n, 2], malloc'd: two voices that share nothing, so that swapped or mixed channels show; a chirp
 * and a beat, so that only the right lag correlates. */
float *clip_sound(int64_t n);
/* [n_frames, height, width, 3], malloc'd: a bright disc and a coloured gradient that both move,
 * smooth as decoded video is. */
uint8_t *clip_frames(int n_frames, int width, int height);

/* As many samples as the pictures last. */
m2_mp4_params clip_params(int n_frames, int width, int height, int fps_num, int fps_den);
/* Open, write all, finish, destroy. */
m2_status clip_write(const char *path, const m2_mp4_params *params, const uint8_t *rgb,
                     const float *samples);

#endif
