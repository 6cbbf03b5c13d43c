/* sm90_moe_logits.cu - logits[h][t][e] = x[t][h] . gate[h][e] on tensor cores, Hopper.
 *
 *   gate = g0 + g1 + g2, three bf16 pieces that hold all 24 bits of an f32: x is bf16, so every
 *   product is exact and only the sums round.
 *
 * A small kernel writes the pieces as shared memory will hold them.  A block keeps 128 experts of a
 * head, all of K and all three planes (192 KB), and streams tokens past them: each of its three
 * warpgroups takes a tile of 64 tokens from global memory straight into fragments, multiplies, and
 * stores, and while one stores the others multiply.  Two neighbouring blocks take the two halves
 * of the experts of the same tokens at the same time, so that x is read from memory once.
 *
 * In       dim 256, 256 experts a head; other shapes go to simt_moe_logits.cu
 * Order    planes 2, 1, 0, K ascending by 16 in each, one accumulator
 * K and the experts are permuted inside a fragment, so that a lane reads and writes 16 bytes:
 *          k  of 32   lane q of a quad has 8 q ... 8 q + 7 for two steps of 16
 *          n  of 16   lane q has 4 q ... 4 q + 3 in two groups of 8 columns
 * Twin     backend/cpu/ref/moe_logits.c       Speed  bench/gpu/bench_routing.cu
 */
#include "backend/gpu/kernels/simt_common.cuh"
#include "backend/gpu/kernels/sm90_ptx.cuh"

#include <assert.h>

#define DIM           256
#define EXPERTS       256
#define HALF          128 /* experts of a block                              */
#define PLANES        3
#define SLAB_K        64 /* of K: rows of 128 bytes, swizzled               */
#define SLABS         (DIM / SLAB_K)
#define SLAB_BYTES    (HALF * SLAB_K * 2)
#define IMAGE_BYTES   (PLANES * SLABS * SLAB_BYTES)
#define SMEM_BYTES    (IMAGE_BYTES + 1024) /* the base is aligned by hand    */
#define TILE          64                   /* tokens                         */
#define WARPGROUP     128
#define N_WARPGROUPS  3
#define BLOCK_THREADS (N_WARPGROUPS * WARPGROUP)
#define A_WORDS       (DIM / 16 * 4)

/* ---- the planes ------------------------------------------------------------------------------ */

/* Where place n of the columns and place k of a slab's rows come from; see the head. */
static __device__ __forceinline__ int expert_of(int n)
{
    const int group = n % 16 / 8, q = n % 8 / 2;
    return n / 16 * 16 + 4 * q + 2 * group + n % 2;
}

static __device__ __forceinline__ int source_of(int k)
{
    const int step = k % 32 / 16, group = k % 16 / 8, q = k % 8 / 2;
    return k / 32 * 32 + 8 * q + 4 * step + 2 * group + k % 2;
}

/* image [n_heads * 2][plane][slab][n][k], 16-byte pieces of a row of 128 bytes swizzled.
 * A thread makes eight k of one n, in all planes. */
static __global__ void planes_kernel(const float *gate, uint4 *image, int n_pieces)
{
    const int i = blockIdx.x * SIMT_THREADS + threadIdx.x;
    if (i >= n_pieces) return;
    const int piece = i % 8, slab = i / 8 % SLABS, row = i / (8 * SLABS), n = row % HALF;
    const float *from = gate + (int64_t)(row / HALF * HALF + expert_of(n)) * DIM + slab * SLAB_K;
    union {
        gpu_bf16 values[8];
        uint4 raw;
    } planes[PLANES];
#pragma unroll
    for (int j = 0; j < 8; j++) {
        float rest = from[source_of(piece * 8 + j)];
#pragma unroll
        for (int p = 0; p < PLANES; p++) {
            planes[p].values[j] = __float2bfloat16(rest);
            rest -= __bfloat162float(planes[p].values[j]);
        }
    }
    for (int p = 0; p < PLANES; p++) {
        const int64_t slab_idx = (int64_t)(row / HALF) * PLANES * SLABS + p * SLABS + slab;
        image[slab_idx * (SLAB_BYTES / 16) + n * 8 + (piece ^ n % 8)] = planes[p].raw;
    }
}

/* ---- the product ----------------------------------------------------------------------------- */

typedef struct logits_work {
    const gpu_bf16 *x; /* [n_tokens, n_heads, DIM] */
    const uint4 *image;
    float *logits; /* [n_heads, n_tokens, EXPERTS] */
    int64_t n_tokens;
    int n_heads, n_tiles; /* tiles of one head */
} logits_work;

static __device__ __forceinline__ void load_image(uint4 *smem, const uint4 *from)
{
#pragma unroll 8
    for (int i = threadIdx.x; i < IMAGE_BYTES / 16; i += BLOCK_THREADS) smem[i] = from[i];
    sm90_fence_async();
    __syncthreads();
}

/* Rows g and g + 8 of the warp's sixteen; words of row 0 and of row 8 alternate, as fragments
 * want. */
static __device__ __forceinline__ void load_tokens(const logits_work &work, int head, int64_t token,
                                                   uint32_t (&a)[A_WORDS / 4][4])
{
    const int q = threadIdx.x % 4;
#pragma unroll
    for (int half = 0; half < 2; half++) {
        const int64_t row = token + 8 * half;
        const uint4 *from = (const uint4 *)(work.x + (row * work.n_heads + head) * DIM) + q;
#pragma unroll
        for (int b = 0; b < DIM / 32; b++) {
            uint4 raw = make_uint4(0, 0, 0, 0);
            if (row < work.n_tokens) raw = from[4 * b];
            a[2 * b][half] = raw.x;
            a[2 * b][2 + half] = raw.y;
            a[2 * b + 1][half] = raw.z;
            a[2 * b + 1][2 + half] = raw.w;
        }
    }
}

static __device__ __forceinline__ void multiply(const uint32_t (&a)[A_WORDS / 4][4], uint32_t smem,
                                                float (&d)[HALF / 2])
{
    const uint32_t high = sm90_desc_high(1024, SM90_SWIZZLE_128);
    sm90_wgmma_pin(d);
    sm90_wgmma_fence();
#pragma unroll
    for (int p = PLANES - 1; p >= 0; p--) {
#pragma unroll
        for (int step = 0; step < DIM / 16; step++) {
            const uint32_t slab = (uint32_t)(p * SLABS + step / 4) * SLAB_BYTES;
            const uint32_t low = sm90_desc(smem, 16) + (slab + step % 4 * 32) / 16;
            sm90_wgmma_rs<0>(d, a[step], low, high, p < PLANES - 1 || step > 0);
        }
    }
    sm90_wgmma_commit();
    sm90_wgmma_wait<0>();
    sm90_wgmma_pin(d);
}

static __device__ __forceinline__ void store_tokens(const logits_work &work, int head, int half,
                                                    int64_t token, const float (&d)[HALF / 2])
{
    const int q = threadIdx.x % 4;
#pragma unroll
    for (int r = 0; r < 2; r++) {
        const int64_t row = token + 8 * r;
        if (row >= work.n_tokens) continue;
        float *to = work.logits + (head * work.n_tokens + row) * EXPERTS + half * HALF + 4 * q;
#pragma unroll
        for (int j = 0; j < HALF / 16; j++)
            *(float4 *)(to + 16 * j) = make_float4(d[8 * j + 2 * r], d[8 * j + 2 * r + 1],
                                                   d[8 * j + 4 + 2 * r], d[8 * j + 5 + 2 * r]);
    }
}

/* Block 2 i + half does its half of the experts for the i-th share of all (head, tile). */
static __global__ void __launch_bounds__(BLOCK_THREADS, 1) logits_kernel(logits_work work)
{
    extern __shared__ uint8_t smem_raw[];
    const uint32_t smem = (sm90_smem(smem_raw) + 1023u) & ~1023u;
    uint4 *const image = (uint4 *)(smem_raw + (smem - sm90_smem(smem_raw)));
    const int half = blockIdx.x % 2, share = blockIdx.x / 2, n_shares = gridDim.x / 2;
    const int64_t n_items = (int64_t)work.n_heads * work.n_tiles;
    const int64_t end = n_items * (share + 1) / n_shares;
    const int warpgroup = threadIdx.x / WARPGROUP;
    const int own_row = threadIdx.x % WARPGROUP / 32 * 16 + threadIdx.x % 32 / 4;
    int64_t item = n_items * share / n_shares;

    while (item < end) { /* once for each head of the share */
        const int head = (int)(item / work.n_tiles);
        const int64_t head_first = (int64_t)head * work.n_tiles;
        const int64_t head_end = head_first + work.n_tiles < end ? head_first + work.n_tiles : end;
        __syncthreads(); /* all have finished with the image before */
        load_image(image, work.image + (int64_t)(head * 2 + half) * (IMAGE_BYTES / 16));
        for (int64_t i = item + warpgroup; i < head_end; i += N_WARPGROUPS) {
            const int64_t token = (i - head_first) * TILE + own_row;
            uint32_t a[A_WORDS / 4][4];
            float d[HALF / 2];
            load_tokens(work, head, token, a);
            multiply(a, smem, d);
            store_tokens(work, head, half, token, d);
        }
        item = head_end;
    }
}

extern "C" int m2_sm90_moe_logits(struct m2_gpu *gpu, const m2_moe_logits_args *args)
{
    logits_work work;
    work.n_tokens = args->x->shape[0];
    work.n_heads = (int)args->x->shape[1];
    work.n_tiles = (int)((work.n_tokens + TILE - 1) / TILE);
    if (args->x->shape[2] != DIM || args->logits->shape[2] != EXPERTS) return 0;
    const int64_t image_bytes = (int64_t)work.n_heads * 2 * IMAGE_BYTES;
    if (image_bytes > (int64_t)M2_GPU_WORKSPACE_BYTES || gpu->n_mps < 2) return 0;
    if ((uintptr_t)args->x->data % 16 || (uintptr_t)args->logits->data % 16) return 0;
    gpuFuncSetAttribute(logits_kernel, gpuFuncAttributeMaxDynamicSharedMemorySize, SMEM_BYTES);
    work.x = (const gpu_bf16 *)args->x->data;
    work.image = (const uint4 *)gpu->workspace;
    work.logits = (float *)args->logits->data;

    const int n_pieces = work.n_heads * EXPERTS * SLABS * 8;
    planes_kernel<<<(n_pieces + SIMT_THREADS - 1) / SIMT_THREADS, SIMT_THREADS, 0, gpu->stream>>>(
        (const float *)args->gate->data, (uint4 *)gpu->workspace, n_pieces);
    logits_kernel<<<gpu->n_mps / 2 * 2, BLOCK_THREADS, SMEM_BYTES, gpu->stream>>>(work);
    m2_gpu_launched(gpu, "moe_logits");
    return 1;
}
