/* cuda.h - the neutral names of the GPU runtime, for NVIDIA.
 *
 * Everything under backend/gpu says gpuMalloc, gpuStream_t ...; this file and its twin musa.h alone
 * say what that is on a vendor's card.  Both define the same set (tests/check_gpu_names.sh).
 */
#ifndef M2_GPU_PLATFORM_CUDA_H
#define M2_GPU_PLATFORM_CUDA_H

#if defined(__CUDACC__)
#include <cuda_runtime.h>
#else
#include <cuda_runtime_api.h>
#endif

#define M2_GPU_VENDOR             "cuda"
#define M2_GPU_VENDOR_ARCH_MIN    80
#define M2_GPU_VENDOR_ARCH_PREFIX "sm_"

#define gpuError_t                 cudaError_t
#define gpuSuccess                 cudaSuccess
#define gpuErrorMemoryAllocation   cudaErrorMemoryAllocation
#define gpuErrorNoDevice           cudaErrorNoDevice
#define gpuErrorInsufficientDriver cudaErrorInsufficientDriver
#define gpuErrorNotReady           cudaErrorNotReady
#define gpuGetErrorString          cudaGetErrorString
#define gpuGetErrorName            cudaGetErrorName
#define gpuGetLastError            cudaGetLastError
#define gpuPeekAtLastError         cudaPeekAtLastError

#define gpuGetDeviceCount                      cudaGetDeviceCount
#define gpuSetDevice                           cudaSetDevice
#define gpuDeviceAttr                          cudaDeviceAttr
#define gpuDeviceGetAttribute                  cudaDeviceGetAttribute
#define gpuDeviceGetPCIBusId                   cudaDeviceGetPCIBusId
#define gpuDeviceSynchronize                   cudaDeviceSynchronize
#define gpuMemGetInfo                          cudaMemGetInfo
#define gpuDriverGetVersion                    cudaDriverGetVersion
#define gpuRuntimeGetVersion                   cudaRuntimeGetVersion
#define gpuDevAttrMultiProcessorCount          cudaDevAttrMultiProcessorCount
#define gpuDevAttrComputeCapabilityMajor       cudaDevAttrComputeCapabilityMajor
#define gpuDevAttrComputeCapabilityMinor       cudaDevAttrComputeCapabilityMinor
#define gpuDevAttrMaxSharedMemoryPerBlockOptin cudaDevAttrMaxSharedMemoryPerBlockOptin
#define gpuDevAttrL2CacheSize                  cudaDevAttrL2CacheSize
#define gpuDevAttrWarpSize                     cudaDevAttrWarpSize

#define gpuStream_t              cudaStream_t
#define gpuStreamCreateWithFlags cudaStreamCreateWithFlags
#define gpuStreamNonBlocking     cudaStreamNonBlocking
#define gpuStreamDestroy         cudaStreamDestroy
#define gpuStreamSynchronize     cudaStreamSynchronize
#define gpuStreamQuery           cudaStreamQuery
#define gpuStreamWaitEvent       cudaStreamWaitEvent

#define gpuEvent_t              cudaEvent_t
#define gpuEventCreateWithFlags cudaEventCreateWithFlags
#define gpuEventDefault         cudaEventDefault
#define gpuEventDisableTiming   cudaEventDisableTiming
#define gpuEventDestroy         cudaEventDestroy
#define gpuEventRecord          cudaEventRecord
#define gpuEventQuery           cudaEventQuery
#define gpuEventSynchronize     cudaEventSynchronize
#define gpuEventElapsedTime     cudaEventElapsedTime

#define gpuMalloc               cudaMalloc
#define gpuFree                 cudaFree
#define gpuHostAlloc            cudaHostAlloc
#define gpuHostAllocDefault     cudaHostAllocDefault
#define gpuFreeHost             cudaFreeHost
#define gpuMemcpyAsync          cudaMemcpyAsync
#define gpuMemcpyKind           cudaMemcpyKind
#define gpuMemcpyHostToDevice   cudaMemcpyHostToDevice
#define gpuMemcpyDeviceToHost   cudaMemcpyDeviceToHost
#define gpuMemcpyDeviceToDevice cudaMemcpyDeviceToDevice
#define gpuMemsetAsync          cudaMemsetAsync

#define gpuGraph_t                 cudaGraph_t
#define gpuGraphExec_t             cudaGraphExec_t
#define gpuGraphDestroy            cudaGraphDestroy
#define gpuGraphExecDestroy        cudaGraphExecDestroy
#define gpuGraphLaunch             cudaGraphLaunch
#define gpuStreamBeginCapture      cudaStreamBeginCapture
#define gpuStreamEndCapture        cudaStreamEndCapture
#define gpuStreamCaptureModeGlobal cudaStreamCaptureModeGlobal

#define gpuFuncSetAttribute                        cudaFuncSetAttribute
#define gpuFuncAttributeMaxDynamicSharedMemorySize cudaFuncAttributeMaxDynamicSharedMemorySize

#if defined(__CUDACC__)
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <mma.h>
#define gpu_bf16  __nv_bfloat16
#define gpu_bf162 __nv_bfloat162
#define gpu_wmma  nvcuda::wmma
/* Lanes exchange inside groups of 32, also where the hardware's warp is wider. */
#define gpu_shfl_xor(value, mask) __shfl_xor_sync(0xffffffffu, (value), (mask), 32)
#define gpu_shfl_down(value, by)  __shfl_down_sync(0xffffffffu, (value), (by), 32)
#define gpu_shfl_up(value, by)    __shfl_up_sync(0xffffffffu, (value), (by), 32)
#define gpu_shfl(value, lane)     __shfl_sync(0xffffffffu, (value), (lane), 32)
#define gpu_ballot(predicate)     __ballot_sync(0xffffffffu, (predicate))
/* 1 / x to an ulp, for 2^-126 <= |x| <= 2^126. */
#define gpu_rcp(x) cuda_rcp(x)
/* 2^x to two ulp; below 2^-126 it may be zero. */
#define gpu_exp2(x) cuda_exp2(x)
/* Values that nobody needs again soon: they leave the caches first. */
#define gpu_load_once(pointer)         __ldcs(pointer)
#define gpu_store_once(pointer, value) __stcs((pointer), (value))
/* Of the unsigned values of 32 lanes, given to all. */
#define gpu_reduce_max(value) __reduce_max_sync(0xffffffffu, (unsigned int)(value))
#define gpu_reduce_min(value) __reduce_min_sync(0xffffffffu, (unsigned int)(value))
#define gpu_syncwarp()        __syncwarp()
static __device__ __forceinline__ float cuda_rcp(float x)
{
    float y;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}
static __device__ __forceinline__ float cuda_exp2(float x)
{
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}
#endif

#endif
