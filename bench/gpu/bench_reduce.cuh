/* bench_reduce.cuh - sums and maxima over a block, in double. */
#ifndef M2_BENCH_GPU_BENCH_REDUCE_CUH
#define M2_BENCH_GPU_BENCH_REDUCE_CUH

/* Largest value or sum over a block of N threads. */
template <int N>
static __device__ double bench_reduce(double x, int is_max)
{
    __shared__ double all[N];
    all[threadIdx.x] = x;
    __syncthreads();
    for (int step = N / 2; step; step /= 2) {
        if (threadIdx.x < step) {
            const double other = all[threadIdx.x + step];
            all[threadIdx.x] = is_max ? fmax(all[threadIdx.x], other) : all[threadIdx.x] + other;
        }
        __syncthreads();
    }
    x = all[0];
    __syncthreads();
    return x;
}

#endif
