/* simt_mhc_read.cu - x = sum_i h_pre[i] * s[i], eight elements a thread.
 *
 * Numerics  f32 FMA, i ascending, one rounding: the bits of the CPU
 * Twin      backend/cpu/ref/mhc_read.c */
#include "backend/gpu/kernels/simt_common.cuh"

#include <assert.h>

#define THREADS 128

template <int IS_WIDE>
static __global__ void __launch_bounds__(THREADS)
    read_kernel(const gpu_bf16 *s, const gpu_bf16 *h_pre, gpu_bf16 *x, int width)
{
    const int64_t row = blockIdx.x;
    const int at = (blockIdx.y * THREADS + threadIdx.x) * SIMT_VECTOR;
    if (at >= width) return;
    float sum[SIMT_VECTOR] = {};
#pragma unroll
    for (int i = 0; i < M2_STREAMS; i++) {
        float values[SIMT_VECTOR];
        const float h = simt_get(h_pre, row * M2_STREAMS + i);
        simt_get_some<IS_WIDE>(s, (row * M2_STREAMS + i) * width + at, width - at, values);
#pragma unroll
        for (int j = 0; j < SIMT_VECTOR; j++) sum[j] = fmaf(h, values[j], sum[j]);
    }
    simt_put_some<IS_WIDE>(x, row * width + at, width - at, sum);
}

extern "C" void m2_gpu_mhc_read(const m2_ops *ops, const m2_mhc_read_args *args)
{
    struct m2_gpu *gpu = m2_gpu_of(ops);
    const int64_t n = args->s->shape[0];
    const int width = (int)args->s->shape[2], per_block = THREADS * SIMT_VECTOR;
    assert(args->s->dtype == M2_BF16 && args->s->shape[1] == M2_STREAMS);
    assert(m2_tensor_count(args->x) == n * width);
    if (n == 0) return;
    const dim3 grid((unsigned int)n, (width + per_block - 1) / per_block);
    SIMT_BY_WIDTH(simt_is_wide(args->s, width) && simt_is_wide(args->x, width), WIDE, {
        read_kernel<WIDE><<<grid, THREADS, 0, gpu->stream>>>((const gpu_bf16 *)args->s->data,
                                                             (const gpu_bf16 *)args->h_pre->data,
                                                             (gpu_bf16 *)args->x->data, width);
    });
    m2_gpu_launched(gpu, "mhc_read");
}
