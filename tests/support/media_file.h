/* media_file.h - reads mp4 and PNG files back, for tests of what writes them.
 *
 * Pictures are turned to RGB by the maths of the matrix and range that the file is tagged with, as a
 * player does (no tag: BT.601), with chroma on the left luma sample, interpolated linearly.
 */
#ifndef M2_TESTS_SUPPORT_MEDIA_FILE_H
#define M2_TESTS_SUPPORT_MEDIA_FILE_H

#include <libavcodec/avcodec.h>
#include <libavutil/dict.h>
#include <stdint.h>

typedef struct m2_test_clip {
    /* As the container says. */
    AVCodecParameters *video, *audio;
    AVRational frame_rate;           /* average of the video stream     */
    int64_t n_frames_said;           /* nb_frames                       */
    double video_s, audio_s, clip_s; /* durations                     */
    AVDictionary *tags;
    int n_streams;
    /* As decoded. */
    int64_t n_frames;
    uint8_t *rgb; /* [n_frames, height, width, 3]                     */
    uint8_t *yuv; /* [n_frames, yuv_bytes] planes Y, U, V as coded    */
    int64_t yuv_bytes;
    int64_t n_samples;
    float *samples;                    /* [n_samples, 2]                           */
    int64_t first_frame, first_sample; /* their time stamps, in frames and samples */
    int has_even_steps;                /* each frame's time stamp is the one before plus one */
} m2_test_clip;

/* Fails the test if the file cannot be decoded whole. */
m2_test_clip m2_test_clip_read(const char *path);
void m2_test_clip_free(m2_test_clip *clip);

/* 8-bit RGB pixels, malloc'd; fails the test if it is no PNG. */
uint8_t *m2_test_png_read(const char *path, int64_t *width_out, int64_t *height_out);

/* 10 log10(255^2 / mean square difference); 999 for equal pictures. */
double m2_test_psnr(const uint8_t *a, const uint8_t *b, int64_t n);

/* The whole file, malloc'd. */
uint8_t *m2_test_bytes_read(const char *path, int64_t *n_out);

#endif
