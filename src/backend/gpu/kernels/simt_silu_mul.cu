/* simt_silu_mul.cu - y = round(round(silu(gate)) * up), eight elements a thread.
 *
 * Twin     backend/cpu/ref/silu_mul.c */
#include "backend/gpu/kernels/simt_parts.cuh"

template <typename T, int IS_WIDE>
static __global__ void silu_mul_kernel(const T *gate, const T *up, T *y, int64_t n)
{
    int left;
    const int64_t i = simt_vector_begin(n, &left);
    float a[SIMT_VECTOR], b[SIMT_VECTOR];
    if (left == 0) return;
    simt_get_some<IS_WIDE>(gate, i, left, a);
    simt_get_some<IS_WIDE>(up, i, left, b);
#pragma unroll
    for (int j = 0; j < SIMT_VECTOR; j++)
        a[j] = __fmul_rn(simt_round<T>(simt_silu_to<T>(a[j])), b[j]);
    simt_put_some<IS_WIDE>(y, i, left, a);
}

extern "C" void m2_gpu_silu_mul(const m2_ops *ops, const m2_silu_mul_args *args)
{
    struct m2_gpu *gpu = m2_gpu_of(ops);
    const int64_t n = m2_tensor_count(args->y);
    if (n == 0) return;
    const int is_wide =
        simt_is_wide(args->gate, 0) && simt_is_wide(args->up, 0) && simt_is_wide(args->y, 0);
    SIMT_BY_TYPE(
        args->y->dtype, T, SIMT_BY_WIDTH(is_wide, WIDE, {
            silu_mul_kernel<T, WIDE><<<simt_vector_blocks(n), SIMT_THREADS, 0, gpu->stream>>>(
                (const T *)args->gate->data, (const T *)args->up->data, (T *)args->y->data, n);
        }));
    m2_gpu_launched(gpu, "silu_mul");
}
