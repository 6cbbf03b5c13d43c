/* memory.h - device memory, copies through pinned staging, waiting, recordings. */
#ifndef M2_BACKEND_GPU_MEMORY_H
#define M2_BACKEND_GPU_MEMORY_H

#include "backend/gpu/launch.h"

#ifdef __cplusplus
extern "C" {
#endif

extern const m2_device_api m2_gpu_device;

/* Workspace and the pinned ring.  Errors M2_ERR_MEMORY */
m2_status m2_gpu_memory_open(m2_gpu *gpu);
void m2_gpu_memory_close(m2_gpu *gpu);

/* Waits until all that was called is done; the gate must be free of this engine. */
void m2_gpu_finish(m2_gpu *gpu, const char *what);

void m2_gpu_upload(const m2_ops *ops, m2_tensor *to, const void *from_host);
void m2_gpu_download(const m2_ops *ops, void *to_host, const m2_tensor *from);

/* Vendors' signatures differ (platform/): instantiate for replay. */
gpuError_t m2_gpu_graph_instantiate(gpuGraphExec_t *exec_out, gpuGraph_t graph);
void m2_gpu_device_name(int device, char *text, size_t bytes);
/* An empty kernel. */
void m2_gpu_probe(m2_gpu *gpu);

#ifdef __cplusplus
}
#endif

#endif
