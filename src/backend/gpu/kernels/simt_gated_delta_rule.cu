/* simt_gated_delta_rule.cu - gated delta rule of the text encoder's linear attention, from a zero
 * state, f32 inside.
 *
 *   S = decay S;  step = beta (v - k S);  S = S + k step;  o = q S        per value head and token
 *
 * Both forms of the operator run the recurrence, four tokens at a time.  The chunked form over 64
 * costs twice the arithmetic in f32 and wins only where matrix units do it; columns of the state
 * never meet, and 48 heads of 128 columns fill a large GPU without cutting time into chunks.
 *
 * Why      a token's two sums over the keys must cross lanes before the next token may begin, and
 *          that takes longer than the sums.  So all eight sums of a group of four tokens are taken
 *          of the state before the group; what the tokens of a group do to each other is a small
 *          triangle of numbers, products of keys and decays, that are ready before:
 *            step j = beta j (v j - gamma j (k j S) - sum over i < j of a ji step i)
 *            o j    = gamma j (q j S) + sum over i <= j of b ji step i
 *            S      = gamma 3 S + sum over i of k i (r i step i)
 * Layout   16 lanes share two columns of the state and hold them in registers, lane l the keys
 *          4 l ... 4 l + 3 of every 64; 16 sums over 16 lanes end with one sum in each lane.  A
 *          block follows 16 columns of one head through all tokens, TOKENS at a time from shared
 *          memory, the next ones on their way in registers.
 * Limits   keys wider than 256 keep their state in memory: right, but slow
 * Order    of sums depends on key_dim alone
 * Twin     backend/cpu/ref/gated_delta_rule.c */
#include "backend/gpu/kernels/simt_parts.cuh"

#include <assert.h>

#define LANES   16
#define COLUMNS 16 /* of a block */
#define THREADS (LANES * COLUMNS / 2)
#define GROUP   4 /* tokens                     */
#define TOKENS  8 /* in shared memory at a time */
#define GROUPS  (TOKENS / GROUP)
#define PART    (4 * LANES) /* keys of one wide load      */

/* Products of a group's keys and queries: k j . k i for i < j, then q j . k i for i <= j. */
#define N_PRODUCTS 16

static __host__ __device__ constexpr int product_kk(int j, int i)
{
    return j * (j - 1) / 2 + i;
}

static __host__ __device__ constexpr int product_qk(int j, int i)
{
    return 6 + j * (j + 1) / 2 + i;
}

/* What a group's tokens do to the state and to each other, per value head. */
typedef struct delta_group {
    float gamma[GROUP]; /* product of the decays up to this token       */
    float beta[GROUP];
    float a[8];            /* as product_kk, beside decays between i and j  */
    float b[GROUP][GROUP]; /* zeros for i > j                            */
    float r[GROUP];        /* product of the decays behind this token       */
    float decay[GROUP];
} delta_group;

static_assert(GROUP == M2_GPU_DELTA_TOKENS && sizeof(delta_group) == M2_GPU_DELTA_VALUE_BYTES &&
                  N_PRODUCTS * sizeof(float) == M2_GPU_DELTA_KEY_BYTES,
              "as many tokens as limits.h says");

#define GROUP_WIDE (int)(sizeof(delta_group) / sizeof(float4))

template <typename T> struct delta_run {
    const T *qkv, *a, *b, *a_log, *dt_bias;
    T *o;
    float *q, *k;        /* [Hk, n, dk] normalised, q scaled */
    float *products;     /* [Hk, n_groups, N_PRODUCTS]       */
    delta_group *groups; /* [Hv, n_groups]                   */
    float *state;        /* [Hv, dv, dk], wide keys only     */
    int n, n_groups, n_key, n_value, dk, dv;
    float q_scale;
};

/* ---- before the recurrence ------------------------------------------------------------------- */

/* 32 lanes normalise four queries and keys of a head and take their products.  Tokens past the last
 * are zeros. */
template <typename T> static __global__ void prepare_keys(delta_run<T> run)
{
    const int lane = (int)threadIdx.x % SIMT_WARP;
    const int64_t n_items = (int64_t)run.n_groups * run.n_key;
    const int64_t wanted = (int64_t)blockIdx.x * SIMT_WARPS + (int)threadIdx.x / SIMT_WARP;
    const int64_t item = wanted < n_items ? wanted : n_items - 1;
    const int group = (int)(item / run.n_key), h = (int)(item % run.n_key), dk = run.dk;
    const int64_t width = 2 * (int64_t)run.n_key * dk + (int64_t)run.n_value * run.dv;
    const int first = group * GROUP, n_tokens = run.n - first < GROUP ? run.n - first : GROUP;
    const T *from = run.qkv + first * width + h * dk;
    const int64_t to = ((int64_t)h * run.n + first) * dk;
    float q_scale[GROUP] = {}, k_scale[GROUP] = {}, products[N_PRODUCTS] = {};
    for (int i = lane; i < dk; i += SIMT_WARP) {
#pragma unroll
        for (int j = 0; j < GROUP; j++) {
            const T *token = from + (j < n_tokens ? j : 0) * width;
            const float q = simt_get(token, i), k = simt_get(token, (int64_t)run.n_key * dk + i);
            q_scale[j] = fmaf(q, q, q_scale[j]);
            k_scale[j] = fmaf(k, k, k_scale[j]);
        }
    }
#pragma unroll
    for (int j = 0; j < GROUP; j++) {
        q_scale[j] = 1.0f / sqrtf(simt_warp_sum(q_scale[j]) + 1e-6f);
        k_scale[j] = 1.0f / sqrtf(simt_warp_sum(k_scale[j]) + 1e-6f);
    }
    for (int i = lane; i < dk; i += SIMT_WARP) {
        float q[GROUP], k[GROUP];
#pragma unroll
        for (int j = 0; j < GROUP; j++) {
            const T *token = from + (j < n_tokens ? j : 0) * width;
            const float raw_q = simt_get(token, i);
            const float raw_k = simt_get(token, (int64_t)run.n_key * dk + i);
            q[j] = j < n_tokens ? raw_q * q_scale[j] * run.q_scale : 0.0f;
            k[j] = j < n_tokens ? raw_k * k_scale[j] : 0.0f;
            if (j < n_tokens) run.q[to + (int64_t)j * dk + i] = q[j];
            if (j < n_tokens) run.k[to + (int64_t)j * dk + i] = k[j];
#pragma unroll
            for (int before = 0; before <= j; before++) {
                if (before < j)
                    products[product_kk(j, before)] =
                        fmaf(k[j], k[before], products[product_kk(j, before)]);
                products[product_qk(j, before)] =
                    fmaf(q[j], k[before], products[product_qk(j, before)]);
            }
        }
    }
#pragma unroll
    for (int i = 0; i < N_PRODUCTS; i++) {
        const float sum = simt_warp_sum(products[i]);
        if (lane == 0) run.products[((int64_t)h * run.n_groups + group) * N_PRODUCTS + i] = sum;
    }
}

static __device__ __forceinline__ float softplus(float x)
{
    return (x > 0.0f ? x : 0.0f) + (x != x ? x : log1pf(expf(-fabsf(x))));
}

/* The numbers of one group from its decays, betas and products. */
static __device__ __forceinline__ void group_numbers(const float *products, delta_group *group)
{
    float gamma = 1.0f;
#pragma unroll
    for (int j = 0; j < GROUP; j++) {
        float between = 1.0f; /* decays behind token i, up to j */
        gamma *= group->decay[j];
        group->gamma[j] = gamma;
#pragma unroll
        for (int i = GROUP - 1; i >= 0; i--) {
            group->b[j][i] = i <= j ? between * products[product_qk(j, i)] : 0.0f;
            if (i < j) group->a[product_kk(j, i)] = between * products[product_kk(j, i)];
            if (j == GROUP - 1) group->r[i] = between;
            if (i <= j) between *= group->decay[i];
        }
    }
    group->a[6] = group->a[7] = 0.0f;
}

/* A thread makes one group; a block takes one value head's groups in turn. */
template <typename T> static __global__ void prepare_groups(delta_run<T> run)
{
    const int idx = (int)blockIdx.x * SIMT_THREADS + (int)threadIdx.x, h = (int)blockIdx.y;
    const int key_head = h / (run.n_value / run.n_key);
    if (idx < run.n_groups) {
        const float bias = simt_get(run.dt_bias, h), rate = -expf(simt_get(run.a_log, h));
        delta_group group;
#pragma unroll
        for (int j = 0; j < GROUP; j++) {
            const int t = idx * GROUP + j, is_token = t < run.n;
            const int64_t from = (int64_t)(is_token ? t : 0) * run.n_value + h;
            const float decay = expf(__fmul_rn(rate, softplus(simt_get(run.a, from) + bias)));
            const float beta = simt_round<T>(simt_sigmoid(simt_get(run.b, from)));
            group.decay[j] = is_token ? decay : 1.0f;
            group.beta[j] = is_token ? beta : 0.0f;
        }
        group_numbers(run.products + ((int64_t)key_head * run.n_groups + idx) * N_PRODUCTS, &group);
        run.groups[(int64_t)h * run.n_groups + idx] = group;
    }
}

/* ---- a tile of tokens ------------------------------------------------------------------------ */

/* What a block needs of TOKENS tokens; zeros past dk and past the last token. */
template <int PARTS> struct delta_tile {
    float k[TOKENS][PART * PARTS], q[TOKENS][PART * PARTS];
    delta_group groups[GROUPS];
    float v[TOKENS][COLUMNS], o[TOKENS][COLUMNS];
};

/* One thread's share of a tile, on its way from memory. */
template <int PARTS> struct delta_share {
    static constexpr int WIDE = TOKENS * PART * PARTS / THREADS / 4;
    float4 k[WIDE], q[WIDE], group;
    float v;
};

/* Where a thread finds its shares: those of the first token. */
template <typename T> struct delta_source {
    const float *k, *q;
    const float4 *group;
    const T *v;
    int64_t v_step; /* from token to token */
    int v_token;
    bool has_v, has_group;
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
    source.v_token = tid / COLUMNS;
    source.has_v = column < run.dv;
    source.v = run.qkv + source.v_token * source.v_step + keys + (int64_t)head * run.dv +
               (source.has_v ? column : 0);
    source.has_group = tid < GROUPS * GROUP_WIDE;
    source.group =
        (const float4 *)(run.groups + (int64_t)head * run.n_groups) + (source.has_group ? tid : 0);
    return source;
}

/* Four keys at `idx` of a head's tokens from `first` on.  IS_WHOLE: dk is PART * PARTS, so that
 * tokens follow each other without a gap. */
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
static __device__ __forceinline__ void share_load(delta_share<PARTS> *share,
                                                  const delta_source<T> &source, int first,
                                                  const delta_run<T> &run)
{
#pragma unroll
    for (int i = 0; i < delta_share<PARTS>::WIDE; i++) {
        const int idx = (i * THREADS + (int)threadIdx.x) * 4;
        share->k[i] = keys_load<PARTS, IS_WHOLE>(source.k, first, idx, run.n, run.dk);
        share->q[i] = keys_load<PARTS, IS_WHOLE>(source.q, first, idx, run.n, run.dk);
    }
    const int is_token = source.has_v && first + source.v_token < run.n;
    const int group = first / GROUP + (int)threadIdx.x / GROUP_WIDE;
    share->v = is_token ? simt_get(source.v, first * source.v_step) : 0.0f;
    share->group = source.has_group && group < run.n_groups
                       ? source.group[first / GROUP * GROUP_WIDE]
                       : make_float4(0, 0, 0, 0);
}

template <int PARTS>
static __device__ __forceinline__ void share_store(const delta_share<PARTS> &share,
                                                   delta_tile<PARTS> *tile)
{
    const int tid = (int)threadIdx.x;
#pragma unroll
    for (int i = 0; i < delta_share<PARTS>::WIDE; i++) {
        const int idx = (i * THREADS + tid) * 4;
        *(float4 *)(&tile->k[0][0] + idx) = share.k[i];
        *(float4 *)(&tile->q[0][0] + idx) = share.q[i];
    }
    tile->v[tid / COLUMNS][tid % COLUMNS] = share.v;
    if (tid < GROUPS * GROUP_WIDE) ((float4 *)tile->groups)[tid] = share.group;
}

/* ---- the recurrence -------------------------------------------------------------------------- */

/* Halves `N` values of a lane: those of the upper half go to lanes with the bit, who give their
 * lower half; both add. */
template <int N, int BIT> static __device__ __forceinline__ void halve(float *sums, int lane)
{
    const int is_upper = lane & BIT;
#pragma unroll
    for (int i = 0; i < N / 2; i++) {
        const float lower = sums[i], upper = sums[N / 2 + i];
        const float kept = is_upper ? upper : lower, given = is_upper ? lower : upper;
        sums[i] = kept + gpu_shfl_xor(given, BIT);
    }
}

/* Sums over the keys of a group, of the state before it: k S of its four tokens and q S of them,
 * for column 0, then for column 1.  The keys stay in `keys` for the update. */
template <int PARTS>
static __device__ __forceinline__ void
group_sums(const float (&state)[2][4 * PARTS], const delta_tile<PARTS> *tile, int first, int lane,
           float (&keys)[GROUP][4 * PARTS], float (&sums)[4 * GROUP])
{
#pragma unroll
    for (int i = 0; i < 4 * GROUP; i++) sums[i] = 0.0f;
#pragma unroll
    for (int j = 0; j < GROUP; j++) {
#pragma unroll
        for (int part = 0; part < PARTS; part++) {
            float k[4], q[4];
            *(float4 *)k = *(const float4 *)&tile->k[first + j][PART * part + 4 * lane];
            *(float4 *)q = *(const float4 *)&tile->q[first + j][PART * part + 4 * lane];
#pragma unroll
            for (int i = 0; i < 4; i++) {
                keys[j][4 * part + i] = k[i];
#pragma unroll
                for (int c = 0; c < 2; c++) {
                    const float s = state[c][4 * part + i];
                    sums[8 * c + j] = fmaf(k[i], s, sums[8 * c + j]);
                    sums[8 * c + 4 + j] = fmaf(q[i], s, sums[8 * c + 4 + j]);
                }
            }
        }
    }
}

/* The steps of a group in one column; `seen` is k S of its tokens. */
static __device__ __forceinline__ void group_steps(const delta_group &group, const float *seen,
                                                   const float *v, float (&steps)[GROUP])
{
#pragma unroll
    for (int j = 0; j < GROUP; j++) {
        float rest = fmaf(-group.gamma[j], seen[j], v[j]);
#pragma unroll
        for (int i = 0; i < j; i++) rest = fmaf(-group.a[product_kk(j, i)], steps[i], rest);
        steps[j] = rest * group.beta[j];
    }
}

/* Four tokens: this lane's part of two columns of the state, the first of which is `column`.  Of
 * the sums, a lane gets that of token lane % 4: k S or, with bit 4, q S; of column 0 or, with bit
 * 8, 1. */
template <int PARTS>
static __device__ __forceinline__ void
group_run(float (&state)[2][4 * PARTS], delta_tile<PARTS> *tile, int idx, int lane, int column)
{
    const delta_group &group = tile->groups[idx];
    const int first = idx * GROUP, mine = lane / 8, token = lane % GROUP;
    const int base = (int)threadIdx.x & 24; /* lane 0 of this column in the warp */
    float keys[GROUP][4 * PARTS], sums[4 * GROUP], seen[GROUP], v[GROUP], steps[GROUP];
    group_sums<PARTS>(state, tile, first, lane, keys, sums);
    halve<16, 8>(sums, lane);
    halve<8, 4>(sums, lane);
    halve<4, 2>(sums, lane);
    halve<2, 1>(sums, lane);
#pragma unroll
    for (int j = 0; j < GROUP; j++) {
        seen[j] = gpu_shfl(sums[0], base + j);
        v[j] = tile->v[first + j][column + mine];
    }
    group_steps(group, seen, v, steps);
    float out = group.gamma[token] * sums[0];
#pragma unroll
    for (int i = 0; i < GROUP; i++) out = fmaf(group.b[token][i], steps[i], out);
    if (lane & 4) tile->o[first + token][column + mine] = out;
#pragma unroll
    for (int c = 0; c < 2; c++)
#pragma unroll
        for (int i = 0; i < 4 * PARTS; i++) state[c][i] *= group.gamma[GROUP - 1];
#pragma unroll
    for (int j = 0; j < GROUP; j++) {
        const float own = group.r[j] * steps[j], other = gpu_shfl_xor(own, 8);
        const float step[2] = { mine ? other : own, mine ? own : other };
#pragma unroll
        for (int c = 0; c < 2; c++)
#pragma unroll
            for (int i = 0; i < 4 * PARTS; i++)
                state[c][i] = fmaf(keys[j][i], step[c], state[c][i]);
    }
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
    share_load<T, PARTS, IS_WHOLE>(&share, source, 0, run);
    for (int first = 0; first < run.n; first += TOKENS) {
        share_store<PARTS>(share, &tile);
        __syncthreads();
        share_load<T, PARTS, IS_WHOLE>(&share, source, first + TOKENS, run);
        /* Tokens past the last one are zeros: they change nothing that is used. */
#pragma unroll
        for (int group = 0; group < GROUPS; group++)
            group_run<PARTS>(state, &tile, group, lane, column);
        __syncthreads();
        if (is_column && first + tid / COLUMNS < run.n)
            simt_put(to, 0, tile.o[tid / COLUMNS][tid % COLUMNS]);
        to += (int64_t)TOKENS * run.n_value * run.dv;
    }
}

/* Keys of any width, token by token: 32 lanes follow one column, whose state is in memory. */
template <typename T> static __global__ void recurrence_wide(delta_run<T> run)
{
    const int lane = (int)threadIdx.x, column = (int)blockIdx.x, head = (int)blockIdx.y;
    const int key_head = head / (run.n_value / run.n_key);
    const int64_t keys = 2 * (int64_t)run.n_key * run.dk;
    const int64_t width = keys + (int64_t)run.n_value * run.dv;
    float *state = run.state + ((int64_t)head * run.dv + column) * run.dk;
    for (int i = lane; i < run.dk; i += SIMT_WARP) state[i] = 0.0f;
    for (int t = 0; t < run.n; t++) {
        const int64_t key_at = ((int64_t)key_head * run.n + t) * run.dk;
        const float *k = run.k + key_at, *q = run.q + key_at;
        const delta_group *group = run.groups + (int64_t)head * run.n_groups + t / GROUP;
        const float decay = group->decay[t % GROUP], beta = group->beta[t % GROUP];
        const float v = simt_get(run.qkv, t * width + keys + (int64_t)head * run.dv + column);
        float seen = 0.0f, past = 0.0f;
        for (int i = lane; i < run.dk; i += SIMT_WARP) {
            seen = fmaf(k[i], state[i], seen);
            past = fmaf(q[i], state[i], past);
        }
        const float step = (v - decay * simt_warp_sum(seen)) * beta;
        const float out = fmaf(group->b[t % GROUP][t % GROUP], step, decay * simt_warp_sum(past));
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
static delta_run<T> run_of(struct m2_gpu *gpu, const m2_gated_delta_rule_args *args)
{
    delta_run<T> run = {};
    run.qkv = (const T *)args->qkv->data;
    run.a = (const T *)args->a->data;
    run.b = (const T *)args->b->data;
    run.a_log = (const T *)args->a_log->data;
    run.dt_bias = (const T *)args->dt_bias->data;
    run.o = (T *)args->o->data;
    run.n = (int)args->o->shape[0];
    run.n_groups = (run.n + GROUP - 1) / GROUP;
    run.n_key = args->n_key_heads;
    run.n_value = args->n_value_heads;
    run.dk = args->key_dim;
    run.dv = args->value_dim;
    run.q_scale = (float)(1.0 / sqrt((double)run.dk));
    run.q = (float *)args->scratch->data;
    run.k = run.q + aligned((int64_t)run.n * run.n_key * run.dk);
    run.state = run.k + aligned((int64_t)run.n * run.n_key * run.dk);
    run.groups = (delta_group *)gpu->workspace;
    run.products = (float *)(run.groups + (int64_t)run.n_value * run.n_groups);
    return run;
}

template <typename T>
static void gated_delta_rule(struct m2_gpu *gpu, const m2_gated_delta_rule_args *args)
{
    const delta_run<T> run = run_of<T>(gpu, args);
    assert(run.n_value % run.n_key == 0);
    assert((char *)(run.products + (int64_t)run.n_key * run.n_groups * N_PRODUCTS) <=
           (char *)gpu->workspace + M2_GPU_WORKSPACE_BYTES);
    prepare_keys<T><<<simt_blocks((int64_t)run.n_groups * run.n_key, SIMT_WARPS), SIMT_THREADS, 0,
                      gpu->stream>>>(run);
    prepare_groups<T><<<dim3(simt_blocks(run.n_groups, SIMT_THREADS), (unsigned int)run.n_value),
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
