/* simt_find_nonfinite.cu - *flag = 1 if any value is not finite.
 *
 * Order  every block that finds one stores the same 1, without an atomic
 * Twin   backend/cpu/ref/find_nonfinite.c */
#include "backend/gpu/kernels/simt_common.cuh"

#include <assert.h>

template <typename T, int IS_WIDE>
static __global__ void find_kernel(const T *x, int32_t *flag, int64_t n)
{
    int left, found = 0;
    const int64_t i = simt_vector_begin(n, &left);
    float value[SIMT_VECTOR];
    if (left == 0) return;
    simt_get_some<IS_WIDE>(x, i, left, value);
#pragma unroll
    for (int j = 0; j < SIMT_VECTOR; j++) found |= !(fabsf(value[j]) <= 3.402823466e38f);
    if (found) *flag = 1;
}

extern "C" void m2_gpu_find_nonfinite(const m2_ops *ops, const m2_find_nonfinite_args *args)
{
    struct m2_gpu *gpu = m2_gpu_of(ops);
    const int64_t n = m2_tensor_count(args->x);
    assert(args->x->dtype == M2_F32 || args->x->dtype == M2_BF16);
    assert(args->flag->dtype == M2_I32);
    if (n == 0) return;
    SIMT_BY_TYPE(args->x->dtype, T, SIMT_BY_WIDTH(simt_is_wide(args->x, 0), WIDE, {
                     find_kernel<T, WIDE><<<simt_vector_blocks(n), SIMT_THREADS, 0, gpu->stream>>>(
                         (const T *)args->x->data, (int32_t *)args->flag->data, n);
                 }));
    m2_gpu_launched(gpu, "find_nonfinite");
}
