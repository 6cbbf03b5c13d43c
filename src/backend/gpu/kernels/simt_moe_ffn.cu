/* simt_moe_ffn.cu - routed experts on the matrix units that every vendor has, any width.
 *
 *   hid = bf16(swiglu7(x . w_gate, x . w_up)),  r = bf16((hid . w_down) * p),  y = sum of a token's r
 *
 * In       x [n, Hm, dh] bf16, routes sorted by (head, expert) as moe_dispatch leaves them, weights as
 *          in the checkpoint, [Hm * E, dh, width] and [Hm * E, width, dh]
 * Out      routes [n_routes, dh] bf16, then y [n, Hm, dh] bf16
 * Why      a block keeps 64 routes of one expert; 64 of the expert's width at a time pass through
 *          shared memory, so the hidden values never reach memory.  Tile edges are zeros, which a
 *          product does not see, so one kernel takes any dh and width
 * Order    K ascending; a token's experts ascending; which routes share a tile does not matter
 * Twin     backend/cpu/ref/moe_ffn.c */
#include "backend/gpu/kernels/simt_common.cuh"

#include <assert.h>

#define ROUTES      64  /* of one expert in a block                       */
#define CHUNK       64  /* of dh in a gate or up step, and of the width   */
#define DOWN        128 /* outputs of a down step                         */
#define OUT_CHUNK   256 /* outputs of a block                             */
#define STRIDE      (CHUNK + 8)
#define DOWN_STRIDE (DOWN + 8)
#define STAGE_COLS  20
#define TILES_MAX   16 /* blocks that share the routes of one expert     */

typedef gpu_wmma::fragment<gpu_wmma::matrix_a, 16, 16, 16, gpu_bf16, gpu_wmma::row_major> frag_a;
typedef gpu_wmma::fragment<gpu_wmma::matrix_b, 16, 16, 16, gpu_bf16, gpu_wmma::row_major> frag_b;
typedef gpu_wmma::fragment<gpu_wmma::accumulator, 16, 16, 16, float> frag_c;

typedef struct moe_shape {
    int n, n_heads, n_experts, dim, width, top_k; /* n_experts of one head */
} moe_shape;

typedef struct moe_pointers {
    const gpu_bf16 *x, *w_gate, *w_up, *w_down;
    const int32_t *gather_ids, *offsets, *route_pos;
    const float *probs;
    gpu_bf16 *routes, *y;
} moe_pointers;

/* x and the weights of a gate and up step; then, in the same memory, those of a down step. */
typedef struct moe_shared {
    union {
        struct {
            gpu_bf16 x[ROUTES * STRIDE], gate[CHUNK * STRIDE], up[CHUNK * STRIDE];
        } in;
        gpu_bf16 down[CHUNK * DOWN_STRIDE];
    } tiles;
    gpu_bf16 hid[ROUTES * STRIDE];
    float stage[SIMT_WARPS][16 * STAGE_COLS];
} moe_shared;

/* Rows [row, row + N_ROWS) and columns [column, column + N_COLUMNS) of a matrix [n_rows, width]. */
template <int N_ROWS, int N_COLUMNS, int IS_WIDE>
static __device__ __forceinline__ void load_tile(const gpu_bf16 *w, int n_rows, int width, int row,
                                                 int column, gpu_bf16 *to)
{
#pragma unroll
    for (int i = threadIdx.x; i < N_ROWS * N_COLUMNS / 8; i += SIMT_THREADS) {
        const int r = i / (N_COLUMNS / 8), c = i % (N_COLUMNS / 8) * 8;
        uint4 unit = make_uint4(0, 0, 0, 0);
        if (row + r < n_rows)
            unit = simt_load_unit<IS_WIDE>(w + (int64_t)(row + r) * width, width, column + c);
        *(uint4 *)(to + r * (N_COLUMNS + 8) + c) = unit;
    }
}

/* The routes of a block: [begin, end) of all sorted ones, of one (head, expert). */
typedef struct moe_tile {
    int row, head, begin, end; /* row: head * n_experts + expert */
} moe_tile;

template <int IS_WIDE>
static __device__ __forceinline__ void load_x(const moe_pointers &p, const moe_shape &shape,
                                              const moe_tile &tile, int d, gpu_bf16 *to)
{
#pragma unroll
    for (int i = threadIdx.x; i < ROUTES * CHUNK / 8; i += SIMT_THREADS) {
        const int r = i / (CHUNK / 8), c = i % (CHUNK / 8) * 8;
        uint4 unit = make_uint4(0, 0, 0, 0);
        if (tile.begin + r < tile.end) {
            const int64_t token = p.gather_ids[tile.begin + r];
            unit = simt_load_unit<IS_WIDE>(p.x + (token * shape.n_heads + tile.head) * shape.dim,
                                      shape.dim, d + c);
        }
        *(uint4 *)(to + r * STRIDE + c) = unit;
    }
}

/* Hidden values [first, first + CHUNK) of the tile's routes, to shared memory.  A warp makes 16 rows
 * and 32 columns of gate and of up, whose fragments are laid out alike. */
template <int IS_WIDE>
static __device__ __forceinline__ void make_hidden(const moe_pointers &p, const moe_shape &shape,
                                                   const moe_tile &tile, int first,
                                                   moe_shared *shared)
{
    const int warp = threadIdx.x / SIMT_WARP, lane = threadIdx.x % SIMT_WARP;
    const int warp_row = warp % 4 * 16, warp_column = warp / 4 * 32;
    const int64_t w_begin = (int64_t)tile.row * shape.dim * shape.width;
    frag_c gate[2], up[2];
#pragma unroll
    for (int j = 0; j < 2; j++) {
        gpu_wmma::fill_fragment(gate[j], 0.0f);
        gpu_wmma::fill_fragment(up[j], 0.0f);
    }
    for (int d = 0; d < shape.dim; d += CHUNK) {
        __syncthreads(); /* what stood there has been read */
        load_x<IS_WIDE>(p, shape, tile, d, shared->tiles.in.x);
        load_tile<CHUNK, CHUNK, IS_WIDE>(p.w_gate + w_begin, shape.dim, shape.width, d, first,
                                         shared->tiles.in.gate);
        load_tile<CHUNK, CHUNK, IS_WIDE>(p.w_up + w_begin, shape.dim, shape.width, d, first,
                                         shared->tiles.in.up);
        __syncthreads();
#pragma unroll
        for (int k = 0; k < CHUNK; k += 16) {
            frag_a a;
            gpu_wmma::load_matrix_sync(a, shared->tiles.in.x + warp_row * STRIDE + k, STRIDE);
#pragma unroll
            for (int j = 0; j < 2; j++) {
                frag_b b;
                const int at = k * STRIDE + warp_column + j * 16;
                gpu_wmma::load_matrix_sync(b, shared->tiles.in.gate + at, STRIDE);
                gpu_wmma::mma_sync(gate[j], a, b, gate[j]);
                gpu_wmma::load_matrix_sync(b, shared->tiles.in.up + at, STRIDE);
                gpu_wmma::mma_sync(up[j], a, b, up[j]);
            }
        }
    }
    float *stage = shared->stage[warp];
#pragma unroll
    for (int j = 0; j < 2; j++) {
#pragma unroll
        for (int i = 0; i < gate[j].num_elements; i++)
            gate[j].x[i] = simt_swiglu7(gate[j].x[i], up[j].x[i]);
        gpu_wmma::store_matrix_sync(stage, gate[j], STAGE_COLS, gpu_wmma::mem_row_major);
        gpu_syncwarp();
        const int r = lane / 2, c = lane % 2 * 8;
        float value[8];
#pragma unroll
        for (int i = 0; i < 8; i++) value[i] = stage[r * STAGE_COLS + c + i];
        simt_put8(shared->hid, (warp_row + r) * STRIDE + warp_column + j * 16 + c, value);
        gpu_syncwarp();
    }
}

/* A warp's 16 x 16 results times their routes' weights, rounded, to memory. */
template <int IS_WIDE>
static __device__ __forceinline__ void store_routes(const float *stage, const moe_pointers &p,
                                                    const moe_shape &shape, const moe_tile &tile,
                                                    int row, int column)
{
    const int lane = threadIdx.x % SIMT_WARP, r = lane / 2, c = lane % 2 * 8;
    const int64_t route = tile.begin + row + r;
    const int left = shape.dim - column - c;
    if (route >= tile.end || left <= 0) return;
    const float prob = p.probs[route];
    float value[8];
#pragma unroll
    for (int i = 0; i < 8; i++) value[i] = stage[r * STAGE_COLS + c + i] * prob;
    simt_put_some<IS_WIDE>(p.routes, route * shape.dim + column + c, left, value);
}

template <int IS_WIDE>
static __global__ void __launch_bounds__(SIMT_THREADS, 1)
    routes_kernel(moe_pointers p, moe_shape shape)
{
    __shared__ __align__(128) moe_shared shared;
    const int warp = threadIdx.x / SIMT_WARP;
    const int warp_row = warp % 4 * 16, warp_column = warp / 4 * (DOWN / 2);
    const int out = blockIdx.y * OUT_CHUNK;
    moe_tile tile;
    tile.row = blockIdx.x;
    tile.head = tile.row / shape.n_experts;
    tile.end = p.offsets[tile.row + 1];
    const int64_t w_begin = (int64_t)tile.row * shape.width * shape.dim;
    for (tile.begin = p.offsets[tile.row] + blockIdx.z * ROUTES; tile.begin < tile.end;
         tile.begin += gridDim.z * ROUTES) {
        frag_c sums[OUT_CHUNK / DOWN][DOWN / 32];
#pragma unroll
        for (int part = 0; part < OUT_CHUNK / DOWN; part++)
#pragma unroll
            for (int j = 0; j < DOWN / 32; j++) gpu_wmma::fill_fragment(sums[part][j], 0.0f);
        for (int first = 0; first < shape.width; first += CHUNK) {
            make_hidden<IS_WIDE>(p, shape, tile, first, &shared);
#pragma unroll
            for (int part = 0; part < OUT_CHUNK / DOWN; part++) {
                __syncthreads(); /* hid is complete, what stood in the tiles has been read */
                load_tile<CHUNK, DOWN, IS_WIDE>(p.w_down + w_begin, shape.width, shape.dim, first,
                                                out + part * DOWN, shared.tiles.down);
                __syncthreads();
#pragma unroll
                for (int k = 0; k < CHUNK; k += 16) {
                    frag_a a;
                    gpu_wmma::load_matrix_sync(a, shared.hid + warp_row * STRIDE + k, STRIDE);
#pragma unroll
                    for (int j = 0; j < DOWN / 32; j++) {
                        frag_b b;
                        gpu_wmma::load_matrix_sync(
                            b, shared.tiles.down + k * DOWN_STRIDE + warp_column + j * 16,
                            DOWN_STRIDE);
                        gpu_wmma::mma_sync(sums[part][j], a, b, sums[part][j]);
                    }
                }
            }
        }
        float *stage = shared.stage[warp];
#pragma unroll
        for (int part = 0; part < OUT_CHUNK / DOWN; part++) {
#pragma unroll
            for (int j = 0; j < DOWN / 32; j++) {
                gpu_wmma::store_matrix_sync(stage, sums[part][j], STAGE_COLS,
                                            gpu_wmma::mem_row_major);
                gpu_syncwarp();
                store_routes<IS_WIDE>(stage, p, shape, tile, warp_row,
                                      out + part * DOWN + warp_column + j * 16);
                gpu_syncwarp();
            }
        }
    }
}

/* y = a token's routes added in bf16 in ascending order of their experts, eight dims a thread. */
template <int IS_WIDE> static __global__ void sum_kernel(moe_pointers p, moe_shape shape)
{
    const int token = blockIdx.x;
    const int per_head = (shape.dim + 7) / 8;
    for (int i = threadIdx.x; i < shape.n_heads * per_head; i += SIMT_THREADS) {
        const int head = i / per_head, d = (i - head * per_head) * 8;
        const int left = shape.dim - d;
        const int32_t *position = p.route_pos + ((int64_t)head * shape.n + token) * shape.top_k;
        float sum[8] = { 0 };
        for (int j = 0; j < shape.top_k; j++) {
            float route[8];
            simt_get_some<IS_WIDE>(p.routes, (int64_t)position[j] * shape.dim + d, left, route);
#pragma unroll
            for (int e = 0; e < 8; e++) sum[e] = simt_round_bf16(sum[e] + route[e]);
        }
        simt_put_some<IS_WIDE>(p.y, ((int64_t)token * shape.n_heads + head) * shape.dim + d, left,
                               sum);
    }
}

extern "C" void m2_gpu_moe_ffn(const m2_ops *ops, const m2_moe_ffn_args *args)
{
    struct m2_gpu *gpu = m2_gpu_of(ops);
    if (M2_GPU_TRY_SM90(moe_ffn, gpu, args)) return;
    const int64_t n_rows = args->w_gate->shape[0];
    moe_shape shape;
    shape.n = (int)args->x->shape[0];
    shape.n_heads = (int)args->x->shape[1];
    shape.n_experts = (int)(n_rows / shape.n_heads);
    shape.dim = (int)args->x->shape[2];
    shape.width = (int)args->w_gate->shape[2];
    shape.top_k = (int)args->route_pos->shape[2];
    assert(args->x->dtype == M2_BF16 && args->w_gate->dtype == M2_BF16);
    assert(args->w_gate->shape[1] == shape.dim && args->w_down->shape[1] == shape.width);
    assert(m2_tensor_count(args->expert_offsets) == n_rows + 1);
    if (shape.n == 0) return;
    const moe_pointers p = {
        (const gpu_bf16 *)args->x->data,         (const gpu_bf16 *)args->w_gate->data,
        (const gpu_bf16 *)args->w_up->data,      (const gpu_bf16 *)args->w_down->data,
        (const int32_t *)args->gather_ids->data, (const int32_t *)args->expert_offsets->data,
        (const int32_t *)args->route_pos->data,  (const float *)args->probs_sorted->data,
        (gpu_bf16 *)args->routes->data,          (gpu_bf16 *)args->y->data
    };
    const int is_wide =
        simt_is_wide(args->x, shape.dim) && simt_is_wide(args->w_gate, shape.width) &&
        simt_is_wide(args->w_up, shape.width) && simt_is_wide(args->w_down, shape.dim) &&
        simt_is_wide(args->routes, shape.dim) && simt_is_wide(args->y, shape.dim);
    const int tiles =
        (shape.n + ROUTES - 1) / ROUTES; /* an expert cannot have more routes than n */
    const dim3 grid((unsigned int)n_rows, (unsigned int)((shape.dim + OUT_CHUNK - 1) / OUT_CHUNK),
                    (unsigned int)(tiles < TILES_MAX ? tiles : TILES_MAX));
    SIMT_BY_WIDTH(is_wide, WIDE, {
        routes_kernel<WIDE><<<grid, SIMT_THREADS, 0, gpu->stream>>>(p, shape);
        sum_kernel<WIDE><<<(unsigned int)shape.n, SIMT_THREADS, 0, gpu->stream>>>(p, shape);
    });
    m2_gpu_launched(gpu, "moe_ffn");
}
