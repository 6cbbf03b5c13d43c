/* simt_conv_transpose.cu - transposed convolution of the audio decoder: outputs t with the same
 * (t + pad) % stride use the same two taps, so each such phase is a convolution of its own.
 *
 * Order    taps ascending, channels ascending inside a tap
 * Twin     backend/cpu/ref/conv_transpose.c */
#include "backend/gpu/kernels/simt_conv_f32.cuh"

#include <assert.h>

/* Outputs of phase p are t = j * stride + p - pad, for the j that give 0 <= t < n_outputs. */
static conv_phase_rows phase_rows(const m2_conv_transpose_args *args, int phase)
{
    const int64_t n_outputs = args->y->shape[0], stride = args->stride, pad = (stride + 1) / 2;
    conv_phase_rows rows = {};
    rows.length = (int)args->x->shape[0];
    rows.stride = args->stride;
    rows.phase = phase;
    rows.first = phase < pad ? 1 : 0;
    rows.kh = 1;
    rows.kw = 2;
    rows.n_taps = 2;
    const int64_t last = n_outputs - 1 + pad - phase; /* j * stride at most */
    rows.n_rows = last < 0 ? 0 : last / stride + 1 - rows.first;
    return rows;
}

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
    for (int phase = 0; phase < args->stride; phase++) {
        const conv_phase_rows rows = phase_rows(args, phase);
        if (rows.n_rows > 0 && data.c_out > 0) conv_f32(gpu, rows, data);
    }
    m2_gpu_launched(gpu, "conv_transpose");
}
