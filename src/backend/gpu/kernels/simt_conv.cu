/* simt_conv.cu - convolution, stride 1, channels last: bf16 by matrix units, f32 by FMAs.
 *
 * Order    taps (t, y, x), channels ascending inside a tap, in the same steps for every shape; a
 *          sample's bits depend on nothing but what it reads
 * Limits   none: channels that are no multiple of 16 bytes are read one by one
 * Twin     backend/cpu/ref/conv.c */
#include "backend/gpu/kernels/simt_conv_f32.cuh"

#include <assert.h>

#define CONV_BF16_K  CONV_STAGE(gpu_bf16)
#define STAGE_PITCH  (CONV_BF16_K + 8) /* rows of 80 bytes fall on different banks */
#define OUTPUT_PITCH (CONV_COLUMNS + 4)

template <int UNITS> struct conv_bf16_stage {
    gpu_bf16 a[CONV_ROWS][STAGE_PITCH];
    gpu_bf16 b[CONV_COLUMNS * UNITS][STAGE_PITCH];
};

/* The sums leave through shared memory, 64 columns at a time, once the stages are done with. */
template <int UNITS> union conv_bf16_shared {
    conv_bf16_stage<UNITS> stages[2];
    float output[CONV_ROWS][OUTPUT_PITCH];
    __device__ conv_bf16_shared()
    {
    }
};

/* Sums of a warp: 32 rows, 32 columns of each 64.  Eight warps, four by two. */
template <int UNITS> struct conv_bf16_sums {
    gpu_wmma::fragment<gpu_wmma::accumulator, 16, 16, 16, float> v[2][2 * UNITS];
};

static __device__ __forceinline__ int own_row(void)
{
    return (int)threadIdx.x / 64 * 32;
}

/* First column of unit j of 16. */
static __device__ __forceinline__ int own_column(int j)
{
    return (int)threadIdx.x / 32 % 2 * 32 + j / 2 * 64 + j % 2 * 16;
}

template <int UNITS>
static __device__ __forceinline__ void conv_bf16_store(conv_bf16_stage<UNITS> *stage,
                                                       const conv_share<UNITS> &share)
{
    const int r = (int)threadIdx.x / 4, k = (int)threadIdx.x % 4 * CONV_PACK(gpu_bf16);
    *(uint4 *)&stage->a[r][k] = share.a[0];
    *(uint4 *)&stage->a[r + 64][k] = share.a[1];
#pragma unroll
    for (int i = 0; i < UNITS; i++) *(uint4 *)&stage->b[r + 64 * i][k] = share.b[i];
}

template <int UNITS>
static __device__ __forceinline__ void conv_bf16_products(const conv_bf16_stage<UNITS> *stage,
                                                          conv_bf16_sums<UNITS> *sums)
{
    gpu_wmma::fragment<gpu_wmma::matrix_a, 16, 16, 16, gpu_bf16, gpu_wmma::row_major> a[2];
    gpu_wmma::fragment<gpu_wmma::matrix_b, 16, 16, 16, gpu_bf16, gpu_wmma::col_major> b;
#pragma unroll
    for (int k = 0; k < CONV_BF16_K; k += 16) {
#pragma unroll
        for (int i = 0; i < 2; i++)
            gpu_wmma::load_matrix_sync(a[i], &stage->a[own_row() + 16 * i][k], STAGE_PITCH);
#pragma unroll
        for (int j = 0; j < 2 * UNITS; j++) {
            gpu_wmma::load_matrix_sync(b, &stage->b[own_column(j)][k], STAGE_PITCH);
#pragma unroll
            for (int i = 0; i < 2; i++) gpu_wmma::mma_sync(sums->v[i][j], a[i], b, sums->v[i][j]);
        }
    }
}

/* 64 columns from column0 on, which are unit `unit` of the tile. */
template <int UNITS>
static __device__ __forceinline__ void
conv_bf16_output(float (*output)[OUTPUT_PITCH], conv_bf16_sums<UNITS> &sums, int unit,
                 const conv_data<gpu_bf16> &data, int64_t row0, int64_t n_rows, int column0)
{
#pragma unroll
    for (int i = 0; i < 2; i++)
#pragma unroll
        for (int j = 0; j < 2; j++)
            gpu_wmma::store_matrix_sync(&output[own_row() + 16 * i][own_column(j)],
                                        sums.v[i][2 * unit + j], OUTPUT_PITCH,
                                        gpu_wmma::mem_row_major);
    __syncthreads();
    for (int at = (int)threadIdx.x; at < CONV_ROWS * CONV_COLUMNS; at += CONV_THREADS) {
        const int r = at / CONV_COLUMNS, c = column0 + at % CONV_COLUMNS;
        if (row0 + r < n_rows && c < data.c_out) {
            const float sum = output[r][at % CONV_COLUMNS];
            simt_put(data.y, (row0 + r) * data.c_out + c,
                     data.bias.data ? sum + simt_any_get(data.bias, c) : sum);
        }
    }
}

template <int IS_WIDE, int UNITS>
static __global__ void __launch_bounds__(CONV_THREADS)
    conv_bf16_kernel(conv_rows rows, conv_data<gpu_bf16> data)
{
    __shared__ __align__(32) conv_bf16_shared<UNITS> shared;
    const int n_column_tiles = (data.c_out + CONV_COLUMNS * UNITS - 1) / (CONV_COLUMNS * UNITS);
    const int64_t row0 = (int64_t)(blockIdx.x / n_column_tiles) * CONV_ROWS;
    const int column0 = (int)(blockIdx.x % n_column_tiles) * CONV_COLUMNS * UNITS;
    const int64_t row = row0 + (int)threadIdx.x / 4;
    const conv_rows::place places[2] = { rows.place_of(row), rows.place_of(row + 64) };
    const bool is_row[2] = { row < rows.n_rows, row + 64 < rows.n_rows };
    const int column = column0 + (int)threadIdx.x / 4;
    conv_bf16_sums<UNITS> sums;
    conv_at at = {};
    conv_share<UNITS> share;

#pragma unroll
    for (int i = 0; i < 4 * UNITS; i++) gpu_wmma::fill_fragment(sums.v[i % 2][i / 2], 0.0f);
    conv_share_load<IS_WIDE, UNITS>(&share, rows, data, places, is_row, column, at);
    conv_bf16_store<UNITS>(&shared.stages[0], share);
    __syncthreads();
    for (int stage = 0; at.tap < rows.n_taps; stage++) {
        conv_next<gpu_bf16>(&at, rows, data.c_in);
        conv_share_load<IS_WIDE, UNITS>(&share, rows, data, places, is_row, column, at);
        conv_bf16_products<UNITS>(&shared.stages[stage % 2], &sums);
        conv_bf16_store<UNITS>(&shared.stages[(stage + 1) % 2], share);
        __syncthreads();
    }
#pragma unroll
    for (int unit = 0; unit < UNITS; unit++) {
        if (unit > 0) __syncthreads(); /* the columns before are stored */
        conv_bf16_output<UNITS>(shared.output, sums, unit, data, row0, rows.n_rows,
                                column0 + unit * CONV_COLUMNS);
    }
}

static void conv_bf16(struct m2_gpu *gpu, const conv_rows &rows, const conv_data<gpu_bf16> &data)
{
    const uintptr_t bits = (uintptr_t)data.x | (uintptr_t)data.w;
    const int is_wide = data.c_in % CONV_PACK(gpu_bf16) == 0 && bits % 16 == 0;
    const int units = conv_units(data.c_out);
    const unsigned int blocks = conv_blocks(rows.n_rows, data.c_out, units);
    SIMT_BY_WIDTH(is_wide, WIDE, {
        if (units == 2)
            conv_bf16_kernel<WIDE, 2><<<blocks, CONV_THREADS, 0, gpu->stream>>>(rows, data);
        else
            conv_bf16_kernel<WIDE, 1><<<blocks, CONV_THREADS, 0, gpu->stream>>>(rows, data);
    });
}

template <typename T> static conv_data<T> conv_data_of(const m2_conv_args *args)
{
    conv_data<T> data = {};
    data.x = (const T *)args->x->data;
    data.w = (const T *)args->w->data;
    data.bias = simt_any_of(args->bias);
    data.y = (T *)args->y->data;
    data.c_in = (int)args->x->shape[3];
    data.c_out = (int)args->y->shape[3];
    return data;
}

extern "C" void m2_gpu_conv(const m2_ops *ops, const m2_conv_args *args)
{
    struct m2_gpu *gpu = m2_gpu_of(ops);
    const int64_t *shape = args->x->shape;
    assert(args->w->dtype == args->x->dtype && args->w->shape[2] == shape[3]);
    if (m2_tensor_count(args->y) == 0) return;
    if (M2_GPU_TRY_SM90(conv, gpu, args)) return;
    conv_rows rows = {};
    rows.frames = (int)shape[0];
    rows.height = (int)shape[1];
    rows.width = (int)shape[2];
    rows.kt = args->kernel[0];
    rows.kh = args->kernel[1];
    rows.kw = args->kernel[2];
    rows.dilation = args->dilation;
    rows.pad_left = args->pad_left >= 0 ? args->pad_left : (rows.kw - 1) * args->dilation / 2;
    rows.n_taps = rows.kt * rows.kh * rows.kw;
    rows.n_rows = shape[0] * shape[1] * shape[2];
    if (args->x->dtype == M2_BF16)
        conv_bf16(gpu, rows, conv_data_of<gpu_bf16>(args));
    else
        conv_f32(gpu, rows, conv_data_of<float>(args), 1);
    m2_gpu_launched(gpu, "conv");
}
