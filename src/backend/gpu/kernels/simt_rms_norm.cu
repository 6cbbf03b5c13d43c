/* simt_rms_norm.cu - y = (x * rsqrt(mean(x^2) + eps)) * (w[g] + offset), row by row.
 *
 * Why    rows of bf16 up to 4096 stay in the registers of 32 lanes: every load is on its way at once,
 *        and nobody waits at a barrier.  Other short rows (heads) take 32 lanes too, long ones a whole
 *        block
 * Order  squares in chains of eight, then a lane's chains, then lanes; which kernel it is, the rows'
 *        length and type decide alone
 * Twin   backend/cpu/ref/rms_norm.c */
#include "backend/gpu/kernels/simt_common.cuh"

#include <assert.h>

#define SHORT_ROW 1024
#define HELD_ROW  (16 * 256)

typedef struct norm_shape {
    int64_t n_rows, rows_per_item;
    int dim;
    float eps, weight_offset;
    simt_groups groups;
} norm_shape;

/* A warp holds a row of up to N_UNITS * 256 elements. */
template <typename Y, int N_UNITS>
static __global__ void held_kernel(const gpu_bf16 *x, simt_any w, Y *y, norm_shape shape)
{
    const int lane = threadIdx.x % SIMT_WARP;
    const int64_t asked = (int64_t)blockIdx.x * SIMT_WARPS + threadIdx.x / SIMT_WARP;
    const int64_t row = asked < shape.n_rows ? asked : shape.n_rows - 1;
    const int64_t begin = row * shape.dim;
    uint4 raw[N_UNITS];
    float sum = 0.0f;
#pragma unroll
    for (int u = 0; u < N_UNITS; u++) {
        const int i = (u * SIMT_WARP + lane) * SIMT_VECTOR;
        raw[u] = make_uint4(0, 0, 0, 0);
        if (i < shape.dim) raw[u] = *(const uint4 *)(x + begin + i);
    }
#pragma unroll
    for (int u = 0; u < N_UNITS; u++) {
        float value[SIMT_VECTOR], chain = 0.0f;
        simt_unpack8(raw[u], value);
#pragma unroll
        for (int j = 0; j < SIMT_VECTOR; j++) chain = fmaf(value[j], value[j], chain);
        sum += chain;
    }
    const float scale = 1.0f / sqrtf(simt_warp_sum(sum) / (float)shape.dim + shape.eps);
    const int64_t w_begin =
        w.data ? simt_group_of(shape.groups, row / shape.rows_per_item) * (int64_t)shape.dim : 0;
#pragma unroll
    for (int u = 0; u < N_UNITS; u++) {
        const int i = (u * SIMT_WARP + lane) * SIMT_VECTOR;
        float value[SIMT_VECTOR], weight[SIMT_VECTOR];
        if (i >= shape.dim || asked >= shape.n_rows) continue;
        simt_unpack8(raw[u], value);
        if (w.data) simt_any_get_some<1>(w, w_begin + i, SIMT_VECTOR, weight);
#pragma unroll
        for (int j = 0; j < SIMT_VECTOR; j++) {
            value[j] *= scale;
            if (w.data) value[j] *= weight[j] + shape.weight_offset;
        }
        simt_put8(y, begin + i, value);
    }
}

/* LANES threads, 32 or SIMT_THREADS, walk one row. */
template <typename T, typename Y, int LANES, int IS_WIDE>
static __global__ void norm_kernel(const T *x, simt_any w, Y *y, norm_shape shape)
{
    const int lane = threadIdx.x % LANES;
    const int64_t asked = (int64_t)blockIdx.x * (SIMT_THREADS / LANES) + threadIdx.x / LANES;
    const int is_row = asked < shape.n_rows;
    const int64_t row =
        is_row ? asked : shape.n_rows - 1; /* surplus lanes join in and keep still */
    const T *from = x + row * shape.dim;
    Y *to = y + row * shape.dim;
    float sum = 0.0f;
    for (int i = lane * SIMT_VECTOR; i < shape.dim; i += LANES * SIMT_VECTOR) {
        float value[SIMT_VECTOR];
        simt_get_some<IS_WIDE>(from, i, shape.dim - i, value);
#pragma unroll
        for (int j = 0; j < SIMT_VECTOR; j++) sum = fmaf(value[j], value[j], sum);
    }
    sum = LANES == SIMT_WARP ? simt_warp_sum(sum) : simt_block_sum(sum);
    const float scale = 1.0f / sqrtf(sum / (float)shape.dim + shape.eps);
    const int64_t w_begin =
        w.data ? simt_group_of(shape.groups, row / shape.rows_per_item) * (int64_t)shape.dim : 0;
    for (int i = lane * SIMT_VECTOR; is_row && i < shape.dim; i += LANES * SIMT_VECTOR) {
        float value[SIMT_VECTOR], weight[SIMT_VECTOR];
        const int left = shape.dim - i;
        simt_get_some<IS_WIDE>(from, i, left, value);
        if (w.data) simt_any_get_some<IS_WIDE>(w, w_begin + i, left, weight);
#pragma unroll
        for (int j = 0; j < SIMT_VECTOR; j++) {
            value[j] *= scale;
            if (w.data) value[j] *= weight[j] + shape.weight_offset;
        }
        simt_put_some<IS_WIDE>(to, i, left, value);
    }
}

template <typename T, typename Y, int LANES, int IS_WIDE>
static void norm_rows(struct m2_gpu *gpu, const m2_rms_norm_args *args, const norm_shape *shape)
{
    const int per_block = SIMT_THREADS / LANES;
    const unsigned int blocks = (unsigned int)((shape->n_rows + per_block - 1) / per_block);
    norm_kernel<T, Y, LANES, IS_WIDE><<<blocks, SIMT_THREADS, 0, gpu->stream>>>(
        (const T *)args->x->data, simt_any_of(args->w), (Y *)args->y->data, *shape);
}

static int is_wide_norm(const m2_rms_norm_args *args, int dim)
{
    return simt_is_wide(args->x, dim) && simt_is_wide(args->y, dim) && simt_is_wide(args->w, dim);
}

/* 1 if the rows can be held; else nothing is done. */
template <typename Y>
static int norm_held(struct m2_gpu *gpu, const m2_rms_norm_args *args, const norm_shape *shape)
{
    const int dim = shape->dim;
    const gpu_bf16 *x = (const gpu_bf16 *)args->x->data;
    const simt_any w = simt_any_of(args->w);
    Y *y = (Y *)args->y->data;
    const unsigned int blocks = (unsigned int)((shape->n_rows + SIMT_WARPS - 1) / SIMT_WARPS);
    if (args->x->dtype != M2_BF16 || dim > HELD_ROW || !is_wide_norm(args, dim)) return 0;
    if (dim <= 256)
        held_kernel<Y, 1><<<blocks, SIMT_THREADS, 0, gpu->stream>>>(x, w, y, *shape);
    else if (dim <= 4 * 256)
        held_kernel<Y, 4><<<blocks, SIMT_THREADS, 0, gpu->stream>>>(x, w, y, *shape);
    else if (dim <= 12 * 256)
        held_kernel<Y, 12><<<blocks, SIMT_THREADS, 0, gpu->stream>>>(x, w, y, *shape);
    else
        held_kernel<Y, 16><<<blocks, SIMT_THREADS, 0, gpu->stream>>>(x, w, y, *shape);
    return 1;
}

/* Any row.  Short rows of bf16 that are wide have been held. */
template <typename Y>
static void norm_walked(struct m2_gpu *gpu, const m2_rms_norm_args *args, const norm_shape *shape)
{
    const int is_bf16 = args->x->dtype == M2_BF16, is_short = shape->dim <= SHORT_ROW;
    SIMT_BY_WIDTH(is_wide_norm(args, shape->dim), WIDE, {
        if (is_bf16 && is_short)
            norm_rows<gpu_bf16, Y, SIMT_WARP, 0>(gpu, args, shape);
        else if (is_bf16)
            norm_rows<gpu_bf16, Y, SIMT_THREADS, WIDE>(gpu, args, shape);
        else if (is_short)
            norm_rows<float, Y, SIMT_WARP, WIDE>(gpu, args, shape);
        else
            norm_rows<float, Y, SIMT_THREADS, WIDE>(gpu, args, shape);
    });
}

extern "C" void m2_gpu_rms_norm(const m2_ops *ops, const m2_rms_norm_args *args)
{
    struct m2_gpu *gpu = m2_gpu_of(ops);
    const m2_tensor *x = args->x;
    norm_shape shape;
    shape.dim = (int)x->shape[x->n_dims - 1];
    shape.n_rows = shape.dim ? m2_tensor_count(x) / shape.dim : 0;
    const int64_t n_items = x->n_dims == 1 ? 1 : x->shape[0];
    assert(m2_tensor_count(args->y) == m2_tensor_count(x));
    if (shape.n_rows == 0) return;
    shape.rows_per_item = shape.n_rows / n_items;
    shape.eps = args->eps;
    shape.weight_offset = args->weight_offset;
    shape.groups = simt_groups_of(args->groups, n_items);
    int is_done = 0;
    SIMT_BY_TYPE(args->y->dtype, Y, is_done = norm_held<Y>(gpu, args, &shape));
    if (!is_done)
        SIMT_BY_TYPE(args->y->dtype, Y, norm_walked<Y>(gpu, args, &shape));
    m2_gpu_launched(gpu, "rms_norm");
}
