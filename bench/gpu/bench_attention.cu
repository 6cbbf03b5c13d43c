/* bench_attention.cu - the attention of Hopper against float64, its gated form against attention and
 * gate in sequence, then against the clock.
 *
 *     bench_attention check             every check, exit code 1 if one fails
 *     bench_attention time [seconds]    speed at the preview's sizes after so many seconds of warm-up
 *
 * The truth is computed on the device in double, one block for each (query, head).
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bench/gpu/bench_reduce.cuh"
#include "backend/gpu/launch.h"

#define DIM 128

static int n_failed;

static void must(gpuError_t error, const char *what)
{
    if (error == gpuSuccess) return;
    fprintf(stderr, "%s: %s\n", what, gpuGetErrorString(error));
    exit(1);
}

static void report(int is_good, const char *name, const char *facts)
{
    printf("%-4s %-44s %s\n", is_good ? "ok" : "FAIL", name, facts);
    if (!is_good) n_failed++;
}

/* ---- data ----------------------------------------------------------------------------------- */

static __device__ uint32_t mix_bits(uint64_t x)
{
    x = (x ^ x >> 31) * 0x7fb5d329728ea185ull;
    x = (x ^ x >> 27) * 0x81dadef4bc2dd44dull;
    return (uint32_t)(x >> 32);
}

/* Normal numbers of variance 1, as normed queries and keys are. */
static __global__ void fill_normal(gpu_bf16 *x, int64_t n, uint64_t seed)
{
    for (int64_t i = blockIdx.x * (int64_t)blockDim.x + threadIdx.x; i < n;
         i += (int64_t)gridDim.x * blockDim.x) {
        const float u = ((float)(mix_bits(seed + 2 * i) >> 8) + 1.0f) * 0x1p-24f;
        const float v = (float)(mix_bits(seed + 2 * i + 1) >> 8) * 0x1p-24f;
        x[i] = __float2bfloat16(sqrtf(-2.0f * logf(u)) * cospif(2.0f * v));
    }
}

/* One call's tensors in device memory, and what is to be done with them. */
typedef struct problem {
    int64_t n, n_heads, n_kv_heads, n_sinks;
    int n_segments;
    int64_t segments[17];
    gpu_bf16 *q, *k, *v, *y;
    float *sinks;
    /* Of make_gated: [n, n_heads], as y, [n] and its inverse. */
    gpu_bf16 *gates, *gated;
    int32_t *seq, *places;
} problem;

static void *take(size_t bytes)
{
    void *memory = NULL;
    must(gpuMalloc(&memory, bytes), "memory");
    return memory;
}

static problem make(int64_t n_heads, int64_t n_kv_heads, const float *sinks, int n_sinks,
                    int n_segments, const int64_t *lengths)
{
    problem p = {};
    p.n_heads = n_heads;
    p.n_kv_heads = n_kv_heads;
    p.n_sinks = n_sinks;
    p.n_segments = n_segments;
    for (int i = 0; i < n_segments; i++) p.segments[i + 1] = p.n += lengths[i];
    p.q = (gpu_bf16 *)take(p.n * n_heads * DIM * 2);
    p.k = (gpu_bf16 *)take(p.n * n_kv_heads * DIM * 2);
    p.v = (gpu_bf16 *)take(p.n * n_kv_heads * DIM * 2);
    p.y =
        (gpu_bf16 *)take((p.n + 1) * n_heads * DIM * 2); /* a row more, which must stay as it is */
    fill_normal<<<1024, 256>>>(p.q, p.n * n_heads * DIM, 1ull << 40);
    fill_normal<<<1024, 256>>>(p.k, p.n * n_kv_heads * DIM, 2ull << 40);
    fill_normal<<<1024, 256>>>(p.v, p.n * n_kv_heads * DIM, 3ull << 40);
    if (n_sinks) {
        p.sinks = (float *)take(n_sinks * n_heads * sizeof(float));
        must(cudaMemcpy(p.sinks, sinks, n_sinks * n_heads * sizeof(float), gpuMemcpyHostToDevice),
             "sinks");
    }
    must(gpuDeviceSynchronize(), "data");
    return p;
}

/* With gates and a random order of rows. */
static problem make_gated(int64_t n_heads, int64_t n_kv_heads, const float *sinks, int n_sinks,
                          int n_segments, const int64_t *lengths)
{
    problem p = make(n_heads, n_kv_heads, sinks, n_sinks, n_segments, lengths);
    int32_t *seq = (int32_t *)malloc(2 * p.n * sizeof(int32_t)), *places = seq + p.n;
    for (int64_t i = 0; i < p.n; i++) seq[i] = (int32_t)i;
    for (int64_t i = p.n - 1; i > 0; i--) {
        const int64_t other = rand() % (i + 1);
        const int32_t was = seq[i];
        seq[i] = seq[other];
        seq[other] = was;
    }
    for (int64_t i = 0; i < p.n; i++) places[seq[i]] = (int32_t)i;
    p.gates = (gpu_bf16 *)take(p.n * n_heads * 2);
    p.gated = (gpu_bf16 *)take((p.n + 1) * n_heads * DIM * 2);
    p.seq = (int32_t *)take(p.n * sizeof(int32_t));
    p.places = (int32_t *)take(p.n * sizeof(int32_t));
    fill_normal<<<1024, 256>>>(p.gates, p.n * n_heads, 4ull << 40);
    must(cudaMemcpy(p.seq, seq, p.n * sizeof(int32_t), gpuMemcpyHostToDevice), "order");
    must(cudaMemcpy(p.places, places, p.n * sizeof(int32_t), gpuMemcpyHostToDevice), "order");
    free(seq);
    return p;
}

static void drop(problem *p)
{
    gpuFree(p->gates);
    gpuFree(p->gated);
    gpuFree(p->seq);
    gpuFree(p->places);
    gpuFree(p->q);
    gpuFree(p->k);
    gpuFree(p->v);
    gpuFree(p->y);
    gpuFree(p->sinks);
}

static m2_tensor tensor_of(void *data, m2_dtype dtype, int64_t a, int64_t b, int64_t c)
{
    m2_tensor t = {};
    t.data = data;
    t.dtype = dtype;
    t.n_dims = c ? 3 : 2;
    t.shape[0] = a;
    t.shape[1] = b;
    t.shape[2] = c;
    return t;
}

/* What follows the attention of a whole problem. */
typedef enum gate_kind { NO_GATE, GATE_JOINED, GATE_AFTER } gate_kind;

static void gate(m2_gpu *gpu, const problem *p, const m2_attention_args *attention, gate_kind kind)
{
    const m2_tensor g = tensor_of(p->gates, M2_BF16, p->n, p->n_heads, 0);
    const m2_tensor seq = tensor_of(p->seq, M2_I32, p->n, 1, 0);
    const m2_tensor places = tensor_of(p->places, M2_I32, p->n, 1, 0);
    m2_tensor y = tensor_of(p->gated, M2_BF16, p->n, p->n_heads * DIM, 0);
    m2_attention_gated_args args = {};
    args.attention = *attention;
    args.gate.a = attention->y;
    args.gate.g = &g;
    args.gate.seq = &seq;
    args.gate.y = &y;
    args.row = &places;
    m2_ops ops = {};
    ops.device = gpu;
    if (kind == GATE_AFTER) {
        m2_gpu_attention_gate(&ops, &args.gate);
    } else if (!m2_sm90_attention_gated(gpu, &args)) {
        fprintf(stderr, "the kernel refuses this call\n");
        exit(1);
    }
}

/* Segments [first, first + n) alone; gated: all of them. */
static void attend(m2_gpu *gpu, const problem *p, int first, int n, gate_kind kind)
{
    const int64_t begin = p->segments[first], rows = p->segments[first + n] - begin;
    const int64_t q_at = begin * p->n_heads * DIM, k_at = begin * p->n_kv_heads * DIM;
    const m2_tensor q = tensor_of(p->q + q_at, M2_BF16, rows, p->n_heads, DIM);
    const m2_tensor k = tensor_of(p->k + k_at, M2_BF16, rows, p->n_kv_heads, DIM);
    const m2_tensor v = tensor_of(p->v + k_at, M2_BF16, rows, p->n_kv_heads, DIM);
    const m2_tensor sinks = tensor_of(p->sinks, M2_F32, p->n_sinks, p->n_heads, 0);
    m2_tensor y = tensor_of(p->y + q_at, M2_BF16, rows, p->n_heads, DIM);
    int64_t segments[17];
    for (int i = 0; i <= n; i++) segments[i] = p->segments[first + i] - begin;
    m2_attention_args args = {};
    args.q = &q;
    args.k = &k;
    args.v = &v;
    args.sinks = p->n_sinks ? &sinks : NULL;
    args.segments = segments;
    args.n_segments = n;
    args.scale = 0.0883883476f; /* 128^-0.5 */
    args.y = &y;
    if (kind != GATE_JOINED && !m2_sm90_attention(gpu, &args)) {
        fprintf(stderr, "the kernel refuses this call\n");
        exit(1);
    }
    if (kind != NO_GATE) gate(gpu, p, &args, kind);
    must(gpu->error, "launch");
}

/* The result of all segments, after NaN was written everywhere it belongs. */
static uint16_t *attend_fresh_as(m2_gpu *gpu, const problem *p, gate_kind kind)
{
    const size_t values = (size_t)(p->n + 1) * p->n_heads * DIM;
    gpu_bf16 *to = kind == NO_GATE ? p->y : p->gated;
    must(gpuMemsetAsync(to, 0xff, values * 2, gpu->stream), "poison");
    attend(gpu, p, 0, p->n_segments, kind);
    uint16_t *y = (uint16_t *)malloc(values * 2);
    must(gpuMemcpyAsync(y, to, values * 2, gpuMemcpyDeviceToHost, gpu->stream), "result");
    must(gpuStreamSynchronize(gpu->stream), "attention");
    return y;
}

static uint16_t *attend_fresh(m2_gpu *gpu, const problem *p)
{
    return attend_fresh_as(gpu, p, NO_GATE);
}

/* ---- truth ---------------------------------------------------------------------------------- */

/* Row blockIdx.x of `rows`, head blockIdx.y: truth[row][head][2][128], the exact value and what is
 * left of it by the two roundings of the contract. */
static __global__ void exact_rows(problem p, const int *rows, double *scores, int64_t longest,
                                  double *truth)
{
    const int64_t row = rows[blockIdx.x], head = blockIdx.y, t = threadIdx.x;
    const int64_t kv_head = head / (p.n_heads / p.n_kv_heads);
    int segment = 0;
    while (row >= p.segments[segment + 1]) segment++;
    const int64_t begin = p.segments[segment], length = p.segments[segment + 1] - begin;
    const gpu_bf16 *q = p.q + (row * p.n_heads + head) * DIM;
    const gpu_bf16 *k = p.k + (begin * p.n_kv_heads + kv_head) * DIM;
    const gpu_bf16 *v = p.v + (begin * p.n_kv_heads + kv_head) * DIM;
    const int64_t idx = blockIdx.x * (int64_t)gridDim.y + head, stride = p.n_kv_heads * DIM;
    scores += idx * longest;
    double max = -INFINITY, sum = 0.0, value = 0.0;
    for (int64_t j = t; j < length; j += DIM) {
        double dot = 0.0;
        for (int d = 0; d < DIM; d++)
            dot += (double)__bfloat162float(q[d]) * (double)__bfloat162float(k[j * stride + d]);
        scores[j] = dot * 0.08838834764831845;
        max = fmax(max, scores[j]);
    }
    max = bench_reduce<DIM>(max, 1);
    for (int64_t j = t; j < length; j += DIM) sum += scores[j] = exp(scores[j] - max);
    sum = bench_reduce<DIM>(sum, 0);
    for (int64_t j = 0; j < length; j++)
        value += scores[j] * (double)__bfloat162float(v[j * stride + t]);
    value /= sum;
    double factor = 1.0;
    for (int s = 0; s < p.n_sinks; s++) /* e^lse + sum of e^sink, over e^lse */
        factor += exp((double)p.sinks[s * p.n_heads + head] - max - log(sum));
    const float rounded = __bfloat162float(__float2bfloat16((float)value));
    const float twice = __bfloat162float(__float2bfloat16((float)(rounded / factor)));
    truth[2 * idx * DIM + t] = value / factor;
    truth[(2 * idx + 1) * DIM + t] = p.n_sinks ? twice : rounded;
}

typedef struct error_sums {
    double error, own_error, truth; /* squares        */
    double worst_row;               /* relative RMS   */
    int n_unwritten;
} error_sums;

static float widen(uint16_t bits)
{
    const uint32_t word = (uint32_t)bits << 16;
    float value;
    memcpy(&value, &word, sizeof value);
    return value;
}

static void add_head(error_sums *sums, const double *truth, const uint16_t *y)
{
    double error = 0.0, norm = 0.0;
    for (int d = 0; d < DIM; d++) {
        const double value = widen(y[d]), exact = truth[d], own = truth[DIM + d];
        if (isnan(value)) sums->n_unwritten++;
        error += (value - exact) * (value - exact);
        norm += exact * exact;
        sums->own_error += (own - exact) * (own - exact);
    }
    sums->error += error;
    sums->truth += norm;
    if (norm > 0.0) sums->worst_row = fmax(sums->worst_row, sqrt(error / norm));
}

/* The error rule: at most twice the error that the contract's own roundings make, or 2^-10; no single
 * row further off than probabilities of 8 bits can put it. */
static void check_error(m2_gpu *gpu, const char *name, const problem *p, int n_rows)
{
    int *rows = (int *)malloc(sizeof(int) * n_rows), *device_rows;
    int64_t longest = 0;
    for (int i = 0; i < p->n_segments; i++)
        longest = (p->segments[i + 1] - p->segments[i] > longest)
                      ? p->segments[i + 1] - p->segments[i]
                      : longest;
    /* An even choice that has the first row and the last. */
    for (int i = 0; i < n_rows; i++)
        rows[i] = n_rows == 1 ? 0 : (int)((p->n - 1) * (int64_t)i / (n_rows - 1));
    const size_t pairs = (size_t)n_rows * p->n_heads;
    double *scores = (double *)take(pairs * longest * sizeof(double));
    double *truth = (double *)malloc(pairs * 2 * DIM * sizeof(double));
    double *device_truth = (double *)take(pairs * 2 * DIM * sizeof(double));
    device_rows = (int *)take(sizeof(int) * n_rows);
    must(cudaMemcpy(device_rows, rows, sizeof(int) * n_rows, gpuMemcpyHostToDevice), "rows");
    exact_rows<<<dim3(n_rows, (unsigned)p->n_heads), DIM>>>(*p, device_rows, scores, longest,
                                                            device_truth);
    must(cudaMemcpy(truth, device_truth, pairs * 2 * DIM * sizeof(double), gpuMemcpyDeviceToHost),
         "truth");
    uint16_t *y = attend_fresh(gpu, p);
    error_sums sums = {};
    for (int i = 0; i < n_rows; i++)
        for (int64_t head = 0; head < p->n_heads; head++)
            add_head(&sums, truth + 2 * DIM * (i * p->n_heads + head),
                     y + (rows[i] * p->n_heads + head) * DIM);
    int is_past_end = 0;
    for (int64_t i = p->n * p->n_heads * DIM; i < (p->n + 1) * p->n_heads * DIM; i++)
        is_past_end |= y[i] != 0xffff;
    const double norm = sums.truth > 0.0 ? sums.truth : 1.0;
    const double error = sqrt(sums.error / norm), own = sqrt(sums.own_error / norm);
    char facts[160];
    snprintf(facts, sizeof facts, "rms %.2e (own %.2e) worst row %.1e nan %d past %d", error, own,
             sums.worst_row, sums.n_unwritten, is_past_end);
    report(error <= fmax(2 * own, 0x1p-10) && sums.worst_row < 0x1p-5 && !is_past_end &&
               !sums.n_unwritten,
           name, facts);
    free(rows);
    free(truth);
    free(y);
    gpuFree(scores);
    gpuFree(device_truth);
    gpuFree(device_rows);
}

/* ---- checks --------------------------------------------------------------------------------- */

static void check_case(m2_gpu *gpu, const char *name, int64_t n_heads, int64_t n_kv_heads,
                       const float *sinks, int n_sinks, int n_segments, const int64_t *lengths)
{
    problem p = make(n_heads, n_kv_heads, sinks, n_sinks, n_segments, lengths);
    check_error(gpu, name, &p, (int)(p.n < 2000 ? p.n : 64));
    drop(&p);
}

static void check_lengths(m2_gpu *gpu, const float *sinks)
{
    static const int64_t lengths[] = { 1,   2,   63,  64,  65,  127, 128, 129,
                                       160, 161, 175, 176, 177, 352, 353, 600 };
    char name[64];
    for (size_t i = 0; i < sizeof lengths / sizeof *lengths; i++) {
        snprintf(name, sizeof name, "%d keys, 24 heads", (int)lengths[i]);
        check_case(gpu, name, 24, 24, sinks, 1, 1, lengths + i);
    }
    const int64_t two[2] = { 613, 1000 },
                  many[11] = { 1, 300, 0, 177, 64, 9, 400, 128, 5, 33, 129 };
    check_case(gpu, "two ragged segments", 24, 24, NULL, 0, 2, two);
    check_case(gpu, "two ragged segments, two sinks", 24, 24, sinks, 2, 2, two);
    check_case(gpu, "eleven segments, 8 heads over 2", 8, 2, sinks, 1, 11, many);
    const int64_t preview[2] = { 15015, 14601 };
    check_case(gpu, "272p, 64 rows of it", 24, 24, sinks, 1, 2, preview);
}

static void check_sinks(m2_gpu *gpu)
{
    const int64_t lengths[2] = { 200, 333 };
    float sinks[16];
    static const float values[] = { INFINITY, -INFINITY, 1e4f, -1e4f, 20.0f, -1e30f };
    char name[64];
    for (size_t i = 0; i < sizeof values / sizeof *values; i++) {
        for (int j = 0; j < 16; j++) sinks[j] = j < 8 ? values[i] : 0.5f;
        snprintf(name, sizeof name, "a sink of %g", values[i]);
        check_case(gpu, name, 8, 2, sinks, 1, 2, lengths);
        snprintf(name, sizeof name, "sinks of %g and 0.5", values[i]);
        check_case(gpu, name, 8, 2, sinks, 2, 2, lengths);
    }
}

static void scale_row(gpu_bf16 *x, int64_t row, int64_t stride, float by)
{
    gpu_bf16 *host = (gpu_bf16 *)malloc(stride * 2);
    must(cudaMemcpy(host, x + row * stride, stride * 2, gpuMemcpyDeviceToHost), "row");
    for (int64_t i = 0; i < stride; i++) host[i] = __float2bfloat16(__bfloat162float(host[i]) * by);
    must(cudaMemcpy(x + row * stride, host, stride * 2, gpuMemcpyHostToDevice), "row");
    free(host);
}

/* Rows whose maximum jumps late, and jumps far: a stale maximum must not overflow, and what was summed
 * before must vanish.  Then many small steps, each below the margin that moves the maximum. */
static void check_maxima(m2_gpu *gpu)
{
    const int64_t length = 900;
    static const int64_t at[] = { 0, 175, 176, 500, 899 };
    char name[64];
    for (size_t i = 0; i < sizeof at / sizeof *at; i++) {
        problem p = make(8, 2, NULL, 0, 1, &length);
        scale_row(p.k, at[i], 2 * DIM, 300.0f);
        snprintf(name, sizeof name, "key %d is huge", (int)at[i]);
        check_error(gpu, name, &p, (int)p.n);
        drop(&p);
    }
    problem p = make(8, 2, NULL, 0, 1, &length);
    for (int64_t row = 0; row < length; row++) scale_row(p.k, row, 2 * DIM, (float)row / 100.0f);
    check_error(gpu, "keys grow", &p, (int)p.n);
    drop(&p);

    /* What stands on the first maximum overflows in the product with V, and must be noticed. */
    p = make(8, 2, NULL, 0, 1, &length);
    for (int64_t row = 0; row < length; row++) {
        scale_row(p.k, row, 2 * DIM, (float)row / 100.0f);
        scale_row(p.v, row, 2 * DIM, 3e35f);
    }
    check_error(gpu, "keys grow, values are huge", &p, (int)p.n);
    drop(&p);
}

/* A row that is computed again, since its maximum grew too far, changes no bits of its neighbours. */
static void check_neighbours(m2_gpu *gpu)
{
    const int64_t length = 700, row_values = 8 * DIM;
    problem p = make(8, 2, NULL, 0, 1, &length);
    static const int64_t grown[] = { 3, 64, 65, 300, 699 };
    uint16_t *before = attend_fresh(gpu, &p);
    for (size_t i = 0; i < sizeof grown / sizeof *grown; i++)
        scale_row(p.q, grown[i], row_values, 200.0f);
    uint16_t *after = attend_fresh(gpu, &p);
    int n_other = 0;
    for (int64_t row = 0; row < length; row++) {
        int is_grown = 0;
        for (size_t i = 0; i < sizeof grown / sizeof *grown; i++) is_grown |= row == grown[i];
        const int is_equal =
            !memcmp(before + row * row_values, after + row * row_values, row_values * 2);
        n_other += is_equal == is_grown;
    }
    report(n_other == 0, "rows done again leave the others alone", "");
    check_error(gpu, "rows done again", &p, (int)p.n);
    free(before);
    free(after);
    drop(&p);
}

static void check_bits(m2_gpu *gpu, const float *sinks)
{
    const int64_t lengths[11] = { 700, 300, 1, 177, 64, 9, 1400, 128, 5, 33, 129 };
    problem p = make(24, 24, sinks, 1, 11, lengths);
    const size_t row_bytes = (size_t)p.n_heads * DIM * 2;
    uint16_t *y = attend_fresh(gpu, &p);
    int n_other = 0;
    for (int run = 0; run < 20; run++) {
        gpu->n_mps = run % 3 == 0 ? gpu->n_mps : run % 3 == 1 ? 6 : 50;
        const int n_mps = gpu->n_mps;
        uint16_t *again = attend_fresh(gpu, &p);
        gpu->n_mps = n_mps;
        n_other += memcmp(y, again, p.n * row_bytes) != 0;
        free(again);
    }
    report(n_other == 0, "bits of 20 runs, any grid", "");

    n_other = 0;
    must(gpuMemsetAsync(p.y, 0xff, (p.n + 1) * row_bytes, gpu->stream), "poison");
    for (int i = 0; i < p.n_segments; i++) attend(gpu, &p, i, 1, NO_GATE);
    uint16_t *again = (uint16_t *)malloc(p.n * row_bytes);
    must(gpuStreamSynchronize(gpu->stream), "segments");
    must(cudaMemcpy(again, p.y, p.n * row_bytes, gpuMemcpyDeviceToHost), "result");
    report(!memcmp(y, again, p.n * row_bytes), "bits of each segment alone", "");

    /* NaN in one key of one head: that head of that segment, nothing else. */
    const int64_t poisoned_row = 750, poisoned_head = 3;
    const uint16_t nan_bits = 0x7fc0;
    must(cudaMemcpy(p.k + (poisoned_row * 24 + poisoned_head) * DIM + 77, &nan_bits, 2,
                    gpuMemcpyHostToDevice),
         "nan");
    uint16_t *after = attend_fresh(gpu, &p);
    for (int64_t row = 0; row < p.n; row++)
        for (int64_t head = 0; head < 24; head++) {
            const int64_t i = (row * 24 + head) * DIM;
            const int is_hit = head == poisoned_head && row >= 700 && row < 1000;
            n_other += is_hit ? !isnan(widen(after[i])) : memcmp(y + i, after + i, DIM * 2) != 0;
        }
    report(n_other == 0, "NaN stays in its head and segment", "");
    free(y);
    free(again);
    free(after);
    drop(&p);
}

/* The gate in the attention's last lines gives what attention and gate in sequence give, bit for bit, also
 * in rows that are computed again, and writes no row but its own. */
static void check_gated(m2_gpu *gpu, const float *sinks)
{
    const int64_t many[11] = { 1, 300, 0, 177, 64, 9, 400, 128, 5, 33, 129 };
    const int64_t preview[2] = { 15015, 14601 };
    char name[64];
    for (int i = 0; i < 5; i++) {
        problem p = i == 4 ? make_gated(24, 24, sinks, 1, 2, preview)
                           : make_gated(8, 2, sinks, i % 3, 11, many);
        for (int64_t row = 7; i >= 3 && row < p.n; row += 97)
            scale_row(p.q, row, p.n_heads * DIM, 200.0f);
        uint16_t *apart = attend_fresh_as(gpu, &p, GATE_AFTER);
        uint16_t *joined = attend_fresh_as(gpu, &p, GATE_JOINED);
        const size_t bytes = (size_t)(p.n + 1) * p.n_heads * DIM * 2;
        snprintf(name, sizeof name, "gated, %d rows, %d sinks%s", (int)p.n, (int)p.n_sinks,
                 i >= 3 ? ", rows again" : "");
        report(!memcmp(apart, joined, bytes), name, "");
        free(apart);
        free(joined);
        drop(&p);
    }
}

/* ---- time ----------------------------------------------------------------------------------- */

static int by_value(const void *a, const void *b)
{
    const float x = *(const float *)a, y = *(const float *)b;
    return (x > y) - (x < y);
}

static float milliseconds(m2_gpu *gpu, const problem *p, gate_kind kind, gpuEvent_t begin,
                          gpuEvent_t end)
{
    float ms = 0.0f;
    must(gpuEventRecord(begin, gpu->stream), "event");
    attend(gpu, p, 0, p->n_segments, kind);
    must(gpuEventRecord(end, gpu->stream), "event");
    must(gpuEventSynchronize(end), "attention");
    must(gpuEventElapsedTime(&ms, begin, end), "event");
    return ms;
}

static void time_kind(m2_gpu *gpu, const problem *p, const char *name, gate_kind kind,
                      double warm_s, int n_runs)
{
    static const char *const kinds[] = { "alone", "gated", "and gate" };
    gpuEvent_t begin, end;
    must(gpuEventCreateWithFlags(&begin, gpuEventDefault), "event");
    must(gpuEventCreateWithFlags(&end, gpuEventDefault), "event");
    for (double spent = 0.0; spent < warm_s * 1e3;) spent += milliseconds(gpu, p, kind, begin, end);
    float ms[100];
    for (int i = 0; i < n_runs; i++) ms[i] = milliseconds(gpu, p, kind, begin, end);
    qsort(ms, n_runs, sizeof *ms, by_value);
    double pairs = 0.0;
    for (int i = 0; i < p->n_segments; i++) {
        const double n = (double)(p->segments[i + 1] - p->segments[i]);
        pairs += n * n;
    }
    printf("%s %-8s %8.3f ms median, %8.3f best, %6.1f TFLOP/s\n", name, kinds[kind],
           ms[n_runs / 2], ms[0], 4.0 * DIM * p->n_heads * pairs / ms[n_runs / 2] * 1e-9);
    fflush(stdout);
}

static void time_shape(m2_gpu *gpu, const char *name, int64_t a, int64_t b, const float *sinks,
                       double warm_s, int n_runs)
{
    const int64_t lengths[2] = { a, b };
    problem p = make_gated(24, 24, sinks, 1, 2, lengths);
    time_kind(gpu, &p, name, NO_GATE, warm_s, n_runs);
    time_kind(gpu, &p, name, GATE_JOINED, 0.3, n_runs);
    time_kind(gpu, &p, name, GATE_AFTER, 0.3, n_runs);
    drop(&p);
}

static int usage(void)
{
    fprintf(stderr, "usage: bench_attention check | time [seconds] | time540 [seconds]\n");
    return 2;
}

int main(int argc, char **argv)
{
    if (argc < 2) return usage();
    m2_gpu gpu = {};
    gpu.arch = 90;
    must(gpuSetDevice(0), "device");
    must(gpuDeviceGetAttribute(&gpu.n_mps, gpuDevAttrMultiProcessorCount, 0), "device");
    must(gpuDeviceGetAttribute(&gpu.smem_max, gpuDevAttrMaxSharedMemoryPerBlockOptin, 0), "device");
    must(gpuStreamCreateWithFlags(&gpu.stream, gpuStreamNonBlocking), "stream");
    gpu.workspace = take(M2_GPU_WORKSPACE_BYTES);
    must(gpuMemsetAsync(gpu.workspace, 0xff, M2_GPU_WORKSPACE_BYTES, gpu.stream), "workspace");
    float sinks[48];
    for (int i = 0; i < 48; i++) sinks[i] = 0.25f * (float)(i % 24) - 2.0f;
    const double seconds = argc > 2 ? atof(argv[2]) : 3.0;
    if (!strcmp(argv[1], "check")) {
        check_lengths(&gpu, sinks);
        check_sinks(&gpu);
        check_maxima(&gpu);
        check_neighbours(&gpu);
        check_bits(&gpu, sinks);
        check_gated(&gpu, sinks);
        printf("%d failed\n", n_failed);
    } else if (!strcmp(argv[1], "time")) {
        time_shape(&gpu, "272p", 15015, 14601, sinks, seconds, 50);
    } else if (!strcmp(argv[1], "time540")) {
        time_shape(&gpu, "540p", 58023, 57609, sinks, seconds, 5);
    } else {
        return usage();
    }
    return n_failed != 0;
}
