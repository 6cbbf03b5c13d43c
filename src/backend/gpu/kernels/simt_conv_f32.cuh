/* simt_conv_f32.cuh - the tile of simt_conv_tile.cuh in f32 FMAs, for the convolution and the
 * transposed one.
 *
 * Why      a thread has 8 x 4 sums, or 8 x 8 where there are columns enough; their operands come
 *          from shared memory, K outermost, so that a step over K is three wide loads for 32 FMAs,
 *          or four for 64.
 * Numerics products gather over 64 of K before they join the total: rounding errors grow with the
 *          root of K / 64 and not of K.
 */
#ifndef M2_BACKEND_GPU_KERNELS_SIMT_CONV_F32_CUH
#define M2_BACKEND_GPU_KERNELS_SIMT_CONV_F32_CUH

#include "backend/gpu/kernels/simt_conv_tile.cuh"

#define CONV_F32_K       CONV_STAGE(float)
#define CONV_F32_PARTIAL 4 /* stages that gather before they join the total */
#define CONV_A_PITCH     (CONV_ROWS + 4)

template <int UNITS> struct conv_f32_stage {
    float a[CONV_F32_K][CONV_A_PITCH]; /* K outermost */
    float b[CONV_F32_K][CONV_COLUMNS * UNITS + 4];
};

/* Sums of a thread: rows 4 r ... of both halves of the tile, columns 4 c ... of each 64. */
template <int UNITS> struct conv_f32_sums {
    float v[8][4 * UNITS];
};

static __device__ __forceinline__ void unpack(const uint4 &from, float (&to)[4])
{
    to[0] = __uint_as_float(from.x), to[1] = __uint_as_float(from.y);
    to[2] = __uint_as_float(from.z), to[3] = __uint_as_float(from.w);
}

template <int UNITS>
static __device__ __forceinline__ void conv_f32_store(conv_f32_stage<UNITS> *stage,
                                                      const conv_share<UNITS> &share)
{
    const int r = (int)threadIdx.x / 4, k = (int)threadIdx.x % 4 * 4;
    float v[4];
#pragma unroll
    for (int u = 0; u < 2; u++) {
        unpack(share.a[u], v);
#pragma unroll
        for (int i = 0; i < 4; i++) stage->a[k + i][r + 64 * u] = v[i];
    }
#pragma unroll
    for (int u = 0; u < UNITS; u++) {
        unpack(share.b[u], v);
#pragma unroll
        for (int i = 0; i < 4; i++) stage->b[k + i][r + 64 * u] = v[i];
    }
}

template <int UNITS>
static __device__ __forceinline__ void conv_f32_products(const conv_f32_stage<UNITS> *stage,
                                                         conv_f32_sums<UNITS> *sums)
{
    const int row = (int)threadIdx.x / 16 * 4, column = (int)threadIdx.x % 16 * 4;
#pragma unroll
    for (int k = 0; k < CONV_F32_K; k++) {
        float a[8], b[4 * UNITS];
#pragma unroll
        for (int u = 0; u < 2; u++)
            *(float4 *)(a + 4 * u) = *(const float4 *)&stage->a[k][row + 64 * u];
#pragma unroll
        for (int u = 0; u < UNITS; u++)
            *(float4 *)(b + 4 * u) = *(const float4 *)&stage->b[k][column + 64 * u];
#pragma unroll
        for (int i = 0; i < 8; i++)
#pragma unroll
            for (int j = 0; j < 4 * UNITS; j++) sums->v[i][j] = fmaf(a[i], b[j], sums->v[i][j]);
    }
}

template <int UNITS>
static __device__ __forceinline__ void conv_f32_gather(conv_f32_sums<UNITS> *totals,
                                                       conv_f32_sums<UNITS> *sums)
{
#pragma unroll
    for (int i = 0; i < 8; i++)
#pragma unroll
        for (int j = 0; j < 4 * UNITS; j++) {
            totals->v[i][j] += sums->v[i][j];
            sums->v[i][j] = 0.0f;
        }
}

template <int UNITS, typename ROWS>
static __device__ __forceinline__ void
conv_f32_output(const ROWS &rows, const conv_data<float> &data, int64_t row0, int column0,
                const conv_f32_sums<UNITS> &totals)
{
#pragma unroll
    for (int i = 0; i < 8; i++) {
        const int64_t row = row0 + (int)threadIdx.x / 16 * 4 + i % 4 + i / 4 * 64;
        if (row < rows.n_rows) {
            float *to = data.y + rows.output(row) * data.c_out;
#pragma unroll
            for (int j = 0; j < 4 * UNITS; j++) {
                const int o = column0 + (int)threadIdx.x % 16 * 4 + j % 4 + j / 4 * 64;
                const float sum = totals.v[i][j];
                if (o < data.c_out) to[o] = data.bias.data ? sum + simt_any_get(data.bias, o) : sum;
            }
        }
    }
}

template <int IS_WIDE, int UNITS, typename ROWS>
static __global__ void __launch_bounds__(CONV_THREADS, UNITS == 1 ? 2 : 1)
    conv_f32_kernel(ROWS rows, conv_data<float> data)
{
    __shared__ __align__(16) conv_f32_stage<UNITS> stages[2];
    rows.select((int)blockIdx.y);
    const int n_column_tiles = (data.c_out + CONV_COLUMNS * UNITS - 1) / (CONV_COLUMNS * UNITS);
    const int64_t row0 = (int64_t)(blockIdx.x / n_column_tiles) * CONV_ROWS;
    const int column0 = (int)(blockIdx.x % n_column_tiles) * CONV_COLUMNS * UNITS;
    const int64_t row = row0 + (int)threadIdx.x / 4;
    const typename ROWS::place places[2] = { rows.place_of(row), rows.place_of(row + 64) };
    const bool is_row[2] = { row < rows.n_rows, row + 64 < rows.n_rows };
    const int column = column0 + (int)threadIdx.x / 4;
    conv_f32_sums<UNITS> totals = {}, sums = {};
    conv_at at = {};
    conv_share<UNITS> share;

    conv_share_load<IS_WIDE, UNITS>(&share, rows, data, places, is_row, column, at);
    conv_f32_store<UNITS>(&stages[0], share);
    __syncthreads();
    for (int stage = 0; at.tap < rows.n_taps; stage++) {
        conv_next<float>(&at, rows, data.c_in);
        conv_share_load<IS_WIDE, UNITS>(&share, rows, data, places, is_row, column, at);
        conv_f32_products<UNITS>(&stages[stage % 2], &sums);
        if (stage % CONV_F32_PARTIAL == CONV_F32_PARTIAL - 1) conv_f32_gather(&totals, &sums);
        conv_f32_store<UNITS>(&stages[(stage + 1) % 2], share);
        __syncthreads();
    }
    conv_f32_gather(&totals, &sums);
    conv_f32_output(rows, data, row0, column0, totals);
}

template <typename ROWS>
static void conv_f32(struct m2_gpu *gpu, const ROWS &rows, const conv_data<float> &data,
                     int n_phases)
{
    const uintptr_t bits = (uintptr_t)data.x | (uintptr_t)data.w;
    const int is_wide = data.c_in % CONV_PACK(float) == 0 && bits % 16 == 0;
    const int units = conv_units(data.c_out);
    const dim3 blocks(conv_blocks(rows.n_rows, data.c_out, units), (unsigned int)n_phases);
    SIMT_BY_WIDTH(is_wide, WIDE, {
        if (units == 2)
            conv_f32_kernel<WIDE, 2><<<blocks, CONV_THREADS, 0, gpu->stream>>>(rows, data);
        else
            conv_f32_kernel<WIDE, 1><<<blocks, CONV_THREADS, 0, gpu->stream>>>(rows, data);
    });
}

#endif
