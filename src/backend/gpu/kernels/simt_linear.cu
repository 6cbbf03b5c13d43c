/* simt_linear.cu - y[r] = x[r] . w[g]^T (+ bias) without a vendor's library, any shape.
 *
 * bf16      tiles of 128 x 128 on matrix units, K in steps of 32, the next step's operands on their
 *           way in registers; edges are zeros in shared memory
 * f32       tiles of 128 x 64 by FMA, 8 x 4 results a thread; long K with few outputs is cut into
 *           slices of 512, each a block's work, whose sums another kernel joins: with a few hundred
 *           rows there would else be a handful of blocks, each with all of K to walk
 * Rows      tiles begin anew at every group, so that a tile has one weight slice
 * Numerics  bf16: f32 accumulators of the matrix units.  f32: the CPU's order, hence its bits: of 32
 *           the even and the odd K in a chain each, gathered over 512 before they join the total
 * Order     of K ascending, whatever the number of rows; slices are for weights' shapes alone
 * Twin      backend/cpu/ref/linear.c */
#include "backend/gpu/kernels/simt_linear.cuh"

#include <assert.h>

typedef struct linear_shape {
    int64_t n, k, out, tiles_across;
    int n_groups;
    int64_t begin[M2_GROUPS_MAX + 1];      /* rows of a group                     */
    int64_t tile_begin[M2_GROUPS_MAX + 1]; /* its first tile, in rows of all tiles */
    /* f32 with K in slices: [n_slices, slice_rows, out] sums of the rows from row_begin on; or NULL */
    float *slices;
    int64_t row_begin, slice_rows;
} linear_shape;

typedef struct linear_tile {
    int group;
    int64_t row, row_end, column; /* first row, end of the group's rows, first output */
} linear_tile;

static __device__ __forceinline__ linear_tile tile_of(const linear_shape &shape, int tile_m,
                                                      int tile_n)
{
    const int64_t tile_row = blockIdx.x / shape.tiles_across;
    linear_tile tile = { 0, shape.begin[0] + tile_row * tile_m, shape.begin[1],
                         (blockIdx.x - tile_row * shape.tiles_across) * tile_n };
#pragma unroll
    for (int g = 1; g < M2_GROUPS_MAX; g++) {
        if (g >= shape.n_groups || tile_row < shape.tile_begin[g]) continue;
        tile.group = g;
        tile.row = shape.begin[g] + (tile_row - shape.tile_begin[g]) * tile_m;
        tile.row_end = shape.begin[g + 1];
    }
    return tile;
}

/* ---- bf16 ------------------------------------------------------------------------------------------ */

#define TILE       128
#define STEP       32
#define STRIDE     (STEP + 8) /* of a tile's row in shared memory: no two rows on one bank */
#define UNITS      2          /* of eight elements that a thread loads of each operand     */
#define WARP_ROWS  64
#define WARP_COLS  32
#define STAGE_COLS 20 /* stride of a warp's 16 x 16 results on their way out */

typedef struct bf16_operands {
    uint4 a[UNITS], b[UNITS];
} bf16_operands;

/* The rows of x and of w that this thread loads from, clamped to those that are there. */
typedef struct bf16_rows {
    const gpu_bf16 *a[UNITS], *b[UNITS];
} bf16_rows;

static __device__ __forceinline__ bf16_rows rows_of(const gpu_bf16 *x, const gpu_bf16 *w,
                                                    const linear_shape &shape,
                                                    const linear_tile &tile)
{
    bf16_rows rows;
#pragma unroll
    for (int u = 0; u < UNITS; u++) {
        const int r = (threadIdx.x + u * SIMT_THREADS) / (STEP / 8);
        const int64_t row = tile.row + r < tile.row_end ? tile.row + r : tile.row_end - 1;
        const int64_t o = tile.column + r < shape.out ? tile.column + r : shape.out - 1;
        rows.a[u] = x + row * shape.k;
        rows.b[u] = w + (tile.group * shape.out + o) * shape.k;
    }
    return rows;
}

template <int IS_WIDE>
static __device__ __forceinline__ void load_step(const bf16_rows &rows, int64_t k_all, int64_t k,
                                                 bf16_operands *to)
{
    const int inside = threadIdx.x % (STEP / 8) * 8; /* SIMT_THREADS is a multiple of STEP / 8 */
#pragma unroll
    for (int u = 0; u < UNITS; u++) {
        to->a[u] = simt_load_unit<IS_WIDE>(rows.a[u], k_all, k + inside);
        to->b[u] = simt_load_unit<IS_WIDE>(rows.b[u], k_all, k + inside);
    }
}

static __device__ __forceinline__ void store_step(const bf16_operands *from, gpu_bf16 *a,
                                                  gpu_bf16 *b)
{
#pragma unroll
    for (int u = 0; u < UNITS; u++) {
        const int unit = threadIdx.x + u * SIMT_THREADS;
        const int at = unit / (STEP / 8) * STRIDE + unit % (STEP / 8) * 8;
        *(uint4 *)(a + at) = from->a[u];
        *(uint4 *)(b + at) = from->b[u];
    }
}

/* A warp's 16 x 16 results from `stage` to y, with the bias. */
template <typename Y, int IS_WIDE>
static __device__ __forceinline__ void
store_results(const float *stage, simt_any bias, Y *y, const linear_shape &shape,
              const linear_tile &tile, int64_t row, int64_t column)
{
    const int lane = threadIdx.x % SIMT_WARP;
    const int r = lane / 2, c = lane % 2 * 8;
    const int64_t left = shape.out - column - c;
    float value[SIMT_VECTOR];
    if (row + r >= tile.row_end || left <= 0) return;
    const int n = left < SIMT_VECTOR ? (int)left : SIMT_VECTOR;
#pragma unroll
    for (int j = 0; j < SIMT_VECTOR; j++) {
        value[j] = stage[r * STAGE_COLS + c + j];
        if (bias.data && j < n)
            value[j] += simt_any_get(bias, tile.group * shape.out + column + c + j);
    }
    simt_put_some<IS_WIDE>(y, (row + r) * shape.out + column + c, n, value);
}

template <typename Y, int IS_WIDE>
static __global__ void __launch_bounds__(SIMT_THREADS, 2)
    linear_bf16_kernel(const gpu_bf16 *x, const gpu_bf16 *w, simt_any bias, Y *y,
                       linear_shape shape)
{
    typedef gpu_wmma::fragment<gpu_wmma::matrix_a, 16, 16, 16, gpu_bf16, gpu_wmma::row_major>
        frag_a;
    typedef gpu_wmma::fragment<gpu_wmma::matrix_b, 16, 16, 16, gpu_bf16, gpu_wmma::col_major>
        frag_b;
    typedef gpu_wmma::fragment<gpu_wmma::accumulator, 16, 16, 16, float> frag_c;
    __shared__ __align__(128) gpu_bf16 tiles[2][2][TILE * STRIDE]; /* [buffer][operand] */

    const linear_tile tile = tile_of(shape, TILE, TILE);
    const int warp = threadIdx.x / SIMT_WARP;
    const int warp_row = warp / (TILE / WARP_COLS) * WARP_ROWS;
    const int warp_column = warp % (TILE / WARP_COLS) * WARP_COLS;
    frag_c sums[WARP_ROWS / 16][WARP_COLS / 16];
#pragma unroll
    for (int i = 0; i < WARP_ROWS / 16; i++)
#pragma unroll
        for (int j = 0; j < WARP_COLS / 16; j++) gpu_wmma::fill_fragment(sums[i][j], 0.0f);

    const bf16_rows rows = rows_of(x, w, shape, tile);
    bf16_operands next;
    load_step<IS_WIDE>(rows, shape.k, 0, &next);
    int buffer = 0;
    for (int64_t k = 0; k < shape.k; k += STEP, buffer ^= 1) {
        store_step(&next, tiles[buffer][0], tiles[buffer][1]);
        __syncthreads(); /* the other buffer was read before this thread came here */
        if (k + STEP < shape.k) load_step<IS_WIDE>(rows, shape.k, k + STEP, &next);
#pragma unroll
        for (int inside = 0; inside < STEP; inside += 16) {
            frag_b b[WARP_COLS / 16];
#pragma unroll
            for (int j = 0; j < WARP_COLS / 16; j++)
                gpu_wmma::load_matrix_sync(
                    b[j], tiles[buffer][1] + (warp_column + j * 16) * STRIDE + inside, STRIDE);
#pragma unroll
            for (int i = 0; i < WARP_ROWS / 16; i++) {
                frag_a a;
                gpu_wmma::load_matrix_sync(
                    a, tiles[buffer][0] + (warp_row + i * 16) * STRIDE + inside, STRIDE);
#pragma unroll
                for (int j = 0; j < WARP_COLS / 16; j++)
                    gpu_wmma::mma_sync(sums[i][j], a, b[j], sums[i][j]);
            }
        }
    }
    __syncthreads();
    float *stage = (float *)tiles + warp * 16 * STAGE_COLS;
#pragma unroll
    for (int i = 0; i < WARP_ROWS / 16; i++) {
#pragma unroll
        for (int j = 0; j < WARP_COLS / 16; j++) {
            gpu_wmma::store_matrix_sync(stage, sums[i][j], STAGE_COLS, gpu_wmma::mem_row_major);
            gpu_syncwarp();
            store_results<Y, IS_WIDE>(stage, bias, y, shape, tile, tile.row + warp_row + i * 16,
                                      tile.column + warp_column + j * 16);
            gpu_syncwarp();
        }
    }
}

/* ---- f32 ------------------------------------------------------------------------------------------- */

#define F32_ROWS       128
#define F32_COLS       64
#define F32_STEP       16
#define F32_CHAIN      32  /* of K in one chain                         */
#define F32_PARTIAL    512 /* of K gathered before it joins the total   */
#define OWN_ROWS       8   /* results of a thread                       */
#define OWN_COLS       4
#define SLICED_OUT_MAX 64 /* outputs up to which long K is cut into slices */
#define A_UNITS        (F32_ROWS * F32_STEP / 4 / SIMT_THREADS) /* of four elements of K */

/* An operand's step in shared memory, K outermost. */
typedef struct f32_step {
    float a[F32_STEP][F32_ROWS + 4], b[F32_STEP][F32_COLS + 4];
} f32_step;

/* What a thread loads of a step, on its way, and where it comes from: rows that are there. */
typedef struct f32_operands {
    const float *a_row[A_UNITS], *b_row;
    float4 a[A_UNITS], b;
} f32_operands;

static __device__ __forceinline__ void point_at_rows(const float *x, const float *w,
                                                     const linear_shape &shape,
                                                     const linear_tile &tile, f32_operands *to)
{
    const int r = threadIdx.x / (F32_STEP / 4);
    const int64_t o = tile.column + r < shape.out ? tile.column + r : shape.out - 1;
    to->b_row = w + (tile.group * shape.out + o) * shape.k;
#pragma unroll
    for (int u = 0; u < A_UNITS; u++) {
        const int64_t asked = tile.row + r + u * (SIMT_THREADS / (F32_STEP / 4));
        to->a_row[u] = x + (asked < tile.row_end ? asked : tile.row_end - 1) * shape.k;
    }
}

/* Four elements of K from k on, zeros behind the end. */
template <int IS_WIDE>
static __device__ __forceinline__ float4 load_f32(const float *row, int64_t k_all, int64_t k)
{
    float4 unit = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    if constexpr (IS_WIDE) {
        if (k < k_all) unit = *(const float4 *)(row + k);
    } else {
        if (k < k_all) unit.x = row[k];
        if (k + 1 < k_all) unit.y = row[k + 1];
        if (k + 2 < k_all) unit.z = row[k + 2];
        if (k + 3 < k_all) unit.w = row[k + 3];
    }
    return unit;
}

template <int IS_WIDE>
static __device__ __forceinline__ void load_f32_step(f32_operands *to, int64_t k_all, int64_t k)
{
    const int inside = threadIdx.x % (F32_STEP / 4) * 4;
#pragma unroll
    for (int u = 0; u < A_UNITS; u++) to->a[u] = load_f32<IS_WIDE>(to->a_row[u], k_all, k + inside);
    to->b = load_f32<IS_WIDE>(to->b_row, k_all, k + inside);
}

static __device__ __forceinline__ void store_f32_step(const f32_operands *from, f32_step *to)
{
    const int r = threadIdx.x / (F32_STEP / 4), inside = threadIdx.x % (F32_STEP / 4) * 4;
#pragma unroll
    for (int u = 0; u < A_UNITS; u++) {
        const int row = r + u * (SIMT_THREADS / (F32_STEP / 4));
        to->a[inside][row] = from->a[u].x;
        to->a[inside + 1][row] = from->a[u].y;
        to->a[inside + 2][row] = from->a[u].z;
        to->a[inside + 3][row] = from->a[u].w;
    }
    to->b[inside][r] = from->b.x;
    to->b[inside + 1][r] = from->b.y;
    to->b[inside + 2][r] = from->b.z;
    to->b[inside + 3][r] = from->b.w;
}

typedef struct f32_sums {
    float total[OWN_ROWS][OWN_COLS], partial[OWN_ROWS][OWN_COLS];
    float chains[2][OWN_ROWS][OWN_COLS]; /* of even and of odd K */
} f32_sums;

/* The chains end and join the partial sum, which joins the total where it is full. */
static __device__ __forceinline__ void gather(f32_sums *sums, int is_full)
{
#pragma unroll
    for (int i = 0; i < OWN_ROWS; i++) {
#pragma unroll
        for (int j = 0; j < OWN_COLS; j++) {
            sums->partial[i][j] += sums->chains[0][i][j] + sums->chains[1][i][j];
            sums->chains[0][i][j] = sums->chains[1][i][j] = 0.0f;
            if (!is_full) continue;
            sums->total[i][j] += sums->partial[i][j];
            sums->partial[i][j] = 0.0f;
        }
    }
}

static __device__ __forceinline__ void add_products(const f32_step *step, int row, int column,
                                                    f32_sums *sums)
{
#pragma unroll
    for (int k = 0; k < F32_STEP; k++) {
        float left[OWN_ROWS], right[OWN_COLS];
#pragma unroll
        for (int i = 0; i < OWN_ROWS; i++) left[i] = step->a[k][row + i];
#pragma unroll
        for (int j = 0; j < OWN_COLS; j++) right[j] = step->b[k][column + j];
#pragma unroll
        for (int i = 0; i < OWN_ROWS; i++)
#pragma unroll
            for (int j = 0; j < OWN_COLS; j++)
                sums->chains[k % 2][i][j] = fmaf(left[i], right[j], sums->chains[k % 2][i][j]);
    }
}

/* The first n of four results; all of them at once where rows are wide, which leaves no rest. */
template <int IS_WIDE>
static __device__ __forceinline__ void store4(float *to, int n, const float value[OWN_COLS])
{
    if constexpr (IS_WIDE) {
        if (n > 0) *(float4 *)to = make_float4(value[0], value[1], value[2], value[3]);
    } else {
#pragma unroll
        for (int j = 0; j < OWN_COLS; j++)
            if (j < n) to[j] = value[j];
    }
}

template <int IS_WIDE>
static __device__ __forceinline__ void store4(gpu_bf16 *to, int n, const float value[OWN_COLS])
{
#pragma unroll
    for (int j = 0; j < OWN_COLS; j++)
        if (j < n) simt_put(to, j, value[j]);
}

/* blockIdx.y is the slice of K, whose sums go to `slices`, where there are any. */
template <typename Y, int IS_WIDE>
static __global__ void __launch_bounds__(SIMT_THREADS, 1)
    linear_f32_kernel(const float *x, const float *w, simt_any bias, Y *y, linear_shape shape)
{
    __shared__ __align__(16) f32_step steps[2];
    const linear_tile tile = tile_of(shape, F32_ROWS, F32_COLS);
    const int own_row = threadIdx.x / (F32_COLS / OWN_COLS) * OWN_ROWS;
    const int own_column = threadIdx.x % (F32_COLS / OWN_COLS) * OWN_COLS;
    const int64_t k_begin = shape.slices ? (int64_t)blockIdx.y * F32_PARTIAL : 0;
    const int64_t k_end =
        shape.slices && k_begin + F32_PARTIAL < shape.k ? k_begin + F32_PARTIAL : shape.k;
    f32_sums sums = {};
    f32_operands next;
    point_at_rows(x, w, shape, tile, &next);
    load_f32_step<IS_WIDE>(&next, shape.k, k_begin);
    int buffer = 0;
    for (int64_t k = k_begin; k < k_end; k += F32_STEP, buffer ^= 1) {
        store_f32_step(&next, &steps[buffer]);
        __syncthreads(); /* the other buffer was read before this thread came here */
        const int64_t done = k + F32_STEP;
        if (done < k_end) load_f32_step<IS_WIDE>(&next, shape.k, done);
        add_products(&steps[buffer], own_row, own_column, &sums);
        if (done % F32_CHAIN == 0) gather(&sums, done % F32_PARTIAL == 0);
    }
    gather(&sums, 1);
    const int64_t column = tile.column + own_column, columns_left = shape.out - column;
    const int n = columns_left < OWN_COLS ? (int)columns_left : OWN_COLS;
#pragma unroll
    for (int i = 0; i < OWN_ROWS; i++) {
        const int64_t row = tile.row + own_row + i;
        if (row >= tile.row_end) continue;
        if (shape.slices) {
            const int64_t to = blockIdx.y * shape.slice_rows + row - shape.row_begin;
            store4<IS_WIDE>(shape.slices + to * shape.out + column, n, sums.total[i]);
            continue;
        }
#pragma unroll
        for (int j = 0; j < OWN_COLS; j++)
            if (bias.data && j < n)
                sums.total[i][j] += simt_any_get(bias, tile.group * shape.out + column + j);
        store4<IS_WIDE>(y + row * shape.out + column, n, sums.total[i]);
    }
}

/* y = the slices' sums in ascending order of K, with the bias; rows [row_begin, + slice_rows). */
template <typename Y>
static __global__ void join_kernel(simt_any bias, Y *y, linear_shape shape, int n_slices)
{
    const int64_t n = shape.slice_rows * shape.out;
    const int64_t i = (int64_t)blockIdx.x * SIMT_THREADS + threadIdx.x;
    if (i >= n) return;
    float sum = 0.0f;
    for (int s = 0; s < n_slices; s++) sum += shape.slices[s * n + i];
    const int64_t row = shape.row_begin + i / shape.out, column = i % shape.out;
    int group = 0;
#pragma unroll
    for (int g = 1; g < M2_GROUPS_MAX; g++)
        if (g < shape.n_groups && row >= shape.begin[g]) group = g;
    if (bias.data) sum += simt_any_get(bias, group * shape.out + column);
    simt_put(y, row * shape.out + column, sum);
}

/* ---- launch ---------------------------------------------------------------------------------------- */

/* Rows [row_begin, row_end) of all; groups that lie outside are empty. */
static linear_shape shape_of(const m2_linear_args *args, int64_t row_begin, int64_t row_end,
                             int tile_m, int tile_n)
{
    linear_shape shape;
    shape.n_groups = args->groups ? args->groups->n_groups : 1;
    shape.k = args->w->shape[1];
    shape.n = m2_tensor_count(args->x) / shape.k;
    shape.out = args->w->shape[0] / shape.n_groups;
    shape.tiles_across = (shape.out + tile_n - 1) / tile_n;
    shape.slices = 0;
    shape.row_begin = row_begin;
    shape.slice_rows = row_end - row_begin;
    shape.begin[0] = row_begin;
    shape.tile_begin[0] = 0;
    for (int g = 0; g < M2_GROUPS_MAX; g++) {
        int64_t end = args->groups && g < shape.n_groups ? args->groups->begin[g + 1] : row_end;
        end = end < row_begin ? row_begin : end < row_end ? end : row_end;
        shape.begin[g + 1] = g < shape.n_groups ? end : shape.begin[g];
        const int64_t rows = shape.begin[g + 1] - shape.begin[g];
        shape.tile_begin[g + 1] = shape.tile_begin[g] + (rows + tile_m - 1) / tile_m;
    }
    return shape;
}

static unsigned int tiles_of(const linear_shape *shape)
{
    return (unsigned int)(shape->tile_begin[M2_GROUPS_MAX] * shape->tiles_across);
}

static int is_wide_linear(const m2_linear_args *args, const linear_shape *shape)
{
    return simt_is_wide(args->x, shape->k) && simt_is_wide(args->w, shape->k) &&
           simt_is_wide(args->y, shape->out);
}

static void linear_bf16(struct m2_gpu *gpu, const m2_linear_args *args, int64_t n)
{
    const linear_shape shape = shape_of(args, 0, n, TILE, TILE);
    SIMT_BY_TYPE(args->y->dtype, Y, SIMT_BY_WIDTH(is_wide_linear(args, &shape), WIDE, {
                     linear_bf16_kernel<Y, WIDE>
                         <<<tiles_of(&shape), SIMT_THREADS, 0, gpu->stream>>>(
                             (const gpu_bf16 *)args->x->data, (const gpu_bf16 *)args->w->data,
                             simt_any_of(args->bias), (Y *)args->y->data, shape);
                 }));
}

template <typename Y>
static void linear_f32_rows(struct m2_gpu *gpu, const m2_linear_args *args, linear_shape shape,
                            int n_slices)
{
    const simt_any bias = simt_any_of(args->bias);
    const dim3 grid(tiles_of(&shape), (unsigned int)n_slices);
    if (n_slices > 1) shape.slices = (float *)gpu->workspace;
    SIMT_BY_WIDTH(is_wide_linear(args, &shape), WIDE, {
        linear_f32_kernel<Y, WIDE><<<grid, SIMT_THREADS, 0, gpu->stream>>>(
            (const float *)args->x->data, (const float *)args->w->data, bias, (Y *)args->y->data,
            shape);
    });
    if (n_slices == 1) return;
    const int64_t n = shape.slice_rows * shape.out;
    join_kernel<Y>
        <<<(unsigned int)((n + SIMT_THREADS - 1) / SIMT_THREADS), SIMT_THREADS, 0, gpu->stream>>>(
            bias, (Y *)args->y->data, shape, n_slices);
}

/* Rows are taken as many at a time as the slices' sums have room for. */
static void linear_f32(struct m2_gpu *gpu, const m2_linear_args *args, int64_t n)
{
    const linear_shape whole = shape_of(args, 0, n, F32_ROWS, F32_COLS);
    const int is_sliced = whole.k > F32_PARTIAL && whole.out <= SLICED_OUT_MAX;
    const int n_slices = is_sliced ? (int)((whole.k + F32_PARTIAL - 1) / F32_PARTIAL) : 1;
    int64_t rows = n;
    if (is_sliced) {
        const int64_t row_bytes = n_slices * whole.out * (int64_t)sizeof(float);
        rows = (int64_t)M2_GPU_WORKSPACE_BYTES / row_bytes / F32_ROWS * F32_ROWS;
        assert(rows > 0);
    }
    for (int64_t begin = 0; begin < n; begin += rows) {
        const int64_t end = begin + rows < n ? begin + rows : n;
        const linear_shape shape = shape_of(args, begin, end, F32_ROWS, F32_COLS);
        SIMT_BY_TYPE(args->y->dtype, Y, linear_f32_rows<Y>(gpu, args, shape, n_slices));
    }
}

extern "C" void m2_gpu_linear_own(struct m2_gpu *gpu, const m2_linear_args *args)
{
    const int64_t k = args->w->shape[1], n = m2_tensor_count(args->x) / k;
    assert(args->w->dtype == args->x->dtype && m2_tensor_count(args->x) == n * k);
    if (m2_tensor_count(args->y) == 0) return;
    if (args->x->dtype == M2_BF16)
        linear_bf16(gpu, args, n);
    else
        linear_f32(gpu, args, n);
    m2_gpu_launched(gpu, "linear");
}
