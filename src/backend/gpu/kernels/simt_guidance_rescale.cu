/* simt_guidance_rescale.cu - v *= r * std(cond) / max(std(v), 1e-6) + (1 - r), one block a channel.
 *
 * Numerics  means and squares in f64, as in the twin; thread t adds elements t, t + 256 ..., threads
 *           join by halves
 * Twin      backend/cpu/ref/guidance_rescale.c */
#include "backend/gpu/kernels/simt_common.cuh"

#include <assert.h>

/* All threads of the block get the sum. */
static __device__ double block_sum(double *shared, double value)
{
    __syncthreads(); /* what a call before this one left has been read */
    shared[threadIdx.x] = value;
    __syncthreads();
    for (int half = SIMT_THREADS / 2; half >= 1; half /= 2) {
        if (threadIdx.x < half) shared[threadIdx.x] += shared[threadIdx.x + half];
        __syncthreads();
    }
    return shared[0];
}

static __device__ float deviation(double *shared, const float *x, int64_t n, int64_t stride)
{
    double sum = 0, squares = 0;
    for (int64_t i = threadIdx.x; i < n; i += SIMT_THREADS) sum += (double)x[i * stride];
    const double mean = block_sum(shared, sum) / (double)n;
    for (int64_t i = threadIdx.x; i < n; i += SIMT_THREADS) {
        const double distance = (double)x[i * stride] - mean;
        squares += distance * distance;
    }
    return (float)sqrt(block_sum(shared, squares) / (double)n);
}

static __global__ void rescale_kernel(const float *cond, float *v, int64_t n,
                                      int64_t channel_stride, int64_t stride, float rescale)
{
    __shared__ double shared[SIMT_THREADS];
    const int64_t begin = blockIdx.x * channel_stride;
    const float deviation_c = deviation(shared, cond + begin, n, stride);
    const float deviation_v = deviation(shared, v + begin, n, stride);
    const float ratio = deviation_c / (deviation_v > 1e-6f ? deviation_v : 1e-6f);
    const float factor = __fadd_rn(__fmul_rn(rescale, ratio), __fadd_rn(1.0f, -rescale));
    for (int64_t i = threadIdx.x; i < n; i += SIMT_THREADS) v[begin + i * stride] *= factor;
}

extern "C" void m2_gpu_guidance_rescale(const m2_ops *ops, const m2_guidance_rescale_args *args)
{
    struct m2_gpu *gpu = m2_gpu_of(ops);
    const int64_t count = m2_tensor_count(args->cond);
    const int last = args->cond->n_dims - 1;
    assert(args->cond->dtype == M2_F32 && args->v->dtype == M2_F32);
    assert(last >= 0 && m2_tensor_count(args->v) == count);
    if (count == 0) return;
    const int64_t n_channels = args->cond->shape[args->channels_last ? last : 0];
    const int64_t n = count / n_channels;
    rescale_kernel<<<(unsigned int)n_channels, SIMT_THREADS, 0, gpu->stream>>>(
        (const float *)args->cond->data, (float *)args->v->data, n, args->channels_last ? 1 : n,
        args->channels_last ? n_channels : 1, args->rescale);
    m2_gpu_launched(gpu, "guidance_rescale");
}
