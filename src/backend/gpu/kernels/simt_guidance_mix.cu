/* simt_guidance_mix.cu - v = u + s * (c - u), three f32 operations.
 *
 * Numerics  the bits of the CPU: no contraction
 * Twin      backend/cpu/ref/guidance_mix.c */
#include "backend/gpu/kernels/simt_guidance.cuh"

static __global__ void mix_kernel(const float *cond, const float *uncond, float *v,
                                  simt_scales scales)
{
    int64_t i;
    float scale;
    if (!simt_scales_at(scales, &i, &scale)) return;
    const float u = uncond[i];
    v[i] = __fadd_rn(u, __fmul_rn(scale, __fadd_rn(cond[i], -u)));
}

extern "C" void m2_gpu_guidance_mix(const m2_ops *ops, const m2_guidance_mix_args *args)
{
    struct m2_gpu *gpu = m2_gpu_of(ops);
    const simt_scales scales = simt_scales_of(args->cond, args->scale, args->step);
    assert(m2_tensor_count(args->uncond) == m2_tensor_count(args->cond));
    assert(m2_tensor_count(args->v) == m2_tensor_count(args->cond));
    if (scales.n_runs == 0) return;
    mix_kernel<<<simt_scales_blocks(&scales), SIMT_THREADS, 0, gpu->stream>>>(
        (const float *)args->cond->data, (const float *)args->uncond->data, (float *)args->v->data,
        scales);
    m2_gpu_launched(gpu, "guidance_mix");
}
