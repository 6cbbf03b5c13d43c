/* simt_moe_dispatch.cu - routes sorted by (head, expert), tokens ascending: a counting sort.
 *
 *   count    routes of each expert in each tile of a head's routes
 *   scan     counts become sums over the tiles before; then offsets of the experts
 *   scatter  a route goes to  offset of its expert + sum of the tiles before + rank in its tile
 *
 * A tile marks its routes as bits, a row of words for each expert; the rank of a route is the
 * number of marks before its own.  Marks are set in any order, so nothing depends on who comes
 * first.  A tile's routes are sorted in shared memory before they are written, so that neighbours
 * write to one place of memory.
 *
 * In       up to 1024 experts a head, fewer than 2^31 routes
 * Twin     backend/cpu/ref/moe_dispatch.c
 */
#include "backend/gpu/kernels/simt_common.cuh"

#include <assert.h>

#define MARK_WORDS      M2_GPU_MARK_WORDS /* of one tile: 32 KB */
#define TILE_WORDS_MAX  (M2_GPU_TILE_WORDS_MAX + 1)
#define SCAN_EXPERTS    32
#define SCAN_CHUNKS     8
#define EXPERTS_MAX     M2_GPU_EXPERTS_MAX
#define TILE_ROUTES_MAX (SIMT_WARP * TILE_WORDS_MAX)

typedef struct routes {
    const int *ids; /* [n_heads, n_routes] */
    int n_heads, n_experts, top_k;
    int n_routes;   /* of one head         */
    int tile_words; /* a tile is 32 times as many routes */
    int n_tiles;    /* of one head         */
} routes;

/* counts [n_heads][n_tiles][n_experts] */
static __global__ void __launch_bounds__(SIMT_THREADS) count_kernel(routes r, int *counts)
{
    __shared__ int tile_counts[EXPERTS_MAX];
    const int head = blockIdx.y, tile = blockIdx.x;
    for (int e = threadIdx.x; e < r.n_experts; e += SIMT_THREADS) tile_counts[e] = 0;
    __syncthreads();
    const int *ids = r.ids + (int64_t)head * r.n_routes;
    const int tile_routes = SIMT_WARP * r.tile_words, begin = tile * tile_routes;
    for (int i = threadIdx.x; i < tile_routes; i += SIMT_THREADS)
        if (begin + i < r.n_routes) atomicAdd(&tile_counts[ids[begin + i]], 1);
    __syncthreads();
    int *to = counts + ((int64_t)head * r.n_tiles + tile) * r.n_experts;
    for (int e = threadIdx.x; e < r.n_experts; e += SIMT_THREADS) to[e] = tile_counts[e];
}

/* Counts become sums over the tiles before; totals [n_heads][n_experts]. */
static __global__ void __launch_bounds__(SIMT_THREADS)
    scan_tiles_kernel(routes r, int *counts, int *totals)
{
    __shared__ int chunk_sums[SCAN_CHUNKS][SCAN_EXPERTS];
    const int head = blockIdx.y, lane = threadIdx.x % SCAN_EXPERTS;
    const int chunk = threadIdx.x / SCAN_EXPERTS, e = blockIdx.x * SCAN_EXPERTS + lane;
    const int per_chunk = (r.n_tiles + SCAN_CHUNKS - 1) / SCAN_CHUNKS;
    const int begin = chunk * per_chunk;
    const int end = begin + per_chunk < r.n_tiles ? begin + per_chunk : r.n_tiles;
    int *column = counts + (int64_t)head * r.n_tiles * r.n_experts + e;

    int sum = 0;
    if (e < r.n_experts) {
#pragma unroll 8
        for (int t = begin; t < end; t++) sum += column[(int64_t)t * r.n_experts];
    }
    chunk_sums[chunk][lane] = sum;
    __syncthreads();
    if (e < r.n_experts) {
        int before = 0;
        for (int c = 0; c < chunk; c++) before += chunk_sums[c][lane];
#pragma unroll 8
        for (int t = begin; t < end; t++) {
            const int count = column[(int64_t)t * r.n_experts];
            column[(int64_t)t * r.n_experts] = before;
            before += count;
        }
        if (chunk == SCAN_CHUNKS - 1) totals[head * r.n_experts + e] = before;
    }
}

/* One block a head; offsets[n_heads * n_experts] is the number of all routes. */
static __global__ void __launch_bounds__(SIMT_THREADS)
    scan_experts_kernel(routes r, const int *totals, int *offsets)
{
    __shared__ int sums[SIMT_THREADS];
    const int head = blockIdx.x;
    const int per_thread = (r.n_experts + SIMT_THREADS - 1) / SIMT_THREADS;
    const int begin = threadIdx.x * per_thread;
    int sum = 0;
    for (int i = 0; i < per_thread; i++)
        if (begin + i < r.n_experts) sum += totals[head * r.n_experts + begin + i];
    sums[threadIdx.x] = sum;
    __syncthreads();
    for (int by = 1; by < SIMT_THREADS; by *= 2) {
        const int other = (int)threadIdx.x >= by ? sums[threadIdx.x - by] : 0;
        __syncthreads();
        sums[threadIdx.x] += other;
        __syncthreads();
    }
    int next = head * r.n_routes + sums[threadIdx.x] - sum;
    for (int i = 0; i < per_thread; i++) {
        if (begin + i >= r.n_experts) break;
        offsets[head * r.n_experts + begin + i] = next;
        next += totals[head * r.n_experts + begin + i];
    }
    if (head == r.n_heads - 1 && threadIdx.x == 0)
        offsets[r.n_heads * r.n_experts] = r.n_heads * r.n_routes;
}

/* Among the routes of its token, in the order of experts. */
static __device__ __forceinline__ int place_in_token(const int *ids, int route, int top_k)
{
    const int first = route - route % top_k, id = ids[route];
    int place = 0;
    for (int other = first; other < first + top_k; other++)
        place += ids[other] < id || (ids[other] == id && other < route) ? 1 : 0;
    return first + place;
}

/* What a tile of routes becomes: routes by expert, and where each expert's begin. */
typedef struct tile_order {
    unsigned int marks[MARK_WORDS];
    int starts[EXPERTS_MAX]; /* in the tile                                        */
    int shifts[EXPERTS_MAX]; /* from a place in the tile to one in the head's list */
    uint16_t routes[TILE_ROUTES_MAX];
} tile_order;

/* Starts and shifts from the counts of the tiles before and of this one. */
static __device__ __forceinline__ void find_starts(const routes &r, const int *counts,
                                                   const int *totals, const int *offsets,
                                                   tile_order *order)
{
    __shared__ int sums[SIMT_WARPS];
    const int head = blockIdx.y, tile = blockIdx.x, lane = threadIdx.x % SIMT_WARP;
    const int *before = counts + ((int64_t)head * r.n_tiles + tile) * r.n_experts;
    const int *after = tile + 1 < r.n_tiles ? before + r.n_experts : totals + head * r.n_experts;
    const int per_thread = (r.n_experts + SIMT_THREADS - 1) / SIMT_THREADS;
    const int begin = threadIdx.x * per_thread;
    const int end = begin + per_thread < r.n_experts ? begin + per_thread : r.n_experts;
    int sum = 0;
    for (int e = begin; e < end; e++) sum += after[e] - before[e];
    int start = sum;
#pragma unroll
    for (int by = 1; by < SIMT_WARP; by *= 2) {
        const int other = gpu_shfl_up(start, by);
        start += lane >= by ? other : 0;
    }
    if (lane == SIMT_WARP - 1) sums[threadIdx.x / SIMT_WARP] = start;
    __syncthreads();
    start -= sum;
    for (int w = 0; w < (int)threadIdx.x / SIMT_WARP; w++) start += sums[w];
    for (int e = begin; e < end; e++) {
        order->starts[e] = start;
        order->shifts[e] = offsets[head * r.n_experts + e] + before[e] - start;
        start += after[e] - before[e];
    }
}

static __global__ void __launch_bounds__(SIMT_THREADS)
    scatter_kernel(routes r, const float *probs, const int *counts, const int *totals,
                   const int *offsets, int *gather_ids, float *probs_sorted, int *route_pos)
{
    __shared__ tile_order order;
    const int head = blockIdx.y, tile = blockIdx.x, pitch = r.tile_words;
    const int64_t head_first = (int64_t)head * r.n_routes;
    const int *ids = r.ids + head_first;
    const int begin = tile * SIMT_WARP * pitch;
    const int left = r.n_routes - begin, n = left < SIMT_WARP * pitch ? left : SIMT_WARP * pitch;
    for (int i = threadIdx.x; i < r.n_experts * pitch; i += SIMT_THREADS) order.marks[i] = 0;
    find_starts(r, counts, totals, offsets, &order);
    __syncthreads();
    for (int i = threadIdx.x; i < n; i += SIMT_THREADS)
        atomicOr(&order.marks[ids[begin + i] * pitch + i / SIMT_WARP], 1u << i % SIMT_WARP);
    __syncthreads();
    for (int i = threadIdx.x; i < n; i += SIMT_THREADS) {
        const int id = ids[begin + i];
        const unsigned int *row = order.marks + id * pitch;
        int place = order.starts[id] + __popc(row[i / SIMT_WARP] & ((1u << i % SIMT_WARP) - 1u));
        for (int w = 0; w < i / SIMT_WARP; w++) place += __popc(row[w]);
        order.routes[place] = (uint16_t)i;
        route_pos[head_first + place_in_token(ids, begin + i, r.top_k)] = order.shifts[id] + place;
    }
    __syncthreads();
    for (int place = threadIdx.x; place < n; place += SIMT_THREADS) {
        const int route = begin + order.routes[place], at = order.shifts[ids[route]] + place;
        gather_ids[at] = route / r.top_k;
        probs_sorted[at] = probs[head_first + route];
    }
}

extern "C" void m2_gpu_moe_dispatch(const m2_ops *ops, const m2_moe_dispatch_args *args)
{
    struct m2_gpu *gpu = m2_gpu_of(ops);
    const int64_t n_routes = args->topk_idx->shape[1] * args->topk_idx->shape[2];
    routes r;
    r.ids = (const int *)args->topk_idx->data;
    r.n_heads = (int)args->topk_idx->shape[0];
    r.n_experts = args->n_experts;
    r.top_k = (int)args->topk_idx->shape[2];
    r.n_routes = (int)n_routes;
    assert(r.n_heads * n_routes <= INT32_MAX && r.n_experts <= EXPERTS_MAX);
    r.tile_words = m2_gpu_tile_words(r.n_experts);
    r.n_tiles = (int)((n_routes + SIMT_WARP * r.tile_words - 1) / (SIMT_WARP * r.tile_words));

    int *totals = (int *)gpu->workspace;
    int *counts = totals + (int64_t)r.n_heads * r.n_experts;
    int *offsets = (int *)args->expert_offsets->data;
    assert(((int64_t)r.n_tiles + 1) * r.n_heads * r.n_experts * 4 <=
           (int64_t)M2_GPU_WORKSPACE_BYTES);
    const dim3 tiles(r.n_tiles, r.n_heads);
    const dim3 columns((r.n_experts + SCAN_EXPERTS - 1) / SCAN_EXPERTS, r.n_heads);
    if (n_routes > 0) count_kernel<<<tiles, SIMT_THREADS, 0, gpu->stream>>>(r, counts);
    scan_tiles_kernel<<<columns, SIMT_THREADS, 0, gpu->stream>>>(r, counts, totals);
    scan_experts_kernel<<<r.n_heads, SIMT_THREADS, 0, gpu->stream>>>(r, totals, offsets);
    if (n_routes > 0)
        scatter_kernel<<<tiles, SIMT_THREADS, 0, gpu->stream>>>(
            r, (const float *)args->topk_prob->data, counts, totals, offsets,
            (int *)args->gather_ids->data, (float *)args->probs_sorted->data,
            (int *)args->route_pos->data);
    m2_gpu_launched(gpu, "moe_dispatch");
}
