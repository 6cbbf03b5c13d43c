/* simt_mhc_coefficients.cu - how a half layer reads its four streams and writes them back.
 *
 * A block projects four tokens: its threads share the rows of phi, and lanes and warps join.  The
 * norm's factor is applied after the product.  Then a thread a token makes the coefficients.
 *
 * Numerics  f32; chains of 4 D / 256 products, joined as a tree.  Sinkhorn multiplies by
 *           reciprocals of its sums, good to an ulp; each round takes back the error before it
 * Twin      backend/cpu/ref/mhc_coefficients.c
 */
#include "backend/gpu/kernels/simt_mhc.cuh"

#include <assert.h>

#define ROWS            4 /* tokens of a block */
#define VALUES          (ROWS * (MHC_COEFFICIENTS + 1))
#define FINISH_THREADS  64
#define SINKHORN_ROUNDS 20
#define SINKHORN_EPS    1e-12f

/* ---- the product with phi -------------------------------------------------------------------- */

/* Rows of phi are whole eights: IS_WIDE asks for aligned memory alone. */
template <int IS_WIDE>
static __global__ void __launch_bounds__(SIMT_THREADS)
    project_kernel(const gpu_bf16 *s, const float *norm, const float *phi, simt_groups groups,
                   int64_t n_rows, int width, float eps, float *c)
{
    __shared__ float warp_sums[SIMT_WARPS][VALUES], sums[VALUES];
    const int64_t first = (int64_t)blockIdx.x * ROWS;
    float acc[ROWS][MHC_COEFFICIENTS + 1] = {}; /* the last: sum of squares */
    int64_t row[ROWS], weights[ROWS];
#pragma unroll
    for (int r = 0; r < ROWS; r++) {
        row[r] = first + r < n_rows ? first + r : n_rows - 1;
        weights[r] = (int64_t)simt_group_of(groups, row[r]) * width;
    }
    for (int k = threadIdx.x; k < width; k += SIMT_THREADS) {
        float phi_row[MHC_COEFFICIENTS];
#pragma unroll
        for (int j = 0; j < MHC_COEFFICIENTS; j += SIMT_VECTOR)
            simt_get_some<IS_WIDE>(phi, (int64_t)k * MHC_COEFFICIENTS + j, SIMT_VECTOR,
                                   phi_row + j);
#pragma unroll
        for (int r = 0; r < ROWS; r++) {
            const float value = simt_get(s, row[r] * width + k);
            const float u = value * (norm[weights[r] + k] + 1.0f);
#pragma unroll
            for (int j = 0; j < MHC_COEFFICIENTS; j++) acc[r][j] = fmaf(u, phi_row[j], acc[r][j]);
            acc[r][MHC_COEFFICIENTS] = fmaf(value, value, acc[r][MHC_COEFFICIENTS]);
        }
    }
    const int warp = threadIdx.x / SIMT_WARP;
#pragma unroll
    for (int r = 0; r < ROWS; r++) {
#pragma unroll
        for (int j = 0; j <= MHC_COEFFICIENTS; j++) {
            const float sum = simt_warp_sum(acc[r][j]);
            if (threadIdx.x % SIMT_WARP == 0) warp_sums[warp][r * (MHC_COEFFICIENTS + 1) + j] = sum;
        }
    }
    __syncthreads();
    if (threadIdx.x < VALUES) {
        float sum = 0.0f;
        for (int w = 0; w < SIMT_WARPS; w++) sum += warp_sums[w][threadIdx.x];
        sums[threadIdx.x] = sum;
    }
    __syncthreads();
    const int r = threadIdx.x / MHC_COEFFICIENTS, j = threadIdx.x % MHC_COEFFICIENTS;
    if (r < ROWS && first + r < n_rows) {
        const float *of_row = sums + r * (MHC_COEFFICIENTS + 1);
        const float scale = 1.0f / sqrtf(of_row[MHC_COEFFICIENTS] / (float)width + eps);
        c[(first + r) * MHC_COEFFICIENTS + j] = of_row[j] * scale;
    }
}

/* ---- coefficients ---------------------------------------------------------------------------- */

typedef struct finish_work {
    const float *c;
    const float *alpha_pre, *alpha_post, *alpha_res, *bias_pre, *bias_post, *bias_res;
    float ms;
    int64_t n_rows;
    gpu_bf16 *h_pre, *h_post, *h_res;
    float *phi_out, *h_pre_f32, *h_post_f32, *h_res_f32; /* may be NULL */
} finish_work;

/* Columns first: after the last round the rows sum to 1, the columns almost. */
static __device__ __forceinline__ void sinkhorn(float (&m)[M2_STREAMS][M2_STREAMS])
{
    float largest = m[0][0];
#pragma unroll
    for (int ij = 1; ij < M2_STREAMS * M2_STREAMS; ij++)
        largest = m[ij / M2_STREAMS][ij % M2_STREAMS] > largest
                      ? m[ij / M2_STREAMS][ij % M2_STREAMS]
                      : largest;
#pragma unroll
    for (int i = 0; i < M2_STREAMS; i++)
#pragma unroll
        for (int j = 0; j < M2_STREAMS; j++) m[i][j] = simt_fmath_exp(m[i][j] - largest);

#pragma unroll 1
    for (int round = 0; round < SINKHORN_ROUNDS; round++) {
#pragma unroll
        for (int j = 0; j < M2_STREAMS; j++) {
            const float sum = (((m[0][j] + m[1][j]) + m[2][j]) + m[3][j]) + SINKHORN_EPS;
            const float inverse = gpu_rcp(sum);
#pragma unroll
            for (int i = 0; i < M2_STREAMS; i++) m[i][j] *= inverse;
        }
#pragma unroll
        for (int i = 0; i < M2_STREAMS; i++) {
            const float sum = ((m[i][0] + m[i][2]) + (m[i][1] + m[i][3])) + SINKHORN_EPS;
            const float inverse = gpu_rcp(sum);
#pragma unroll
            for (int j = 0; j < M2_STREAMS; j++) m[i][j] *= inverse;
        }
    }
}

template <int N>
static __device__ __forceinline__ void store(gpu_bf16 *rounded, float *exact, int64_t row,
                                             const float *values)
{
#pragma unroll
    for (int i = 0; i < N; i++) {
        simt_put(rounded, row * N + i, values[i]);
        if (exact) exact[row * N + i] = values[i];
    }
}

static __global__ void __launch_bounds__(FINISH_THREADS) finish_kernel(finish_work work)
{
    const int64_t row = (int64_t)blockIdx.x * FINISH_THREADS + threadIdx.x;
    if (row >= work.n_rows) return;
    const float a_pre = work.alpha_pre[0] * work.ms, a_post = work.alpha_post[0] * work.ms;
    const float a_res = work.alpha_res[0] * work.ms;
    float c[MHC_COEFFICIENTS];
#pragma unroll
    for (int j = 0; j < MHC_COEFFICIENTS; j += 4) {
        const float4 v = *(const float4 *)(work.c + row * MHC_COEFFICIENTS + j);
        c[j] = v.x, c[j + 1] = v.y, c[j + 2] = v.z, c[j + 3] = v.w;
    }
    float pre[M2_STREAMS], post[M2_STREAMS], res[M2_STREAMS][M2_STREAMS];
#pragma unroll
    for (int i = 0; i < M2_STREAMS; i++) {
        pre[i] = mhc_pre(c[i], a_pre, work.bias_pre[i]);
        post[i] = 2.0f * mhc_pre(c[M2_STREAMS + i], a_post, work.bias_post[i]);
#pragma unroll
        for (int j = 0; j < M2_STREAMS; j++) {
            const int ij = M2_STREAMS * i + j;
            res[i][j] = __fadd_rn(__fmul_rn(a_res, c[2 * M2_STREAMS + ij]), work.bias_res[ij]);
        }
    }
    sinkhorn(res);
    store<M2_STREAMS>(work.h_pre, work.h_pre_f32, row, pre);
    store<M2_STREAMS>(work.h_post, work.h_post_f32, row, post);
    store<M2_STREAMS * M2_STREAMS>(work.h_res, work.h_res_f32, row, res[0]);
    if (work.phi_out)
        for (int j = 0; j < MHC_COEFFICIENTS; j++) work.phi_out[row * MHC_COEFFICIENTS + j] = c[j];
}

static float *data_or_null(const m2_tensor *tensor)
{
    return (float *)(tensor ? tensor->data : 0);
}

void m2_gpu_mhc_finish(struct m2_gpu *gpu, const m2_mhc_coefficients_args *args, const float *c)
{
    finish_work work;
    work.c = c;
    work.alpha_pre = (const float *)args->alpha_pre->data;
    work.alpha_post = (const float *)args->alpha_post->data;
    work.alpha_res = (const float *)args->alpha_res->data;
    work.bias_pre = (const float *)args->bias_pre->data;
    work.bias_post = (const float *)args->bias_post->data;
    work.bias_res = (const float *)args->bias_res->data;
    work.ms = mhc_scale(args);
    work.n_rows = args->s->shape[0];
    work.h_pre = (gpu_bf16 *)args->h_pre->data;
    work.h_post = (gpu_bf16 *)args->h_post->data;
    work.h_res = (gpu_bf16 *)args->h_res->data;
    work.phi_out = data_or_null(args->phi_out);
    work.h_pre_f32 = data_or_null(args->h_pre_f32);
    work.h_post_f32 = data_or_null(args->h_post_f32);
    work.h_res_f32 = data_or_null(args->h_res_f32);
    const unsigned int blocks = (unsigned int)((work.n_rows + FINISH_THREADS - 1) / FINISH_THREADS);
    finish_kernel<<<blocks, FINISH_THREADS, 0, gpu->stream>>>(work);
}

extern "C" void m2_gpu_mhc_coefficients(const m2_ops *ops, const m2_mhc_coefficients_args *args)
{
    struct m2_gpu *gpu = m2_gpu_of(ops);
    const int64_t n = args->s->shape[0], width = M2_STREAMS * args->s->shape[2];
    float *c = (float *)gpu->workspace;
    assert(args->s->dtype == M2_BF16 && args->s->shape[1] == M2_STREAMS);
    assert(args->phi->shape[0] == width);
    static_assert(MHC_COEFFICIENTS * 4 == M2_GPU_MHC_TOKEN_BYTES, "as limits.h says");
    assert(n * MHC_COEFFICIENTS * 4 <= (int64_t)M2_GPU_WORKSPACE_BYTES && width <= INT32_MAX);
    if (n == 0) return;
    SIMT_BY_WIDTH(simt_is_wide(args->phi, 0), WIDE, {
        project_kernel<WIDE>
            <<<(unsigned int)((n + ROWS - 1) / ROWS), SIMT_THREADS, 0, gpu->stream>>>(
                (const gpu_bf16 *)args->s->data, (const float *)args->norm->data,
                (const float *)args->phi->data, simt_groups_of(args->groups, n), n, (int)width,
                args->eps, c);
    });
    m2_gpu_mhc_finish(gpu, args, c);
    m2_gpu_launched(gpu, "mhc_coefficients");
}
