/* simt_gated_delta_rule.cu - gated delta rule of the text encoder's linear attention, from a zero
 * state, f32 inside.
 *
 *   S = decay S;  step = beta (v - k S);  S = S + k step;  o = q S        per value head and token
 *
 * Both forms of the operator run the recurrence.  In f32 the chunked form costs 1.4 times the
 * arithmetic and wins only where matrix units do it; columns of the state never meet, and
 * 48 heads of 128 columns fill a large GPU without cutting time into chunks.
 *
 * Why      o = decay (q S) + (q k) step with S before the update: both sums over the keys are taken
 *          at once.  Shared memory is the narrowest place: wide loads of a query or key serve two
 *          columns, and lanes that have halves of four sums exchange and part them, so that a token
 *          costs a warp of four columns 4 loads and 7 shuffles.
 * Layout   16 lanes share two columns of the state and hold them in registers, lane l the keys
 *          4 l ... 4 l + 3 of every 64; a block follows 16 columns of one head through all tokens,
 *          TOKENS at a time from shared memory, the next ones on their way in registers.
 * Limits   keys wider than 256 keep their state in memory: right, but slow
 * Order    of sums depends on key_dim alone
 * Twin     backend/cpu/ref/gated_delta_rule.c */
#include "backend/gpu/kernels/simt_parts.cuh"

#include <assert.h>

#define LANES   16
#define COLUMNS 16 /* of a block */
#define THREADS (LANES * COLUMNS / 2)
#define TOKENS  8           /* in shared memory at a time */
#define PART    (4 * LANES) /* keys of one wide load      */

template <typename T> struct delta_run {
    const T *qkv, *a, *b, *a_log, *dt_bias;
    T *o;
    float *q, *k;        /* [Hk, n, dk] normalised, q scaled */
    float *decay, *beta; /* [Hv, n]                          */
    float *qk;           /* [Hk, n] q . k                    */
    float *state;        /* [Hv, dv, dk], wide keys only     */
    int n, n_key, n_value, dk, dv;
    float q_scale;
};

/* 32 lanes normalise one query and one key and take their product. */
template <typename T> static __global__ void prepare_keys(delta_run<T> run)
{
    const int lane = (int)threadIdx.x % SIMT_WARP;
    const int64_t n_items = (int64_t)run.n * run.n_key;
    const int64_t wanted = (int64_t)blockIdx.x * SIMT_WARPS + (int)threadIdx.x / SIMT_WARP;
    const int64_t item = wanted < n_items ? wanted : n_items - 1;
    const int t = (int)(item / run.n_key), h = (int)(item % run.n_key), dk = run.dk;
    const int64_t width = 2 * (int64_t)run.n_key * dk + (int64_t)run.n_value * run.dv;
    const T *q_from = run.qkv + t * width + h * dk, *k_from = q_from + run.n_key * dk;
    const int64_t to = ((int64_t)h * run.n + t) * dk;
    float q_sum = 0.0f, k_sum = 0.0f, qk = 0.0f;
    for (int i = lane; i < dk; i += SIMT_WARP) {
        const float q = simt_get(q_from, i), k = simt_get(k_from, i);
        q_sum = fmaf(q, q, q_sum);
        k_sum = fmaf(k, k, k_sum);
    }
    const float q_rms = 1.0f / sqrtf(simt_warp_sum(q_sum) + 1e-6f);
    const float k_rms = 1.0f / sqrtf(simt_warp_sum(k_sum) + 1e-6f);
    for (int i = lane; i < dk; i += SIMT_WARP) {
        const float q = simt_get(q_from, i) * q_rms * run.q_scale;
        const float k = simt_get(k_from, i) * k_rms;
        qk = fmaf(q, k, qk);
        run.q[to + i] = q;
        run.k[to + i] = k;
    }
    qk = simt_warp_sum(qk);
    if (lane == 0) run.qk[(int64_t)h * run.n + t] = qk;
}

static __device__ __forceinline__ float softplus(float x)
{
    return (x > 0.0f ? x : 0.0f) + (x != x ? x : log1pf(expf(-fabsf(x))));
}

/* A block takes one value head's tokens in turn. */
template <typename T> static __global__ void prepare_gates(delta_run<T> run)
{
    const int t = (int)blockIdx.x * SIMT_THREADS + (int)threadIdx.x, h = (int)blockIdx.y;
    if (t < run.n) {
        const int64_t from = (int64_t)t * run.n_value + h, to = (int64_t)h * run.n + t;
        const float step = softplus(simt_get(run.a, from) + simt_get(run.dt_bias, h));
        const float g = __fmul_rn(-expf(simt_get(run.a_log, h)), step);
        run.decay[to] = expf(g);
        run.beta[to] = simt_round<T>(simt_sigmoid(simt_get(run.b, from)));
    }
}

/* What a block needs of TOKENS tokens. */
template <int PARTS> struct delta_tile {
    float k[TOKENS][PART * PARTS],
        q[TOKENS][PART * PARTS]; /* zeros past dk and past the last token */
    float v[TOKENS][COLUMNS], o[TOKENS][COLUMNS];
    float decay[TOKENS], beta[TOKENS], qk[TOKENS];
};

/* One thread's share of a tile, on its way from memory. */
template <int PARTS> struct delta_share {
    static constexpr int WIDE = TOKENS * PART * PARTS / THREADS / 4;
    float4 k[WIDE], q[WIDE];
    float v, gate;
};

/* Where a thread finds its shares: pointers to that of the first token. */
template <typename T> struct delta_source {
    const float *k, *q, *gate;
    const T *v;
    int64_t v_step; /* from token to token */
    int v_token, gate_token;
};

template <typename T>
static __device__ __forceinline__ delta_source<T> source_of(const delta_run<T> &run, int head,
                                                            int column0)
{
    const int tid = (int)threadIdx.x, key_head = head / (run.n_value / run.n_key);
    const int column = column0 + tid % COLUMNS;
    const int64_t keys = 2 * (int64_t)run.n_key * run.dk;
    delta_source<T> source;
    source.k = run.k + (int64_t)key_head * run.n * run.dk;
    source.q = run.q + (int64_t)key_head * run.n * run.dk;
    source.v_step = keys + (int64_t)run.n_value * run.dv;
    source.v_token = column < run.dv ? tid / COLUMNS : run.n; /* n: nothing to fetch */
    source.v = run.qkv + (tid / COLUMNS) * source.v_step + keys + (int64_t)head * run.dv +
               (column < run.dv ? column : 0);
    /* Three rows of TOKENS threads fetch the three gates. */
    const int gate = tid / TOKENS;
    const float *gates = gate == 0 ? run.decay : gate == 1 ? run.beta : run.qk;
    source.gate_token = gate < 3 ? tid % TOKENS : run.n;
    source.gate = gates + (int64_t)(gate == 2 ? key_head : head) * run.n + tid % TOKENS;
    return source;
}

/* Four keys of the token at `idx` of the head's [n, dk], zeros past dk and past the last token.
 * IS_WHOLE: dk is PART * PARTS, so that rows follow each other without a gap. */
template <int PARTS, int IS_WHOLE>
static __device__ __forceinline__ float4 keys_load(const float *from, int first, int idx, int n,
                                                   int dk)
{
    float4 keys = make_float4(0, 0, 0, 0);
    const int t = first + idx / (PART * PARTS), key = idx % (PART * PARTS);
    if (IS_WHOLE) {
        if (t < n) keys = *(const float4 *)(from + (int64_t)first * (PART * PARTS) + idx);
    } else if (t < n) {
        const float *row = from + (int64_t)t * dk;
        keys.x = key < dk ? row[key] : 0.0f;
        keys.y = key + 1 < dk ? row[key + 1] : 0.0f;
        keys.z = key + 2 < dk ? row[key + 2] : 0.0f;
        keys.w = key + 3 < dk ? row[key + 3] : 0.0f;
    }
    return keys;
}

template <typename T, int PARTS, int IS_WHOLE>
static __device__ __forceinline__ void
share_load(delta_share<PARTS> *share, const delta_source<T> &source, int first, int n, int dk)
{
#pragma unroll
    for (int i = 0; i < delta_share<PARTS>::WIDE; i++) {
        const int idx = (i * THREADS + (int)threadIdx.x) * 4;
        share->k[i] = keys_load<PARTS, IS_WHOLE>(source.k, first, idx, n, dk);
        share->q[i] = keys_load<PARTS, IS_WHOLE>(source.q, first, idx, n, dk);
    }
    share->v = first + source.v_token < n ? simt_get(source.v, first * source.v_step) : 0.0f;
    share->gate = first + source.gate_token < n ? source.gate[first] : 0.0f;
}

template <int PARTS>
static __device__ __forceinline__ void share_store(const delta_share<PARTS> &share,
                                                   delta_tile<PARTS> *tile)
{
    const int tid = (int)threadIdx.x, gate = tid / TOKENS;
#pragma unroll
    for (int i = 0; i < delta_share<PARTS>::WIDE; i++) {
        const int idx = (i * THREADS + tid) * 4;
        *(float4 *)(&tile->k[0][0] + idx) = share.k[i];
        *(float4 *)(&tile->q[0][0] + idx) = share.q[i];
    }
    tile->v[tid / COLUMNS][tid % COLUMNS] = share.v;
    if (gate == 0) tile->decay[tid % TOKENS] = share.gate;
    if (gate == 1) tile->beta[tid % TOKENS] = share.gate;
    if (gate == 2) tile->qk[tid % TOKENS] = share.gate;
}

/* Sums over 16 lanes of four values of each: `seen` and `past` of two columns.  The half of the lanes
 * with bit 8 gets column 1, its half with bit 4 `past`. */
static __device__ __forceinline__ float part_sums(const float (&seen)[2], const float (&past)[2],
                                                  int lane)
{
    const int is_high = lane & 8, is_past = lane & 4;
    const float seen_sum =
        (is_high ? seen[1] : seen[0]) + gpu_shfl_xor(is_high ? seen[0] : seen[1], 8);
    const float past_sum =
        (is_high ? past[1] : past[0]) + gpu_shfl_xor(is_high ? past[0] : past[1], 8);
    float sum = (is_past ? past_sum : seen_sum) + gpu_shfl_xor(is_past ? seen_sum : past_sum, 4);
    sum += gpu_shfl_xor(sum, 2);
    return sum + gpu_shfl_xor(sum, 1);
}

/* One token: this lane's part of two columns of the state, the first of which is `column`. */
template <int PARTS>
static __device__ __forceinline__ void
state_step(float (&state)[2][4 * PARTS], delta_tile<PARTS> *tile, int token, int lane, int column)
{
    float k[4 * PARTS], seen[2] = { 0, 0 }, past[2] = { 0, 0 };
#pragma unroll
    for (int part = 0; part < PARTS; part++) {
        const float4 k4 = *(const float4 *)&tile->k[token][PART * part + 4 * lane];
        const float4 q4 = *(const float4 *)&tile->q[token][PART * part + 4 * lane];
        const float q[4] = { q4.x, q4.y, q4.z, q4.w };
        k[4 * part] = k4.x, k[4 * part + 1] = k4.y, k[4 * part + 2] = k4.z, k[4 * part + 3] = k4.w;
#pragma unroll
        for (int i = 0; i < 4; i++) {
#pragma unroll
            for (int c = 0; c < 2; c++) {
                seen[c] = fmaf(k[4 * part + i], state[c][4 * part + i], seen[c]);
                past[c] = fmaf(q[i], state[c][4 * part + i], past[c]);
            }
        }
    }
    const float sum = part_sums(seen, past, lane), decay = tile->decay[token];
    const int mine = lane / 8, base = (int)threadIdx.x & 16;
    /* In lanes that have `past` this is no step; nobody asks them. */
    const float step = (tile->v[token][column + mine] - decay * sum) * tile->beta[token];
    const float steps[2] = { gpu_shfl(step, base), gpu_shfl(step, base + 8) };
#pragma unroll
    for (int c = 0; c < 2; c++)
#pragma unroll
        for (int i = 0; i < 4 * PARTS; i++) state[c][i] = fmaf(k[i], steps[c], state[c][i] * decay);
    if (lane % 8 == 4)
        tile->o[token][column + mine] =
            fmaf(tile->qk[token], mine ? steps[1] : steps[0], decay * sum);
}

template <typename T, int PARTS, int IS_WHOLE>
static __global__ void __launch_bounds__(THREADS) recurrence(delta_run<T> run)
{
    __shared__ __align__(16) delta_tile<PARTS> tile;
    const int tid = (int)threadIdx.x, lane = tid % LANES, column = tid / LANES * 2;
    const int head = (int)blockIdx.y, column0 = (int)blockIdx.x * COLUMNS;
    const delta_source<T> source = source_of(run, head, column0);
    const bool is_column = column0 + tid % COLUMNS < run.dv;
    T *to =
        run.o + ((int64_t)(tid / COLUMNS) * run.n_value + head) * run.dv + column0 + tid % COLUMNS;
    float state[2][4 * PARTS];
    delta_share<PARTS> share;
#pragma unroll
    for (int i = 0; i < 4 * PARTS; i++) state[0][i] = state[1][i] = 0.0f;
    share_load<T, PARTS, IS_WHOLE>(&share, source, 0, run.n, run.dk);
    for (int first = 0; first < run.n; first += TOKENS) {
        share_store<PARTS>(share, &tile);
        __syncthreads();
        share_load<T, PARTS, IS_WHOLE>(&share, source, first + TOKENS, run.n, run.dk);
        /* Tokens past the last one are zeros: they change nothing that is used. */
#pragma unroll 4
        for (int token = 0; token < TOKENS; token++)
            state_step<PARTS>(state, &tile, token, lane, column);
        __syncthreads();
        if (is_column && first + tid / COLUMNS < run.n)
            simt_put(to, 0, tile.o[tid / COLUMNS][tid % COLUMNS]);
        to += (int64_t)TOKENS * run.n_value * run.dv;
    }
}

/* Keys of any width: 32 lanes follow one column, whose state is in memory. */
template <typename T> static __global__ void recurrence_wide(delta_run<T> run)
{
    const int lane = (int)threadIdx.x, column = (int)blockIdx.x, head = (int)blockIdx.y;
    const int key_head = head / (run.n_value / run.n_key);
    const int64_t keys = 2 * (int64_t)run.n_key * run.dk;
    const int64_t width = keys + (int64_t)run.n_value * run.dv;
    float *state = run.state + ((int64_t)head * run.dv + column) * run.dk;
    for (int i = lane; i < run.dk; i += SIMT_WARP) state[i] = 0.0f;
    for (int t = 0; t < run.n; t++) {
        const int64_t key_at = (int64_t)key_head * run.n + t, gate_at = (int64_t)head * run.n + t;
        const float *k = run.k + key_at * run.dk, *q = run.q + key_at * run.dk;
        const float decay = run.decay[gate_at];
        const float v = simt_get(run.qkv, t * width + keys + (int64_t)head * run.dv + column);
        float seen = 0.0f, past = 0.0f;
        for (int i = lane; i < run.dk; i += SIMT_WARP) {
            seen = fmaf(k[i], state[i], seen);
            past = fmaf(q[i], state[i], past);
        }
        const float step = (v - decay * simt_warp_sum(seen)) * run.beta[gate_at];
        const float out = fmaf(run.qk[key_at], step, decay * simt_warp_sum(past));
        for (int i = lane; i < run.dk; i += SIMT_WARP)
            state[i] = fmaf(k[i], step, state[i] * decay);
        if (lane == 0) simt_put(run.o, ((int64_t)t * run.n_value + head) * run.dv + column, out);
    }
}

template <typename T, int PARTS>
static void launch_recurrence(struct m2_gpu *gpu, const delta_run<T> &run)
{
    const dim3 grid(simt_blocks(run.dv, COLUMNS), (unsigned int)run.n_value);
    const int is_whole = run.dk == PART * PARTS && (uintptr_t)run.q % 16 == 0;
    SIMT_BY_WIDTH(is_whole, WHOLE,
                  { recurrence<T, PARTS, WHOLE><<<grid, THREADS, 0, gpu->stream>>>(run); });
}

template <typename T> static void run_recurrence(struct m2_gpu *gpu, const delta_run<T> &run)
{
    if (run.dk <= PART)
        launch_recurrence<T, 1>(gpu, run);
    else if (run.dk <= 2 * PART)
        launch_recurrence<T, 2>(gpu, run);
    else if (run.dk <= 4 * PART)
        launch_recurrence<T, 4>(gpu, run);
    else
        recurrence_wide<T>
            <<<dim3((unsigned int)run.dv, (unsigned int)run.n_value), SIMT_WARP, 0, gpu->stream>>>(
                run);
}

static int64_t aligned(int64_t n)
{
    return (n + 15) / 16 * 16;
}

template <typename T>
static void gated_delta_rule(struct m2_gpu *gpu, const m2_gated_delta_rule_args *args)
{
    delta_run<T> run = {};
    run.qkv = (const T *)args->qkv->data;
    run.a = (const T *)args->a->data;
    run.b = (const T *)args->b->data;
    run.a_log = (const T *)args->a_log->data;
    run.dt_bias = (const T *)args->dt_bias->data;
    run.o = (T *)args->o->data;
    run.n = (int)args->o->shape[0];
    run.n_key = args->n_key_heads;
    run.n_value = args->n_value_heads;
    run.dk = args->key_dim;
    run.dv = args->value_dim;
    run.q_scale = (float)(1.0 / sqrt((double)run.dk));
    run.q = (float *)args->scratch->data;
    run.k = run.q + aligned((int64_t)run.n * run.n_key * run.dk);
    run.decay = run.k + aligned((int64_t)run.n * run.n_key * run.dk);
    run.beta = run.decay + aligned((int64_t)run.n * run.n_value);
    run.state = run.beta + aligned((int64_t)run.n * run.n_value);
    run.qk = (float *)gpu->workspace;
    assert(run.n_value % run.n_key == 0);
    assert((size_t)run.n * (size_t)run.n_key * sizeof(float) <= M2_GPU_WORKSPACE_BYTES);

    prepare_keys<T>
        <<<simt_blocks((int64_t)run.n * run.n_key, SIMT_WARPS), SIMT_THREADS, 0, gpu->stream>>>(
            run);
    prepare_gates<T><<<dim3(simt_blocks(run.n, SIMT_THREADS), (unsigned int)run.n_value),
                       SIMT_THREADS, 0, gpu->stream>>>(run);
    run_recurrence<T>(gpu, run);
}

extern "C" void m2_gpu_gated_delta_rule(const m2_ops *ops, const m2_gated_delta_rule_args *args)
{
    struct m2_gpu *gpu = m2_gpu_of(ops);
    if (m2_tensor_count(args->o) == 0) return;
    SIMT_BY_TYPE(args->o->dtype, T, gated_delta_rule<T>(gpu, args));
    m2_gpu_launched(gpu, "gated_delta_rule");
}
