/* sm90_moe_ffn.cu - routed expert FFN of the preview transformer, Hopper.
 *
 *   r[route] = bf16(p * (bf16(swiglu7(x . w_gate[e], x . w_up[e])) . w_down[e]))
 *   y[t, h]  = the routes of (t, h) in ascending order of experts, every addition rounded to bf16
 *
 * Work     steps of two tiles of up to 128 routes, for a cluster of two blocks (sm90_moe_steps.cuh).
 *          A cluster takes the next step when it is nearly done with one: so the steps under way
 *          are always neighbours, which share some 24 experts, whose weights are read from memory
 *          once and then come from L2.
 * Block    warpgroup 0 feeds a ring of weight stages by bulk copies, warpgroups 1 and 2 compute 64
 *          rows each.  The tile of x stays in shared memory.  For each of 20 chunks of 64 hidden
 *          values: gate and up as one m64n128 product ([64 gate columns | 64 up columns], so that
 *          gate and up of one value meet in one thread), swiglu7, and the result is the A operand
 *          of the down product in registers: hidden values never touch shared memory.
 * Weights  as in the checkpoint, [in][out]: B with the output index contiguous, in slabs of 64
 *          columns x 64 rows (8 KiB, rows of 128 bytes, swizzled).
 * Order    of products: gate | up of chunk c, then down of chunk c - 1, which runs under the
 *          activation of chunk c.  The warpgroups take turns to issue them.  x of the next tile is
 *          fetched under the last activation, and its first product runs under the stores.
 * Ring     a stage is two slabs: 4 stages of gate | up (64 inputs each) and 2 of down (128 outputs
 *          each) a chunk, in the order of the products.  A stage is free when all warps of both
 *          blocks have left it, in steps of either kind: either block may write it next.
 * Limits   head width 256, expert width 1280; other shapes go to simt_moe_ffn.cu.
 * Numerics f32 accumulators in ascending K; rounds to bf16 after swiglu7, after p, in each addition
 * Bits     of a row depend on its own x, p and weights alone: not on who takes its step, nor when
 * Twin     backend/cpu/ref/moe_ffn.c       Speed  bench/gpu/bench_moe_ffn.cu
 */
#include <assert.h>

#include "backend/gpu/kernels/sm90_moe_steps.cuh"
#include "backend/gpu/kernels/sm90_ptx.cuh"
#include "backend/gpu/launch.h"
#include "backend/gpu/sm90_tensor_map.h"

#define DIM          256
#define WIDTH        1280
#define TILE_ROWS    SM90_MOE_TILE_ROWS
#define CHUNK        64
#define N_CHUNKS     (WIDTH / CHUNK)
#define N_SLABS      (DIM / 64)
#define SLAB_BYTES   8192
#define STAGE_BYTES  (2 * SLAB_BYTES)
#define N_STAGES     10
#define X_SLAB_BYTES (TILE_ROWS * 128)
#define X_BYTES      (N_SLABS * X_SLAB_BYTES)
#define N_TICKETS    4 /* steps that are on their way from rank 0 to both blocks */
#define TICKET_BYTES 16
#define N_THREADS    384
#define N_WARPS      8 /* that compute */
#define N_FEEDERS    2 /* warps that feed, every other stage each */
#define N_RANKS      SM90_MOE_RANKS
#define TAKE_AT      12 /* chunk at which a cluster takes its next step */

/* Places in shared memory. */
#define RING_AT        X_BYTES
#define TICKET_AT      (RING_AT + N_STAGES * STAGE_BYTES)
#define FULL_AT        (TICKET_AT + N_TICKETS * TICKET_BYTES) /* barriers: a stage is full, */
#define EMPTY_AT       (FULL_AT + 8 * N_STAGES)               /* is empty,                  */
#define TICKET_FULL_AT (EMPTY_AT + 8 * N_STAGES)              /* a ticket is there          */
#define SMEM_BYTES     (TICKET_FULL_AT + 8 * N_TICKETS)

#define X_HIGH sm90_desc_high(1024, SM90_SWIZZLE_128) /* 8 rows of 128 bytes                      */
#define W_HIGH sm90_desc_high(1024, SM90_SWIZZLE_128) /* 8 inputs; the leading offset is a slab   */

typedef struct ffn_params {
    const gpu_bf16 *x;
    const int32_t *tokens; /* gather_ids */
    const float *probs;
    sm90_moe_steps steps;
    gpu_bf16 *routes;
    int n_heads, n_experts;
} ffn_params;

/* ---- the ring ------------------------------------------------------------------------------- */

typedef struct ffn_ring {
    uint32_t smem;         /* where the block's shared memory begins                         */
    uint32_t slot, parity; /* of the next stage, and of its `full` barrier's phase           */
    uint32_t x;            /* this warpgroup's rows of the first slab                        */
    uint32_t leave;        /* computing lanes 0 and 1: the `empty` barriers of block 0 and 1 */
} ffn_ring;

SM90_INLINE uint32_t ring_stage(const ffn_ring *ring)
{
    return ring->smem + RING_AT + STAGE_BYTES * ring->slot;
}

SM90_INLINE uint32_t ring_full(const ffn_ring *ring)
{
    return ring->smem + FULL_AT + 8 * ring->slot;
}

SM90_INLINE void ring_next(ffn_ring *ring, uint32_t n)
{
    ring->slot += n;
    if (ring->slot >= N_STAGES) {
        ring->slot -= N_STAGES;
        ring->parity ^= 1;
    }
}

/* This warp has left the n stages that begin `back` before the next. */
SM90_INLINE void ring_leave(const ffn_ring *ring, uint32_t back, uint32_t n)
{
#pragma unroll
    for (uint32_t i = 0; i < n; i++) {
        const uint32_t slot = ring->slot + N_STAGES - back + i;
        if (threadIdx.x % 32 < N_RANKS)
            sm90_bar_arrive_at(ring->leave + 8 * (slot >= N_STAGES ? slot - N_STAGES : slot));
    }
}

/* ---- steps ----------------------------------------------------------------------------------
 * A ticket's place is used again four steps later.  By then all have read it: no warp of both
 * blocks is more than the ring, a twelfth of a step, behind rank 0. */

SM90_INLINE const sm90_moe_item *item_of(const ffn_params *params, int step)
{
    return params->steps.items + N_RANKS * step + sm90_cluster_rank();
}

/* The n-th ticket to both blocks.  One thread of each: it announces the bytes. */
SM90_INLINE void give_ticket(const ffn_ring *ring, uint32_t n, int step, uint32_t rank)
{
    const uint32_t to = ring->smem + TICKET_AT + n % N_TICKETS * TICKET_BYTES;
    const uint32_t full = ring->smem + TICKET_FULL_AT + n % N_TICKETS * 8;
    sm90_bar_arrive_expect(full, TICKET_BYTES);
    for (uint32_t r = 0; r < N_RANKS && rank == 0; r++)
        sm90_send(sm90_place_in(to, r), sm90_place_in(full, r),
                  make_float4(__int_as_float(step), 0.0f, 0.0f, 0.0f));
}

SM90_INLINE int read_ticket(const ffn_ring *ring, uint32_t n)
{
    int step;
    sm90_bar_wait_cluster(ring->smem + TICKET_FULL_AT + n % N_TICKETS * 8, n / N_TICKETS % 2);
    asm volatile("ld.shared.s32 %0, [%1];"
                 : "=r"(step)
                 : "r"(ring->smem + TICKET_AT + n % N_TICKETS * TICKET_BYTES)
                 : "memory");
    return step;
}

/* ---- feeding -------------------------------------------------------------------------------- */

/* Two slabs side by side: of one matrix, or of two at the same place.  A shared stage is fetched by
 * both blocks, a slab each, for both. */
SM90_INLINE void feed_stage(ffn_ring *ring, const CUtensorMap *a, const CUtensorMap *b, int xa,
                            int xb, int y, int is_shared, uint32_t rank)
{
    const uint32_t stage = ring_stage(ring), full = ring_full(ring);
    sm90_bar_wait(full + EMPTY_AT - FULL_AT, ring->parity ^ 1);
    sm90_bar_arrive_expect(full, STAGE_BYTES);
    if (!is_shared) {
        sm90_load_2d(stage, a, full, xa, y);
        sm90_load_2d(stage + SLAB_BYTES, b, full, xb, y);
    } else {
        sm90_load_2d_to(stage + SLAB_BYTES * rank, rank ? b : a, full, rank ? xb : xa, y, 3);
    }
    ring_next(ring, N_FEEDERS);
}

/* Feeder 0 or 1.  Feeder 0 of rank 0 takes the steps. */
SM90_INLINE void feed(const ffn_params *params, ffn_ring *ring, const CUtensorMap *gate,
                      const CUtensorMap *up, const CUtensorMap *down, int feeder)
{
    const uint32_t rank = sm90_cluster_rank();
    const int n_steps = *params->steps.n_steps;
    int step = (int)sm90_cluster_idx(), next = 0;
    ring_next(ring, feeder);
    for (uint32_t n = 0; step < n_steps; n++) {
        const sm90_moe_item *item = item_of(params, step);
        const int e = item->expert, is_shared = item->shared;
        for (int c = 0; c <= N_CHUNKS; c++) {
            if (c == TAKE_AT && feeder == 0 && rank == 0)
                next = atomicAdd(params->steps.n_taken, 1);
            for (int k = feeder; k < N_SLABS && c < N_CHUNKS; k += N_FEEDERS)
                feed_stage(ring, gate, up, CHUNK * c, CHUNK * c, e * DIM + 64 * k, is_shared, rank);
            if (c > 0)
                feed_stage(ring, down, down, 128 * feeder, 128 * feeder + 64,
                           e * WIDTH + CHUNK * (c - 1), is_shared, rank);
            if (c == TAKE_AT && feeder == 0) give_ticket(ring, n, next, rank);
        }
        step = read_ticket(ring, n);
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
    part *= gate;
    return fmaf(part, linear, part);
}

SM90_INLINE uint32_t pack(float low, float high)
{
    uint32_t word;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(word) : "f"(high), "f"(low));
    return word;
}

/* Read again wherever it is wanted: a register is dear here. */
SM90_INLINE uint32_t thread_idx(void)
{
    uint32_t thread;
    asm volatile("mov.u32 %0, %%tid.x;" : "=r"(thread));
    return thread;
}

/* The computing warpgroup of this thread, 0 or 1. */
SM90_INLINE uint32_t group_idx(void)
{
    return thread_idx() / 128 - 1;
}

SM90_INLINE void sync_group(void)
{
    if (group_idx() == 0)
        sm90_sync<1>(128);
    else
        sm90_sync<2>(128);
}

/* The turns of the two warpgroups to issue products. */
SM90_INLINE void turn_begin(void)
{
    if (group_idx() == 0)
        sm90_sync<3>(256);
    else
        sm90_sync<4>(256);
}

SM90_INLINE void turn_end(void)
{
    if (group_idx() == 0)
        sm90_arrive<4>(256);
    else
        sm90_arrive<3>(256);
}

/* This warp's 16 rows of the tile: 4 slabs of 64 columns, 16-byte piece q of row r at q ^ (r % 8).
 */
SM90_INLINE void gather_x(const ffn_params *params, const sm90_moe_item *item, uint32_t x)
{
    const uint32_t thread = thread_idx(), lane = thread % 32, warp_row = (thread / 32 - 4) * 16;
    const int head = item->expert / params->n_experts;
    const int row = (int)(warp_row + lane % 16);
    const int token = row < item->rows ? params->tokens[item->first + row] : -1;
    x += lane / 8 * X_SLAB_BYTES + warp_row * 128;
#pragma unroll
    for (uint32_t i = 0; i < 16; i++) {
        const int t = gpu_shfl(token, (int)i);
        const gpu_bf16 *from =
            params->x + ((int64_t)max(t, 0) * params->n_heads + head) * DIM + 8 * lane;
        sm90_copy16(x + i * 128 + ((lane ^ i) % 8) * 16, from, t >= 0);
    }
}

/* The rows above have arrived, for all of this warpgroup and for wgmma. */
SM90_INLINE void gather_x_wait(void)
{
    sm90_copy16_wait();
    sm90_fence_async();
    sync_group();
}

/* h = x . [gate | up] of the next chunk: 4 stages, a committed group each. */
SM90_INLINE void product_in(float (&h)[64], ffn_ring *ring)
{
    const uint32_t x = ring->x;
#pragma unroll
    for (int slab = 0; slab < N_SLABS; slab++) {
        sm90_bar_wait(ring_full(ring), ring->parity);
        const uint32_t a = sm90_desc(x + slab * X_SLAB_BYTES, 16);
        const uint32_t b = sm90_desc(ring_stage(ring), SLAB_BYTES);
        sm90_wgmma_fence();
#pragma unroll
        for (int k = 0; k < 4; k++)
            sm90_wgmma_ss<1>(h, a + 2 * k, X_HIGH, b + 128 * k, W_HIGH, slab > 0 || k > 0);
        sm90_wgmma_commit();
        ring_next(ring, 1);
    }
}

/* y (+)= hidden . down of a chunk: two stages, which lie side by side (the ring's length and the
 * stages before them are even), one group. */
SM90_INLINE void product_out(float (&y)[128], const uint32_t (&hidden)[4][4], ffn_ring *ring,
                             int is_adding)
{
    sm90_bar_wait(ring_full(ring), ring->parity);
    sm90_bar_wait(ring_full(ring) + 8, ring->parity);
    const uint32_t b = sm90_desc(ring_stage(ring), SLAB_BYTES);
    sm90_wgmma_fence();
#pragma unroll
    for (int k = 0; k < 4; k++)
        sm90_wgmma_rs<1>(y, hidden[k], b + 128 * k, W_HIGH, is_adding || k > 0);
    sm90_wgmma_commit();
    ring_next(ring, 2);
}

/* Column c of gate and of up are h[c'] and h[c' + 32]. */
SM90_INLINE void activate(float (&act)[32], const float (&h)[64])
{
#pragma unroll
    for (int i = 0; i < 32; i++) act[i] = swiglu7(h[i], h[32 + i]);
}

/* Two columns are a word of an A operand.  Apart from activate(), because no product may be under
 * way that reads `hidden`. */
SM90_INLINE void pack_hidden(uint32_t (&hidden)[4][4], float (&act)[32])
{
    sm90_wgmma_pin(act); /* or packing would move up before the wait */
#pragma unroll
    for (int i = 0; i < 16; i++) hidden[i / 4][i % 4] = pack(act[2 * i], act[2 * i + 1]);
}

/* Half of the columns of a thread's two rows, HALF 0 or 1.  Neighbours trade words, so that a quad
 * writes 32 bytes in a row. */
template <int HALF>
SM90_INLINE void store_half(const ffn_params *params, const sm90_moe_item *item,
                            const float (&y)[128])
{
    const uint32_t thread = thread_idx(), quad = thread % 4, is_odd = quad % 2;
    const int row = (int)((thread / 32 - 4) * 16 + thread % 32 / 4);
    const int first = item->first + row, n_inside = item->rows - row;
    const float p[2] = { n_inside > 0 ? params->probs[first] : 0.0f,
                         n_inside > 8 ? params->probs[first + 8] : 0.0f };
    gpu_bf16 *to = params->routes + (int64_t)first * DIM + 128 * HALF + is_odd * 8 + quad / 2 * 4;
#pragma unroll
    for (int j = 0; j < 8; j++) {
        const float *part = y + 64 * HALF + 8 * j;
#pragma unroll
        for (int r = 0; r < 2; r++) {
            const uint32_t a = pack(part[2 * r] * p[r], part[2 * r + 1] * p[r]);
            const uint32_t b = pack(part[4 + 2 * r] * p[r], part[5 + 2 * r] * p[r]);
            const uint32_t other = gpu_shfl_xor(is_odd ? a : b, 1);
            if (n_inside > 8 * r)
                *(uint2 *)(to + r * 8 * DIM + 16 * j) =
                    is_odd ? make_uint2(other, b) : make_uint2(a, other);
        }
    }
}

SM90_INLINE void store_routes(const ffn_params *params, const sm90_moe_item *item,
                              const float (&y)[128])
{
    store_half<0>(params, item, y);
    store_half<1>(params, item, y);
}

/* The first chunk, whose product in is under way. */
SM90_INLINE void first_chunk(uint32_t (&hidden)[4][4], float (&h)[64], const ffn_ring *ring)
{
    float act[32];
    sm90_wgmma_wait<0>();
    ring_leave(ring, 4, 4);
    sm90_wgmma_pin(h);
    activate(act, h);
    pack_hidden(hidden, act);
}

/* h of the next chunk, while y of the chunk before it is still under way. */
SM90_INLINE void begin_chunk(float (&y)[128], float (&h)[64], const uint32_t (&hidden)[4][4],
                             ffn_ring *ring, int is_adding)
{
    turn_begin();
    product_in(h, ring);
    product_out(y, hidden, ring, is_adding);
    turn_end();
    sm90_wgmma_wait<4>();
    ring_leave(ring, 6, 1);
    sm90_wgmma_wait<3>();
    ring_leave(ring, 5, 1);
    sm90_wgmma_wait<2>();
    ring_leave(ring, 4, 1);
    sm90_wgmma_wait<1>();
    ring_leave(ring, 3, 1);
    sm90_wgmma_pin(h);
}

SM90_INLINE void finish_chunk(float (&y)[128], uint32_t (&hidden)[4][4], const float (&h)[64],
                              const ffn_ring *ring)
{
    float act[32];
    activate(act, h);
    sm90_wgmma_wait<0>();
    ring_leave(ring, 2, 2);
    sm90_wgmma_pin(y);
    pack_hidden(hidden, act);
}

/* Rows behind a tile's end compute zeros. */
SM90_INLINE void compute(const ffn_params *params, ffn_ring *ring)
{
    const int n_steps = *params->steps.n_steps;
    int step = (int)sm90_cluster_idx();
    float y[128], h[64];
    uint32_t hidden[4][4];
    if (step >= n_steps) return;
    gather_x(params, item_of(params, step), ring->smem);
    gather_x_wait();
    if (group_idx() == 1) turn_end();
    product_in(h, ring);

    for (uint32_t n = 0;; n++) {
        first_chunk(hidden, h, ring);
#pragma unroll 1
        for (int c = 1; c < N_CHUNKS - 1; c++) {
            begin_chunk(y, h, hidden, ring, c > 1);
            finish_chunk(y, hidden, h, ring);
        }
        begin_chunk(y, h, hidden, ring, 1);
        const int next = read_ticket(ring, n);
        if (next < n_steps) {
            sync_group(); /* all its warps have read x for the last time */
            gather_x(params, item_of(params, next), ring->smem);
        }
        finish_chunk(y, hidden, h, ring);

        turn_begin();
        product_out(y, hidden, ring, 1);
        if (next >= n_steps) break;
        gather_x_wait();
        sm90_wgmma_wait<0>();
        ring_leave(ring, 2, 2);
        sm90_wgmma_pin(y);
        product_in(h, ring);
        turn_end();
        store_routes(params, item_of(params, step), y);
        step = next;
    }
    turn_end();
    sm90_wgmma_wait<0>();
    sm90_wgmma_pin(y);
    store_routes(params, item_of(params, step), y);
    if (group_idx() == 0) turn_begin(); /* the other's last */
}

static __global__ void __cluster_dims__(N_RANKS, 1, 1) __launch_bounds__(N_THREADS, 1)
    ffn(const ffn_params params, const __grid_constant__ CUtensorMap gate,
        const __grid_constant__ CUtensorMap up, const __grid_constant__ CUtensorMap down)
{
    extern __shared__ __align__(1024) unsigned char smem[];
    ffn_ring ring = { sm90_smem(smem), 0, 0, 0, 0 };
    if (threadIdx.x == 0) {
        for (int i = 0; i < N_STAGES; i++) {
            sm90_bar_init(ring.smem + FULL_AT + 8 * i, 1);
            sm90_bar_init(ring.smem + EMPTY_AT + 8 * i, N_WARPS * N_RANKS);
        }
        for (int i = 0; i < N_TICKETS; i++) sm90_bar_init(ring.smem + TICKET_FULL_AT + 8 * i, 1);
        sm90_bar_init_fence();
    }
    __syncthreads();
    sm90_cluster_sync();

    if (threadIdx.x < 128) {
        sm90_registers_give<24>();
        const int warp = (int)threadIdx.x / 32;
        if (warp < N_FEEDERS && sm90_elect()) feed(&params, &ring, &gate, &up, &down, warp);
    } else {
        sm90_registers_take<240>();
        ring.x = ring.smem + gpu_shfl(group_idx(), 0) * 64 * 128; /* the same in all lanes */
        ring.leave = sm90_place_in(ring.smem + EMPTY_AT, threadIdx.x % N_RANKS);
        compute(&params, &ring);
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
    const uintptr_t bits = (uintptr_t)args->x->data | (uintptr_t)args->routes->data |
                           (uintptr_t)args->y->data; /* moved 16 bytes at a time */
    return bits % 16 == 0 && args->x->shape[2] == DIM && args->w_gate->shape[2] == WIDTH &&
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

    if (args->x->shape[0] == 0) return 1;
    const int n_experts = (int)args->w_gate->shape[0], n_heads = (int)args->x->shape[1];
    const int64_t n_routes = m2_tensor_count(args->gather_ids);
    const int n_clusters = gpu->n_mps / N_RANKS;
    assert(m2_tensor_count(args->expert_offsets) == n_experts + 1);
    assert(m2_tensor_count(args->route_pos) == n_routes);
    const ffn_params params = { (const gpu_bf16 *)args->x->data,
                                (const int32_t *)args->gather_ids->data,
                                (const float *)args->probs_sorted->data,
                                sm90_moe_make_steps(gpu,
                                                    (const int32_t *)args->expert_offsets->data,
                                                    n_experts, n_routes, n_clusters),
                                (gpu_bf16 *)args->routes->data,
                                n_heads,
                                n_experts / n_heads };
    gpuFuncSetAttribute(ffn, gpuFuncAttributeMaxDynamicSharedMemorySize, SMEM_BYTES);
    ffn<<<(unsigned)(n_clusters * N_RANKS), N_THREADS, SMEM_BYTES, gpu->stream>>>(params, gate, up,
                                                                                  down);
    launch_combine(gpu, args);
    m2_gpu_launched(gpu, "moe_ffn");
    return 1;
}
