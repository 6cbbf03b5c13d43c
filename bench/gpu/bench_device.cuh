/* bench_device.cuh - what the programs that check and time one kernel share: the device as
 * operators see it, memory that starts as NaN, random values, errors, timing. */
#ifndef M2_BENCH_GPU_BENCH_DEVICE_CUH
#define M2_BENCH_GPU_BENCH_DEVICE_CUH

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "backend/gpu/launch.h"

typedef struct bench_device {
    struct m2_gpu gpu;
    m2_ops ops;
    m2_ops host; /* for the operators of the CPU */
    int n_failed;
} bench_device;

static inline void bench_must(gpuError_t error, const char *what)
{
    if (error == gpuSuccess) return;
    printf("%s: %s\n", what, gpuGetErrorString(error));
    exit(1);
}

static inline void bench_open(bench_device *device)
{
    struct m2_gpu *gpu = &device->gpu;
    int major = 0, minor = 0;
    memset(device, 0, sizeof *device);
    bench_must(gpuSetDevice(0), "device");
    gpuDeviceGetAttribute(&major, gpuDevAttrComputeCapabilityMajor, 0);
    gpuDeviceGetAttribute(&minor, gpuDevAttrComputeCapabilityMinor, 0);
    gpuDeviceGetAttribute(&gpu->n_mps, gpuDevAttrMultiProcessorCount, 0);
    gpuDeviceGetAttribute(&gpu->smem_max, gpuDevAttrMaxSharedMemoryPerBlockOptin, 0);
    gpu->arch = 10 * major + minor;
    bench_must(gpuStreamCreateWithFlags(&gpu->stream, gpuStreamNonBlocking), "stream");
    bench_must(gpuMalloc(&gpu->workspace, M2_GPU_WORKSPACE_BYTES), "workspace");
    device->ops.device = gpu;
    if (m2_pool_create(0, &device->host.pool) != M2_OK) exit(1);
}

static inline void bench_wait(bench_device *device, const char *what)
{
    bench_must(device->gpu.error, what);
    bench_must(gpuStreamSynchronize(device->gpu.stream), what);
}

/* Of all ones, which are NaNs; from_host may be NULL. */
static inline m2_tensor bench_tensor(bench_device *device, m2_dtype dtype, int64_t a, int64_t b,
                                     int64_t c, const void *from_host)
{
    const int64_t shape[3] = { a, b, c };
    m2_tensor tensor = m2_tensor_wrap(0, dtype, 3, shape);
    const size_t bytes = m2_tensor_bytes(&tensor);
    bench_must(gpuMalloc(&tensor.data, bytes ? bytes : 1), "memory");
    bench_must(gpuMemsetAsync(tensor.data, 0xff, bytes, device->gpu.stream), "memory");
    if (from_host)
        bench_must(gpuMemcpyAsync(tensor.data, from_host, bytes, gpuMemcpyHostToDevice,
                                  device->gpu.stream),
                   "upload");
    bench_wait(device, "upload");
    return tensor;
}

/* The same on the host, likewise. */
static inline m2_tensor bench_host_tensor(m2_dtype dtype, int64_t a, int64_t b, int64_t c,
                                          const void *from_host)
{
    const int64_t shape[3] = { a, b, c };
    m2_tensor tensor = m2_tensor_wrap(0, dtype, 3, shape);
    const size_t bytes = m2_tensor_bytes(&tensor);
    tensor.data = malloc(bytes ? bytes : 1);
    if (!tensor.data) exit(1);
    memset(tensor.data, 0xff, bytes);
    if (from_host) memcpy(tensor.data, from_host, bytes);
    return tensor;
}

/* To memory of the host that the caller frees. */
static inline void *bench_download(bench_device *device, const m2_tensor *tensor)
{
    const size_t bytes = m2_tensor_bytes(tensor);
    void *to = malloc(bytes ? bytes : 1);
    if (!to) exit(1);
    bench_wait(device, "kernel");
    bench_must(gpuMemcpyAsync(to, tensor->data, bytes, gpuMemcpyDeviceToHost, device->gpu.stream),
               "download");
    bench_wait(device, "download");
    return to;
}

typedef struct bench_random {
    uint64_t state;
} bench_random;

static inline uint64_t bench_u64(bench_random *random)
{
    uint64_t z = random->state += 0x9e3779b97f4a7c15u;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return z ^ z >> 31;
}

/* Nearly normal, deviation 1: four uniform values. */
static inline float bench_normal(bench_random *random)
{
    const uint64_t bits = bench_u64(random);
    const double sum = (double)(bits & 0xffff) + (double)(bits >> 16 & 0xffff) +
                       (double)(bits >> 32 & 0xffff) + (double)(bits >> 48);
    return (float)((sum / 65536.0 - 2.0) * 1.7320508);
}

/* [n] values of `dtype`, bf16 or f32. */
static inline void *bench_values(bench_random *random, m2_dtype dtype, int64_t n, float scale)
{
    void *values = malloc((size_t)n * m2_dtype_bytes(dtype) + 1);
    if (!values) exit(1);
    for (int64_t i = 0; i < n; i++) {
        const float value = scale * bench_normal(random);
        if (dtype == M2_BF16)
            ((m2_bf16 *)values)[i] = m2_f32_to_bf16(value);
        else
            ((float *)values)[i] = value;
    }
    return values;
}

/* Relative RMS of got against truth; NaN anywhere gives NaN. */
static inline double bench_error(const void *got, m2_dtype dtype, const double *truth, int64_t n)
{
    double wrong = 0, size = 0;
    for (int64_t i = 0; i < n; i++) {
        const double value =
            dtype == M2_BF16 ? m2_bf16_to_f32(((const m2_bf16 *)got)[i]) : ((const float *)got)[i];
        wrong += (value - truth[i]) * (value - truth[i]);
        size += truth[i] * truth[i];
    }
    return n == 0 ? 0 : sqrt(wrong / size);
}

static inline void bench_check(bench_device *device, int is_good, const char *format, ...)
{
    va_list list;
    if (is_good) return;
    device->n_failed++;
    if (device->n_failed > 25) return;
    printf("FAILED ");
    va_start(list, format);
    vprintf(format, list);
    va_end(list);
    printf("\n");
}

typedef void bench_body(void *context);

/* Milliseconds of one call: the mean over `rounds` calls after warm_s seconds of them. */
static inline double bench_time(bench_device *device, bench_body *body, void *context,
                                double warm_s, int rounds)
{
    gpuEvent_t begin, end;
    float ms = 0;
    double warmed = 0;
    gpuEventCreateWithFlags(&begin, gpuEventDefault);
    gpuEventCreateWithFlags(&end, gpuEventDefault);
    for (int pass = 0; pass < 2;) {
        gpuEventRecord(begin, device->gpu.stream);
        for (int i = 0; i < rounds; i++) body(context);
        gpuEventRecord(end, device->gpu.stream);
        bench_wait(device, "timed kernel");
        gpuEventElapsedTime(&ms, begin, end);
        warmed += ms / 1e3;
        if (pass == 1) break;
        if (warmed >= warm_s) pass = 1;
    }
    gpuEventDestroy(begin);
    gpuEventDestroy(end);
    return ms / rounds;
}

#endif
