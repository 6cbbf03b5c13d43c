#include "backend/random_case.h"

/* One output in f64, straight from the definition. */
static double conv_truth(const m2_conv_args *a, int64_t t, int64_t y, int64_t x, int64_t o)
{
    const int64_t frames = a->x->shape[0], height = a->x->shape[1], width = a->x->shape[2];
    const int64_t c_in = a->x->shape[3], c_out = a->y->shape[3];
    const int kt = a->kernel[0], kh = a->kernel[1], kw = a->kernel[2];
    const int left = a->pad_left >= 0 ? a->pad_left : (kw - 1) * a->dilation / 2;
    double sum = a->bias ? value_at(a->bias, o) : 0;
    for (int tap = 0; tap < kt * kh * kw; tap++) {
        int64_t ft = t + tap / (kh * kw) - kt / 2;
        ft = ft < 0 ? 0 : ft >= frames ? frames - 1 : ft;
        const int64_t fy = y + tap / kw % kh - kh / 2;
        const int64_t fx = x + (int64_t)(tap % kw) * a->dilation - left;
        if (fy < 0 || fy >= height || fx < 0 || fx >= width) continue;
        for (int64_t c = 0; c < c_in; c++)
            sum += value_at(a->x, ((ft * height + fy) * width + fx) * c_in + c) *
                   value_at(a->w, (tap * c_out + o) * c_in + c);
    }
    return sum;
}

static double conv_error(const m2_conv_args *a)
{
    const int64_t *shape = a->y->shape;
    double difference = 0, norm = 0;
    for (int64_t i = 0; i < m2_tensor_count(a->y); i++) {
        const int64_t sample = i / shape[3];
        const double truth =
            conv_truth(a, sample / (shape[1] * shape[2]), sample / shape[2] % shape[1],
                       sample % shape[2], i % shape[3]);
        difference += (value_at(a->y, i) - truth) * (value_at(a->y, i) - truth);
        norm += truth * truth;
    }
    return sqrt(difference / norm);
}

/* Catches padding in the wrong direction, zeros where frames repeat, dilation of the wrong axis, a
 * tap order that is not that of the weights. */
static void convolution_follows_the_formula(void **state)
{
    (void)state;
    static const struct {
        int64_t shape[4], c_out;
        int kernel[3], dilation, pad_left;
    } cases[] = {
        { { 3, 4, 5, 7 }, 6, { 3, 3, 3 }, 1, -1 },  { { 2, 4, 3, 33 }, 5, { 1, 3, 3 }, 1, -1 },
        { { 4, 2, 2, 40 }, 5, { 3, 1, 1 }, 1, -1 }, { { 1, 1, 30, 8 }, 4, { 1, 1, 7 }, 9, -1 },
        { { 1, 1, 9, 8 }, 4, { 1, 1, 4 }, 1, 1 },   { { 2, 2, 2, 65 }, 3, { 1, 1, 1 }, 1, -1 },
        { { 1, 2, 3, 4 }, 3, { 5, 3, 3 }, 1, -1 },  { { 1, 1, 6, 4 }, 3, { 1, 1, 8 }, 1, 7 },
    };
    const m2_ops ops = reference_ops();
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        for (int is_f32 = 0; is_f32 <= 1; is_f32++) {
            random_case c;
            random_case_open(&c, i);
            const int64_t *s = cases[i].shape;
            const int *k = cases[i].kernel;
            const m2_dtype dtype = is_f32 ? M2_F32 : M2_BF16;
            m2_tensor x = random_tensor(&c, dtype, 1, s[0], s[1], s[2], s[3]);
            m2_tensor w = random_tensor(&c, dtype, 1, k[0] * k[1] * k[2], cases[i].c_out, s[3]);
            m2_tensor bias = random_tensor(&c, dtype, 1, cases[i].c_out);
            m2_tensor y = m2_tensor_make(&c.arena, dtype, s[0], s[1], s[2], cases[i].c_out);
            const m2_conv_args args = { .x = &x,
                                        .w = &w,
                                        .bias = &bias,
                                        .kernel = { k[0], k[1], k[2] },
                                        .dilation = cases[i].dilation,
                                        .pad_left = cases[i].pad_left,
                                        .y = &y };
            ops.conv(&ops, &args);
            check_near(conv_error(&args), 0, is_f32 ? 3e-7 : 0x1p-8, "case %zu f32 %d", i, is_f32);
            random_case_close(&c);
        }
    }
}

/* Catches a channel that reads its neighbour's taps, and kernel 5 with too little padding. */
static void depthwise_convolution_follows_the_formula(void **state)
{
    (void)state;
    const m2_ops ops = reference_ops();
    const int kernels[][3] = { { 1, 1, 1 }, { 3, 3, 3 }, { 5, 5, 5 } };
    for (int i = 0; i < 3; i++) {
        random_case c;
        random_case_open(&c, 9);
        const int *k = kernels[i];
        m2_tensor x = random_tensor(&c, M2_F32, 1, 3, 4, 6, 5);
        m2_tensor w = random_tensor(&c, M2_F32, 1, k[0] * k[1] * k[2], 5);
        m2_tensor bias = random_tensor(&c, M2_F32, 1, 5);
        m2_tensor y = m2_tensor_make(&c.arena, M2_F32, 3, 4, 6, 5);
        ops.conv_depthwise(
            &ops, &(m2_conv_depthwise_args){
                      .x = &x, .w = &w, .bias = &bias, .kernel = { k[0], k[1], k[2] }, .y = &y });
        /* The same as a full convolution whose weights are zero off the diagonal. */
        m2_tensor full = random_tensor(&c, M2_F32, 0, k[0] * k[1] * k[2], 5, 5);
        for (int64_t j = 0; j < m2_tensor_count(&w); j++)
            ((float *)full.data)[j * 5 + j % 5] = ((float *)w.data)[j];
        const double error = conv_error(&(m2_conv_args){ .x = &x,
                                                         .w = &full,
                                                         .bias = &bias,
                                                         .kernel = { k[0], k[1], k[2] },
                                                         .dilation = 1,
                                                         .pad_left = -1,
                                                         .y = &y });
        check_near(error, 0, 3e-7, "kernel %d", k[0]);
        random_case_close(&c);
    }
}

/* Catches the padding of odd strides, a tap taken from the wrong input, and the length law. */
static void transposed_convolution_follows_the_formula(void **state)
{
    (void)state;
    const m2_ops ops = reference_ops();
    for (int stride = 1; stride <= 8; stride++) {
        random_case c;
        random_case_open(&c, (uint64_t)stride);
        const int64_t length = 5, c_in = 35, c_out = 3, out = length * stride - stride % 2;
        m2_tensor x = random_tensor(&c, M2_F32, 1, length, c_in);
        m2_tensor w = random_tensor(&c, M2_F32, 1, 2 * stride, c_out, c_in);
        m2_tensor bias = random_tensor(&c, M2_F32, 1, c_out);
        m2_tensor y = m2_tensor_make(&c.arena, M2_F32, out, c_out);
        ops.conv_transpose(&ops, &(m2_conv_transpose_args){
                                     .x = &x, .w = &w, .bias = &bias, .stride = stride, .y = &y });
        double *truth = m2_new(&c.arena, double, out *c_out);
        for (int64_t i = 0; i < out * c_out; i++) truth[i] = value_at(&bias, i % c_out);
        for (int64_t t = 0; t < length; t++) {
            for (int64_t k = 0; k < 2 * stride; k++) {
                const int64_t to = t * stride + k - (stride + 1) / 2;
                if (to < 0 || to >= out) continue;
                for (int64_t i = 0; i < c_out * c_in; i++)
                    truth[to * c_out + i / c_in] +=
                        value_at(&x, t * c_in + i % c_in) * value_at(&w, k * c_out * c_in + i);
            }
        }
        const double error = m2_test_relative_error(y.data, M2_F32, truth, M2_F64, out * c_out);
        check_near(error, 0, 3e-7, "stride %d", stride);
        random_case_close(&c);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(convolution_follows_the_formula),
        cmocka_unit_test(depthwise_convolution_follows_the_formula),
        cmocka_unit_test(transposed_convolution_follows_the_formula),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
