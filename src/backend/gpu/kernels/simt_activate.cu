/* simt_activate.cu - y = activation(x), rounded to y's type.
 *
 * Twin  backend/cpu/ref/activate.c */
#include "backend/gpu/kernels/simt_common.cuh"

#include <assert.h>

template <typename T, typename Y, int IS_WIDE>
static __global__ void activate_kernel(const T *x, m2_activation activation, Y *y, int64_t n)
{
    int left;
    const int64_t i = simt_vector_begin(n, &left);
    float value[SIMT_VECTOR];
    if (left == 0) return;
    simt_get_some<IS_WIDE>(x, i, left, value);
#pragma unroll
    for (int j = 0; j < SIMT_VECTOR; j++) value[j] = simt_activate(activation, value[j]);
    simt_put_some<IS_WIDE>(y, i, left, value);
}

extern "C" void m2_gpu_activate(const m2_ops *ops, const m2_activate_args *args)
{
    struct m2_gpu *gpu = m2_gpu_of(ops);
    const int64_t n = m2_tensor_count(args->y);
    assert(m2_tensor_count(args->x) == n);
    if (n == 0) return;
    const int is_wide = simt_is_wide(args->x, 0) && simt_is_wide(args->y, 0);
    SIMT_BY_TYPE(args->x->dtype, T,
                 SIMT_BY_TYPE(args->y->dtype, Y, SIMT_BY_WIDTH(is_wide, WIDE, {
                                  activate_kernel<T, Y, WIDE>
                                      <<<simt_vector_blocks(n), SIMT_THREADS, 0, gpu->stream>>>(
                                          (const T *)args->x->data, args->activation,
                                          (Y *)args->y->data, n);
                              })));
    m2_gpu_launched(gpu, "activate");
}
