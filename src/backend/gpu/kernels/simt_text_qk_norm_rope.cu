/* simt_text_qk_norm_rope.cu - norm and rotation of the text encoder's queries and keys.
 *
 * One group of 32 lanes follows one head of one token; the normed and rounded values wait in shared
 * memory for the rotation, which pairs dimension i with n_rot + i.
 *
 * Twin     backend/cpu/ref/text_qk_norm_rope.c */
#include "backend/gpu/kernels/simt_parts.cuh"

#define WARPS 4

template <typename T> struct norm_rope {
    const T *qg, *k_in, *q_norm, *k_norm, *cos, *sin;
    T *q, *k;
    int n_heads, n_kv, dim, n_rot;
    int64_t n_items; /* tokens x (heads + key/value heads) */
    float eps;
};

template <typename T>
static __device__ float inverse_rms(const T *from, int dim, float eps, int lane)
{
    float sum = 0.0f;
    for (int i = lane; i < dim; i += 32) {
        const float value = simt_get(from, i);
        sum = fmaf(value, value, sum);
    }
    return 1.0f / sqrtf(simt_warp_sum(sum) / (float)dim + eps);
}

template <typename T>
static __device__ void rotate(const norm_rope<T> *args, int64_t token, const float *normed, T *to,
                              int lane)
{
    const int n_rot = args->n_rot;
    for (int i = lane; i < n_rot; i += 32) {
        const float c = simt_get(args->cos, token * n_rot + i);
        const float s = simt_get(args->sin, token * n_rot + i);
        const float a = normed[i], b = normed[n_rot + i];
        const float ac = simt_round<T>(__fmul_rn(a, c)), bs = simt_round<T>(__fmul_rn(-b, s));
        const float bc = simt_round<T>(__fmul_rn(b, c)), as = simt_round<T>(__fmul_rn(a, s));
        simt_put(to, i, __fadd_rn(ac, bs));
        simt_put(to, n_rot + i, __fadd_rn(bc, as));
    }
    for (int i = 2 * n_rot + lane; i < args->dim; i += 32) simt_put(to, i, normed[i]);
}

template <typename T> static __global__ void norm_rope_kernel(norm_rope<T> args)
{
    extern __shared__ float shared[];
    const int lane = (int)threadIdx.x, warp = (int)threadIdx.y;
    float *normed = shared + warp * args.dim;
    const int per_token = args.n_heads + args.n_kv;
    const int64_t item = (int64_t)blockIdx.x * WARPS + warp;
    if (item < args.n_items) {
        const int64_t token = item / per_token;
        const int head = (int)(item - token * per_token), kv = head - args.n_heads;
        const int64_t q_idx = token * args.n_heads + head, k_idx = token * args.n_kv + kv;
        const T *from = kv < 0 ? args.qg + q_idx * 2 * args.dim : args.k_in + k_idx * args.dim;
        const T *w = kv < 0 ? args.q_norm : args.k_norm;
        const float scale = inverse_rms(from, args.dim, args.eps, lane);
        for (int i = lane; i < args.dim; i += 32) {
            const float value = __fmul_rn(simt_get(from, i), scale);
            const float weight = __fadd_rn(simt_get(w, i), 1.0f);
            normed[i] = simt_round<T>(__fmul_rn(value, weight));
        }
        gpu_syncwarp();
        rotate(&args, token, normed, kv < 0 ? args.q + q_idx * args.dim : args.k + k_idx * args.dim,
               lane);
    }
}

template <typename T>
static void text_qk_norm_rope(struct m2_gpu *gpu, const m2_text_qk_norm_rope_args *args)
{
    norm_rope<T> values = {};
    values.qg = (const T *)args->qg->data;
    values.k_in = (const T *)args->k_in->data;
    values.q_norm = (const T *)args->q_norm->data;
    values.k_norm = (const T *)args->k_norm->data;
    values.cos = (const T *)args->cos->data;
    values.sin = (const T *)args->sin->data;
    values.q = (T *)args->q->data;
    values.k = (T *)args->k->data;
    values.n_heads = (int)args->q->shape[1];
    values.n_kv = (int)args->k->shape[1];
    values.dim = (int)args->q->shape[2];
    values.n_rot = (int)args->cos->shape[1];
    values.n_items = args->q->shape[0] * (values.n_heads + values.n_kv);
    values.eps = args->eps;
    norm_rope_kernel<T><<<simt_blocks(values.n_items, WARPS), dim3(32, WARPS),
                          WARPS *(size_t)values.dim * sizeof(float), gpu->stream>>>(values);
}

extern "C" void m2_gpu_text_qk_norm_rope(const m2_ops *ops, const m2_text_qk_norm_rope_args *args)
{
    struct m2_gpu *gpu = m2_gpu_of(ops);
    if (args->q->shape[0] == 0) return;
    if (args->q->dtype == M2_BF16)
        text_qk_norm_rope<gpu_bf16>(gpu, args);
    else
        text_qk_norm_rope<float>(gpu, args);
    m2_gpu_launched(gpu, "text_qk_norm_rope");
}
