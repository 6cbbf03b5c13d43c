/* simt_convert.cu - y = x in y's type: f32 to bf16, bf16 to f32, or a plain copy.
 *
 * Twin  backend/cpu/ref/convert.c */
#include "backend/gpu/kernels/simt_common.cuh"

#include <assert.h>

template <typename T, typename Y, int IS_WIDE>
static __global__ void convert_kernel(const T *x, Y *y, int64_t n)
{
    int left;
    const int64_t i = simt_vector_begin(n, &left);
    float value[SIMT_VECTOR];
    if (left == 0) return;
    simt_get_some<IS_WIDE>(x, i, left, value);
    simt_put_some<IS_WIDE>(y, i, left, value);
}

extern "C" void m2_gpu_convert(const m2_ops *ops, const m2_convert_args *args)
{
    struct m2_gpu *gpu = m2_gpu_of(ops);
    const int64_t n = m2_tensor_count(args->y);
    assert(m2_tensor_count(args->x) == n);
    if (n == 0) return;
    if (args->x->dtype == args->y->dtype) {
        gpuMemcpyAsync(args->y->data, args->x->data, m2_tensor_bytes(args->x),
                       gpuMemcpyDeviceToDevice, gpu->stream);
        m2_gpu_launched(gpu, "convert");
        return;
    }
    const int is_wide = simt_is_wide(args->x, 0) && simt_is_wide(args->y, 0);
    SIMT_BY_WIDTH(is_wide, WIDE, {
        if (args->x->dtype == M2_BF16) {
            assert(args->y->dtype == M2_F32);
            convert_kernel<gpu_bf16, float, WIDE>
                <<<simt_vector_blocks(n), SIMT_THREADS, 0, gpu->stream>>>(
                    (const gpu_bf16 *)args->x->data, (float *)args->y->data, n);
        } else {
            assert(args->x->dtype == M2_F32 && args->y->dtype == M2_BF16);
            convert_kernel<float, gpu_bf16, WIDE>
                <<<simt_vector_blocks(n), SIMT_THREADS, 0, gpu->stream>>>(
                    (const float *)args->x->data, (gpu_bf16 *)args->y->data, n);
        }
    });
    m2_gpu_launched(gpu, "convert");
}
