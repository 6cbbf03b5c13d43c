#include "support/clip_judge.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define SHAPE_DISTANCE 70.0 /* of a pixel from the background, to belong to the shape */

static double distance(const double *a, const uint8_t *b)
{
    double sum = 0;
    for (int c = 0; c < 3; c++) sum += (a[c] - b[c]) * (a[c] - b[c]);
    return sqrt(sum);
}

static void find_background(const uint8_t *frames, int64_t n_pixels, double background[3])
{
    int64_t counts[3][256] = { { 0 } };
    for (int64_t i = 0; i < n_pixels; i++) {
        for (int c = 0; c < 3; c++) counts[c][frames[3 * i + c]]++;
    }
    for (int c = 0; c < 3; c++) {
        int64_t seen = 0;
        int level = 0;
        while ((seen += counts[c][level]) * 2 < n_pixels) level++;
        background[c] = level;
    }
}

void judge_frames(const uint8_t *frames, int n_frames, int width, int height, judge_picture *out)
{
    memset(out, 0, sizeof *out);
    out->n_frames = n_frames < JUDGE_FRAMES_MAX ? n_frames : JUDGE_FRAMES_MAX;
    find_background(frames, (int64_t)n_frames * width * height, out->background);
    double colour[3] = { 0 }, weight = 0;
    for (int f = 0; f < out->n_frames; f++) {
        const uint8_t *frame = frames + (int64_t)f * width * height * 3;
        double n = 0, x = 0, y = 0;
        for (int row = 0; row < height; row++) {
            for (int column = 0; column < width; column++) {
                const uint8_t *pixel = frame + 3 * ((int64_t)row * width + column);
                const double d = distance(out->background, pixel);
                if (d < SHAPE_DISTANCE) continue;
                n++;
                x += column;
                y += row;
                for (int c = 0; c < 3; c++) colour[c] += d * pixel[c];
                weight += d;
            }
        }
        out->area[f] = n;
        out->x[f] = n >= 6 ? x / n : -1;
        out->y[f] = n >= 6 ? y / n : -1;
    }
    for (int c = 0; c < 3; c++) out->colour[c] = weight > 0 ? colour[c] / weight : 0;
}

const char *judge_colour_name(const double rgb[3])
{
    const double high = fmax(rgb[0], fmax(rgb[1], rgb[2]));
    const double low = fmin(rgb[0], fmin(rgb[1], rgb[2]));
    if (high < 50) return "black";
    if (high - low < 0.18 * high) return high > 200 ? "white" : "gray";
    double hue;
    if (high == rgb[0])
        hue = 60 * fmod((rgb[1] - rgb[2]) / (high - low) + 6, 6);
    else if (high == rgb[1])
        hue = 60 * ((rgb[2] - rgb[0]) / (high - low) + 2);
    else
        hue = 60 * ((rgb[0] - rgb[1]) / (high - low) + 4);
    if (hue < 15 || hue >= 345) return high > 200 && low > 130 ? "pink" : "red";
    if (hue < 45) return "orange";
    if (hue < 70) return "yellow";
    if (hue < 160) return "green";
    if (hue < 200) return "cyan";
    if (hue < 255) return "blue";
    if (hue < 300) return "purple";
    return "pink";
}

int judge_bounces(const judge_picture *picture, double fps, double times[JUDGE_EVENTS_MAX])
{
    int n = 0;
    double low = 1e9, high = -1e9;
    for (int f = 0; f < picture->n_frames; f++) {
        if (picture->y[f] < 0) continue;
        low = fmin(low, picture->y[f]);
        high = fmax(high, picture->y[f]);
    }
    for (int f = 2; f + 2 < picture->n_frames && n < JUDGE_EVENTS_MAX; f++) {
        const double y = picture->y[f];
        if (y < low + 0.6 * (high - low)) continue;
        int is_peak = 1;
        for (int k = 1; k <= 2; k++) is_peak &= y > picture->y[f - k] && y >= picture->y[f + k];
        if (is_peak) times[n++] = f / fps;
    }
    return n;
}

void judge_motion(const judge_picture *picture, double *dx_out, double *dy_out)
{
    double dx = 0, dy = 0;
    int n = 0;
    for (int f = 1; f < picture->n_frames; f++) {
        if (picture->x[f] < 0 || picture->x[f - 1] < 0) continue;
        const double step_x = picture->x[f] - picture->x[f - 1];
        const double step_y = picture->y[f] - picture->y[f - 1];
        if (fabs(step_x) > 12 || fabs(step_y) > 12) continue;
        dx += step_x;
        dy += step_y;
        n++;
    }
    *dx_out = n ? dx / n : 0;
    *dy_out = n ? dy / n : 0;
}

static int compare_doubles(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

int judge_onsets(const float *wave, int64_t n, int sample_rate, double times[JUDGE_EVENTS_MAX])
{
    const int64_t hop = sample_rate / 100;
    const int64_t n_hops = n / hop;
    if (n_hops < 8) return 0;
    double *envelope = calloc((size_t)n_hops, sizeof *envelope);
    double *sorted = calloc((size_t)n_hops, sizeof *sorted);
    if (!envelope || !sorted) abort();
    for (int64_t h = 0; h < n_hops; h++) {
        for (int64_t i = h * hop; i < (h + 1) * hop; i++)
            envelope[h] +=
                (double)wave[2 * i] * wave[2 * i] + (double)wave[2 * i + 1] * wave[2 * i + 1];
        envelope[h] = sqrt(envelope[h] / (double)(2 * hop));
        sorted[h] = envelope[h];
    }
    qsort(sorted, (size_t)n_hops, sizeof *sorted, compare_doubles);
    const double quiet = sorted[n_hops / 10], loud = sorted[n_hops * 98 / 100];
    int found = 0;
    int64_t last = -100;
    for (int64_t h = 3; h < n_hops && found < JUDGE_EVENTS_MAX; h++) {
        const double rise = envelope[h] - envelope[h - 3];
        if (rise < 0.35 * (loud - quiet) || h - last < 15) continue;
        times[found++] = (double)(h - 1) / 100.0;
        last = h;
    }
    free(envelope);
    free(sorted);
    return found;
}

double judge_nearest_median(const double *a, int n_a, const double *b, int n_b)
{
    if (n_a == 0 || n_b == 0) return 1e9;
    double nearest[JUDGE_EVENTS_MAX];
    for (int i = 0; i < n_a; i++) {
        nearest[i] = 1e9;
        for (int j = 0; j < n_b; j++) nearest[i] = fmin(nearest[i], fabs(a[i] - b[j]));
    }
    qsort(nearest, (size_t)n_a, sizeof *nearest, compare_doubles);
    return nearest[n_a / 2];
}

double judge_psnr(const uint8_t *a, const uint8_t *b, int64_t n)
{
    double sum = 0;
    for (int64_t i = 0; i < n; i++) sum += ((double)a[i] - b[i]) * ((double)a[i] - b[i]);
    return sum == 0 ? 99 : 10 * log10(255.0 * 255.0 * (double)n / sum);
}

void judge_sheet_tile(const uint8_t *sheet, int64_t sheet_width, int64_t tile_width,
                      int64_t tile_height, int64_t idx, uint8_t *to)
{
    const int64_t n_columns = sheet_width / tile_width;
    const int64_t x = idx % n_columns * tile_width, y = idx / n_columns * tile_height;
    for (int64_t row = 0; row < tile_height; row++)
        memcpy(to + row * tile_width * 3, sheet + ((y + row) * sheet_width + x) * 3,
               (size_t)tile_width * 3);
}
