/* simt_advance.cu - *counter += 1: a kernel of its own, behind all that read the counter.
 *
 * Twin  backend/cpu/ref/advance.c */
#include "backend/gpu/kernels/simt_common.cuh"

#include <assert.h>

static __global__ void advance_kernel(int32_t *counter)
{
    *counter += 1;
}

extern "C" void m2_gpu_advance(const m2_ops *ops, const m2_advance_args *args)
{
    struct m2_gpu *gpu = m2_gpu_of(ops);
    assert(args->counter->dtype == M2_I32);
    advance_kernel<<<1, 1, 0, gpu->stream>>>((int32_t *)args->counter->data);
    m2_gpu_launched(gpu, "advance");
}
