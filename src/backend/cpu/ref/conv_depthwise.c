#include <assert.h>

#include "backend/cpu/ref/product.h"
#include "backend/cpu/ref/ref.h"

/* Sum over the taps (t, y, x) as K, in the order of every other product. */
static float depthwise_value(const m2_conv_depthwise_args *args, int64_t t, int64_t y, int64_t x,
                             int64_t c)
{
    const int kt = args->kernel[0], kh = args->kernel[1], kw = args->kernel[2];
    const int n_taps = kt * kh * kw;
    const int64_t frames = args->x->shape[0], height = args->x->shape[1];
    const int64_t width = args->x->shape[2], channels = args->x->shape[3];
    const m2_dtype dtype = args->x->dtype;
    m2_sum sum = m2_sum_begin(dtype);
    for (int first = 0; first < n_taps; first += M2_BLOCK_K) {
        float chain[2] = { 0, 0 };
        for (int tap = first; tap < first + M2_BLOCK_K; tap++) {
            float value = 0, weight = 0;
            if (tap < n_taps) {
                const int64_t ty = t + tap / (kh * kw) - kt / 2;
                const int64_t frame = ty < 0 ? 0 : ty >= frames ? frames - 1 : ty;
                const int64_t row = y + tap / kw % kh - kh / 2, column = x + tap % kw - kw / 2;
                weight = m2_load(args->w->data, dtype, tap * channels + c);
                if (row >= 0 && row < height && column >= 0 && column < width)
                    value = m2_load(args->x->data, dtype,
                                    ((frame * height + row) * width + column) * channels + c);
            }
            chain[tap & 1] = fmaf(value, weight, chain[tap & 1]);
        }
        m2_sum_add(&sum, chain[0] + chain[1]);
    }
    return m2_sum_end(&sum);
}

static void depthwise_samples(void *context, int64_t begin, int64_t end, int worker)
{
    (void)worker;
    const m2_conv_depthwise_args *args = context;
    const int64_t height = args->x->shape[1], width = args->x->shape[2];
    const int64_t channels = args->x->shape[3];
    for (int64_t sample = begin; sample < end; sample++) {
        for (int64_t c = 0; c < channels; c++) {
            float value = depthwise_value(args, sample / (height * width), sample / width % height,
                                          sample % width, c);
            if (args->bias) value += m2_load(args->bias->data, args->bias->dtype, c);
            m2_store(args->y->data, args->y->dtype, sample * channels + c, value);
        }
    }
}

void m2_ref_conv_depthwise(const m2_ops *ops, const m2_conv_depthwise_args *args)
{
    assert(args->x->n_dims == 4 && args->w->n_dims == 2 && args->w->dtype == args->x->dtype);
    assert(args->w->shape[0] == (int64_t)args->kernel[0] * args->kernel[1] * args->kernel[2]);
    assert(args->w->shape[1] == args->x->shape[3]);
    assert(m2_tensor_count(args->x) == m2_tensor_count(args->y));
    m2_parallel_for(ops->pool, args->x->shape[0] * args->x->shape[1] * args->x->shape[2], 16,
                    depthwise_samples, (void *)args);
}
