/* clip_judge.h - what a clip of the demo model shows and plays, measured.
 *
 * The demo world is one coloured shape on a plain background: the shape is what differs from the
 * frame's median colour.  Sound is judged by when it sets in.
 */
#ifndef M2_TESTS_SUPPORT_CLIP_JUDGE_H
#define M2_TESTS_SUPPORT_CLIP_JUDGE_H

#include <stdint.h>

#define JUDGE_FRAMES_MAX 300
#define JUDGE_EVENTS_MAX 200

typedef struct judge_picture {
    int n_frames;
    double background[3];       /* median over all frames, 0 ... 255       */
    double colour[3];           /* mean of the shape's inner pixels        */
    double x[JUDGE_FRAMES_MAX]; /* centre of the shape, pixels; -1: none   */
    double y[JUDGE_FRAMES_MAX];
    double area[JUDGE_FRAMES_MAX]; /* pixels                                  */
} judge_picture;

/* frames [n_frames, height, width, 3] */
void judge_frames(const uint8_t *frames, int n_frames, int width, int height, judge_picture *out);

/* "red", "blue", "gray" ...: the demo world's colour that is nearest in hue and lightness. */
const char *judge_colour_name(const double rgb[3]);

/* Times (s) at which the shape is lowest: local maxima of y that rise above their surroundings. */
int judge_bounces(const judge_picture *picture, double fps, double times[JUDGE_EVENTS_MAX]);

/* Net motion between consecutive frames, jumps back (wrapping round) left out: pixels a frame. */
void judge_motion(const judge_picture *picture, double *dx_out, double *dy_out);

/* Times (s) at which the sound sets in: the envelope rises by more than half of its range.
 * wave [n, 2] */
int judge_onsets(const float *wave, int64_t n, int sample_rate, double times[JUDGE_EVENTS_MAX]);

/* Median over `a` of the distance to the nearest of `b`; 1e9 if either is empty. */
double judge_nearest_median(const double *a, int n_a, const double *b, int n_b);

/* A sheet of pictures of one size in an 8-bit RGB PNG file, [height, width, 3], malloc'd; NULL if the
 * file cannot be read (clip_sheet.c, which needs libpng). */
uint8_t *judge_sheet_read(const char *path, int64_t *width_out, int64_t *height_out);
/* Picture `idx` of a sheet, to `to` [tile_height, tile_width, 3]. */
void judge_sheet_tile(const uint8_t *sheet, int64_t sheet_width, int64_t tile_width,
                      int64_t tile_height, int64_t idx, uint8_t *to);

double judge_psnr(const uint8_t *a, const uint8_t *b, int64_t n);

#endif
