/* simt_moe_select.cu - the top_k experts of every (head, token), and their weights.
 *
 * A warp takes a row: lane l holds the keys of experts l, l + 32, ...  top_k rounds find the largest
 * key left, in the lane and then among lanes, and of equal keys the lowest expert.  Keys become whole
 * numbers of the same order, so that NaN has a place (last) and every round finds an expert.
 *
 * In       up to 1024 experts, top_k up to 16
 * Numerics the bits of the CPU (simt_fmath.cuh); weights are summed in the order of the choice
 * Twin     backend/cpu/ref/moe_select.c
 */
#include "backend/gpu/kernels/simt_common.cuh"
#include "backend/gpu/kernels/simt_fmath.cuh"

#include <assert.h>

#define TOP_K_MAX   16
#define EXPERTS_MAX 1024
#define KEY_TAKEN   0u /* below every key */
#define KEY_NAN     1u

/* Ascending as the floats are; -0 and +0 are equal. */
static __device__ __forceinline__ unsigned int key_of(float value)
{
    const unsigned int bits = __float_as_uint(__fadd_rn(value, 0.0f));
    const unsigned int key = bits ^ ((unsigned int)((int)bits >> 31) | 0x80000000u);
    return value != value ? KEY_NAN : key;
}

/* Gives lane k the k-th choice. */
template <int PER_LANE>
static __device__ __forceinline__ int choose(const float *logits, const float *bias, int n_experts,
                                             int top_k, int lane)
{
    unsigned int keys[PER_LANE];
    float values[PER_LANE], added[PER_LANE];
    int chosen = 0;
#pragma unroll
    for (int i = 0; i < PER_LANE; i++) { /* all loads are under way before the first is used */
        const int e = i * SIMT_WARP + lane;
        values[i] = e < n_experts ? logits[e] : 0.0f;
        added[i] = bias && e < n_experts ? bias[e] : 0.0f;
    }
#pragma unroll
    for (int i = 0; i < PER_LANE; i++) {
        const unsigned int key = key_of(__fadd_rn(simt_fmath_sigmoid(values[i]), added[i]));
        keys[i] = i * SIMT_WARP + lane < n_experts ? key : KEY_TAKEN;
    }
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
        SELECT(8);
    else
        SELECT(EXPERTS_MAX / SIMT_WARP);
#undef SELECT
    m2_gpu_launched(gpu, "moe_select");
}
