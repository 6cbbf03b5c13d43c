/* sm90_mhc.cuh - how sm90_mhc.cu cuts its work: tiles, shared memory, phi as fragments. */
#ifndef M2_BACKEND_GPU_KERNELS_SM90_MHC_CUH
#define M2_BACKEND_GPU_KERNELS_SM90_MHC_CUH

#include "backend/gpu/kernels/simt_mhc.cuh"
#include "backend/gpu/kernels/sm90_ptx.cuh"

#define WIDTH   3072
#define RANKS   8 /* blocks of a cluster */
#define TOKENS  8 /* of a tile           */
#define COLUMNS (WIDTH / RANKS)
/* Warps by role, in this order; one pre warp, one fetch warp.  Roles fill warpgroups, which share
 * the registers of a multiprocessor: 2 x 208 + 40 + 56 = 4 x 128. */
#define MMA_WARPS         8
#define SEND_WARPS        2
#define MIX_WARPS         4
#define MMA_THREADS       (32 * MMA_WARPS)
#define FIRST_PRE         (MMA_THREADS + 32 * SEND_WARPS)
#define FIRST_FETCH       (FIRST_PRE + 32)
#define FIRST_MIX         (FIRST_FETCH + 32)
#define MIX_THREADS       (32 * MIX_WARPS)
#define BLOCK_THREADS     (FIRST_MIX + MIX_THREADS)
#define PRODUCT_REGISTERS 208
#define SMALL_REGISTERS   40
#define MIX_REGISTERS     56
#define TURNS             (COLUMNS / 16 / MMA_WARPS) /* 16 columns of a warp each, MMA_WARPS * 16 apart */
#define STEPS             (TURNS * M2_STREAMS)
#define PLANES            2
#define OUT               MHC_COEFFICIENTS
#define REST              (OUT - M2_STREAMS) /* coefficients that are not h_pre's */
#define M_TILES           (PLANES * OUT / 16)
#define FRAGMENTS         (RANKS * MMA_WARPS * STEPS * M_TILES * 32) /* of a group, 16 bytes each */
/* A stage: boxes of 64 columns and two streams, then those of the half's output; a row of a box for
 * each (token, stream), its 16-byte pieces swizzled.  Lanes that read eight bytes of one stream then
 * meet in no bank. */
#define BOX_COLUMNS  64
#define BOXES        (COLUMNS / BOX_COLUMNS)
#define ROW_BYTES    (BOX_COLUMNS * 2)
#define BOX_BYTES    (TOKENS * 2 * ROW_BYTES)
#define STREAM_BYTES (BOXES * 2 * BOX_BYTES)
#define ADDED_BYTES  (BOXES * TOKENS * ROW_BYTES)
#define DEVICES_MAX  64

/* A tile's sums in one warp, and what a block gets of them from each block of the cluster: what
 * makes h_pre for all tokens, the rest for the token of its rank. */
typedef struct mhc_sums {
    float pre[TOKENS][M2_STREAMS];
    float squares[TOKENS];
    float rest[TOKENS][REST];
} mhc_sums;

typedef struct mhc_part {
    float pre[TOKENS][M2_STREAMS];
    float squares[TOKENS];
    float rest[REST];
} mhc_part;

#define COMMON_PIECES ((TOKENS * M2_STREAMS + TOKENS) / 4) /* of four floats */
#define SUMS_PIECES   ((int)sizeof(mhc_sums) / 16)

typedef struct mhc_tile {
    int group, n_rows;
    int64_t row;
} mhc_tile; /* row is the first of n_rows */

/* How one token is written: targets in rows. */
typedef struct mhc_mix {
    float res[M2_STREAMS][M2_STREAMS], post[M2_STREAMS];
} mhc_mix;

template <int IS_WRITE> struct mhc_smem {
    static constexpr int N_STAGES = IS_WRITE ? 6 : 7;
    static constexpr int STAGE_BYTES = STREAM_BYTES + (IS_WRITE ? ADDED_BYTES : 0);
    uint8_t stages[N_STAGES][STAGE_BYTES];
    mhc_sums sums[2][MMA_WARPS];
    mhc_part parts[N_STAGES][RANKS];
    mhc_mix mixes[N_STAGES][TOKENS];
    float h_pre[N_STAGES][TOKENS][M2_STREAMS];
    mhc_tile tiles[N_STAGES];
    /* Barriers: what a role waits for, by buffer. */
    uint64_t full[N_STAGES];                     /* a stage has been filled              */
    uint64_t written[N_STAGES];                  /* ... and holds the new streams        */
    uint64_t sums_full[2], sums_free[2];         /* product and send warps               */
    uint64_t arrived[N_STAGES], taken[N_STAGES]; /* parts: bytes come, blocks done       */
    uint64_t pre_full[N_STAGES];                 /* h_pre is there                       */
    uint64_t mixed[N_STAGES];                    /* a stage and all that goes with it is free */
};

typedef struct mhc_tiles {
    int n_groups;
    int first_tile[M2_GROUPS_MAX + 1];
    int64_t begin[M2_GROUPS_MAX + 1];
} mhc_tiles;

typedef struct mhc_work {
    CUtensorMap streams; /* of s: boxes are stages */
    CUtensorMap added;   /* of o; write alone     */
    const uint2 *h_res, *h_post;
    gpu_bf16 *s_out;
    const uint4 *phi; /* [n_groups][FRAGMENTS] */
    const float *alpha_pre, *bias_pre;
    float ms, eps;
    float *c; /* [n, OUT] */
    gpu_bf16 *x;
    mhc_tiles tiles;
} mhc_work;

/* The tiles of one cluster, and the block's place in it. */
typedef struct mhc_share {
    int first, by, n;
    int rank;
} mhc_share;

/* Asked for by each role, so that nothing of it has to stay in registers. */
static __device__ __forceinline__ mhc_share share_of(const mhc_work &work)
{
    mhc_share share;
    share.rank = (int)sm90_cluster_rank();
    share.first = (int)sm90_cluster_idx();
    share.by = (int)sm90_n_clusters(); /* not more than tiles */
    share.n = (work.tiles.first_tile[M2_GROUPS_MAX] - share.first + share.by - 1) / share.by;
    return share;
}

/* A buffer of the ring and its phase. */
typedef struct mhc_place {
    int stage, parity;
} mhc_place;

template <int IS_WRITE> static __device__ __forceinline__ void advance(mhc_place *at)
{
    if (++at->stage == mhc_smem<IS_WRITE>::N_STAGES) at->stage = 0, at->parity ^= 1;
}

static __device__ __forceinline__ mhc_tile tile_of(const mhc_tiles &tiles, int tile)
{
    mhc_tile at;
    at.group = 0;
#pragma unroll
    for (int g = 1; g < M2_GROUPS_MAX; g++)
        at.group += g < tiles.n_groups && tile >= tiles.first_tile[g] ? 1 : 0;
    int first_tile = 0;
    int64_t begin = 0, end = 0;
#pragma unroll
    for (int g = 0; g < M2_GROUPS_MAX; g++) { /* constant indices keep the arrays out of memory */
        if (g != at.group) continue;
        first_tile = tiles.first_tile[g];
        begin = tiles.begin[g];
        end = tiles.begin[g + 1];
    }
    at.row = begin + (int64_t)(tile - first_tile) * TOKENS;
    at.n_rows = end - at.row < TOKENS ? (int)(end - at.row) : TOKENS;
    return at;
}

/* ---- phi ------------------------------------------------------------------------------------- */

/* phi [n_groups][rank][warp][step][m tile][lane] as fragments of A.  A step is 16 columns of one
 * stream, of which lane q of a quad has 4 q ... 4 q + 3. */
static __global__ void phi_kernel(const float *norm, const float *phi, uint4 *fragments)
{
    const int i = blockIdx.x * SIMT_THREADS + threadIdx.x, group = blockIdx.y;
    if (i >= FRAGMENTS) return;
    const int lane = i % 32, tile = i / 32 % M_TILES, step = i / (32 * M_TILES) % STEPS;
    const int warp = i / (32 * M_TILES * STEPS) % MMA_WARPS;
    const int rank = i / (32 * M_TILES * STEPS * MMA_WARPS);
    const int turn = step / M2_STREAMS, stream = step % M2_STREAMS;
    const int first =
        stream * WIDTH + rank * COLUMNS + (turn * MMA_WARPS + warp) * 16 + lane % 4 * 4;
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

static __device__ __forceinline__ void load_phi(const mhc_work &work, int group,
                                                uint32_t (&phi)[STEPS][M_TILES][4])
{
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const uint4 *from = work.phi + (int64_t)group * FRAGMENTS +
                        (sm90_cluster_rank() * MMA_WARPS + warp) * (STEPS * M_TILES * 32) + lane;
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

#endif
