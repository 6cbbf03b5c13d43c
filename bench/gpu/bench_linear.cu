/* bench_linear.cu - the dense products of the preview transformer on Hopper: checked against sums in
 * float64 and against the operators in sequence, then timed beside the vendor's library.
 *
 *     bench_linear check | time [warm-up seconds [case]]
 *
 * What follows a product rounds first, so on equal sums a joined kernel has the bits of the
 * operators in sequence (norms: another order of sums, a tolerance). */
#include "bench/gpu/bench_device.cuh"
#include "bench/gpu/bench_values.cuh"

extern "C" {
#include "backend/gpu/blas.h"
}

#define SAMPLED  20000 /* sums of a case that are computed in float64 */
#define HEAD_DIM 128
#define N_ROT    48

typedef enum kind { PLAIN, SWIGLU7, HEADS, N_KINDS } kind;
static const char *const kind_names[] = { "plain", "swiglu7", "heads" };

typedef struct linear_case {
    kind what;
    int64_t n, k, out; /* HEADS: out = 3 heads of 128 times n */
    int n_groups;
} linear_case;

typedef struct linear_tensors {
    m2_groups groups;
    m2_tensor x, w, between; /* between: the plain product, [n, out]             */
    m2_tensor y[3];          /* what comes out: one, or queries, keys and values */
    m2_tensor q_norm, k_norm, rope, seq;
} linear_tensors;

/* ---- values ---------------------------------------------------------------------------------- */

static m2_tensor random_tensor(bench_device *device, m2_dtype dtype, int64_t rows, int64_t columns,
                               unsigned int seed, float scale)
{
    m2_tensor tensor = bench_tensor(device, dtype, rows, columns, 1, 0);
    tensor.n_dims = 2;
    bench_fill(device, &tensor, seed, scale);
    return tensor;
}

static m2_tensor empty_tensor(bench_device *device, int64_t rows, int64_t columns, int64_t depth)
{
    m2_tensor tensor = bench_tensor(device, M2_BF16, rows, columns, depth, 0);
    if (depth == 1) tensor.n_dims = 2;
    return tensor;
}

/* As a step has them: nearly all rows video, then audio, then text. */
static m2_groups groups_of(int64_t n, int n_groups)
{
    m2_groups groups = { n_groups, { 0 } };
    for (int g = 1; g < n_groups; g++) groups.begin[g] = n - n / 31 + (g - 1) * (n / 59);
    groups.begin[n_groups] = n;
    return groups;
}

/* Row r goes to row (17 r + 5) mod n, where that is one to one. */
static m2_tensor make_seq(bench_device *device, int64_t n)
{
    int32_t *seq = (int32_t *)malloc((size_t)n * sizeof *seq);
    if (!seq) exit(1);
    for (int64_t r = 0; r < n; r++) seq[r] = (int32_t)(n % 17 ? (17 * r + 5) % n : r);
    const m2_tensor tensor = bench_tensor(device, M2_I32, n, 1, 1, seq);
    free(seq);
    return tensor;
}

static linear_tensors make_tensors(bench_device *device, const linear_case *c)
{
    linear_tensors t = {};
    const int64_t n = c->n, heads = c->out / HEAD_DIM / 3;
    t.groups = groups_of(n, c->n_groups);
    t.x = random_tensor(device, M2_BF16, n, c->k, 1, 1.0f);
    t.w = random_tensor(device, M2_BF16, c->n_groups * c->out, c->k, 77,
                        2.0f / sqrtf((float)c->k));
    t.between = empty_tensor(device, n, c->out, 1);
    for (int i = 0; c->what == HEADS && i < 3; i++)
        t.y[i] = empty_tensor(device, n, heads, HEAD_DIM);
    if (c->what == SWIGLU7) t.y[0] = empty_tensor(device, n, c->out / 2, 1);
    if (c->what == PLAIN) t.y[0] = empty_tensor(device, n, c->out, 1);
    if (c->what == HEADS) {
        t.q_norm = random_tensor(device, M2_F32, c->n_groups, HEAD_DIM, 7, 0.2f);
        t.k_norm = random_tensor(device, M2_F32, c->n_groups, HEAD_DIM, 8, 0.2f);
        t.rope = random_tensor(device, M2_F32, n, 2 * N_ROT, 9, 0.7f);
        t.seq = make_seq(device, n);
    }
    bench_wait(device, "values");
    return t;
}

static void free_tensors(linear_tensors *t)
{
    m2_tensor *all[] = { &t->x,    &t->w,      &t->between, &t->y[0], &t->y[1],
                         &t->y[2], &t->q_norm, &t->k_norm,  &t->rope, &t->seq };
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) gpuFree(all[i]->data);
}

/* ---- the two ways ------------------------------------------------------------------------------ */

static m2_linear_args product_args(linear_tensors *t)
{
    m2_linear_args args = {};
    args.x = &t->x;
    args.w = &t->w;
    args.groups = &t->groups;
    args.y = &t->between;
    return args;
}

static m2_qk_norm_rope_args heads_args(linear_tensors *t, m2_tensor y[3])
{
    m2_qk_norm_rope_args args = {};
    args.qkv = &t->between;
    args.q_norm = &t->q_norm;
    args.k_norm = &t->k_norm;
    args.groups = &t->groups;
    args.rope = &t->rope;
    args.seq = &t->seq;
    args.eps = 1e-6f;
    args.q = &y[0];
    args.k = &y[1];
    args.v = &y[2];
    return args;
}

/* What follows the product in t->between. */
static void run_after(bench_device *device, kind what, linear_tensors *t, m2_tensor y[3])
{
    if (what == SWIGLU7) {
        const m2_swiglu7_args args = { &t->between, &y[0] };
        m2_gpu_swiglu7(&device->ops, &args);
    } else if (what == HEADS) {
        const m2_qk_norm_rope_args args = heads_args(t, y);
        m2_gpu_qk_norm_rope(&device->ops, &args);
    }
}

static int run_joined(bench_device *device, kind what, linear_tensors *t)
{
    struct m2_gpu *gpu = &device->gpu;
    const m2_linear_args product = product_args(t);
    if (what == SWIGLU7) {
        const m2_linear_swiglu7_args args = { product, &t->y[0] };
        return m2_sm90_linear_swiglu7(gpu, &args);
    }
    if (what == HEADS) {
        const m2_linear_qk_norm_rope_args args = { product, heads_args(t, t->y) };
        return m2_sm90_linear_qk_norm_rope(gpu, &args);
    }
    m2_linear_args plain = product;
    plain.y = &t->y[0];
    return m2_sm90_linear(gpu, &plain);
}

/* ---- checks -------------------------------------------------------------------------------------- */

typedef struct device_groups {
    int n;
    int64_t begin[M2_GROUPS_MAX + 1];
} device_groups;

/* Squares of error and of truth of sum i * step, a pair for each thread. */
static __global__ void truth_kernel(const gpu_bf16 *x, const gpu_bf16 *w, const gpu_bf16 *y,
                                    device_groups groups, int64_t n, int64_t k, int64_t out,
                                    int64_t step, double *squares)
{
    const int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x, at = i * step;
    if (at >= n * out) return;
    const int64_t row = at / out;
    int64_t group = 0;
    while (group < groups.n - 1 && row >= groups.begin[group + 1]) group++;
    const gpu_bf16 *xs = x + row * k, *ws = w + (group * out + at % out) * k;
    double sum = 0;
    for (int64_t j = 0; j < k; j++)
        sum += (double)__bfloat162float(xs[j]) * (double)__bfloat162float(ws[j]);
    const double wrong = (double)__bfloat162float(y[at]) - sum;
    squares[2 * i] = wrong * wrong;
    squares[2 * i + 1] = sum * sum;
}

/* Relative RMS error of y [n, out] over some or all sums; NaN if any of them is. */
static double product_error(bench_device *device, const linear_case *c, const linear_tensors *t,
                            const m2_tensor *y)
{
    const int64_t n = c->n * c->out, step = n > SAMPLED ? n / SAMPLED | 1 : 1;
    const int64_t n_checked = (n + step - 1) / step;
    device_groups groups = { t->groups.n_groups, { 0 } };
    for (int g = 0; g <= groups.n; g++) groups.begin[g] = t->groups.begin[g];
    m2_tensor squares = bench_tensor(device, M2_F64, n_checked, 2, 1, 0);
    truth_kernel<<<(unsigned int)((n_checked + 63) / 64), 64, 0, device->gpu.stream>>>(
        (const gpu_bf16 *)t->x.data, (const gpu_bf16 *)t->w.data, (const gpu_bf16 *)y->data, groups,
        c->n, c->k, c->out, step, (double *)squares.data);
    double *host = (double *)bench_download(device, &squares), wrong = 0, size = 0;
    for (int64_t i = 0; i < n_checked; i++) {
        wrong += host[2 * i];
        size += host[2 * i + 1];
    }
    free(host);
    gpuFree(squares.data);
    return sqrt(wrong / size);
}

/* Relative RMS difference of two bf16 tensors, and how many values differ. */
static double difference(bench_device *device, const m2_tensor *a, const m2_tensor *b,
                         int64_t *n_other)
{
    const int64_t n = m2_tensor_count(a);
    m2_bf16 *left = (m2_bf16 *)bench_download(device, a);
    m2_bf16 *right = (m2_bf16 *)bench_download(device, b);
    double wrong = 0, size = 0;
    for (int64_t i = 0; i < n; i++) {
        const double l = m2_bf16_to_f32(left[i]), r = m2_bf16_to_f32(right[i]);
        *n_other += memcmp(&left[i], &right[i], sizeof *left) != 0;
        wrong += (l - r) * (l - r);
        size += r * r;
    }
    free(left);
    free(right);
    return sqrt(wrong / size);
}

/* The joined kernel against the operators in sequence on our own product. */
static void check_case(bench_device *device, const linear_case *c)
{
    linear_tensors t = make_tensors(device, c);
    m2_tensor want[3];
    const int n_out = c->what == HEADS ? 3 : 1;
    int64_t n_other = 0;
    double worst = 0;
    m2_linear_args product = product_args(&t);
    const int is_product = m2_sm90_linear(&device->gpu, &product);
    const double error = is_product ? product_error(device, c, &t, &t.between) : NAN;
    const int is_ours = run_joined(device, c->what, &t);
    for (int i = 0; i < n_out; i++) {
        want[i] = t.y[i];
        bench_must(gpuMalloc(&want[i].data, m2_tensor_bytes(&want[i])), "memory");
    }
    if (c->what == PLAIN)
        bench_must(gpuMemcpyAsync(want[0].data, t.between.data, m2_tensor_bytes(&t.between),
                                  gpuMemcpyDeviceToDevice, device->gpu.stream), "copy");
    run_after(device, c->what, &t, want);
    bench_wait(device, "kernels");
    for (int i = 0; i < n_out; i++) {
        const double wrong = difference(device, &t.y[i], &want[i], &n_other);
        worst = wrong > worst || wrong != wrong ? wrong : worst;
    }
    printf("%-8s n %5lld k %5lld out %5lld groups %d  product %.2e  joined %.1e (%lld other)\n",
           kind_names[c->what], (long long)c->n, (long long)c->k, (long long)c->out, c->n_groups,
           error, worst, (long long)n_other);
    bench_check(device, is_product && is_ours, "not taken");
    /* Rounding the sum alone gives 1.66e-3. */
    bench_check(device, error <= 1.8e-3, "product: error %.3e", error);
    bench_check(device, c->what == HEADS ? worst <= 2e-4 : n_other == 0, "not as in sequence");
    for (int i = 0; i < n_out; i++) gpuFree(want[i].data);
    free_tensors(&t);
}

/* The first rows of one group have the same bits among n rows, whatever n is. */
static void check_bits(bench_device *device, const int64_t *counts, int n_counts)
{
    linear_case c = { PLAIN, counts[n_counts - 1], 3072, 2560, 1 };
    linear_tensors t = make_tensors(device, &c);
    run_joined(device, PLAIN, &t);
    char *whole = (char *)bench_download(device, &t.y[0]);
    for (int i = 0; i < n_counts; i++) {
        t.x.shape[0] = t.y[0].shape[0] = t.groups.begin[1] = counts[i];
        bench_must(gpuMemsetAsync(t.y[0].data, 0xff, m2_tensor_bytes(&t.y[0]), device->gpu.stream),
                   "memory");
        run_joined(device, PLAIN, &t);
        char *part = (char *)bench_download(device, &t.y[0]);
        bench_check(device, memcmp(part, whole, m2_tensor_bytes(&t.y[0])) == 0,
                    "bits depend on the number of rows, %lld", (long long)counts[i]);
        free(part);
    }
    free(whole);
    free_tensors(&t);
}

static void check_all(bench_device *device)
{
    static const int64_t counts[] = { 1, 8, 63, 64, 65, 127, 128, 129, 256, 257, 500, 3702, 29616 };
    const int n_counts = (int)(sizeof counts / sizeof *counts);
    for (int i = 0; i < n_counts; i++) {
        const linear_case c = { (kind)(i % N_KINDS), counts[i], 3072,
                                i % N_KINDS == HEADS ? 1536 : 2560, 1 + i / N_KINDS % 3 };
        check_case(device, &c);
    }
    static const linear_case others[] = {
        { PLAIN, 1000, 1000, 992, 2 },   { SWIGLU7, 777, 968, 608, 3 },
        { PLAIN, 300, 1288, 3072, 1 },   { HEADS, 1111, 3072, 1152, 3 },
        { HEADS, 29616, 3072, 9216, 3 }, { SWIGLU7, 29616, 3072, 2560, 3 },
        { PLAIN, 29616, 1280, 3072, 3 }, { SWIGLU7, 5000, 3072, 16384, 3 },
    };
    for (size_t i = 0; i < sizeof others / sizeof *others; i++) check_case(device, &others[i]);
    check_bits(device, counts, n_counts);
}

/* ---- times ----------------------------------------------------------------------------------------- */

typedef struct timed {
    bench_device *device;
    kind what;
    linear_tensors *tensors;
} timed;

static void timed_joined(void *context)
{
    timed *t = (timed *)context;
    run_joined(t->device, t->what, t->tensors);
}

static void timed_library(void *context)
{
    timed *t = (timed *)context;
    const m2_linear_args args = product_args(t->tensors);
    t->device->gpu.use_portable = 1; /* by the library, whatever is ours */
    m2_gpu_linear(&t->device->ops, &args);
    t->device->gpu.use_portable = 0;
}

static void timed_after(void *context)
{
    timed *t = (timed *)context;
    run_after(t->device, t->what, t->tensors, t->tensors->y);
}

static void timed_sequence(void *context)
{
    timed_library(context);
    timed_after(context);
}

/* Ours and the library's in turn, so that both meet the same clock. */
static void time_case(bench_device *device, const linear_case *c, double warm_s)
{
    linear_tensors tensors = make_tensors(device, c);
    timed context = { device, c->what, &tensors };
    const double flop = 2.0 * (double)c->n * (double)c->k * (double)c->out;
    const int rounds = 20;
    double ours = bench_time(device, timed_joined, &context, warm_s, rounds);
    double library = bench_time(device, timed_library, &context, warm_s / 4, rounds);
    double sequence = bench_time(device, timed_sequence, &context, warm_s / 4, rounds);
    ours = (ours + bench_time(device, timed_joined, &context, warm_s / 4, rounds)) / 2;
    library = (library + bench_time(device, timed_library, &context, warm_s / 4, rounds)) / 2;
    sequence = (sequence + bench_time(device, timed_sequence, &context, warm_s / 4, rounds)) / 2;
    printf("%-8s %5lld -> %5lld groups %d  ours %.4f ms %5.1f TFLOP/s   library %.4f ms %5.1f   "
           "in sequence %.4f ms  ours/library %.3f  ours/sequence %.3f\n",
           kind_names[c->what], (long long)c->k, (long long)c->out, c->n_groups, ours,
           flop / ours / 1e9, library, flop / library / 1e9, sequence, ours / library,
           ours / sequence);
    free_tensors(&tensors);
}

static void time_all(bench_device *device, double warm_s, int only)
{
    static const linear_case cases[] = {
        { PLAIN, 29616, 3072, 9216, 1 },   { PLAIN, 29616, 3072, 3072, 1 },
        { PLAIN, 29616, 3072, 2560, 1 },   { PLAIN, 29616, 8192, 3072, 1 },
        { PLAIN, 29616, 1280, 3072, 1 },   { PLAIN, 29616, 1280, 3072, 3 },
        { PLAIN, 29616, 3072, 3072, 3 },   { PLAIN, 29616, 8192, 3072, 3 },
        { HEADS, 29616, 3072, 9216, 1 },   { HEADS, 29616, 3072, 9216, 3 },
        { SWIGLU7, 29616, 3072, 2560, 1 }, { SWIGLU7, 29616, 3072, 2560, 3 },
        { SWIGLU7, 29616, 3072, 16384, 3 },
    };
    for (int i = 0; i < (int)(sizeof cases / sizeof *cases); i++)
        if (only < 0 || only == i) time_case(device, &cases[i], warm_s);
}

int main(int argc, char **argv)
{
    const char *what = argc > 1 ? argv[1] : "check";
    const double warm_s = argc > 2 ? atof(argv[2]) : 0.2;
    char text[512] = "";
    bench_device device;
    bench_open(&device);
    device.gpu.blas = m2_gpu_blas_open(&device.gpu, text, sizeof text);
    printf("%s\n", text);
    if (strcmp(what, "check") == 0) check_all(&device);
    if (strcmp(what, "time") == 0) time_all(&device, warm_s, argc > 3 ? atoi(argv[3]) : -1);
    printf("%d failed\n", device.n_failed);
    return device.n_failed > 0;
}
