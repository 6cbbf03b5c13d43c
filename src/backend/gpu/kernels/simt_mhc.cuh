/* simt_mhc.cuh - what the mHC kernels share: from the product with phi to coefficients. */
#ifndef M2_BACKEND_GPU_KERNELS_SIMT_MHC_CUH
#define M2_BACKEND_GPU_KERNELS_SIMT_MHC_CUH

#include "backend/gpu/kernels/simt_common.cuh"
#include "backend/gpu/kernels/simt_fmath.cuh"

#define MHC_COEFFICIENTS (2 * M2_STREAMS + M2_STREAMS * M2_STREAMS)

/* How strongly a stream is read: the coefficient before its rounding. */
static __device__ __forceinline__ float mhc_pre(float c, float alpha_ms, float bias)
{
    return simt_fmath_sigmoid(__fadd_rn(__fmul_rn(alpha_ms, c), bias));
}

/* c [n, MHC_COEFFICIENTS] f32, on the device, to the outputs of mhc_coefficients. */
void m2_gpu_mhc_finish(struct m2_gpu *gpu, const m2_mhc_coefficients_args *args, const float *c);

static inline float mhc_scale(const m2_mhc_coefficients_args *args)
{
    return (float)(1.0 / sqrt((double)(M2_STREAMS * args->s->shape[2])));
}

#endif
