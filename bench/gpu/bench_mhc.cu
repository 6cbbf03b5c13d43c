/* bench_mhc.cu - the kernels of the residual streams: checked against float64 and the CPU's
 * operators, then timed at the shape of a real layer.
 *
 *     bench_mhc portable|open|write|joined|many|time|hot [warm-up seconds]
 *
 * `hot` times each kernel between products that bring the card to its power limit, as a layer does. */
#include "bench/gpu/bench_device.cuh"

extern "C" {
#include "backend/cpu/ref/ref.h"
}

#define OUT   24
#define EPS   1e-6f
#define FLOOR 3e-7

enum { H_PRE, H_POST, H_RES, X, PHI_OUT, H_PRE_F32, H_POST_F32, H_RES_F32, N_OUTPUTS };
static const char *const output_names[] = { "h_pre",   "h_post",    "h_res",      "x",
                                            "phi_out", "h_pre_f32", "h_post_f32", "h_res_f32" };
static const int output_widths[] = { 4, 4, 16, 0, 24, 4, 4, 16 };

typedef struct half_case {
    int64_t n, width;
    m2_groups groups;
    int has_groups;
    void *values[9]; /* s, norm, phi, alpha x 3, bias_pre, bias_post, bias_res */
    double *truth[N_OUTPUTS];
} half_case;

static int64_t output_width(const half_case *c, int i)
{
    return i == X ? c->width : output_widths[i];
}

static m2_dtype output_type(int i)
{
    return i <= X ? M2_BF16 : M2_F32;
}

/* ---- truth ----------------------------------------------------------------------------------- */

static void sinkhorn(double m[4][4])
{
    double largest = m[0][0];
    for (int i = 0; i < 16; i++) largest = fmax(largest, m[i / 4][i % 4]);
    for (int i = 0; i < 16; i++) m[i / 4][i % 4] = exp(m[i / 4][i % 4] - largest);
    for (int round = 0; round < 20; round++) {
        for (int j = 0; j < 4; j++) {
            const double sum = m[0][j] + m[1][j] + m[2][j] + m[3][j] + 1e-12;
            for (int i = 0; i < 4; i++) m[i][j] /= sum;
        }
        for (int i = 0; i < 4; i++) {
            const double sum = m[i][0] + m[i][1] + m[i][2] + m[i][3] + 1e-12;
            for (int j = 0; j < 4; j++) m[i][j] /= sum;
        }
    }
}

static void truth_row(half_case *c, int64_t row)
{
    const int64_t k_all = 4 * c->width;
    const m2_bf16 *s = (const m2_bf16 *)c->values[0] + row * k_all;
    const float *norm = (const float *)c->values[1], *phi = (const float *)c->values[2];
    const float *bias_pre = (const float *)c->values[6], *bias_post = (const float *)c->values[7];
    const float *bias_res = (const float *)c->values[8];
    const double ms = 1 / sqrt((double)k_all);
    double squares = 0, out[OUT] = { 0 }, res[4][4];
    int64_t group = 0;
    if (c->has_groups)
        while (row >= c->groups.begin[group + 1]) group++;
    for (int64_t k = 0; k < k_all; k++) {
        const double value = m2_bf16_to_f32(s[k]);
        squares += value * value;
        for (int j = 0; j < OUT; j++)
            out[j] += value * (norm[group * k_all + k] + 1.0) * phi[k * OUT + j];
    }
    for (int j = 0; j < OUT; j++) out[j] /= sqrt(squares / (double)k_all + (double)EPS);
    double *const *t = c->truth;
    for (int j = 0; j < OUT; j++) t[PHI_OUT][row * OUT + j] = out[j];
    for (int i = 0; i < 4; i++) {
        const double pre = *(float *)c->values[3] * ms * out[i] + bias_pre[i];
        const double post = *(float *)c->values[4] * ms * out[4 + i] + bias_post[i];
        t[H_PRE][row * 4 + i] = t[H_PRE_F32][row * 4 + i] = 1 / (1 + exp(-pre));
        t[H_POST][row * 4 + i] = t[H_POST_F32][row * 4 + i] = 2 / (1 + exp(-post));
        for (int j = 0; j < 4; j++)
            res[i][j] = *(float *)c->values[5] * ms * out[8 + 4 * i + j] + bias_res[4 * i + j];
    }
    sinkhorn(res);
    for (int i = 0; i < 16; i++)
        t[H_RES][row * 16 + i] = t[H_RES_F32][row * 16 + i] = res[i / 4][i % 4];
    for (int64_t d = 0; d < c->width; d++) {
        double sum = 0;
        for (int i = 0; i < 4; i++)
            sum += t[H_PRE][row * 4 + i] * m2_bf16_to_f32(s[i * c->width + d]);
        t[X][row * c->width + d] = sum;
    }
}

static void truth_rows(void *context, int64_t begin, int64_t end, int worker)
{
    for (int64_t row = begin; row < end; row++) truth_row((half_case *)context, row);
}

/* Random values, over and over: as many as a layer has would take seconds. */
static void *many_values(bench_random *random, m2_dtype dtype, int64_t n, float scale)
{
    const int64_t once = n < 1 << 22 ? n : 1 << 22;
    const size_t size = m2_dtype_bytes(dtype);
    char *values = (char *)bench_values(random, dtype, once, scale);
    if (n > once) values = (char *)realloc(values, (size_t)n * size);
    if (!values) exit(1);
    for (int64_t at = once; at < n; at += once)
        memcpy(values + at * size, values, (size_t)(n - at < once ? n - at : once) * size);
    return values;
}

static void make_inputs(half_case *c)
{
    const int64_t k = 4 * c->width, n_groups = c->has_groups ? c->groups.n_groups : 1;
    bench_random random = { (uint64_t)(c->n * 7 + c->width) };
    c->values[0] = many_values(&random, M2_BF16, c->n * k, 3.0f);
    c->values[1] = bench_values(&random, M2_F32, n_groups * k, 0.2f);
    c->values[2] = bench_values(&random, M2_F32, k * OUT, 1.0f);
    for (int i = 3; i < 9; i++)
        c->values[i] = bench_values(&random, M2_F32, i < 6 ? 1 : i < 8 ? 4 : 16, 1.0f);
    for (int i = 3; i < 6; i++) *(float *)c->values[i] = 0.5f + 0.3f * (float)i;
}

static void make_case(bench_device *device, half_case *c)
{
    make_inputs(c);
    for (int i = 0; i < N_OUTPUTS; i++)
        c->truth[i] = (double *)malloc((size_t)(c->n * output_width(c, i)) * sizeof(double));
    m2_parallel_for(device->host.pool, c->n, 1, truth_rows, c);
}

static void free_case(half_case *c)
{
    for (int i = 0; i < 9; i++) free(c->values[i]);
    for (int i = 0; i < N_OUTPUTS; i++) free(c->truth[i]);
}

/* ---- one run, on the device or the CPU ------------------------------------------------------- */

typedef struct half_tensors {
    m2_tensor in[9], out[N_OUTPUTS];
    m2_mhc_open_args args;
} half_tensors;

static void make_tensors(bench_device *device, const half_case *c, int64_t n, int on_device,
                         int with_f32, half_tensors *t)
{
    const int64_t k = 4 * c->width, n_groups = c->has_groups ? c->groups.n_groups : 1;
    const int64_t counts[9] = { n * k, n_groups * k, k * OUT, 1, 1, 1, 4, 4, 16 };
    for (int i = 0; i < 9; i++) {
        const m2_dtype dtype = i == 0 ? M2_BF16 : M2_F32;
        const int64_t a = i == 0 ? n : i == 2 ? k : counts[i], b = i == 0 ? 4 : i == 2 ? OUT : 1;
        t->in[i] = on_device ? bench_tensor(device, dtype, a, b, counts[i] / a / b, c->values[i])
                             : bench_host_tensor(dtype, a, b, counts[i] / a / b, c->values[i]);
    }
    for (int i = 0; i < N_OUTPUTS; i++) {
        const int64_t width = output_width(c, i);
        t->out[i] = on_device ? bench_tensor(device, output_type(i), n, width, 1, 0)
                              : bench_host_tensor(output_type(i), n, width, 1, 0);
    }
    m2_tensor *in = t->in, *out = t->out;
    const m2_mhc_coefficients_args coefficients = { &in[0],
                                                    &in[1],
                                                    c->has_groups ? &c->groups : 0,
                                                    &in[2],
                                                    &in[3],
                                                    &in[4],
                                                    &in[5],
                                                    &in[6],
                                                    &in[7],
                                                    &in[8],
                                                    EPS,
                                                    &out[H_PRE],
                                                    &out[H_POST],
                                                    &out[H_RES],
                                                    with_f32 ? &out[PHI_OUT] : 0,
                                                    with_f32 ? &out[H_PRE_F32] : 0,
                                                    with_f32 ? &out[H_POST_F32] : 0,
                                                    with_f32 ? &out[H_RES_F32] : 0 };
    t->args.coefficients = coefficients;
    t->args.x = &out[X];
}

static void free_tensors(half_tensors *t, int on_device)
{
    for (int i = 0; i < 9 + N_OUTPUTS; i++) {
        void *data = i < 9 ? t->in[i].data : t->out[i - 9].data;
        if (on_device)
            gpuFree(data);
        else
            free(data);
    }
}

/* Of the case's groups what its first n rows leave; gives back what they were. */
static m2_groups cut_groups(half_case *c, int64_t n)
{
    const m2_groups groups = c->groups;
    for (int g = 0; g <= groups.n_groups; g++)
        if (c->groups.begin[g] > n) c->groups.begin[g] = n;
    return groups;
}

/* The case's first n rows; outputs to got, the caller frees. */
static void run(bench_device *device, half_case *c, int64_t n, int with_f32, void **got)
{
    half_tensors t;
    const m2_groups groups = cut_groups(c, n);
    make_tensors(device, c, n, 1, with_f32, &t);
    m2_gpu_mhc_open(&device->ops, &t.args);
    bench_wait(device, "mhc_open");
    for (int i = 0; i < N_OUTPUTS; i++) got[i] = bench_download(device, &t.out[i]);
    free_tensors(&t, 1);
    c->groups = groups;
}

static void check_half(bench_device *device, half_case *c, int with_f32)
{
    void *got[N_OUTPUTS], *again[N_OUTPUTS], *part[N_OUTPUTS];
    half_tensors host;
    const int64_t fewer = c->n > 5 ? c->n - 5 : c->n;
    make_case(device, c);
    make_tensors(device, c, c->n, 0, 1, &host);
    m2_ref_mhc_coefficients(&device->host, &host.args.coefficients);
    m2_mhc_read_args read = { &host.in[0], &host.out[H_PRE], &host.out[X] };
    m2_ref_mhc_read(&device->host, &read);
    run(device, c, c->n, with_f32, got);
    run(device, c, c->n, with_f32, again);
    run(device, c, fewer, with_f32, part);
    printf("%s n %3d D %4d groups %d:", with_f32 ? "simt" : "sm90", (int)c->n, (int)c->width,
           c->has_groups ? c->groups.n_groups : 0);
    for (int i = 0; i < (with_f32 ? N_OUTPUTS : X + 1); i++) {
        const int64_t count = c->n * output_width(c, i);
        const size_t size = m2_dtype_bytes(output_type(i));
        const double error = bench_error(got[i], output_type(i), c->truth[i], count);
        const double cpu = bench_error(host.out[i].data, output_type(i), c->truth[i], count);
        const double floor = i <= X ? 1.0 / 1024 : FLOOR;
        const double allowed = 2 * cpu > floor ? 2 * cpu : floor;
        if (c->n > 60 || !(error <= allowed))
            printf(" %s %.1e (%.1e)", output_names[i], error, cpu);
        bench_check(device, error <= allowed, "%s", output_names[i]);
        bench_check(device, !memcmp(got[i], again[i], (size_t)count * size), "%s: run to run",
                    output_names[i]);
        bench_check(device, !memcmp(got[i], part[i], (size_t)(fewer * output_width(c, i)) * size),
                    "%s: bits depend on n", output_names[i]);
    }
    printf("\n");
    for (int i = 0; i < N_OUTPUTS; i++) free(got[i]), free(again[i]), free(part[i]);
    free_tensors(&host, 0);
    free_case(c);
}

static void check_halves(bench_device *device, int with_f32)
{
    static const int64_t rows[] = { 1, 7, 8, 9, 63, 64, 65, 997 };
    static const int64_t widths[] = { 3072, 32, 100, 768 };
    for (int w = 0; w < (with_f32 ? 4 : 1); w++) {
        for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
            for (int kind = 0; kind < 3; kind++) {
                const int64_t n = rows[i];
                half_case c;
                memset(&c, 0, sizeof c);
                if (n == 997 && widths[w] != 3072) continue;
                c.n = n;
                c.width = widths[w];
                c.has_groups = kind > 0;
                c.groups.n_groups = 3;
                c.groups.begin[1] = kind == 1 ? n / 3 : 0;
                c.groups.begin[2] = kind == 1 ? n / 3 + (n > 3) : n;
                c.groups.begin[3] = n;
                check_half(device, &c, with_f32);
            }
        }
    }
}

/* ---- write ----------------------------------------------------------------------------------- */

static void check_write(bench_device *device)
{
    static const int64_t shapes[][2] = {
        { 1, 3072 }, { 7, 32 }, { 65, 100 }, { 63, 3 }, { 997, 3072 }
    };
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
        const int64_t n = shapes[i][0], width = shapes[i][1];
        const int64_t counts[4] = { n * 4 * width, n * 16, n * 4, n * width };
        bench_random random = { i + 5 };
        m2_tensor in[2][4], out[2];
        for (int j = 0; j < 4; j++) {
            void *values = bench_values(&random, M2_BF16, counts[j], 1.0f);
            const int64_t b = j == 0 ? 4 : 1;
            in[0][j] = bench_tensor(device, M2_BF16, n, b, counts[j] / n / b, values);
            in[1][j] = bench_host_tensor(M2_BF16, n, b, counts[j] / n / b, values);
            free(values);
        }
        out[0] = bench_tensor(device, M2_BF16, n, 4, width, 0);
        out[1] = bench_host_tensor(M2_BF16, n, 4, width, 0);
        for (int in_place = 0; in_place < 2; in_place++) {
            m2_tensor *to = in_place ? &in[0][0] : &out[0];
            m2_mhc_write_args args = { &in[0][0], &in[0][1], &in[0][2], &in[0][3], to };
            m2_mhc_write_args host = { &in[1][0], &in[1][1], &in[1][2], &in[1][3], &out[1] };
            m2_gpu_mhc_write(&device->ops, &args);
            m2_ref_mhc_write(&device->host, &host);
            void *got = bench_download(device, to);
            bench_check(device, !memcmp(got, out[1].data, (size_t)counts[0] * 2),
                        "write: n %d width %d in place %d", (int)n, (int)width, in_place);
            free(got);
        }
        for (int j = 0; j < 4; j++) gpuFree(in[0][j].data), free(in[1][j].data);
        gpuFree(out[0].data), free(out[1].data);
    }
    printf("write: checked\n");
}

/* ---- write, then open ------------------------------------------------------------------------ */

enum { IN_SEQUENCE, JOINED, JOINED_IN_PLACE };

typedef struct joined_case {
    half_case half;
    void *o, *h_res, *h_post;
} joined_case;

typedef struct joined_tensors {
    half_tensors half; /* in[0]: the streams that are written */
    m2_tensor s, o, h_res, h_post;
    m2_mhc_write_open_args args;
} joined_tensors;

static void make_joined(joined_case *c, int64_t n, int kind)
{
    bench_random random = { (uint64_t)n + 77 };
    memset(c, 0, sizeof *c);
    c->half.n = n;
    c->half.width = 3072;
    c->half.has_groups = kind > 0;
    c->half.groups.n_groups = 3;
    c->half.groups.begin[1] = kind == 1 ? n / 3 : 0;
    c->half.groups.begin[2] = kind == 1 ? n / 3 + (n > 3) : n;
    c->half.groups.begin[3] = n;
    make_inputs(&c->half);
    c->o = many_values(&random, M2_BF16, n * 3072, 1.0f);
    c->h_res = bench_values(&random, M2_BF16, n * 16, 0.5f);
    c->h_post = bench_values(&random, M2_BF16, n * 4, 0.5f);
}

static void free_joined(joined_case *c)
{
    for (int i = 0; i < 9; i++) free(c->half.values[i]);
    free(c->o), free(c->h_res), free(c->h_post);
}

static void make_joined_tensors(bench_device *device, joined_case *c, int64_t n, int way,
                                joined_tensors *t)
{
    make_tensors(device, &c->half, n, 1, 0, &t->half);
    t->s = t->half.in[0];
    if (way != JOINED_IN_PLACE) t->half.in[0] = bench_tensor(device, M2_BF16, n, 4, 3072, 0);
    t->o = bench_tensor(device, M2_BF16, n, 3072, 1, c->o);
    t->h_res = bench_tensor(device, M2_BF16, n, 4, 4, c->h_res);
    t->h_post = bench_tensor(device, M2_BF16, n, 4, 1, c->h_post);
    const m2_mhc_write_args write = { &t->s, &t->h_res, &t->h_post, &t->o, &t->half.in[0] };
    t->args.write = write;
    t->args.open = t->half.args;
}

static void free_joined_tensors(joined_tensors *t, int way)
{
    if (way != JOINED_IN_PLACE) gpuFree(t->s.data);
    gpuFree(t->o.data), gpuFree(t->h_res.data), gpuFree(t->h_post.data);
    free_tensors(&t->half, 1);
}

/* Outputs up to X, then the new streams, of the first n rows: `times` launches. */
static void run_joined(bench_device *device, joined_case *c, int64_t n, int way, int times,
                       void **got)
{
    joined_tensors t;
    const m2_groups groups = cut_groups(&c->half, n);
    make_joined_tensors(device, c, n, way, &t);
    for (int i = 0; i < times; i++) {
        if (way == IN_SEQUENCE) {
            m2_gpu_mhc_write(&device->ops, &t.args.write);
            m2_gpu_mhc_open(&device->ops, &t.args.open);
        } else {
            m2_gpu_mhc_write_open(&device->ops, &t.args);
        }
    }
    for (int i = 0; i <= X; i++) got[i] = bench_download(device, &t.half.out[i]);
    got[X + 1] = bench_download(device, &t.half.in[0]);
    free_joined_tensors(&t, way);
    c->half.groups = groups;
}

static void compare_joined(bench_device *device, void **a, void **b, int64_t n, const char *what)
{
    static const int64_t widths[X + 2] = { 4, 4, 16, 3072, 4 * 3072 };
    for (int i = 0; i < X + 2; i++)
        bench_check(device, !memcmp(a[i], b[i], (size_t)(n * widths[i]) * 2),
                    "write and open, n %d: %s of output %d", (int)n, what, i);
}

static void check_joined_case(bench_device *device, int64_t n, int kind, int times)
{
    void *got[4][X + 2];
    joined_case c;
    const int64_t fewer = n > 5 ? n - 5 : n;
    make_joined(&c, n, kind);
    run_joined(device, &c, n, IN_SEQUENCE, 1, got[0]);
    run_joined(device, &c, n, JOINED, times, got[1]);
    run_joined(device, &c, n, JOINED_IN_PLACE, 1, got[2]);
    run_joined(device, &c, fewer, JOINED_IN_PLACE, 1, got[3]);
    compare_joined(device, got[0], got[1], n, "bits of the sequence");
    compare_joined(device, got[0], got[2], n, "bits in place");
    compare_joined(device, got[0], got[3], fewer, "bits for fewer rows");
    for (int i = 0; i < 4 * (X + 2); i++) free(got[i / (X + 2)][i % (X + 2)]);
    free_joined(&c);
}

static void check_joined(bench_device *device)
{
    static const int64_t more[] = { 31, 63, 64, 65, 997, 1003 };
    for (int kind = 0; kind < 3; kind++) {
        for (int64_t n = 1; n <= 17; n++) check_joined_case(device, n, kind, 1);
        for (size_t i = 0; i < sizeof more / sizeof *more; i++)
            check_joined_case(device, more[i], kind, 1);
    }
    printf("write and open: checked\n");
}

/* Enough launches to meet an exchange that can hang or be overtaken. */
static void check_many(bench_device *device)
{
    check_joined_case(device, 29616, 1, 1500);
    check_joined_case(device, 300, 1, 20000);
    printf("write and open: many launches checked\n");
}

/* ---- time ------------------------------------------------------------------------------------ */

typedef struct timed {
    bench_device *device;
    joined_tensors t;
    unsigned int *heat;
} timed;

static void run_open(void *context)
{
    timed *l = (timed *)context;
    m2_gpu_mhc_open(&l->device->ops, &l->t.args.open);
}

static void run_write(void *context)
{
    timed *l = (timed *)context;
    m2_gpu_mhc_write(&l->device->ops, &l->t.args.write);
}

static void run_both(void *context)
{
    timed *l = (timed *)context;
    m2_gpu_mhc_write_open(&l->device->ops, &l->t.args);
}

/* Products of values in registers: nothing but heat. */
static __global__ void heat_kernel(unsigned int *out, int rounds)
{
    using namespace gpu_wmma;
    fragment<matrix_a, 16, 16, 16, gpu_bf16, row_major> a[2];
    fragment<matrix_b, 16, 16, 16, gpu_bf16, col_major> b[2];
    fragment<accumulator, 16, 16, 16, float> sum[4];
    unsigned int state = blockIdx.x * blockDim.x + threadIdx.x;
    for (int f = 0; f < 2; f++) {
        for (int i = 0; i < a[f].num_elements; i++) {
            state = state * 1664525u + 1013904223u;
            a[f].x[i] = __float2bfloat16((float)(int)state * 0x1p-31f);
            b[f].x[i] = __float2bfloat16((float)(int)(state * 69069u) * 0x1p-31f);
        }
    }
    for (int f = 0; f < 4; f++) fill_fragment(sum[f], 0.0f);
    for (int i = 0; i < rounds; i++)
        for (int f = 0; f < 4; f++) mma_sync(sum[f], a[f % 2], b[f / 2], sum[f]);
    if (sum[0].x[0] + sum[1].x[0] + sum[2].x[0] + sum[3].x[0] == 0.125f) *out = state;
}

/* Milliseconds of one call among products, six of the time of one such call to one of it. */
static double time_hot(timed *l, bench_body *body, double warm_s)
{
    const gpuStream_t stream = l->device->gpu.stream;
    gpuEvent_t begin, end;
    double sum = 0, warmed = 0;
    int n = 0;
    gpuEventCreateWithFlags(&begin, gpuEventDefault);
    gpuEventCreateWithFlags(&end, gpuEventDefault);
    while (n < 50) {
        float ms = 0;
        heat_kernel<<<l->device->gpu.n_mps * 4, 256, 0, stream>>>(l->heat, 8000);
        gpuEventRecord(begin, stream);
        body(l);
        gpuEventRecord(end, stream);
        bench_wait(l->device, "timed kernel");
        gpuEventElapsedTime(&ms, begin, end);
        warmed += 7 * ms / 1e3;
        if (warmed < warm_s) continue;
        sum += ms;
        n++;
    }
    gpuEventDestroy(begin);
    gpuEventDestroy(end);
    return sum / n;
}

static void time_half(bench_device *device, int64_t n, int n_groups, int is_hot, double warm_s)
{
    static const char *const names[] = { "open", "write", "write and open" };
    static bench_body *const bodies[] = { run_open, run_write, run_both };
    static const int bytes[] = { 10 * 3072, 18 * 3072, 20 * 3072 };
    joined_case c;
    timed l = { device };
    make_joined(&c, n, 0);
    c.half.has_groups = 0; /* values for more than one group are of no matter */
    free(c.half.values[1]);
    bench_random random = { 3 };
    c.half.values[1] = bench_values(&random, M2_F32, n_groups * 4 * 3072, 0.2f);
    c.half.has_groups = n_groups > 1;
    c.half.groups.n_groups = n_groups;
    for (int g = 0; g < n_groups; g++)
        c.half.groups.begin[g + 1] = g + 1 < n_groups ? n - 500 * (n_groups - g - 1) : n;
    make_joined_tensors(device, &c, n, JOINED, &l.t);
    l.t.args.write.s_out = &l.t.s; /* in place, as in a layer, but of values that do not grow */
    l.t.args.open.coefficients.s = &l.t.s;
    bench_must(gpuMalloc((void **)&l.heat, sizeof *l.heat), "memory");
    gpuMemsetAsync(l.t.h_res.data, 0, m2_tensor_bytes(&l.t.h_res), device->gpu.stream);
    printf("n %6d groups %d%s:", (int)n, n_groups, is_hot ? " hot" : "");
    for (int i = 0; i < 3; i++) {
        const double ms = is_hot ? time_hot(&l, bodies[i], warm_s)
                                 : bench_time(device, bodies[i], &l, warm_s, 50);
        printf("  %s %.3f ms (%.2f TB/s)", names[i], ms, (double)n * bytes[i] / ms / 1e9);
    }
    printf("\n");
    gpuFree(l.heat);
    free_joined_tensors(&l.t, JOINED);
    free_joined(&c);
}

int main(int argc, char **argv)
{
    bench_device device;
    const char *what = argc > 1 ? argv[1] : "time";
    const double warm_s = argc > 2 ? atof(argv[2]) : 0.3;
    bench_open(&device);
    device.ops.mhc_coefficients = m2_gpu_mhc_coefficients;
    device.ops.mhc_read = m2_gpu_mhc_read;
    device.ops.mhc_write = m2_gpu_mhc_write;
    device.ops.mhc_open = m2_gpu_mhc_open;
    if (!strcmp(what, "portable")) check_halves(&device, 1);
    if (!strcmp(what, "open")) check_halves(&device, 0);
    if (!strcmp(what, "write")) check_write(&device);
    if (!strcmp(what, "joined")) check_joined(&device);
    if (!strcmp(what, "many")) check_many(&device);
    if (!strcmp(what, "time") || !strcmp(what, "hot")) {
        const int is_hot = what[0] == 'h';
        time_half(&device, 29616, 1, is_hot, warm_s);
        time_half(&device, 29616, 3, is_hot, is_hot ? warm_s : 0.1);
        time_half(&device, 1000, 1, is_hot, 0.1);
    }
    if (device.n_failed) printf("%s: %d checks failed\n", what, device.n_failed);
    return device.n_failed > 0;
}
