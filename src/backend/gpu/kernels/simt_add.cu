/* simt_add.cu - y = a + b (+ c), eight elements a thread.
 *
 * Numerics  f32 sum left to right, one rounding: the bits of the CPU
 * Twin      backend/cpu/ref/add.c */
#include "backend/gpu/kernels/simt_common.cuh"

#include <assert.h>

template <typename T, int IS_WIDE>
static __global__ void add_kernel(const T *a, const T *b, const T *c, T *y, int64_t n)
{
    int left;
    const int64_t i = simt_vector_begin(n, &left);
    float sum[SIMT_VECTOR], term[SIMT_VECTOR];
    if (left == 0) return;
    simt_get_some<IS_WIDE>(a, i, left, sum);
    simt_get_some<IS_WIDE>(b, i, left, term);
#pragma unroll
    for (int j = 0; j < SIMT_VECTOR; j++) sum[j] += term[j];
    if (c) {
        simt_get_some<IS_WIDE>(c, i, left, term);
#pragma unroll
        for (int j = 0; j < SIMT_VECTOR; j++) sum[j] += term[j];
    }
    simt_put_some<IS_WIDE>(y, i, left, sum);
}

extern "C" void m2_gpu_add(const m2_ops *ops, const m2_add_args *args)
{
    struct m2_gpu *gpu = m2_gpu_of(ops);
    const int64_t n = m2_tensor_count(args->y);
    assert(args->a->dtype == args->b->dtype && args->a->dtype == args->y->dtype);
    assert(m2_tensor_count(args->a) == n);
    if (n == 0) return;
    const int is_wide = simt_is_wide(args->a, 0) && simt_is_wide(args->b, 0) &&
                        simt_is_wide(args->c, 0) && simt_is_wide(args->y, 0);
    SIMT_BY_TYPE(args->y->dtype, T, SIMT_BY_WIDTH(is_wide, WIDE, {
                     add_kernel<T, WIDE><<<simt_vector_blocks(n), SIMT_THREADS, 0, gpu->stream>>>(
                         (const T *)args->a->data, (const T *)args->b->data,
                         (const T *)(args->c ? args->c->data : 0), (T *)args->y->data, n);
                 }));
    m2_gpu_launched(gpu, "add");
}
