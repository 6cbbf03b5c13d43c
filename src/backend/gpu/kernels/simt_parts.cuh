/* simt_parts.cuh - launches over pixels, tokens or heads of which each has some parts: a block's x
 * runs over the parts, its y over the pixels, so that no index is divided.
 */
#ifndef M2_BACKEND_GPU_KERNELS_SIMT_PARTS_CUH
#define M2_BACKEND_GPU_KERNELS_SIMT_PARTS_CUH

#include "backend/gpu/kernels/simt_common.cuh"

/* x: the power of two that holds n_parts, at most SIMT_THREADS. */
static inline dim3 simt_parts_block(int64_t n_parts)
{
    unsigned int x = 1;
    while (x < n_parts && x < SIMT_THREADS) x *= 2;
    return dim3(x, SIMT_THREADS / x);
}

static inline unsigned int simt_blocks(int64_t n, int64_t per_block)
{
    return (unsigned int)((n + per_block - 1) / per_block);
}

/* Eight values, all of them or zeros: rows whose length is a multiple of eight have no parts of
 * eight. The address is taken only where is_inside. */
template <typename T>
static __device__ __forceinline__ void simt_get8_if(bool is_inside, const T *x, int64_t i,
                                                    float out[8])
{
    if (is_inside) {
        simt_get8(x, i, out);
    } else {
#pragma unroll
        for (int j = 0; j < 8; j++) out[j] = 0.0f;
    }
}

/* SiLU of a value that is rounded to T next.  In f32 it is exact to the last places; before a
 * rounding to bf16 the quick exponential and division are (1e-6 off where 2e-3 are rounded away),
 * and half of the instructions, which is what the time of such kernels depends on. */
template <typename T> static __device__ __forceinline__ float simt_silu_to(float x);
template <> __device__ __forceinline__ float simt_silu_to<float>(float x)
{
    return simt_silu(x);
}
template <> __device__ __forceinline__ float simt_silu_to<gpu_bf16>(float x)
{
    return __fdividef(x, 1.0f + __expf(-x));
}

/* Sum over LANES neighbouring lanes, a power of two; each of them gets it, in the same
 * order. */
template <int LANES> static __device__ __forceinline__ float simt_lanes_sum(float value)
{
#pragma unroll
    for (int mask = LANES / 2; mask >= 1; mask /= 2) value += gpu_shfl_xor(value, mask);
    return value;
}

#endif
