/* simt_qk_norm_rope.cu - queries and keys normed per head and turned, values copied, rows put into
 * sequence order.
 *
 * In     qkv [n, (H + 2K) * d] in modality order, rope [n, 2 * n_rot] f32, seq [n] i32
 * Out    q [n, H, d], k and v [n, K, d] bf16, row r of qkv in row seq[r]
 * Why    one block a row reads the row's sines once for all heads; a head is held by 16 lanes (d up
 *        to 128) or 32 (up to 256), eight dims each, and its two halves meet in shared memory
 * Order  squares: eight in a chain a lane, then lanes by xor
 * Twin   backend/cpu/ref/qk_norm_rope.c */
#include "backend/gpu/kernels/simt_common.cuh"

#include <assert.h>

#define DIM_MAX 256

typedef struct qk_shape {
    int n_heads, n_kv, dim, n_rot;
    float eps;
    simt_groups groups;
} qk_shape;

typedef struct qk_pointers {
    const float *q_norm, *k_norm, *rope;
    const int32_t *seq;
    gpu_bf16 *q, *k, *v;
} qk_pointers;

/* Dims [first, first + 8) of the normed head `normed`, turned. */
static __device__ __forceinline__ void turn(const float *normed, const float *sines,
                                            const float *cosines, int n_rot, int first, int dim,
                                            float out[SIMT_VECTOR])
{
#pragma unroll
    for (int j = 0; j < SIMT_VECTOR; j++) {
        const int i = first + j < dim ? first + j : dim - 1;
        const int is_low = i < n_rot, is_turned = i < 2 * n_rot;
        const int pair = is_low ? i : is_turned ? i - n_rot : 0;
        const int other = !is_turned ? i : is_low ? i + n_rot : i - n_rot;
        const float sine = is_turned ? sines[pair] : 0.0f,
                    cosine = is_turned ? cosines[pair] : 1.0f;
        const float crossed = normed[other] * sine;
        out[j] = is_low ? normed[i] * cosine - crossed : normed[i] * cosine + crossed;
        if (!is_turned) out[j] = normed[i];
    }
}

template <typename T, int LANES, int IS_WIDE>
static __global__ void qk_kernel(const T *qkv, qk_pointers p, qk_shape shape)
{
    __shared__ float rope[DIM_MAX * 2];
    __shared__ float normed[SIMT_THREADS / LANES][LANES * SIMT_VECTOR + 1];
    const int64_t row = blockIdx.x;
    const int dim = shape.dim, n_rot = shape.n_rot;
    for (int i = threadIdx.x; i < 2 * n_rot; i += SIMT_THREADS)
        rope[i] = p.rope[row * 2 * n_rot + i];
    __syncthreads();

    const int lane = threadIdx.x % LANES, slot = threadIdx.x / LANES, first = lane * SIMT_VECTOR;
    const int left = dim - first, n_all = shape.n_heads + 2 * shape.n_kv;
    const int64_t to = p.seq[row], w_begin = simt_group_of(shape.groups, row) * (int64_t)dim;
    float *mine = normed[slot];
    for (int begin = 0; begin < n_all; begin += SIMT_THREADS / LANES) {
        const int asked = begin + slot;
        const int head = asked < n_all ? asked : n_all - 1; /* surplus lanes join in */
        const int is_q = head < shape.n_heads, is_v = head >= shape.n_heads + shape.n_kv;
        const int kv_head = head - shape.n_heads - (is_v ? shape.n_kv : 0);
        float value[SIMT_VECTOR] = { 0 };
        if (left > 0) simt_get_some<IS_WIDE>(qkv, (row * n_all + head) * dim + first, left, value);
        float sum = 0.0f;
#pragma unroll
        for (int j = 0; j < SIMT_VECTOR; j++) sum = fmaf(value[j], value[j], sum);
#pragma unroll
        for (int mask = LANES / 2; mask >= 1; mask /= 2) sum += gpu_shfl_xor(sum, mask);
        const float scale = 1.0f / sqrtf(sum / (float)dim + shape.eps);
        const float *w = (is_q ? p.q_norm : p.k_norm) + w_begin;
        gpu_syncwarp(); /* the head before has been read */
        if (left > 0 && !is_v) {
            float weight[SIMT_VECTOR];
            simt_get_some<IS_WIDE>(w, first, left, weight);
#pragma unroll
            for (int j = 0; j < SIMT_VECTOR; j++)
                mine[first + j] = (value[j] * scale) * (weight[j] + 1.0f);
        }
        gpu_syncwarp();
        if (left > 0 && asked < n_all) {
            if (!is_v) turn(mine, rope, rope + n_rot, n_rot, first, dim, value);
            gpu_bf16 *y = is_q ? p.q + (to * shape.n_heads + head) * dim
                               : (is_v ? p.v : p.k) + (to * shape.n_kv + kv_head) * dim;
            simt_put_some<IS_WIDE>(y, first, left, value);
        }
    }
}

template <typename T>
static void qk_launch(struct m2_gpu *gpu, const m2_qk_norm_rope_args *args, const qk_pointers *p,
                      const qk_shape *shape)
{
    const unsigned int n = (unsigned int)args->qkv->shape[0];
    const T *qkv = (const T *)args->qkv->data;
    const int dim = shape->dim;
    const int is_wide = simt_is_wide(args->qkv, dim) && simt_is_wide(args->q_norm, dim) &&
                        simt_is_wide(args->k_norm, dim) && simt_is_wide(args->q, dim) &&
                        simt_is_wide(args->k, dim) && simt_is_wide(args->v, dim);
    SIMT_BY_WIDTH(is_wide, WIDE, {
        if (dim <= 16 * SIMT_VECTOR)
            qk_kernel<T, 16, WIDE><<<n, SIMT_THREADS, 0, gpu->stream>>>(qkv, *p, *shape);
        else
            qk_kernel<T, 32, WIDE><<<n, SIMT_THREADS, 0, gpu->stream>>>(qkv, *p, *shape);
    });
}

extern "C" void m2_gpu_qk_norm_rope(const m2_ops *ops, const m2_qk_norm_rope_args *args)
{
    struct m2_gpu *gpu = m2_gpu_of(ops);
    const int64_t n = args->qkv->shape[0];
    qk_shape shape;
    shape.n_heads = (int)args->q->shape[1];
    shape.n_kv = (int)args->k->shape[1];
    shape.dim = (int)args->q->shape[2];
    shape.n_rot = (int)(args->rope->shape[1] / 2);
    shape.eps = args->eps;
    shape.groups = simt_groups_of(args->groups, n);
    assert(shape.dim <= DIM_MAX && 2 * shape.n_rot <= shape.dim);
    assert(args->qkv->shape[1] == (shape.n_heads + 2 * shape.n_kv) * (int64_t)shape.dim);
    assert(args->rope->dtype == M2_F32 && args->q_norm->dtype == M2_F32);
    const qk_pointers p = { (const float *)args->q_norm->data, (const float *)args->k_norm->data,
                            (const float *)args->rope->data,   (const int32_t *)args->seq->data,
                            (gpu_bf16 *)args->q->data,         (gpu_bf16 *)args->k->data,
                            (gpu_bf16 *)args->v->data };
    if (n == 0) return;
    SIMT_BY_TYPE(args->qkv->dtype, T, qk_launch<T>(gpu, args, &p, &shape));
    m2_gpu_launched(gpu, "qk_norm_rope");
}
