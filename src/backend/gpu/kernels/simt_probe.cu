/* simt_probe.cu - the least that can be launched: does this build hold code for the device? */
#include "backend/gpu/memory.h"

static __global__ void probe_kernel()
{
}

extern "C" void m2_gpu_probe(m2_gpu *gpu)
{
    probe_kernel<<<1, 1, 0, gpu->stream>>>();
}
