/* simt_mean_rows.cu - y = (sum of x[idx[i]] in the order of idx) * (1 / n), one thread a column.
 *
 * Numerics  the rounded 1 / n, not a division by n, as in the twin
 * Twin      backend/cpu/ref/mean_rows.c */
#include "backend/gpu/kernels/simt_common.cuh"

#include <assert.h>

template <typename T>
static __global__ void mean_kernel(const T *x, const int32_t *idx, T *y, int64_t n, int64_t width,
                                   float scale)
{
    const int64_t i = (int64_t)blockIdx.x * SIMT_THREADS + threadIdx.x;
    float sum = 0.0f;
    if (i >= width) return;
    for (int64_t r = 0; r < n; r++) sum += simt_get(x, idx[r] * width + i);
    simt_put(y, i, __fmul_rn(sum, scale));
}

extern "C" void m2_gpu_mean_rows(const m2_ops *ops, const m2_mean_rows_args *args)
{
    struct m2_gpu *gpu = m2_gpu_of(ops);
    const int64_t n = args->idx->shape[0], width = args->x->shape[1];
    const float scale = n > 0 ? 1.0f / (float)n : 0.0f;
    assert(m2_tensor_count(args->y) == width && args->y->dtype == args->x->dtype);
    if (width == 0) return;
    const unsigned int blocks = (unsigned int)((width + SIMT_THREADS - 1) / SIMT_THREADS);
    SIMT_BY_TYPE(args->x->dtype, T, {
        mean_kernel<T><<<blocks, SIMT_THREADS, 0, gpu->stream>>>(
            (const T *)args->x->data, (const int32_t *)args->idx->data, (T *)args->y->data, n,
            width, scale);
    });
    m2_gpu_launched(gpu, "mean_rows");
}
