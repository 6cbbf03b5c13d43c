/* guidance_rescale.c - bring the spread of the guided prediction towards that of the conditional
 * one, channel by channel:  v *= r * std(cond) / max(std(v), 1e-6) + (1 - r).
 *
 * Standard deviations are those of a population: mean first, then the squares of the distances from
 * it, summed in f64 in 16 lanes (element i adds to lane i % 16), lanes joined as 8, 4, 2, 1. */
#include "backend/cpu/ref/ref.h"

#include <assert.h>
#include <math.h>

#define N_LANES 16

typedef struct rescale_loop {
    const float *cond;
    float *v;
    int64_t n_channels, n; /* n elements a channel */
    int64_t channel_stride, stride;
    float rescale;
} rescale_loop;

static double join_lanes(double lanes[N_LANES])
{
    for (int half = N_LANES / 2; half >= 1; half /= 2)
        for (int l = 0; l < half; l++) lanes[l] += lanes[l + half];
    return lanes[0];
}

static float deviation(const float *x, int64_t n, int64_t stride)
{
    double sums[N_LANES] = { 0 }, squares[N_LANES] = { 0 };
    for (int64_t i = 0; i < n; i++) sums[i % N_LANES] += x[i * stride];
    const double mean = join_lanes(sums) / (double)n;
    for (int64_t i = 0; i < n; i++) {
        const double distance = x[i * stride] - mean;
        squares[i % N_LANES] += distance * distance;
    }
    return (float)sqrt(join_lanes(squares) / (double)n);
}

static void rescale_channels(void *context, int64_t begin, int64_t end, int worker)
{
    (void)worker;
    const rescale_loop *loop = context;
    for (int64_t channel = begin; channel < end; channel++) {
        const int64_t start = channel * loop->channel_stride;
        float *v = loop->v + start;
        const float deviation_c = deviation(loop->cond + start, loop->n, loop->stride);
        const float deviation_v = deviation(v, loop->n, loop->stride);
        const float ratio = deviation_c / (deviation_v > 1e-6f ? deviation_v : 1e-6f);
        const float part = loop->rescale * ratio;
        const float factor = part + (1.0f - loop->rescale);
        for (int64_t i = 0; i < loop->n; i++) v[i * loop->stride] *= factor;
    }
}

void m2_ref_guidance_rescale(const m2_ops *ops, const m2_guidance_rescale_args *args)
{
    const int64_t count = m2_tensor_count(args->cond);
    const int last = args->cond->n_dims - 1;
    assert(args->cond->dtype == M2_F32 && args->v->dtype == M2_F32);
    assert(last >= 0 && m2_tensor_count(args->v) == count);
    if (count == 0) return;
    rescale_loop loop = { .cond = args->cond->data, .v = args->v->data, .rescale = args->rescale };
    loop.n_channels = args->cond->shape[args->channels_last ? last : 0];
    loop.n = count / loop.n_channels;
    loop.channel_stride = args->channels_last ? 1 : loop.n;
    loop.stride = args->channels_last ? loop.n_channels : 1;
    m2_parallel_for(ops->pool, loop.n_channels, 1, rescale_channels, &loop);
}
