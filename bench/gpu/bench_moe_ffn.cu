/* bench_moe_ffn - the routed experts on Hopper: checks, then times, against the roof.
 *
 *     bench_moe_ffn [n_tokens]       29,616 tokens (272p) if left out; 0: only the checks
 *
 * Checks   rows per expert around the tile's edges, no rows, all rows on one expert, odd numbers of
 *          tokens: relative RMS error against float64 <= max(2 x that of the rounding contract
 *          computed in float64, 2^-10); the same bits in a second run into poisoned buffers, and
 *          for a part of the tokens alone.
 * Exit     0 when all checks hold.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "backend/gpu/launch.h"

#define DIM         256
#define WIDTH       1280
#define ROOF        790e12 /* FLOP/s of large bf16 products on this chip */
#define ERROR_FLOOR (1.0 / 1024)

#define CUDA(call)                                                                                 \
    do {                                                                                           \
        const gpuError_t error_ = (call);                                                          \
        if (error_ != gpuSuccess) {                                                                \
            printf("%s:%d: %s: %s\n", __FILE__, __LINE__, #call, gpuGetErrorString(error_));       \
            exit(1);                                                                               \
        }                                                                                          \
    } while (0)

static __host__ __device__ uint32_t mix(uint64_t seed)
{
    seed ^= seed >> 33;
    seed *= 0xff51afd7ed558ccdull;
    seed ^= seed >> 33;
    seed *= 0xc4ceb9fe1a85ec53ull;
    return (uint32_t)(seed >> 32);
}

static __global__ void fill(gpu_bf16 *to, int64_t n, uint64_t seed, float spread)
{
    for (int64_t i = blockIdx.x * (int64_t)blockDim.x + threadIdx.x; i < n;
         i += (int64_t)gridDim.x * blockDim.x) {
        float sum = 0; /* of 4 uniforms: near enough to normal, variance 1/3 */
        for (int j = 0; j < 4; j++) sum += (float)mix(seed + 4 * (uint64_t)i + j) * 0x1p-32f - 0.5f;
        to[i] = __float2bfloat16(sum * 1.7320508f * spread);
    }
}

static void *on_device(size_t bytes)
{
    void *memory = NULL;
    CUDA(gpuMalloc(&memory, bytes));
    return memory;
}

static void *copy_in(const void *host, size_t bytes)
{
    void *memory = on_device(bytes);
    CUDA(gpuMemcpyAsync(memory, host, bytes, gpuMemcpyHostToDevice, 0));
    CUDA(gpuDeviceSynchronize());
    return memory;
}

static gpu_bf16 *random_bf16(int64_t n, uint64_t seed, float spread)
{
    gpu_bf16 *to = (gpu_bf16 *)on_device((size_t)n * 2);
    fill<<<1024, 256>>>(to, n, seed << 40, spread);
    CUDA(gpuDeviceSynchronize());
    return to;
}

/* ---- weights and routes --------------------------------------------------------------------- */

typedef struct weights {
    int n_heads, n_experts; /* experts of a head */
    gpu_bf16 *gate, *up, *down;
} weights;

static weights make_weights(int n_heads, int n_experts)
{
    const int64_t count = (int64_t)n_heads * n_experts * DIM * WIDTH;
    weights w = { n_heads, n_experts, random_bf16(count, 1, 0.08f), random_bf16(count, 2, 0.08f),
                  random_bf16(count, 3, 0.03f) };
    return w;
}

static void free_weights(weights *w)
{
    gpuFree(w->gate);
    gpuFree(w->up);
    gpuFree(w->down);
}

/* One call: its tensors on the device. */
typedef struct ffn_case {
    const weights *w;
    int n, top_k;
    gpu_bf16 *x, *routes, *y;
    int32_t *tokens, *offsets, *position;
    float *probs;
    int owns_x;
} ffn_case;

/* Routes by choice[head][token][top_k], sorted as moe_dispatch sorts them. */
static ffn_case make_case(const weights *w, const gpu_bf16 *x, int n, int top_k,
                          const int32_t *choice)
{
    const int64_t per_head = (int64_t)n * top_k, n_routes = per_head * w->n_heads;
    const int n_rows = w->n_heads * w->n_experts;
    int32_t *tokens = (int32_t *)malloc(4 * (size_t)n_routes);
    int32_t *position = (int32_t *)malloc(4 * (size_t)n_routes);
    float *probs = (float *)malloc(4 * (size_t)n_routes);
    int32_t *offsets = (int32_t *)calloc((size_t)n_rows + 1, 4);
    int32_t *next = (int32_t *)malloc(4 * (size_t)n_rows);

    for (int64_t i = 0; i < n_routes; i++) offsets[i / per_head * w->n_experts + choice[i] + 1]++;
    for (int e = 0; e < n_rows; e++) {
        offsets[e + 1] += offsets[e];
        next[e] = offsets[e];
    }
    for (int64_t i = 0; i < n_routes; i++) {
        const int32_t at = next[i / per_head * w->n_experts + choice[i]]++;
        tokens[at] = (int32_t)(i % per_head / top_k);
        /* Depends on head, expert and place among the token's choices, not on its number. */
        probs[at] = 0.2f + 1.2f *
                               (float)mix(77 + (uint64_t)(i % top_k) * 4096 +
                                          (uint64_t)(i / per_head) * 65536 + (uint64_t)choice[i]) *
                               0x1p-32f;
        int64_t j = i; /* ascending inside a token */
        for (; j % top_k > 0 && position[j - 1] > at; j--) position[j] = position[j - 1];
        position[j] = at;
    }
    ffn_case c;
    c.w = w;
    c.n = n;
    c.top_k = top_k;
    c.owns_x = x == NULL;
    c.x = x ? (gpu_bf16 *)x : random_bf16((int64_t)n * w->n_heads * DIM, 4, 1.0f);
    c.routes = (gpu_bf16 *)on_device((size_t)n_routes * DIM * 2);
    c.y = (gpu_bf16 *)on_device((size_t)n * w->n_heads * DIM * 2);
    c.tokens = (int32_t *)copy_in(tokens, 4 * (size_t)n_routes);
    c.probs = (float *)copy_in(probs, 4 * (size_t)n_routes);
    c.offsets = (int32_t *)copy_in(offsets, 4 * ((size_t)n_rows + 1));
    c.position = (int32_t *)copy_in(position, 4 * (size_t)n_routes);
    free(tokens);
    free(position);
    free(probs);
    free(offsets);
    free(next);
    return c;
}

static void free_case(ffn_case *c)
{
    if (c->owns_x) gpuFree(c->x);
    gpuFree(c->routes);
    gpuFree(c->y);
    gpuFree(c->tokens);
    gpuFree(c->probs);
    gpuFree(c->offsets);
    gpuFree(c->position);
}

/* top_k different experts of each head for each token; experts differ in favour by e^skew. */
static int32_t *random_choice(int n_heads, int n_experts, int n, int top_k, double skew,
                              uint64_t seed)
{
    int32_t *choice = (int32_t *)malloc(4 * (size_t)n_heads * (size_t)n * (size_t)top_k);
    int32_t *table = (int32_t *)malloc(4 * 65536);
    for (int h = 0; h < n_heads; h++) {
        double total = 0, sum = 0; /* a table of experts, each as often as it is liked */
        for (int pass = 0, at = 0; pass < 2; pass++)
            for (int e = 0; e < n_experts; e++) {
                double z = -6;
                for (int j = 0; j < 12; j++)
                    z += mix(seed + 9999 + (uint64_t)(h * n_experts + e) * 16 + j) * 0x1p-32;
                if (pass == 0)
                    total += exp(skew * z);
                else
                    sum += exp(skew * z) / total;
                while (pass == 1 && at < 65536 && (at < 65536 * sum || e == n_experts - 1))
                    table[at++] = e;
            }
        for (int t = 0; t < n; t++) {
            int32_t *own = choice + ((int64_t)h * n + t) * top_k;
            uint64_t draw = seed + ((uint64_t)h << 50) + ((uint64_t)t << 16);
            for (int j = 0; j < top_k; j++) {
                int is_new = 0;
                while (!is_new) {
                    own[j] = table[mix(draw++) % 65536];
                    is_new = 1;
                    for (int i = 0; i < j; i++) is_new &= own[i] != own[j];
                }
            }
        }
    }
    free(table);
    return choice;
}

static void run(struct m2_gpu *gpu, const ffn_case *c)
{
    const int64_t heads = c->w->n_heads, rows = heads * c->w->n_experts, n = c->n, k = c->top_k;
    m2_tensor x = { c->x, M2_BF16, 3, { n, heads, DIM } },
              y = { c->y, M2_BF16, 3, { n, heads, DIM } };
    m2_tensor tokens = { c->tokens, M2_I32, 1, { heads * n * k } };
    m2_tensor probs = { c->probs, M2_F32, 1, { heads * n * k } };
    m2_tensor offsets = { c->offsets, M2_I32, 1, { rows + 1 } };
    m2_tensor position = { c->position, M2_I32, 3, { heads, n, k } };
    m2_tensor gate = { c->w->gate, M2_BF16, 3, { rows, DIM, WIDTH } };
    m2_tensor up = { c->w->up, M2_BF16, 3, { rows, DIM, WIDTH } };
    m2_tensor down = { c->w->down, M2_BF16, 3, { rows, WIDTH, DIM } };
    m2_tensor routes = { c->routes, M2_BF16, 2, { heads * n * k, DIM } };
    const m2_moe_ffn_args args = { &x,    &tokens, &probs, &offsets, &position,
                                   &gate, &up,     &down,  &routes,  &y };
    if (!m2_sm90_moe_ffn(gpu, &args)) {
        printf("the kernel refused its own shape\n");
        exit(1);
    }
    CUDA(gpu->error);
}

/* ---- checks --------------------------------------------------------------------------------- */

static __device__ double swiglu7_64(double g, double l)
{
    g = fmin(g, 7.0);
    l = fmax(fmin(l, 7.0), -7.0);
    return g / (1 + exp(-1.702 * g)) * (l + 1);
}

static __device__ double to_bf16(double value)
{
    return (double)__bfloat162float(__float2bfloat16((float)value));
}

/* One block per (token, head): y in float64, exact and with the roundings of the contract. */
static __global__ void truth(ffn_case c, weights w, int stride, double *exact, double *rounded)
{
    __shared__ double hidden[WIDTH];
    const int t = (int)blockIdx.x * stride, h = blockIdx.y, d = threadIdx.x;
    double sums[2] = { 0, 0 };
    for (int j = 0; j < c.top_k; j++) {
        const int route = c.position[((int64_t)h * c.n + t) * c.top_k + j];
        int e = h * w.n_experts;
        while (c.offsets[e + 1] <= route) e++;
        for (int is_rounded = 0; is_rounded < 2; is_rounded++) {
            __syncthreads();
            for (int i = d; i < WIDTH; i += DIM) {
                double g = 0, l = 0;
                for (int k = 0; k < DIM; k++) {
                    const double x = __bfloat162float(c.x[((int64_t)t * w.n_heads + h) * DIM + k]);
                    g += x * __bfloat162float(w.gate[((int64_t)e * DIM + k) * WIDTH + i]);
                    l += x * __bfloat162float(w.up[((int64_t)e * DIM + k) * WIDTH + i]);
                }
                hidden[i] = swiglu7_64(g, l);
                if (is_rounded) hidden[i] = to_bf16(hidden[i]);
            }
            __syncthreads();
            double y = 0;
            for (int i = 0; i < WIDTH; i++)
                y += hidden[i] * __bfloat162float(w.down[((int64_t)e * WIDTH + i) * DIM + d]);
            y *= c.probs[route];
            sums[is_rounded] = is_rounded ? to_bf16(sums[1] + to_bf16(y)) : sums[0] + y;
        }
    }
    const int64_t at = ((int64_t)blockIdx.x * w.n_heads + h) * DIM + d;
    exact[at] = sums[0];
    rounded[at] = sums[1];
}

static uint64_t bits_of(const void *device, size_t bytes)
{
    uint8_t *host = (uint8_t *)malloc(bytes);
    CUDA(gpuMemcpyAsync(host, device, bytes, gpuMemcpyDeviceToHost, 0));
    CUDA(gpuDeviceSynchronize());
    uint64_t hash = 1469598103934665603ull, word;
    for (size_t i = 0; i + 8 <= bytes; i += 8) {
        memcpy(&word, host + i, 8);
        hash = (hash ^ word) * 1099511628211ull;
        hash ^= hash >> 29;
    }
    free(host);
    return hash;
}

static void run_poisoned(struct m2_gpu *gpu, const ffn_case *c)
{
    const size_t y_bytes = (size_t)c->n * c->w->n_heads * DIM * 2;
    CUDA(gpuMemsetAsync(c->y, 0xff, y_bytes, gpu->stream));
    CUDA(gpuMemsetAsync(c->routes, 0xff, y_bytes * c->top_k, gpu->stream));
    run(gpu, c);
    CUDA(gpuDeviceSynchronize());
}

/* Error of every stride-th token, and whether a second run has the same bits. */
static int check(struct m2_gpu *gpu, const ffn_case *c, const char *name, int stride)
{
    const int heads = c->w->n_heads, n = (c->n + stride - 1) / stride;
    const size_t count = (size_t)n * heads * DIM, y_bytes = (size_t)c->n * heads * DIM * 2;
    double *exact = (double *)on_device(count * 8), *rounded = (double *)on_device(count * 8);
    double *host[2] = { (double *)malloc(count * 8), (double *)malloc(count * 8) };
    uint16_t *y = (uint16_t *)malloc(y_bytes);

    run_poisoned(gpu, c);
    const uint64_t bits = bits_of(c->y, y_bytes);
    CUDA(gpuMemcpyAsync(y, c->y, y_bytes, gpuMemcpyDeviceToHost, 0));
    run_poisoned(gpu, c);
    const int is_same = bits_of(c->y, y_bytes) == bits;
    truth<<<dim3((unsigned)n, (unsigned)heads), DIM>>>(*c, *c->w, stride, exact, rounded);
    CUDA(gpuMemcpyAsync(host[0], exact, count * 8, gpuMemcpyDeviceToHost, 0));
    CUDA(gpuMemcpyAsync(host[1], rounded, count * 8, gpuMemcpyDeviceToHost, 0));
    CUDA(gpuDeviceSynchronize());

    double square = 0, own = 0, contract = 0, worst = 0;
    for (size_t i = 0; i < count; i++) {
        const size_t row = i / (heads * DIM) * stride, at = row * heads * DIM + i % (heads * DIM);
        const uint32_t word = (uint32_t)y[at] << 16;
        float value;
        memcpy(&value, &word, 4);
        square += host[0][i] * host[0][i];
        own += (value - host[0][i]) * (value - host[0][i]);
        contract += (host[1][i] - host[0][i]) * (host[1][i] - host[0][i]);
        if (!(fabs(value - host[0][i]) <= worst)) worst = fabs(value - host[0][i]);
    }
    own = sqrt(own / square);
    contract = sqrt(contract / square);
    const int is_right = own <= fmax(2 * contract, ERROR_FLOOR);
    printf("%-36s n %6d  error %.2e (contract %.2e)  worst %.2e of rms  %s%s\n", name, c->n, own,
           contract, worst / sqrt(square / (double)count), is_right ? "ok" : "WRONG",
           is_same ? "" : "  BITS DIFFER BETWEEN RUNS");
    gpuFree(exact);
    gpuFree(rounded);
    free(host[0]);
    free(host[1]);
    free(y);
    return is_right && is_same;
}

/* Rows of y for tokens [begin, end) alone are those of the whole call. */
static int check_part(struct m2_gpu *gpu, const ffn_case *whole, const int32_t *choice, int begin,
                      int end)
{
    const int heads = whole->w->n_heads, n = end - begin, k = whole->top_k;
    const size_t row = (size_t)heads * DIM;
    int32_t *own = (int32_t *)malloc(4 * (size_t)heads * n * k);
    for (int h = 0; h < heads; h++)
        memcpy(own + (size_t)h * n * k, choice + ((size_t)h * whole->n + begin) * k,
               4 * (size_t)n * k);
    ffn_case part = make_case(whole->w, whole->x + row * begin, n, k, own);
    run_poisoned(gpu, whole);
    run_poisoned(gpu, &part);
    const int is_same =
        bits_of(whole->y + row * begin, row * n * 2) == bits_of(part.y, row * n * 2);
    printf("tokens %d to %d of %d alone: %s\n", begin, end, whole->n,
           is_same ? "same bits" : "BITS DIFFER");
    free_case(&part);
    free(own);
    return is_same;
}

/* Counts of rows for the experts of one head, in shuffled token order. */
static int check_rows(struct m2_gpu *gpu, const weights *w, const char *name, const int *rows,
                      int n_rows)
{
    int n = 0;
    for (int e = 0; e < n_rows; e++) n += rows[e];
    int32_t *choice = (int32_t *)malloc(4 * (size_t)n * w->n_heads);
    for (int h = 0; h < w->n_heads; h++) {
        int32_t *own = choice + (size_t)h * n;
        int at = 0;
        for (int e = 0; e < n_rows; e++)
            for (int i = 0; i < rows[(e + h) % n_rows]; i++) own[at++] = e;
        for (int i = n - 1; i > 0; i--) {
            const int j = (int)(mix(123 + (uint64_t)h * n + i) % (uint32_t)(i + 1));
            const int32_t kept = own[i];
            own[i] = own[j];
            own[j] = kept;
        }
    }
    ffn_case c = make_case(w, NULL, n, 1, choice);
    const int is_right = check(gpu, &c, name, 1);
    free_case(&c);
    free(choice);
    return is_right;
}

static int check_small(struct m2_gpu *gpu)
{
    static const int edges[] = {
        0, 1, 63, 64, 65, 127, 128, 129, 0, 192, 193, 255, 256, 257, 384, 2
    };
    static const int one_each[16] = { 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1 };
    static const int one_expert[16] = { 0, 0, 0, 1000 };
    static const int one_row[16] = { 0, 0, 0, 0, 0, 1 };
    static const int tile[16] = { 128 };
    weights w = make_weights(2, 16);
    int is_right = 1;
    is_right &= check_rows(gpu, &w, "one tile", tile, 16);
    is_right &= check_rows(gpu, &w, "one row", one_row, 16);
    is_right &= check_rows(gpu, &w, "one row for each expert", one_each, 16);
    is_right &= check_rows(gpu, &w, "all rows on one expert", one_expert, 16);
    is_right &= check_rows(gpu, &w, "rows around the edges of tiles", edges, 16);
    free_weights(&w);

    w = make_weights(3, 32);
    int32_t *choice = random_choice(3, 32, 1501, 6, 0.5, 5);
    ffn_case c = make_case(&w, NULL, 1501, 6, choice);
    is_right &= check(gpu, &c, "six experts a token", 7);
    is_right &= check_part(gpu, &c, choice, 0, 1);
    is_right &= check_part(gpu, &c, choice, 700, 1413);
    free_case(&c);
    free(choice);
    free_weights(&w);
    return is_right;
}

/* ---- times ---------------------------------------------------------------------------------- */

static int compare_floats(const void *a, const void *b)
{
    const float x = *(const float *)a, y = *(const float *)b;
    return (x > y) - (x < y);
}

static int time_release(struct m2_gpu *gpu, int n, float warm_s)
{
    weights w = make_weights(12, 256);
    int is_right = 1;
    for (int i = 0; i < 3; i++) {
        const double skew = 0.5 * i;
        int32_t *choice = random_choice(12, 256, n, 6, skew, 11 + i);
        ffn_case c = make_case(&w, NULL, n, 6, choice);
        char name[64];
        snprintf(name, sizeof name, "release, skew %.1f", skew);
        is_right &= check(gpu, &c, name, n / 32 + 1);
        gpuEvent_t from, to;
        CUDA(gpuEventCreateWithFlags(&from, gpuEventDefault));
        CUDA(gpuEventCreateWithFlags(&to, gpuEventDefault));
        float ms[101], total = 0;
        int n_ms = 0;
        while (total < 1000 * warm_s || n_ms < 101) {
            CUDA(gpuEventRecord(from, gpu->stream));
            run(gpu, &c);
            CUDA(gpuEventRecord(to, gpu->stream));
            CUDA(gpuEventSynchronize(to));
            float one;
            CUDA(gpuEventElapsedTime(&one, from, to));
            total += one;
            if (total >= 1000 * warm_s && n_ms < 101) ms[n_ms++] = one;
        }
        qsort(ms, 101, sizeof ms[0], compare_floats);
        const double flop = 2.0 * 3 * DIM * WIDTH * 12.0 * 6 * n;
        printf("%d tokens, skew %.1f: %.3f ms (fastest %.3f)  %.0f TFLOP/s, %.0f %% of %.0f\n", n,
               skew, ms[50], ms[0], flop / ms[50] * 1e-9, flop / ms[50] / ROOF * 1e5, ROOF * 1e-12);
        CUDA(gpuEventDestroy(from));
        CUDA(gpuEventDestroy(to));
        free_case(&c);
        free(choice);
    }
    free_weights(&w);
    return is_right;
}

int main(int n_args, char **args)
{
    const int n = n_args > 1 ? atoi(args[1]) : 29616;
    const float warm_s = n_args > 2 ? (float)atof(args[2]) : 3.0f;
    struct m2_gpu gpu;
    memset(&gpu, 0, sizeof gpu);
    setvbuf(stdout, NULL, _IOLBF, 0);
    CUDA(gpuSetDevice(0));
    CUDA(gpuDeviceGetAttribute(&gpu.n_mps, gpuDevAttrMultiProcessorCount, 0));
    gpu.arch = 90;
    gpu.workspace = on_device(M2_GPU_WORKSPACE_BYTES);
    int is_right = 1;
    if (n_args <= 2 || n == 0) is_right &= check_small(&gpu);
    if (n > 0) is_right &= time_release(&gpu, n, warm_s);
    printf("%s\n", is_right ? "all checks hold" : "CHECKS FAILED");
    return !is_right;
}
