/* musa_runtime.h - the device side of the stand-in, for clang's front end of kernel files.
 *
 * Declarations alone: shuffles take 32-bit values, atomics are 32-bit, there is no arithmetic on
 * bf16 (musa_bf16.h).  Inline assembly and architecture tests do not compile.
 */
#ifndef MUSA_RUNTIME_H
#define MUSA_RUNTIME_H

#include "musa_runtime_api.h"

#include <assert.h>
#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#define __global__             __attribute__((global))
#define __device__             __attribute__((device))
#define __host__               __attribute__((host))
#define __shared__             __attribute__((shared))
#define __constant__           __attribute__((constant))
#define __launch_bounds__(...) __attribute__((launch_bounds(__VA_ARGS__)))
#define __forceinline__        __inline__ __attribute__((always_inline))
#define __align__(n)           __attribute__((aligned(n)))

struct uint3 {
    unsigned x, y, z;
};
struct dim3 {
    unsigned x, y, z;
    __host__ __device__ dim3(unsigned x_ = 1, unsigned y_ = 1, unsigned z_ = 1)
        : x(x_), y(y_), z(z_)
    {
    }
};
#define M2_STUB_VECTOR(type, name)                                                                 \
    struct __align__(2 * sizeof(type)) name##2                                                     \
    {                                                                                              \
        type x, y;                                                                                 \
    };                                                                                             \
    struct __align__(4 * sizeof(type)) name##4                                                     \
    {                                                                                              \
        type x, y, z, w;                                                                           \
    };                                                                                             \
    static __inline__ __host__ __device__ name##2 make_##name##2(type x, type y)                   \
    {                                                                                              \
        return name##2 { x, y };                                                                   \
    }                                                                                              \
    static __inline__ __host__ __device__ name##4 make_##name##4(type x, type y, type z, type w)   \
    {                                                                                              \
        return name##4 { x, y, z, w };                                                             \
    }
M2_STUB_VECTOR(int, int)
M2_STUB_VECTOR(unsigned, uint)
M2_STUB_VECTOR(float, float)
#undef M2_STUB_VECTOR

extern __device__ const struct uint3 threadIdx, blockIdx;
extern __device__ const struct dim3 blockDim, gridDim;

/* What clang's own front end calls for <<<>>>; the only names of another vendor. */
extern "C" unsigned __cudaPushCallConfiguration(dim3 grid, dim3 block, size_t smem, void *stream);
extern "C" musaError_t __cudaPopCallConfiguration(dim3 *grid, dim3 *block, size_t *smem,
                                                  void *stream);
extern "C" musaError_t cudaLaunchKernel(const void *kernel, dim3 grid, dim3 block, void **args,
                                        size_t smem, musaStream_t stream);
extern "C" int cudaConfigureCall(dim3 grid, dim3 block, size_t smem = 0, musaStream_t stream = 0);

template <typename Kernel>
static inline musaError_t musaFuncSetAttribute(Kernel *kernel, enum musaFuncAttribute attr,
                                               int value)
{
    return musaFuncSetAttribute((const void *)kernel, attr, value);
}

__device__ void __syncthreads();
__device__ void __syncwarp(unsigned mask = 0xffffffffu);
__device__ void __threadfence();
__device__ void __threadfence_block();
#define M2_STUB_SHUFFLES(type)                                                                     \
    __device__ type __shfl_sync(unsigned mask, type value, int lane, int width = 32);              \
    __device__ type __shfl_up_sync(unsigned mask, type value, unsigned by, int width = 32);        \
    __device__ type __shfl_down_sync(unsigned mask, type value, unsigned by, int width = 32);      \
    __device__ type __shfl_xor_sync(unsigned mask, type value, int lanes, int width = 32);
M2_STUB_SHUFFLES(int)
M2_STUB_SHUFFLES(unsigned)
M2_STUB_SHUFFLES(float)
#undef M2_STUB_SHUFFLES
__device__ unsigned __ballot_sync(unsigned mask, int predicate);
__device__ int __any_sync(unsigned mask, int predicate);
__device__ int __all_sync(unsigned mask, int predicate);
#define M2_STUB_ATOMICS(type)                                                                      \
    __device__ type atomicAdd(type *to, type value);                                               \
    __device__ type atomicExch(type *to, type value);
M2_STUB_ATOMICS(int)
M2_STUB_ATOMICS(unsigned)
M2_STUB_ATOMICS(float)
#undef M2_STUB_ATOMICS
#define M2_STUB_ATOMICS(type)                                                                      \
    __device__ type atomicCAS(type *to, type expected, type value);                                \
    __device__ type atomicMax(type *to, type value);                                               \
    __device__ type atomicMin(type *to, type value);                                               \
    __device__ type atomicAnd(type *to, type value);                                               \
    __device__ type atomicOr(type *to, type value);
M2_STUB_ATOMICS(int)
M2_STUB_ATOMICS(unsigned)
#undef M2_STUB_ATOMICS

/* Functions of one and two floats, on the device; clang-format does not settle on these lines. */
/* clang-format off */
#define M2_STUB_F1(name) __device__ float name(float x);
#define M2_STUB_F2(name) __device__ float name(float x, float y);
M2_STUB_F1(fabsf) M2_STUB_F1(expf) M2_STUB_F1(exp2f) M2_STUB_F1(logf) M2_STUB_F1(sqrtf)
M2_STUB_F1(rsqrtf) M2_STUB_F1(tanhf) M2_STUB_F1(sinf) M2_STUB_F1(cosf) M2_STUB_F1(floorf)
M2_STUB_F1(rintf) M2_STUB_F1(expm1f) M2_STUB_F1(log1pf) M2_STUB_F1(truncf) M2_STUB_F1(__expf)
M2_STUB_F2(fminf) M2_STUB_F2(fmaxf) M2_STUB_F2(__fdividef) M2_STUB_F2(__fadd_rn)
M2_STUB_F2(__fmul_rn) M2_STUB_F2(__fsub_rn) M2_STUB_F2(__fdiv_rn)
#undef M2_STUB_F1
#undef M2_STUB_F2
    /* clang-format on */
    __device__ float fmaf(float x, float y, float z);
__device__ float __fmaf_rn(float x, float y, float z);
__device__ double fma(double x, double y, double z);
__device__ double sqrt(double x);
__device__ double exp(double x);
__device__ double rint(double x);
__device__ float __fsqrt_rn(float x);
__device__ int __float_as_int(float x);
__device__ float __int_as_float(int x);
__device__ unsigned __float_as_uint(float x);
__device__ float __uint_as_float(unsigned x);
__device__ int __popc(unsigned x);
__device__ int __ffs(int x);
__device__ int __clz(int x);
template <typename T> __device__ T __ldg(const T *from);
__device__ int min(int a, int b);
__device__ int max(int a, int b);
__device__ long long min(long long a, long long b);
__device__ long long max(long long a, long long b);

#pragma GCC poison asm __asm__ __CUDA_ARCH__

#endif
