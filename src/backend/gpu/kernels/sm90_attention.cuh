/* sm90_attention.cuh - what the attention for Hopper computes with: the queries of a block, tiles of
 * keys and values in shared memory and who feeds them, products, softmax.
 *
 * Included by sm90_attention.cu alone, which says what it is all for. */
#ifndef M2_BACKEND_GPU_KERNELS_SM90_ATTENTION_CUH
#define M2_BACKEND_GPU_KERNELS_SM90_ATTENTION_CUH

#include "backend/gpu/kernels/sm90_ptx.cuh"

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
    const int32_t *places; /* [n] of y's rows; NULL: where the queries are           */
    const gpu_bf16 *gates; /* [n, n_heads] in y's order, before the sigmoid; or NULL */
    uint32_t *has_marks;   /* [clusters] */
    item_marks *marks;     /* [n_items]  */
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

/* For a number that is never negative.  The branch keeps the assembler from moving what it comes from
 * behind the wait that follows in the source: it belongs under the product that is waited for. */
SM90_INLINE void finish_before(float x)
{
    if (x < 0.0f) asm volatile("nanosleep.u32 1;");
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

#endif
