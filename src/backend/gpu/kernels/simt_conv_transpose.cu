/* simt_conv_transpose.cu - transposed convolution of the audio decoder: outputs t with the same
 * (t + pad) % stride use the same two taps, so each such phase is a convolution of its own.
 *
 * Order    taps ascending, channels ascending inside a tap
 * Twin     backend/cpu/ref/conv_transpose.c */
#include "backend/gpu/kernels/simt_conv_f32.cuh"

#include <assert.h>

extern "C" void m2_gpu_conv_transpose(const m2_ops *ops, const m2_conv_transpose_args *args)
{
    struct m2_gpu *gpu = m2_gpu_of(ops);
    assert(args->w->shape[0] == 2 * (int64_t)args->stride);
    assert(args->y->shape[0] == args->x->shape[0] * args->stride - args->stride % 2);
    conv_data<float> data = {};
    data.x = (const float *)args->x->data;
    data.w = (const float *)args->w->data;
    data.bias = simt_any_of(args->bias);
    data.y = (float *)args->y->data;
    data.c_in = (int)args->x->shape[1];
    data.c_out = (int)args->y->shape[1];
    if (m2_tensor_count(args->y) == 0) return;
    conv_phase_rows rows = {};
    rows.length = (int)args->x->shape[0];
    rows.stride = args->stride;
    rows.n_outputs = (int)args->y->shape[0];
    rows.kh = 1;
    rows.kw = 2;
    rows.n_taps = 2;
    rows.n_rows = rows.length + 1; /* no phase has more */
    conv_f32(gpu, rows, data, args->stride);
    m2_gpu_launched(gpu, "conv_transpose");
}
