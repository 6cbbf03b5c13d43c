/* bench_attention_judge.cu - one attention three ways in one run: our kernel for Hopper, cuDNN's, the
 * portable one.
 *
 *     bench_attention_judge [warm-up seconds [shape]]     shape: 272p, 540p, text; all unless asked
 *
 * Speed counts 4 n^2 d FLOP a head, half of that under the causal mask.  Errors are relative RMS
 * against sums in double, over rows that are spread evenly, sinks included.  Exit code 1 when a way
 * breaks the error rule or has other bits when it is recorded and replayed. */
#include "bench/gpu/bench_reduce.cuh"
#include "bench_device.cuh"

#include "backend/gpu/dnn.h"

#define N_ROWS  16
#define THREADS 256

typedef struct shape {
    const char *name;
    int n_segments;
    int64_t segments[3];
    int64_t n_heads, n_kv, dim;
    int n_sinks, is_causal, n_rounds;
} shape;

typedef struct problem {
    bench_device *device;
    const shape *shape;
    m2_tensor q, k, v, sinks, y;
    m2_attention_args args;
} problem;

/* Normal enough: four uniform values of 16 bits. */
static __global__ void fill(gpu_bf16 *x, int64_t n, uint64_t seed)
{
    for (int64_t i = blockIdx.x * (int64_t)blockDim.x + threadIdx.x; i < n;
         i += (int64_t)gridDim.x * blockDim.x) {
        uint64_t z = (seed << 40) + (uint64_t)i * 0x9e3779b97f4a7c15u;
        z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
        z = (z ^ z >> 27) * 0x94d049bb133111ebu;
        z ^= z >> 31;
        const float sum = (float)(z & 0xffff) + (float)(z >> 16 & 0xffff) +
                          (float)(z >> 32 & 0xffff) + (float)(z >> 48);
        x[i] = __float2bfloat16((sum / 65536.0f - 2.0f) * 1.7320508f);
    }
}

static m2_tensor take(problem *p, int64_t heads, uint64_t seed)
{
    m2_tensor t =
        bench_tensor(p->device, M2_BF16, p->shape->segments[p->shape->n_segments], heads,
                     p->shape->dim, NULL);
    if (seed)
        fill<<<1024, THREADS, 0, p->device->gpu.stream>>>((gpu_bf16 *)t.data, m2_tensor_count(&t),
                                                          seed);
    return t;
}

static void open_problem(problem *p, bench_device *device, const shape *shape)
{
    bench_random random = { 7 };
    memset(p, 0, sizeof *p);
    p->device = device;
    p->shape = shape;
    p->q = take(p, shape->n_heads, 1);
    p->k = take(p, shape->n_kv, 2);
    p->v = take(p, shape->n_kv, 3);
    p->y = take(p, shape->n_heads, 0);
    /* Sinks of the size of a row's logarithm take half of it away. */
    float *sinks = (float *)bench_values(&random, M2_F32, shape->n_heads, 1.0f);
    for (int64_t i = 0; i < shape->n_heads; i++)
        sinks[i] += logf((float)shape->segments[1]) + 0.5f;
    p->sinks = bench_tensor(device, M2_F32, 1, shape->n_heads, 1, sinks);
    p->sinks.n_dims = 2;
    free(sinks);
    p->args.q = &p->q;
    p->args.k = &p->k;
    p->args.v = &p->v;
    p->args.sinks = shape->n_sinks ? &p->sinks : NULL;
    p->args.segments = shape->segments;
    p->args.n_segments = shape->n_segments;
    p->args.scale = 1.0f / sqrtf((float)shape->dim);
    p->args.is_causal = shape->is_causal;
    p->args.y = &p->y;
}

static void close_problem(problem *p)
{
    gpuFree(p->q.data);
    gpuFree(p->k.data);
    gpuFree(p->v.data);
    gpuFree(p->y.data);
    gpuFree(p->sinks.data);
}

/* ---- truth ---------------------------------------------------------------------------------- */

typedef struct truth_of {
    const gpu_bf16 *q, *k, *v;
    const float *sinks; /* [n_heads] or NULL */
    int64_t segments[3], rows[N_ROWS];
    int n_segments, n_heads, n_kv, dim, is_causal;
    double scale;
    double *scores; /* [N_ROWS][n_heads][room]  */
    int64_t room;
    double *y; /* [N_ROWS][n_heads][dim]   */
} truth_of;

static __global__ void exact_rows(truth_of t)
{
    const int64_t row = t.rows[blockIdx.x], head = blockIdx.y;
    const int64_t kv = head / (t.n_heads / t.n_kv), pair = blockIdx.x * (int64_t)t.n_heads + head;
    int segment = 0;
    while (row >= t.segments[segment + 1]) segment++;
    const int64_t begin = t.segments[segment];
    const int64_t n = (t.is_causal ? row + 1 : t.segments[segment + 1]) - begin;
    const gpu_bf16 *q = t.q + (row * t.n_heads + head) * t.dim;
    const gpu_bf16 *k = t.k + (begin * t.n_kv + kv) * t.dim;
    const gpu_bf16 *v = t.v + (begin * t.n_kv + kv) * t.dim;
    double *scores = t.scores + pair * t.room, max = -INFINITY, sum = 0.0;
    for (int64_t j = threadIdx.x; j < n; j += THREADS) {
        double dot = 0.0;
        for (int d = 0; d < t.dim; d++)
            dot += (double)__bfloat162float(q[d]) *
                   (double)__bfloat162float(k[j * t.n_kv * t.dim + d]);
        scores[j] = dot * t.scale;
        max = fmax(max, scores[j]);
    }
    max = bench_reduce<THREADS>(max, 1);
    for (int64_t j = threadIdx.x; j < n; j += THREADS) sum += scores[j] = exp(scores[j] - max);
    sum = bench_reduce<THREADS>(sum, 0);
    if (t.sinks) sum += exp((double)t.sinks[head] - max);
    for (int d = threadIdx.x; d < t.dim; d += THREADS) {
        double value = 0.0;
        for (int64_t j = 0; j < n; j++)
            value += scores[j] * (double)__bfloat162float(v[j * t.n_kv * t.dim + d]);
        t.y[pair * t.dim + d] = value / sum;
    }
}

/* [N_ROWS][n_heads][dim], for the caller to free; `rows` says which. */
static double *make_truth(problem *p, int64_t rows[N_ROWS])
{
    const shape *shape = p->shape;
    const int64_t n = shape->segments[shape->n_segments];
    truth_of t = {};
    t.q = (const gpu_bf16 *)p->q.data;
    t.k = (const gpu_bf16 *)p->k.data;
    t.v = (const gpu_bf16 *)p->v.data;
    t.sinks = shape->n_sinks ? (const float *)p->sinks.data : NULL;
    t.n_segments = shape->n_segments;
    t.n_heads = (int)shape->n_heads;
    t.n_kv = (int)shape->n_kv;
    t.dim = (int)shape->dim;
    t.is_causal = shape->is_causal;
    t.scale = 1.0 / sqrt((double)shape->dim);
    t.room = n;
    memcpy(t.segments, shape->segments, sizeof t.segments);
    for (int i = 0; i < N_ROWS; i++) t.rows[i] = rows[i] = (n - 1) * i / (N_ROWS - 1);
    const size_t pairs = (size_t)(N_ROWS * shape->n_heads), bytes = pairs * t.dim * sizeof(double);
    bench_must(gpuMalloc((void **)&t.scores, pairs * n * sizeof(double)), "scores");
    bench_must(gpuMalloc((void **)&t.y, bytes), "truth");
    exact_rows<<<dim3(N_ROWS, t.n_heads), THREADS, 0, p->device->gpu.stream>>>(t);
    double *truth = (double *)malloc(bytes);
    if (!truth) exit(1);
    bench_must(gpuMemcpyAsync(truth, t.y, bytes, gpuMemcpyDeviceToHost, p->device->gpu.stream),
               "truth");
    bench_wait(p->device, "truth");
    gpuFree(t.scores);
    gpuFree(t.y);
    return truth;
}

static double error_of(const problem *p, const m2_bf16 *y, const double *truth,
                       const int64_t rows[N_ROWS])
{
    const int64_t row = p->shape->n_heads * p->shape->dim;
    double wrong = 0.0, size = 0.0;
    for (int i = 0; i < N_ROWS; i++)
        for (int64_t j = 0; j < row; j++) {
            const double exact = truth[i * row + j];
            const double off = (double)m2_bf16_to_f32(y[rows[i] * row + j]) - exact;
            wrong += off * off;
            size += exact * exact;
        }
    return sqrt(wrong / size);
}

/* ---- the three ways ------------------------------------------------------------------------- */

/* Each gives back 0 for a shape that is not its own. */
typedef int attention_way(struct m2_gpu *gpu, const m2_attention_args *args);

static int by_library(struct m2_gpu *gpu, const m2_attention_args *args)
{
    return m2_gpu_attention_library(gpu, args);
}

static int by_portable(struct m2_gpu *gpu, const m2_attention_args *args)
{
    m2_ops ops = {};
    m2_gpu_dnn *dnn = gpu->dnn;
    ops.device = gpu;
    gpu->dnn = NULL;
    gpu->use_portable = 1;
    m2_gpu_attention(&ops, args);
    gpu->use_portable = 0;
    gpu->dnn = dnn;
    return 1;
}

static const struct {
    const char *name;
    attention_way *run;
} ways[] = { { "ours, sm_90", m2_sm90_attention },
             { "cuDNN", by_library },
             { "ours, portable", by_portable } };

typedef struct timed {
    problem *p;
    attention_way *run;
} timed;

static void run_timed(void *context)
{
    timed *it = (timed *)context;
    it->run(&it->p->device->gpu, &it->p->args);
}

/* One call recorded as a step is, and replayed. */
static void replay(problem *p, attention_way *run)
{
    gpuStream_t stream = p->device->gpu.stream;
    gpuGraph_t graph;
    gpuGraphExec_t exec;
    bench_must(gpuStreamBeginCapture(stream, gpuStreamCaptureModeGlobal), "recording");
    run(&p->device->gpu, &p->args);
    bench_must(gpuStreamEndCapture(stream, &graph), "recording");
    bench_must(cudaGraphInstantiate(&exec, graph, 0), "graph");
    bench_must(gpuGraphLaunch(exec, stream), "replay");
    bench_wait(p->device, "replay");
    gpuGraphExecDestroy(exec);
    gpuGraphDestroy(graph);
}

static double flop_of(const shape *shape)
{
    double total = 0.0;
    for (int s = 0; s < shape->n_segments; s++) {
        const double n = (double)(shape->segments[s + 1] - shape->segments[s]);
        total += 4.0 * n * n * (double)(shape->dim * shape->n_heads);
    }
    return shape->is_causal ? total / 2.0 : total;
}

static void judge(problem *p, int way, const double *truth, const int64_t rows[N_ROWS],
                  double warm_s)
{
    bench_device *device = p->device;
    const size_t bytes = m2_tensor_bytes(&p->y);
    bench_must(gpuMemsetAsync(p->y.data, 0xff, bytes, device->gpu.stream), "poison");
    if (!ways[way].run(&device->gpu, &p->args)) {
        printf("  %-16s not for this shape\n", ways[way].name);
        return;
    }
    m2_bf16 *first = (m2_bf16 *)bench_download(device, &p->y);
    timed it = { p, ways[way].run };
    const double ms = bench_time(device, run_timed, &it, warm_s, p->shape->n_rounds);
    bench_must(gpuMemsetAsync(p->y.data, 0xff, bytes, device->gpu.stream), "poison");
    replay(p, ways[way].run);
    m2_bf16 *last = (m2_bf16 *)bench_download(device, &p->y);
    const double error = error_of(p, first, truth, rows);
    const int is_same = memcmp(first, last, bytes) == 0;
    printf("  %-16s %9.3f ms  %4.0f TFLOP/s  error %.2e%s\n", ways[way].name, ms,
           flop_of(p->shape) / ms / 1e9, error, is_same ? "" : "  OTHER BITS when replayed");
    /* Twice what the two roundings of the result alone make, 1.7e-3 each, and of P. */
    bench_check(device, error <= 2 * 3e-3, "%s, %s: error %.2e", p->shape->name, ways[way].name,
                error);
    bench_check(device, is_same, "%s, %s: bits", p->shape->name, ways[way].name);
    fflush(stdout);
    free(first);
    free(last);
}

int main(int argc, char **argv)
{
    static const shape shapes[] = {
        { "272p", 2, { 0, 15015, 15015 + 14601 }, 24, 24, 128, 1, 0, 10 },
        { "540p", 2, { 0, 58023, 58023 + 57609 }, 24, 24, 128, 1, 0, 2 },
        { "text", 1, { 0, 2500, 0 }, 24, 4, 256, 0, 1, 50 },
    };
    static bench_device device;
    const double warm_s = argc > 1 ? atof(argv[1]) : 1.0;
    char text[160] = "";
    bench_open(&device);
    device.gpu.prefers_dnn = 1;
    device.gpu.dnn = m2_gpu_dnn_open(&device.gpu, 1, text, sizeof text);
    printf("%s\n", text);
    for (size_t i = 0; i < sizeof shapes / sizeof shapes[0]; i++) {
        const shape *s = &shapes[i];
        int64_t rows[N_ROWS];
        problem p;
        if (argc > 2 && strcmp(argv[2], s->name) != 0) continue;
        open_problem(&p, &device, s);
        double *truth = make_truth(&p, rows);
        printf("%s: %d segment%s, %d tokens, %d heads over %d of %d%s\n", s->name, s->n_segments,
               s->n_segments == 1 ? "" : "s", (int)s->segments[s->n_segments], (int)s->n_heads,
               (int)s->n_kv, (int)s->dim, s->is_causal ? ", causal" : "");
        for (int way = 0; way < 3; way++) judge(&p, way, truth, rows, warm_s);
        free(truth);
        close_problem(&p);
    }
    m2_gpu_dnn_close(device.gpu.dnn);
    return device.n_failed > 0;
}
