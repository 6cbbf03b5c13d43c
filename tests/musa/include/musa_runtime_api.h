/* musa_runtime_api.h - what MUSA's own header of this name declares and we use: a stand-in, so that the
 * MUSA sources are compiled on every machine.
 *
 * It is kept narrow on purpose: a name that is not known to exist on MUSA is not here, and a source
 * that uses it does not compile.  No function does anything.
 */
#ifndef MUSA_RUNTIME_API_H
#define MUSA_RUNTIME_API_H

#include <stddef.h>

#define MUSART_VERSION 50200

#ifdef __cplusplus
extern "C" {
#endif

typedef enum musaError {
    musaSuccess = 0,
    musaErrorInvalidValue = 1,
    musaErrorMemoryAllocation = 2,
    musaErrorStubLibrary = 34,
    musaErrorInsufficientDriver = 35,
    musaErrorNoDevice = 100,
    musaErrorNotReady = 600,
    musaErrorUnknown = 999
} musaError_t;

enum musaDeviceAttr {
    musaDevAttrWarpSize = 10,
    musaDevAttrMultiProcessorCount = 16,
    musaDevAttrL2CacheSize = 38,
    musaDevAttrComputeCapabilityMajor = 75,
    musaDevAttrComputeCapabilityMinor = 76,
    musaDevAttrMaxSharedMemoryPerBlockOptin = 97
};

enum musaMemcpyKind {
    musaMemcpyHostToDevice = 1,
    musaMemcpyDeviceToHost,
    musaMemcpyDeviceToDevice
};
enum musaFuncAttribute { musaFuncAttributeMaxDynamicSharedMemorySize = 8 };

#define musaStreamNonBlocking  1
#define musaEventDefault       0
#define musaEventDisableTiming 2
#define musaHostAllocDefault   0

typedef struct MUstream_st *musaStream_t;
typedef struct MUevent_st *musaEvent_t;

musaError_t musaDriverGetVersion(int *version);
musaError_t musaRuntimeGetVersion(int *version);
musaError_t musaGetDeviceCount(int *count);
musaError_t musaSetDevice(int device);
musaError_t musaDeviceGetAttribute(int *value, enum musaDeviceAttr attr, int device);
musaError_t musaDeviceGetPCIBusId(char *id, int bytes, int device);
musaError_t musaDeviceSynchronize(void);
musaError_t musaMemGetInfo(size_t *free_bytes, size_t *total);
musaError_t musaGetLastError(void);
musaError_t musaPeekAtLastError(void);
const char *musaGetErrorString(musaError_t error);
const char *musaGetErrorName(musaError_t error);

musaError_t musaStreamCreateWithFlags(musaStream_t *stream, unsigned flags);
musaError_t musaStreamDestroy(musaStream_t stream);
musaError_t musaStreamSynchronize(musaStream_t stream);
musaError_t musaStreamQuery(musaStream_t stream);
musaError_t musaStreamWaitEvent(musaStream_t stream, musaEvent_t event, unsigned flags);
musaError_t musaEventCreateWithFlags(musaEvent_t *event, unsigned flags);
musaError_t musaEventDestroy(musaEvent_t event);
musaError_t musaEventRecord(musaEvent_t event, musaStream_t stream);
musaError_t musaEventQuery(musaEvent_t event);
musaError_t musaEventSynchronize(musaEvent_t event);
musaError_t musaEventElapsedTime(float *ms, musaEvent_t begin, musaEvent_t end);

musaError_t musaMalloc(void **memory, size_t bytes);
musaError_t musaFree(void *memory);
musaError_t musaHostAlloc(void **memory, size_t bytes, unsigned flags);
musaError_t musaFreeHost(void *memory);
musaError_t musaMemcpyAsync(void *to, const void *from, size_t bytes, enum musaMemcpyKind kind,
                            musaStream_t stream);
musaError_t musaMemsetAsync(void *memory, int value, size_t bytes, musaStream_t stream);
musaError_t musaFuncSetAttribute(const void *kernel, enum musaFuncAttribute attr, int value);

typedef struct MUgraph_st *musaGraph_t;
typedef struct MUgraphExec_st *musaGraphExec_t;
typedef enum musaStreamCaptureMode { musaStreamCaptureModeGlobal = 0 } musaStreamCaptureMode;
musaError_t musaStreamBeginCapture(musaStream_t stream, musaStreamCaptureMode mode);
musaError_t musaStreamEndCapture(musaStream_t stream, musaGraph_t *graph);
musaError_t musaGraphLaunch(musaGraphExec_t exec, musaStream_t stream);
musaError_t musaGraphExecDestroy(musaGraphExec_t exec);
musaError_t musaGraphDestroy(musaGraph_t graph);

#ifdef __cplusplus
}
#endif

#endif
