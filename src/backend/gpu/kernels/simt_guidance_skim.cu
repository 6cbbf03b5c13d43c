/* simt_guidance_skim.cu - "skimmed" guidance: where the guided prediction would overshoot, the
 * unconditional one is moved towards the conditional one.  The twin has the formulas.
 *
 * Why       not at all if every u is zero: a first kernel looks for one that is not, and the second
 *           does nothing without it; the flag is in the workspace
 * Numerics  the masks are choices, so every operation is rounded alone: the bits of the CPU
 * Twin      backend/cpu/ref/guidance_skim.c */
#include "backend/gpu/kernels/simt_guidance.cuh"

static __device__ __forceinline__ float minus(float a, float b)
{
    return __fadd_rn(a, -b);
}

static __device__ __forceinline__ int sign_of(float x)
{
    return (x > 0) - (x < 0);
}

static __device__ __forceinline__ int overshoots(float x, float c, float u, float s)
{
    const float guided_c = __fmul_rn(c, s), guided_u = __fmul_rn(u, minus(s, 1.0f));
    const float clean_c = minus(x, c), clean_u = minus(x, u);
    const float guided = __fadd_rn(clean_u, __fmul_rn(s, minus(clean_c, clean_u)));
    const float d = minus(x, guided);
    return sign_of(minus(c, u)) == sign_of(c) && sign_of(c) == sign_of(minus(guided_c, guided_u)) &&
           sign_of(d) == sign_of(minus(d, x));
}

static __device__ __forceinline__ float towards(float c, float u, float w)
{
    return __fadd_rn(__fmul_rn(c, minus(1.0f, w)), __fmul_rn(u, w));
}

static __global__ void clear_kernel(int32_t *flag)
{
    *flag = 0;
}

static __global__ void find_kernel(const float *x, int32_t *flag, int64_t n)
{
    const int64_t i = (int64_t)blockIdx.x * SIMT_THREADS + threadIdx.x;
    if (i < n && x[i] != 0.0f) *flag = 1;
}

static __global__ void skim_kernel(const float *cond, const float *latent, float *uncond,
                                   const int32_t *flag, float skim_scale, simt_scales scales)
{
    int64_t i;
    float s;
    if (!simt_scales_at(scales, &i, &s) || !*flag || !(s > 1.0f)) return;
    const float w = minus(skim_scale, 1.0f) / minus(s, 1.0f);
    const float x = latent[i], c = cond[i];
    float u = uncond[i];
    if (overshoots(x, c, u, s)) u = towards(c, u, w);
    if (overshoots(x, u, c, s)) u = towards(c, u, w);
    uncond[i] = u;
}

extern "C" void m2_gpu_guidance_skim(const m2_ops *ops, const m2_guidance_skim_args *args)
{
    struct m2_gpu *gpu = m2_gpu_of(ops);
    const int64_t n = m2_tensor_count(args->cond);
    const simt_scales scales = simt_scales_of(args->cond, args->scale, args->step);
    int32_t *flag = (int32_t *)gpu->workspace;
    assert(m2_tensor_count(args->latent) == n && m2_tensor_count(args->uncond) == n);
    if (n == 0) return;
    clear_kernel<<<1, 1, 0, gpu->stream>>>(flag);
    find_kernel<<<(unsigned int)((n + SIMT_THREADS - 1) / SIMT_THREADS), SIMT_THREADS, 0,
                  gpu->stream>>>((const float *)args->uncond->data, flag, n);
    skim_kernel<<<simt_scales_blocks(&scales), SIMT_THREADS, 0, gpu->stream>>>(
        (const float *)args->cond->data, (const float *)args->latent->data,
        (float *)args->uncond->data, flag, args->skim_scale, scales);
    m2_gpu_launched(gpu, "guidance_skim");
}
