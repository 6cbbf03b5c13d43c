/* sm90_mhc.cu - the half layer's two ends in one pass over the streams, Hopper: write the output of
 * one half, then open the next (norm, product with phi, coefficients, read mix), or open alone.
 *
 * The read needs h_pre, which needs the whole row: so the row stays on chip.  A cluster of eight
 * blocks owns tiles of eight tokens, a block 384 columns of all four streams.  Phi does not fit
 * beside the rows, but in registers: each of eight warps keeps the fragments of its 192 rows of
 * phi, as two bf16 planes with the norm's weights multiplied in, and tokens are the columns of the
 * product.  So shared memory serves the streams alone: a ring of tiles, filled by bulk copies.
 *
 *   fetch warp     fills a stage of the ring: streams, the half's output, how it is written
 *   product warps  write: the new streams, back to the stage.  Partial products of a tile
 *   send warps     join them over the warps and send them to the other blocks of the cluster
 *   pre warp       when the parts of all blocks have come: h_pre
 *   mix warps      x and the new streams to memory; the stage is free
 *
 * A warp has 48 columns of all four streams, so a lane mixes what it holds, and the new values are
 * its fragment of the product.  Each role runs as far ahead as the ring allows.  h_post and the
 * Sinkhorn rounds are left to a thread a token after this kernel (m2_gpu_mhc_finish).
 *
 * In       D = 3072, outputs in bf16 alone; other shapes and f32 outputs go to simt_mhc_*.cu
 * Numerics two planes hold 16 bits of phi (norm + 1): far below the rounding to bf16 that follows;
 *          the new streams are the bits of simt_mhc_write.cu
 * Order    K by 16 in each warp, then warps, then blocks; the norm's factor after the product: the
 *          same with and without a write
 * Twin     backend/cpu/ref/mhc_write_open.c, mhc_open.c       Speed  bench/gpu/bench_mhc.cu
 */
#include "backend/gpu/kernels/sm90_mhc.cuh"
#include "backend/gpu/sm90_tensor_map.h"

#include <assert.h>

/* ---- fetch: the ring is filled --------------------------------------------------------------- */

/* A tile's coefficients of the write on their way: a lane has a target of h_res, and below TOKENS a
 * token of h_post. */
typedef struct mhc_raw_mix {
    uint2 res, post;
} mhc_raw_mix;

static __device__ __forceinline__ mhc_raw_mix load_mix(const mhc_work &work, mhc_tile at)
{
    const int lane = threadIdx.x % 32;
    mhc_raw_mix raw = {};
    if (lane / M2_STREAMS < at.n_rows) raw.res = work.h_res[at.row * M2_STREAMS + lane];
    if (lane < at.n_rows) raw.post = work.h_post[at.row + lane];
    return raw;
}

static __device__ __forceinline__ float4 unpack4(uint2 raw)
{
    return make_float4(__uint_as_float(raw.x << 16), __uint_as_float(raw.x & 0xffff0000u),
                       __uint_as_float(raw.y << 16), __uint_as_float(raw.y & 0xffff0000u));
}

static __device__ __forceinline__ void store_mix(mhc_mix *mixes, mhc_raw_mix raw)
{
    const int lane = threadIdx.x % 32;
    *(float4 *)mixes[lane / M2_STREAMS].res[lane % M2_STREAMS] = unpack4(raw.res);
    if (lane < TOKENS) *(float4 *)mixes[lane].post = unpack4(raw.post);
}

/* By one lane.  Past the end of a group come rows of the next, past the last zeros: harmless. */
template <int IS_WRITE>
static __device__ __forceinline__ void copy_tile(const mhc_work &work, mhc_smem<IS_WRITE> *smem,
                                                 int stage, int row, int rank)
{
    const uint32_t to = sm90_smem(smem->stages[stage]), bar = sm90_smem(&smem->full[stage]);
    sm90_load_5d(to, &work.streams, bar, 0, 0, row, 0, rank * BOXES);
    if (IS_WRITE) sm90_load_3d(to + STREAM_BYTES, &work.added, bar, 0, row, rank * BOXES);
}

template <int IS_WRITE>
static __device__ __forceinline__ void fetch_role(const mhc_work &work, mhc_smem<IS_WRITE> *smem)
{
    const mhc_share share = share_of(work);
    const int lane = threadIdx.x % 32;
    mhc_place at = {};
    mhc_raw_mix raw = {};
    mhc_tile tile = tile_of(work.tiles, share.first);
    if (IS_WRITE) raw = load_mix(work, tile);
    for (int i = 0; i < share.n; i++) {
        if (i >= mhc_smem<IS_WRITE>::N_STAGES) {
            sm90_bar_wait(sm90_smem(&smem->mixed[at.stage]), at.parity ^ 1);
            if (IS_WRITE) sm90_fence_async(); /* the product warps wrote to the stage */
        }
        if (lane == 0) smem->tiles[at.stage] = tile;
        if (IS_WRITE) store_mix(smem->mixes[at.stage], raw);
        if (lane == 0) {
            sm90_bar_arrive_expect(sm90_smem(&smem->full[at.stage]),
                                   mhc_smem<IS_WRITE>::STAGE_BYTES);
            copy_tile<IS_WRITE>(work, smem, at.stage, (int)tile.row, share.rank);
        } else {
            sm90_bar_arrive(sm90_smem(&smem->full[at.stage]));
        }
        __syncwarp();
        advance<IS_WRITE>(&at);
        if (i + 1 == share.n) break;
        tile = tile_of(work.tiles, share.first + (i + 1) * share.by);
        if (IS_WRITE) raw = load_mix(work, tile);
    }
}

/* ---- product --------------------------------------------------------------------------------- */

/* Where this lane's four columns of its token lie in a stage: turn 0.  Stream 1 is one row below
 * stream 0, which swaps neighbouring pieces; streams 2 and 3 are in the next box. */
typedef struct mhc_lane {
    int streams[2], added;
} mhc_lane;

#define TURN_BOXES (MMA_WARPS * 16 / BOX_COLUMNS)

static __device__ __forceinline__ mhc_lane lane_of_product(void)
{
    const int column = threadIdx.x / 32 * 16, token = threadIdx.x % 32 / 4, q = threadIdx.x % 4;
    const int piece = column % BOX_COLUMNS / 8 + q / 2, box = column / BOX_COLUMNS;
    mhc_lane lane;
#pragma unroll
    for (int j = 0; j < 2; j++) {
        const int row = 2 * token + j;
        lane.streams[j] =
            box * (2 * BOX_BYTES) + row * ROW_BYTES + (piece ^ row % 8) * 16 + q % 2 * 8;
    }
    lane.added =
        STREAM_BYTES + (box * TOKENS + token) * ROW_BYTES + (piece ^ token) * 16 + q % 2 * 8;
    return lane;
}

/* Four columns of all streams, mixed in place: the order of sums of simt_mhc_write.cu. */
static __device__ __forceinline__ void write_mix(const mhc_mix *mix, uint2 added_raw,
                                                 uint2 (&streams)[M2_STREAMS])
{
    const float4 added = unpack4(added_raw), post = *(const float4 *)mix->post;
    const float posts[M2_STREAMS] = { post.x, post.y, post.z, post.w };
    float4 old[M2_STREAMS];
#pragma unroll
    for (int j = 0; j < M2_STREAMS; j++) old[j] = unpack4(streams[j]);
#pragma unroll
    for (int i = 0; i < M2_STREAMS; i++) {
        const float4 h = *(const float4 *)mix->res[i];
        const float weights[M2_STREAMS] = { h.x, h.y, h.z, h.w };
        float4 sum = {};
#pragma unroll
        for (int j = 0; j < M2_STREAMS; j++) {
            sum.x = fmaf(weights[j], old[j].x, sum.x), sum.y = fmaf(weights[j], old[j].y, sum.y);
            sum.z = fmaf(weights[j], old[j].z, sum.z), sum.w = fmaf(weights[j], old[j].w, sum.w);
        }
        sum.x = fmaf(posts[i], added.x, sum.x), sum.y = fmaf(posts[i], added.y, sum.y);
        sum.z = fmaf(posts[i], added.z, sum.z), sum.w = fmaf(posts[i], added.w, sum.w);
        streams[i] = make_uint2(simt_bf16_pair(sum.x, sum.y), simt_bf16_pair(sum.z, sum.w));
    }
}

/* Rows of the second plane lie 24 below those of the first: in the same lane. */
static __device__ __forceinline__ void store_sums(mhc_sums *sums, const float (&d)[M_TILES][4],
                                                  const float (&gram)[4])
{
    const int g = threadIdx.x % 32 / 4, q = threadIdx.x % 4;
#pragma unroll
    for (int e = 0; e < 2; e++) {
        const int token = 2 * q + e;
        float *const rest = sums->rest[token] + g - M2_STREAMS;
        *(g < M2_STREAMS ? &sums->pre[token][g] : rest) = d[0][e] + d[1][2 + e];
        rest[8] = d[0][2 + e] + d[2][e];
        rest[16] = d[1][e] + d[2][2 + e];
    }
    if (q == g / 2) sums->squares[g] = g % 2 ? gram[1] : gram[0];
}

/* This warp's columns of the tile in a stage: mixed, stored back, multiplied with phi. */
template <int IS_WRITE>
static __device__ __forceinline__ void multiply(uint8_t *stage, mhc_lane lane, const mhc_mix *mix,
                                                const uint32_t (&phi)[STEPS][M_TILES][4],
                                                float (&d)[M_TILES][4], float (&gram)[4])
{
    uint8_t *const rows[2] = { stage + lane.streams[0], stage + lane.streams[1] };
    const uint8_t *const added = stage + lane.added;
#pragma unroll
    for (int turn = 0; turn < TURNS; turn++) {
        uint2 streams[M2_STREAMS];
#pragma unroll
        for (int j = 0; j < M2_STREAMS; j++)
            streams[j] =
                *(const uint2 *)(rows[j % 2] + (turn * TURN_BOXES * 2 + j / 2) * BOX_BYTES);
        if (IS_WRITE) {
            write_mix(mix, *(const uint2 *)(added + turn * TURN_BOXES * TOKENS * ROW_BYTES),
                      streams);
#pragma unroll
            for (int j = 0; j < M2_STREAMS; j++)
                *(uint2 *)(rows[j % 2] + (turn * TURN_BOXES * 2 + j / 2) * BOX_BYTES) = streams[j];
        }
#pragma unroll
        for (int j = 0; j < M2_STREAMS; j++) {
            const uint32_t tokens[4] = { streams[j].x, 0, streams[j].y, 0 };
#pragma unroll
            for (int m = 0; m < M_TILES; m++)
                sm90_mma(d[m], phi[turn * M2_STREAMS + j][m], streams[j].x, streams[j].y);
            sm90_mma(gram, tokens, streams[j].x, streams[j].y);
        }
    }
}

template <int IS_WRITE>
static __device__ __forceinline__ void product_role(const mhc_work &work, mhc_smem<IS_WRITE> *smem)
{
    const mhc_share share = share_of(work);
    const int warp = threadIdx.x / 32, token = threadIdx.x % 32 / 4;
    const mhc_lane lane = lane_of_product();
    uint32_t phi[STEPS][M_TILES][4];
    int group = -1;
    mhc_place at = {};
    for (int i = 0; i < share.n; i++) {
        float d[M_TILES][4] = {}, gram[4] = {};
        sm90_bar_wait(sm90_smem(&smem->full[at.stage]), at.parity);
        if (smem->tiles[at.stage].group != group) {
            group = smem->tiles[at.stage].group;
            load_phi(work, group, phi);
        }
        multiply<IS_WRITE>(smem->stages[at.stage], lane, &smem->mixes[at.stage][token], phi, d,
                           gram);
        if (IS_WRITE) sm90_bar_arrive(sm90_smem(&smem->written[at.stage]));
        if (i >= 2) sm90_bar_wait(sm90_smem(&smem->sums_free[i % 2]), (i / 2 - 1) % 2);
        store_sums(&smem->sums[i % 2][warp], d, gram);
        sm90_bar_arrive(sm90_smem(&smem->sums_full[i % 2]));
        advance<IS_WRITE>(&at);
    }
}

/* ---- from sums to h_pre ---------------------------------------------------------------------- */

/* Joins the warps, four floats a thread.  All blocks need what makes h_pre; the rest goes to the
 * block that has the rank of the token. */
static __device__ __forceinline__ void send_part(const mhc_sums *sums, mhc_part *part,
                                                 uint64_t *arrived)
{
    const int piece = threadIdx.x - MMA_THREADS;
    if (piece >= SUMS_PIECES) return;
    float4 joined[2] = {};
#pragma unroll
    for (int w = 0; w < MMA_WARPS; w++) {
        const float4 more = ((const float4 *)(sums + w))[piece];
        joined[w % 2].x += more.x, joined[w % 2].y += more.y;
        joined[w % 2].z += more.z, joined[w % 2].w += more.w;
    }
    const float4 sum = make_float4(joined[0].x + joined[1].x, joined[0].y + joined[1].y,
                                   joined[0].z + joined[1].z, joined[0].w + joined[1].w);
    const uint32_t to = sm90_smem(part), bar = sm90_smem(arrived);
    if (piece < COMMON_PIECES) {
#pragma unroll
        for (int r = 0; r < RANKS; r++)
            sm90_send(sm90_place_in(to + piece * 16, r), sm90_place_in(bar, r), sum);
    } else {
        const int token = (piece - COMMON_PIECES) / (REST / 4);
        const int place = COMMON_PIECES + (piece - COMMON_PIECES) % (REST / 4);
        sm90_send(sm90_place_in(to + place * 16, token), sm90_place_in(bar, token), sum);
    }
}

template <int IS_WRITE>
static __device__ __forceinline__ void send_role(const mhc_work &work, mhc_smem<IS_WRITE> *smem)
{
    const mhc_share share = share_of(work);
    mhc_place at = {};
    for (int i = 0; i < share.n; i++) {
        if (i >= mhc_smem<IS_WRITE>::N_STAGES)
            sm90_bar_wait_cluster(sm90_smem(&smem->taken[at.stage]), at.parity ^ 1);
        sm90_bar_wait(sm90_smem(&smem->sums_full[i % 2]), i / 2 % 2);
        send_part(smem->sums[i % 2], &smem->parts[at.stage][share.rank], &smem->arrived[at.stage]);
        sm90_bar_arrive(sm90_smem(&smem->sums_free[i % 2]));
        advance<IS_WRITE>(&at);
    }
}

/* c of one coefficient and token, from the parts of all blocks: `place` in a part. */
static __device__ __forceinline__ float join_parts(const mhc_part *parts, float eps, int place,
                                                   int token)
{
    float sum = 0.0f, squares = 0.0f;
#pragma unroll
    for (int r = 0; r < RANKS; r++) {
        sum += ((const float *)(parts + r))[place];
        squares += parts[r].squares[token];
    }
    return sum * rsqrtf(squares * (1.0f / (M2_STREAMS * WIDTH)) + eps);
}

/* h_pre of all tokens for the mix warps; c of the token of this block's rank to memory. */
template <int IS_WRITE>
static __device__ __forceinline__ void pre_role(const mhc_work &work, mhc_smem<IS_WRITE> *smem)
{
    const mhc_share share = share_of(work);
    const int lane = threadIdx.x % 32, token = lane / M2_STREAMS, value = lane % M2_STREAMS;
    const int own_place =
        lane < M2_STREAMS ? share.rank * M2_STREAMS + lane : COMMON_PIECES * 4 + lane - M2_STREAMS;
    const float alpha_ms = work.alpha_pre[0] * work.ms, bias = work.bias_pre[value];
    mhc_place at = {};
    for (int i = 0; i < share.n; i++) {
        const uint32_t arrived = sm90_smem(&smem->arrived[at.stage]);
        const mhc_part *parts = smem->parts[at.stage];
        if (lane == 0) sm90_bar_arrive_expect(arrived, RANKS * (int)sizeof(mhc_part));
        sm90_bar_wait(sm90_smem(&smem->full[at.stage]), at.parity);
        const mhc_tile tile = smem->tiles[at.stage];
        sm90_bar_wait_cluster(arrived, at.parity);
        const float c = join_parts(parts, work.eps, lane, token);
        smem->h_pre[at.stage][token][value] = simt_round_bf16(mhc_pre(c, alpha_ms, bias));
        sm90_bar_arrive(sm90_smem(&smem->pre_full[at.stage]));
        const float own = lane < OUT ? join_parts(parts, work.eps, own_place, share.rank) : 0.0f;
        __syncwarp();
        if (lane < RANKS)
            sm90_bar_arrive_at(sm90_place_in(sm90_smem(&smem->taken[at.stage]), lane));
        if (lane < OUT && share.rank < tile.n_rows)
            work.c[(tile.row + share.rank) * OUT + lane] = own;
        advance<IS_WRITE>(&at);
    }
}

/* ---- mix: a tile leaves ---------------------------------------------------------------------- */

/* Where eight columns of a row lie in a stage. */
static __device__ __forceinline__ int place_of(int token, int stream, int column)
{
    const int row = 2 * token + stream % 2, piece = column % BOX_COLUMNS / 8;
    return (column / BOX_COLUMNS * 2 + stream / 2) * BOX_BYTES + row * ROW_BYTES +
           (piece ^ row % 8) * 16;
}

/* x of a tile, eight columns at a time, and the new streams. */
template <int IS_WRITE>
static __device__ __forceinline__ void read_mix(const mhc_work &work, const uint8_t *stage,
                                                const float (*h_pre)[M2_STREAMS], mhc_tile tile,
                                                int rank)
{
#pragma unroll
    for (int first = 0; first < TOKENS * COLUMNS / 8; first += MIX_THREADS) {
        const int item = first + threadIdx.x - FIRST_MIX;
        const int token = item / (COLUMNS / 8), column = item % (COLUMNS / 8) * 8;
        const float4 h = *(const float4 *)h_pre[token];
        const float weights[M2_STREAMS] = { h.x, h.y, h.z, h.w };
        const int64_t row = tile.row + token, to = row * WIDTH + rank * COLUMNS + column;
        float sum[8] = {};
#pragma unroll
        for (int j = 0; j < M2_STREAMS; j++) {
            float values[8];
            const uint4 raw = *(const uint4 *)(stage + place_of(token, j, column));
            simt_unpack8(raw, values);
#pragma unroll
            for (int e = 0; e < 8; e++) sum[e] = fmaf(weights[j], values[e], sum[e]);
            if (IS_WRITE && token < tile.n_rows)
                gpu_store_once(
                    (uint4 *)(work.s_out + row * ((M2_STREAMS - 1) * WIDTH) + j * WIDTH + to), raw);
        }
        if (token < tile.n_rows) simt_put8(work.x, to, sum);
    }
}

template <int IS_WRITE>
static __device__ __forceinline__ void mix_role(const mhc_work &work, mhc_smem<IS_WRITE> *smem)
{
    const mhc_share share = share_of(work);
    uint64_t *const ready = IS_WRITE ? smem->written : smem->full;
    mhc_place at = {};
    for (int i = 0; i < share.n; i++) {
        sm90_bar_wait(sm90_smem(&ready[at.stage]), at.parity);
        sm90_bar_wait(sm90_smem(&smem->pre_full[at.stage]), at.parity);
        read_mix<IS_WRITE>(work, smem->stages[at.stage], smem->h_pre[at.stage],
                           smem->tiles[at.stage], share.rank);
        sm90_bar_arrive(sm90_smem(&smem->mixed[at.stage]));
        advance<IS_WRITE>(&at);
    }
}

/* ---- the kernel ------------------------------------------------------------------------------ */

template <int IS_WRITE>
static __device__ __forceinline__ void init_barriers(mhc_smem<IS_WRITE> *smem)
{
    for (int i = 0; i < mhc_smem<IS_WRITE>::N_STAGES; i++) {
        sm90_bar_init(sm90_smem(&smem->full[i]), 32);
        sm90_bar_init(sm90_smem(&smem->written[i]), MMA_THREADS);
        sm90_bar_init(sm90_smem(&smem->arrived[i]), 1);
        sm90_bar_init(sm90_smem(&smem->taken[i]), RANKS);
        sm90_bar_init(sm90_smem(&smem->pre_full[i]), 32);
        sm90_bar_init(sm90_smem(&smem->mixed[i]), MIX_THREADS);
    }
    for (int i = 0; i < 2; i++) {
        sm90_bar_init(sm90_smem(&smem->sums_full[i]), MMA_THREADS);
        sm90_bar_init(sm90_smem(&smem->sums_free[i]), 32 * SEND_WARPS);
    }
    sm90_bar_init_fence();
}

template <int IS_WRITE>
static __global__ void __cluster_dims__(RANKS, 1, 1) __launch_bounds__(BLOCK_THREADS, 1)
    mhc_kernel(const __grid_constant__ mhc_work work)
{
    extern __shared__ __align__(1024) uint8_t smem_raw[];
    mhc_smem<IS_WRITE> *const smem = (mhc_smem<IS_WRITE> *)smem_raw;

    if (threadIdx.x == 0) init_barriers(smem);
    sm90_cluster_sync(); /* nobody sends to a block that has not begun */
    if (threadIdx.x < MMA_THREADS) {
        sm90_registers_take<PRODUCT_REGISTERS>();
        product_role(work, smem);
    } else if (threadIdx.x < FIRST_MIX) {
        sm90_registers_give<SMALL_REGISTERS>();
        if (threadIdx.x < FIRST_PRE)
            send_role(work, smem);
        else if (threadIdx.x < FIRST_FETCH)
            pre_role(work, smem);
        else
            fetch_role(work, smem);
    } else {
        sm90_registers_give<MIX_REGISTERS>();
        mix_role(work, smem);
    }
    __syncwarp();
    sm90_cluster_sync(); /* or to one that has ended */
}

/* ---- launch ---------------------------------------------------------------------------------- */

static mhc_tiles tiles_of(const m2_groups *groups, int64_t n)
{
    mhc_tiles made;
    made.n_groups = groups ? groups->n_groups : 1;
    made.first_tile[0] = 0;
    made.begin[0] = groups ? groups->begin[0] : 0;
    for (int g = 0; g < M2_GROUPS_MAX; g++) {
        made.begin[g + 1] = !groups ? n : g < groups->n_groups ? groups->begin[g + 1] : n;
        const int64_t rows = made.begin[g + 1] - made.begin[g];
        made.first_tile[g + 1] = made.first_tile[g] + (int)((rows + TOKENS - 1) / TOKENS);
    }
    return made;
}

/* Clusters that run at the same time: a GPC may be short of multiprocessors. */
template <int IS_WRITE> static int clusters_at_once(struct m2_gpu *gpu)
{
    static int known[DEVICES_MAX]; /* two engines may find out at once: the same */
    if (gpu->device >= DEVICES_MAX) return 0;
    int n = __atomic_load_n(&known[gpu->device], __ATOMIC_ACQUIRE);
    if (n == 0) {
        cudaLaunchConfig_t config = {};
        cudaLaunchAttribute attribute = {};
        gpuFuncSetAttribute(mhc_kernel<IS_WRITE>, gpuFuncAttributeMaxDynamicSharedMemorySize,
                            (int)sizeof(mhc_smem<IS_WRITE>));
        attribute.id = cudaLaunchAttributeClusterDimension;
        attribute.val.clusterDim.x = RANKS;
        attribute.val.clusterDim.y = attribute.val.clusterDim.z = 1;
        config.gridDim = dim3(RANKS);
        config.blockDim = dim3(BLOCK_THREADS);
        config.dynamicSmemBytes = sizeof(mhc_smem<IS_WRITE>);
        config.attrs = &attribute;
        config.numAttrs = 1;
        if (cudaOccupancyMaxActiveClusters(&n, mhc_kernel<IS_WRITE>, &config) != gpuSuccess) n = 0;
        if (n < 1) n = -1;
        __atomic_store_n(&known[gpu->device], n, __ATOMIC_RELEASE);
    }
    return n;
}

static int is_aligned(const m2_tensor *tensor, size_t bytes)
{
    return (uintptr_t)tensor->data % bytes == 0;
}

/* Sides as a stage wants them: boxes of columns, pairs of streams, tokens, streams of a pair. */
static int map_streams(CUtensorMap *map, const m2_tensor *s)
{
    const int64_t shape[5] = { WIDTH / BOX_COLUMNS, 2, s->shape[0], 2, BOX_COLUMNS };
    const int64_t strides[5] = { BOX_COLUMNS, 2 * WIDTH, M2_STREAMS * WIDTH, WIDTH, 1 };
    const int box[5] = { BOXES, 2, TOKENS, 2, BOX_COLUMNS };
    return m2_sm90_map_bf16_strided(map, s->data, 5, shape, strides, box);
}

static int map_added(CUtensorMap *map, const m2_tensor *o)
{
    const int64_t shape[3] = { WIDTH / BOX_COLUMNS, m2_tensor_count(o) / WIDTH, BOX_COLUMNS };
    const int64_t strides[3] = { BOX_COLUMNS, WIDTH, 1 };
    const int box[3] = { BOXES, TOKENS, BOX_COLUMNS };
    return m2_sm90_map_bf16_strided(map, o->data, 3, shape, strides, box);
}

/* write may be NULL: the streams as they are. */
template <int IS_WRITE>
static int launch(struct m2_gpu *gpu, const m2_mhc_write_args *write, const m2_mhc_open_args *open)
{
    const m2_mhc_coefficients_args *in = &open->coefficients;
    const m2_tensor *s = IS_WRITE ? write->s : in->s;
    const int64_t n = s->shape[0];
    const int n_groups = in->groups ? in->groups->n_groups : 1;
    const size_t phi_bytes = (size_t)n_groups * FRAGMENTS * sizeof(uint4);
    if (s->shape[2] != WIDTH || in->phi_out || in->h_pre_f32 || in->h_post_f32 || in->h_res_f32)
        return 0;
    if (!is_aligned(s, 16) || !is_aligned(open->x, 16)) return 0;
    if (IS_WRITE && (!is_aligned(write->o, 16) || !is_aligned(write->s_out, 16) ||
                     !is_aligned(write->h_res, 8) || !is_aligned(write->h_post, 8)))
        return 0;
    if (phi_bytes + (size_t)n * OUT * 4 > M2_GPU_WORKSPACE_BYTES || n > INT32_MAX / M2_STREAMS)
        return 0;
    const int at_once = clusters_at_once<IS_WRITE>(gpu);
    if (at_once < 1) return 0;
    if (n == 0) return 1;

    mhc_work work = {};
    if (!map_streams(&work.streams, s)) return 0;
    if (IS_WRITE) {
        if (!map_added(&work.added, write->o)) return 0;
        work.h_res = (const uint2 *)write->h_res->data;
        work.h_post = (const uint2 *)write->h_post->data;
        work.s_out = (gpu_bf16 *)write->s_out->data;
    }
    work.phi = (const uint4 *)gpu->workspace;
    work.alpha_pre = (const float *)in->alpha_pre->data;
    work.bias_pre = (const float *)in->bias_pre->data;
    work.ms = mhc_scale(in);
    work.eps = in->eps;
    work.c = (float *)((uint8_t *)gpu->workspace + phi_bytes);
    work.x = (gpu_bf16 *)open->x->data;
    work.tiles = tiles_of(in->groups, n);
    const int n_tiles = work.tiles.first_tile[M2_GROUPS_MAX];
    const int n_clusters = at_once < n_tiles ? at_once : n_tiles;

    phi_kernel<<<dim3((FRAGMENTS + SIMT_THREADS - 1) / SIMT_THREADS, n_groups), SIMT_THREADS, 0,
                 gpu->stream>>>((const float *)in->norm->data, (const float *)in->phi->data,
                                (uint4 *)gpu->workspace);
    mhc_kernel<IS_WRITE>
        <<<n_clusters * RANKS, BLOCK_THREADS, sizeof(mhc_smem<IS_WRITE>), gpu->stream>>>(work);
    m2_gpu_mhc_finish(gpu, in, work.c);
    m2_gpu_launched(gpu, IS_WRITE ? "mhc_write_open" : "mhc_open");
    return 1;
}

extern "C" int m2_sm90_mhc_open(struct m2_gpu *gpu, const m2_mhc_open_args *args)
{
    return launch<0>(gpu, 0, args);
}

extern "C" int m2_sm90_mhc_write_open(struct m2_gpu *gpu, const m2_mhc_write_open_args *args)
{
    assert(args->open.coefficients.s->data == args->write.s_out->data);
    return launch<1>(gpu, &args->write, &args->open);
}
