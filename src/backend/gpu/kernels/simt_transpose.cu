/* simt_transpose.cu - y[j][i] = x[i][j], tiles of 32 x 32 turned in shared memory.
 *
 * Twin  backend/cpu/ref/transpose.c */
#include "backend/gpu/kernels/simt_common.cuh"

#include <assert.h>

#define TILE      32
#define TILE_ROWS (SIMT_THREADS / TILE) /* of a tile that the block moves at once */

static __global__ void transpose_kernel(const float *x, float *y, int64_t a, int64_t b,
                                        int64_t tiles_across)
{
    __shared__ float tile[TILE][TILE + 1];
    const int column = threadIdx.x % TILE, first = threadIdx.x / TILE;
    const int64_t tile_i = (int64_t)blockIdx.x / tiles_across * TILE;
    const int64_t tile_j = (int64_t)blockIdx.x % tiles_across * TILE;
    for (int r = first; r < TILE; r += TILE_ROWS) {
        const int64_t i = tile_i + r, j = tile_j + column;
        if (i < a && j < b) tile[r][column] = x[i * b + j];
    }
    __syncthreads();
    for (int r = first; r < TILE; r += TILE_ROWS) {
        const int64_t j = tile_j + r, i = tile_i + column;
        if (i < a && j < b) y[j * a + i] = tile[column][r];
    }
}

extern "C" void m2_gpu_transpose(const m2_ops *ops, const m2_transpose_args *args)
{
    struct m2_gpu *gpu = m2_gpu_of(ops);
    const int64_t a = args->x->shape[0], b = args->x->shape[1];
    const int64_t tiles_down = (a + TILE - 1) / TILE, tiles_across = (b + TILE - 1) / TILE;
    assert(args->x->dtype == M2_F32 && args->y->dtype == M2_F32);
    assert(args->y->shape[0] == b && args->y->shape[1] == a);
    if (a == 0 || b == 0) return;
    transpose_kernel<<<(unsigned int)(tiles_down * tiles_across), SIMT_THREADS, 0, gpu->stream>>>(
        (const float *)args->x->data, (float *)args->y->data, a, b, tiles_across);
    m2_gpu_launched(gpu, "transpose");
}
