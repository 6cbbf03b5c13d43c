#include <assert.h>

#include "backend/cpu/ref/product.h"
#include "backend/cpu/ref/ref.h"

/* The frame that stands `offset` from t; the first and the last repeat. */
static int64_t clamp_frame(int64_t t, int64_t n_frames)
{
    return t < 0 ? 0 : t >= n_frames ? n_frames - 1 : t;
}

/* First element of the sample at (t, y, x), or -1 outside. */
static int64_t sample_idx(const m2_tensor *tensor, int64_t t, int64_t y, int64_t x)
{
    const int64_t height = tensor->shape[1], width = tensor->shape[2];
    if (y < 0 || y >= height || x < 0 || x >= width) return -1;
    return ((clamp_frame(t, tensor->shape[0]) * height + y) * width + x) * tensor->shape[3];
}

/* One sample: all output channels. */
static void conv_sample(const m2_conv_args *args, int64_t t, int64_t y, int64_t x, int64_t sample)
{
    const int kt = args->kernel[0], kh = args->kernel[1], kw = args->kernel[2];
    const int pad_left = args->pad_left >= 0 ? args->pad_left : (kw - 1) * args->dilation / 2;
    const int64_t c_in = args->x->shape[3], c_out = args->y->shape[3];
    const m2_dtype dtype = args->x->dtype;
    for (int64_t o = 0; o < c_out; o++) {
        m2_sum sum = m2_sum_begin(dtype);
        int64_t tap = 0;
        for (int dt = 0; dt < kt; dt++) {
            for (int dy = 0; dy < kh; dy++) {
                for (int dx = 0; dx < kw; dx++, tap++) {
                    const int64_t idx = sample_idx(args->x, t + dt - kt / 2, y + dy - kh / 2,
                                                   x + (int64_t)dx * args->dilation - pad_left);
                    m2_sum_products(&sum, idx < 0 ? NULL : args->x->data, dtype, idx, args->w->data,
                                    dtype, (tap * c_out + o) * c_in, 1, c_in);
                }
            }
        }
        float value = m2_sum_end(&sum);
        if (args->bias) value += m2_load(args->bias->data, args->bias->dtype, o);
        m2_store(args->y->data, args->y->dtype, sample * c_out + o, value);
    }
}

static void conv_rows(void *context, int64_t begin, int64_t end, int worker)
{
    (void)worker;
    const m2_conv_args *args = context;
    const int64_t height = args->y->shape[1], width = args->y->shape[2];
    for (int64_t sample = begin; sample < end; sample++)
        conv_sample(args, sample / (height * width), sample / width % height, sample % width,
                    sample);
}

void m2_ref_conv(const m2_ops *ops, const m2_conv_args *args)
{
    assert(args->x->n_dims == 4 && args->w->n_dims == 3 && args->y->n_dims == 4);
    for (int i = 0; i < 3; i++) assert(args->x->shape[i] == args->y->shape[i]);
    assert(args->w->dtype == args->x->dtype);
    assert(args->w->shape[0] == (int64_t)args->kernel[0] * args->kernel[1] * args->kernel[2]);
    assert(args->w->shape[1] == args->y->shape[3] && args->w->shape[2] == args->x->shape[3]);
    m2_parallel_for(ops->pool, args->y->shape[0] * args->y->shape[1] * args->y->shape[2], 16,
                    conv_rows, (void *)args);
}
