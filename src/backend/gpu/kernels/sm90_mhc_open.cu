/* sm90_mhc_open.cu - norm, product with phi, coefficients and read mix in one pass, Hopper.
 *
 * The read needs h_pre, which needs the whole row: so the row stays on chip.  A cluster of eight
 * blocks owns tiles of eight tokens, a block 384 columns of all four streams.  Phi does not fit
 * beside the rows, but in registers: each of eight warps keeps the fragments of its 192 rows of
 * phi, as two bf16 planes with the norm's weights multiplied in, and tokens are the columns of the
 * product.  So shared memory serves the streams alone: a ring of seven tiles, filled by bulk
 * copies.
 *
 *   product warps  partial products of a tile
 *   send warps     join them over the warps and send them to the other blocks of the cluster
 *   pre warp       when the parts of all blocks have come: h_pre
 *   mix warps      x out of shared memory; the stage is filled anew
 *
 * Each runs as far ahead as the buffers between them allow.  h_post and the Sinkhorn rounds are
 * left to a thread a token after this kernel (m2_gpu_mhc_finish).
 *
 * In       D = 3072, outputs in bf16 alone; other shapes and f32 outputs go to simt_mhc_*.cu
 * Numerics two planes hold 16 bits of phi (norm + 1): far below the rounding to bf16 that follows
 * Order    K by 16 in each warp, then warps, then blocks; the norm's factor after the product
 * Twin     backend/cpu/ref/mhc_open.c       Speed  bench/gpu/bench_mhc.cu
 */
#include "backend/gpu/kernels/simt_mhc.cuh"
#include "backend/gpu/kernels/sm90_ptx.cuh"
#include "backend/gpu/sm90_tensor_map.h"

#include <assert.h>

#define WIDTH   3072
#define RANKS   8 /* blocks of a cluster */
#define TOKENS  8 /* of a tile           */
#define COLUMNS (WIDTH / RANKS)
/* Warps by role, in this order; one pre warp. */
#define MMA_WARPS       8
#define SEND_WARPS      3
#define MIX_WARPS       4
#define MMA_THREADS     (32 * MMA_WARPS)
#define SEND_THREADS    (32 * SEND_WARPS)
#define MIX_THREADS     (32 * MIX_WARPS)
#define FIRST_MIX       (MMA_THREADS + SEND_THREADS + 32)
#define BLOCK_THREADS   (FIRST_MIX + MIX_THREADS)
#define MMA_REGISTERS   200 /* of a thread; 256 threads each, 512 x 128 together */
#define OTHER_REGISTERS 56
#define WARP_K          (M2_STREAMS * COLUMNS / MMA_WARPS)
#define STEPS           (WARP_K / 16)
#define PLANES          2
#define OUT             MHC_COEFFICIENTS
#define M_TILES         (PLANES * OUT / 16)
#define FRAGMENTS       (RANKS * MMA_WARPS * STEPS * M_TILES * 32) /* of a group, 16 bytes each  */
/* A stage: boxes of 64 columns, a row for each (token, stream), its 16-byte pieces swizzled. */
#define BOX_COLUMNS 64
#define BOXES       (COLUMNS / BOX_COLUMNS)
#define BOX_ROWS    (TOKENS * M2_STREAMS)
#define BOX_BYTES   (BOX_ROWS * BOX_COLUMNS * 2)
#define STAGE_BYTES (BOXES * BOX_BYTES)
#define N_STAGES    7
#define N_PARTS     4
#define VALUES      (OUT + 1) /* the last: sum of squares */
#define PART_FLOATS (VALUES * TOKENS)
/* What a block gets for a tile: what makes h_pre for all tokens, the rest for one. */
#define PART_BYTES  (4 * RANKS * ((M2_STREAMS + 1) * TOKENS + OUT - M2_STREAMS))
#define DEVICES_MAX 64

typedef struct open_tile {
    int group, n_rows;
    int64_t row;
} open_tile; /* row is the first of n_rows */

typedef struct open_smem {
    uint8_t stages[N_STAGES][STAGE_BYTES];
    float sums[2][MMA_WARPS][PART_FLOATS];    /* [coefficient][token] */
    float parts[N_PARTS][RANKS][PART_FLOATS]; /* the same             */
    float h_pre[N_PARTS][TOKENS][M2_STREAMS];
    open_tile tiles[N_STAGES];
    /* Barriers: what a role waits for, by buffer. */
    uint64_t full[N_STAGES];                    /* a stage has been filled       */
    uint64_t sums_full[2], sums_free[2];        /* product and send warps        */
    uint64_t arrived[N_PARTS], taken[N_PARTS];  /* parts: bytes come, blocks done */
    uint64_t pre_full[N_PARTS], mixed[N_PARTS]; /* pre and mix warps             */
} open_smem;

typedef struct open_groups {
    int n_groups;
    int first_tile[M2_GROUPS_MAX + 1];
    int64_t begin[M2_GROUPS_MAX + 1];
} open_groups;

typedef struct open_work {
    CUtensorMap streams; /* of s, as rows of WIDTH */
    const uint4 *phi;    /* [n_groups][FRAGMENTS] */
    const float *alpha_pre, *bias_pre;
    float ms, eps;
    float *c; /* [n, OUT] */
    gpu_bf16 *x;
    open_groups groups;
} open_work;

/* ---- phi ------------------------------------------------------------------------------------- */

/* phi [n_groups][rank][warp][step][m tile][lane] as fragments of A.  Inside 32 rows of phi lane q
 * of a quad has 8 q ... 8 q + 7, for two steps: a token's values are then 16 bytes in a row. */
static __global__ void phi_kernel(const float *norm, const float *phi, uint4 *fragments)
{
    const int i = blockIdx.x * SIMT_THREADS + threadIdx.x, group = blockIdx.y;
    if (i >= FRAGMENTS) return;
    const int lane = i % 32, tile = i / 32 % M_TILES, step = i / (32 * M_TILES) % STEPS;
    const int warp = i / (32 * M_TILES * STEPS) % MMA_WARPS;
    const int rank = i / (32 * M_TILES * STEPS * MMA_WARPS);
    const int stream = warp / (MMA_WARPS / M2_STREAMS), part = warp % (MMA_WARPS / M2_STREAMS);
    const int first = stream * WIDTH + rank * COLUMNS + part * WARP_K + step / 2 * 32 +
                      lane % 4 * 8 + step % 2 * 4;
    union {
        gpu_bf16 values[8];
        uint4 raw;
    } out;
#pragma unroll
    for (int j = 0; j < 8; j++) {
        const int k = first + j / 4 * 2 + j % 2, m = 16 * tile + lane / 4 + j / 2 % 2 * 8;
        const float weight = norm[group * M2_STREAMS * WIDTH + k] + 1.0f;
        const float value = __fmul_rn(weight, phi[k * OUT + m % OUT]);
        const gpu_bf16 high = __float2bfloat16(value);
        out.values[j] = m < OUT ? high : __float2bfloat16(value - __bfloat162float(high));
    }
    fragments[(int64_t)group * FRAGMENTS + i] = out.raw;
}

static __device__ __forceinline__ void load_phi(const open_work &work, int group, int rank,
                                                uint32_t (&phi)[STEPS][M_TILES][4])
{
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const uint4 *from = work.phi + (int64_t)group * FRAGMENTS +
                        (rank * MMA_WARPS + warp) * (STEPS * M_TILES * 32) + lane;
#pragma unroll
    for (int step = 0; step < STEPS; step++) {
#pragma unroll
        for (int m = 0; m < M_TILES; m++) {
            const uint4 raw = from[(step * M_TILES + m) * 32];
            phi[step][m][0] = raw.x, phi[step][m][1] = raw.y;
            phi[step][m][2] = raw.z, phi[step][m][3] = raw.w;
        }
    }
}

/* ---- tiles ----------------------------------------------------------------------------------- */

static __device__ __forceinline__ open_tile tile_of(const open_groups &groups, int tile)
{
    open_tile at;
    at.group = 0;
#pragma unroll
    for (int g = 1; g < M2_GROUPS_MAX; g++)
        at.group += g < groups.n_groups && tile >= groups.first_tile[g] ? 1 : 0;
    int first_tile = 0;
    int64_t begin = 0, end = 0;
#pragma unroll
    for (int g = 0; g < M2_GROUPS_MAX; g++) { /* constant indices keep the arrays out of memory */
        if (g != at.group) continue;
        first_tile = groups.first_tile[g];
        begin = groups.begin[g];
        end = groups.begin[g + 1];
    }
    at.row = begin + (int64_t)(tile - first_tile) * TOKENS;
    at.n_rows = end - at.row < TOKENS ? (int)(end - at.row) : TOKENS;
    return at;
}

/* What the warp wrote or read before is done with. */
static __device__ __forceinline__ void arrive_warp(uint64_t *bar)
{
    __syncwarp();
    if (threadIdx.x % 32 == 0) sm90_bar_arrive(sm90_smem(bar));
}

/* Where eight columns of a row lie in a stage. */
static __device__ __forceinline__ int place_of(int token, int stream, int column)
{
    const int row = token * M2_STREAMS + stream, piece = column % BOX_COLUMNS / 8;
    return column / BOX_COLUMNS * BOX_BYTES + row * (BOX_COLUMNS * 2) + (piece ^ row % 8) * 16;
}

/* By one warp.  Past the end of a group come rows of the next, past the last zeros: harmless. */
static __device__ __forceinline__ void fetch(const open_work &work, open_smem *smem, int tile,
                                             int stage, int rank)
{
    const int lane = threadIdx.x % 32;
    const open_tile at = tile_of(work.groups, tile);
    const uint32_t bar = sm90_smem(&smem->full[stage]);
    if (lane == 0) {
        smem->tiles[stage] = at;
        sm90_bar_arrive_expect(bar, STAGE_BYTES);
    }
    __syncwarp();
    if (lane < BOXES)
        sm90_load_2d(sm90_smem(smem->stages[stage]) + lane * BOX_BYTES, &work.streams, bar,
                     rank * COLUMNS + lane * BOX_COLUMNS, (int)at.row * M2_STREAMS);
}

/* This warp's rows of phi with the tokens of tile i. */
static __device__ __forceinline__ void multiply(open_smem *smem, int stage, int i,
                                                const uint32_t (&phi)[STEPS][M_TILES][4])
{
    const int warp = threadIdx.x / 32, g = threadIdx.x % 32 / 4, q = threadIdx.x % 4;
    const int stream = warp / (MMA_WARPS / M2_STREAMS), part = warp % (MMA_WARPS / M2_STREAMS);
    const uint8_t *from = smem->stages[stage];
    float d[M_TILES][4] = {}, gram[4] = {};
#pragma unroll
    for (int step = 0; step < STEPS; step += 2) {
        const int column = part * WARP_K + 16 * step + 8 * q;
        const uint4 raw = *(const uint4 *)(from + place_of(g, stream, column));
        const uint32_t tokens[2][4] = { { raw.x, 0, raw.y, 0 }, { raw.z, 0, raw.w, 0 } };
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const uint32_t *b = tokens[half];
#pragma unroll
            for (int m = 0; m < M_TILES; m++) sm90_mma(d[m], phi[step + half][m], b[0], b[2]);
            sm90_mma(gram, tokens[half], b[0], b[2]);
        }
    }
    /* Rows of the second plane lie 24 below those of the first: in the same lane. */
    float *const sums = smem->sums[i % 2][warp], *const to = sums + g * TOKENS + 2 * q;
    if (i >= 2) sm90_bar_wait(sm90_smem(&smem->sums_free[i % 2]), (i / 2 - 1) % 2);
    *(float2 *)to = make_float2(d[0][0] + d[1][2], d[0][1] + d[1][3]);
    *(float2 *)(to + 8 * TOKENS) = make_float2(d[0][2] + d[2][0], d[0][3] + d[2][1]);
    *(float2 *)(to + 16 * TOKENS) = make_float2(d[1][0] + d[2][2], d[1][1] + d[2][3]);
    if (q == g / 2) sums[OUT * TOKENS + g] = g % 2 ? gram[1] : gram[0];
    arrive_warp(&smem->sums_full[i % 2]);
}

/* Joins the warps.  All blocks need what makes h_pre; the rest goes to the block that has the rank
 * of the token. */
static __device__ __forceinline__ void send_part(open_smem *smem, int part, int rank,
                                                 const float *sums)
{
    const uint32_t bar = sm90_smem(&smem->arrived[part]);
#pragma unroll
    for (int first = 0; first < PART_FLOATS; first += SEND_THREADS) {
        const int i = first + threadIdx.x - MMA_THREADS, value = i / TOKENS, token = i % TOKENS;
        if (i >= PART_FLOATS) break;
        float joined[2] = {};
#pragma unroll
        for (int w = 0; w < MMA_WARPS; w++) joined[w % 2] += sums[w * PART_FLOATS + i];
        const float sum = joined[0] + joined[1];
        const uint32_t to = sm90_smem(&smem->parts[part][rank][i]);
        if (value < M2_STREAMS || value == OUT) {
#pragma unroll
            for (int r = 0; r < RANKS; r++)
                sm90_send(sm90_place_in(to, r), sm90_place_in(bar, r), sum);
        } else {
            sm90_send(sm90_place_in(to, token), sm90_place_in(bar, token), sum);
        }
    }
}

/* c of one coefficient and token, from the parts of all blocks. */
static __device__ __forceinline__ float join_parts(const open_smem *smem, float eps, int part,
                                                   int value, int token)
{
    float sum = 0.0f, squares = 0.0f;
#pragma unroll
    for (int r = 0; r < RANKS; r++) {
        sum += smem->parts[part][r][value * TOKENS + token];
        squares += smem->parts[part][r][OUT * TOKENS + token];
    }
    return sum * rsqrtf(squares * (1.0f / (M2_STREAMS * WIDTH)) + eps);
}

/* x of tile i, eight columns at a time. */
static __device__ __forceinline__ void read_mix(const open_work &work, const open_smem *smem,
                                                int part, int stage, int rank)
{
    const open_tile at = smem->tiles[stage];
#pragma unroll
    for (int first = 0; first < TOKENS * COLUMNS / 8; first += MIX_THREADS) {
        const int item = first + threadIdx.x - FIRST_MIX;
        const int token = item / (COLUMNS / 8), column = item % (COLUMNS / 8) * 8;
        const float4 h = *(const float4 *)smem->h_pre[part][token];
        const float weights[M2_STREAMS] = { h.x, h.y, h.z, h.w };
        const uint8_t *from = smem->stages[stage];
        float sum[8] = {};
#pragma unroll
        for (int j = 0; j < M2_STREAMS; j++) {
            float values[8];
            simt_get8((const gpu_bf16 *)(from + place_of(token, j, column)), 0, values);
#pragma unroll
            for (int e = 0; e < 8; e++) sum[e] = fmaf(weights[j], values[e], sum[e]);
        }
        union {
            gpu_bf162 pairs[4];
            uint4 raw;
        } out;
#pragma unroll
        for (int e = 0; e < 4; e++)
            out.pairs[e] = __floats2bfloat162_rn(sum[2 * e], sum[2 * e + 1]);
        if (token < at.n_rows)
            *(uint4 *)(work.x + (at.row + token) * WIDTH + rank * COLUMNS + column) = out.raw;
    }
}

/* ---- the roles ------------------------------------------------------------------------------- */

typedef struct open_share {
    int first, by, n; /* tiles of this cluster */
    int rank;
} open_share;

static __device__ __forceinline__ void product_role(const open_work &work, open_smem *smem,
                                                    open_share share)
{
    uint32_t phi[STEPS][M_TILES][4];
    int group = -1, stage = 0, parity = 0;
    for (int i = 0; i < share.n; i++) {
        sm90_bar_wait(sm90_smem(&smem->full[stage]), parity);
        if (smem->tiles[stage].group != group) {
            group = smem->tiles[stage].group;
            load_phi(work, group, share.rank, phi);
        }
        multiply(smem, stage, i, phi);
        if (++stage == N_STAGES) stage = 0, parity ^= 1;
    }
}

static __device__ __forceinline__ void send_role(open_smem *smem, open_share share)
{
    for (int i = 0; i < share.n; i++) {
        const int part = i % N_PARTS, buffer = i % 2;
        if (i >= N_PARTS)
            sm90_bar_wait_cluster(sm90_smem(&smem->taken[part]), (i / N_PARTS - 1) % 2);
        sm90_bar_wait(sm90_smem(&smem->sums_full[buffer]), i / 2 % 2);
        send_part(smem, part, share.rank, smem->sums[buffer][0]);
        arrive_warp(&smem->sums_free[buffer]);
    }
}

/* h_pre of all tokens for the mix warps; c of the token of this block's rank to memory. */
static __device__ __forceinline__ void pre_role(const open_work &work, open_smem *smem,
                                                open_share share)
{
    const int lane = threadIdx.x % 32, value = lane / TOKENS, token = lane % TOKENS;
    const float alpha_ms = work.alpha_pre[0] * work.ms, bias = work.bias_pre[value];
    int stage = 0, parity = 0;
    for (int i = 0; i < share.n; i++) {
        const int part = i % N_PARTS, part_parity = i / N_PARTS % 2;
        const uint32_t arrived = sm90_smem(&smem->arrived[part]);
        if (lane == 0) sm90_bar_arrive_expect(arrived, PART_BYTES);
        sm90_bar_wait(sm90_smem(&smem->full[stage]), parity);
        const open_tile at = smem->tiles[stage];
        if (i >= N_PARTS) sm90_bar_wait(sm90_smem(&smem->mixed[part]), part_parity ^ 1);
        sm90_bar_wait_cluster(arrived, part_parity);
        const float c = join_parts(smem, work.eps, part, value, token);
        smem->h_pre[part][token][value] = simt_round_bf16(mhc_pre(c, alpha_ms, bias));
        arrive_warp(&smem->pre_full[part]);
        if (lane < OUT) {
            const float own = join_parts(smem, work.eps, part, lane, share.rank);
            if (share.rank < at.n_rows) work.c[(at.row + share.rank) * OUT + lane] = own;
        }
        __syncwarp();
        if (lane < RANKS) sm90_bar_arrive_at(sm90_place_in(sm90_smem(&smem->taken[part]), lane));
        if (++stage == N_STAGES) stage = 0, parity ^= 1;
    }
}

static __device__ __forceinline__ void mix_role(const open_work &work, open_smem *smem,
                                                open_share share)
{
    const int is_fetching = threadIdx.x >= BLOCK_THREADS - 32;
    int stage = 0, parity = 0, last_stage = 0;
    for (int i = 0; i < share.n; i++) {
        const int part = i % N_PARTS, last = i - 1;
        if (is_fetching && i > 0 && last + N_STAGES < share.n) {
            sm90_bar_wait(sm90_smem(&smem->mixed[last % N_PARTS]), last / N_PARTS % 2);
            fetch(work, smem, share.first + (last + N_STAGES) * share.by, last_stage, share.rank);
        }
        sm90_bar_wait(sm90_smem(&smem->full[stage]), parity);
        sm90_bar_wait(sm90_smem(&smem->pre_full[part]), i / N_PARTS % 2);
        read_mix(work, smem, part, stage, share.rank);
        arrive_warp(&smem->mixed[part]);
        last_stage = stage;
        if (++stage == N_STAGES) stage = 0, parity ^= 1;
    }
}

/* ---- the kernel ------------------------------------------------------------------------------ */

static __device__ __forceinline__ void init_barriers(open_smem *smem)
{
    for (int i = 0; i < N_STAGES; i++) sm90_bar_init(sm90_smem(&smem->full[i]), 1);
    for (int i = 0; i < 2; i++) {
        sm90_bar_init(sm90_smem(&smem->sums_full[i]), MMA_WARPS);
        sm90_bar_init(sm90_smem(&smem->sums_free[i]), SEND_WARPS);
    }
    for (int i = 0; i < N_PARTS; i++) {
        sm90_bar_init(sm90_smem(&smem->arrived[i]), 1);
        sm90_bar_init(sm90_smem(&smem->taken[i]), RANKS);
        sm90_bar_init(sm90_smem(&smem->pre_full[i]), 1);
        sm90_bar_init(sm90_smem(&smem->mixed[i]), MIX_WARPS);
    }
    sm90_bar_init_fence();
}

static __global__ void __cluster_dims__(RANKS, 1, 1) __launch_bounds__(BLOCK_THREADS, 1)
    open_kernel(const __grid_constant__ open_work work)
{
    extern __shared__ __align__(1024) uint8_t smem_raw[];
    open_smem *const smem = (open_smem *)smem_raw;
    open_share share;
    share.rank = (int)sm90_cluster_rank();
    share.first = (int)sm90_cluster_idx();
    share.by = (int)sm90_n_clusters(); /* not more than tiles */
    share.n = (work.groups.first_tile[M2_GROUPS_MAX] - share.first + share.by - 1) / share.by;

    if (threadIdx.x == 0) init_barriers(smem);
    __syncthreads();
    if (threadIdx.x < 32)
        for (int i = 0; i < N_STAGES && i < share.n; i++)
            fetch(work, smem, share.first + i * share.by, i, share.rank);
    sm90_cluster_sync(); /* nobody sends to a block that has not begun */
    if (threadIdx.x < MMA_THREADS) {
        sm90_registers_take<MMA_REGISTERS>();
        product_role(work, smem, share);
    } else {
        sm90_registers_give<OTHER_REGISTERS>();
        if (threadIdx.x < MMA_THREADS + SEND_THREADS)
            send_role(smem, share);
        else if (threadIdx.x < FIRST_MIX)
            pre_role(work, smem, share);
        else
            mix_role(work, smem, share);
    }
    __syncwarp();
    sm90_cluster_sync(); /* or to one that has ended */
}

/* ---- launch ---------------------------------------------------------------------------------- */

static open_groups groups_of(const m2_groups *groups, int64_t n)
{
    open_groups made;
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
static int clusters_at_once(struct m2_gpu *gpu)
{
    static int known[DEVICES_MAX];
    if (gpu->device >= DEVICES_MAX) return 0;
    if (known[gpu->device] == 0) {
        cudaLaunchConfig_t config = {};
        cudaLaunchAttribute attribute = {};
        int n = 0;
        gpuFuncSetAttribute(open_kernel, gpuFuncAttributeMaxDynamicSharedMemorySize,
                            (int)sizeof(open_smem));
        attribute.id = cudaLaunchAttributeClusterDimension;
        attribute.val.clusterDim.x = RANKS;
        attribute.val.clusterDim.y = attribute.val.clusterDim.z = 1;
        config.gridDim = dim3(RANKS);
        config.blockDim = dim3(BLOCK_THREADS);
        config.dynamicSmemBytes = sizeof(open_smem);
        config.attrs = &attribute;
        config.numAttrs = 1;
        if (cudaOccupancyMaxActiveClusters(&n, open_kernel, &config) != gpuSuccess) n = 0;
        known[gpu->device] = n > 0 ? n : -1;
    }
    return known[gpu->device];
}

extern "C" int m2_sm90_mhc_open(struct m2_gpu *gpu, const m2_mhc_open_args *args)
{
    const m2_mhc_coefficients_args *in = &args->coefficients;
    const int64_t n = in->s->shape[0];
    const int n_groups = in->groups ? in->groups->n_groups : 1;
    const size_t phi_bytes = (size_t)n_groups * FRAGMENTS * sizeof(uint4);
    if (in->s->shape[2] != WIDTH || in->phi_out || in->h_pre_f32 || in->h_post_f32 || in->h_res_f32)
        return 0;
    if ((uintptr_t)in->s->data % 16 || (uintptr_t)args->x->data % 16) return 0;
    if (phi_bytes + (size_t)n * OUT * 4 > M2_GPU_WORKSPACE_BYTES || n > INT32_MAX / M2_STREAMS)
        return 0;
    const int at_once = clusters_at_once(gpu);
    if (at_once < 1) return 0;
    if (n == 0) return 1;

    open_work work;
    const int64_t shape[2] = { n * M2_STREAMS, WIDTH };
    const int box[2] = { BOX_ROWS, BOX_COLUMNS };
    if (!m2_sm90_map_bf16(&work.streams, in->s->data, 2, shape, box)) return 0;
    work.phi = (const uint4 *)gpu->workspace;
    work.alpha_pre = (const float *)in->alpha_pre->data;
    work.bias_pre = (const float *)in->bias_pre->data;
    work.ms = mhc_scale(in);
    work.eps = in->eps;
    work.c = (float *)((uint8_t *)gpu->workspace + phi_bytes);
    work.x = (gpu_bf16 *)args->x->data;
    work.groups = groups_of(in->groups, n);
    const int n_tiles = work.groups.first_tile[M2_GROUPS_MAX];
    const int n_clusters = at_once < n_tiles ? at_once : n_tiles;

    phi_kernel<<<dim3((FRAGMENTS + SIMT_THREADS - 1) / SIMT_THREADS, n_groups), SIMT_THREADS, 0,
                 gpu->stream>>>((const float *)in->norm->data, (const float *)in->phi->data,
                                (uint4 *)gpu->workspace);
    open_kernel<<<n_clusters * RANKS, BLOCK_THREADS, sizeof(open_smem), gpu->stream>>>(work);
    m2_gpu_mhc_finish(gpu, in, work.c);
    m2_gpu_launched(gpu, "mhc_open");
    return 1;
}
