/* simt_swiglu7.cu - y[i] = swiglu7(x[2i], x[2i + 1]): pairs of gate and linear part side by side, so
 * rows need not be told apart.
 *
 * Twin  backend/cpu/ref/swiglu7.c */
#include "backend/gpu/kernels/simt_common.cuh"

#include <assert.h>

template <typename T, int IS_WIDE>
static __global__ void swiglu7_kernel(const T *x, T *y, int64_t n)
{
    int left;
    const int64_t i = simt_vector_begin(n, &left);
    float pairs[2 * SIMT_VECTOR], value[SIMT_VECTOR];
    if (left == 0) return;
    simt_get_some<IS_WIDE>(x, 2 * i, 2 * left, pairs);
    simt_get_some<IS_WIDE>(x, 2 * i + SIMT_VECTOR, 2 * left - SIMT_VECTOR, pairs + SIMT_VECTOR);
#pragma unroll
    for (int j = 0; j < SIMT_VECTOR; j++) value[j] = simt_swiglu7(pairs[2 * j], pairs[2 * j + 1]);
    simt_put_some<IS_WIDE>(y, i, left, value);
}

extern "C" void m2_gpu_swiglu7(const m2_ops *ops, const m2_swiglu7_args *args)
{
    struct m2_gpu *gpu = m2_gpu_of(ops);
    const int64_t n = m2_tensor_count(args->y);
    assert(args->x->shape[1] == 2 * args->y->shape[1] && args->x->shape[0] == args->y->shape[0]);
    assert(args->x->dtype == args->y->dtype);
    if (n == 0) return;
    const int is_wide = simt_is_wide(args->x, 0) && simt_is_wide(args->y, 0);
    SIMT_BY_TYPE(args->y->dtype, T, SIMT_BY_WIDTH(is_wide, WIDE, {
                     swiglu7_kernel<T, WIDE>
                         <<<simt_vector_blocks(n), SIMT_THREADS, 0, gpu->stream>>>(
                             (const T *)args->x->data, (T *)args->y->data, n);
                 }));
    m2_gpu_launched(gpu, "swiglu7");
}
