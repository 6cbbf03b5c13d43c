#include "backend/cpu/ref/ref.h"

#include "backend/cpu/ref/act.h"
#include "core/fmath.h"

#include <assert.h>

/* Taps in ascending order; those before the first token are zeros and are left out. */
static void conv_rows(void *context, int64_t begin, int64_t end, int worker)
{
    const m2_causal_conv_silu_args *args = context;
    const int64_t n_channels = args->x->shape[1], kernel = args->w->shape[2];
    (void)worker;
    for (int64_t t = begin; t < end; t++) {
        const int64_t first = t < kernel - 1 ? kernel - 1 - t : 0;
        for (int64_t c = 0; c < n_channels; c++) {
            float sum = 0.0f;
            for (int64_t j = first; j < kernel; j++) {
                const float x = m2_ref_get(args->x, (t - (kernel - 1) + j) * n_channels + c);
                sum = fmaf(m2_ref_get(args->w, c * kernel + j), x, sum);
            }
            m2_ref_put(args->y, t * n_channels + c, m2_siluf(m2_ref_round(args->y->dtype, sum)));
        }
    }
}

void m2_ref_causal_conv_silu(const m2_ops *ops, const m2_causal_conv_silu_args *args)
{
    assert(args->x->n_dims == 2 && args->w->n_dims == 3 && args->w->shape[1] == 1);
    assert(args->w->shape[0] == args->x->shape[1]);
    assert(m2_tensor_count(args->y) == m2_tensor_count(args->x));
    m2_causal_conv_silu_args copy = *args;
    m2_parallel_for(ops->pool, args->x->shape[0], 4, conv_rows, &copy);
}
