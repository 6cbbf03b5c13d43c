/* simt_linear.cuh - our own matrix product, for where the vendor's library is absent, unwanted or
 * does not take a shape. */
#ifndef M2_BACKEND_GPU_KERNELS_SIMT_LINEAR_CUH
#define M2_BACKEND_GPU_KERNELS_SIMT_LINEAR_CUH

#include "backend/gpu/kernels/simt_common.cuh"

/* Any shape, type and grouping that ops.h allows. */
extern "C" void m2_gpu_linear_own(struct m2_gpu *gpu, const m2_linear_args *args);

#endif
