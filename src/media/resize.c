#include "media/resize.h"

#include <math.h>
#include <stdlib.h>

#define SIDE_MAX 16384

/* One output coordinate: value = (1 - weight) * in[low] + weight * in[high]. */
typedef struct tap {
    int32_t low, high;
    float weight_low, weight_high;
} tap;

typedef struct resize_job {
    const uint8_t *in;
    uint8_t *out;
    int64_t width, height, out_width, out_height;
    const tap *columns, *rows; /* [out_width], [out_height]   */
    float unit[256];           /* level / 255                 */
} resize_job;

static void make_taps(tap *taps, int64_t n_in, int64_t n_out)
{
    const float scale = (float)n_in / (float)n_out;
    for (int64_t i = 0; i < n_out; i++) {
        float at = fmaf(scale, (float)i + 0.5f, -0.5f);
        if (at < 0.0f) at = 0.0f;
        const int32_t low = (int32_t)at < (int32_t)n_in - 1 ? (int32_t)at : (int32_t)n_in - 1;
        taps[i].low = low;
        taps[i].high = low + (low < n_in - 1);
        taps[i].weight_high = at - (float)low > 1.0f ? 1.0f : at - (float)low;
        taps[i].weight_low = 1.0f - taps[i].weight_high;
    }
}

/* Truncation makes the last bit of the sum visible: this is the order of PyTorch's kernel on a CPU,
 * whose compiler fuses all but one product, and it gives the reference's bytes. */
static uint8_t blend(const resize_job *job, const uint8_t *above, const uint8_t *below, int64_t low,
                     int64_t high, const float weights[4])
{
    float sum = weights[1] * job->unit[above[high]];
    sum = fmaf(weights[0], job->unit[above[low]], sum);
    sum = fmaf(weights[2], job->unit[below[low]], sum);
    sum = fmaf(weights[3], job->unit[below[high]], sum);
    sum = sum < 0.0f ? 0.0f : sum > 1.0f ? 1.0f : sum;
    return (uint8_t)(sum * 255.0f);
}

static void resize_rows(void *context, int64_t begin, int64_t end, int worker)
{
    (void)worker;
    const resize_job *job = context;
    for (int64_t row = begin; row < end; row++) {
        const int64_t frame = row / job->out_height;
        const tap y = job->rows[row % job->out_height];
        const uint8_t *above = job->in + (frame * job->height + y.low) * job->width * 3;
        const uint8_t *below = job->in + (frame * job->height + y.high) * job->width * 3;
        uint8_t *out = job->out + row * job->out_width * 3;
        for (int64_t i = 0; i < job->out_width; i++) {
            const tap x = job->columns[i];
            const float weights[4] = { y.weight_low * x.weight_low, y.weight_low * x.weight_high,
                                       y.weight_high * x.weight_low,
                                       y.weight_high * x.weight_high };
            for (int c = 0; c < 3; c++)
                *out++ = blend(job, above + c, below + c, x.low * 3, x.high * 3, weights);
        }
    }
}

m2_status m2_resize_frames(m2_pool *pool, const uint8_t *in, int64_t n_frames, int64_t width,
                           int64_t height, uint8_t *out, int64_t out_width, int64_t out_height)
{
    const int64_t sides[4] = { width, height, out_width, out_height };
    for (int i = 0; i < 4; i++)
        if (sides[i] < 1 || sides[i] > SIDE_MAX)
            return m2_fail(M2_ERR_ARG,
                           "resize %lldx%lld to %lldx%lld: sides of 1 to %d are possible",
                           (long long)width, (long long)height, (long long)out_width,
                           (long long)out_height, SIDE_MAX);
    tap *taps = malloc((size_t)(out_width + out_height) * sizeof *taps);
    if (!taps) return m2_fail(M2_ERR_MEMORY, "resize: no memory for the weights");
    make_taps(taps, width, out_width);
    make_taps(taps + out_width, height, out_height);
    resize_job job = {
        in, out, width, height, out_width, out_height, taps, taps + out_width, { 0 }
    };
    for (int i = 0; i < 256; i++) job.unit[i] = (float)i / 255.0f;
    m2_parallel_for(pool, n_frames * out_height, 8, resize_rows, &job);
    free(taps);
    return M2_OK;
}
