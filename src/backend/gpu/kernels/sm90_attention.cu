/* sm90_attention.cu - softmax attention inside segments, with learned sinks, for Hopper.
 *
 *   y[i, h] = softmax(scale * q[i, h] . k[j, g]) . v[j, g],  j over the segment of i,  g = h / (H / K)
 *
 * In       q [n, H, 128], k and v [n, K, 128] bf16 as they come from the projections; sinks [n_sinks, H]
 *          f32 or none
 * Out      y [n, H, 128] bf16
 * How      A pair of blocks takes 256 queries of one head, each block its 128, and walks the keys of the
 *          segment in tiles of 176; each block fetches half of a tile for both.  In a block one thread
 *          feeds Q, K and V to shared memory, two warpgroups take 64 queries each.  Scores,
 *          probabilities and sums never leave the registers.  Inside a group the softmax of a tile
 *          runs under the product of the tile before with V, and the two groups fill each other's gaps
 *          at the tensor cores.
 * Why      Power is the limit: what is fetched twice, and every instruction of the softmax, is paid for
 *          in clock.  So probabilities stand on the maximum of the first tile of keys, and the tiles
 *          that follow look for no maximum: exp(s - m) may grow to 2^127 and is as exact there as at
 *          1.  Rows that do not end finite are marked, and computed again at the end with a
 *          running maximum, as are rows that NaN or infinity went into.
 * Limits   head width 128, bf16, no causal mask; the rest goes to simt_attention.cu
 * Numerics Scores and sums f32; probabilities are rounded to bf16 for the product with V, row sums are
 *          of the unrounded ones.
 * Order    Keys ascend from the segment's start in tiles of one width, and a row is computed again
 *          because of itself alone: bits depend on the row and its segment, on nothing else.
 * Twin     backend/cpu/ref/attention.c       Speed  bench/gpu/bench_attention.cu
 */
#include "backend/gpu/launch.h"

#include "backend/gpu/kernels/sm90_ptx.cuh"
#include "backend/gpu/sm90_tensor_map.h"

#define DIM          128
#define SLAB_COLS    64 /* of a tile: as many as one swizzled row of 128 bytes holds      */
#define N_SLABS      (DIM / SLAB_COLS)
#define QUERIES      128 /* of a block                                                     */
#define KEYS         176 /* of a tile: what the registers hold without spilling            */
#define BLOCKS       2   /* of a cluster, which share each tile of keys                    */
#define STAGES       2
#define SEGMENTS_MAX 8 /* of one launch, for the size of the kernel's arguments           */
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
#define PART_ROWS   (KEYS / BLOCKS) /* of a tile, fetched by one block */
#define PART_BYTES  (PART_ROWS * ROW_BYTES)

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

/* Tiles of BLOCKS * QUERIES queries of one segment, for every head: items in the order head, tile. */
typedef struct item_range {
    int first_item;
    int segment, first_tile, n_tiles;
} item_range;

/* Rows of an item that must be computed again, for each block, warp and half of the warp's rows: the
 * votes of lanes, any of which marks the row of its quad. */
typedef struct item_marks {
    uint32_t votes[BLOCKS][N_GROUPS * 4][2];
} item_marks;

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
    uint32_t *has_marks; /* [clusters] */
    item_marks *marks;   /* [n_items]  */
} attention_params;

/* What a block does at a time: QUERIES queries of one head. */
typedef struct work_item {
    int segment, head;
    int row; /* first query, counted in the segment */
} work_item;

SM90_INLINE work_item item_at(const attention_params &params, int idx, uint32_t rank)
{
    int at = 0;
    while (at + 1 < params.n_ranges && idx >= params.ranges[at + 1].first_item) at++;
    const item_range &range = params.ranges[at];
    const int local = idx - range.first_item;
    return { range.segment, local / range.n_tiles,
             ((range.first_tile + local % range.n_tiles) * BLOCKS + (int)rank) * QUERIES };
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

/* This warp is done with the stage: each warp says so for itself, to every block that writes here. */
SM90_INLINE void release(uint32_t bars, uint32_t place)
{
    const uint32_t lane = threadIdx.x % 32;
    if (lane < BLOCKS) sm90_bar_arrive_at(sm90_place_in(bars + 8 * stage_of(place), lane));
}

/* This block's part of a tile, to every block of the cluster. */
SM90_INLINE void load_tile(uint32_t tiles, uint32_t full, uint32_t empty, const CUtensorMap *map,
                           int column, int row, uint32_t place, uint32_t rank)
{
    const uint32_t stage = stage_of(place), bar = full + 8 * stage;
    sm90_bar_wait(empty + 8 * stage, parity_of(place) ^ 1);
    sm90_bar_arrive_expect(bar, KEY_BYTES);
    for (int slab = 0; slab < N_SLABS; slab++)
        sm90_load_2d_to(tiles + stage * KEY_BYTES + slab * KEY_SLAB + rank * PART_BYTES, map, bar,
                        column + slab * SLAB_COLS, row + (int)rank * PART_ROWS, (1 << BLOCKS) - 1);
}

/* Where a thread stands in the rings; a group counts the tiles of V and of K together. */
typedef struct ring_state {
    uint32_t k_place, v_place, q_parity;
} ring_state;

SM90_INLINE int is_marked(const attention_params &params, int idx)
{
    uint32_t any = 0;
    for (int i = 0; i < BLOCKS * N_GROUPS * 4 * 2; i++)
        any |= (&params.marks[idx].votes[0][0][0])[i];
    return any != 0;
}

/* The feeding thread: fetches what the groups will read, in the order in which they read it. */
template <int IS_AGAIN>
static __device__ void feed(const attention_params &params, uint32_t shared, uint32_t rank,
                            ring_state &at)
{
    for (int idx = (int)sm90_cluster_idx(); idx < params.n_items; idx += (int)sm90_n_clusters()) {
        if (IS_AGAIN && !is_marked(params, idx)) continue;
        const work_item item = item_at(params, idx, rank);
        const segment_desc &segment = params.segments[item.segment];
        sm90_bar_wait(shared + Q_EMPTY, at.q_parity ^ 1);
        at.q_parity ^= 1;
        sm90_bar_arrive_expect(shared + Q_FULL, QUERY_BYTES);
        for (int slab = 0; slab < N_SLABS; slab++)
            sm90_load_2d(shared + slab * QUERY_SLAB, &params.q, shared + Q_FULL,
                         item.head * DIM + slab * SLAB_COLS, segment.first_row + item.row);

        const int column = item.head / params.queries_per_key * DIM;
        for (int row = 0; row < segment.n_rows + KEYS; row += KEYS) {
            if (row < segment.n_rows)
                load_tile(shared + K_TILES, shared + K_FULL, shared + K_EMPTY, &segment.k, column,
                          row, at.k_place++, rank);
            if (row > 0)
                load_tile(shared + V_TILES, shared + V_FULL, shared + V_EMPTY, &segment.v, column,
                          row - KEYS, at.v_place++, rank);
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

/* The maximum of a tile's scores joins that of the rows.  decay: what becomes of earlier sums. */
SM90_INLINE void raise_maxima(const float (&s)[KEYS / 2], row_state &rows, float scale,
                              float (&decay)[2])
{
    float top[2] = { s[0], s[2] };
#pragma unroll
    for (int i = 0; i < KEYS / 2; i++) top[i / 2 % 2] = fmaxf(top[i / 2 % 2], s[i]);
#pragma unroll
    for (int r = 0; r < 2; r++) {
        const float max = fmaxf(rows.max[r], quad_max(top[r]) * scale);
        decay[r] = exp2_of(rows.max[r] - max);
        rows.max[r] = max;
        rows.sum[r] *= decay[r];
    }
}

/* Scores to probabilities, in place, and their sums. */
SM90_INLINE void exponentials(float (&s)[KEYS / 2], row_state &rows, float scale)
{
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

/* Votes of this warp's lanes: 1 in votes[r] where row r's sum or the lane's part of it is not finite. */
SM90_INLINE void vote_marks(const float (&o)[DIM / 2], const row_state &rows, uint32_t (&votes)[2])
{
    float zero[2] = { quad_sum(rows.sum[0]) * 0.0f, quad_sum(rows.sum[1]) * 0.0f }; /* or NaN */
#pragma unroll
    for (int i = 0; i < DIM / 2; i++) zero[i / 2 % 2] = fmaf(o[i], 0.0f, zero[i / 2 % 2]);
#pragma unroll
    for (int r = 0; r < 2; r++) votes[r] = gpu_ballot(zero[r] != 0.0f);
}

/* Divides, applies the sinks and stores this thread's part of row `row` of the segment, one of its two.
 * Neighbouring lanes swap words, so that each stores 8 bytes and four fill a sector. */
template <int R>
SM90_INLINE void store_row(const attention_params &params, const work_item &item, int row,
                           const float (&o)[DIM / 2], const row_state &rows, int is_wanted)
{
    const segment_desc &segment = params.segments[item.segment];
    const int quad_lane = (int)threadIdx.x % 4, is_odd = quad_lane & 1;
    const float sum = quad_sum(rows.sum[R]), inverse = 1.0f / sum;
    const float sink = params.n_sinks ? sink_log2(params, item.head) : 0.0f;
    const float factor = 1.0f / (1.0f + exp2_of(sink - (rows.max[R] + __log2f(sum))));
    gpu_bf16 *y = params.y +
                  ((int64_t)(segment.first_row + row) * params.n_heads + item.head) * DIM +
                  (is_odd ? 8 + 2 * (quad_lane - 1) : 2 * quad_lane);
#pragma unroll
    for (int i = 0; i < DIM / 16; i++) {
        uint32_t word[2];
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const float *from = o + 8 * i + 4 * half + 2 * R;
            word[half] = pack(from[0] * inverse, from[1] * inverse);
            if (params.n_sinks)
                word[half] = pack(__uint_as_float(word[half] << 16) * factor,
                                  __uint_as_float(word[half] & 0xffff0000u) * factor);
        }
        const uint32_t got = gpu_shfl_xor(is_odd ? word[0] : word[1], 1);
        const uint2 out = is_odd ? make_uint2(got, word[1]) : make_uint2(word[0], got);
        if (is_wanted && row < segment.n_rows) *(uint2 *)(y + 16 * i) = out;
    }
}

/* An item's end for this warp: marks are left or, in the second round, obeyed. */
template <int IS_AGAIN>
SM90_INLINE void finish_item(const attention_params &params, int idx, uint32_t rank,
                             const float (&o)[DIM / 2], const row_state &rows)
{
    const int thread = (int)threadIdx.x - GROUP_THREADS, warp = thread / 32, lane = thread % 32;
    uint32_t(&marks)[2] = params.marks[idx].votes[rank][warp];
    const work_item item = item_at(params, idx, rank); /* cheaper than registers over the keys */
    uint32_t votes[2];
    if (IS_AGAIN) {
        votes[0] = marks[0];
        votes[1] = marks[1];
    } else {
        vote_marks(o, rows, votes);
        if (lane < 2) marks[lane] = lane ? votes[1] : votes[0];
        if (lane == 0 && (votes[0] | votes[1])) params.has_marks[sm90_cluster_idx()] = 1;
    }
    const int row = item.row + warp * 16 + lane / 4, quad = lane / 4 * 4;
    store_row<0>(params, item, row, o, rows, !IS_AGAIN || votes[0] >> quad & 15);
    store_row<1>(params, item, row + 8, o, rows, !IS_AGAIN || votes[1] >> quad & 15);
}

/* ---- a group of 64 queries ------------------------------------------------------------------ */

/* All keys of an item: sums of probabilities and of values, from place `place` of the rings on. */
template <int IS_AGAIN>
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
    raise_maxima(s, rows, scale, decay);
    exponentials(s, rows, scale);
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
        if (IS_AGAIN) raise_maxima(s, rows, scale, decay);
        exponentials(s, rows, scale);
        sm90_wgmma_wait<0>();
        sm90_wgmma_pin(o);
        release(shared + V_EMPTY, place);
        round_tile(p, s);
        if (IS_AGAIN)
#pragma unroll
            for (int i = 0; i < DIM / 2; i++) o[i] *= decay[i / 2 % 2];
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
static __device__ void skip_item(const attention_params &params, uint32_t shared, uint32_t place,
                                 uint32_t n_tiles, uint32_t (&marks)[2])
{
    const uint32_t lane = threadIdx.x % 32;
    if (lane < 2) marks[lane] = 0;
    if (lane == 0) sm90_bar_arrive(shared + Q_EMPTY);
    for (const uint32_t end = place + n_tiles; place != end; place++) {
        wait_full(shared + K_FULL, place);
        release(shared + K_EMPTY, place);
        wait_full(shared + V_FULL, place);
        release(shared + V_EMPTY, place);
    }
}

template <int IS_AGAIN>
static __device__ __forceinline__ void attend(const attention_params &params, uint32_t shared,
                                              uint32_t rank, int group, ring_state &at)
{
    for (int idx = (int)sm90_cluster_idx(); idx < params.n_items; idx += (int)sm90_n_clusters()) {
        if (IS_AGAIN && !is_marked(params, idx)) continue;
        const work_item item = item_at(params, idx, rank);
        const int n_keys = params.segments[item.segment].n_rows;
        const uint32_t n_tiles = (uint32_t)(n_keys + KEYS - 1) / KEYS;
        sm90_bar_wait(shared + Q_FULL, at.q_parity);
        at.q_parity ^= 1;
        if (item.row + group * GROUP_QUERIES >= n_keys) {
            const int warp = ((int)threadIdx.x - GROUP_THREADS) / 32;
            skip_item(params, shared, at.k_place, n_tiles, params.marks[idx].votes[rank][warp]);
        } else {
            float o[DIM / 2];
            row_state rows = { { -INFINITY, -INFINITY }, { 0.0f, 0.0f } };
            attend_item<IS_AGAIN>(o, rows, shared, shared + group * GROUP_QUERIES * ROW_BYTES,
                                  at.k_place, n_keys, params.scale);
            finish_item<IS_AGAIN>(params, idx, rank, o, rows);
        }
        at.k_place += n_tiles;
    }
}

/* ---- kernel and launcher -------------------------------------------------------------------- */

SM90_INLINE void init_barriers(uint32_t shared)
{
    sm90_bar_init(shared + Q_FULL, 1);
    sm90_bar_init(shared + Q_EMPTY, N_GROUPS * 4);
    for (int stage = 0; stage < STAGES; stage++) {
        sm90_bar_init(shared + K_FULL + 8 * stage, 1);
        sm90_bar_init(shared + K_EMPTY + 8 * stage, N_GROUPS * 4 * BLOCKS);
        sm90_bar_init(shared + V_FULL + 8 * stage, 1);
        sm90_bar_init(shared + V_EMPTY + 8 * stage, N_GROUPS * 4 * BLOCKS);
    }
    sm90_bar_init_fence();
}

/* Two rounds, the second only where the first left marks.  The barriers of the cluster between and
 * behind also keep a block from leaving while another writes to its memory. */
static __global__ void __cluster_dims__(BLOCKS, 1, 1) __launch_bounds__(BLOCK_THREADS, 1)
    attention_kernel(const __grid_constant__ attention_params params)
{
    extern __shared__ char unaligned[];
    const uint32_t shared = (sm90_smem(unaligned) + 1023) & ~1023u, rank = sm90_cluster_rank();
    const uint32_t *has_marks = params.has_marks + sm90_cluster_idx();
    ring_state at = { 0, 0, 0 };
    if (threadIdx.x == 0) {
        init_barriers(shared);
        if (rank == 0) params.has_marks[sm90_cluster_idx()] = 0;
    }
    __syncthreads();
    sm90_cluster_sync();
    /* By the shuffle the compiler knows that all of a warp take one branch. */
    const int role = gpu_shfl((int)threadIdx.x / GROUP_THREADS, 0);
    if (role == 0) {
        sm90_registers_give<FEEDER_REGISTERS>();
        if (threadIdx.x == 0) feed<0>(params, shared, rank, at);
        __syncwarp();
        sm90_cluster_sync();
        if (!*has_marks) return;
        if (threadIdx.x == 0) feed<1>(params, shared, rank, at);
        __syncwarp();
        sm90_cluster_sync();
    } else {
        sm90_registers_take<GROUP_REGISTERS>();
        attend<0>(params, shared, rank, role - 1, at);
        sm90_cluster_sync();
        if (!*has_marks) return;
        attend<1>(params, shared, rank, role - 1, at);
        sm90_cluster_sync();
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
    const int n_queries = BLOCKS * QUERIES;
    params->n_ranges = params->n_items = 0;
    for (int i = 0; i < params->n_segments; i++)
        add_range(params, i, 0, params->segments[i].n_rows / n_queries);
    for (int i = 0; i < params->n_segments; i++)
        if (params->segments[i].n_rows % n_queries)
            add_range(params, i, params->segments[i].n_rows / n_queries, 1);
}

/* Describes up to SEGMENTS_MAX segments from number *next_io on, the longest first.
 * 0: no tensor maps here. */
static int describe_segments(attention_params *params, const m2_attention_args *args, int *next_io)
{
    const int64_t row_values = args->k->shape[1] * DIM;
    const int box[2] = { PART_ROWS, SLAB_COLS };
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

/* Rows times heads, so that the marks fit the workspace, with room for segments' ragged ends. */
#define PAIRS_MAX ((int64_t)64 << 20)

static int is_ours(const m2_gpu *gpu, const m2_attention_args *args)
{
    return args->q->dtype == M2_BF16 && args->q->shape[2] == DIM && !args->is_causal &&
           args->scale > 0.0f && gpu->smem_max >= SHARED_BYTES && gpu->n_mps >= BLOCKS &&
           args->q->shape[0] * args->q->shape[1] <= PAIRS_MAX;
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
    params.marks = (item_marks *)gpu->workspace;
    params.has_marks = (uint32_t *)((char *)gpu->workspace + M2_GPU_WORKSPACE_BYTES) - gpu->n_mps;
    gpuFuncSetAttribute(attention_kernel, gpuFuncAttributeMaxDynamicSharedMemorySize, SHARED_BYTES);
    for (int next = 0; next < args->n_segments;) {
        if (!describe_segments(&params, args, &next)) return 0;
        if (params.n_items == 0) continue;
        const int most = gpu->n_mps / BLOCKS;
        const int n_clusters = params.n_items < most ? params.n_items : most;
        attention_kernel<<<n_clusters * BLOCKS, BLOCK_THREADS, SHARED_BYTES, gpu->stream>>>(params);
        m2_gpu_launched(gpu, "attention");
    }
    return 1;
}
