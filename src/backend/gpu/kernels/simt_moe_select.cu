/* simt_moe_select.cu - the top_k experts of every (head, token), and their weights.
 *
 * A warp takes a row: lane l holds the keys of experts l, l + 32, ...  A key is a whole number in
 * the order of the floats, so that NaN has a place (last) and every round of the choice finds an
 * expert: the largest key left, in the lane and then among lanes, and of equal keys the lowest
 * expert.
 *
 * With 8 keys a lane a guess comes first.  Keys from fast functions are sorted in the lane and
 * drawn until two more than wanted are known; if the last of them is behind the last wanted by
 * more than the guess can be wrong, the choice is among the drawn, and only those are computed
 * exactly.
 *
 * In       up to 1024 experts, top_k up to 16
 * Numerics the bits of the CPU (simt_fmath.cuh); weights are summed in the order of the choice
 * Twin     backend/cpu/ref/moe_select.c
 */
#include "backend/gpu/kernels/simt_common.cuh"
#include "backend/gpu/kernels/simt_fmath.cuh"

#include <assert.h>

#define TOP_K_MAX    16
#define EXPERTS_MAX  1024
#define KEY_TAKEN    0u /* below every key */
#define KEY_NAN      1u
#define KEY_INFINITY (0xff800000u | 7u)
#define GUESSED      8 /* keys of a lane */
/* A guess keeps its place in the lane in its low three bits, so it is off by 2^-20 of the key; the
 * fast score by 2e-7.  The distance of two is off by twice that. */
#define GUESS_ERROR          1e-6f
#define GUESS_ERROR_RELATIVE 4e-6f

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

static __device__ __forceinline__ unsigned int exact_key(float logit, float added)
{
    return key_of(__fadd_rn(simt_fmath_sigmoid(logit), added));
}

/* Gives lane k the k-th choice among the keys of all lanes; they are spent. */
template <int N>
static __device__ __forceinline__ int draw(unsigned int (&keys)[N], const int (&ids)[N], int top_k,
                                           int lane)
{
    int chosen = 0;
    for (int k = 0; k < top_k; k++) {
        unsigned int own = keys[0];
        int own_id = ids[0];
#pragma unroll
        for (int i = 1; i < N; i++) {
            own_id = keys[i] > own ? ids[i] : own_id;
            own = keys[i] > own ? keys[i] : own;
        }
        const unsigned int largest = gpu_reduce_max(own);
        const int lowest = (int)gpu_reduce_min(own == largest ? own_id : EXPERTS_MAX);
#pragma unroll
        for (int i = 0; i < N; i++) keys[i] = ids[i] == lowest ? KEY_TAKEN : keys[i];
        if (lane == k) chosen = lowest;
    }
    return chosen;
}

static __device__ __forceinline__ void order(unsigned int &a, unsigned int &b)
{
    const unsigned int larger = a > b ? a : b;
    b = a > b ? b : a;
    a = larger;
}

/* Descending: Batcher's network. */
static __device__ __forceinline__ void sort(unsigned int (&g)[GUESSED])
{
    order(g[0], g[1]), order(g[2], g[3]), order(g[4], g[5]), order(g[6], g[7]);
    order(g[0], g[2]), order(g[1], g[3]), order(g[4], g[6]), order(g[5], g[7]);
    order(g[1], g[2]), order(g[5], g[6]);
    order(g[0], g[4]), order(g[1], g[5]), order(g[2], g[6]), order(g[3], g[7]);
    order(g[2], g[4]), order(g[3], g[5]);
    order(g[1], g[2]), order(g[3], g[4]), order(g[5], g[6]);
}

/* Sorted guesses of this lane; NaN anywhere in the row gives 0. */
static __device__ __forceinline__ int guess(const float (&values)[GUESSED],
                                            const float (&added)[GUESSED],
                                            unsigned int (&guesses)[GUESSED])
{
#pragma unroll
    for (int i = 0; i < GUESSED; i++) {
        const float value = gpu_rcp(1.0f + __expf(-values[i])) + added[i];
        const unsigned int bits = __float_as_uint(value);
        const unsigned int key = bits ^ ((unsigned int)((int)bits >> 31) | 0x80000000u);
        guesses[i] = (key & ~7u) | (7u - i);
    }
    sort(guesses);
    return !gpu_ballot(guesses[0] > KEY_INFINITY); /* here NaN comes first, or behind -infinity */
}

/* As draw, from guesses; 0 when they do not settle the choice. */
static __device__ __forceinline__ int draw_guessed(unsigned int (&guesses)[GUESSED],
                                                   const float *logits, const float *bias,
                                                   int n_experts, int top_k, int lane,
                                                   int *chosen_out)
{
    const int n_drawn = top_k + 2;
    unsigned int own = KEY_TAKEN;
    int own_lane = 0;
    for (int k = 0; k < n_drawn; k++) {
        const unsigned int largest = gpu_reduce_max(guesses[0]);
        const int winner = __ffs(gpu_ballot(guesses[0] == largest)) - 1;
        if (lane == k) own = largest, own_lane = winner;
#pragma unroll
        for (int i = 0; i < GUESSED - 1; i++)
            guesses[i] = lane == winner ? guesses[i + 1] : guesses[i];
        if (lane == winner) guesses[GUESSED - 1] = KEY_TAKEN;
    }
    const unsigned int wanted = gpu_shfl(own, top_k - 1), last = gpu_shfl(own, n_drawn - 1);
    const float slack = GUESS_ERROR + GUESS_ERROR_RELATIVE * fabsf(value_of(wanted));
    if (!(value_of(wanted) - value_of(last) > slack)) return 0;
    const int id = (int)(7u - (own & 7u)) * SIMT_WARP + own_lane, ids[1] = { id };
    unsigned int keys[1] = { KEY_TAKEN };
    if (lane < n_drawn && id < n_experts) keys[0] = exact_key(logits[id], bias ? bias[id] : 0.0f);
    *chosen_out = draw(keys, ids, top_k, lane);
    return 1;
}

/* Gives lane k the k-th choice. */
template <int PER_LANE>
static __device__ __forceinline__ int choose(const float *logits, const float *bias, int n_experts,
                                             int top_k, int lane)
{
    unsigned int keys[PER_LANE];
    float values[PER_LANE], added[PER_LANE];
    int ids[PER_LANE];
#pragma unroll
    for (int i = 0; i < PER_LANE; i++) { /* all loads are under way before the first is used */
        ids[i] = i * SIMT_WARP + lane;
        values[i] = ids[i] < n_experts ? logits[ids[i]] : 0.0f;
        added[i] = ids[i] < n_experts ? (bias ? bias[ids[i]] : 0.0f) : -INFINITY;
    }
    if constexpr (PER_LANE == GUESSED) {
        int chosen;
        if (guess(values, added, keys) &&
            draw_guessed(keys, logits, bias, n_experts, top_k, lane, &chosen))
            return chosen;
    }
#pragma unroll
    for (int i = 0; i < PER_LANE; i++)
        keys[i] = ids[i] < n_experts ? exact_key(values[i], added[i]) : KEY_TAKEN;
    return draw(keys, ids, top_k, lane);
}

template <int PER_LANE>
static __global__ void __launch_bounds__(SIMT_THREADS)
    select_kernel(const float *logits, const float *bias, const int *forced, int64_t n_tokens,
                  int n_experts, int top_k, float route_scale, int *topk_idx, float *topk_prob)
{
    const int lane = threadIdx.x % SIMT_WARP;
    const int64_t token = (int64_t)blockIdx.x * SIMT_WARPS + threadIdx.x / SIMT_WARP;
    const int64_t row = blockIdx.y * n_tokens + token; /* blocks of one head lie side by side */
    if (token >= n_tokens) return;                     /* whole warps only, and no barrier below */

    const float *row_logits = logits + row * n_experts;
    int id = 0;
    if (forced) {
        if (lane < top_k) id = forced[row * top_k + lane];
    } else {
        const float *row_bias = bias ? bias + (int64_t)blockIdx.y * n_experts : 0;
        id = choose<PER_LANE>(row_logits, row_bias, n_experts, top_k, lane);
    }
    const float score = lane < top_k ? simt_fmath_sigmoid(row_logits[id]) : 0.0f;
    float sum = 0.0f;
    for (int k = 0; k < top_k; k++) sum = __fadd_rn(sum, fabsf(gpu_shfl(score, k)));
    if (sum < 1e-12f) sum = 1e-12f;
    if (lane < top_k) {
        topk_idx[row * top_k + lane] = id;
        topk_prob[row * top_k + lane] = __fmul_rn(__fdiv_rn(score, sum), route_scale);
    }
}

extern "C" void m2_gpu_moe_select(const m2_ops *ops, const m2_moe_select_args *args)
{
    struct m2_gpu *gpu = m2_gpu_of(ops);
    const int64_t n_tokens = args->logits->shape[1], n_experts = args->logits->shape[2];
    const int64_t n_heads = args->logits->shape[0], top_k = args->topk_idx->shape[2];
    assert(n_experts <= EXPERTS_MAX && top_k <= TOP_K_MAX && top_k <= n_experts);
    if (n_tokens == 0 || n_heads == 0 || top_k == 0) return;
    const dim3 blocks((unsigned int)((n_tokens + SIMT_WARPS - 1) / SIMT_WARPS),
                      (unsigned int)n_heads);
#define SELECT(per_lane)                                                                           \
    select_kernel<per_lane><<<blocks, SIMT_THREADS, 0, gpu->stream>>>(                             \
        (const float *)args->logits->data, (const float *)(args->bias ? args->bias->data : 0),     \
        (const int *)(args->forced ? args->forced->data : 0), n_tokens, (int)n_experts,            \
        (int)top_k, args->route_scale, (int *)args->topk_idx->data,                                \
        (float *)args->topk_prob->data)
    if (n_experts <= 2 * SIMT_WARP)
        SELECT(2);
    else if (n_experts <= 8 * SIMT_WARP)
        SELECT(GUESSED);
    else
        SELECT(EXPERTS_MAX / SIMT_WARP);
#undef SELECT
    m2_gpu_launched(gpu, "moe_select");
}
