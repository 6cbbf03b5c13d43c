/* musa.h - the neutral names of the GPU runtime, for Moore Threads.
 *
 * Everything under backend/gpu says gpuMalloc, gpuStream_t ...; this file and its twin cuda.h alone
 * say what that is on a vendor's card.  Both define the same set (tests/check_gpu_names.sh).
 */
#ifndef M2_GPU_PLATFORM_MUSA_H
#define M2_GPU_PLATFORM_MUSA_H

#if defined(__MUSACC__)
#include <musa_runtime.h>
#else
#include <musa_runtime_api.h>
#endif

#define M2_GPU_VENDOR             "musa"
#define M2_GPU_VENDOR_ARCH_MIN    80
#define M2_GPU_VENDOR_ARCH_PREFIX "mp_"

#define gpuError_t                 musaError_t
#define gpuSuccess                 musaSuccess
#define gpuErrorMemoryAllocation   musaErrorMemoryAllocation
#define gpuErrorNoDevice           musaErrorNoDevice
#define gpuErrorInsufficientDriver musaErrorInsufficientDriver
#define gpuErrorNotReady           musaErrorNotReady
#define gpuGetErrorString          musaGetErrorString
#define gpuGetErrorName            musaGetErrorName
#define gpuGetLastError            musaGetLastError
#define gpuPeekAtLastError         musaPeekAtLastError

#define gpuGetDeviceCount                      musaGetDeviceCount
#define gpuSetDevice                           musaSetDevice
#define gpuDeviceAttr                          musaDeviceAttr
#define gpuDeviceGetAttribute                  musaDeviceGetAttribute
#define gpuDeviceGetPCIBusId                   musaDeviceGetPCIBusId
#define gpuDeviceSynchronize                   musaDeviceSynchronize
#define gpuMemGetInfo                          musaMemGetInfo
#define gpuDriverGetVersion                    musaDriverGetVersion
#define gpuRuntimeGetVersion                   musaRuntimeGetVersion
#define gpuDevAttrMultiProcessorCount          musaDevAttrMultiProcessorCount
#define gpuDevAttrComputeCapabilityMajor       musaDevAttrComputeCapabilityMajor
#define gpuDevAttrComputeCapabilityMinor       musaDevAttrComputeCapabilityMinor
#define gpuDevAttrMaxSharedMemoryPerBlockOptin musaDevAttrMaxSharedMemoryPerBlockOptin
#define gpuDevAttrL2CacheSize                  musaDevAttrL2CacheSize
#define gpuDevAttrWarpSize                     musaDevAttrWarpSize

#define gpuStream_t              musaStream_t
#define gpuStreamCreateWithFlags musaStreamCreateWithFlags
#define gpuStreamNonBlocking     musaStreamNonBlocking
#define gpuStreamDestroy         musaStreamDestroy
#define gpuStreamSynchronize     musaStreamSynchronize
#define gpuStreamQuery           musaStreamQuery
#define gpuStreamWaitEvent       musaStreamWaitEvent

#define gpuEvent_t              musaEvent_t
#define gpuEventCreateWithFlags musaEventCreateWithFlags
#define gpuEventDefault         musaEventDefault
#define gpuEventDisableTiming   musaEventDisableTiming
#define gpuEventDestroy         musaEventDestroy
#define gpuEventRecord          musaEventRecord
#define gpuEventQuery           musaEventQuery
#define gpuEventSynchronize     musaEventSynchronize
#define gpuEventElapsedTime     musaEventElapsedTime

#define gpuMalloc               musaMalloc
#define gpuFree                 musaFree
#define gpuHostAlloc            musaHostAlloc
#define gpuHostAllocDefault     musaHostAllocDefault
#define gpuFreeHost             musaFreeHost
#define gpuMemcpyAsync          musaMemcpyAsync
#define gpuMemcpyKind           musaMemcpyKind
#define gpuMemcpyHostToDevice   musaMemcpyHostToDevice
#define gpuMemcpyDeviceToHost   musaMemcpyDeviceToHost
#define gpuMemcpyDeviceToDevice musaMemcpyDeviceToDevice
#define gpuMemsetAsync          musaMemsetAsync

#define gpuGraph_t                 musaGraph_t
#define gpuGraphExec_t             musaGraphExec_t
#define gpuGraphDestroy            musaGraphDestroy
#define gpuGraphExecDestroy        musaGraphExecDestroy
#define gpuGraphLaunch             musaGraphLaunch
#define gpuStreamBeginCapture      musaStreamBeginCapture
#define gpuStreamEndCapture        musaStreamEndCapture
#define gpuStreamCaptureModeGlobal musaStreamCaptureModeGlobal

#define gpuFuncSetAttribute                        musaFuncSetAttribute
#define gpuFuncAttributeMaxDynamicSharedMemorySize musaFuncAttributeMaxDynamicSharedMemorySize

#if defined(__MUSACC__)
#include <musa_bf16.h>
#include <musa_fp16.h>
#include <mma.h>
#define gpu_bf16  __mt_bfloat16
#define gpu_bf162 __mt_bfloat162
#define gpu_wmma  mtmusa::wmma
/* Lanes exchange inside groups of 32, also where the hardware's warp is wider. */
#define gpu_shfl_xor(value, mask) __shfl_xor_sync(0xffffffffu, (value), (mask), 32)
#define gpu_shfl_down(value, by)  __shfl_down_sync(0xffffffffu, (value), (by), 32)
#define gpu_shfl_up(value, by)    __shfl_up_sync(0xffffffffu, (value), (by), 32)
#define gpu_shfl(value, lane)     __shfl_sync(0xffffffffu, (value), (lane), 32)
#define gpu_ballot(predicate)     __ballot_sync(0xffffffffu, (predicate))
/* 1 / x to an ulp, for 2^-126 <= |x| <= 2^126. */
#define gpu_rcp(x) (1.0f / (x))
/* 2^x to two ulp; below 2^-126 it may be zero. */
#define gpu_exp2(x) exp2f(x)
/* Values that nobody needs again soon: they leave the caches first. */
#define gpu_load_once(pointer)         (*(pointer))
#define gpu_store_once(pointer, value) (*(pointer) = (value))
/* Of the unsigned values of 32 lanes, given to all. */
#define gpu_reduce_max(value) musa_reduce((unsigned int)(value), 0u)
#define gpu_reduce_min(value) (~musa_reduce((unsigned int)(value), ~0u))
#define gpu_syncwarp()        __syncwarp()
static __device__ __forceinline__ unsigned int musa_reduce(unsigned int value, unsigned int flip)
{
    value ^= flip; /* the smallest is the largest of the complements */
    for (int mask = 16; mask >= 1; mask /= 2) {
        const unsigned int other = gpu_shfl_xor(value, mask);
        value = other > value ? other : value;
    }
    return value;
}
#endif

#endif
