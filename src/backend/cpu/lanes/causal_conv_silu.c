#include "backend/cpu/lanes/ops.h"
#include "backend/cpu/lanes/rows.h"
#include "backend/cpu/lanes/vmath.h"

#define KERNEL_MAX 8

/* Items are groups of 16 channels: their taps are brought into lanes once for all tokens. */
static void conv_channels(void *context, int64_t begin, int64_t end, int worker)
{
    const m2_causal_conv_silu_args *args = context;
    const m2_tensor *x = args->x, *y = args->y;
    const int64_t n = x->shape[0], n_channels = x->shape[1], kernel = args->w->shape[2];
    (void)worker;
    for (int64_t c = begin * LANES; c < n_channels && c < end * LANES; c += LANES) {
        const int64_t left = n_channels - c < LANES ? n_channels - c : LANES;
        float lanes[LANES * KERNEL_MAX] = { 0 }, column[LANES];
        v16 tap[KERNEL_MAX];
        m2_convert((const char *)args->w->data +
                       (size_t)(c * kernel) * m2_dtype_bytes(args->w->dtype),
                   args->w->dtype, lanes, M2_F32, left * kernel);
        for (int64_t j = 0; j < kernel; j++) {
            for (int i = 0; i < LANES; i++) column[i] = lanes[i * kernel + j];
            tap[j] = v_load(column);
        }
        for (int64_t t = 0; t < n; t++) {
            const int64_t first = t < kernel - 1 ? kernel - 1 - t : 0;
            v16 sum = v_zero();
            for (int64_t j = first; j < kernel; j++) {
                const int64_t at = (t - (kernel - 1) + j) * n_channels + c;
                sum = v_fma(tap[j], v_get_n(x->data, x->dtype, at, left), sum);
            }
            v_put_n(y->data, y->dtype, t * n_channels + c, v_silu(v_round(y->dtype, sum)), left);
        }
    }
}

void M2_LANES_NAME(causal_conv_silu)(const m2_ops *ops, const m2_causal_conv_silu_args *args)
{
    if (args->w->shape[2] > KERNEL_MAX) {
        m2_ref_causal_conv_silu(ops, args);
        return;
    }
    m2_causal_conv_silu_args copy = *args;
    m2_parallel_for(ops->pool, (args->x->shape[1] + LANES - 1) / LANES, 4, conv_channels, &copy);
}
