/* bench_routing.cu - router kernels: checked against float64 and the CPU's operators, then timed
 * at the shapes of a real layer.
 *
 *     bench_routing logits|select|dispatch|time [warm-up seconds] */

#include "bench/gpu/bench_device.cuh"

extern "C" {
#include "backend/cpu/ref/ref.h"
}

#define DIM     256
#define EXPERTS 256

/* ---- logits ---------------------------------------------------------------------------------- */

typedef struct logits_case {
    int64_t n, heads, dim, experts;
    m2_bf16 *x;
    float *gate;
    double *truth;
    double chain_error; /* of one f32 chain of FMAs per value */
} logits_case;

static void make_truth(logits_case *c)
{
    const int64_t count = c->heads * c->n * c->experts;
    float *chain = (float *)malloc((size_t)count * sizeof(float));
    c->truth = (double *)malloc((size_t)count * sizeof(double));
    for (int64_t i = 0; i < count; i++) {
        const int64_t e = i % c->experts, t = i / c->experts % c->n, h = i / c->experts / c->n;
        double sum = 0;
        float chained = 0;
        for (int64_t k = 0; k < c->dim; k++) {
            const float x = m2_bf16_to_f32(c->x[(t * c->heads + h) * c->dim + k]);
            const float gate = c->gate[(h * c->experts + e) * c->dim + k];
            sum += (double)x * gate;
            chained = fmaf(x, gate, chained);
        }
        c->truth[i] = sum;
        chain[i] = chained;
    }
    c->chain_error = bench_error(chain, M2_F32, c->truth, count);
    free(chain);
}

/* The first n of the case's tokens; the caller frees. */
static float *run_logits(bench_device *device, const logits_case *c, int64_t n, int use_portable)
{
    m2_tensor x = bench_tensor(device, M2_BF16, n, c->heads, c->dim, c->x);
    m2_tensor gate = bench_tensor(device, M2_F32, c->heads * c->experts, c->dim, 1, c->gate);
    m2_tensor logits = bench_tensor(device, M2_F32, c->heads, n, c->experts, 0);
    m2_moe_logits_args args = { &x, &gate, &logits };
    device->gpu.use_portable = use_portable;
    m2_gpu_moe_logits(&device->ops, &args);
    device->gpu.use_portable = 0;
    float *got = (float *)bench_download(device, &logits);
    gpuFree(x.data), gpuFree(gate.data), gpuFree(logits.data);
    return got;
}

static void check_logits(bench_device *device)
{
    static const int64_t shapes[][4] = { { 1, 12, 256, 256 }, { 7, 12, 256, 256 },
                                         { 63, 3, 256, 256 }, { 64, 3, 256, 256 },
                                         { 65, 3, 256, 256 }, { 997, 12, 256, 256 },
                                         { 70, 3, 128, 6 },   { 37, 2, 100, 77 },
                                         { 1000, 12, 64, 8 } };
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
        logits_case c = { shapes[i][0], shapes[i][1], shapes[i][2], shapes[i][3], 0, 0, 0, 0 };
        bench_random random = { i + 1 };
        const int64_t count = c.heads * c.n * c.experts;
        c.x = (m2_bf16 *)bench_values(&random, M2_BF16, c.n * c.heads * c.dim, 1.0f);
        c.gate = (float *)bench_values(&random, M2_F32, c.heads * c.experts * c.dim, 0.1f);
        make_truth(&c);
        for (int portable = 0; portable < 2; portable++) {
            float *got = run_logits(device, &c, c.n, portable);
            float *again = run_logits(device, &c, c.n, portable);
            const int64_t fewer = c.n > 13 ? c.n - 13 : 1;
            float *part = run_logits(device, &c, fewer, portable);
            const double error = bench_error(got, M2_F32, c.truth, count);
            const double allowed = 2 * c.chain_error > 3e-7 ? 2 * c.chain_error : 3e-7;
            printf("logits n %4d heads %2d dim %3d experts %3d %s error %.2e (chain %.2e)\n",
                   (int)c.n, (int)c.heads, (int)c.dim, (int)c.experts, portable ? "simt" : "sm90",
                   error, c.chain_error);
            bench_check(device, error <= allowed, "logits error");
            bench_check(device, !memcmp(got, again, (size_t)count * 4), "logits: run to run");
            for (int64_t h = 0; h < c.heads; h++)
                bench_check(device,
                            !memcmp(part + h * fewer * c.experts, got + h * c.n * c.experts,
                                    (size_t)(fewer * c.experts) * 4),
                            "logits: bits depend on n, head %d", (int)h);
            free(got), free(again), free(part);
        }
        free(c.x), free(c.gate), free(c.truth);
    }
}

/* ---- choice ---------------------------------------------------------------------------------- */

typedef struct choice_shape {
    int64_t heads, n, experts, top_k;
    int kind;
} choice_shape;

enum { RANDOM, TIES, EQUAL, STRONG_BIAS, ONE_SET, NOT_FINITE, FORCED, N_KINDS };

static float *make_logits(const choice_shape *shape, bench_random *random, float *bias)
{
    const int64_t count = shape->heads * shape->n * shape->experts;
    float *logits = (float *)bench_values(random, M2_F32, count, 2.0f);
    for (int64_t i = 0; i < count; i++) {
        if (shape->kind == TIES) logits[i] = rintf(logits[i]);
        if (shape->kind == EQUAL) logits[i] = 0.25f;
        if (shape->kind == ONE_SET)
            logits[i] = i % shape->experts >= shape->experts - shape->top_k ? 3.0f : -3.0f;
    }
    if (shape->kind == NOT_FINITE)
        for (int64_t i = 0; i < count; i += 5) logits[i] = i % 2 ? INFINITY : -INFINITY;
    for (int64_t i = 0; i < shape->heads * shape->experts; i++) {
        bias[i] = 0.1f * bench_normal(random);
        if (shape->kind == TIES || shape->kind == EQUAL || shape->kind == ONE_SET) bias[i] = 0.0f;
        if (shape->kind == STRONG_BIAS) bias[i] = bench_u64(random) % 2 ? 1e3f : -1e3f;
    }
    return logits;
}

static void check_dispatch(bench_device *device, const choice_shape *shape, const int *ids,
                           const float *probs)
{
    const int64_t h = shape->heads, n = shape->n, k = shape->top_k, e = shape->experts;
    const size_t bytes = (size_t)(h * n * k) * 4;
    m2_tensor in[2][2], out[2][4];
    void *got[4];
    in[0][0] = bench_tensor(device, M2_I32, h, n, k, ids);
    in[0][1] = bench_tensor(device, M2_F32, h, n, k, probs);
    in[1][0] = bench_host_tensor(M2_I32, h, n, k, ids);
    in[1][1] = bench_host_tensor(M2_F32, h, n, k, probs);
    for (int i = 0; i < 4; i++) {
        const m2_dtype dtype = i == 1 ? M2_F32 : M2_I32;
        const int64_t count = i == 2 ? h * e + 1 : h * n * k;
        out[0][i] = bench_tensor(device, dtype, count, 1, 1, 0);
        out[1][i] = bench_host_tensor(dtype, count, 1, 1, 0);
    }
    for (int at = 0; at < 2; at++) {
        m2_moe_dispatch_args args = { &in[at][0],  &in[at][1],  (int)e,     &out[at][0],
                                      &out[at][1], &out[at][2], &out[at][3] };
        if (at == 0)
            m2_gpu_moe_dispatch(&device->ops, &args);
        else
            m2_ref_moe_dispatch(&device->host, &args);
    }
    for (int i = 0; i < 4; i++) {
        got[i] = bench_download(device, &out[0][i]);
        bench_check(device,
                    !memcmp(got[i], out[1][i].data, i == 2 ? (size_t)(h * e + 1) * 4 : bytes),
                    "dispatch: output %d, heads %d n %d experts %d k %d kind %d", i, (int)h, (int)n,
                    (int)e, (int)k, shape->kind);
        free(got[i]), free(out[1][i].data), gpuFree(out[0][i].data);
    }
    for (int i = 0; i < 2; i++) gpuFree(in[0][i].data), free(in[1][i].data);
}

/* Device and CPU must agree in every bit; then the choice is dispatched if asked for. */
static void check_choice(bench_device *device, const choice_shape *shape, int is_dispatched)
{
    const int64_t h = shape->heads, n = shape->n, k = shape->top_k, e = shape->experts;
    const size_t bytes = (size_t)(h * n * k) * 4;
    bench_random random = { (uint64_t)(n + 7 * e + 31 * k + shape->kind) };
    float *bias = (float *)malloc((size_t)(h * e) * 4);
    float *logits = make_logits(shape, &random, bias);
    int *forced = (int *)malloc(bytes);
    for (int64_t i = 0; i < h * n * k; i++) forced[i] = (int)((i * 7 + i / k) % e);
    m2_tensor idx[2], prob[2];
    for (int at = 0; at < 2; at++) { /* device, CPU */
#define MAKE(dtype, a, b, c, from)                                                                 \
    (at == 0 ? bench_tensor(device, dtype, a, b, c, from) : bench_host_tensor(dtype, a, b, c, from))
        m2_tensor in = MAKE(M2_F32, h, n, e, logits), bias_in = MAKE(M2_F32, h * e, 1, 1, bias);
        m2_tensor forced_in = MAKE(M2_I32, h, n, k, forced);
        idx[at] = MAKE(M2_I32, h, n, k, 0);
        prob[at] = MAKE(M2_F32, h, n, k, 0);
#undef MAKE
        m2_moe_select_args args = { &in,
                                    shape->kind == EQUAL ? 0 : &bias_in,
                                    shape->kind == FORCED ? &forced_in : 0,
                                    4.9f,
                                    &idx[at],
                                    &prob[at] };
        if (at == 0)
            m2_gpu_moe_select(&device->ops, &args);
        else
            m2_ref_moe_select(&device->host, &args);
        bench_wait(device, "select");
        if (at == 0)
            gpuFree(in.data), gpuFree(bias_in.data), gpuFree(forced_in.data);
        else
            free(in.data), free(bias_in.data), free(forced_in.data);
    }
    int *ids = (int *)bench_download(device, &idx[0]);
    float *probs = (float *)bench_download(device, &prob[0]);
    bench_check(device, !memcmp(ids, idx[1].data, bytes),
                "select ids: n %d experts %d k %d kind %d", (int)n, (int)e, (int)k, shape->kind);
    bench_check(device, !memcmp(probs, prob[1].data, bytes),
                "select weights: n %d experts %d k %d kind %d", (int)n, (int)e, (int)k,
                shape->kind);
    if (is_dispatched)
        check_dispatch(device, shape, (const int *)idx[1].data, (const float *)prob[1].data);
    free(ids), free(probs), free(bias), free(logits), free(forced);
    for (int at = 0; at < 2; at++)
        (at                  ? free(idx[at].data),
         free(prob[at].data) : (gpuFree(idx[at].data), (void)gpuFree(prob[at].data)));
}

static void check_choices(bench_device *device, int is_dispatched)
{
    static const int64_t shapes[][4] = {
        { 2, 1, 8, 3 },       { 1, 19, 10, 4 },   { 3, 7, 256, 6 },    { 12, 63, 256, 6 },
        { 12, 64, 256, 6 },   { 2, 65, 256, 16 }, { 12, 997, 256, 6 }, { 2, 200, 300, 5 },
        { 2, 333, 1024, 16 }, { 1, 500, 6, 6 },   { 1, 3000, 2, 1 },   { 2, 5000, 256, 6 }
    };
    int n_cases = 0;
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
        for (int kind = 0; kind < N_KINDS; kind++, n_cases++) {
            choice_shape shape = { shapes[i][0], shapes[i][1], shapes[i][2], shapes[i][3], kind };
            check_choice(device, &shape, is_dispatched);
        }
    }
    printf("%s: %d cases\n", is_dispatched ? "dispatch" : "select", n_cases);
}

/* ---- time ------------------------------------------------------------------------------------ */

typedef struct layer {
    bench_device *device;
    m2_moe_logits_args logits;
    m2_moe_select_args select;
    m2_moe_dispatch_args dispatch;
} layer;

static void run_layer_logits(void *context)
{
    layer *l = (layer *)context;
    m2_gpu_moe_logits(&l->device->ops, &l->logits);
}

static void run_layer_select(void *context)
{
    layer *l = (layer *)context;
    m2_gpu_moe_select(&l->device->ops, &l->select);
}

static void run_layer_dispatch(void *context)
{
    layer *l = (layer *)context;
    m2_gpu_moe_dispatch(&l->device->ops, &l->dispatch);
}

static void run_layer(void *context)
{
    run_layer_logits(context);
    run_layer_select(context);
    run_layer_dispatch(context);
}

static void time_layer(bench_device *device, double warm_s)
{
    const int64_t n = 29616, h = 12, k = 6;
    bench_random random = { 1 };
    void *x_values = bench_values(&random, M2_BF16, n * h * DIM, 1.0f);
    void *gate_values = bench_values(&random, M2_F32, h * EXPERTS * DIM, 0.1f);
    void *bias_values = bench_values(&random, M2_F32, h * EXPERTS, 0.1f);
    m2_tensor x = bench_tensor(device, M2_BF16, n, h, DIM, x_values);
    m2_tensor gate = bench_tensor(device, M2_F32, h * EXPERTS, DIM, 1, gate_values);
    m2_tensor bias = bench_tensor(device, M2_F32, h * EXPERTS, 1, 1, bias_values);
    m2_tensor logits = bench_tensor(device, M2_F32, h, n, EXPERTS, 0);
    m2_tensor idx = bench_tensor(device, M2_I32, h, n, k, 0);
    m2_tensor prob = bench_tensor(device, M2_F32, h, n, k, 0);
    m2_tensor ids = bench_tensor(device, M2_I32, h * n * k, 1, 1, 0);
    m2_tensor sorted = bench_tensor(device, M2_F32, h * n * k, 1, 1, 0);
    m2_tensor offsets = bench_tensor(device, M2_I32, h * EXPERTS + 1, 1, 1, 0);
    m2_tensor pos = bench_tensor(device, M2_I32, h, n, k, 0);
    layer l = { device,
                { &x, &gate, &logits },
                { &logits, &bias, 0, 4.9f, &idx, &prob },
                { &idx, &prob, EXPERTS, &ids, &sorted, &offsets, &pos } };

    run_layer(&l);
    bench_wait(device, "layer");
    const double products = bench_time(device, run_layer_logits, &l, warm_s, 50);
    const double select = bench_time(device, run_layer_select, &l, 0.1, 50);
    const double dispatch = bench_time(device, run_layer_dispatch, &l, 0.1, 50);
    const double all = bench_time(device, run_layer, &l, 0.1, 50);
    printf("n %d: logits %.3f ms (%.0f TFLOP/s in three planes, %.2f TB/s)\n", (int)n, products,
           3 * 2.0 * n * h * DIM * EXPERTS / products / 1e9,
           (n * h * DIM * 2.0 + n * h * EXPERTS * 4.0) / products / 1e9);
    printf("  select %.3f ms (%.2f TB/s)  dispatch %.3f ms  together %.3f ms\n", select,
           n * h * EXPERTS * 4.0 / select / 1e9, dispatch, all);
    device->gpu.use_portable = 1;
    printf("  portable logits %.3f ms\n", bench_time(device, run_layer_logits, &l, 0.1, 10));
}

int main(int argc, char **argv)
{
    bench_device device;
    const char *what = argc > 1 ? argv[1] : "time";
    bench_open(&device);
    if (!strcmp(what, "logits")) check_logits(&device);
    if (!strcmp(what, "select")) check_choices(&device, 0);
    if (!strcmp(what, "dispatch")) check_choices(&device, 1);
    if (!strcmp(what, "time")) time_layer(&device, argc > 2 ? atof(argv[2]) : 0.3);
    if (device.n_failed) printf("%s: %d checks failed\n", what, device.n_failed);
    return device.n_failed > 0;
}
