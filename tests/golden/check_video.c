/* check_video.c - golden/video: finished frames to another size.
 *
 * *.safetensors: NAME.in [F, H, W, 3] -> NAME.out, u8, and NAME.truth, the exact value times 255.
 * The value is truncated, so where the truth lies within 1e-4 of a whole number the order of the f32
 * sums decides and either neighbour may come out; anywhere else only the truncated truth will do,
 * for ours and for the reference's frames alike.  The truth itself is worked out again in double. */
#include "golden.h"

#include "media/resize.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#define NEAR_WHOLE      1e-4
#define TRUTH_TOLERANCE 2e-5 /* 255 stored in f32 */

typedef struct resize_case {
    golden_run *run;
    const char *name;
    int64_t n_frames, height, width, out_height, out_width;
    const uint8_t *in, *out;
    const float *truth;
} resize_case;

static int ends_with(const char *text, const char *end)
{
    const size_t n = strlen(text), m = strlen(end);
    return n >= m && strcmp(text + n - m, end) == 0;
}

/* Lower neighbour of output `i` and the weight of the upper one. */
static int64_t neighbour(int64_t i, int64_t n_in, int64_t n_out, double *weight)
{
    double at = ((double)i + 0.5) * (double)n_in / (double)n_out - 0.5;
    if (at < 0) at = 0;
    int64_t low = (int64_t)at;
    if (low > n_in - 1) low = n_in - 1;
    *weight = low == n_in - 1 ? 0 : at - (double)low;
    return low;
}

static double exact_value(const resize_case *c, int64_t frame, int64_t row, int64_t column,
                          int64_t colour)
{
    double across, down;
    const int64_t y = neighbour(row, c->height, c->out_height, &down);
    const int64_t x = neighbour(column, c->width, c->out_width, &across);
    const int64_t y1 = y + (y < c->height - 1), x1 = x + (x < c->width - 1);
    const uint8_t *in = c->in + frame * c->height * c->width * 3 + colour;
    const double above =
        (1 - across) * in[(y * c->width + x) * 3] + across * in[(y * c->width + x1) * 3];
    const double below =
        (1 - across) * in[(y1 * c->width + x) * 3] + across * in[(y1 * c->width + x1) * 3];
    return (1 - down) * above + down * below;
}

static int is_allowed(uint8_t value, double truth)
{
    const double whole = round(truth);
    if (fabs(truth - whole) > NEAR_WHOLE) return value == (int)floor(truth);
    return value == (int)whole || value == (int)whole - 1;
}

static void judge_pixels(const resize_case *c, const uint8_t *ours)
{
    const int64_t n = c->n_frames * c->out_height * c->out_width * 3;
    int64_t n_ours_wrong = 0, n_reference_wrong = 0, n_different = 0;
    double truth_error = 0;
    for (int64_t i = 0; i < n; i++) {
        n_ours_wrong += !is_allowed(ours[i], c->truth[i]);
        n_reference_wrong += !is_allowed(c->out[i], c->truth[i]);
        n_different += ours[i] != c->out[i];
        const int64_t pixel = i / 3, row = pixel / c->out_width;
        const double exact =
            exact_value(c, row / c->out_height, row % c->out_height, pixel % c->out_width, i % 3);
        const double error = fabs(c->truth[i] - exact);
        if (!(error <= truth_error)) truth_error = isfinite(error) ? error : INFINITY;
    }
    golden_result(c->run, truth_error <= TRUTH_TOLERANCE,
                  golden_format(c->run, "%s.truth", c->name),
                  "largest difference from the formula in double %.1e, limit %.0e", truth_error,
                  TRUTH_TOLERANCE);
    golden_result(c->run, n_ours_wrong == 0 && n_reference_wrong == 0,
                  golden_format(c->run, "%s.out", c->name),
                  "of %lld values %lld of ours and %lld of the reference's are wrong, "
                  "%lld differ from each other",
                  (long long)n, (long long)n_ours_wrong, (long long)n_reference_wrong,
                  (long long)n_different);
}

static int are_frames(const m2_ckpt_tensor *entry, m2_dtype dtype)
{
    return entry && entry->n_dims == 4 && entry->shape[3] == 3 && entry->dtype == dtype &&
           entry->count > 0;
}

static void check_case(golden_run *run, golden_file *file, const char *name)
{
    const char *names[3] = { golden_format(run, "%s.in", name), golden_format(run, "%s.out", name),
                             golden_format(run, "%s.truth", name) };
    const m2_ckpt_tensor *in = golden_take(file, names[0]), *out = golden_take(file, names[1]),
                         *truth = golden_take(file, names[2]);
    if (!are_frames(in, M2_U8) || !are_frames(out, M2_U8) || !are_frames(truth, M2_F32) ||
        in->shape[0] != out->shape[0] ||
        memcmp(out->shape, truth->shape, 4 * sizeof out->shape[0]) != 0) {
        golden_result(run, 0, name, "in and out must be u8 [frames, H, W, 3], truth f32 like out");
        return;
    }
    const resize_case c = { .run = run,
                            .name = name,
                            .n_frames = in->shape[0],
                            .height = in->shape[1],
                            .width = in->shape[2],
                            .out_height = out->shape[1],
                            .out_width = out->shape[2],
                            .in = golden_tensor(file, names[0], M2_U8).data,
                            .out = golden_tensor(file, names[1], M2_U8).data,
                            .truth = golden_tensor(file, names[2], M2_F32).data };
    uint8_t *ours = golden_alloc(run, (size_t)out->count);
    if (m2_resize_frames(golden_pool(run), c.in, c.n_frames, c.width, c.height, ours, c.out_width,
                         c.out_height) != M2_OK)
        golden_result(run, 0, name, "%s", m2_last_error());
    else
        judge_pixels(&c, ours);
}

void golden_check_video(golden_run *run, const char *dir)
{
    for (char **name = golden_list(run, dir, 1); *name; name++)
        golden_result(run, 0, golden_format(run, "%s/%s", dir, *name), "not understood");
    for (char **name = golden_list(run, dir, 0); *name; name++) {
        const char *path = golden_format(run, "%s/%s", dir, *name);
        if (strcmp(*name, "report.json") == 0) continue; /* notes of the run that made the data */
        if (!ends_with(*name, ".safetensors")) {
            golden_result(run, 0, path, "not understood");
            continue;
        }
        golden_file *file = golden_open(run, path);
        if (!file) continue;
        for (int64_t i = 0; i < golden_n_entries(file); i++) {
            const char *entry = golden_entry(file, i)->name;
            if (ends_with(entry, ".in"))
                check_case(run, file, golden_format(run, "%.*s", (int)(strlen(entry) - 3), entry));
        }
        golden_close(file);
    }
}
