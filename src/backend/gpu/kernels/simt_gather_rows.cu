/* simt_gather_rows.cu - y[i] = x[idx[i]], zeros for an index below 0: 32 lanes copy one row, or one
 * slice of a long row, in units as wide as the rows allow.
 *
 * Twin  backend/cpu/ref/gather_rows.c */
#include "backend/gpu/kernels/simt_common.cuh"

#include <assert.h>

#define SLICE_UNITS 8192 /* of a row that one warp copies */

template <typename UNIT>
static __global__ void gather_kernel(const UNIT *x, const int32_t *idx, UNIT *y, int64_t n,
                                     int64_t row_units)
{
    const int64_t row = (int64_t)blockIdx.x * SIMT_WARPS + threadIdx.x / SIMT_WARP;
    if (row >= n) return;
    const int64_t from = idx[row];
    for (int64_t first = (int64_t)blockIdx.y * SLICE_UNITS; first < row_units;
         first += (int64_t)gridDim.y * SLICE_UNITS) {
        const int64_t rest = row_units - first;
        const int n_units = rest < SLICE_UNITS ? (int)rest : SLICE_UNITS;
        const UNIT *source = x + from * row_units + first;
        UNIT *target = y + row * row_units + first;
        for (int i = threadIdx.x % SIMT_WARP; i < n_units; i += SIMT_WARP) {
            UNIT unit = {};
            if (from >= 0) unit = source[i];
            target[i] = unit;
        }
    }
}

template <typename UNIT>
static void gather_in(struct m2_gpu *gpu, const m2_gather_rows_args *args, int64_t row_bytes)
{
    const int64_t n = args->idx->shape[0], row_units = row_bytes / (int64_t)sizeof(UNIT);
    const int64_t slices = (row_units + SLICE_UNITS - 1) / SLICE_UNITS;
    const dim3 grid((unsigned int)((n + SIMT_WARPS - 1) / SIMT_WARPS),
                    (unsigned int)(slices < 65535 ? slices : 65535));
    gather_kernel<UNIT><<<grid, SIMT_THREADS, 0, gpu->stream>>>(
        (const UNIT *)args->x->data, (const int32_t *)args->idx->data, (UNIT *)args->y->data, n,
        row_units);
}

extern "C" void m2_gpu_gather_rows(const m2_ops *ops, const m2_gather_rows_args *args)
{
    struct m2_gpu *gpu = m2_gpu_of(ops);
    int64_t row_bytes = (int64_t)m2_dtype_bytes(args->x->dtype);
    for (int i = 1; i < args->x->n_dims; i++) row_bytes *= args->x->shape[i];
    assert(args->idx->dtype == M2_I32 && args->y->dtype == args->x->dtype);
    assert(args->y->shape[0] == args->idx->shape[0]);
    if (args->idx->shape[0] == 0 || row_bytes == 0) return;
    const uintptr_t unit =
        (uintptr_t)args->x->data | (uintptr_t)args->y->data | (uintptr_t)row_bytes;
    if (unit % 16 == 0)
        gather_in<uint4>(gpu, args, row_bytes);
    else if (unit % 4 == 0)
        gather_in<unsigned int>(gpu, args, row_bytes);
    else
        gather_in<unsigned char>(gpu, args, row_bytes);
    m2_gpu_launched(gpu, "gather_rows");
}
