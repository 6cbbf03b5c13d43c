/* sm90_attention.cu - softmax attention inside segments, with learned sinks, for Hopper.
 *
 *   y[i, h] = softmax(scale * q[i, h] . k[j, g]) . v[j, g],  j over the segment of i,  g = h / (H / K)
 *
 * In       q [n, H, 128], k and v [n, K, 128] bf16 as they come from the projections; sinks [n_sinks, H]
 *          f32 or none
 * Out      y [n, H, 128] bf16
 * How      A block takes 128 queries of one head and walks the keys of the segment in tiles of 176:
 *          one thread feeds K and V through rings of shared memory, two warpgroups take 64 queries
 *          each.  Scores, probabilities and sums never leave the registers.  Inside a group the softmax
 *          of a tile runs under the product of the tile before with V, and the two groups fill each
 *          other's gaps at the tensor cores.
 * Limits   head width 128, bf16, no causal mask; the rest goes to simt_attention.cu
 * Numerics Scores and sums f32.  exp(s - m) is rounded to bf16 for the product with V, where m is a
 *          maximum of the row that follows only when it has grown by more than MARGIN powers of two:
 *          a bf16 is as exact at 2^8 as at 1.  Row sums are of the unrounded values.
 * Order    Keys ascend from the segment's start in tiles of one width, and each row decides by itself
 *          when its maximum moves: bits depend on the row and its segment, on nothing else.
 * Twin     backend/cpu/ref/attention.c       Speed  bench/gpu/bench_attention.cu
 */
#include "backend/gpu/launch.h"

#include "backend/gpu/kernels/sm90_ptx.cuh"
#include "backend/gpu/sm90_tensor_map.h"

#define DIM          128
#define SLAB_COLS    64 /* of a tile: as many as one swizzled row of 128 bytes holds      */
#define N_SLABS      (DIM / SLAB_COLS)
#define QUERIES      128 /* of a block                                                     */
#define KEYS         176 /* of a tile: more do not fit the registers, fewer starve wgmma   */
#define STAGES       2
#define SEGMENTS_MAX 8 /* of one launch, for the size of the kernel's arguments           */
#define MARGIN       8.0f
#define LOG2_E       1.44269504f

#define GROUP_QUERIES    64
#define GROUP_THREADS    128
#define N_GROUPS         2 /* of queries; one more group of threads feeds them */
#define BLOCK_THREADS    (GROUP_THREADS * (N_GROUPS + 1))
#define FEEDER_REGISTERS 24
#define GROUP_REGISTERS  240

/* Bytes.  A slab is 64 columns of a tile's rows, its rows one below the other. */
#define ROW_BYTES   (SLAB_COLS * 2)
#define QUERY_SLAB  (QUERIES * ROW_BYTES)
#define QUERY_BYTES (QUERY_SLAB * N_SLABS)
#define KEY_SLAB    (KEYS * ROW_BYTES)
#define KEY_BYTES   (KEY_SLAB * N_SLABS)

/* Shared memory: the tiles, each on a multiple of 1024, then the barriers. */
#define K_TILES      QUERY_BYTES
#define V_TILES      (K_TILES + STAGES * KEY_BYTES)
#define Q_FULL       (V_TILES + STAGES * KEY_BYTES)
#define Q_EMPTY      (Q_FULL + 8)
#define K_FULL       (Q_EMPTY + 8) /* [STAGES], as the next three */
#define K_EMPTY      (K_FULL + 8 * STAGES)
#define V_FULL       (K_EMPTY + 8 * STAGES)
#define V_EMPTY      (V_FULL + 8 * STAGES)
#define SHARED_BYTES (V_EMPTY + 8 * STAGES + 1024)

#define TILE_HIGH sm90_desc_high(8 * ROW_BYTES, SM90_SWIZZLE_128)

typedef struct segment_desc {
    CUtensorMap k, v; /* of this segment alone, so that zeros stand behind its last key */
    int first_row, n_rows;
} segment_desc;

/* Tiles of queries of one segment, for every head: items in the order head, tile. */
typedef struct item_range {
    int first_item;
    int segment, first_tile, n_tiles;
} item_range;

typedef struct attention_params {
    CUtensorMap q;
    segment_desc segments[SEGMENTS_MAX];
    item_range ranges[2 * SEGMENTS_MAX];
    int n_segments, n_ranges, n_items;
    int n_heads, queries_per_key; /* heads of q, heads of q to a head of k      */
    int n_sinks;                  /* 0: none                                    */
    float scale;                  /* times log2(e): softmax is in powers of two */
    const float *sinks;
    gpu_bf16 *y;
} attention_params;

/* What a block does at a time: QUERIES queries of one head. */
typedef struct work_item {
    int segment, head;
    int row; /* first query, counted in the segment */
} work_item;

SM90_INLINE work_item item_at(const attention_params &params, int idx)
{
    int at = 0;
    while (at + 1 < params.n_ranges && idx >= params.ranges[at + 1].first_item) at++;
    const item_range &range = params.ranges[at];
    const int local = idx - range.first_item;
    return { range.segment, local / range.n_tiles,
             (range.first_tile + local % range.n_tiles) * QUERIES };
}

/* ---- rings ---------------------------------------------------------------------------------- */

/* A place in a ring counts up for ever; the stage and the parity of its phase follow from it. */
SM90_INLINE uint32_t stage_of(uint32_t place)
{
    return place % STAGES;
}

SM90_INLINE uint32_t parity_of(uint32_t place)
{
    return place / STAGES & 1;
}

SM90_INLINE void wait_full(uint32_t bars, uint32_t place)
{
    sm90_bar_wait(bars + 8 * stage_of(place), parity_of(place));
}

/* This warp is done with the stage: each warp says so for itself. */
SM90_INLINE void release(uint32_t bars, uint32_t place)
{
    if (threadIdx.x % 32 == 0) sm90_bar_arrive(bars + 8 * stage_of(place));
}

SM90_INLINE void load_tile(uint32_t tiles, uint32_t full, uint32_t empty, const CUtensorMap *map,
                           int column, int row, uint32_t place)
{
    const uint32_t stage = stage_of(place), bar = full + 8 * stage;
    sm90_bar_wait(empty + 8 * stage, parity_of(place) ^ 1);
    sm90_bar_arrive_expect(bar, KEY_BYTES);
    for (int slab = 0; slab < N_SLABS; slab++)
        sm90_load_2d(tiles + stage * KEY_BYTES + slab * KEY_SLAB, map, bar,
                     column + slab * SLAB_COLS, row);
}

/* The feeding thread: fetches what the groups will read, in the order in which they read it. */
static __device__ void feed(const attention_params &params, uint32_t shared)
{
    uint32_t k_place = 0, v_place = 0, q_parity = 1;
    for (int idx = (int)blockIdx.x; idx < params.n_items; idx += (int)gridDim.x) {
        const work_item item = item_at(params, idx);
        const segment_desc &segment = params.segments[item.segment];
        sm90_bar_wait(shared + Q_EMPTY, q_parity);
        q_parity ^= 1;
        sm90_bar_arrive_expect(shared + Q_FULL, QUERY_BYTES);
        for (int slab = 0; slab < N_SLABS; slab++)
            sm90_load_2d(shared + slab * QUERY_SLAB, &params.q, shared + Q_FULL,
                         item.head * DIM + slab * SLAB_COLS, segment.first_row + item.row);

        const int column = item.head / params.queries_per_key * DIM;
        for (int row = 0; row < segment.n_rows + KEYS; row += KEYS) {
            if (row < segment.n_rows)
                load_tile(shared + K_TILES, shared + K_FULL, shared + K_EMPTY, &segment.k, column,
                          row, k_place++);
            if (row > 0)
                load_tile(shared + V_TILES, shared + V_FULL, shared + V_EMPTY, &segment.v, column,
                          row - KEYS, v_place++);
        }
    }
}

/* ---- products ------------------------------------------------------------------------------- */

/* s = q . k^T of 64 queries and a tile of keys */
SM90_INLINE void start_scores(float (&s)[KEYS / 2], uint32_t q, uint32_t k)
{
    const uint32_t a = sm90_desc(q, 0), b = sm90_desc(k, 0);
#pragma unroll
    for (int step = 0; step < DIM / 16; step++) {
        const uint32_t slab = step / 4, inside = step % 4 * 32 / 16;
        sm90_wgmma_ss<0>(s, a + slab * (QUERY_SLAB / 16) + inside, TILE_HIGH,
                         b + slab * (KEY_SLAB / 16) + inside, TILE_HIGH, step > 0);
    }
    sm90_wgmma_commit();
}

/* o (+)= p . v; columns of v lie together, keys one below the other */
SM90_INLINE void start_values(float (&o)[DIM / 2], const uint32_t (&p)[KEYS / 16][4], uint32_t v,
                              int is_adding)
{
    const uint32_t b = sm90_desc(v, KEY_SLAB);
#pragma unroll
    for (int step = 0; step < KEYS / 16; step++)
        sm90_wgmma_rs<1>(o, p[step], b + step * (16 * ROW_BYTES / 16), TILE_HIGH,
                         step > 0 || is_adding);
    sm90_wgmma_commit();
}

/* ---- softmax -------------------------------------------------------------------------------- */

/* A thread holds parts of two rows: r is row t / 4 + 8 r of its warp's 16, and element i of an
 * accumulator belongs to r = i / 2 % 2. */
typedef struct row_state {
    float max[2]; /* what probabilities stand on: a score times scale */
    float sum[2]; /* this thread's share                              */
} row_state;

SM90_INLINE float exp2_of(float x)
{
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

SM90_INLINE float quad_max(float x)
{
    x = fmaxf(x, gpu_shfl_xor(x, 1));
    return fmaxf(x, gpu_shfl_xor(x, 2));
}

SM90_INLINE float quad_sum(float x)
{
    x += gpu_shfl_xor(x, 1);
    return x + gpu_shfl_xor(x, 2);
}

/* Hides keys from number `left` of the tile on: zeros behind the segment's end are not scores. */
SM90_INLINE void hide_keys(float (&s)[KEYS / 2], int left)
{
    const int column = (int)threadIdx.x % 4 * 2;
#pragma unroll
    for (int i = 0; i < KEYS / 2; i++)
        if (i / 4 * 8 + column + i % 2 >= left) s[i] = -INFINITY;
}

/* Scores to probabilities, in place.  decay: what becomes of earlier sums of the rows. */
SM90_INLINE void softmax_tile(float (&s)[KEYS / 2], row_state &rows, float scale, float (&decay)[2])
{
    float top[2] = { s[0], s[2] };
#pragma unroll
    for (int i = 0; i < KEYS / 2; i++) top[i / 2 % 2] = fmaxf(top[i / 2 % 2], s[i]);
#pragma unroll
    for (int r = 0; r < 2; r++) {
        const float max = quad_max(top[r]) * scale;
        decay[r] = 1.0f;
        if (max > rows.max[r] + MARGIN) {
            decay[r] = exp2_of(rows.max[r] - max);
            rows.max[r] = max;
        }
        rows.sum[r] *= decay[r];
    }
#pragma unroll
    for (int i = 0; i < KEYS / 2; i++) {
        s[i] = exp2_of(fmaf(s[i], scale, -rows.max[i / 2 % 2]));
        rows.sum[i / 2 % 2] += s[i];
    }
}

SM90_INLINE uint32_t pack(float low, float high)
{
    uint32_t word;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(word) : "f"(high), "f"(low));
    return word;
}

/* An accumulator of 16 keys is a fragment of A, once rounded. */
SM90_INLINE void round_tile(uint32_t (&p)[KEYS / 16][4], const float (&s)[KEYS / 2])
{
#pragma unroll
    for (int i = 0; i < KEYS / 4; i++) p[i / 4][i % 4] = pack(s[2 * i], s[2 * i + 1]);
}

/* Most tiles move no maximum of a warp's rows; a factor of 1 changes no bits. */
SM90_INLINE void decay_values(float (&o)[DIM / 2], const float (&decay)[2])
{
    if (!gpu_ballot(decay[0] != 1.0f || decay[1] != 1.0f)) return;
#pragma unroll
    for (int i = 0; i < DIM / 2; i++) o[i] *= decay[i / 2 % 2];
}

/* ---- results -------------------------------------------------------------------------------- */

/* log2 of the sum of e^sink over the sinks of a head */
SM90_INLINE float sink_log2(const attention_params &params, int head)
{
    float top = -INFINITY, sum = 0.0f;
    for (int i = 0; i < params.n_sinks; i++)
        top = fmaxf(top, params.sinks[i * params.n_heads + head]);
    if (isinf(top)) return top;
    for (int i = 0; i < params.n_sinks; i++)
        sum += exp2_of((params.sinks[i * params.n_heads + head] - top) * LOG2_E);
    return fmaf(top, LOG2_E, __log2f(sum));
}

/* Divides, applies the sinks and stores this thread's part of its two rows, the first of which is
 * `row` of the segment.  Neighbouring lanes swap words, so that each stores 8 bytes and four fill a
 * sector. */
SM90_INLINE void store_rows(const attention_params &params, const work_item &item, int row,
                            const float (&o)[DIM / 2], const row_state &rows)
{
    const segment_desc &segment = params.segments[item.segment];
    const float sink = params.n_sinks ? sink_log2(params, item.head) : 0.0f;
    const int quad_lane = (int)threadIdx.x % 4, is_odd = quad_lane & 1;
#pragma unroll
    for (int r = 0; r < 2; r++, row += 8) {
        const float sum = quad_sum(rows.sum[r]), inverse = 1.0f / sum;
        const float factor = 1.0f / (1.0f + exp2_of(sink - (rows.max[r] + __log2f(sum))));
        gpu_bf16 *y = params.y +
                      ((int64_t)(segment.first_row + row) * params.n_heads + item.head) * DIM +
                      (is_odd ? 8 + 2 * (quad_lane - 1) : 2 * quad_lane);
#pragma unroll
        for (int i = 0; i < DIM / 16; i++) {
            uint32_t word[2];
#pragma unroll
            for (int half = 0; half < 2; half++) {
                const float *from = o + 8 * i + 4 * half + 2 * r;
                word[half] = pack(from[0] * inverse, from[1] * inverse);
                if (params.n_sinks)
                    word[half] = pack(__uint_as_float(word[half] << 16) * factor,
                                      __uint_as_float(word[half] & 0xffff0000u) * factor);
            }
            const uint32_t got = gpu_shfl_xor(is_odd ? word[0] : word[1], 1);
            const uint2 out = is_odd ? make_uint2(got, word[1]) : make_uint2(word[0], got);
            if (row < segment.n_rows) *(uint2 *)(y + 16 * i) = out;
        }
    }
}

/* ---- a group of 64 queries ------------------------------------------------------------------ */

/* All keys of an item: sums of probabilities and of values, from place `place` of the rings on. */
SM90_INLINE void attend_item(float (&o)[DIM / 2], row_state &rows, uint32_t shared, uint32_t q,
                             uint32_t place, int n_keys, float scale)
{
    float s[KEYS / 2], decay[2];
    uint32_t p[KEYS / 16][4];
    int left = n_keys;
    wait_full(shared + K_FULL, place);
    sm90_wgmma_fence();
    start_scores(s, q, shared + K_TILES + stage_of(place) * KEY_BYTES);
    sm90_wgmma_wait<0>();
    sm90_wgmma_pin(s);
    release(shared + K_EMPTY, place);
    if (left < KEYS) hide_keys(s, left);
    softmax_tile(s, rows, scale, decay);
    round_tile(p, s);
    for (left -= KEYS; left > 0; left -= KEYS, place++) {
        wait_full(shared + K_FULL, place + 1);
        sm90_wgmma_fence();
        start_scores(s, q, shared + K_TILES + stage_of(place + 1) * KEY_BYTES);
        wait_full(shared + V_FULL, place);
        sm90_wgmma_fence();
        start_values(o, p, shared + V_TILES + stage_of(place) * KEY_BYTES, left + KEYS < n_keys);
        sm90_wgmma_wait<1>();
        sm90_wgmma_pin(s);
        release(shared + K_EMPTY, place + 1);
        if (left < KEYS) hide_keys(s, left);
        softmax_tile(s, rows, scale, decay);
        sm90_wgmma_wait<0>();
        sm90_wgmma_pin(o);
        release(shared + V_EMPTY, place);
        round_tile(p, s);
        decay_values(o, decay);
    }
    if (threadIdx.x % 32 == 0) sm90_bar_arrive(shared + Q_EMPTY);
    wait_full(shared + V_FULL, place);
    sm90_wgmma_fence();
    start_values(o, p, shared + V_TILES + stage_of(place) * KEY_BYTES, n_keys > KEYS);
    sm90_wgmma_wait<0>();
    sm90_wgmma_pin(o);
    release(shared + V_EMPTY, place);
}

/* A group that has no query in an item lets its tiles pass. */
SM90_INLINE void skip_item(uint32_t shared, uint32_t place, uint32_t n_tiles)
{
    if (threadIdx.x % 32 == 0) sm90_bar_arrive(shared + Q_EMPTY);
    for (const uint32_t end = place + n_tiles; place != end; place++) {
        wait_full(shared + K_FULL, place);
        release(shared + K_EMPTY, place);
        wait_full(shared + V_FULL, place);
        release(shared + V_EMPTY, place);
    }
}

static __device__ void attend(const attention_params &params, uint32_t shared, int group)
{
    uint32_t place = 0, q_parity = 0;
    for (int idx = (int)blockIdx.x; idx < params.n_items; idx += (int)gridDim.x) {
        work_item item = item_at(params, idx);
        const int n_keys = params.segments[item.segment].n_rows;
        const uint32_t n_tiles = (uint32_t)(n_keys + KEYS - 1) / KEYS;
        sm90_bar_wait(shared + Q_FULL, q_parity);
        q_parity ^= 1;
        if (item.row + group * GROUP_QUERIES >= n_keys) {
            skip_item(shared, place, n_tiles);
        } else {
            float o[DIM / 2];
            row_state rows = { { -INFINITY, -INFINITY }, { 0.0f, 0.0f } };
            attend_item(o, rows, shared, shared + group * GROUP_QUERIES * ROW_BYTES, place, n_keys,
                        params.scale);
            item = item_at(params, idx); /* cheaper than registers kept over the keys */
            store_rows(params, item,
                       item.row + group * GROUP_QUERIES +
                           (int)threadIdx.x % GROUP_THREADS / 32 * 16 + (int)threadIdx.x % 32 / 4,
                       o, rows);
        }
        place += n_tiles;
    }
}

/* ---- kernel and launcher -------------------------------------------------------------------- */

static __global__ void __launch_bounds__(BLOCK_THREADS, 1)
    attention_kernel(const __grid_constant__ attention_params params)
{
    extern __shared__ char unaligned[];
    const uint32_t shared = (sm90_smem(unaligned) + 1023) & ~1023u;
    if (threadIdx.x == 0) {
        sm90_bar_init(shared + Q_FULL, 1);
        sm90_bar_init(shared + Q_EMPTY, N_GROUPS * 4);
        for (int stage = 0; stage < STAGES; stage++) {
            sm90_bar_init(shared + K_FULL + 8 * stage, 1);
            sm90_bar_init(shared + K_EMPTY + 8 * stage, N_GROUPS * 4);
            sm90_bar_init(shared + V_FULL + 8 * stage, 1);
            sm90_bar_init(shared + V_EMPTY + 8 * stage, N_GROUPS * 4);
        }
        sm90_bar_init_fence();
    }
    __syncthreads();
    /* By the shuffle the compiler knows that all of a warp take one branch. */
    const int role = gpu_shfl((int)threadIdx.x / GROUP_THREADS, 0);
    if (role == 0) {
        sm90_registers_give<FEEDER_REGISTERS>();
        if (threadIdx.x == 0) feed(params, shared);
    } else {
        sm90_registers_take<GROUP_REGISTERS>();
        attend(params, shared, role - 1);
    }
}

static void add_range(attention_params *params, int segment, int first_tile, int n_tiles)
{
    if (n_tiles == 0) return;
    item_range *range = &params->ranges[params->n_ranges++];
    *range = { params->n_items, segment, first_tile, n_tiles };
    params->n_items += n_tiles * params->n_heads;
}

/* Whole tiles first, the ragged ones, which take less, at the end: blocks should end together. */
static void order_items(attention_params *params)
{
    params->n_ranges = params->n_items = 0;
    for (int i = 0; i < params->n_segments; i++)
        add_range(params, i, 0, params->segments[i].n_rows / QUERIES);
    for (int i = 0; i < params->n_segments; i++)
        if (params->segments[i].n_rows % QUERIES)
            add_range(params, i, params->segments[i].n_rows / QUERIES, 1);
}

/* Describes up to SEGMENTS_MAX segments from number *next_io on, the longest first.
 * 0: no tensor maps here. */
static int describe_segments(attention_params *params, const m2_attention_args *args, int *next_io)
{
    const int64_t row_values = args->k->shape[1] * DIM;
    const int box[2] = { KEYS, SLAB_COLS };
    params->n_segments = 0;
    for (; *next_io < args->n_segments && params->n_segments < SEGMENTS_MAX; (*next_io)++) {
        const int64_t begin = args->segments[*next_io], end = args->segments[*next_io + 1];
        if (begin == end) continue;
        int at = params->n_segments++;
        for (; at > 0 && params->segments[at - 1].n_rows < end - begin; at--)
            params->segments[at] = params->segments[at - 1];
        segment_desc *segment = &params->segments[at];
        const int64_t shape[2] = { end - begin, row_values };
        if (!m2_sm90_map_bf16(&segment->k, (gpu_bf16 *)args->k->data + begin * row_values, 2, shape,
                              box) ||
            !m2_sm90_map_bf16(&segment->v, (gpu_bf16 *)args->v->data + begin * row_values, 2, shape,
                              box))
            return 0;
        segment->first_row = (int)begin;
        segment->n_rows = (int)(end - begin);
    }
    order_items(params);
    return 1;
}

static int is_ours(const m2_gpu *gpu, const m2_attention_args *args)
{
    return args->q->dtype == M2_BF16 && args->q->shape[2] == DIM && !args->is_causal &&
           args->scale > 0.0f && args->q->shape[0] < (1 << 30) && gpu->smem_max >= SHARED_BYTES;
}

extern "C" int m2_sm90_attention(m2_gpu *gpu, const m2_attention_args *args)
{
    if (!is_ours(gpu, args)) return 0;
    const int64_t shape[2] = { args->q->shape[0], args->q->shape[1] * DIM };
    const int box[2] = { QUERIES, SLAB_COLS };
    attention_params params;
    if (!m2_sm90_map_bf16(&params.q, args->q->data, 2, shape, box)) return 0;
    params.n_heads = (int)args->q->shape[1];
    params.queries_per_key = (int)(args->q->shape[1] / args->k->shape[1]);
    params.n_sinks = args->sinks ? (int)args->sinks->shape[0] : 0;
    params.sinks = args->sinks ? (const float *)args->sinks->data : NULL;
    params.scale = args->scale * LOG2_E;
    params.y = (gpu_bf16 *)args->y->data;
    gpuFuncSetAttribute(attention_kernel, gpuFuncAttributeMaxDynamicSharedMemorySize, SHARED_BYTES);
    for (int next = 0; next < args->n_segments;) {
        if (!describe_segments(&params, args, &next)) return 0;
        if (params.n_items == 0) continue;
        const int n_blocks = params.n_items < gpu->n_mps ? params.n_items : gpu->n_mps;
        attention_kernel<<<n_blocks, BLOCK_THREADS, SHARED_BYTES, gpu->stream>>>(params);
        m2_gpu_launched(gpu, "attention");
    }
    return 1;
}
