/* sm90_moe_steps.cuh - the list of steps of the routed experts, made on the device.
 *
 * A tile is up to 128 routes of one expert.  Blocks work in pairs (a cluster): a step is either two
 * tiles of one expert, whose weights each block fetches half of, for both, or the last tiles of two
 * experts, each block fetching its own.  Experts ascend through the list.
 *
 * Included by sm90_moe_ffn.cu alone.
 */
#ifndef M2_BACKEND_GPU_KERNELS_SM90_MOE_STEPS_CUH
#define M2_BACKEND_GPU_KERNELS_SM90_MOE_STEPS_CUH

#include <assert.h>

#include "backend/gpu/launch.h"

#define SM90_MOE_TILE_ROWS 128
#define SM90_MOE_RANKS     2 /* blocks of a cluster */

/* One block's part of a step. */
typedef struct sm90_moe_item {
    int expert; /* head * n_experts + expert                            */
    int first;  /* route of the tile's first row                        */
    int rows;   /* 0 to 128                                             */
    int shared; /* the cluster's other block works on the same expert   */
} sm90_moe_item;

typedef struct sm90_moe_steps {
    sm90_moe_item *items; /* [n_steps][SM90_MOE_RANKS] */
    int32_t *n_steps;
    int32_t *n_taken; /* by clusters so far: each begins with the step of its own number */
    int32_t *opened;  /* scratch of make_steps: a step for every two left-over tiles      */
} sm90_moe_steps;

#define SM90_MOE_PLAN_THREADS 1024
#define SM90_MOE_PLAN_BLOCKS  32

/* Sum over the threads before this one; *total_out over all. */
static __device__ int2 sum_before(int2 value, int2 *total_out)
{
    __shared__ int2 warps[SM90_MOE_PLAN_THREADS / 32];
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    int2 sum = value;
    for (int by = 1; by < 32; by *= 2) {
        const int a = gpu_shfl_up(sum.x, by), b = gpu_shfl_up(sum.y, by);
        if (lane >= by) sum = make_int2(sum.x + a, sum.y + b);
    }
    if (lane == 31) warps[warp] = sum;
    __syncthreads();
    int2 before = make_int2(sum.x - value.x, sum.y - value.y), total = make_int2(0, 0);
    for (int i = 0; i < SM90_MOE_PLAN_THREADS / 32; i++) {
        if (i == warp) before = make_int2(before.x + total.x, before.y + total.y);
        total = make_int2(total.x + warps[i].x, total.y + warps[i].y);
    }
    *total_out = total;
    return before;
}

/* Rows of an expert as steps of two tiles, and whether one tile is left over. */
static __device__ int n_pairs_of(int rows)
{
    return rows / (2 * SM90_MOE_TILE_ROWS) + (rows % (2 * SM90_MOE_TILE_ROWS) > SM90_MOE_TILE_ROWS);
}

static __device__ int is_tile_left(int rows)
{
    const int rest = rows % (2 * SM90_MOE_TILE_ROWS);
    return rest > 0 && rest <= SM90_MOE_TILE_ROWS;
}

static __device__ void put_item(sm90_moe_item *to, int expert, int first, int rows, int shared)
{
    *(int4 *)to = make_int4(expert, first, rows, shared);
}

static __device__ void put_pairs(sm90_moe_item *steps, int expert, int first, int rows)
{
    for (int i = 0; i < n_pairs_of(rows); i++) {
        const int at = 2 * SM90_MOE_TILE_ROWS * i, rest = rows - at - SM90_MOE_TILE_ROWS;
        sm90_moe_item *step = steps + SM90_MOE_RANKS * i;
        put_item(step, expert, first + at, SM90_MOE_TILE_ROWS, 1);
        put_item(step + 1, expert, first + at + SM90_MOE_TILE_ROWS, min(rest, SM90_MOE_TILE_ROWS),
                 1);
    }
}

/* Left-over tiles are numbered through all experts; 2 i opens a step behind the pairs of its
 * expert, 2 i + 1 joins it.  opened[i] is that step.  Every block counts all experts, so that none
 * waits for another, and writes the items of some: what two write is the same. */
static __global__ void __launch_bounds__(SM90_MOE_PLAN_THREADS)
    make_steps(const int32_t *offsets, int n_experts, sm90_moe_steps steps, int n_clusters)
{
    const int each = (n_experts + SM90_MOE_PLAN_THREADS - 1) / SM90_MOE_PLAN_THREADS;
    const int begin = min((int)threadIdx.x * each, n_experts);
    const int end = min(begin + each, n_experts);
    const int is_mine = threadIdx.x % SM90_MOE_PLAN_BLOCKS == blockIdx.x;
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
        if (is_mine)
            put_pairs(steps.items + SM90_MOE_RANKS * (pair + (left + 1) / 2), e, first, rows);
        pair += n_pairs_of(rows);
        if (is_tile_left(rows)) {
            if (left % 2 == 0) steps.opened[left / 2] = pair + left / 2;
            left++;
        }
    }
    __syncthreads();

    left = before.y;
    for (int e = begin; e < end && is_mine; e++) {
        const int first = offsets[e], rows = offsets[e + 1] - first;
        if (!is_tile_left(rows)) continue;
        const int n = rows % (2 * SM90_MOE_TILE_ROWS), at = first + rows - n;
        const int is_alone = left % 2 == 0 && left + 1 == total.y;
        sm90_moe_item *step = steps.items + SM90_MOE_RANKS * steps.opened[left / 2];
        put_item(step + left % 2, e, at, n, is_alone);
        if (is_alone) put_item(step + 1, e, at, 0, 1);
        left++;
    }
    if (threadIdx.x == 0 && blockIdx.x == 0) {
        *steps.n_steps = total.x + (total.y + 1) / 2;
        *steps.n_taken = n_clusters;
    }
}

/* In the workspace, for a kernel of n_clusters clusters that is launched next. */
static sm90_moe_steps sm90_moe_make_steps(struct m2_gpu *gpu, const int32_t *offsets, int n_experts,
                                          int64_t n_routes, int n_clusters)
{
    static_assert(2 * SM90_MOE_TILE_ROWS == M2_GPU_WORK_ROUTES &&
                      SM90_MOE_RANKS * sizeof(sm90_moe_item) + 4 == M2_GPU_WORK_BYTES,
                  "as limits.h says");
    const int64_t n_max = n_routes / (2 * SM90_MOE_TILE_ROWS) + n_experts + 1;
    const size_t item_bytes = (size_t)n_max * SM90_MOE_RANKS * sizeof(sm90_moe_item);
    int32_t *counters = (int32_t *)((char *)gpu->workspace + item_bytes);
    assert(item_bytes + 4 * ((size_t)n_experts + 3) <= M2_GPU_WORKSPACE_BYTES);
    const sm90_moe_steps steps = { (sm90_moe_item *)gpu->workspace, counters, counters + 1,
                                   counters + 2 };
    make_steps<<<SM90_MOE_PLAN_BLOCKS, SM90_MOE_PLAN_THREADS, 0, gpu->stream>>>(offsets, n_experts,
                                                                                steps, n_clusters);
    return steps;
}

#endif
