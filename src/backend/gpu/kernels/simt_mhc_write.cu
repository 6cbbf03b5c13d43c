/* simt_mhc_write.cu - the streams after a half layer: mixed, then the layer's output.
 *
 * A thread owns eight columns of a row in all four streams and reads them all before it writes one,
 * since s_out may be s.  Nothing is reused: memory is the limit, and caches are passed by.
 *
 * Numerics  f32 FMA, sources ascending, then the output; one rounding: the bits of the CPU
 * Twin      backend/cpu/ref/mhc_write.c       Speed  bench/gpu/bench_mhc.cu */
#include "backend/gpu/kernels/simt_common.cuh"

#include <assert.h>

#define THREADS 128

/* As simt_get_some and simt_put_some, for memory that is touched once. */
template <int IS_WIDE>
static __device__ __forceinline__ void get_once(const gpu_bf16 *x, int64_t i, int n,
                                                float (&out)[SIMT_VECTOR])
{
    if (!IS_WIDE || n < SIMT_VECTOR) {
        simt_get_some<0>(x, i, n, out);
        return;
    }
    const uint4 raw = gpu_load_once((const uint4 *)(x + i));
    simt_get8((const gpu_bf16 *)&raw, 0, out);
}

template <int IS_WIDE>
static __device__ __forceinline__ void put_once(gpu_bf16 *x, int64_t i, int n,
                                                const float (&in)[SIMT_VECTOR])
{
    if (!IS_WIDE || n < SIMT_VECTOR) {
        simt_put_some<0>(x, i, n, in);
        return;
    }
    uint4 raw;
    simt_put8((gpu_bf16 *)&raw, 0, in);
    gpu_store_once((uint4 *)(x + i), raw);
}

template <int IS_WIDE>
static __global__ void __launch_bounds__(THREADS)
    write_kernel(const gpu_bf16 *s, const gpu_bf16 *h_res, const gpu_bf16 *h_post,
                 const gpu_bf16 *o, gpu_bf16 *s_out, int width)
{
    const int64_t row = blockIdx.x;
    const int at = (blockIdx.y * THREADS + threadIdx.x) * SIMT_VECTOR;
    if (at >= width) return;
    float old[M2_STREAMS][SIMT_VECTOR], added[SIMT_VECTOR];
#pragma unroll
    for (int j = 0; j < M2_STREAMS; j++)
        get_once<IS_WIDE>(s, (row * M2_STREAMS + j) * width + at, width - at, old[j]);
    get_once<IS_WIDE>(o, row * width + at, width - at, added);
#pragma unroll
    for (int i = 0; i < M2_STREAMS; i++) {
        const int64_t target = row * M2_STREAMS + i;
        float sum[SIMT_VECTOR] = {};
#pragma unroll
        for (int j = 0; j < M2_STREAMS; j++) {
            const float h = simt_get(h_res, target * M2_STREAMS + j);
#pragma unroll
            for (int e = 0; e < SIMT_VECTOR; e++) sum[e] = fmaf(h, old[j][e], sum[e]);
        }
        const float post = simt_get(h_post, target);
#pragma unroll
        for (int e = 0; e < SIMT_VECTOR; e++) sum[e] = fmaf(post, added[e], sum[e]);
        put_once<IS_WIDE>(s_out, target * width + at, width - at, sum);
    }
}

extern "C" void m2_gpu_mhc_write(const m2_ops *ops, const m2_mhc_write_args *args)
{
    struct m2_gpu *gpu = m2_gpu_of(ops);
    const int64_t n = args->s->shape[0];
    const int width = (int)args->s->shape[2], per_block = THREADS * SIMT_VECTOR;
    assert(args->s->dtype == M2_BF16 && args->s->shape[1] == M2_STREAMS);
    assert(m2_tensor_count(args->o) == n * width);
    if (n == 0) return;
    const dim3 grid((unsigned int)n, (width + per_block - 1) / per_block);
    const int is_wide = simt_is_wide(args->s, width) && simt_is_wide(args->o, width) &&
                        simt_is_wide(args->s_out, width);
    SIMT_BY_WIDTH(is_wide, WIDE, {
        write_kernel<WIDE><<<grid, THREADS, 0, gpu->stream>>>(
            (const gpu_bf16 *)args->s->data, (const gpu_bf16 *)args->h_res->data,
            (const gpu_bf16 *)args->h_post->data, (const gpu_bf16 *)args->o->data,
            (gpu_bf16 *)args->s_out->data, width);
    });
    m2_gpu_launched(gpu, "mhc_write");
}
