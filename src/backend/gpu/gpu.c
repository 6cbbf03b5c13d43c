/* gpu.c - opening a device: what it is, its stream, its workspace, its libraries. */
#include "backend/gpu/launch.h"

#include "backend/gpu/blas.h"
#include "backend/gpu/dnn.h"
#include "backend/gpu/gate.h"
#include "backend/gpu/memory.h"
#include "core/log.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MIB 1048576.0

static int count_devices(char *text, size_t bytes)
{
    int n = 0;
    const gpuError_t error = gpuGetDeviceCount(&n);
    gpuGetLastError();
    if (error == gpuSuccess && n > 0) {
        if (bytes) text[0] = '\0';
        return n;
    }
    snprintf(text, bytes, "%s",
             error == gpuSuccess || error == gpuErrorNoDevice ? "the driver shows no device"
             : error == gpuErrorInsufficientDriver
                 ? "there is no driver, or it is older than this build's toolkit"
                 : gpuGetErrorString(error));
    return 0;
}

int m2_gpu_count(char *text, size_t bytes)
{
    m2_gpu_enter();
    const int n = count_devices(text, bytes);
    m2_gpu_leave();
    return n;
}

static int attribute(const m2_gpu *gpu, enum gpuDeviceAttr which)
{
    int value = 0;
    if (gpuDeviceGetAttribute(&value, which, gpu->device) != gpuSuccess) gpuGetLastError();
    return value;
}

static m2_status pick_device(const m2_gpu_params *params, m2_gpu *gpu)
{
    char why[160];
    const int n = count_devices(why, sizeof why);
    if (n == 0)
        return m2_fail(M2_ERR_UNSUPPORTED,
                       "--backend " M2_GPU_VENDOR ": %s; `magi2 doctor` shows what this machine "
                       "has; --backend cpu runs anywhere",
                       why);
    if (params->device < 0 || params->device >= n)
        return m2_fail(M2_ERR_ARG, "--device %d: the driver shows %d device%s, numbered from 0",
                       params->device, n, n == 1 ? "" : "s");
    gpu->device = params->device;
    const gpuError_t error = gpuSetDevice(gpu->device);
    if (error != gpuSuccess)
        return m2_fail(M2_ERR_UNSUPPORTED, "--device %d cannot be used: %s", gpu->device,
                       gpuGetErrorString(error));
    gpu->arch = attribute(gpu, gpuDevAttrComputeCapabilityMajor) * 10 +
                attribute(gpu, gpuDevAttrComputeCapabilityMinor);
    gpu->n_mps = attribute(gpu, gpuDevAttrMultiProcessorCount);
    gpu->smem_max = attribute(gpu, gpuDevAttrMaxSharedMemoryPerBlockOptin);
    if (gpu->arch < M2_GPU_ARCH_MIN)
        return m2_fail(M2_ERR_UNSUPPORTED,
                       "--device %d is of architecture %d; bf16 matrix units need %d or newer",
                       gpu->device, gpu->arch, M2_GPU_ARCH_MIN);
    return M2_OK;
}

/* The first launch tells whether the build holds code for this architecture. */
static m2_status check_code(m2_gpu *gpu)
{
    m2_gpu_probe(gpu);
    const gpuError_t launch = gpuGetLastError();
    const gpuError_t error = launch != gpuSuccess ? launch : gpuStreamSynchronize(gpu->stream);
    if (error == gpuSuccess) return M2_OK;
    gpuGetLastError();
    return m2_fail(M2_ERR_UNSUPPORTED,
                   "--device %d: this build (for %s) does not run on architecture %d: %s",
                   gpu->device, MAGI2_GPU_ARCHS, gpu->arch, gpuGetErrorString(error));
}

static void describe(m2_gpu *gpu, const char *blas, const char *dnn)
{
    char name[96];
    int driver = 0, runtime = 0;
    size_t free_bytes = 0, total = 0;
    m2_gpu_device_name(gpu->device, name, sizeof name);
    gpuDriverGetVersion(&driver);
    gpuRuntimeGetVersion(&runtime);
    gpuMemGetInfo(&free_bytes, &total);
    snprintf(gpu->isa, sizeof gpu->isa, "%s%d%s", M2_GPU_VENDOR_ARCH_PREFIX, gpu->arch,
             gpu->use_portable ? "-portable" : "");
    snprintf(gpu->banner, sizeof gpu->banner,
             "%s (" M2_GPU_VENDOR " device %d, %s, %d multiprocessors), %.0f of %.0f MiB free, "
             "driver %d, runtime %d, %s, %s",
             name, gpu->device, gpu->isa, gpu->n_mps, (double)free_bytes / MIB, (double)total / MIB,
             driver, runtime, blas, dnn);
}

/* With an attention of our own for the card, the library is there to be compared with. */
static int wants_dnn(const m2_gpu *gpu)
{
#if defined(M2_GPU_HAS_SM90)
    return gpu->prefers_dnn || gpu->arch != 90;
#else
    (void)gpu;
    return 1;
#endif
}

static m2_status open_parts(const m2_gpu_params *params, m2_gpu *gpu)
{
    char blas[128] = "no matrix library (portable kernels)", dnn[128] = "no attention library";
    M2_TRY(pick_device(params, gpu));
    gpu->use_portable = params->use_portable;
    gpu->prefers_dnn = params->prefers_dnn;
    gpu->memory_limit = params->memory_limit;
    if (gpuStreamCreateWithFlags(&gpu->stream, gpuStreamNonBlocking) != gpuSuccess)
        return m2_fail(M2_ERR_INTERNAL, "--device %d: no stream: %s", gpu->device,
                       gpuGetErrorString(gpuGetLastError()));
    M2_TRY(check_code(gpu));
    M2_TRY(m2_gpu_memory_open(gpu));
    if (!gpu->use_portable) gpu->blas = m2_gpu_blas_open(gpu, blas, sizeof blas);
    if (!gpu->use_portable) gpu->dnn = m2_gpu_dnn_open(gpu, wants_dnn(gpu), dnn, sizeof dnn);
    if (gpu->prefers_dnn && !gpu->dnn)
        return m2_fail(M2_ERR_UNSUPPORTED, "attention by the vendor's library is asked for: %s",
                       dnn);
    describe(gpu, blas, dnn);
    m2_debug("gpu", "%s", gpu->banner);
    return M2_OK;
}

m2_status m2_gpu_open(const m2_gpu_params *params, m2_gpu **gpu_out)
{
    m2_gpu *gpu = calloc(1, sizeof *gpu);
    if (!gpu) return m2_fail(M2_ERR_MEMORY, "no memory for a device");
    m2_gpu_enter();
    const m2_status status = open_parts(params, gpu);
    m2_gpu_leave();
    if (status != M2_OK) {
        m2_gpu_close(gpu);
        return status;
    }
    *gpu_out = gpu;
    return M2_OK;
}

void m2_gpu_close(m2_gpu *gpu)
{
    if (!gpu) return;
    if (gpu->stream) m2_gpu_finish(gpu, "close");
    m2_gpu_enter();
    m2_gpu_dnn_close(gpu->dnn);
    m2_gpu_blas_close(gpu->blas);
    m2_gpu_memory_close(gpu);
    if (gpu->stream) gpuStreamDestroy(gpu->stream);
    gpuGetLastError();
    m2_gpu_leave();
    free(gpu);
}

const char *m2_gpu_vendor(void)
{
    return M2_GPU_VENDOR;
}

const char *m2_gpu_banner(const m2_gpu *gpu)
{
    return gpu->banner;
}

#define DEFINE_SLOT(name)                                                                          \
    static void inside_##name(const m2_ops *ops, const m2_##name##_args *args)                     \
    {                                                                                              \
        m2_gpu_enter();                                                                            \
        m2_gpu_##name(ops, args);                                                                  \
        m2_gpu_leave();                                                                            \
    }
M2_OPS(DEFINE_SLOT)
#undef DEFINE_SLOT

void m2_ops_init_gpu(m2_ops *ops, m2_gpu *gpu)
{
    *ops = (m2_ops){ .backend = M2_GPU_VENDOR,
                     .isa = gpu->isa,
                     .device = gpu,
                     .device_api = &m2_gpu_device,
                     .upload = m2_gpu_upload,
                     .download = m2_gpu_download };
#define SET_SLOT(name) ops->name = inside_##name;
    M2_OPS(SET_SLOT)
#undef SET_SLOT
}
