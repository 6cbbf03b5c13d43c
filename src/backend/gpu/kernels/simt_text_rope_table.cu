/* simt_text_rope_table.cu - cosine and sine of the text encoder's positions.
 *
 * The frequencies are powers in f64 rounded to f32, as the reference has them, so the host takes
 * them: not every device computes in f64.  They travel as an argument, 64 at a time.
 *
 * Twin     backend/cpu/ref/text_rope_table.c */
#include "backend/gpu/kernels/simt_parts.cuh"

#include <math.h>

#define COLUMNS 64
#define ROWS    4 /* positions of one block */

struct rope_frequencies {
    float f[COLUMNS];
};

template <typename T>
static __global__ void rope_table_kernel(rope_frequencies frequencies, T *cos_out, T *sin_out,
                                         int n_rows, int n_rot, int column, int n_columns)
{
    const int row = (int)blockIdx.x * ROWS + (int)threadIdx.y;
    const int i = (int)threadIdx.x;
    if (row < n_rows && i < n_columns) {
        const float angle = __fmul_rn((float)row, frequencies.f[i]);
        const int64_t to = (int64_t)row * n_rot + column + i;
        simt_put(cos_out, to, cosf(angle));
        simt_put(sin_out, to, sinf(angle));
    }
}

template <typename T>
static void rope_table(struct m2_gpu *gpu, const m2_text_rope_table_args *args)
{
    const int n_rows = (int)args->cos->shape[0], n_rot = (int)args->cos->shape[1];
    for (int column = 0; column < n_rot; column += COLUMNS) {
        const int n_columns = n_rot - column < COLUMNS ? n_rot - column : COLUMNS;
        rope_frequencies frequencies = {};
        for (int i = 0; i < n_columns; i++)
            frequencies.f[i] =
                (float)pow(args->theta, -(double)(2 * (column + i)) / (double)(2 * n_rot));
        rope_table_kernel<T><<<simt_blocks(n_rows, ROWS), dim3(COLUMNS, ROWS), 0, gpu->stream>>>(
            frequencies, (T *)args->cos->data, (T *)args->sin->data, n_rows, n_rot, column,
            n_columns);
    }
}

extern "C" void m2_gpu_text_rope_table(const m2_ops *ops, const m2_text_rope_table_args *args)
{
    struct m2_gpu *gpu = m2_gpu_of(ops);
    if (args->cos->shape[0] == 0) return;
    if (args->cos->dtype == M2_BF16)
        rope_table<gpu_bf16>(gpu, args);
    else
        rope_table<float>(gpu, args);
    m2_gpu_launched(gpu, "text_rope_table");
}
