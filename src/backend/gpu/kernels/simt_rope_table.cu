/* simt_rope_table.cu - sines and cosines of coords x bands, one thread a token, axis and band.
 *
 *   angle = ((coord - centre) * scale) * band, each one f32 operation: a fused product would turn
 *   large angles by another last bit
 *
 * Twin  backend/cpu/ref/rope_table.c */
#include "backend/gpu/kernels/simt_common.cuh"

#include <assert.h>

#define N_AXES 3

static __global__ void rope_kernel(const float *coords, const float *bands, float *table, int64_t n,
                                   int n_bands)
{
    const int64_t i = (int64_t)blockIdx.x * SIMT_THREADS + threadIdx.x;
    const int per_row = N_AXES * n_bands;
    const int64_t row = i / per_row;
    if (row >= n) return;
    const int column = (int)(i - row * per_row), axis = column / n_bands;
    const float coord = coords[row * 9 + axis], size = coords[row * 9 + 3 + axis],
                reference = coords[row * 9 + 6 + axis];
    float scale = (reference - 1.0f) / (size - 1.0f);
    if (reference == 1.0f && size == 1.0f) scale = 1.0f;
    const float centre = axis == 0 ? 0.0f : (size - 1.0f) / 2.0f;
    const float position = __fmul_rn(__fadd_rn(coord, -centre), scale);
    const float angle = __fmul_rn(position, bands[column - axis * n_bands]);
    float *sines = table + row * 2 * per_row;
    sines[column] = sinf(angle);
    sines[per_row + column] = cosf(angle);
}

extern "C" void m2_gpu_rope_table(const m2_ops *ops, const m2_rope_table_args *args)
{
    struct m2_gpu *gpu = m2_gpu_of(ops);
    const int64_t n = args->coords->shape[0];
    const int n_bands = (int)args->bands->shape[0];
    const int64_t n_threads = n * N_AXES * n_bands;
    assert(args->coords->shape[1] == 9 && args->coords->dtype == M2_F32);
    assert(args->table->shape[0] == n && args->table->shape[1] == 2 * N_AXES * n_bands);
    if (n_threads == 0) return;
    rope_kernel<<<(unsigned int)((n_threads + SIMT_THREADS - 1) / SIMT_THREADS), SIMT_THREADS, 0,
                  gpu->stream>>>((const float *)args->coords->data,
                                 (const float *)args->bands->data, (float *)args->table->data, n,
                                 n_bands);
    m2_gpu_launched(gpu, "rope_table");
}
