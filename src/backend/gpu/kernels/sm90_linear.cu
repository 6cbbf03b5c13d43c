/* sm90_linear.cu - bf16 products for Hopper that do what follows them on the way out.
 *
 *   y = x . w[g]^T, g the group of a row, rounded to bf16, and then
 *     swiglu7         pairs of columns to one
 *     qk_norm_rope    queries and keys normed and turned, rows to sequence order
 *     nothing more, for rows with weights of their group: one launch for all groups
 *
 * Work     a tile is 128 rows of one group by 256 columns.  Blocks work in pairs (a cluster): two
 *          tiles of the same columns, one under the other, so that each block fetches half of the
 *          slice of w, for both.  Blocks stay and take pairs in turn: bands of a few column tiles,
 *          rows ascending inside a band, so that what runs together shares x and w in the L2.
 * Block    warpgroup 0 feeds a ring of stages by bulk copies (64 of K: 128 rows of x, 256 of w),
 *          warpgroups 1 and 2 compute 64 x 256 sums each in registers.
 * Way out  what follows begins with a rounding to bf16, so a finished tile is 64 words a thread.
 *          They are parked, and finished in 16 slices under the first 16 steps of the next tile:
 *          the matrix units do not wait for it.
 * Order    K ascending, one accumulator; no choice by the number of rows, so a row has the same bits
 *          in any call
 * Limits   K a multiple of 8 and at least 16 steps, columns a multiple of 32, heads of 128 of which
 *          96 turn
 * Twin     backend/joined.h        Speed  bench/gpu/bench_linear.cu */
#include "backend/gpu/kernels/sm90_linear_out.cuh"
#include "backend/gpu/sm90_tensor_map.h"

#define BAND_MAX     9 /* column tiles of a band */
#define N_RANKS      2 /* blocks of a cluster    */
#define N_STAGES     4

#define TILE_ROWS    128
#define TILE_COLUMNS 256
#define K_STAGE      64
#define ROW_BYTES    128
#define X_BYTES      (TILE_ROWS * ROW_BYTES)
#define W_BYTES      (TILE_COLUMNS * ROW_BYTES)
#define W_PART_BYTES (W_BYTES / N_RANKS)
#define STAGE_BYTES  (X_BYTES + W_BYTES)
#define SMEM_BYTES   (N_STAGES * STAGE_BYTES + 2 * N_STAGES * 8)
#define CONSUMERS    2
#define N_THREADS    ((CONSUMERS + 1) * 128)
#define N_SUMS       (TILE_COLUMNS / 2)
#define DESC_HIGH    sm90_desc_high(8 * ROW_BYTES, SM90_SWIZZLE_128)

/* ---- work ------------------------------------------------------------------------------------ */

/* Pairs of tiles, numbered by band, rows, columns. */
typedef struct linear_plan {
    int n_k;             /* steps of K_STAGE                    */
    int out;             /* columns of y                        */
    int n_columns, band; /* column tiles, and those of a band   */
    int n_lines, n_pairs; /* pairs of row tiles, pairs in all    */
    int n_groups;
    int line[M2_GROUPS_MAX]; /* first of each group */
    int begin[M2_GROUPS_MAX], end[M2_GROUPS_MAX]; /* its rows */
} linear_plan;

typedef struct linear_tile {
    int row, end; /* first row of this block, and behind the group's last */
    int column, group;
} linear_tile;

SM90_INLINE linear_tile tile_at(const linear_plan &plan, int pair, int rank)
{
    const int in_band = plan.n_lines * plan.band, band = pair / in_band;
    const int first = band * plan.band, rest = pair - band * in_band;
    const int width = min(plan.band, plan.n_columns - first), line = rest / width;
    linear_tile tile;
    tile.column = (first + rest - line * width) * TILE_COLUMNS;
    tile.group = 0;
#pragma unroll
    for (int g = 1; g < M2_GROUPS_MAX; g++)
        tile.group += g < plan.n_groups && line >= plan.line[g];
    tile.row = plan.begin[tile.group] +
               ((line - plan.line[tile.group]) * N_RANKS + rank) * TILE_ROWS;
    tile.end = plan.end[tile.group];
    return tile;
}

/* ---- the ring ---------------------------------------------------------------------------------- */

typedef struct linear_ring {
    uint32_t stages, full, empty; /* addresses; of consumers, `empty` is that of the block whose rank
                                     is the thread's number in its warpgroup */
    uint32_t slot, parity;
} linear_ring;

SM90_INLINE void ring_next(linear_ring *ring)
{
    if (++ring->slot == N_STAGES) {
        ring->slot = 0;
        ring->parity ^= 1;
    }
}

/* One thread: every stage of every tile of this block. */
SM90_INLINE void produce(const linear_plan &plan, linear_ring ring, const CUtensorMap *x_map,
                         const CUtensorMap *w_map)
{
    const int rank = (int)sm90_cluster_rank(), n_clusters = (int)gridDim.x / N_RANKS;
    for (int i = (int)blockIdx.x / N_RANKS; i < plan.n_pairs; i += n_clusters) {
        const linear_tile tile = tile_at(plan, i, rank);
        const int w_row = tile.group * plan.out + tile.column + rank * (TILE_COLUMNS / N_RANKS);
        for (int k = 0; k < plan.n_k; k++) {
            const uint32_t full = ring.full + 8 * ring.slot;
            const uint32_t x = ring.stages + ring.slot * STAGE_BYTES;
            const uint32_t w = x + X_BYTES + rank * W_PART_BYTES;
            sm90_bar_wait(ring.empty + 8 * ring.slot, ring.parity ^ 1);
            sm90_bar_arrive_expect(full, STAGE_BYTES);
            sm90_load_2d(x, x_map, full, k * K_STAGE, tile.row);
            sm90_load_2d_to(w, w_map, full, k * K_STAGE, w_row, (1 << N_RANKS) - 1);
            ring_next(&ring);
        }
    }
}

/* ---- computing ------------------------------------------------------------------------------------ */

/* The next step of K. */
SM90_INLINE void multiply(float (&sums)[N_SUMS], linear_ring *ring, uint32_t x_row, int is_adding)
{
    const uint32_t stage = ring->stages + ring->slot * STAGE_BYTES;
    sm90_bar_wait(ring->full + 8 * ring->slot, ring->parity);
    const uint32_t a = sm90_desc(stage + x_row, 0), b = sm90_desc(stage + X_BYTES, 0);
    sm90_wgmma_fence();
#pragma unroll
    for (int k = 0; k < K_STAGE / 16; k++)
        sm90_wgmma_ss<0>(sums, a + 2 * k, DESC_HIGH, b + 2 * k, DESC_HIGH, is_adding || k > 0);
    sm90_wgmma_commit();
    ring_next(ring);
}

/* This warpgroup has left the next slot. */
SM90_INLINE void ring_leave(const linear_ring *ring, uint32_t *left)
{
    if (threadIdx.x % 128 < N_RANKS) sm90_bar_arrive_at(ring->empty + 8 * *left);
    *left = *left + 1 == N_STAGES ? 0 : *left + 1;
}

SM90_INLINE void park(const float (&sums)[N_SUMS], uint32_t (&words)[N_WORDS])
{
#pragma unroll
    for (int i = 0; i < N_WORDS; i++) {
        words[i] = simt_bf16_pair(sums[2 * i], sums[2 * i + 1]);
        asm volatile("" : "+r"(words[i])); /* before the next products overwrite the sums */
    }
}

/* One tile's products, and the way out of the one before. */
template <typename OUT>
SM90_INLINE void one_tile(const OUT &out, const parked &at, const uint32_t (&words)[N_WORDS],
                          float (&sums)[N_SUMS], int n_k, linear_ring *ring, uint32_t *left,
                          uint32_t x_row)
{
#pragma unroll
    for (int slice = 0; slice < N_SLICES; slice++) {
        multiply(sums, ring, x_row, slice > 0);
        finish(out, at, slice, words);
        sm90_wgmma_wait<1>();
        if (slice > 0) ring_leave(ring, left);
    }
#pragma unroll 1
    for (int k = N_SLICES; k < n_k; k++) {
        multiply(sums, ring, x_row, 1);
        sm90_wgmma_wait<1>();
        ring_leave(ring, left);
    }
    sm90_wgmma_wait<0>();
    ring_leave(ring, left);
    sm90_wgmma_pin(sums);
}

/* The first of this thread's two rows in a tile. */
SM90_INLINE int own_row(void)
{
    return ((int)threadIdx.x / 32 - 4) * 16 + (int)threadIdx.x % 32 / 4;
}

template <typename OUT>
SM90_INLINE void consume(const linear_plan &plan, const OUT &out, linear_ring ring)
{
    const int n_clusters = (int)gridDim.x / N_RANKS;
    const int group_row = 64 * ((int)threadIdx.x / 128 - 1);
    uint32_t words[N_WORDS] = { 0 }, left = 0; /* left: the slot that is left next */
    float sums[N_SUMS];
    static_assert(N_SUMS == 2 * N_WORDS, "a word is two sums");
    parked at = { 0, 0, 0, 0 };
    for (int i = (int)blockIdx.x / N_RANKS; i < plan.n_pairs; i += n_clusters) {
        one_tile(out, at, words, sums, plan.n_k, &ring, &left, group_row * ROW_BYTES);
        park(sums, words);
        asm volatile("" : "+r"(i)); /* found again rather than kept: registers are short */
        const linear_tile tile = tile_at(plan, i, (int)sm90_cluster_rank());
        at.row = tile.row + own_row();
        at.left = tile.end - at.row;
        at.column = tile.column;
        at.group = tile.group;
    }
#pragma unroll
    for (int slice = 0; slice < N_SLICES; slice++) finish(out, at, slice, words);
}

template <typename OUT>
static __global__ void __cluster_dims__(N_RANKS, 1, 1) __launch_bounds__(N_THREADS, 1)
    linear_kernel(const __grid_constant__ CUtensorMap x_map,
                  const __grid_constant__ CUtensorMap w_map,
                  const __grid_constant__ linear_plan plan, const __grid_constant__ OUT out)
{
    extern __shared__ __align__(1024) uint8_t shared[];
    const uint32_t base = sm90_smem(shared), bars = base + N_STAGES * STAGE_BYTES;
    linear_ring ring = { base, bars, bars + 8 * N_STAGES, 0, 0 };
    if (threadIdx.x == 0) {
        for (int i = 0; i < N_STAGES; i++) {
            sm90_bar_init(ring.full + 8 * i, 1);
            sm90_bar_init(ring.empty + 8 * i, CONSUMERS * N_RANKS);
        }
        sm90_bar_init_fence();
        sm90_map_prefetch(&x_map);
        sm90_map_prefetch(&w_map);
    }
    __syncthreads();
    sm90_cluster_sync();
    if (threadIdx.x < 128) {
        sm90_registers_give<24>();
        if (threadIdx.x < 32 && sm90_elect()) produce(plan, ring, &x_map, &w_map);
    } else {
        sm90_registers_take<240>();
        ring.empty = sm90_place_in(ring.empty, threadIdx.x % N_RANKS);
        consume(plan, out, ring);
    }
    __syncwarp();
    sm90_cluster_sync(); /* the other block may still signal here */
}

/* ---- launch ---------------------------------------------------------------------------------------- */

typedef struct linear_shape {
    int64_t n, k, out;
    m2_groups groups;
} linear_shape;

static linear_shape shape_of(const m2_linear_args *args)
{
    linear_shape shape;
    shape.k = args->x->shape[args->x->n_dims - 1];
    shape.n = m2_tensor_count(args->x) / shape.k;
    const m2_groups whole = { 1, { 0, shape.n } };
    shape.groups = args->groups ? *args->groups : whole;
    shape.out = args->w->shape[0] / shape.groups.n_groups;
    return shape;
}

static int is_ours(const struct m2_gpu *gpu, const m2_linear_args *args, const linear_shape *shape)
{
    return gpu->smem_max >= SMEM_BYTES && args->x->dtype == M2_BF16 && args->w->dtype == M2_BF16 &&
           args->y->dtype == M2_BF16 && !args->bias && shape->k % 8 == 0 &&
           shape->k > (N_SLICES - 1) * K_STAGE && shape->out % 32 == 0 &&
           shape->n <= INT32_MAX / 2 && shape->n / TILE_ROWS * shape->out <= INT32_MAX &&
           simt_is_wide(args->x, 0) && simt_is_wide(args->w, 0);
}

static linear_plan plan_of(const linear_shape *shape)
{
    linear_plan plan = {};
    plan.n_k = (int)((shape->k + K_STAGE - 1) / K_STAGE);
    plan.out = (int)shape->out;
    plan.n_columns = (int)((shape->out + TILE_COLUMNS - 1) / TILE_COLUMNS);
    const int n_bands = (plan.n_columns + BAND_MAX - 1) / BAND_MAX;
    plan.band = (plan.n_columns + n_bands - 1) / n_bands;
    plan.n_groups = shape->groups.n_groups;
    for (int g = 0; g < plan.n_groups; g++) {
        const int begin = (int)shape->groups.begin[g], end = (int)shape->groups.begin[g + 1];
        plan.line[g] = plan.n_lines;
        plan.begin[g] = begin;
        plan.end[g] = end;
        plan.n_lines += (end - begin + N_RANKS * TILE_ROWS - 1) / (N_RANKS * TILE_ROWS);
    }
    plan.n_pairs = plan.n_lines * plan.n_columns;
    return plan;
}

template <typename OUT>
static int launch(struct m2_gpu *gpu, const m2_linear_args *args, const OUT &out, const char *name)
{
    const linear_shape shape = shape_of(args);
    const int n_clusters = gpu->n_mps / N_RANKS;
    CUtensorMap x_map, w_map;
    if (!is_ours(gpu, args, &shape)) return 0;
    const linear_plan plan = plan_of(&shape);
    if (plan.n_pairs == 0) return 1;
    const int64_t x_shape[2] = { shape.n, shape.k }, w_shape[2] = { args->w->shape[0], shape.k };
    const int x_box[2] = { TILE_ROWS, K_STAGE }, w_box[2] = { TILE_COLUMNS / N_RANKS, K_STAGE };
    if (!m2_sm90_map_bf16(&x_map, args->x->data, 2, x_shape, x_box) ||
        !m2_sm90_map_bf16(&w_map, args->w->data, 2, w_shape, w_box))
        return 0;
    const int n_blocks = N_RANKS * (plan.n_pairs < n_clusters ? plan.n_pairs : n_clusters);
    gpuFuncSetAttribute(linear_kernel<OUT>, gpuFuncAttributeMaxDynamicSharedMemorySize, SMEM_BYTES);
    linear_kernel<OUT><<<n_blocks, N_THREADS, SMEM_BYTES, gpu->stream>>>(x_map, w_map, plan, out);
    m2_gpu_launched(gpu, name);
    return 1;
}

extern "C" int m2_sm90_linear(struct m2_gpu *gpu, const m2_linear_args *args)
{
    const out_plain out = { (gpu_bf16 *)args->y->data, (int)args->y->shape[1] };
    return simt_is_wide(args->y, 0) && launch(gpu, args, out, "linear");
}

extern "C" int m2_sm90_linear_swiglu7(struct m2_gpu *gpu, const m2_linear_swiglu7_args *args)
{
    const out_swiglu7 out = { (gpu_bf16 *)args->y->data, (int)args->y->shape[1] };
    return args->y->dtype == M2_BF16 && simt_is_wide(args->y, 0) &&
           launch(gpu, &args->linear, out, "linear_swiglu7");
}

extern "C" int m2_sm90_linear_qk_norm_rope(struct m2_gpu *gpu,
                                           const m2_linear_qk_norm_rope_args *args)
{
    const m2_qk_norm_rope_args *heads = &args->heads;
    const out_heads out = { (const float *)heads->q_norm->data,
                            (const float *)heads->k_norm->data,
                            (const float *)heads->rope->data,
                            (const int32_t *)heads->seq->data,
                            (gpu_bf16 *)heads->q->data,
                            (gpu_bf16 *)heads->k->data,
                            (gpu_bf16 *)heads->v->data,
                            (int)heads->q->shape[1],
                            (int)heads->k->shape[1],
                            heads->eps };
    return heads->q->shape[2] == HEAD_DIM && heads->rope->shape[1] == 2 * N_ROT &&
           simt_is_wide(heads->q, 0) && simt_is_wide(heads->k, 0) && simt_is_wide(heads->v, 0) &&
           simt_is_wide(heads->q_norm, 0) && simt_is_wide(heads->k_norm, 0) &&
           simt_is_wide(heads->rope, 0) &&
           launch(gpu, &args->linear, out, "linear_qk_norm_rope");
}
