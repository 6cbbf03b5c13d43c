/* simt_rms_act.cu - y = round(activation(round(x * rsqrt(mean_C x^2 + eps)))), per position.
 *
 * Why      memory is all the time it takes: a thread asks for all it needs of several positions
 *          before it computes.  Positions of more than 512 channels are read twice, the second time
 *          from the cache.
 * Order    LANES lanes share a position, eight values of each in turn; LANES follows from C alone
 * Twin     backend/cpu/ref/rms_act.c */
#include "backend/gpu/kernels/simt_parts.cuh"

typedef struct rms_act_run {
    int64_t n_rows;
    int dim;
    float eps;
    m2_activation activation;
} rms_act_run;

static __device__ __forceinline__ void add_squares(const float (&v)[SIMT_VECTOR], float *sum)
{
#pragma unroll
    for (int j = 0; j < SIMT_VECTOR; j++) *sum = fmaf(v[j], v[j], *sum);
}

template <typename T>
static __device__ __forceinline__ void norm_and_activate(float (&v)[SIMT_VECTOR], float scale,
                                                         m2_activation activation)
{
    if (activation == M2_ACT_SILU) { /* nearly all of them */
#pragma unroll
        for (int j = 0; j < SIMT_VECTOR; j++)
            v[j] = simt_silu_to<T>(simt_round<T>(__fmul_rn(v[j], scale)));
    } else {
#pragma unroll
        for (int j = 0; j < SIMT_VECTOR; j++)
            v[j] = simt_activate(activation, simt_round<T>(__fmul_rn(v[j], scale)));
    }
}

/* Positions of at most LANES * 8 * PACKS channels, ROWS of them a thread. */
template <typename T, int LANES, int PACKS, int ROWS>
static __global__ void rms_act_held(const T *x, T *y, rms_act_run run)
{
    constexpr int GROUPS = SIMT_THREADS / LANES;
    const int lane = (int)threadIdx.x % LANES;
    const int64_t row0 = (int64_t)blockIdx.x * GROUPS * ROWS + (int)threadIdx.x / LANES;
    float v[ROWS][PACKS][SIMT_VECTOR];
#pragma unroll
    for (int r = 0; r < ROWS; r++) {
        const int64_t row = row0 + r * GROUPS;
#pragma unroll
        for (int p = 0; p < PACKS; p++) {
            const int i = (p * LANES + lane) * SIMT_VECTOR;
            simt_get8_if(row < run.n_rows && i < run.dim, x, row * run.dim + i, v[r][p]);
        }
    }
#pragma unroll
    for (int r = 0; r < ROWS; r++) {
        const int64_t row = row0 + r * GROUPS;
        float sum = 0.0f;
#pragma unroll
        for (int p = 0; p < PACKS; p++) add_squares(v[r][p], &sum);
        const float mean = simt_lanes_sum<LANES>(sum) / (float)run.dim;
        const float scale = 1.0f / sqrtf(mean + run.eps);
#pragma unroll
        for (int p = 0; p < PACKS; p++) {
            const int i = (p * LANES + lane) * SIMT_VECTOR;
            norm_and_activate<T>(v[r][p], scale, run.activation);
            if (row < run.n_rows && i < run.dim) simt_put8(y, row * run.dim + i, v[r][p]);
        }
    }
}

/* Any number of channels, any alignment: a position has 32 lanes. */
template <typename T, int IS_WIDE>
static __global__ void rms_act_any(const T *x, T *y, rms_act_run run)
{
    const int lane = (int)threadIdx.x % SIMT_WARP;
    const int64_t row = (int64_t)blockIdx.x * SIMT_WARPS + (int)threadIdx.x / SIMT_WARP;
    const T *from = x + (row < run.n_rows ? row : run.n_rows - 1) * run.dim;
    float v[SIMT_VECTOR], sum = 0.0f;
    for (int i = lane * SIMT_VECTOR; i < run.dim; i += SIMT_WARP * SIMT_VECTOR) {
        simt_get_some<IS_WIDE>(from, i, run.dim - i, v);
        add_squares(v, &sum);
    }
    const float scale = 1.0f / sqrtf(simt_warp_sum(sum) / (float)run.dim + run.eps);
    for (int i = lane * SIMT_VECTOR; row < run.n_rows && i < run.dim;
         i += SIMT_WARP * SIMT_VECTOR) {
        simt_get_some<IS_WIDE>(from, i, run.dim - i, v);
        norm_and_activate<T>(v, scale, run.activation);
        simt_put_some<IS_WIDE>(y + row * run.dim, i, run.dim - i, v);
    }
}

template <typename T, int LANES, int PACKS, int ROWS>
static void launch_held(struct m2_gpu *gpu, const T *x, T *y, const rms_act_run &run)
{
    const unsigned int blocks = simt_blocks(run.n_rows, SIMT_THREADS / LANES * ROWS);
    rms_act_held<T, LANES, PACKS, ROWS><<<blocks, SIMT_THREADS, 0, gpu->stream>>>(x, y, run);
}

template <typename T>
static void rms_act(struct m2_gpu *gpu, const m2_rms_act_args *args, const rms_act_run &run)
{
    const T *x = (const T *)args->x->data;
    T *y = (T *)args->y->data;
    const int is_wide = simt_is_wide(args->x, run.dim) && simt_is_wide(args->y, run.dim);
    if (is_wide && run.dim <= 64)
        launch_held<T, 8, 1, 4>(gpu, x, y, run);
    else if (is_wide && run.dim <= 128)
        launch_held<T, 16, 1, 4>(gpu, x, y, run);
    else if (is_wide && run.dim <= 256)
        launch_held<T, 32, 1, 4>(gpu, x, y, run);
    else if (is_wide && run.dim <= 512)
        launch_held<T, 32, 2, 2>(gpu, x, y, run);
    else
        SIMT_BY_WIDTH(is_wide, WIDE, {
            rms_act_any<T, WIDE>
                <<<simt_blocks(run.n_rows, SIMT_WARPS), SIMT_THREADS, 0, gpu->stream>>>(x, y, run);
        });
}

extern "C" void m2_gpu_rms_act(const m2_ops *ops, const m2_rms_act_args *args)
{
    struct m2_gpu *gpu = m2_gpu_of(ops);
    const int64_t count = m2_tensor_count(args->x), dim = args->x->shape[args->x->n_dims - 1];
    if (count == 0) return;
    const rms_act_run run = { count / dim, (int)dim, args->eps, args->activation };
    SIMT_BY_TYPE(args->x->dtype, T, rms_act<T>(gpu, args, run));
    m2_gpu_launched(gpu, "rms_act");
}
