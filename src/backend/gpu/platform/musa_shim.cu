/* musa_shim.cu - where the vendors' signatures differ; recordings are C++ on MUSA. */
#include "backend/gpu/memory.h"

#include <stdio.h>

/* Replaying is slower than launching on the cards known, and their number in a process is limited. */
extern "C" gpuError_t m2_gpu_graph_instantiate(gpuGraphExec_t *exec_out, gpuGraph_t graph)
{
    (void)graph;
    *exec_out = NULL;
    return musaErrorUnknown;
}

/* The struct of properties differs between SDKs: the bus address is what names a card safely. */
extern "C" void m2_gpu_device_name(int device, char *text, size_t bytes)
{
    char bus[32];
    if (gpuDeviceGetPCIBusId(bus, (int)sizeof bus, device) != gpuSuccess) bus[0] = '\0';
    snprintf(text, bytes, "MUSA device at %s", bus);
}
