/* simt_rms_act.cu - y = round(activation(round(x * rsqrt(mean_C x^2 + eps)))), per position.
 *
 * LANES lanes share a position: eight values of each lane's turn in one load where memory is aligned.
 * A second reading of the row comes from the cache.  LANES follows from C alone.
 */
#include "backend/gpu/kernels/simt_parts.cuh"

template <typename T, int IS_WIDE, int LANES>
static __global__ void rms_act_kernel(const T *x, T *y, int64_t n_rows, int dim, float eps,
                                      m2_activation activation)
{
    constexpr int ROWS = SIMT_THREADS / LANES;
    const int lane = (int)threadIdx.x % LANES;
    const int64_t row = (int64_t)blockIdx.x * ROWS + (int)threadIdx.x / LANES;
    const T *from = x + (row < n_rows ? row : n_rows - 1) * dim; /* all lanes join the sums */
    float v[SIMT_VECTOR], sum = 0.0f;
    for (int i = lane * SIMT_VECTOR; i < dim; i += LANES * SIMT_VECTOR) {
        simt_get_some<IS_WIDE>(from, i, dim - i, v);
#pragma unroll
        for (int j = 0; j < SIMT_VECTOR; j++) sum = fmaf(v[j], v[j], sum);
    }
    const float scale = 1.0f / sqrtf(simt_lanes_sum<LANES>(sum) / (float)dim + eps);
    for (int i = lane * SIMT_VECTOR; row < n_rows && i < dim; i += LANES * SIMT_VECTOR) {
        simt_get_some<IS_WIDE>(from, i, dim - i, v);
#pragma unroll
        for (int j = 0; j < SIMT_VECTOR; j++)
            v[j] = simt_activate(activation, simt_round<T>(__fmul_rn(v[j], scale)));
        simt_put_some<IS_WIDE>(y + row * dim, i, dim - i, v);
    }
}

template <typename T, int IS_WIDE>
static void rms_act(struct m2_gpu *gpu, const m2_rms_act_args *args, int64_t n_rows, int dim)
{
    const T *x = (const T *)args->x->data;
    T *y = (T *)args->y->data;
    if (dim <= 64)
        rms_act_kernel<T, IS_WIDE, 8>
            <<<simt_blocks(n_rows, SIMT_THREADS / 8), SIMT_THREADS, 0, gpu->stream>>>(
                x, y, n_rows, dim, args->eps, args->activation);
    else if (dim <= 128)
        rms_act_kernel<T, IS_WIDE, 16>
            <<<simt_blocks(n_rows, SIMT_THREADS / 16), SIMT_THREADS, 0, gpu->stream>>>(
                x, y, n_rows, dim, args->eps, args->activation);
    else
        rms_act_kernel<T, IS_WIDE, 32>
            <<<simt_blocks(n_rows, SIMT_THREADS / 32), SIMT_THREADS, 0, gpu->stream>>>(
                x, y, n_rows, dim, args->eps, args->activation);
}

extern "C" void m2_gpu_rms_act(const m2_ops *ops, const m2_rms_act_args *args)
{
    struct m2_gpu *gpu = m2_gpu_of(ops);
    const int64_t count = m2_tensor_count(args->x), dim = args->x->shape[args->x->n_dims - 1];
    if (count == 0) return;
    const int is_wide = simt_is_wide(args->x, dim) && simt_is_wide(args->y, dim);
    SIMT_BY_TYPE(args->x->dtype, T, SIMT_BY_WIDTH(is_wide, WIDE, {
                     rms_act<T, WIDE>(gpu, args, count / dim, (int)dim);
                 }));
    m2_gpu_launched(gpu, "rms_act");
}
