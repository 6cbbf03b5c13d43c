/* simt_moe_select.cu - the top_k experts of every (head, token), and their weights.
 *
 * A key is a whole number in the order of the floats, so that NaN has a place (last) and every round of
 * a choice finds an expert: the largest key left, and of equal keys the lowest expert.
 *
 * draw    A warp takes a row: lane l holds the keys of experts l, l + 32, ... and the largest is
 *         taken top_k times.
 * sieve   A warp takes two rows of up to 256 experts.  Scores by fast functions come first, eight a
 *         lane.  The top_k-th largest of the lanes' maxima is behind no more than top_k - 1 lanes, so
 *         whatever is chosen lies above it, but for the error of the guess: few experts do.  They
 *         gather in half a warp for each row, are scored exactly, and each counts those before
 *         it.  Rows that leave too few or too many, by NaN, infinities or ties, are drawn.
 *
 * In       up to 1024 experts, top_k up to 16
 * Numerics the bits of the CPU (simt_fmath.cuh); weights are summed in the order of the choice
 * Twin     backend/cpu/ref/moe_select.c        Speed  bench/gpu/bench_routing.cu
 */
#include "backend/gpu/kernels/simt_common.cuh"
#include "backend/gpu/kernels/simt_fmath.cuh"

#include <assert.h>

#define TOP_K_MAX   M2_GPU_TOP_K_MAX
#define EXPERTS_MAX M2_GPU_EXPERTS_MAX
#define KEY_TAKEN   0u /* below every key */
#define KEY_NAN     1u

#define SIEVE_ROWS    2 /* of a warp at a time                        */
#define SIEVE_PAIRS   4 /* one after the other                        */
#define SIEVE_KEYS    8 /* of a lane                                  */
#define SIEVE_EXPERTS (SIEVE_KEYS * SIMT_WARP)
#define SIEVE_TOP_K   8
#define PLACES        (SIMT_WARP / SIEVE_ROWS)                /* for what a row leaves */
#define SIEVE_TOKENS  (SIMT_WARPS * SIEVE_PAIRS * SIEVE_ROWS) /* of a block */
/* A fast score is off by less than 3e-7, and the sum with the bias by its last place; two keys then by
 * twice that. */
#define SLACK          1e-6f
#define SLACK_RELATIVE 1e-6f

typedef struct choice {
    const float *logits, *bias; /* [n_heads, n_tokens, n_experts]; [n_heads, n_experts] or NULL */
    const int *forced;          /* [n_heads, n_tokens, top_k] or NULL                           */
    int64_t n_tokens;
    int n_experts, top_k;
    float route_scale;
    int *ids; /* [n_heads, n_tokens, top_k] */
    float *weights;
} choice;

/* Ascending as the floats are; -0 and +0 are equal. */
static __device__ __forceinline__ unsigned int key_of(float value)
{
    const unsigned int bits = __float_as_uint(__fadd_rn(value, 0.0f));
    const unsigned int key = bits ^ ((unsigned int)((int)bits >> 31) | 0x80000000u);
    return value != value ? KEY_NAN : key;
}

static __device__ __forceinline__ float value_of(unsigned int key)
{
    return __uint_as_float(key & 0x80000000u ? key ^ 0x80000000u : ~key);
}

static __device__ __forceinline__ float weight_of(float score, float sum, float route_scale)
{
    return __fmul_rn(__fdiv_rn(score, sum < 1e-12f ? 1e-12f : sum), route_scale);
}

/* ---- draw ------------------------------------------------------------------------------------ */

/* Gives lane k the k-th choice. */
template <int PER_LANE>
static __device__ __forceinline__ int draw(const float *logits, const float *bias, int n_experts,
                                           int top_k, int lane)
{
    unsigned int keys[PER_LANE];
#pragma unroll
    for (int i = 0; i < PER_LANE; i++) {
        const int id = i * SIMT_WARP + lane;
        keys[i] = KEY_TAKEN;
        if (id < n_experts)
            keys[i] = key_of(__fadd_rn(simt_fmath_sigmoid(logits[id]), bias ? bias[id] : 0.0f));
    }
    int chosen = 0;
    for (int k = 0; k < top_k; k++) {
        unsigned int own = keys[0];
        int own_id = lane;
#pragma unroll
        for (int i = 1; i < PER_LANE; i++) {
            own_id = keys[i] > own ? i * SIMT_WARP + lane : own_id;
            own = keys[i] > own ? keys[i] : own;
        }
        const unsigned int largest = gpu_reduce_max(own);
        const int lowest = (int)gpu_reduce_min(own == largest ? own_id : EXPERTS_MAX);
#pragma unroll
        for (int i = 0; i < PER_LANE; i++)
            keys[i] = i * SIMT_WARP + lane == lowest ? KEY_TAKEN : keys[i];
        if (lane == k) chosen = lowest;
    }
    return chosen;
}

/* A row by its warp. */
template <int PER_LANE>
static __device__ __forceinline__ void draw_row(const choice &c, int head, int64_t token, int lane)
{
    const int64_t row = head * c.n_tokens + token, at = row * c.top_k + lane;
    const float *logits = c.logits + row * c.n_experts;
    const float *bias = c.bias ? c.bias + (int64_t)head * c.n_experts : 0;
    int id = 0;
    if (!c.forced)
        id = draw<PER_LANE>(logits, bias, c.n_experts, c.top_k, lane);
    else if (lane < c.top_k)
        id = c.forced[at];
    const float score = lane < c.top_k ? simt_fmath_sigmoid(logits[id]) : 0.0f;
    float sum = 0.0f;
    for (int k = 0; k < c.top_k; k++) sum = __fadd_rn(sum, fabsf(gpu_shfl(score, k)));
    if (lane >= c.top_k) return;
    c.ids[at] = id;
    c.weights[at] = weight_of(score, sum, c.route_scale);
}

template <int PER_LANE> static __global__ void __launch_bounds__(SIMT_THREADS) draw_kernel(choice c)
{
    const int64_t token = (int64_t)blockIdx.x * SIMT_WARPS + threadIdx.x / SIMT_WARP;
    if (token >= c.n_tokens) return; /* whole warps only, and no barrier below */
    draw_row<PER_LANE>(c, blockIdx.y, token, threadIdx.x % SIMT_WARP);
}

/* ---- sieve ----------------------------------------------------------------------------------- */

/* What a warp shares. */
typedef struct sieve_places {
    uint64_t keys[SIEVE_ROWS][PLACES]; /* and below them, the other way round, the expert */
    int ids[SIEVE_ROWS][PLACES];
    float scores[SIEVE_ROWS][SIEVE_TOP_K]; /* of the chosen, in their order */
} sieve_places;

/* A lane's experts are 4 lane ... 4 lane + 3, and the same 128 further on. */
static __device__ __forceinline__ int expert_of(int i, int lane)
{
    return i / 4 * (4 * SIMT_WARP) + 4 * lane + i % 4;
}

/* `outside` where there is no such expert; n_experts is a multiple of 4. */
static __device__ __forceinline__ void load_keys(const float *from, int n_experts, float outside,
                                                 int lane, float (&values)[SIEVE_KEYS])
{
#pragma unroll
    for (int i = 0; i < SIEVE_KEYS; i += 4) {
        float4 four = make_float4(outside, outside, outside, outside);
        if (expert_of(i, lane) < n_experts) four = *(const float4 *)(from + expert_of(i, lane));
        values[i] = four.x, values[i + 1] = four.y, values[i + 2] = four.z, values[i + 3] = four.w;
    }
}

/* Logits to guesses of keys, in place. */
static __device__ __forceinline__ void guess(float (&values)[SIEVE_KEYS],
                                             const float (&added)[SIEVE_KEYS])
{
#pragma unroll
    for (int i = 0; i < SIEVE_KEYS; i++)
        values[i] = gpu_rcp(1.0f + gpu_exp2(values[i] * -M2_LOG2_E)) + added[i];
}

/* What a guess must reach, for each row: NaN when no value would be right. */
static __device__ __forceinline__ void find_least(const float (&guesses)[SIEVE_ROWS][SIEVE_KEYS],
                                                  int top_k, float (&least)[SIEVE_ROWS])
{
    unsigned int own[SIEVE_ROWS], largest[SIEVE_ROWS] = { 0 };
#pragma unroll
    for (int r = 0; r < SIEVE_ROWS; r++) {
        float top = -INFINITY; /* fmaxf passes over NaN */
#pragma unroll
        for (int i = 0; i < SIEVE_KEYS; i++) top = fmaxf(top, guesses[r][i]);
        own[r] = key_of(top);
    }
    for (int k = 0; k < top_k; k++)
#pragma unroll
        for (int r = 0; r < SIEVE_ROWS; r++) {
            largest[r] = gpu_reduce_max(own[r]);
            if (own[r] == largest[r]) own[r] = KEY_TAKEN; /* value_of(KEY_TAKEN) is NaN */
        }
#pragma unroll
    for (int r = 0; r < SIEVE_ROWS; r++) {
        const float value = value_of(largest[r]);
        least[r] = value - (SLACK + SLACK_RELATIVE * fabsf(value));
    }
}

/* The experts whose guess reaches `least`, each to a place; gives back their number, which may be
 * larger than that of places.  Places without an expert have a guess of minus infinity, which `least`
 * may be, too, where there are NaNs. */
static __device__ __forceinline__ int gather(const float (&guesses)[SIEVE_KEYS], float least,
                                             int lane, int *ids)
{
    unsigned int hits = 0;
    int n = 0;
#pragma unroll
    for (int i = 0; i < SIEVE_KEYS; i++)
        hits |= guesses[i] >= least && guesses[i] > -INFINITY ? 1u << i : 0u;
    for (unsigned int lanes; (lanes = gpu_ballot(hits != 0)) != 0; n += __popc(lanes)) {
        const int at = n + __popc(lanes & ((1u << lane) - 1u));
        if (hits && at < PLACES) ids[at] = expert_of(__ffs(hits) - 1, lane);
        hits &= hits - 1u; /* of none, none */
    }
    return n;
}

/* How many of a row's places from `first` on, half of them, hold a larger key. */
static __device__ __forceinline__ int count_before(const uint64_t *keys, int first, uint64_t own)
{
    int n = 0;
#pragma unroll
    for (int i = 0; i < PLACES / 2; i++) n += keys[first + i] > own ? 1 : 0;
    return n;
}

/* Half a warp for each row: chooses among what has been gathered.  n: how many that is, 0 for rows
 * that are not decided here; most: of any row of the warp. */
static __device__ __forceinline__ void settle(const choice &c, int64_t row, const float *bias,
                                              sieve_places *places, int n, int most, int lane)
{
    const int place = lane % PLACES, r = lane / PLACES;
    const int id = place < n ? places->ids[r][place] : 0;
    const float score = simt_fmath_sigmoid(c.logits[row * c.n_experts + id]);
    const unsigned int key = key_of(__fadd_rn(score, bias ? bias[id] : 0.0f));
    const uint64_t own = place < n ? (uint64_t)key << 32 | (unsigned int)(EXPERTS_MAX - id) : 0;
    places->keys[r][place] = own;
    gpu_syncwarp();
    int before = count_before(places->keys[r], 0, own);
    if (most > PLACES / 2) before += count_before(places->keys[r], PLACES / 2, own);
    const int is_chosen = place < n && before < c.top_k;
    if (is_chosen) places->scores[r][before] = score;
    gpu_syncwarp();
    float sum = 0.0f;
    for (int k = 0; k < c.top_k; k++) sum = __fadd_rn(sum, fabsf(places->scores[r][k]));
    if (!is_chosen) return;
    c.ids[row * c.top_k + before] = id;
    c.weights[row * c.top_k + before] = weight_of(score, sum, c.route_scale);
}

static __global__ void __launch_bounds__(SIMT_THREADS) sieve_kernel(choice c)
{
    __shared__ __align__(16) sieve_places all_places[SIMT_WARPS];
    const int lane = threadIdx.x % SIMT_WARP, warp = threadIdx.x / SIMT_WARP, head = blockIdx.y;
    const float *bias = c.bias ? c.bias + (int64_t)head * c.n_experts : 0;
    sieve_places *places = all_places + warp;
    float added[SIEVE_KEYS] = { 0 };
    load_keys(bias ? bias : c.logits, c.n_experts, -INFINITY, lane, added);
#pragma unroll
    for (int i = 0; i < SIEVE_KEYS; i++)
        if (!bias && expert_of(i, lane) < c.n_experts) added[i] = 0.0f;

    for (int pair = 0; pair < SIEVE_PAIRS; pair++) {
        const int64_t token =
            (int64_t)blockIdx.x * SIEVE_TOKENS + (pair * SIMT_WARPS + warp) * SIEVE_ROWS;
        if (token >= c.n_tokens) return; /* the whole warp, and no barrier of the block below */
        const int has_two = token + 1 < c.n_tokens;
        const int64_t row = head * c.n_tokens + token; /* twice, where there is no other */
        float guesses[SIEVE_ROWS][SIEVE_KEYS], least[SIEVE_ROWS];
        int n[SIEVE_ROWS];
#pragma unroll
        for (int r = 0; r < SIEVE_ROWS; r++)
            load_keys(c.logits + (row + r * has_two) * c.n_experts, c.n_experts, 0.0f, lane,
                      guesses[r]);
#pragma unroll
        for (int r = 0; r < SIEVE_ROWS; r++) guess(guesses[r], added);
        find_least(guesses, c.top_k, least);
#pragma unroll
        for (int r = 0; r < SIEVE_ROWS; r++) {
            n[r] = gather(guesses[r], least[r], lane, places->ids[r]);
            if (n[r] < c.top_k || n[r] > PLACES) n[r] = 0;
        }
        gpu_syncwarp();
        const int half = lane / PLACES, most = n[0] > n[1] ? n[0] : n[1];
        settle(c, row + half * has_two, bias, places, half ? (has_two ? n[1] : 0) : n[0], most,
               lane);
#pragma unroll
        for (int r = 0; r < SIEVE_ROWS; r++)
            if (r <= has_two && n[r] == 0) draw_row<SIEVE_KEYS>(c, head, token + r, lane);
    }
}

/* ---- launcher -------------------------------------------------------------------------------- */

static int is_for_sieve(const choice &c)
{
    return !c.forced && c.n_experts <= SIEVE_EXPERTS && c.n_experts % 4 == 0 &&
           c.top_k <= SIEVE_TOP_K && (uintptr_t)c.logits % 16 == 0 && (uintptr_t)c.bias % 16 == 0;
}

extern "C" void m2_gpu_moe_select(const m2_ops *ops, const m2_moe_select_args *args)
{
    struct m2_gpu *gpu = m2_gpu_of(ops);
    const int64_t n_heads = args->logits->shape[0];
    choice c;
    c.logits = (const float *)args->logits->data;
    c.bias = (const float *)(args->bias ? args->bias->data : 0);
    c.forced = (const int *)(args->forced ? args->forced->data : 0);
    c.n_tokens = args->logits->shape[1];
    c.n_experts = (int)args->logits->shape[2];
    c.top_k = (int)args->topk_idx->shape[2];
    c.route_scale = args->route_scale;
    c.ids = (int *)args->topk_idx->data;
    c.weights = (float *)args->topk_prob->data;
    assert(c.n_experts <= EXPERTS_MAX && c.top_k <= TOP_K_MAX && c.top_k <= c.n_experts);
    if (c.n_tokens == 0 || n_heads == 0 || c.top_k == 0) return;
    const int use_sieve = is_for_sieve(c), of_block = use_sieve ? SIEVE_TOKENS : SIMT_WARPS;
    const dim3 blocks((unsigned int)((c.n_tokens + of_block - 1) / of_block),
                      (unsigned int)n_heads);
    if (use_sieve)
        sieve_kernel<<<blocks, SIMT_THREADS, 0, gpu->stream>>>(c);
    else if (c.n_experts <= 2 * SIMT_WARP)
        draw_kernel<2><<<blocks, SIMT_THREADS, 0, gpu->stream>>>(c);
    else if (c.n_experts <= 8 * SIMT_WARP)
        draw_kernel<8><<<blocks, SIMT_THREADS, 0, gpu->stream>>>(c);
    else
        draw_kernel<EXPERTS_MAX / SIMT_WARP><<<blocks, SIMT_THREADS, 0, gpu->stream>>>(c);
    m2_gpu_launched(gpu, "moe_select");
}
