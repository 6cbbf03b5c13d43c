/* simt_moe_logits.cu - logits[h][t][e] = x[t][h] . gate[h][e], f32 tiles of 64 tokens x 64 experts.
 *
 * Numerics  f32 FMA; 32 products make a chain, chains join the total in ascending order
 * Twin      backend/cpu/ref/moe_logits.c
 */
#include "backend/gpu/kernels/simt_common.cuh"

#include <assert.h>

#define TILE    64
#define BLOCK_K 32
#define OWN     4 /* tokens and experts of one thread: TILE / 16 */
#define PITCH   (TILE + 4)

typedef struct logits_shape {
    int64_t n_tokens;
    int n_heads, dim, n_experts;
} logits_shape;

static __global__ void __launch_bounds__(SIMT_THREADS)
    logits_kernel(const gpu_bf16 *x, const float *gate, float *logits, logits_shape shape)
{
    __shared__ __align__(16) float x_tile[BLOCK_K][PITCH], gate_tile[BLOCK_K][PITCH];
    const int head = blockIdx.z, first_expert = blockIdx.y * TILE;
    const int64_t first_token = (int64_t)blockIdx.x * TILE;
    const int row = threadIdx.x / 16 * OWN, column = threadIdx.x % 16 * OWN;
    float total[OWN][OWN] = {};

    for (int k = 0; k < shape.dim; k += BLOCK_K) {
        for (int i = threadIdx.x; i < TILE * BLOCK_K; i += SIMT_THREADS) {
            const int at = i / BLOCK_K, of_k = i % BLOCK_K;
            const int64_t token = first_token + at;
            const int expert = first_expert + at, is_inside = k + of_k < shape.dim;
            x_tile[of_k][at] =
                is_inside && token < shape.n_tokens
                    ? simt_get(x, (token * shape.n_heads + head) * shape.dim + k + of_k)
                    : 0.0f;
            gate_tile[of_k][at] =
                is_inside && expert < shape.n_experts
                    ? gate[((int64_t)head * shape.n_experts + expert) * shape.dim + k + of_k]
                    : 0.0f;
        }
        __syncthreads();
        float chain[OWN][OWN] = {};
#pragma unroll 8
        for (int i = 0; i < BLOCK_K; i++) {
            const float4 a = *(const float4 *)&x_tile[i][row];
            const float4 b = *(const float4 *)&gate_tile[i][column];
            const float as[OWN] = { a.x, a.y, a.z, a.w }, bs[OWN] = { b.x, b.y, b.z, b.w };
#pragma unroll
            for (int r = 0; r < OWN; r++)
#pragma unroll
                for (int c = 0; c < OWN; c++) chain[r][c] = fmaf(as[r], bs[c], chain[r][c]);
        }
#pragma unroll
        for (int r = 0; r < OWN; r++)
#pragma unroll
            for (int c = 0; c < OWN; c++) total[r][c] += chain[r][c];
        __syncthreads();
    }
#pragma unroll
    for (int r = 0; r < OWN; r++) {
        const int64_t token = first_token + row + r;
#pragma unroll
        for (int c = 0; c < OWN; c++) {
            const int expert = first_expert + column + c;
            if (token < shape.n_tokens && expert < shape.n_experts)
                logits[((int64_t)head * shape.n_tokens + token) * shape.n_experts + expert] =
                    total[r][c];
        }
    }
}

extern "C" void m2_gpu_moe_logits(const m2_ops *ops, const m2_moe_logits_args *args)
{
    struct m2_gpu *gpu = m2_gpu_of(ops);
    logits_shape shape;
    shape.n_tokens = args->x->shape[0];
    shape.n_heads = (int)args->x->shape[1];
    shape.dim = (int)args->x->shape[2];
    shape.n_experts = (int)args->logits->shape[2];
    assert(args->x->dtype == M2_BF16 && args->gate->dtype == M2_F32);
    assert(args->gate->shape[0] == (int64_t)shape.n_heads * shape.n_experts);
    if (shape.n_tokens == 0) return;
    if (M2_GPU_TRY_SM90(moe_logits, gpu, args)) return;

    const dim3 grid((unsigned int)((shape.n_tokens + TILE - 1) / TILE),
                    (shape.n_experts + TILE - 1) / TILE, shape.n_heads);
    logits_kernel<<<grid, SIMT_THREADS, 0, gpu->stream>>>((const gpu_bf16 *)args->x->data,
                                                          (const float *)args->gate->data,
                                                          (float *)args->logits->data, shape);
    m2_gpu_launched(gpu, "moe_logits");
}
