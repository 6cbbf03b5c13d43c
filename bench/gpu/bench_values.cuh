/* bench_values.cuh - random values on the device, for programs that time kernels. */
#ifndef M2_BENCH_GPU_BENCH_VALUES_CUH
#define M2_BENCH_GPU_BENCH_VALUES_CUH

#include "bench/gpu/bench_device.cuh"

static __device__ unsigned int bench_mix(unsigned int z)
{
    z = (z ^ z >> 16) * 0x7feb352du;
    z = (z ^ z >> 15) * 0x846ca68bu;
    return z ^ z >> 16;
}

/* Nearly normal, as values of real layers are: uniform ones flatter the matrix units. */
static __global__ void bench_fill_kernel(void *to, int is_bf16, int64_t n, unsigned int seed,
                                         float scale)
{
    const int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    const unsigned int a = bench_mix((unsigned int)i * 2u + seed);
    const unsigned int b = bench_mix(a ^ 0x9e3779b9u);
    const float sum =
        (float)(a & 0xffff) + (float)(a >> 16) + (float)(b & 0xffff) + (float)(b >> 16);
    const float value = scale * (sum / 65536.0f - 2.0f) * 1.7320508f;
    if (is_bf16)
        ((gpu_bf16 *)to)[i] = __float2bfloat16_rn(value);
    else
        ((float *)to)[i] = value;
}

/* Fills a bf16 or f32 tensor; the same values for the same seed. */
static void bench_fill(bench_device *device, m2_tensor *tensor, unsigned int seed, float scale)
{
    const int64_t n = m2_tensor_count(tensor);
    bench_fill_kernel<<<(unsigned int)((n + 255) / 256), 256, 0, device->gpu.stream>>>(
        tensor->data, tensor->dtype == M2_BF16, n, seed, scale);
}

#endif
