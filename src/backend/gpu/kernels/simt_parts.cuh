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

/* Sum over LANES neighbouring lanes, a power of two; each of them gets it, the order is the same. */
template <int LANES> static __device__ __forceinline__ float simt_lanes_sum(float value)
{
#pragma unroll
    for (int mask = LANES / 2; mask >= 1; mask /= 2) value += gpu_shfl_xor(value, mask);
    return value;
}

#endif
