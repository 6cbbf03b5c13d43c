/* sm90_conv.cu - bf16 convolution for Hopper: an implicit matrix product by wgmma.
 *
 *   y[t, y, x, o] = bias[o] + sum over taps, c of x[t + dt, y + dy, x + dx, c] . w[tap, o, c]
 *
 * Why      the samples that a tile of outputs needs from one frame and 64 channels are a box of the
 *          tensor with a margin for the taps; the copy engine brings it once, and each tap (dy, dx)
 *          reads it from another row on.  Zeros outside the tensor are the padding in H and W.  A
 *          box has one frame, so that repeating the first and the last is a bound on its
 *          coordinate.
 * Layout   256 outputs of a block are four squares of 8 x 8, two for each of two consumer
 *          warpgroups: eight neighbours in x are the eight rows that a swizzle pattern holds, and
 *          the stride between such groups is a row of the box, so a square is an m64 operand from
 *          any tap's first row on.  The swizzle goes by address, so no start need be aligned to the
 *          pattern.  N output channels a square stay in registers.  Boxes and slices of w lie in
 *          two rings; blocks stay and take tiles in turn, the producer runs ahead while the
 *          consumers store.
 * Order    dt, channels in steps of 64, dy, dx, channels in steps of 16; N follows from c_out
 *          alone, so a sample has the same bits in any tensor
 * Limits   c_in a multiple of 8, margins that fit shared memory; others go to simt_conv.cu
 * Numerics f32 accumulators, bias added in f32, one rounding to bf16
 * Twin     backend/gpu/kernels/simt_conv.cu */
#include "backend/gpu/kernels/simt_common.cuh"
#include "backend/gpu/kernels/sm90_ptx.cuh"
#include "backend/gpu/sm90_tensor_map.h"

#define K_STAGE      64 /* channels of a box: rows of 128 bytes */
#define ROW_BYTES    128
#define SIDE         8   /* of a square of outputs               */
#define ROWS         256 /* outputs of a block                   */
#define CONSUMERS    2
#define SQUARES      2 /* of a consumer */
#define THREADS      ((CONSUMERS + 1) * 128)
#define BOXES_MAX    4
#define SHARED_BYTES (225 * 1024)

/* What the tiles of one call are. */
typedef struct conv_plan {
    int frames, height, width;
    int kt, kh, kw, dilation, pad_left;
    int c_out, n_slices;                     /* boxes of one frame: channels / 64    */
    int box_width, box_height, squares_log2; /* outputs; squares along W */
    int pitch;                               /* samples in a row of the box with its margin  */
    int box_bytes;                           /* that arrive                                  */
    int box_step, n_boxes;                   /* bytes from one to the next, boxes in the ring */
    int n_x, n_y, n_columns;                 /* tiles along W, H and the output channels */
    int n_tiles;
    simt_any bias;
    gpu_bf16 *y;
} conv_plan;

typedef struct conv_tile {
    int t, y, x, column; /* first output */
} conv_tile;

/* Column tiles of the same samples stand together, then x, y, t. */
static __device__ __forceinline__ conv_tile tile_at(const conv_plan &plan, int idx, int n)
{
    conv_tile tile;
    const int rest = idx / plan.n_columns, line = rest / plan.n_x;
    tile.column = (idx - rest * plan.n_columns) * n;
    tile.x = (rest - line * plan.n_x) * plan.box_width;
    tile.t = line / plan.n_y;
    tile.y = (line - tile.t * plan.n_y) * plan.box_height;
    return tile;
}

/* Slices of w: as many as leave room for two boxes of 16 x 16 with the margin of 3 x 3 taps. */
template <int N> struct conv_ring {
    static constexpr int BYTES = N * ROW_BYTES;
    static constexpr int STAGES = N == 128 ? 8 : 12;
};

/* Shared memory: barriers, slices of w, boxes. */
template <int N> struct conv_memory {
    uint32_t w_full, w_empty, box_full, box_empty, slices, boxes;

    __device__ __forceinline__ explicit conv_memory(uint32_t base)
    {
        w_full = base;
        w_empty = w_full + 8 * conv_ring<N>::STAGES;
        box_full = w_empty + 8 * conv_ring<N>::STAGES;
        box_empty = box_full + 8 * BOXES_MAX;
        slices = base + 1024;
        boxes = slices + conv_ring<N>::STAGES * conv_ring<N>::BYTES;
    }
};

/* Where a role stands in a ring. */
typedef struct ring_at {
    int stage;
    uint32_t phase;
} ring_at;

static __device__ __forceinline__ void ring_next(ring_at *at, int n_stages)
{
    if (++at->stage == n_stages) {
        at->stage = 0;
        at->phase ^= 1;
    }
}

/* One thread: every box and slice of every tile of this block, in the order of their use. */
template <int N>
static __device__ __forceinline__ void produce(const conv_plan &plan, const CUtensorMap *x_map,
                                               const CUtensorMap *w_map,
                                               const conv_memory<N> &memory)
{
    const int n_window = plan.kh * plan.kw;
    ring_at box = { 0, 1 }, slice = { 0, 1 }; /* the rings are empty at first */
    for (int idx = (int)blockIdx.x; idx < plan.n_tiles; idx += (int)gridDim.x) {
        const conv_tile tile = tile_at(plan, idx, N);
        for (int dt = 0; dt < plan.kt; dt++) {
            const int moved = tile.t + dt - plan.kt / 2;
            const int t = moved < 0 ? 0 : moved >= plan.frames ? plan.frames - 1 : moved;
            for (int c = 0; c < plan.n_slices * K_STAGE; c += K_STAGE) {
                const uint32_t box_bar = memory.box_full + 8 * box.stage;
                sm90_bar_wait(memory.box_empty + 8 * box.stage, box.phase);
                sm90_bar_arrive_expect(box_bar, plan.box_bytes);
                sm90_load_4d(memory.boxes + box.stage * plan.box_step, x_map, box_bar, c,
                             tile.x - plan.pad_left, tile.y - plan.kh / 2, t);
                ring_next(&box, plan.n_boxes);
                for (int tap = dt * n_window; tap < (dt + 1) * n_window; tap++) {
                    const uint32_t bar = memory.w_full + 8 * slice.stage;
                    sm90_bar_wait(memory.w_empty + 8 * slice.stage, slice.phase);
                    sm90_bar_arrive_expect(bar, conv_ring<N>::BYTES);
                    sm90_load_3d(memory.slices + slice.stage * conv_ring<N>::BYTES, w_map, bar, c,
                                 tile.column, tap);
                    ring_next(&slice, conv_ring<N>::STAGES);
                }
            }
        }
    }
}

static __device__ __forceinline__ float bias_at(const conv_plan &plan, int column)
{
    return plan.bias.data && column < plan.c_out ? simt_any_get(plan.bias, column) : 0.0f;
}

/* One row, 16 columns from two neighbouring groups of 8.  A quad of lanes holds columns 2 q,
 * 2 q + 1 of both; lanes exchange in pairs so that each stores 8 bytes and a quad a sector. */
static __device__ __forceinline__ void store_sector(gpu_bf16 *to, bool is_inside, uint32_t first,
                                                    uint32_t second)
{
    const int q = (int)threadIdx.x % 4, is_odd = q % 2;
    const uint32_t got = gpu_shfl_xor(is_odd ? first : second, 1);
    const uint2 words = is_odd ? make_uint2(got, second) : make_uint2(first, got);
    if (is_inside) *(uint2 *)(to + is_odd * 8 + q / 2 * 4) = words;
}

/* Where c_out is no multiple of 16: value by value. */
static __device__ __forceinline__ void store_some(const conv_plan &plan, gpu_bf16 *to, int column,
                                                  bool is_inside, const float values[2])
{
    for (int j = 0; j < 2; j++)
        if (is_inside && column + j < plan.c_out) to[column + j] = __float2bfloat16_rn(values[j]);
}

/* Sums of one square, whose first output is at (y, x). */
template <int N>
static __device__ __forceinline__ void store_square(const conv_plan &plan, int t, int y, int x,
                                                    int column0, const float (&sums)[N / 2])
{
    const int lane = (int)threadIdx.x % 32, warp = (int)threadIdx.x % 128 / 32;
    const bool is_whole = plan.c_out % 16 == 0;
    gpu_bf16 *to[2];
    bool is_row[2];
    x += lane / 4;
    y += 2 * warp;
#pragma unroll
    for (int half = 0; half < 2; half++) {
        is_row[half] = x < plan.width && y + half < plan.height;
        to[half] = plan.y + (((int64_t)t * plan.height + y + half) * plan.width + x) * plan.c_out;
    }
#pragma unroll
    for (int i = 0; i < N / 8; i += 2) {
        const int group = column0 + 8 * i, column = group + lane % 4 * 2;
        if (group < plan.c_out) {
            const float bias[4] = { bias_at(plan, column), bias_at(plan, column + 1),
                                    bias_at(plan, column + 8), bias_at(plan, column + 9) };
#pragma unroll
            for (int half = 0; half < 2; half++) {
                float v[4];
#pragma unroll
                for (int j = 0; j < 4; j++)
                    v[j] = sums[4 * (i + j / 2) + 2 * half + j % 2] + bias[j];
                if (is_whole) {
                    store_sector(to[half] + group, is_row[half], simt_bf16_pair(v[0], v[1]),
                                 simt_bf16_pair(v[2], v[3]));
                } else {
                    store_some(plan, to[half], column, is_row[half], v);
                    store_some(plan, to[half], column + 8, is_row[half], v + 2);
                }
            }
        }
    }
}

/* First output of square `i` of the block, from the tile's first. */
static __device__ __forceinline__ int square_x(const conv_plan &plan, int i)
{
    return (i & ((1 << plan.squares_log2) - 1)) * SIDE;
}

static __device__ __forceinline__ int square_y(const conv_plan &plan, int i)
{
    return (i >> plan.squares_log2) * SIDE;
}

/* Products of 64 channels of one tap: a[i] is the first row of square i, b the slice of w. */
template <int N>
static __device__ __forceinline__ void multiply(float (&sums)[SQUARES][N / 2],
                                                const uint32_t (&a)[SQUARES], uint32_t a_high,
                                                uint32_t b, int is_adding)
{
    constexpr uint32_t B_HIGH = sm90_desc_high(SIDE * ROW_BYTES, SM90_SWIZZLE_128);
    sm90_wgmma_fence();
#pragma unroll
    for (int step = 0; step < K_STAGE / 16; step++)
#pragma unroll
        for (int i = 0; i < SQUARES; i++)
            sm90_wgmma_ss<0>(sums[i], sm90_desc(a[i] + 32 * step, 0), a_high,
                             sm90_desc(b + 32 * step, 0), B_HIGH, is_adding || step > 0);
    sm90_wgmma_commit();
}

/* One warpgroup: its squares of every tile of this block. */
template <int N>
static __device__ __forceinline__ void consume(const conv_plan &plan, int consumer,
                                               const conv_memory<N> &memory)
{
    const bool is_first = threadIdx.x % 128 == 0;
    const uint32_t a_high = sm90_desc_high(plan.pitch * ROW_BYTES, SM90_SWIZZLE_128);
    const int n_loads = plan.kt * plan.n_slices;
    uint32_t square[SQUARES]; /* first row of each in a box */
#pragma unroll
    for (int i = 0; i < SQUARES; i++) {
        const int at = consumer * SQUARES + i;
        square[i] = (square_y(plan, at) * plan.pitch + square_x(plan, at)) * ROW_BYTES;
    }
    ring_at box = { 0, 0 }, slice = { 0, 0 };
    float sums[SQUARES][N / 2];
    for (int idx = (int)blockIdx.x; idx < plan.n_tiles; idx += (int)gridDim.x) {
        uint32_t read_slice = 0, read_box = 0; /* barriers of what the products before this read */
        for (int load = 0; load < n_loads; load++) {
            const uint32_t from = memory.boxes + box.stage * plan.box_step;
            sm90_bar_wait(memory.box_full + 8 * box.stage, box.phase);
            for (int dy = 0; dy < plan.kh; dy++) {
                for (int dx = 0; dx < plan.kw; dx++) {
                    const uint32_t tap = from + (dy * plan.pitch + dx * plan.dilation) * ROW_BYTES;
                    const uint32_t a[SQUARES] = { tap + square[0], tap + square[1] };
                    sm90_bar_wait(memory.w_full + 8 * slice.stage, slice.phase);
                    multiply<N>(sums, a, a_high, memory.slices + slice.stage * conv_ring<N>::BYTES,
                                load > 0 || dy > 0 || dx > 0);
                    sm90_wgmma_wait<1>();
                    if (is_first && read_slice) sm90_bar_arrive(read_slice);
                    if (is_first && read_box) sm90_bar_arrive(read_box);
                    read_slice = memory.w_empty + 8 * slice.stage;
                    read_box = 0;
                    ring_next(&slice, conv_ring<N>::STAGES);
                }
            }
            read_box = memory.box_empty + 8 * box.stage;
            ring_next(&box, plan.n_boxes);
        }
        sm90_wgmma_wait<0>();
        if (is_first) sm90_bar_arrive(read_slice);
        if (is_first) sm90_bar_arrive(read_box);
        const conv_tile tile = tile_at(plan, idx, N);
#pragma unroll
        for (int i = 0; i < SQUARES; i++) {
            const int at = consumer * SQUARES + i;
            sm90_wgmma_pin(sums[i]);
            store_square<N>(plan, tile.t, tile.y + square_y(plan, at), tile.x + square_x(plan, at),
                            tile.column, sums[i]);
        }
    }
}

template <int N>
static __global__ void __launch_bounds__(THREADS, 1)
    conv_kernel(const __grid_constant__ CUtensorMap x_map,
                const __grid_constant__ CUtensorMap w_map, const __grid_constant__ conv_plan plan)
{
    extern __shared__ __align__(1024) uint8_t shared[];
    const conv_memory<N> memory(sm90_smem(shared));
    if (threadIdx.x == 0) {
        for (int i = 0; i < conv_ring<N>::STAGES; i++) {
            sm90_bar_init(memory.w_full + 8 * i, 1);
            sm90_bar_init(memory.w_empty + 8 * i, CONSUMERS);
        }
        for (int i = 0; i < BOXES_MAX; i++) {
            sm90_bar_init(memory.box_full + 8 * i, 1);
            sm90_bar_init(memory.box_empty + 8 * i, CONSUMERS);
        }
        sm90_bar_init_fence();
        sm90_map_prefetch(&x_map);
        sm90_map_prefetch(&w_map);
    }
    __syncthreads();
    if (threadIdx.x < 128) {
        sm90_registers_give<24>();
        if (threadIdx.x == 0) produce<N>(plan, &x_map, &w_map, memory);
    } else {
        sm90_registers_take<240>();
        consume<N>(plan, (int)threadIdx.x / 128 - 1, memory);
    }
}

/* The boxes of outputs, the squarer one first: it has the smaller margin. */
static const int box_widths_log2[] = { 4, 3, 5 }; /* 16 x 16, 8 x 32, 32 x 8 */

#define N_BOXES (int)(sizeof box_widths_log2 / sizeof *box_widths_log2)

/* Width and height of a box with its margin, in samples. */
static void box_sides(const conv_plan *plan, int i, int *pitch_out, int *lines_out)
{
    *pitch_out = (1 << box_widths_log2[i]) + (plan->kw - 1) * plan->dilation;
    *lines_out = (ROWS >> box_widths_log2[i]) + plan->kh - 1;
}

/* Whether two of any box fit: what runs a convolution must not depend on H and W. */
static int boxes_fit(const conv_plan *plan, int room)
{
    for (int i = 0; i < N_BOXES; i++) {
        int pitch, lines;
        box_sides(plan, i, &pitch, &lines);
        if (pitch > 256 || lines > 256 || 2 * (pitch * lines * ROW_BYTES + 1023) > room) return 0;
    }
    return 1;
}

/* The box that wastes the least at this W and H, and the ring of boxes. */
static void choose_box(conv_plan *plan, int room, int *lines_out)
{
    int64_t best = INT64_MAX;
    for (int i = 0; i < N_BOXES; i++) {
        const int width = 1 << box_widths_log2[i], height = ROWS / width;
        const int64_t n_x = (plan->width + width - 1) / width;
        const int64_t n_y = (plan->height + height - 1) / height;
        if (n_x * n_y >= best) continue;
        best = n_x * n_y;
        plan->box_width = width;
        plan->box_height = height;
        plan->squares_log2 = box_widths_log2[i] - 3;
        plan->n_x = (int)n_x;
        plan->n_y = (int)n_y;
        box_sides(plan, i, &plan->pitch, lines_out);
    }
    plan->box_bytes = *lines_out * plan->pitch * ROW_BYTES;
    plan->box_step = (plan->box_bytes + 1023) / 1024 * 1024;
    plan->n_boxes = room / plan->box_step < BOXES_MAX ? room / plan->box_step : BOXES_MAX;
}

template <int N> static int launch(struct m2_gpu *gpu, const m2_conv_args *args, conv_plan plan)
{
    const int room = SHARED_BYTES - 1024 - conv_ring<N>::STAGES * conv_ring<N>::BYTES;
    CUtensorMap x_map, w_map;
    int lines = 0;
    if (gpu->smem_max < SHARED_BYTES || !boxes_fit(&plan, room)) return 0;
    choose_box(&plan, room, &lines);
    plan.n_columns = (plan.c_out + N - 1) / N;
    const int64_t n_tiles = (int64_t)plan.n_x * plan.n_y * plan.frames * plan.n_columns;
    const int x_box[4] = { 1, lines, plan.pitch, K_STAGE }, w_box[3] = { 1, N, K_STAGE };
    if (n_tiles > INT32_MAX || !m2_sm90_map_bf16(&x_map, args->x->data, 4, args->x->shape, x_box) ||
        !m2_sm90_map_bf16(&w_map, args->w->data, 3, args->w->shape, w_box))
        return 0;
    plan.n_tiles = (int)n_tiles;
    gpuFuncSetAttribute(conv_kernel<N>, gpuFuncAttributeMaxDynamicSharedMemorySize, SHARED_BYTES);
    const int n_blocks = plan.n_tiles < gpu->n_mps ? plan.n_tiles : gpu->n_mps;
    conv_kernel<N><<<n_blocks, THREADS, SHARED_BYTES, gpu->stream>>>(x_map, w_map, plan);
    m2_gpu_launched(gpu, "conv");
    return 1;
}

extern "C" int m2_sm90_conv(struct m2_gpu *gpu, const m2_conv_args *args)
{
    const int64_t *shape = args->x->shape, c_out = args->y->shape[3];
    const uintptr_t bits =
        (uintptr_t)args->x->data | (uintptr_t)args->w->data | (uintptr_t)args->y->data;
    if (args->x->dtype != M2_BF16 || shape[3] % 8 != 0 || bits % 16 != 0) return 0;
    conv_plan plan = {};
    plan.frames = (int)shape[0];
    plan.height = (int)shape[1];
    plan.width = (int)shape[2];
    plan.kt = args->kernel[0];
    plan.kh = args->kernel[1];
    plan.kw = args->kernel[2];
    plan.dilation = args->dilation;
    plan.pad_left = args->pad_left >= 0 ? args->pad_left : (plan.kw - 1) * args->dilation / 2;
    plan.c_out = (int)c_out;
    plan.n_slices = (int)((shape[3] + K_STAGE - 1) / K_STAGE);
    plan.bias = simt_any_of(args->bias);
    plan.y = (gpu_bf16 *)args->y->data;
    return c_out <= 64 ? launch<64>(gpu, args, plan) : launch<128>(gpu, args, plan);
}
