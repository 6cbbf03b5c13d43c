/* cuda_graph.c - where the vendors' signatures differ. */
#include "backend/gpu/memory.h"

gpuError_t m2_gpu_graph_instantiate(gpuGraphExec_t *exec_out, gpuGraph_t graph)
{
    return cudaGraphInstantiate(exec_out, graph, 0);
}
