/* bench_conv.cu - the convolutions and what stands around them in the decoders: checked against
 * sums in float64, then timed at the shapes of the release.
 *
 *     bench_conv check | video | audio [warm-up seconds [portable]]
 *
 * By the best kernels of this device, or by those that every vendor runs.  video times every
 * convolution of one chunk of the video decoder (9 latent frames), 272p and 540p; audio those of
 * the audio decoder. */
#include "bench/gpu/bench_device.cuh"
#include "bench/gpu/bench_values.cuh"

#define SAMPLED 20000 /* outputs of a case that are computed in float64 */

typedef struct conv_case {
    int64_t t, h, w, c_in, c_out;
    int kernel[3], dilation, pad_left;
    m2_dtype dtype;
    int stride; /* of a transposed convolution; 0: an ordinary one */
} conv_case;

typedef struct conv_tensors {
    m2_tensor x, w, bias, y;
} conv_tensors;

/* ---- values ---------------------------------------------------------------------------------- */

static m2_tensor device_tensor(bench_device *device, m2_dtype dtype, int n_dims,
                               const int64_t *shape)
{
    m2_tensor tensor = m2_tensor_wrap(0, dtype, n_dims, shape);
    bench_must(gpuMalloc(&tensor.data, m2_tensor_bytes(&tensor)), "memory");
    bench_must(gpuMemsetAsync(tensor.data, 0xff, m2_tensor_bytes(&tensor), device->gpu.stream),
               "memory");
    return tensor;
}

static conv_tensors make_tensors(bench_device *device, const conv_case *c)
{
    const int64_t taps = c->stride ? 2 * c->stride : c->kernel[0] * c->kernel[1] * c->kernel[2];
    const int64_t x_shape[4] = { c->t, c->h, c->w, c->c_in }, line[2] = { c->w, c->c_in };
    const int64_t w_shape[3] = { taps, c->c_out, c->c_in };
    const int64_t y_shape[4] = { c->t, c->h, c->w, c->c_out };
    const int64_t y_line[2] = { c->w * c->stride - c->stride % 2, c->c_out };
    conv_tensors made;
    made.x = device_tensor(device, c->dtype, c->stride ? 2 : 4, c->stride ? line : x_shape);
    made.w = device_tensor(device, c->dtype, 3, w_shape);
    made.bias = device_tensor(device, c->dtype, 1, &c->c_out);
    made.y = device_tensor(device, c->dtype, c->stride ? 2 : 4, c->stride ? y_line : y_shape);
    const double k = (double)(c->stride ? 2 : taps) * (double)c->c_in;
    bench_fill(device, &made.x, 1, 1.0f);
    bench_fill(device, &made.w, 77, (float)(1 / sqrt(k)));
    bench_fill(device, &made.bias, 5, 0.5f);
    bench_wait(device, "values");
    return made;
}

static void free_tensors(conv_tensors *tensors)
{
    gpuFree(tensors->x.data);
    gpuFree(tensors->w.data);
    gpuFree(tensors->bias.data);
    gpuFree(tensors->y.data);
}

static void run_conv(bench_device *device, const conv_case *c, conv_tensors *t)
{
    m2_conv_args args = {};
    m2_conv_transpose_args transpose = {};
    args.x = transpose.x = &t->x;
    args.w = transpose.w = &t->w;
    args.bias = transpose.bias = &t->bias;
    args.y = transpose.y = &t->y;
    for (int i = 0; i < 3; i++) args.kernel[i] = c->kernel[i];
    args.dilation = c->dilation;
    args.pad_left = c->pad_left;
    transpose.stride = c->stride;
    if (c->stride)
        m2_gpu_conv_transpose(&device->ops, &transpose);
    else
        m2_gpu_conv(&device->ops, &args);
}

/* ---- truth ----------------------------------------------------------------------------------- */

static __device__ double at(const void *data, int is_bf16, int64_t i)
{
    return is_bf16 ? (double)__bfloat162float(((const gpu_bf16 *)data)[i])
                   : (double)((const float *)data)[i];
}

/* Sum over the channels of one sample and one tap; outside is zero. */
static __device__ double tap_sum(const void *x, int64_t sample, const void *w, int64_t row,
                                 int is_bf16, int64_t c_in)
{
    double sum = 0;
    if (sample < 0) return 0;
    for (int64_t c = 0; c < c_in; c++)
        sum += at(x, is_bf16, sample * c_in + c) * at(w, is_bf16, row * c_in + c);
    return sum;
}

static __device__ double conv_sum(const conv_case &c, const void *x, const void *w, int is_bf16,
                                  int64_t sample, int64_t o)
{
    const int64_t t = sample / (c.h * c.w), y = sample / c.w % c.h, px = sample % c.w;
    const int pad = c.pad_left >= 0 ? c.pad_left : (c.kernel[2] - 1) * c.dilation / 2;
    double sum = 0;
    int64_t tap = 0;
    for (int dt = 0; dt < c.kernel[0]; dt++)
        for (int dy = 0; dy < c.kernel[1]; dy++)
            for (int dx = 0; dx < c.kernel[2]; dx++, tap++) {
                const int64_t ft = t + dt - c.kernel[0] / 2, row = y + dy - c.kernel[1] / 2;
                const int64_t column = px + dx * c.dilation - pad;
                const int64_t frame = ft < 0 ? 0 : ft >= c.t ? c.t - 1 : ft;
                const bool is_inside = row >= 0 && row < c.h && column >= 0 && column < c.w;
                sum += tap_sum(x, is_inside ? (frame * c.h + row) * c.w + column : -1, w,
                               tap * c.c_out + o, is_bf16, c.c_in);
            }
    return sum;
}

static __device__ double transposed_sum(const conv_case &c, const void *x, const void *w,
                                        int is_bf16, int64_t t, int64_t o)
{
    double sum = 0;
    for (int64_t k = 0; k < 2 * c.stride; k++) {
        const int64_t from = t + (c.stride + 1) / 2 - k;
        if (from >= 0 && from % c.stride == 0 && from / c.stride < c.w)
            sum += tap_sum(x, from / c.stride, w, k * c.c_out + o, is_bf16, c.c_in);
    }
    return sum;
}

/* Squares of error and of truth of output i * step, a pair for each thread. */
static __global__ void truth_kernel(conv_case c, const void *x, const void *w, const void *bias,
                                    const void *y, int64_t n, int64_t step, double *squares)
{
    const int64_t i = ((int64_t)blockIdx.x * blockDim.x + threadIdx.x), idx = i * step;
    if (idx >= n) return;
    const int is_bf16 = c.dtype == M2_BF16;
    const int64_t sample = idx / c.c_out, o = idx % c.c_out;
    const double truth = (c.stride ? transposed_sum(c, x, w, is_bf16, sample, o)
                                   : conv_sum(c, x, w, is_bf16, sample, o)) +
                         at(bias, is_bf16, o);
    const double wrong = at(y, is_bf16, idx) - truth;
    squares[2 * i] = wrong * wrong;
    squares[2 * i + 1] = truth * truth;
}

/* Relative RMS error over some or all outputs; NaN if any of them is. */
static double case_error(bench_device *device, const conv_case *c, const conv_tensors *t)
{
    const int64_t n = m2_tensor_count(&t->y), step = n > SAMPLED ? n / SAMPLED | 1 : 1;
    const int64_t n_checked = (n + step - 1) / step;
    m2_tensor squares = bench_tensor(device, M2_F64, n_checked, 2, 1, 0);
    truth_kernel<<<(unsigned int)((n_checked + 63) / 64), 64, 0, device->gpu.stream>>>(
        *c, t->x.data, t->w.data, t->bias.data, t->y.data, n, step, (double *)squares.data);
    double *host = (double *)bench_download(device, &squares), wrong = 0, size = 0;
    for (int64_t i = 0; i < n_checked; i++) {
        wrong += host[2 * i];
        size += host[2 * i + 1];
    }
    free(host);
    gpuFree(squares.data);
    return sqrt(wrong / size);
}

static void check_case(bench_device *device, const conv_case *c)
{
    conv_tensors tensors = make_tensors(device, c);
    /* bf16: rounding the result alone gives 1.66e-3; f32: the floor of the error rule. */
    const double bound = c->dtype == M2_BF16 ? 1.8e-3 : 3e-7;
    run_conv(device, c, &tensors);
    bench_wait(device, "conv");
    const double error = case_error(device, c, &tensors);
    printf("%4lld x %3lld x %4lld  %4lld -> %4lld  kernel %d%d%d dilation %d left %d stride %d %s  "
           "%.2e\n",
           (long long)c->t, (long long)c->h, (long long)c->w, (long long)c->c_in,
           (long long)c->c_out, c->kernel[0], c->kernel[1], c->kernel[2], c->dilation, c->pad_left,
           c->stride, c->dtype == M2_BF16 ? "bf16" : "f32", error);
    bench_check(device, error <= bound, "error %.3e above %.1e", error, bound);
    free_tensors(&tensors);
}

/* Frames before the last have the same bits with and without a frame behind them that they do not
 * read: a sample must not know how large its tensor is. */
static void check_bits(bench_device *device, m2_dtype dtype)
{
    conv_case c = { 5, 19, 41, 128, 192, { 3, 3, 3 }, 1, -1, dtype, 0 };
    conv_tensors whole = make_tensors(device, &c), part;
    const int64_t n_same = 2 * c.h * c.w * c.c_out;
    run_conv(device, &c, &whole);
    c.t = 3;
    part = make_tensors(device, &c); /* the same values: they follow from their index */
    run_conv(device, &c, &part);
    char *a = (char *)bench_download(device, &whole.y),
         *b = (char *)bench_download(device, &part.y);
    bench_check(device, memcmp(a, b, (size_t)n_same * m2_dtype_bytes(dtype)) == 0,
                "bits depend on the number of frames");
    free(a);
    free(b);
    free_tensors(&whole);
    free_tensors(&part);
}

static void check_all(bench_device *device)
{
    static const conv_case cases[] = {
        { 1, 1, 1, 8, 16, { 1, 1, 1 }, 1, -1, M2_BF16, 0 },
        { 1, 8, 16, 64, 64, { 1, 1, 1 }, 1, -1, M2_BF16, 0 },
        { 1, 8, 32, 64, 64, { 1, 3, 3 }, 1, -1, M2_BF16, 0 },
        { 3, 9, 17, 64, 128, { 3, 3, 3 }, 1, -1, M2_BF16, 0 },
        { 2, 7, 5, 48, 256, { 3, 3, 3 }, 1, -1, M2_BF16, 0 },
        { 4, 16, 28, 48, 512, { 3, 3, 3 }, 1, -1, M2_BF16, 0 },
        { 3, 13, 29, 256, 512, { 3, 1, 1 }, 1, -1, M2_BF16, 0 },
        { 2, 33, 70, 64, 12, { 3, 3, 3 }, 1, -1, M2_BF16, 0 },
        { 2, 12, 20, 72, 80, { 3, 3, 3 }, 1, -1, M2_BF16, 0 },
        { 2, 12, 20, 128, 300, { 3, 3, 3 }, 1, -1, M2_BF16, 0 },
        { 2, 6, 6, 5, 7, { 3, 3, 3 }, 1, -1, M2_BF16, 0 },
        { 1, 1, 300, 64, 24, { 1, 1, 7 }, 3, -1, M2_BF16, 0 },
        { 1, 1, 300, 24, 40, { 1, 1, 4 }, 1, 1, M2_BF16, 0 },
        { 9, 16, 28, 512, 512, { 3, 3, 3 }, 1, -1, M2_BF16, 0 },
        { 5, 64, 112, 256, 256, { 3, 3, 3 }, 1, -1, M2_BF16, 0 },
        { 3, 128, 224, 128, 128, { 3, 3, 3 }, 1, -1, M2_BF16, 0 },
        { 2, 6, 6, 5, 7, { 3, 3, 3 }, 1, -1, M2_F32, 0 },
        { 1, 1, 300, 64, 2048, { 1, 1, 7 }, 1, -1, M2_F32, 0 },
        { 1, 1, 2000, 1024, 1024, { 1, 1, 7 }, 9, -1, M2_F32, 0 },
        { 1, 1, 777, 128, 2, { 1, 1, 7 }, 1, -1, M2_F32, 0 },
        { 1, 1, 300, 20, 40, { 1, 1, 6 }, 1, 2, M2_F32, 0 },
        { 1, 1, 250, 2048, 1024, { 1, 1, 1 }, 1, -1, M2_F32, 8 },
        { 1, 1, 33, 6, 10, { 1, 1, 1 }, 1, -1, M2_F32, 5 },
        { 1, 1, 100, 128, 128, { 1, 1, 1 }, 1, -1, M2_F32, 1 },
        { 1, 1, 100, 128, 128, { 1, 1, 1 }, 1, -1, M2_F32, 2 },
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) check_case(device, &cases[i]);
    check_bits(device, M2_BF16);
    check_bits(device, M2_F32);
}

/* ---- times ----------------------------------------------------------------------------------- */

typedef struct timed {
    bench_device *device;
    const conv_case *c;
    conv_tensors *tensors;
} timed;

static void timed_conv(void *context)
{
    timed *t = (timed *)context;
    run_conv(t->device, t->c, t->tensors);
}

static double case_flop(const conv_case *c)
{
    const double taps = c->stride ? 2 : c->kernel[0] * c->kernel[1] * c->kernel[2];
    const double samples = (double)(c->t * c->h * c->w) * (c->stride ? c->stride : 1);
    return 2 * samples * taps * (double)c->c_in * (double)c->c_out;
}

/* Milliseconds of `count` such layers. */
static double time_case(bench_device *device, const conv_case *c, int count, double warm_s)
{
    conv_tensors tensors = make_tensors(device, c);
    timed context = { device, c, &tensors };
    const double flop = case_flop(c), ms = bench_time(device, timed_conv, &context, warm_s, 5);
    printf("%3d of %3lld x %3lld x %6lld  %4lld -> %4lld  %d%d%d  %8.3f ms  %6.1f TFLOP/s\n", count,
           (long long)c->t, (long long)c->h, (long long)c->w, (long long)c->c_in,
           (long long)c->c_out, c->kernel[0], c->kernel[1], c->kernel[2], ms, flop / ms / 1e9);
    free_tensors(&tensors);
    return count * ms;
}

typedef struct layer {
    int count;        /* of such layers                        */
    int scale, times; /* of the latent's H and W, and its T    */
    int64_t c_in, c_out;
    int kernel[3];
} layer;

/* One chunk of 9 latents in the middle: 9, 18, 36 frames. */
static void time_video(bench_device *device, int64_t h, int64_t w, double warm_s)
{
    static const layer layers[] = {
        { 1, 1, 1, 48, 512, { 3, 3, 3 } },   { 6, 1, 1, 512, 512, { 3, 3, 3 } },
        { 1, 1, 1, 512, 1024, { 3, 1, 1 } }, { 1, 2, 2, 512, 512, { 1, 3, 3 } },
        { 6, 2, 2, 512, 512, { 3, 3, 3 } },  { 1, 2, 2, 512, 256, { 3, 3, 3 } },
        { 1, 2, 2, 256, 256, { 3, 3, 3 } },  { 1, 2, 2, 512, 256, { 1, 1, 1 } },
        { 1, 2, 2, 256, 512, { 3, 1, 1 } },  { 1, 4, 4, 256, 256, { 1, 3, 3 } },
        { 4, 4, 4, 256, 256, { 3, 3, 3 } },  { 1, 4, 4, 256, 128, { 3, 3, 3 } },
        { 1, 4, 4, 128, 128, { 3, 3, 3 } },  { 1, 4, 4, 256, 128, { 1, 1, 1 } },
        { 1, 8, 4, 128, 128, { 1, 3, 3 } },  { 4, 8, 4, 128, 128, { 3, 3, 3 } },
        { 1, 8, 4, 128, 64, { 3, 3, 3 } },   { 5, 8, 4, 64, 64, { 3, 3, 3 } },
        { 1, 8, 4, 128, 64, { 1, 1, 1 } },   { 1, 8, 4, 64, 12, { 3, 3, 3 } },
    };
    double ms = 0, flop = 0;
    printf("latent %lld x %lld\n", (long long)h, (long long)w);
    for (size_t i = 0; i < sizeof layers / sizeof *layers; i++) {
        const layer *l = &layers[i];
        const conv_case c = { 9 * l->times,
                              h * l->scale,
                              w * l->scale,
                              l->c_in,
                              l->c_out,
                              { l->kernel[0], l->kernel[1], l->kernel[2] },
                              1,
                              -1,
                              M2_BF16,
                              0 };
        ms += time_case(device, &c, l->count, warm_s);
        flop += l->count * case_flop(&c);
    }
    printf("convolutions of a chunk: %.2f ms, %.2f TFLOP, %.1f TFLOP/s\n", ms, flop / 1e12,
           flop / ms / 1e9);
}

static void time_audio(bench_device *device, double warm_s)
{
    static const int64_t channels[] = { 2048, 1024, 512, 256, 128, 128 };
    static const int strides[] = { 8, 8, 4, 4, 2 };
    conv_case c = { 1, 1, 250, 64, 2048, { 1, 1, 7 }, 1, -1, M2_F32, 0 };
    double ms = time_case(device, &c, 1, warm_s), flop = case_flop(&c);
    int64_t length = 250;
    for (int block = 0; block < 5; block++) {
        conv_case up = { 1,           1, length, channels[block], channels[block + 1],
                         { 1, 1, 1 }, 1, -1,     M2_F32,          strides[block] };
        length *= strides[block];
        conv_case seven = { 1, 1, length, up.c_out, up.c_out, { 1, 1, 7 }, 9, -1, M2_F32, 0 };
        conv_case one = { 1, 1, length, up.c_out, up.c_out, { 1, 1, 1 }, 1, -1, M2_F32, 0 };
        ms += time_case(device, &up, 1, warm_s) + time_case(device, &seven, 3, warm_s) +
              time_case(device, &one, 3, warm_s);
        flop += case_flop(&up) + 3 * case_flop(&seven) + 3 * case_flop(&one);
    }
    conv_case last = { 1, 1, length, 128, 2, { 1, 1, 7 }, 1, -1, M2_F32, 0 };
    ms += time_case(device, &last, 1, warm_s);
    printf("convolutions of the audio decoder: %.2f ms, %.2f TFLOP, %.1f TFLOP/s\n", ms,
           flop / 1e12, flop / ms / 1e9);
}

int main(int argc, char **argv)
{
    const char *what = argc > 1 ? argv[1] : "check";
    const double warm_s = argc > 2 ? atof(argv[2]) : 0.05;
    bench_device device;
    bench_open(&device);
    device.gpu.use_portable = argc > 3 && strcmp(argv[3], "portable") == 0;
    if (strcmp(what, "check") == 0) check_all(&device);
    if (strcmp(what, "video") == 0) {
        time_video(&device, 16, 28, warm_s);
        time_video(&device, 32, 56, warm_s);
    }
    if (strcmp(what, "audio") == 0) time_audio(&device, warm_s);
    printf("%d failed\n", device.n_failed);
    return device.n_failed > 0;
}
