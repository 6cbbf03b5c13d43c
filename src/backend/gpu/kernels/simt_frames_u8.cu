/* simt_frames_u8.cu - u8 = trunc(clamp(x * 0.5 + 0.5, 0, 1) * 255), eight values a thread.
 *
 * Twin     backend/cpu/ref/frames_u8.c */
#include "backend/gpu/kernels/simt_common.cuh"

static __device__ __forceinline__ unsigned int pixel_of(float value)
{
    const float x = __fadd_rn(__fmul_rn(value, 0.5f), 0.5f);
    const float low = x > 0.0f ? x : 0.0f; /* a NaN gives 0 */
    const float clamped = low < 1.0f ? low : 1.0f;
    return (unsigned int)(clamped * 255.0f); /* truncated, not rounded */
}

template <typename T, int IS_WIDE>
static __global__ void frames_u8_kernel(const T *x, uint8_t *y, int64_t n)
{
    int left;
    const int64_t i = simt_vector_begin(n, &left);
    float v[SIMT_VECTOR];
    if (left == 0) return;
    simt_get_some<IS_WIDE>(x, i, left, v);
    if (IS_WIDE && left == SIMT_VECTOR) {
        unsigned int words[2] = { 0, 0 };
#pragma unroll
        for (int j = 0; j < SIMT_VECTOR; j++) words[j / 4] |= pixel_of(v[j]) << (j % 4 * 8);
        *(uint2 *)(y + i) = make_uint2(words[0], words[1]);
    } else {
#pragma unroll
        for (int j = 0; j < SIMT_VECTOR; j++)
            if (j < left) y[i + j] = (uint8_t)pixel_of(v[j]);
    }
}

extern "C" void m2_gpu_frames_u8(const m2_ops *ops, const m2_frames_u8_args *args)
{
    struct m2_gpu *gpu = m2_gpu_of(ops);
    const int64_t n = m2_tensor_count(args->x);
    if (n == 0) return;
    const int is_wide = simt_is_wide(args->x, 0) && (uintptr_t)args->y->data % 8 == 0;
    SIMT_BY_TYPE(args->x->dtype, T, SIMT_BY_WIDTH(is_wide, WIDE, {
                     frames_u8_kernel<T, WIDE>
                         <<<simt_vector_blocks(n), SIMT_THREADS, 0, gpu->stream>>>(
                             (const T *)args->x->data, (uint8_t *)args->y->data, n);
                 }));
    m2_gpu_launched(gpu, "frames_u8");
}
