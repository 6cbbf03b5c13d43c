/* bench_text_ops.cu - the text encoder's own operators, and the pointwise ones of the decoders: the
 * gated delta rule checked against float64, then all timed at the shapes of the release.
 *
 *     bench_text_ops check | time [warm-up seconds] */
#include "bench/gpu/bench_device.cuh"

extern "C" {
#include "backend/cpu/ref/ref.h"
}

#define TOKENS 2500 /* of a long prompt */

/* ---- gated delta rule ------------------------------------------------------------------------ */

typedef struct delta_case {
    int64_t n;
    int n_key, dk, n_value, dv, use_chunks;
    m2_dtype dtype;
} delta_case;

typedef struct delta_tensors {
    m2_tensor qkv, a, b, a_log, dt_bias, scratch, o;
    void *values[5]; /* the first five, on the host */
} delta_tensors;

static delta_tensors make_delta(bench_device *device, const delta_case *c)
{
    const int64_t width = 2 * c->n_key * c->dk + c->n_value * c->dv;
    bench_random random = { 11 };
    delta_tensors t;
    t.values[0] = bench_values(&random, c->dtype, c->n * width, 1.0f);
    t.values[1] = bench_values(&random, c->dtype, c->n * c->n_value, 1.5f);
    t.values[2] = bench_values(&random, c->dtype, c->n * c->n_value, 1.5f);
    t.values[3] = bench_values(&random, c->dtype, c->n_value, 1.0f);
    t.values[4] = bench_values(&random, c->dtype, c->n_value, 1.0f);
    t.qkv = bench_tensor(device, c->dtype, c->n, width, 1, t.values[0]);
    t.a = bench_tensor(device, c->dtype, c->n, c->n_value, 1, t.values[1]);
    t.b = bench_tensor(device, c->dtype, c->n, c->n_value, 1, t.values[2]);
    t.a_log = bench_tensor(device, c->dtype, c->n_value, 1, 1, t.values[3]);
    t.dt_bias = bench_tensor(device, c->dtype, c->n_value, 1, 1, t.values[4]);
    t.scratch = bench_tensor(
        device, M2_F32,
        m2_gated_delta_scratch(c->n, c->n_key, c->dk, c->n_value, c->dv, c->use_chunks), 1, 1, 0);
    t.o = bench_tensor(device, c->dtype, c->n, c->n_value, c->dv, 0);
    return t;
}

static void free_delta(delta_tensors *t)
{
    m2_tensor *all[] = { &t->qkv, &t->a, &t->b, &t->a_log, &t->dt_bias, &t->scratch, &t->o };
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) gpuFree(all[i]->data);
    for (int i = 0; i < 5; i++) free(t->values[i]);
}

static void run_delta(bench_device *device, const delta_case *c, delta_tensors *t)
{
    m2_gated_delta_rule_args args = {};
    args.qkv = &t->qkv;
    args.a = &t->a;
    args.b = &t->b;
    args.a_log = &t->a_log;
    args.dt_bias = &t->dt_bias;
    args.n_key_heads = c->n_key;
    args.key_dim = c->dk;
    args.n_value_heads = c->n_value;
    args.value_dim = c->dv;
    args.use_chunks = c->use_chunks;
    args.scratch = &t->scratch;
    args.o = &t->o;
    m2_gpu_gated_delta_rule(&device->ops, &args);
}

static double value_of(const void *values, m2_dtype dtype, int64_t i)
{
    return dtype == M2_BF16 ? m2_bf16_to_f32(((const m2_bf16 *)values)[i])
                            : ((const float *)values)[i];
}

static double length_of(const void *values, m2_dtype dtype, int64_t begin, int n)
{
    double sum = 1e-6;
    for (int i = 0; i < n; i++)
        sum += value_of(values, dtype, begin + i) * value_of(values, dtype, begin + i);
    return sqrt(sum);
}

typedef struct delta_truth {
    const delta_case *c;
    void *const *values;
    double *o;
} delta_truth;

/* One value head through all tokens, in float64. */
static void truth_head(const delta_truth *truth, int64_t head)
{
    const delta_case *c = truth->c;
    const m2_dtype type = c->dtype;
    const int64_t keys = 2 * (int64_t)c->n_key * c->dk, width = keys + (int64_t)c->n_value * c->dv;
    const int64_t key_head = head / (c->n_value / c->n_key);
    double *state = (double *)calloc((size_t)(c->dk * c->dv), sizeof(double));
    double q[320], k[320];
    for (int64_t t = 0; t < c->n; t++) {
        const int64_t q_at = t * width + key_head * c->dk, k_at = q_at + c->n_key * c->dk;
        const double q_length = length_of(truth->values[0], type, q_at, c->dk);
        const double k_length = length_of(truth->values[0], type, k_at, c->dk);
        for (int i = 0; i < c->dk; i++) {
            q[i] = value_of(truth->values[0], type, q_at + i) / q_length / sqrt((double)c->dk);
            k[i] = value_of(truth->values[0], type, k_at + i) / k_length;
        }
        const double a = value_of(truth->values[1], type, t * c->n_value + head) +
                         value_of(truth->values[4], type, head);
        const double decay = exp(-exp(value_of(truth->values[3], type, head)) * log1p(exp(a)));
        double beta = 1 / (1 + exp(-value_of(truth->values[2], type, t * c->n_value + head)));
        if (type == M2_BF16) beta = m2_round_bf16((float)beta);
        for (int64_t col = 0; col < c->dv; col++) {
            double seen = 0, out = 0;
            for (int i = 0; i < c->dk; i++) seen += k[i] * (state[i * c->dv + col] *= decay);
            const double v =
                value_of(truth->values[0], type, t * width + keys + head * c->dv + col);
            for (int i = 0; i < c->dk; i++)
                out += q[i] * (state[i * c->dv + col] += k[i] * (v - seen) * beta);
            truth->o[(t * c->n_value + head) * c->dv + col] = out;
        }
    }
    free(state);
}

static void truth_heads(void *context, int64_t begin, int64_t end, int worker)
{
    (void)worker;
    for (int64_t head = begin; head < end; head++) truth_head((const delta_truth *)context, head);
}

static void check_delta(bench_device *device, const delta_case *c)
{
    const int64_t count = c->n * c->n_value * c->dv;
    delta_tensors t = make_delta(device, c);
    delta_truth truth = { c, t.values, (double *)malloc((size_t)count * sizeof(double)) };
    m2_parallel_for(device->host.pool, c->n_value, 1, truth_heads, &truth);
    run_delta(device, c, &t);
    void *got = bench_download(device, &t.o);
    const double error = bench_error(got, c->dtype, truth.o, count);
    const double bound = c->dtype == M2_BF16 ? 1.8e-3 : 1e-6;
    printf("delta rule  n %4lld  %2d x %3d, %2d x %3d  chunks %d  %s  %.2e\n", (long long)c->n,
           c->n_key, c->dk, c->n_value, c->dv, c->use_chunks, c->dtype == M2_BF16 ? "bf16" : "f32",
           error);
    bench_check(device, error <= bound, "error %.3e above %.1e", error, bound);
    free(got);
    free(truth.o);
    free_delta(&t);
}

static void check_all(bench_device *device)
{
    static const delta_case cases[] = {
        { 1, 1, 8, 1, 8, 0, M2_F32 },          { 63, 2, 16, 4, 24, 1, M2_F32 },
        { 65, 2, 32, 6, 16, 0, M2_BF16 },      { 64, 1, 100, 3, 20, 1, M2_F32 },
        { 129, 2, 256, 2, 64, 0, M2_F32 },     { 500, 4, 128, 12, 128, 0, M2_F32 },
        { 700, 16, 128, 48, 128, 1, M2_BF16 }, { 40, 1, 300, 2, 20, 0, M2_F32 },
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) check_delta(device, &cases[i]);
}

/* ---- times ----------------------------------------------------------------------------------- */

enum { DELTA, CONV_SILU, GATED_NORM, QK_NORM, GATE, SILU_MUL, RMS_ACT, UPSAMPLE, SNAKE, N_TIMED };

typedef struct timed {
    bench_device *device;
    int op;
    delta_case c;
    delta_tensors delta;
    m2_tensor in[6], out[2];
    double bytes;
} timed;

static void run_timed(void *context)
{
    timed *t = (timed *)context;
    const m2_ops *ops = &t->device->ops;
    m2_tensor *in = t->in, *out = t->out;
    if (t->op == DELTA) run_delta(t->device, &t->c, &t->delta);
    if (t->op == CONV_SILU) {
        const m2_causal_conv_silu_args args = { &in[0], &in[1], &out[0] };
        m2_gpu_causal_conv_silu(ops, &args);
    }
    if (t->op == GATED_NORM) {
        const m2_gated_rms_norm_args args = { &in[0], &in[1], &in[2], 1e-6f, &out[0] };
        m2_gpu_gated_rms_norm(ops, &args);
    }
    if (t->op == QK_NORM) {
        const m2_text_qk_norm_rope_args args = { &in[0], &in[1], &in[2],  &in[3], &in[4],
                                                 &in[5], 1e-6f,  &out[0], &out[1] };
        m2_gpu_text_qk_norm_rope(ops, &args);
    }
    if (t->op == GATE) {
        const m2_text_gate_args args = { &in[0], &in[1], &out[0] };
        m2_gpu_text_gate(ops, &args);
    }
    if (t->op == SILU_MUL) {
        const m2_silu_mul_args args = { &in[0], &in[1], &out[0] };
        m2_gpu_silu_mul(ops, &args);
    }
    if (t->op == RMS_ACT) {
        const m2_rms_act_args args = { &in[0], 1e-8f, M2_ACT_SILU, &out[0] };
        m2_gpu_rms_act(ops, &args);
    }
    if (t->op == UPSAMPLE) {
        const m2_upsample_nearest_args args = { &in[0], 2, 2, &out[0] };
        m2_gpu_upsample_nearest(ops, &args);
    }
    if (t->op == SNAKE) {
        const m2_snake_args args = { &in[0], &in[1], &in[2], &out[0] };
        m2_gpu_snake(ops, &args);
    }
}

static m2_tensor random_tensor(bench_device *device, m2_dtype dtype, int64_t a, int64_t b,
                               int64_t c)
{
    bench_random random = { (uint64_t)(a + b + c) };
    void *values = bench_values(&random, dtype, a * b * c, 1.0f);
    m2_tensor tensor = bench_tensor(device, dtype, a, b, c, values);
    free(values);
    return tensor;
}

static void time_op(bench_device *device, const char *name, timed *t, double warm_s)
{
    t->device = device;
    for (int i = 0; i < 6; i++) t->bytes += t->in[i].data ? (double)m2_tensor_bytes(&t->in[i]) : 0;
    for (int i = 0; i < 2; i++)
        t->bytes += t->out[i].data ? (double)m2_tensor_bytes(&t->out[i]) : 0;
    const double ms = bench_time(device, run_timed, t, warm_s, 10);
    printf("%-34s %8.4f ms", name, ms);
    if (t->bytes > 0) printf("  %5.2f TB/s", t->bytes / ms / 1e9);
    printf("\n");
    for (int i = 0; i < 6; i++) gpuFree(t->in[i].data);
    for (int i = 0; i < 2; i++) gpuFree(t->out[i].data);
}

static void time_text(bench_device *device, double warm_s)
{
    const m2_dtype bf16 = M2_BF16;
    timed delta = {}, conv = {}, norm = {}, qk = {}, gate = {}, mul = {};
    delta.op = DELTA;
    delta.c = { TOKENS, 16, 128, 48, 128, 1, bf16 };
    delta.delta = make_delta(device, &delta.c);
    time_op(device, "gated_delta_rule 2500 x 48 x 128", &delta, warm_s);
    free_delta(&delta.delta);
    conv.op = CONV_SILU;
    conv.in[0] = random_tensor(device, bf16, TOKENS, 10240, 1);
    conv.in[1] = random_tensor(device, bf16, 10240, 1, 4);
    conv.out[0] = bench_tensor(device, bf16, TOKENS, 10240, 1, 0);
    time_op(device, "causal_conv_silu 2500 x 10240", &conv, warm_s);
    norm.op = GATED_NORM;
    norm.in[0] = random_tensor(device, bf16, TOKENS, 48, 128);
    norm.in[1] = random_tensor(device, bf16, 128, 1, 1);
    norm.in[2] = random_tensor(device, bf16, TOKENS, 48, 128);
    norm.out[0] = bench_tensor(device, bf16, TOKENS, 48, 128, 0);
    time_op(device, "gated_rms_norm 2500 x 48 x 128", &norm, warm_s);
    qk.op = QK_NORM;
    qk.in[0] = random_tensor(device, bf16, TOKENS, 24, 512);
    qk.in[1] = random_tensor(device, bf16, TOKENS, 4, 256);
    qk.in[2] = random_tensor(device, bf16, 256, 1, 1);
    qk.in[3] = random_tensor(device, bf16, 256, 1, 1);
    qk.in[4] = random_tensor(device, bf16, TOKENS, 32, 1);
    qk.in[5] = random_tensor(device, bf16, TOKENS, 32, 1);
    qk.out[0] = bench_tensor(device, bf16, TOKENS, 24, 256, 0);
    qk.out[1] = bench_tensor(device, bf16, TOKENS, 4, 256, 0);
    time_op(device, "text_qk_norm_rope 2500 x 28 x 256", &qk, warm_s);
    gate.op = GATE;
    gate.in[0] = random_tensor(device, bf16, TOKENS, 24, 256);
    gate.in[1] = random_tensor(device, bf16, TOKENS, 24, 512);
    gate.out[0] = bench_tensor(device, bf16, TOKENS, 6144, 1, 0);
    time_op(device, "text_gate 2500 x 6144", &gate, warm_s);
    mul.op = SILU_MUL;
    mul.in[0] = random_tensor(device, bf16, TOKENS, 17408, 1);
    mul.in[1] = random_tensor(device, bf16, TOKENS, 17408, 1);
    mul.out[0] = bench_tensor(device, bf16, TOKENS, 17408, 1, 0);
    time_op(device, "silu_mul 2500 x 17408", &mul, warm_s);
}

/* The widest tensors of the decoders: 36 frames of 128 x 224, 64 to 512 channels; sound. */
static void time_decoders(bench_device *device, double warm_s)
{
    for (int64_t channels = 64; channels <= 256; channels *= 2) {
        timed act = {};
        char name[64];
        act.op = RMS_ACT;
        act.in[0] = random_tensor(device, M2_BF16, 36, 128 * 224 * 64 / channels, channels);
        act.out[0] = bench_tensor(device, M2_BF16, 36, 128 * 224 * 64 / channels, channels, 0);
        snprintf(name, sizeof name, "rms_act of %lld channels", (long long)channels);
        time_op(device, name, &act, warm_s);
    }
    timed up = {}, snake = {};
    const int64_t from[4] = { 36, 64, 112, 128 }, to[4] = { 36, 128, 224, 128 };
    up.op = UPSAMPLE;
    up.in[0] = random_tensor(device, M2_BF16, 36, 64 * 112, 128);
    up.out[0] = bench_tensor(device, M2_BF16, 36, 128 * 224, 128, 0);
    up.in[0] = m2_tensor_wrap(up.in[0].data, M2_BF16, 4, from);
    up.out[0] = m2_tensor_wrap(up.out[0].data, M2_BF16, 4, to);
    time_op(device, "upsample_nearest to 128 x 224", &up, warm_s);
    snake.op = SNAKE;
    const int64_t samples[2] = { 512000, 128 };
    snake.in[0] = random_tensor(device, M2_F32, 512000, 128, 1);
    snake.in[0] = m2_tensor_wrap(snake.in[0].data, M2_F32, 2, samples);
    snake.in[1] = random_tensor(device, M2_F32, 128, 1, 1);
    snake.in[2] = random_tensor(device, M2_F32, 128, 1, 1);
    snake.out[0] = bench_tensor(device, M2_F32, 512000, 128, 1, 0);
    time_op(device, "snake 512000 x 128", &snake, warm_s);
}

int main(int argc, char **argv)
{
    const char *what = argc > 1 ? argv[1] : "check";
    const double warm_s = argc > 2 ? atof(argv[2]) : 0.05;
    bench_device device;
    bench_open(&device);
    if (strcmp(what, "check") == 0) check_all(&device);
    if (strcmp(what, "time") == 0) {
        time_text(&device, warm_s);
        time_decoders(&device, warm_s);
    }
    printf("%d failed\n", device.n_failed);
    return device.n_failed > 0;
}
