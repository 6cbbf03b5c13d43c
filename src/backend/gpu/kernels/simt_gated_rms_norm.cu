/* simt_gated_rms_norm.cu - y = round(round(w * round(o * rsqrt(mean o^2 + eps))) * silu(z)), per head:
 * 16 lanes share a head, whose values they read twice (the second time from the cache).
 */
#include "backend/gpu/kernels/simt_parts.cuh"

#define LANES 16
#define HEADS (SIMT_THREADS / LANES)

template <typename T, int IS_WIDE>
static __global__ void gated_norm_kernel(const T *o, const T *w, const T *z, T *y, int64_t n_heads,
                                         int dim, float eps)
{
    const int lane = (int)threadIdx.x % LANES;
    const int64_t head = (int64_t)blockIdx.x * HEADS + (int)threadIdx.x / LANES;
    const int64_t begin = (head < n_heads ? head : n_heads - 1) * dim;
    float v[SIMT_VECTOR], weight[SIMT_VECTOR], gate[SIMT_VECTOR], sum = 0.0f;
    for (int i = lane * SIMT_VECTOR; i < dim; i += LANES * SIMT_VECTOR) {
        simt_get_some<IS_WIDE>(o + begin, i, dim - i, v);
#pragma unroll
        for (int j = 0; j < SIMT_VECTOR; j++) sum = fmaf(v[j], v[j], sum);
    }
    const float scale = 1.0f / sqrtf(simt_lanes_sum<LANES>(sum) / (float)dim + eps);
    for (int i = lane * SIMT_VECTOR; head < n_heads && i < dim; i += LANES * SIMT_VECTOR) {
        simt_get_some<IS_WIDE>(o + begin, i, dim - i, v);
        simt_get_some<IS_WIDE>(w, i, dim - i, weight);
        simt_get_some<IS_WIDE>(z + begin, i, dim - i, gate);
#pragma unroll
        for (int j = 0; j < SIMT_VECTOR; j++) {
            const float normed = simt_round<T>(__fmul_rn(v[j], scale));
            const float weighted = simt_round<T>(__fmul_rn(weight[j], normed));
            v[j] = __fmul_rn(weighted, simt_silu(gate[j]));
        }
        simt_put_some<IS_WIDE>(y + begin, i, dim - i, v);
    }
}

extern "C" void m2_gpu_gated_rms_norm(const m2_ops *ops, const m2_gated_rms_norm_args *args)
{
    struct m2_gpu *gpu = m2_gpu_of(ops);
    const int64_t n_heads = args->o->shape[0] * args->o->shape[1], dim = args->o->shape[2];
    if (n_heads == 0) return;
    const int is_wide = simt_is_wide(args->o, dim) && simt_is_wide(args->w, dim) &&
                        simt_is_wide(args->z, dim) && simt_is_wide(args->y, dim);
    SIMT_BY_TYPE(args->y->dtype, T, SIMT_BY_WIDTH(is_wide, WIDE, {
                     gated_norm_kernel<T, WIDE>
                         <<<simt_blocks(n_heads, HEADS), SIMT_THREADS, 0, gpu->stream>>>(
                             (const T *)args->o->data, (const T *)args->w->data,
                             (const T *)args->z->data, (T *)args->y->data, n_heads, (int)dim,
                             args->eps);
                 }));
    m2_gpu_launched(gpu, "gated_rms_norm");
}
