/* simt_conv_f32.cuh - the tile of simt_conv_tile.cuh in f32 FMAs, for the convolution and the
 * transposed one.
 *
 * Why      a thread has 8 x 4 sums; their operands come from shared memory, K outermost, so that a
 *          step over K is three wide loads for 32 FMAs.
 * Numerics products gather over 64 of K before they join the total: rounding errors grow with the
 *          root of K / 64 and not of K.
 */
#ifndef M2_BACKEND_GPU_KERNELS_SIMT_CONV_F32_CUH
#define M2_BACKEND_GPU_KERNELS_SIMT_CONV_F32_CUH

#include "backend/gpu/kernels/simt_conv_tile.cuh"

#define CONV_F32_K       CONV_STAGE(float)
#define CONV_F32_PARTIAL 4 /* stages that gather before they join the total */
#define CONV_A_PITCH     (CONV_ROWS + 4)
#define CONV_B_PITCH     (CONV_COLUMNS + 4)

struct conv_f32_stage {
    float a[CONV_F32_K][CONV_A_PITCH]; /* K outermost */
    float b[CONV_F32_K][CONV_B_PITCH];
};

static __device__ __forceinline__ void conv_f32_store(conv_f32_stage *stage,
                                                      const conv_share &share)
{
    const int r = (int)threadIdx.x / 4, k = (int)threadIdx.x % 4 * 4;
    const unsigned int words[3][4] = { { share.a[0].x, share.a[0].y, share.a[0].z, share.a[0].w },
                                       { share.a[1].x, share.a[1].y, share.a[1].z, share.a[1].w },
                                       { share.b.x, share.b.y, share.b.z, share.b.w } };
#pragma unroll
    for (int i = 0; i < 4; i++) {
        stage->a[k + i][r] = __uint_as_float(words[0][i]);
        stage->a[k + i][r + 64] = __uint_as_float(words[1][i]);
        stage->b[k + i][r] = __uint_as_float(words[2][i]);
    }
}

static __device__ __forceinline__ void conv_f32_products(const conv_f32_stage *stage,
                                                         float (&sums)[8][4])
{
    const int row = (int)threadIdx.x / 16 * 4, column = (int)threadIdx.x % 16 * 4;
#pragma unroll
    for (int k = 0; k < CONV_F32_K; k++) {
        const float4 low = *(const float4 *)&stage->a[k][row];
        const float4 high = *(const float4 *)&stage->a[k][row + 64];
        const float4 right = *(const float4 *)&stage->b[k][column];
        const float a[8] = { low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w };
        const float b[4] = { right.x, right.y, right.z, right.w };
#pragma unroll
        for (int i = 0; i < 8; i++)
#pragma unroll
            for (int j = 0; j < 4; j++) sums[i][j] = fmaf(a[i], b[j], sums[i][j]);
    }
}

static __device__ __forceinline__ void conv_f32_gather(float (&totals)[8][4], float (&sums)[8][4])
{
#pragma unroll
    for (int i = 0; i < 8; i++)
#pragma unroll
        for (int j = 0; j < 4; j++) {
            totals[i][j] += sums[i][j];
            sums[i][j] = 0.0f;
        }
}

template <typename ROWS>
static __device__ __forceinline__ void conv_f32_output(const ROWS &rows,
                                                       const conv_data<float> &data, int64_t row0,
                                                       int column0, const float (&totals)[8][4])
{
    const int column = column0 + (int)threadIdx.x % 16 * 4;
#pragma unroll
    for (int i = 0; i < 8; i++) {
        const int64_t row = row0 + (int)threadIdx.x / 16 * 4 + i % 4 + i / 4 * 64;
        if (row < rows.n_rows) {
            float *to = data.y + rows.output(row) * data.c_out;
#pragma unroll
            for (int j = 0; j < 4; j++)
                if (column + j < data.c_out)
                    to[column + j] = data.bias.data
                                         ? totals[i][j] + simt_any_get(data.bias, column + j)
                                         : totals[i][j];
        }
    }
}

template <int IS_WIDE, typename ROWS>
static __global__ void __launch_bounds__(CONV_THREADS, 2)
    conv_f32_kernel(ROWS rows, conv_data<float> data)
{
    __shared__ __align__(16) conv_f32_stage stages[2];
    const int n_column_tiles = (data.c_out + CONV_COLUMNS - 1) / CONV_COLUMNS;
    const int64_t row0 = (int64_t)(blockIdx.x / n_column_tiles) * CONV_ROWS;
    const int column0 = (int)(blockIdx.x % n_column_tiles) * CONV_COLUMNS;
    const int64_t row = row0 + (int)threadIdx.x / 4;
    const typename ROWS::place places[2] = { rows.place_of(row), rows.place_of(row + 64) };
    const bool is_row[2] = { row < rows.n_rows, row + 64 < rows.n_rows };
    const int column = column0 + (int)threadIdx.x / 4;
    float totals[8][4] = {}, sums[8][4] = {};
    conv_at at = {};
    conv_share share;

    conv_share_load<IS_WIDE>(&share, rows, data, places, is_row, column, at);
    conv_f32_store(&stages[0], share);
    __syncthreads();
    for (int stage = 0; at.tap < rows.n_taps; stage++) {
        conv_next<float>(&at, rows, data.c_in);
        conv_share_load<IS_WIDE>(&share, rows, data, places, is_row, column, at);
        conv_f32_products(&stages[stage % 2], sums);
        if (stage % CONV_F32_PARTIAL == CONV_F32_PARTIAL - 1) conv_f32_gather(totals, sums);
        conv_f32_store(&stages[(stage + 1) % 2], share);
        __syncthreads();
    }
    conv_f32_gather(totals, sums);
    conv_f32_output(rows, data, row0, column0, totals);
}

template <typename ROWS>
static void conv_f32(struct m2_gpu *gpu, const ROWS &rows, const conv_data<float> &data)
{
    const uintptr_t bits = (uintptr_t)data.x | (uintptr_t)data.w;
    const int is_wide = data.c_in % CONV_PACK(float) == 0 && bits % 16 == 0;
    SIMT_BY_WIDTH(is_wide, WIDE, {
        conv_f32_kernel<WIDE>
            <<<conv_blocks(rows.n_rows, data.c_out), CONV_THREADS, 0, gpu->stream>>>(rows, data);
    });
}

#endif
