/* bench_portable.cu - the portable kernels of the preview transformer at the shapes of the release: rows
 * (limit: memory), products, attention and experts on the matrix units of every vendor.
 *
 *     bench_portable check | time [warm-up seconds [what]]
 *
 * `check` holds long f32 sums against f64 and the CPU's bits, and rows against the CPU; the rest is
 * tested operator by operator elsewhere. */
#include "bench/gpu/bench_device.cuh"

#include "backend/gpu/kernels/simt_linear.cuh"

extern "C" {
#include "backend/cpu/ref/ref.h"
}

#define N         29616 /* tokens of both branches, 272p, 10 s */
#define HIDDEN    3072
#define STREAMS   (4 * HIDDEN)
#define HEADS     24
#define DIM       128
#define WIDTH     1280
#define EXPERTS   256
#define MOE_HEADS 12
#define MOE_DIM   256
#define TOP_K     6

static bench_device device;
static double warm_s = 0.3;
static const char *wanted;

/* The tensors of one case; a tensor is made when it is first asked for, from the same few values over
 * and over. */
static m2_tensor make(m2_dtype dtype, int64_t a, int64_t b, int64_t c, float scale)
{
    bench_random random = { 5 };
    const int64_t n = a * b * c, n_values = n < (1 << 20) ? n : 1 << 20;
    void *values = bench_values(&random, dtype, n_values, scale);
    m2_tensor tensor = bench_tensor(&device, dtype, a, b, c, 0);
    const size_t size = m2_dtype_bytes(dtype);
    for (int64_t i = 0; i < n; i += n_values) {
        const int64_t left = n - i < n_values ? n - i : n_values;
        bench_must(gpuMemcpyAsync((char *)tensor.data + (size_t)i * size, values,
                                  (size_t)left * size, gpuMemcpyHostToDevice, device.gpu.stream),
                   "upload");
    }
    bench_wait(&device, "upload");
    free(values);
    return tensor;
}

/* Row numbers 0, 1 ... in steps that scatter them. */
static m2_tensor make_order(int64_t n)
{
    int32_t *values = (int32_t *)malloc((size_t)n * sizeof *values);
    for (int64_t i = 0; i < n; i++) values[i] = (int32_t)(i * 7919 % n);
    const m2_tensor tensor = bench_tensor(&device, M2_I32, n, 1, 1, values);
    free(values);
    return tensor;
}

static void as_matrix(m2_tensor *tensor)
{
    tensor->n_dims = 2;
}

/* Prints the time of `body`, with terabytes or teraflops a second. */
static void report(const char *name, bench_body *body, void *args, double bytes, double flops,
                   int rounds)
{
    if (wanted && !strstr(name, wanted)) return;
    const double ms = bench_time(&device, body, args, warm_s, rounds);
    if (flops > 0)
        printf("%-28s %8.3f ms  %6.1f TF/s\n", name, ms, flops / ms / 1e9);
    else
        printf("%-28s %8.3f ms  %6.2f TB/s\n", name, ms, bytes / ms / 1e9);
}

#define BODY(op)                                                                                   \
    static void run_##op(void *args)                                                               \
    {                                                                                              \
        m2_gpu_##op(&device.ops, (const m2_##op##_args *)args);                                    \
    }
BODY(add)
BODY(rms_norm)
BODY(gather_rows)
BODY(qk_norm_rope)
BODY(attention_gate)
BODY(swiglu7)
BODY(convert)
BODY(find_nonfinite)
BODY(rope_table)
BODY(attention)
BODY(moe_ffn)
BODY(unipc_step)

static void run_linear(void *args)
{
    m2_gpu_linear_own(&device.gpu, (const m2_linear_args *)args);
}

/* ---- rows ---------------------------------------------------------------------------------------- */

static void time_rows(void)
{
    m2_tensor a = make(M2_BF16, N, HIDDEN, 1, 1), b = make(M2_BF16, N, HIDDEN, 1, 1);
    m2_tensor y = make(M2_BF16, N, HIDDEN, 1, 1), w = make(M2_F32, 3 * HIDDEN, 1, 1, 0.1f);
    m2_tensor order = make_order(N);
    const double size = 2.0 * N * HIDDEN;
    const m2_groups groups = { 3, { 0, N - 1400, N - 900, N } };
    as_matrix(&a), as_matrix(&b), as_matrix(&y);
    m2_add_args add = {};
    add.a = &a, add.b = &b, add.c = &y, add.y = &y;
    report("add of three", run_add, &add, 4 * size, 0, 50);
    m2_rms_norm_args norm = {};
    norm.x = &a, norm.w = &w, norm.groups = &groups, norm.eps = 1e-6f, norm.weight_offset = 1;
    norm.y = &y;
    report("rms_norm 3072", run_rms_norm, &norm, 2 * size, 0, 50);
    m2_gather_rows_args gather = { &a, &order, &y };
    report("gather_rows", run_gather_rows, &gather, 2 * size, 0, 50);
    m2_find_nonfinite_args find = { &a, &order };
    report("find_nonfinite", run_find_nonfinite, &find, size, 0, 50);
    m2_tensor wide = make(M2_BF16, N, 2 * WIDTH, 1, 1), narrow = make(M2_BF16, N, WIDTH, 1, 1);
    as_matrix(&wide), as_matrix(&narrow);
    m2_swiglu7_args swiglu = { &wide, &narrow };
    report("swiglu7 1280", run_swiglu7, &swiglu, 6.0 * N * WIDTH, 0, 50);
    m2_tensor streams = make(M2_F32, N, STREAMS, 1, 1), halves = make(M2_BF16, N, STREAMS, 1, 1);
    m2_convert_args convert = { &streams, &halves };
    report("convert 12288 to bf16", run_convert, &convert, 6.0 * N * STREAMS, 0, 20);
    gpuFree(wide.data), gpuFree(narrow.data), gpuFree(streams.data), gpuFree(halves.data);
    gpuFree(a.data), gpuFree(b.data), gpuFree(y.data), gpuFree(w.data), gpuFree(order.data);
}

static void time_attention(void)
{
    m2_tensor qkv = make(M2_BF16, N, 3 * HIDDEN, 1, 1), rope = make(M2_F32, N, 96, 1, 0.7f);
    m2_tensor norm = make(M2_F32, DIM, 1, 1, 0.1f), order = make_order(N);
    m2_tensor q = make(M2_BF16, N, HEADS, DIM, 1), k = make(M2_BF16, N, HEADS, DIM, 1);
    m2_tensor v = make(M2_BF16, N, HEADS, DIM, 1), y = make(M2_BF16, N, HEADS, DIM, 1);
    m2_tensor gate = make(M2_BF16, N, HEADS, 1, 1), sinks = make(M2_F32, 1, HEADS, 1, 1);
    m2_tensor coords = make(M2_F32, N, 9, 1, 20), bands = make(M2_F32, 16, 1, 1, 0.1f);
    as_matrix(&qkv), as_matrix(&rope), as_matrix(&gate), as_matrix(&sinks), as_matrix(&coords);
    m2_rope_table_args table = { &coords, &bands, &rope };
    report("rope_table", run_rope_table, &table, 4.0 * N * 105, 0, 20);
    m2_qk_norm_rope_args turn = {};
    turn.qkv = &qkv, turn.q_norm = &norm, turn.k_norm = &norm, turn.rope = &rope, turn.seq = &order;
    turn.eps = 1e-6f, turn.q = &q, turn.k = &k, turn.v = &v;
    report("qk_norm_rope", run_qk_norm_rope, &turn, 12.0 * N * HIDDEN, 0, 50);
    m2_attention_gate_args gated = { &q, &gate, &order, &y };
    report("attention_gate", run_attention_gate, &gated, 4.0 * N * HIDDEN, 0, 50);
    const int64_t segments[] = { 0, N / 2, N };
    m2_attention_args attention = {};
    attention.q = &q, attention.k = &k, attention.v = &v, attention.sinks = &sinks;
    attention.segments = segments, attention.n_segments = 2, attention.scale = 0.0883883f;
    attention.y = &y;
    report("attention 128", run_attention, &attention, 0, 2.0 * 4 * HIDDEN * (N / 2.0) * (N / 2.0),
           1);
    m2_tensor *all[] = {
        &qkv, &rope, &norm, &order, &q, &k, &v, &y, &gate, &sinks, &coords, &bands
    };
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) gpuFree(all[i]->data);
}

static void time_sampler(void)
{
    const int64_t n = 48 * 61 * 34 * 60;
    m2_tensor tensors[6], table = make(M2_F32, 4, M2_UNIPC_COEFFS, 1, 1);
    const int32_t two = 2;
    m2_tensor step = bench_tensor(&device, M2_I32, 1, 1, 1, &two);
    as_matrix(&table);
    for (int i = 0; i < 6; i++) tensors[i] = make(M2_F32, n, 1, 1, 1);
    m2_unipc_step_args args = {};
    args.velocity = &tensors[0], args.table = &table, args.step = &step;
    for (int i = 0; i < 3; i++) args.clean[i] = &tensors[1 + i];
    args.start = &tensors[4], args.latent = &tensors[5];
    report("unipc_step 540p", run_unipc_step, &args, 32.0 * n, 0, 50);
    for (int i = 0; i < 6; i++) gpuFree(tensors[i].data);
    gpuFree(table.data), gpuFree(step.data);
}

/* ---- products ------------------------------------------------------------------------------------ */

static void time_product(const char *name, m2_dtype dtype, int64_t n, int64_t k, int64_t out,
                         m2_dtype y_dtype, int rounds)
{
    if (wanted && !strstr(name, wanted)) return;
    m2_tensor x = make(dtype, n, k, 1, 1), w = make(dtype, out, k, 1, 0.02f);
    m2_tensor y = make(y_dtype, n, out, 1, 1), bias = make(M2_F32, out, 1, 1, 1);
    as_matrix(&x), as_matrix(&w), as_matrix(&y);
    m2_linear_args args = {};
    args.x = &x, args.w = &w, args.bias = &bias, args.y = &y;
    report(name, run_linear, &args, 0, 2.0 * n * k * out, rounds);
    gpuFree(x.data), gpuFree(w.data), gpuFree(y.data), gpuFree(bias.data);
}

static void time_products(void)
{
    time_product("linear bf16 3072 x 9240", M2_BF16, N, HIDDEN, 9240, M2_BF16, 3);
    time_product("linear bf16 3072 x 3072", M2_BF16, N, HIDDEN, HIDDEN, M2_BF16, 5);
    time_product("linear f32 48 x 12288", M2_F32, N, 48, STREAMS, M2_F32, 10);
    time_product("linear f32 12288 x 48", M2_F32, N, STREAMS, 48, M2_F32, 10);
    time_product("linear f32 5120 x 12288", M2_F32, 900, 5120, STREAMS, M2_F32, 5);
}

/* ---- experts --------------------------------------------------------------------------------------- */

static void time_experts(void)
{
    const int64_t n = N, n_routes = n * MOE_HEADS * TOP_K, rows = MOE_HEADS * EXPERTS;
    m2_tensor x = make(M2_BF16, n, MOE_HEADS, MOE_DIM, 1);
    m2_tensor gate = make(M2_BF16, rows, MOE_DIM, WIDTH, 0.06f);
    m2_tensor up = make(M2_BF16, rows, MOE_DIM, WIDTH, 0.06f);
    m2_tensor down = make(M2_BF16, rows, WIDTH, MOE_DIM, 0.03f);
    m2_tensor routes = make(M2_BF16, n_routes, MOE_DIM, 1, 1),
              y = make(M2_BF16, n, MOE_HEADS, MOE_DIM, 1);
    m2_tensor probs = make(M2_F32, n_routes, 1, 1, 1);
    int32_t *ids = (int32_t *)malloc((size_t)n_routes * 4),
            *position = (int32_t *)malloc((size_t)n_routes * 4);
    int32_t *offsets = (int32_t *)malloc((size_t)(rows + 1) * 4);
    int64_t at = 0;
    for (int64_t row = 0; row < rows; row++) { /* token t goes to experts t % 42, t % 42 + 42 ... */
        const int64_t head = row / EXPERTS, expert = row % EXPERTS;
        offsets[row] = (int32_t)at;
        for (int64_t t = expert % 42; expert < 42 * TOP_K && t < n; t += 42, at++) {
            ids[at] = (int32_t)t;
            position[(head * n + t) * TOP_K + expert / 42] = (int32_t)at;
        }
    }
    offsets[rows] = (int32_t)at;
    m2_tensor gather = bench_tensor(&device, M2_I32, n_routes, 1, 1, ids);
    m2_tensor offset = bench_tensor(&device, M2_I32, rows + 1, 1, 1, offsets);
    m2_tensor place = bench_tensor(&device, M2_I32, MOE_HEADS, n, TOP_K, position);
    m2_moe_ffn_args args = {};
    args.x = &x, args.gather_ids = &gather, args.probs_sorted = &probs;
    args.expert_offsets = &offset, args.route_pos = &place;
    args.w_gate = &gate, args.w_up = &up, args.w_down = &down, args.routes = &routes, args.y = &y;
    report("moe_ffn", run_moe_ffn, &args, 0, 6.0 * n_routes * MOE_DIM * WIDTH, 1);
    m2_tensor *all[] = { &x, &gate, &up, &down, &routes, &y, &probs, &gather, &offset, &place };
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) gpuFree(all[i]->data);
    free(ids), free(position), free(offsets);
}

/* ---- check --------------------------------------------------------------------------------------- */

/* y = x . w^T in f64, one thread a result. */
static __global__ void truth_kernel(const float *x, const float *w, double *y, int64_t k,
                                    int64_t out)
{
    const int64_t row = blockIdx.x, o = threadIdx.x;
    double sum = 0;
    if (o >= out) return;
    for (int64_t i = 0; i < k; i++) sum += (double)x[row * k + i] * (double)w[o * k + i];
    y[row * out + o] = sum;
}

/* Relative RMS of f32 products over long K: at most 3e-7; and the bits of the CPU, whose order it is. */
static void check_product(int64_t n, int64_t k, int64_t out)
{
    bench_random random = { 3 };
    float *host_x = (float *)bench_values(&random, M2_F32, n * k, 1);
    float *host_w = (float *)bench_values(&random, M2_F32, out * k, 1);
    m2_tensor x = bench_tensor(&device, M2_F32, n, k, 1, host_x);
    m2_tensor w = bench_tensor(&device, M2_F32, out, k, 1, host_w);
    m2_tensor y = bench_tensor(&device, M2_F32, n, out, 1, 0);
    m2_tensor truth = bench_tensor(&device, M2_F64, n, out, 1, 0);
    as_matrix(&x), as_matrix(&w), as_matrix(&y);
    m2_linear_args args = {};
    args.x = &x, args.w = &w, args.y = &y;
    run_linear(&args);
    truth_kernel<<<(unsigned int)n, 1024, 0, device.gpu.stream>>>(
        (const float *)x.data, (const float *)w.data, (double *)truth.data, k, out);
    void *got = bench_download(&device, &y);
    double *exact = (double *)bench_download(&device, &truth);
    const double error = bench_error(got, M2_F32, exact, n * out);
    m2_tensor host_y = bench_host_tensor(M2_F32, n, out, 1, 0);
    m2_tensor cpu_x = x, cpu_w = w;
    cpu_x.data = host_x, cpu_w.data = host_w;
    as_matrix(&host_y);
    args.x = &cpu_x, args.w = &cpu_w, args.y = &host_y;
    m2_ref_linear(&device.host, &args);
    bench_check(&device, memcmp(host_y.data, got, m2_tensor_bytes(&y)) == 0,
                "f32 product, k %lld: not the CPU's bits", (long long)k);
    free(host_y.data);
    printf("f32 product %lld x %lld x %lld: error %.2e\n", (long long)n, (long long)k,
           (long long)out, error);
    bench_check(&device, error <= 3e-7, "f32 product, k %lld: error %.2e", (long long)k, error);
    free(got), free(exact), free(host_x), free(host_w);
    gpuFree(x.data), gpuFree(w.data), gpuFree(y.data), gpuFree(truth.data);
}

/* Values more than one step of bf16 apart, but for those that are almost nothing beside the terms they
 * are the difference of. */
static int64_t count_off(const m2_bf16 *a, const m2_bf16 *b, int64_t n)
{
    int64_t n_off = 0;
    for (int64_t i = 0; i < n; i++) {
        const int steps = abs((int)(int16_t)a[i].bits - (int)(int16_t)b[i].bits);
        n_off += steps > 1 && !(fabsf(m2_bf16_to_f32(a[i]) - m2_bf16_to_f32(b[i])) < 1e-5f);
    }
    return n_off;
}

static void check_qk(int64_t n, int64_t heads, int64_t kv, int64_t dim, int64_t n_rot)
{
    bench_random random = { 9 };
    const m2_groups groups = { 3, { 0, n / 2, n / 2 + 1, n } };
    void *values[4] = { bench_values(&random, M2_BF16, n * (heads + 2 * kv) * dim, 1),
                        bench_values(&random, M2_F32, n * 2 * n_rot, 0.7f),
                        bench_values(&random, M2_F32, 3 * dim, 0.2f),
                        bench_values(&random, M2_F32, 3 * dim, 0.2f) };
    int32_t *order = (int32_t *)malloc((size_t)n * sizeof *order);
    for (int64_t i = 0; i < n; i++) order[i] = (int32_t)(n - 1 - i);
    m2_tensor sides[2][8];
    for (int side = 0; side < 2; side++) {
        m2_tensor *t = sides[side];
#define MAKE(dtype, a, b, c, from)                                                                 \
    (side ? bench_tensor(&device, dtype, a, b, c, from) : bench_host_tensor(dtype, a, b, c, from))
        t[0] = MAKE(M2_BF16, n, (heads + 2 * kv) * dim, 1, values[0]);
        t[1] = MAKE(M2_F32, n, 2 * n_rot, 1, values[1]);
        t[2] = MAKE(M2_F32, 3 * dim, 1, 1, values[2]);
        t[3] = MAKE(M2_F32, 3 * dim, 1, 1, values[3]);
        t[4] = MAKE(M2_I32, n, 1, 1, order);
        t[5] = MAKE(M2_BF16, n, heads, dim, 0);
        t[6] = MAKE(M2_BF16, n, kv, dim, 0);
        t[7] = MAKE(M2_BF16, n, kv, dim, 0);
#undef MAKE
        as_matrix(&t[0]), as_matrix(&t[1]);
        m2_qk_norm_rope_args args = {};
        args.qkv = &t[0], args.rope = &t[1], args.q_norm = &t[2], args.k_norm = &t[3];
        args.groups = &groups, args.seq = &t[4], args.eps = 1e-6f;
        args.q = &t[5], args.k = &t[6], args.v = &t[7];
        if (side)
            m2_gpu_qk_norm_rope(&device.ops, &args);
        else
            m2_ref_qk_norm_rope(&device.host, &args);
    }
    for (int i = 5; i < 8; i++) {
        void *got = bench_download(&device, &sides[1][i]);
        const int64_t off = count_off((const m2_bf16 *)got, (const m2_bf16 *)sides[0][i].data,
                                      m2_tensor_count(&sides[0][i]));
        bench_check(&device, off == 0, "qk_norm_rope, d %lld, n_rot %lld, output %d: %lld are off",
                    (long long)dim, (long long)n_rot, i - 5, (long long)off);
        free(got);
    }
    for (int i = 0; i < 8; i++) gpuFree(sides[1][i].data), free(sides[0][i].data);
    for (int i = 0; i < 4; i++) free(values[i]);
    free(order);
}

static void check_norm(int64_t n, int64_t dim)
{
    bench_random random = { 10 };
    const m2_groups groups = { 2, { 0, n / 3, n } };
    void *values = bench_values(&random, M2_BF16, n * dim, 1);
    void *weights = bench_values(&random, M2_F32, 2 * dim, 0.2f);
    m2_tensor x = bench_tensor(&device, M2_BF16, n, dim, 1, values), cpu_x = x;
    m2_tensor w = bench_tensor(&device, M2_F32, 2 * dim, 1, 1, weights), cpu_w = w;
    m2_tensor y = bench_tensor(&device, M2_BF16, n, dim, 1, 0);
    m2_tensor cpu_y = bench_host_tensor(M2_BF16, n, dim, 1, 0);
    cpu_x.data = values, cpu_w.data = weights;
    as_matrix(&x), as_matrix(&cpu_x), as_matrix(&y), as_matrix(&cpu_y);
    m2_rms_norm_args args = {};
    args.x = &x, args.w = &w, args.groups = &groups, args.eps = 1e-6f, args.weight_offset = 1;
    args.y = &y;
    m2_gpu_rms_norm(&device.ops, &args);
    args.x = &cpu_x, args.w = &cpu_w, args.y = &cpu_y;
    m2_ref_rms_norm(&device.host, &args);
    void *got = bench_download(&device, &y);
    const int64_t off = count_off((const m2_bf16 *)got, (const m2_bf16 *)cpu_y.data, n * dim);
    bench_check(&device, off == 0, "rms_norm, dim %lld: %lld are off", (long long)dim,
                (long long)off);
    free(got), free(values), free(weights), free(cpu_y.data);
    gpuFree(x.data), gpuFree(w.data), gpuFree(y.data);
}

int main(int argc, char **argv)
{
    const char *mode = argc > 1 ? argv[1] : "";
    bench_open(&device);
    if (strcmp(mode, "check") == 0) {
        check_product(300, STREAMS, 48);
        check_product(129, 5120, 1000);
        check_product(7, 37, 3);
        check_product(200, 1300, 64);
        check_product(16500, STREAMS, 64); /* more rows than the slices have room for */
        check_qk(77, 24, 24, 128, 48);
        check_qk(5, 3, 1, 32, 12);
        check_qk(9, 6, 2, 256, 64);
        check_qk(9, 5, 1, 128, 20);
        for (int dim = 8; dim <= 4104; dim = dim * 2 + 8) check_norm(37, dim);
        check_norm(101, 3072);
        check_norm(11, 12288);
        printf("%s\n", device.n_failed ? "failed" : "passed");
        return device.n_failed != 0;
    }
    if (strcmp(mode, "time") != 0) {
        printf("usage: bench_portable check | time [warm-up seconds [what]]\n");
        return 2;
    }
    warm_s = argc > 2 ? atof(argv[2]) : warm_s;
    wanted = argc > 3 ? argv[3] : 0;
    time_rows();
    time_attention();
    time_sampler();
    time_products();
    time_experts();
    return 0;
}
