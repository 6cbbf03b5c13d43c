/* simt_gated_rms_norm.cu - y = round(round(w * round(o * rsqrt(mean o^2 + eps))) * silu(z)), per
 * head: 16 lanes share a head, eight values of each in turn.  Heads of at most 128 values are read
 * once and all that a thread needs is asked for before it computes; wider ones are read twice.
 *
 * Twin     backend/cpu/ref/gated_rms_norm.c */
#include "backend/gpu/kernels/simt_parts.cuh"

#define LANES 16
#define HEADS (SIMT_THREADS / LANES)

template <typename T>
static __device__ __forceinline__ void norm_and_gate(float (&v)[SIMT_VECTOR], float scale,
                                                     const float (&weight)[SIMT_VECTOR],
                                                     const float (&gate)[SIMT_VECTOR])
{
#pragma unroll
    for (int j = 0; j < SIMT_VECTOR; j++) {
        const float normed = simt_round<T>(__fmul_rn(v[j], scale));
        const float weighted = simt_round<T>(__fmul_rn(weight[j], normed));
        v[j] = __fmul_rn(weighted, simt_silu_to<T>(gate[j]));
    }
}

static __device__ __forceinline__ float sum_of_squares(const float (&v)[SIMT_VECTOR], float sum)
{
#pragma unroll
    for (int j = 0; j < SIMT_VECTOR; j++) sum = fmaf(v[j], v[j], sum);
    return sum;
}

template <typename T>
static __global__ void gated_norm_held(const T *o, const T *w, const T *z, T *y, int64_t n_heads,
                                       int dim, float eps)
{
    const int i = (int)threadIdx.x % LANES * SIMT_VECTOR;
    const int64_t head = (int64_t)blockIdx.x * HEADS + (int)threadIdx.x / LANES;
    const bool is_inside = head < n_heads && i < dim;
    float v[SIMT_VECTOR], weight[SIMT_VECTOR], gate[SIMT_VECTOR];
    simt_get8_if(is_inside, o, head * dim + i, v);
    simt_get8_if(is_inside, z, head * dim + i, gate);
    simt_get8_if(is_inside, w, i, weight);
    const float mean = simt_lanes_sum<LANES>(sum_of_squares(v, 0.0f)) / (float)dim;
    norm_and_gate<T>(v, 1.0f / sqrtf(mean + eps), weight, gate);
    if (is_inside) simt_put8(y, head * dim + i, v);
}

template <typename T, int IS_WIDE>
static __global__ void gated_norm_any(const T *o, const T *w, const T *z, T *y, int64_t n_heads,
                                      int dim, float eps)
{
    const int lane = (int)threadIdx.x % LANES;
    const int64_t head = (int64_t)blockIdx.x * HEADS + (int)threadIdx.x / LANES;
    const int64_t begin = (head < n_heads ? head : n_heads - 1) * dim;
    float v[SIMT_VECTOR], weight[SIMT_VECTOR], gate[SIMT_VECTOR], sum = 0.0f;
    for (int i = lane * SIMT_VECTOR; i < dim; i += LANES * SIMT_VECTOR) {
        simt_get_some<IS_WIDE>(o + begin, i, dim - i, v);
        sum = sum_of_squares(v, sum);
    }
    const float scale = 1.0f / sqrtf(simt_lanes_sum<LANES>(sum) / (float)dim + eps);
    for (int i = lane * SIMT_VECTOR; head < n_heads && i < dim; i += LANES * SIMT_VECTOR) {
        simt_get_some<IS_WIDE>(o + begin, i, dim - i, v);
        simt_get_some<IS_WIDE>(w, i, dim - i, weight);
        simt_get_some<IS_WIDE>(z + begin, i, dim - i, gate);
        norm_and_gate<T>(v, scale, weight, gate);
        simt_put_some<IS_WIDE>(y + begin, i, dim - i, v);
    }
}

template <typename T>
static void gated_rms_norm(struct m2_gpu *gpu, const m2_gated_rms_norm_args *args)
{
    const T *o = (const T *)args->o->data, *w = (const T *)args->w->data;
    const T *z = (const T *)args->z->data;
    T *y = (T *)args->y->data;
    const int64_t n_heads = args->o->shape[0] * args->o->shape[1];
    const int dim = (int)args->o->shape[2];
    const unsigned int blocks = simt_blocks(n_heads, HEADS);
    const int is_wide = simt_is_wide(args->o, dim) && simt_is_wide(args->w, dim) &&
                        simt_is_wide(args->z, dim) && simt_is_wide(args->y, dim);
    if (is_wide && dim <= LANES * SIMT_VECTOR)
        gated_norm_held<T>
            <<<blocks, SIMT_THREADS, 0, gpu->stream>>>(o, w, z, y, n_heads, dim, args->eps);
    else
        SIMT_BY_WIDTH(is_wide, WIDE, {
            gated_norm_any<T, WIDE>
                <<<blocks, SIMT_THREADS, 0, gpu->stream>>>(o, w, z, y, n_heads, dim, args->eps);
        });
}

extern "C" void m2_gpu_gated_rms_norm(const m2_ops *ops, const m2_gated_rms_norm_args *args)
{
    struct m2_gpu *gpu = m2_gpu_of(ops);
    if (m2_tensor_count(args->o) == 0) return;
    SIMT_BY_TYPE(args->y->dtype, T, gated_rms_norm<T>(gpu, args));
    m2_gpu_launched(gpu, "gated_rms_norm");
}
