/* simt_qk_norm_rope.cu - queries and keys normed per head and turned, values copied, rows put into
 * sequence order.
 *
 * In     qkv [n, (H + 2K) * d] in modality order, rope [n, 2 * n_rot] f32, seq [n] i32
 * Out    q [n, H, d], k and v [n, K, d] bf16, row r of qkv in row seq[r]
 * Why    a head is held by 16 lanes (d up to 128) or 32 (up to 256), eight dims each.  A lane has the
 *        same dims of every head of a row, so their sines and weights are read once, and where n_rot
 *        is a multiple of eight the other half of a pair is one shuffle away; the next head is on its
 *        way while one is turned.  Other shapes exchange halves in shared memory
 * Order  squares: eight in a chain a lane, then lanes by xor
 * Twin   backend/cpu/ref/qk_norm_rope.c */
#include "backend/gpu/kernels/simt_common.cuh"

#include <assert.h>

#define DIM_MAX M2_GPU_HEAD_DIM_MAX

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

/* ---- wide rows, n_rot a multiple of eight ------------------------------------------------------- */

#define WIDE_THREADS 192 /* 12 heads of 128 at a time: the 72 of the release in six rounds */

/* What a lane needs of its eight dims, the same for all heads of a row. */
typedef struct lane_dims {
    float cosine[SIMT_VECTOR], sine[SIMT_VECTOR]; /* the sine with the sign of this half */
    float q_weight[SIMT_VECTOR], k_weight[SIMT_VECTOR];
    int other; /* lane of the other half, itself where nothing turns */
} lane_dims;

static __device__ __forceinline__ void load_dims(const qk_pointers &p, const qk_shape &shape,
                                                 int64_t row, int lane, lane_dims *dims)
{
    const int half = shape.n_rot / SIMT_VECTOR, first = lane * SIMT_VECTOR;
    const int is_low = lane < half, is_turned = lane < 2 * half;
    const float *sines = p.rope + row * 2 * shape.n_rot;
    const int64_t w_begin = simt_group_of(shape.groups, row) * (int64_t)shape.dim;
    dims->other = !is_turned ? lane : is_low ? lane + half : lane - half;
#pragma unroll
    for (int j = 0; j < SIMT_VECTOR; j++) {
        const int pair = is_low ? first + j : first + j - shape.n_rot;
        const float sine = is_turned ? sines[pair] : 0.0f;
        dims->sine[j] = is_low ? -sine : sine;
        dims->cosine[j] = is_turned ? sines[shape.n_rot + pair] : 1.0f;
        const int is_dim = first < shape.dim;
        dims->q_weight[j] = is_dim ? p.q_norm[w_begin + first + j] + 1.0f : 0.0f;
        dims->k_weight[j] = is_dim ? p.k_norm[w_begin + first + j] + 1.0f : 0.0f;
    }
}

/* The lane's dims of one query or key head, from and to `value`. */
template <int LANES>
static __device__ __forceinline__ void norm_and_turn(const lane_dims &dims, const qk_shape &shape,
                                                     int is_q, float value[SIMT_VECTOR])
{
    float sum = 0.0f;
#pragma unroll
    for (int j = 0; j < SIMT_VECTOR; j++) sum = fmaf(value[j], value[j], sum);
#pragma unroll
    for (int mask = LANES / 2; mask >= 1; mask /= 2) sum += gpu_shfl_xor(sum, mask);
    const float scale = 1.0f / sqrtf(sum / (float)shape.dim + shape.eps);
    const int source = (threadIdx.x % SIMT_WARP & ~(LANES - 1)) + dims.other;
#pragma unroll
    for (int j = 0; j < SIMT_VECTOR; j++) {
        value[j] = (value[j] * scale) * (is_q ? dims.q_weight[j] : dims.k_weight[j]);
        const float other = gpu_shfl(value[j], source);
        value[j] = fmaf(value[j], dims.cosine[j], other * dims.sine[j]);
    }
}

template <int LANES>
static __global__ void __launch_bounds__(WIDE_THREADS, 4)
    qk_wide_kernel(const gpu_bf16 *qkv, qk_pointers p, qk_shape shape)
{
    const int slots = WIDE_THREADS / LANES;
    const int64_t row = blockIdx.x;
    const int lane = threadIdx.x % LANES, slot = threadIdx.x / LANES, first = lane * SIMT_VECTOR;
    const int n_turned = shape.n_heads + shape.n_kv, n_all = n_turned + shape.n_kv;
    const int n_own = first < shape.dim ? n_all : 0; /* heads that this lane moves */
    const int64_t to = p.seq[row];
    const gpu_bf16 *from = qkv + row * n_all * shape.dim + first;
    const uint4 none = make_uint4(0, 0, 0, 0);
    uint4 next = slot < n_own ? *(const uint4 *)(from + slot * shape.dim) : none;
    uint4 later = slot + slots < n_own ? *(const uint4 *)(from + (slot + slots) * shape.dim) : none;
    lane_dims dims;
    load_dims(p, shape, row, lane, &dims);
    for (int begin = 0; begin < n_all; begin += slots) {
        const int head = begin + slot, ahead = head + 2 * slots;
        const int is_q = head < shape.n_heads, is_v = head >= n_turned;
        const uint4 raw = next;
        next = later;
        if (ahead < n_own) later = *(const uint4 *)(from + ahead * shape.dim);
        float value[SIMT_VECTOR];
        simt_unpack8(raw, value);
        norm_and_turn<LANES>(dims, shape, is_q, value);
        const int64_t kv_head = to * shape.n_kv + head - (is_v ? n_turned : shape.n_heads);
        if (head >= n_own) continue;
        if (is_v)
            *(uint4 *)(p.v + kv_head * shape.dim + first) = raw;
        else if (is_q)
            simt_put8(p.q, (to * shape.n_heads + head) * shape.dim + first, value);
        else
            simt_put8(p.k, kv_head * shape.dim + first, value);
    }
}

/* ---- any shape -------------------------------------------------------------------------------------- */

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

template <int LANES>
static __global__ void qk_any_kernel(const gpu_bf16 *qkv, qk_pointers p, qk_shape shape)
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
        if (left > 0) simt_get_some<0>(qkv, (row * n_all + head) * dim + first, left, value);
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
            simt_get_some<0>(w, first, left, weight);
#pragma unroll
            for (int j = 0; j < SIMT_VECTOR; j++)
                mine[first + j] = (value[j] * scale) * (weight[j] + 1.0f);
        }
        gpu_syncwarp();
        if (left > 0 && asked < n_all) {
            if (!is_v) turn(mine, rope, rope + n_rot, n_rot, first, dim, value);
            gpu_bf16 *y = is_q ? p.q + (to * shape.n_heads + head) * dim
                               : (is_v ? p.v : p.k) + (to * shape.n_kv + kv_head) * dim;
            simt_put_some<0>(y, first, left, value);
        }
    }
}

static void qk_launch(struct m2_gpu *gpu, const m2_qk_norm_rope_args *args, const qk_pointers *p,
                      const qk_shape *shape)
{
    const unsigned int n = (unsigned int)args->qkv->shape[0];
    const gpu_bf16 *qkv = (const gpu_bf16 *)args->qkv->data;
    const int dim = shape->dim, is_narrow = dim <= 16 * SIMT_VECTOR;
    const int is_wide = shape->n_rot % SIMT_VECTOR == 0 && simt_is_wide(args->qkv, dim) &&
                        simt_is_wide(args->q, dim) && simt_is_wide(args->k, dim) &&
                        simt_is_wide(args->v, dim);
    if (is_wide && is_narrow)
        qk_wide_kernel<16><<<n, WIDE_THREADS, 0, gpu->stream>>>(qkv, *p, *shape);
    else if (is_wide)
        qk_wide_kernel<32><<<n, WIDE_THREADS, 0, gpu->stream>>>(qkv, *p, *shape);
    else if (is_narrow)
        qk_any_kernel<16><<<n, SIMT_THREADS, 0, gpu->stream>>>(qkv, *p, *shape);
    else
        qk_any_kernel<32><<<n, SIMT_THREADS, 0, gpu->stream>>>(qkv, *p, *shape);
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
    assert(args->qkv->dtype == M2_BF16);
    assert(args->rope->dtype == M2_F32 && args->q_norm->dtype == M2_F32);
    const qk_pointers p = { (const float *)args->q_norm->data, (const float *)args->k_norm->data,
                            (const float *)args->rope->data,   (const int32_t *)args->seq->data,
                            (gpu_bf16 *)args->q->data,         (gpu_bf16 *)args->k->data,
                            (gpu_bf16 *)args->v->data };
    if (n == 0) return;
    qk_launch(gpu, args, &p, &shape);
    m2_gpu_launched(gpu, "qk_norm_rope");
}
