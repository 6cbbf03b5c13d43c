/* sm90_moe_ffn.cu - routed expert FFN of the preview transformer, Hopper.
 *
 *   r[route] = bf16(p * (bf16(swiglu7(x . w_gate[e], x . w_up[e])) . w_down[e]))
 *   y[t, h]  = the routes of (t, h) in ascending order of experts, every addition rounded to bf16
 *
 * Work     a tile is up to 128 routes of one expert.  Blocks work in pairs (a cluster): a step is
 *          either two tiles of one expert, whose weights each block fetches half of, for both, or
 *          the last tiles of two experts, each block fetching its own.  The list of steps is made
 *          on the device from expert_offsets, experts ascending: the steps in flight share some 24
 *          experts, whose weights are read from memory once and then come from L2.
 * Block    warpgroup 0 feeds a ring of weight stages by bulk copies, warpgroups 1 and 2 compute 64
 *          rows each.  The tile of x stays in shared memory.  For each of 20 chunks of 64 hidden
 *          values: gate and up as one m64n128 product ([64 gate columns | 64 up columns], so that
 *          gate and up of one value meet in one thread), swiglu7, and the result is the A operand
 *          of the down product in registers: hidden values never touch shared memory.
 * Weights  as in the checkpoint, [in][out]: B with the output index contiguous, in slabs of 64
 *          columns x 64 rows (8 KiB, rows of 128 bytes, swizzled).
 * Order    of products: gate | up of chunk c, then down of chunk c - 1, which runs under the
 *          activation of chunk c.
 * Ring     a stage is two slabs: 4 stages of gate | up (64 inputs each) and 2 of down (128 outputs
 *          each) a chunk, in the order of the products.  A stage is free when all warps of both
 *          blocks have left it, in steps of either kind: either block may write it next.
 * Limits   head width 256, expert width 1280; other shapes go to simt_moe_ffn.cu.
 * Numerics f32 accumulators in ascending K; rounds to bf16 after swiglu7, after p, in each addition
 * Bits     of a row depend on its own x, p and weights alone
 * Twin     backend/cpu/ref/moe_ffn.c       Speed  bench/gpu/bench_moe_ffn.cu
 */
#include <assert.h>

#include "backend/gpu/kernels/sm90_ptx.cuh"
#include "backend/gpu/launch.h"
#include "backend/gpu/sm90_tensor_map.h"

#define DIM          256
#define WIDTH        1280
#define TILE_ROWS    128
#define CHUNK        64
#define N_CHUNKS     (WIDTH / CHUNK)
#define N_SLABS      (DIM / 64)
#define SLAB_BYTES   8192
#define STAGE_BYTES  (2 * SLAB_BYTES)
#define N_STAGES     10
#define X_SLAB_BYTES (TILE_ROWS * 128)
#define X_BYTES      (N_SLABS * X_SLAB_BYTES)
#define RING_BYTES   (N_STAGES * STAGE_BYTES)
#define SMEM_BYTES   (X_BYTES + RING_BYTES + 2 * N_STAGES * 8)
#define N_THREADS    384
#define N_WARPS      8 /* that compute */
#define N_RANKS      2 /* blocks of a cluster */

#define X_HIGH sm90_desc_high(1024, SM90_SWIZZLE_128) /* 8 rows of 128 bytes                      */
#define W_HIGH sm90_desc_high(1024, SM90_SWIZZLE_128) /* 8 inputs; the leading offset is a slab   */

/* One block's part of a step. */
typedef struct ffn_item {
    int expert; /* head * n_experts + expert                                  */
    int first;  /* route of the tile's first row                              */
    int rows;   /* 0 to 128                                                   */
    int shared; /* the cluster's other block works on the same expert         */
} ffn_item;

typedef struct ffn_params {
    const gpu_bf16 *x;
    const int32_t *tokens; /* gather_ids */
    const float *probs;
    const ffn_item *items; /* [n_steps][N_RANKS] */
    const int32_t *n_steps;
    gpu_bf16 *routes;
    int n_heads, n_experts;
} ffn_params;

/* ---- the list of steps ----------------------------------------------------------------------- */

#define PLAN_THREADS 1024

/* Sum over the threads before this one; *total_out over all. */
static __device__ int2 sum_before(int2 value, int2 *total_out)
{
    __shared__ int2 warps[PLAN_THREADS / 32];
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    int2 sum = value;
    for (int by = 1; by < 32; by *= 2) {
        const int a = gpu_shfl_up(sum.x, by), b = gpu_shfl_up(sum.y, by);
        if (lane >= by) sum = make_int2(sum.x + a, sum.y + b);
    }
    if (lane == 31) warps[warp] = sum;
    __syncthreads();
    int2 before = make_int2(sum.x - value.x, sum.y - value.y), total = make_int2(0, 0);
    for (int i = 0; i < PLAN_THREADS / 32; i++) {
        if (i == warp) before = make_int2(before.x + total.x, before.y + total.y);
        total = make_int2(total.x + warps[i].x, total.y + warps[i].y);
    }
    *total_out = total;
    return before;
}

/* Rows of an expert as steps of two tiles, and whether one tile is left over. */
static __device__ int n_pairs_of(int rows)
{
    return rows / (2 * TILE_ROWS) + (rows % (2 * TILE_ROWS) > TILE_ROWS);
}

static __device__ int is_tile_left(int rows)
{
    const int rest = rows % (2 * TILE_ROWS);
    return rest > 0 && rest <= TILE_ROWS;
}

/* One block.  Left-over tiles are numbered through all experts; 2 i opens a step behind the pairs
 * of its expert, 2 i + 1 joins it.  opened[i] is that step. */
static __global__ void __launch_bounds__(PLAN_THREADS)
    make_steps(const int32_t *offsets, int n_experts, ffn_item *items, int32_t *opened,
               int32_t *n_steps_out)
{
    const int each = (n_experts + PLAN_THREADS - 1) / PLAN_THREADS;
    const int begin = min((int)threadIdx.x * each, n_experts);
    const int end = min(begin + each, n_experts);
    int2 count = make_int2(0, 0), total; /* pairs, left-over tiles */
    for (int e = begin; e < end; e++) {
        const int rows = offsets[e + 1] - offsets[e];
        count.x += n_pairs_of(rows);
        count.y += is_tile_left(rows);
    }
    const int2 before = sum_before(count, &total);

    int pair = before.x, left = before.y;
    for (int e = begin; e < end; e++) {
        const int first = offsets[e], rows = offsets[e + 1] - first;
        const int n_pairs = n_pairs_of(rows);
        for (int i = 0; i < n_pairs; i++) {
            const int at = first + 2 * TILE_ROWS * i, rest = rows - 2 * TILE_ROWS * i - TILE_ROWS;
            ffn_item *step = items + N_RANKS * (pair + i + (left + 1) / 2);
            step[0] = { e, at, TILE_ROWS, 1 };
            step[1] = { e, at + TILE_ROWS, min(rest, TILE_ROWS), 1 };
        }
        pair += n_pairs;
        if (is_tile_left(rows)) {
            if (left % 2 == 0) opened[left / 2] = pair + left / 2;
            left++;
        }
    }
    __syncthreads();

    left = before.y;
    for (int e = begin; e < end; e++) {
        const int first = offsets[e], rows = offsets[e + 1] - first;
        if (!is_tile_left(rows)) continue;
        const int n = rows % (2 * TILE_ROWS), at = first + rows - n;
        const int is_alone = left % 2 == 0 && left + 1 == total.y;
        ffn_item *step = items + N_RANKS * opened[left / 2];
        step[left % 2] = { e, at, n, is_alone };
        if (is_alone) step[1] = { e, at, 0, 1 };
        left++;
    }
    if (threadIdx.x == 0) *n_steps_out = total.x + (total.y + 1) / 2;
}

/* ---- the ring ------------------------------------------------------------------------------- */

typedef struct ffn_ring {
    uint32_t stages, full, empty; /* addresses in shared memory; computing lanes 0 and 1: `empty` is
                                     the one of block 0 and 1                             */
    uint32_t slot, parity;
} ffn_ring;

SM90_INLINE void ring_next(ffn_ring *ring)
{
    if (++ring->slot == N_STAGES) {
        ring->slot = 0;
        ring->parity ^= 1;
    }
}

/* A stage that all warps of both blocks have left, announced to its readers in this block. */
SM90_INLINE uint32_t ring_take(const ffn_ring *ring)
{
    sm90_bar_wait(ring->empty + 8 * ring->slot, ring->parity ^ 1);
    sm90_bar_arrive_expect(ring->full + 8 * ring->slot, STAGE_BYTES);
    return ring->stages + STAGE_BYTES * ring->slot;
}

/* This warp has left the stage. */
SM90_INLINE void ring_leave(const ffn_ring *ring, uint32_t slot)
{
    if (threadIdx.x % 32 < N_RANKS) sm90_bar_arrive_at(ring->empty + 8 * slot);
}

SM90_INLINE void ring_leave_next(const ffn_ring *ring, uint32_t *left, int n)
{
    for (int i = 0; i < n; i++) {
        ring_leave(ring, *left);
        *left = *left + 1 == N_STAGES ? 0 : *left + 1;
    }
}

/* ---- feeding -------------------------------------------------------------------------------- */

/* Two slabs side by side: of one matrix, or of two at the same place.  A shared stage is fetched by
 * both blocks, a slab each, for both. */
SM90_INLINE void feed_stage(ffn_ring *ring, const CUtensorMap *a, const CUtensorMap *b, int xa,
                            int xb, int y, int is_shared, uint32_t rank)
{
    const uint32_t stage = ring_take(ring), full = ring->full + 8 * ring->slot;
    if (!is_shared) {
        sm90_load_2d(stage, a, full, xa, y);
        sm90_load_2d(stage + SLAB_BYTES, b, full, xb, y);
    } else {
        sm90_load_2d_to(stage + SLAB_BYTES * rank, rank ? b : a, full, rank ? xb : xa, y, 3);
    }
    ring_next(ring);
}

SM90_INLINE void feed(const ffn_params *params, ffn_ring *ring, const CUtensorMap *gate,
                      const CUtensorMap *up, const CUtensorMap *down)
{
    const uint32_t rank = sm90_cluster_rank(), n_clusters = sm90_n_clusters();
    const int n_steps = *params->n_steps;
    for (int step = (int)sm90_cluster_idx(); step < n_steps; step += (int)n_clusters) {
        const ffn_item *item = params->items + N_RANKS * step + rank;
        const int e = item->expert, is_shared = item->shared;
        for (int c = 0; c <= N_CHUNKS; c++) {
            if (c < N_CHUNKS)
                for (int k = 0; k < N_SLABS; k++)
                    feed_stage(ring, gate, up, CHUNK * c, CHUNK * c, e * DIM + 64 * k, is_shared,
                               rank);
            if (c > 0)
                for (int h = 0; h < 2; h++)
                    feed_stage(ring, down, down, 128 * h, 128 * h + 64, e * WIDTH + CHUNK * (c - 1),
                               is_shared, rank);
        }
    }
}

/* ---- computing ------------------------------------------------------------------------------ */

/* (g * sigmoid(1.702 g)) * (l + 1) with the cuts of spec 01; NaN stays NaN. */
SM90_INLINE float swiglu7(float gate, float linear)
{
    float power, part;
    asm("min.NaN.f32 %0, %0, 0f40E00000;" : "+f"(gate));
    asm("min.NaN.f32 %0, %0, 0f40E00000;" : "+f"(linear));
    asm("max.NaN.f32 %0, %0, 0fC0E00000;" : "+f"(linear));
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(power) : "f"(gate * -2.45546696f)); /* 1.702 log2 e */
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(part) : "f"(1.0f + power));
    return gate * part * (linear + 1.0f);
}

SM90_INLINE uint32_t pack(float low, float high)
{
    uint32_t word;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(word) : "f"(high), "f"(low));
    return word;
}

/* This warpgroup's 64 rows of the tile: 4 slabs of 64 columns, 16-byte piece q of row r at q ^ (r %
 * 8). */
SM90_INLINE void gather_x(const ffn_params *params, const ffn_item *item, uint32_t x,
                          uint32_t group_row)
{
    const uint32_t lane = threadIdx.x % 32, warp_row = threadIdx.x % 128 / 32 * 16;
    const int head = item->expert / params->n_experts;
    const int row = (int)(group_row + warp_row + lane % 16);
    const int token = row < item->rows ? params->tokens[item->first + row] : -1;
#pragma unroll
    for (uint32_t i = 0; i < 16; i++) {
        const int t = gpu_shfl(token, (int)i);
        const gpu_bf16 *from =
            params->x + ((int64_t)max(t, 0) * params->n_heads + head) * DIM + 8 * lane;
        const uint32_t to =
            x + lane / 8 * X_SLAB_BYTES + (group_row + warp_row + i) * 128 + ((lane ^ i) % 8) * 16;
        sm90_copy16(to, from, t >= 0);
    }
}

SM90_INLINE void sync_group(int group)
{
    if (group == 0)
        sm90_sync<1>(128);
    else
        sm90_sync<2>(128);
}

/* The rows above have arrived, for all of this warpgroup and for wgmma. */
SM90_INLINE void gather_x_wait(int group)
{
    sm90_copy16_wait();
    sm90_fence_async();
    sync_group(group);
}

/* h = x . [gate | up] of the next chunk: 4 stages, a committed group each. */
SM90_INLINE void product_in(float (&h)[64], ffn_ring *ring, uint32_t x)
{
    asm volatile("" : "+r"(x)); /* or 16 descriptors would be kept in registers through the loop */
#pragma unroll
    for (int slab = 0; slab < N_SLABS; slab++) {
        sm90_bar_wait(ring->full + 8 * ring->slot, ring->parity);
        const uint32_t a = sm90_desc(x + slab * X_SLAB_BYTES, 16);
        const uint32_t b = sm90_desc(ring->stages + STAGE_BYTES * ring->slot, SLAB_BYTES);
        sm90_wgmma_fence();
#pragma unroll
        for (int k = 0; k < 4; k++)
            sm90_wgmma_ss<1>(h, a + 2 * k, X_HIGH, b + 128 * k, W_HIGH, slab > 0 || k > 0);
        sm90_wgmma_commit();
        ring_next(ring);
    }
}

/* y (+)= hidden . down of a chunk: two stages, which lie side by side (the ring's length and the
 * stages before them are even), one group. */
SM90_INLINE void product_out(float (&y)[128], const uint32_t (&hidden)[4][4], ffn_ring *ring,
                             int is_adding)
{
    sm90_bar_wait(ring->full + 8 * ring->slot, ring->parity);
    sm90_bar_wait(ring->full + 8 * ring->slot + 8, ring->parity);
    const uint32_t b = sm90_desc(ring->stages + STAGE_BYTES * ring->slot, SLAB_BYTES);
    sm90_wgmma_fence();
#pragma unroll
    for (int k = 0; k < 4; k++)
        sm90_wgmma_rs<1>(y, hidden[k], b + 128 * k, W_HIGH, is_adding || k > 0);
    sm90_wgmma_commit();
    ring_next(ring);
    ring_next(ring);
}

/* Column c of gate and of up are h[c'] and h[c' + 32]. */
SM90_INLINE void activate(float (&act)[32], const float (&h)[64])
{
#pragma unroll
    for (int i = 0; i < 32; i++) act[i] = swiglu7(h[i], h[32 + i]);
}

/* Two columns are a word of an A operand.  Apart from activate(), because no product may be under
 * way that reads `hidden`. */
SM90_INLINE void pack_hidden(uint32_t (&hidden)[4][4], const float (&act)[32])
{
#pragma unroll
    for (int i = 0; i < 16; i++) hidden[i / 4][i % 4] = pack(act[2 * i], act[2 * i + 1]);
}

/* 128 columns of two rows of a thread, `rows` 8 apart.  Neighbours trade words, so that a quad
 * writes 32 bytes in a row. */
SM90_INLINE void store_half(gpu_bf16 *to, const float *y, const float (&p)[2],
                            const int (&is_inside)[2])
{
    const uint32_t quad = threadIdx.x % 4, is_odd = quad % 2;
    to += is_odd * 8 + (quad / 2) * 4;
#pragma unroll
    for (int j = 0; j < 8; j++) {
#pragma unroll
        for (int r = 0; r < 2; r++) {
            const uint32_t a = pack(y[8 * j + 2 * r] * p[r], y[8 * j + 2 * r + 1] * p[r]);
            const uint32_t b = pack(y[8 * j + 4 + 2 * r] * p[r], y[8 * j + 5 + 2 * r] * p[r]);
            const uint32_t other = gpu_shfl_xor(is_odd ? a : b, 1);
            if (is_inside[r])
                *(uint2 *)(to + r * 8 * DIM + 16 * j) =
                    is_odd ? make_uint2(other, b) : make_uint2(a, other);
        }
    }
}

SM90_INLINE void store_routes(const ffn_params *params, const ffn_item *item, uint32_t group_row,
                              const float (&y)[128])
{
    const int row = (int)(group_row + threadIdx.x % 128 / 32 * 16 + threadIdx.x % 32 / 4);
    const int is_inside[2] = { row < item->rows, row + 8 < item->rows };
    const float *probs = params->probs + item->first + row;
    const float p[2] = { is_inside[0] ? probs[0] : 0.0f, is_inside[1] ? probs[8] : 0.0f };
    gpu_bf16 *to = params->routes + ((int64_t)item->first + row) * DIM;
    store_half(to, y, p, is_inside);
    store_half(to + 128, y + 64, p, is_inside);
}

/* A warpgroup without rows in this step: it only keeps the ring going. */
SM90_INLINE void pass_step(ffn_ring *ring, uint32_t *left)
{
    for (int i = 0; i < N_CHUNKS * (N_SLABS + 2); i++) {
        sm90_bar_wait(ring->full + 8 * ring->slot, ring->parity);
        ring_next(ring);
        ring_leave_next(ring, left, 1);
    }
}

/* y = x . [all chunks], the last product out still under way. */
SM90_INLINE void one_tile(float (&y)[128], ffn_ring *ring, uint32_t *left, uint32_t x)
{
    float h[64], act[32];
    uint32_t hidden[4][4];
    product_in(h, ring, x);
    sm90_wgmma_wait<0>();
    ring_leave_next(ring, left, 4);
    sm90_wgmma_pin(h);
    activate(act, h);
    pack_hidden(hidden, act);
#pragma unroll 1
    for (int c = 1; c < N_CHUNKS; c++) {
        product_in(h, ring, x);
        product_out(y, hidden, ring, c > 1);
        sm90_wgmma_wait<3>();
        ring_leave_next(ring, left, 2);
        sm90_wgmma_wait<1>();
        ring_leave_next(ring, left, 2);
        sm90_wgmma_pin(h);
        activate(act, h);
        sm90_wgmma_wait<0>();
        ring_leave_next(ring, left, 2);
        sm90_wgmma_pin(y);
        sm90_wgmma_pin(act); /* or packing would move up before the wait */
        pack_hidden(hidden, act);
    }
    product_out(y, hidden, ring, 1);
}

SM90_INLINE void compute(const ffn_params *params, ffn_ring *ring, uint32_t x_tile)
{
    const int group = (int)threadIdx.x / 128 - 1;
    const uint32_t group_row = 64 * (uint32_t)group, x = x_tile + group_row * 128;
    const int n_steps = *params->n_steps, n_clusters = (int)sm90_n_clusters();
    const ffn_item *item = params->items + N_RANKS * sm90_cluster_idx() + sm90_cluster_rank();
    uint32_t left = 0; /* the slot that this warp leaves next */
    int step = (int)sm90_cluster_idx();
    if (step >= n_steps) return;
    gather_x(params, item, x_tile, group_row);

    while (step < n_steps) {
        const int next = step + n_clusters;
        const ffn_item *next_item = item + N_RANKS * n_clusters;
        gather_x_wait(group);
        if (item->rows <= (int)group_row) {
            if (next < n_steps) gather_x(params, next_item, x_tile, group_row);
            pass_step(ring, &left);
        } else {
            float y[128];
            one_tile(y, ring, &left, x);
            sync_group(group); /* all its warps have read x for the last time */
            if (next < n_steps) gather_x(params, next_item, x_tile, group_row);
            sm90_wgmma_wait<0>();
            ring_leave_next(ring, &left, 2);
            sm90_wgmma_pin(y);
            store_routes(params, item, group_row, y);
        }
        step = next;
        item = next_item;
    }
}

static __global__ void __cluster_dims__(N_RANKS, 1, 1) __launch_bounds__(N_THREADS, 1)
    ffn(const ffn_params params, const __grid_constant__ CUtensorMap gate,
        const __grid_constant__ CUtensorMap up, const __grid_constant__ CUtensorMap down)
{
    extern __shared__ __align__(1024) unsigned char smem[];
    const uint32_t x_tile = sm90_smem(smem);
    ffn_ring ring = { x_tile + X_BYTES, x_tile + X_BYTES + RING_BYTES,
                      x_tile + X_BYTES + RING_BYTES + 8 * N_STAGES, 0, 0 };
    if (threadIdx.x == 0) {
        for (int i = 0; i < N_STAGES; i++) {
            sm90_bar_init(ring.full + 8 * i, 1);
            sm90_bar_init(ring.empty + 8 * i, N_WARPS * N_RANKS);
        }
        sm90_bar_init_fence();
    }
    __syncthreads();
    sm90_cluster_sync();

    if (threadIdx.x < 128) {
        sm90_registers_give<24>();
        if (threadIdx.x < 32 && sm90_elect()) feed(&params, &ring, &gate, &up, &down);
    } else {
        sm90_registers_take<240>();
        ring.empty = sm90_place_in(ring.empty, threadIdx.x % 32 % N_RANKS);
        compute(&params, &ring, x_tile);
    }
    __syncwarp();
    sm90_cluster_sync(); /* the other block may still signal here */
}

/* ---- adding up ------------------------------------------------------------------------------ */

#define COMBINE_WARPS 8

SM90_INLINE uint32_t add_bf16x2(uint32_t a, uint32_t b)
{
    uint32_t sum;
    asm("add.rn.bf16x2 %0, %1, %2;" : "=r"(sum) : "r"(a), "r"(b));
    return sum;
}

/* One warp per token and head, 8 values a lane.  TOP_K rows are under way at once. */
template <int TOP_K>
static __global__ void __launch_bounds__(32 * COMBINE_WARPS)
    combine(const uint4 *routes, const int32_t *route_pos, int n, int n_heads, uint4 *y)
{
    const int lane = threadIdx.x % 32, head = blockIdx.y;
    const int token = (int)(blockIdx.x * COMBINE_WARPS + threadIdx.x / 32);
    if (token >= n) return;
    const int32_t *position = route_pos + ((int64_t)head * n + token) * TOP_K;
    uint4 rows[TOP_K];
#pragma unroll
    for (int j = 0; j < TOP_K; j++) rows[j] = __ldcs(routes + (int64_t)position[j] * 32 + lane);
    uint4 sum = make_uint4(0, 0, 0, 0);
#pragma unroll
    for (int j = 0; j < TOP_K; j++) {
        sum.x = add_bf16x2(sum.x, rows[j].x);
        sum.y = add_bf16x2(sum.y, rows[j].y);
        sum.z = add_bf16x2(sum.z, rows[j].z);
        sum.w = add_bf16x2(sum.w, rows[j].w);
    }
    y[((int64_t)token * n_heads + head) * 32 + lane] = sum;
}

static void launch_combine(struct m2_gpu *gpu, const m2_moe_ffn_args *args)
{
    const int n = (int)args->x->shape[0], n_heads = (int)args->x->shape[1];
    const dim3 grid((unsigned)((n + COMBINE_WARPS - 1) / COMBINE_WARPS), (unsigned)n_heads);
    const uint4 *routes = (const uint4 *)args->routes->data;
    const int32_t *route_pos = (const int32_t *)args->route_pos->data;
    uint4 *y = (uint4 *)args->y->data;
    const int threads = 32 * COMBINE_WARPS;
    const int top_k = (int)args->route_pos->shape[2];
    if (top_k == 6)
        combine<6><<<grid, threads, 0, gpu->stream>>>(routes, route_pos, n, n_heads, y);
    else if (top_k == 2)
        combine<2><<<grid, threads, 0, gpu->stream>>>(routes, route_pos, n, n_heads, y);
    else
        combine<1><<<grid, threads, 0, gpu->stream>>>(routes, route_pos, n, n_heads, y);
}

/* ---- launch --------------------------------------------------------------------------------- */

static int is_ours(const m2_moe_ffn_args *args)
{
    const int64_t top_k = args->route_pos->shape[2];
    return args->x->dtype == M2_BF16 && args->w_gate->dtype == M2_BF16 &&
           args->x->shape[2] == DIM && args->w_gate->shape[2] == WIDTH &&
           (top_k == 6 || top_k == 2 || top_k == 1);
}

/* Each weight matrix as rows of all experts, one slab a box. */
static int map_weights(const m2_tensor *w, CUtensorMap *map_out)
{
    const int64_t shape[2] = { w->shape[0] * w->shape[1], w->shape[2] };
    const int box[2] = { 64, 64 };
    return m2_sm90_map_bf16(map_out, w->data, 2, shape, box);
}

extern "C" int m2_sm90_moe_ffn(struct m2_gpu *gpu, const m2_moe_ffn_args *args)
{
    CUtensorMap gate, up, down;
    if (!is_ours(args) || !map_weights(args->w_gate, &gate) || !map_weights(args->w_up, &up) ||
        !map_weights(args->w_down, &down))
        return 0;

    const int n_experts = (int)args->w_gate->shape[0], n_heads = (int)args->x->shape[1];
    const int64_t n_routes = m2_tensor_count(args->gather_ids);
    const int64_t n_steps_max = n_routes / (2 * TILE_ROWS) + n_experts + 1;
    const size_t item_bytes = (size_t)n_steps_max * N_RANKS * sizeof(ffn_item);
    assert(m2_tensor_count(args->expert_offsets) == n_experts + 1);
    assert(m2_tensor_count(args->route_pos) == n_routes);
    assert(item_bytes + 4 * ((size_t)n_experts + 2) <= M2_GPU_WORKSPACE_BYTES);
    ffn_item *items = (ffn_item *)gpu->workspace;
    int32_t *n_steps = (int32_t *)((char *)gpu->workspace + item_bytes);
    make_steps<<<1, PLAN_THREADS, 0, gpu->stream>>>((const int32_t *)args->expert_offsets->data,
                                                    n_experts, items, n_steps + 1, n_steps);

    const ffn_params params = { (const gpu_bf16 *)args->x->data,
                                (const int32_t *)args->gather_ids->data,
                                (const float *)args->probs_sorted->data,
                                items,
                                n_steps,
                                (gpu_bf16 *)args->routes->data,
                                n_heads,
                                n_experts / n_heads };
    const unsigned n_blocks = (unsigned)(gpu->n_mps / N_RANKS * N_RANKS);
    gpuFuncSetAttribute(ffn, gpuFuncAttributeMaxDynamicSharedMemorySize, SMEM_BYTES);
    ffn<<<n_blocks, N_THREADS, SMEM_BYTES, gpu->stream>>>(params, gate, up, down);
    launch_combine(gpu, args);
    m2_gpu_launched(gpu, "moe_ffn");
    return 1;
}
