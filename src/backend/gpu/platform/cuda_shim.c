/* cuda_shim.c - where the vendors' signatures differ. */
#include "backend/gpu/memory.h"

#include <stdio.h>

gpuError_t m2_gpu_graph_instantiate(gpuGraphExec_t *exec_out, gpuGraph_t graph)
{
    return cudaGraphInstantiate(exec_out, graph, 0);
}

void m2_gpu_device_name(int device, char *text, size_t bytes)
{
    struct cudaDeviceProp properties;
    if (cudaGetDeviceProperties(&properties, device) == cudaSuccess)
        snprintf(text, bytes, "%s", properties.name);
    else
        snprintf(text, bytes, "unnamed device");
}
