/* simt_common.cuh - what the portable kernels share: values by type, groups of eight of them, sums
 * over 32 lanes or a block, and the shape of an element-wise launch.
 *
 * Sums  lanes join as xor 16, 8, 4, 2, 1, warps in ascending order: an order that depends on the
 *       block's size alone, which is a constant of each kernel.
 */
#ifndef M2_BACKEND_GPU_KERNELS_SIMT_COMMON_CUH
#define M2_BACKEND_GPU_KERNELS_SIMT_COMMON_CUH

#include "backend/gpu/launch.h"

#define SIMT_WARP    32
#define SIMT_THREADS 256
#define SIMT_WARPS   (SIMT_THREADS / SIMT_WARP)
#define SIMT_VECTOR  8 /* elements that one thread takes at a time where memory is aligned */

/* ---- one value ------------------------------------------------------------------------------ */

static __device__ __forceinline__ float simt_get(const float *x, int64_t i)
{
    return x[i];
}

static __device__ __forceinline__ float simt_get(const gpu_bf16 *x, int64_t i)
{
    return __bfloat162float(x[i]);
}

static __device__ __forceinline__ void simt_put(float *x, int64_t i, float value)
{
    x[i] = value;
}

static __device__ __forceinline__ void simt_put(gpu_bf16 *x, int64_t i, float value)
{
    x[i] = __float2bfloat16_rn(value);
}

/* Eight elements of a row from `at` on, zeros behind its end; IS_WIDE: rows are whole units, aligned. */
template <int IS_WIDE, typename Idx>
static __device__ __forceinline__ uint4 simt_load_unit(const gpu_bf16 *row, Idx width, Idx at)
{
    union {
        gpu_bf16 values[8];
        uint4 raw;
    } pack;
    pack.raw = make_uint4(0, 0, 0, 0);
    if constexpr (IS_WIDE) {
        if (at < width) pack.raw = *(const uint4 *)(row + at);
    } else {
#pragma unroll
        for (int j = 0; j < 8; j++)
            if (at + j < width) pack.values[j] = row[at + j];
    }
    return pack.raw;
}

/* Two values as bf16 in a word, the first in the low half.  Conversions in pairs run on the ordinary
 * units of a multiprocessor, single ones on its few special ones. */
static __device__ __forceinline__ unsigned int simt_bf16_pair(float low, float high)
{
    union {
        gpu_bf162 pair;
        unsigned int word;
    } pack;
    pack.pair = __float22bfloat162_rn(make_float2(low, high));
    return pack.word;
}

static __device__ __forceinline__ float simt_round_bf16(float value)
{
    return __uint_as_float(simt_bf16_pair(0.0f, value));
}

/* `value` rounded to T. */
template <typename T> static __device__ __forceinline__ float simt_round(float value);
template <> __device__ __forceinline__ float simt_round<float>(float value)
{
    return value;
}
template <> __device__ __forceinline__ float simt_round<gpu_bf16>(float value)
{
    return simt_round_bf16(value);
}

/* A weight or a bias, whose type is known at run time only. */
typedef struct simt_any {
    const void *data;
    int is_bf16;
} simt_any;

static inline simt_any simt_any_of(const m2_tensor *x)
{
    simt_any any = { x ? x->data : 0, x && x->dtype == M2_BF16 };
    return any;
}

static __device__ __forceinline__ float simt_any_get(simt_any x, int64_t i)
{
    return x.is_bf16 ? simt_get((const gpu_bf16 *)x.data, i) : ((const float *)x.data)[i];
}

/* ---- eight values, memory aligned to their size (bf16) or to 16 bytes (f32) -------------------- */

static __device__ __forceinline__ void simt_get8(const float *x, int64_t i, float out[8])
{
    const float4 a = *(const float4 *)(x + i), b = *(const float4 *)(x + i + 4);
    out[0] = a.x, out[1] = a.y, out[2] = a.z, out[3] = a.w;
    out[4] = b.x, out[5] = b.y, out[6] = b.z, out[7] = b.w;
}

static __device__ __forceinline__ void simt_unpack8(uint4 raw, float out[8])
{
    const unsigned int words[4] = { raw.x, raw.y, raw.z, raw.w };
#pragma unroll
    for (int j = 0; j < 4; j++) {
        out[2 * j] = __uint_as_float(words[j] << 16);
        out[2 * j + 1] = __uint_as_float(words[j] & 0xffff0000u);
    }
}

static __device__ __forceinline__ void simt_get8(const gpu_bf16 *x, int64_t i, float out[8])
{
    simt_unpack8(*(const uint4 *)(x + i), out);
}

static __device__ __forceinline__ void simt_put8(float *x, int64_t i, const float in[8])
{
    *(float4 *)(x + i) = make_float4(in[0], in[1], in[2], in[3]);
    *(float4 *)(x + i + 4) = make_float4(in[4], in[5], in[6], in[7]);
}

static __device__ __forceinline__ void simt_put8(gpu_bf16 *x, int64_t i, const float in[8])
{
    *(uint4 *)(x + i) = make_uint4(simt_bf16_pair(in[0], in[1]), simt_bf16_pair(in[2], in[3]),
                                   simt_bf16_pair(in[4], in[5]), simt_bf16_pair(in[6], in[7]));
}

/* Up to eight values from i on: all of them in one load where IS_WIDE, else the first n, one by one. */
template <int IS_WIDE, typename T>
static __device__ __forceinline__ void simt_get_some(const T *x, int64_t i, int n, float out[8])
{
    if (IS_WIDE && n >= 8) {
        simt_get8(x, i, out);
        return;
    }
#pragma unroll
    for (int j = 0; j < 8; j++) out[j] = j < n ? simt_get(x, i + j) : 0.0f;
}

template <int IS_WIDE, typename T>
static __device__ __forceinline__ void simt_put_some(T *x, int64_t i, int n, const float in[8])
{
    if (IS_WIDE && n >= 8) {
        simt_put8(x, i, in);
        return;
    }
#pragma unroll
    for (int j = 0; j < 8; j++)
        if (j < n) simt_put(x, i + j, in[j]);
}

template <int IS_WIDE>
static __device__ __forceinline__ void simt_any_get_some(simt_any x, int64_t i, int n, float out[8])
{
    if (x.is_bf16)
        simt_get_some<IS_WIDE>((const gpu_bf16 *)x.data, i, n, out);
    else
        simt_get_some<IS_WIDE>((const float *)x.data, i, n, out);
}

/* Wide loads may start at every eighth element of every row of `tensor`; NULL stands in no way. */
static inline int simt_is_wide(const m2_tensor *tensor, int64_t row_elems)
{
    return !tensor || ((uintptr_t)tensor->data % 16 == 0 && row_elems % SIMT_VECTOR == 0);
}

/* ---- sums ------------------------------------------------------------------------------------ */

static __device__ __forceinline__ float simt_warp_sum(float value)
{
#pragma unroll
    for (int mask = SIMT_WARP / 2; mask >= 1; mask /= 2) value += gpu_shfl_xor(value, mask);
    return value;
}

static __device__ __forceinline__ float simt_warp_max(float value)
{
#pragma unroll
    for (int mask = SIMT_WARP / 2; mask >= 1; mask /= 2)
        value = fmaxf(value, gpu_shfl_xor(value, mask));
    return value;
}

/* Over a block of SIMT_THREADS; every thread gets the sum.  All threads must call it. */
static __device__ __forceinline__ float simt_block_sum(float value)
{
    __shared__ float warp_sums[SIMT_WARPS];
    value = simt_warp_sum(value);
    __syncthreads(); /* the sums of a call before this one have been read */
    if (threadIdx.x % SIMT_WARP == 0) warp_sums[threadIdx.x / SIMT_WARP] = value;
    __syncthreads();
    float sum = warp_sums[0];
#pragma unroll
    for (int w = 1; w < SIMT_WARPS; w++) sum += warp_sums[w];
    return sum;
}

/* ---- launches ---------------------------------------------------------------------------------- */

/* Blocks of SIMT_THREADS for n elements, SIMT_VECTOR a thread. */
static inline unsigned int simt_vector_blocks(int64_t n)
{
    const int64_t per_block = SIMT_THREADS * SIMT_VECTOR;
    return (unsigned int)((n + per_block - 1) / per_block);
}

/* First element of this thread, and how many of n are left from there on (at most SIMT_VECTOR; none
 * or less where the thread has nothing to do). */
static __device__ __forceinline__ int64_t simt_vector_begin(int64_t n, int *left_out)
{
    const int64_t begin = ((int64_t)blockIdx.x * SIMT_THREADS + threadIdx.x) * SIMT_VECTOR;
    const int64_t left = n - begin;
    *left_out = left < SIMT_VECTOR ? (int)(left < 0 ? 0 : left) : SIMT_VECTOR;
    return begin;
}

/* Run a statement with T as the tensor's type, f32 or bf16. */
#define SIMT_BY_TYPE(dtype, T, ...)                                                                \
    do {                                                                                           \
        if ((dtype) == M2_BF16) {                                                                  \
            using T = gpu_bf16;                                                                    \
            __VA_ARGS__;                                                                           \
        } else {                                                                                   \
            using T = float;                                                                       \
            __VA_ARGS__;                                                                           \
        }                                                                                          \
    } while (0)

/* Run a statement with WIDE as the constant 1 or 0. */
#define SIMT_BY_WIDTH(is_wide, WIDE, ...)                                                          \
    do {                                                                                           \
        if (is_wide) {                                                                             \
            constexpr int WIDE = 1;                                                                \
            __VA_ARGS__;                                                                           \
        } else {                                                                                   \
            constexpr int WIDE = 0;                                                                \
            __VA_ARGS__;                                                                           \
        }                                                                                          \
    } while (0)

/* ---- rows by modality --------------------------------------------------------------------------- */

typedef struct simt_groups {
    int n_groups;
    int64_t end[M2_GROUPS_MAX];
} simt_groups;

static inline simt_groups simt_groups_of(const m2_groups *groups, int64_t n)
{
    simt_groups made;
    made.n_groups = groups ? groups->n_groups : 1;
    for (int g = 0; g < M2_GROUPS_MAX; g++)
        made.end[g] = groups && g < groups->n_groups ? groups->begin[g + 1] : n;
    return made;
}

static __device__ __forceinline__ int simt_group_of(const simt_groups &groups, int64_t row)
{
    int group = 0;
#pragma unroll
    for (int g = 0; g < M2_GROUPS_MAX - 1; g++)
        group += g < groups.n_groups - 1 && row >= groups.end[g] ? 1 : 0;
    return group;
}

/* ---- functions ------------------------------------------------------------------------------------ */

static __device__ __forceinline__ float simt_sigmoid(float x)
{
    return 1.0f / (1.0f + expf(-x));
}

static __device__ __forceinline__ float simt_silu(float x)
{
    return x / (1.0f + expf(-x));
}

/* NaN stays NaN: comparisons, not fminf. */
static __device__ __forceinline__ float simt_swiglu7(float gate, float linear)
{
    gate = gate > 7.0f ? 7.0f : gate;
    linear = linear > 7.0f ? 7.0f : linear;
    linear = linear < -7.0f ? -7.0f : linear;
    return (gate * simt_sigmoid(1.702f * gate)) * (linear + 1.0f);
}

static __device__ __forceinline__ float simt_activate(m2_activation activation, float x)
{
    switch (activation) {
    case M2_ACT_SILU:
        return simt_silu(x);
    case M2_ACT_RELU:
        return x > 0.0f || x != x ? x : 0.0f;
    case M2_ACT_ELU:
        return x > 0.0f ? x : expm1f(x);
    case M2_ACT_TANH:
        return tanhf(x);
    case M2_ACT_NONE:
        break;
    }
    return x;
}

#endif
