#include "backend/cpu/lanes/ops.h"

static void read_rows(void *context, int64_t begin, int64_t end, int worker)
{
    (void)worker;
    const m2_mhc_read_args *args = context;
    const int64_t width = args->s->shape[2];
    const m2_bf16 *s = args->s->data, *weights = args->h_pre->data;
    m2_bf16 *x = args->x->data;
    for (int64_t row = begin; row < end; row++) {
        v16 h[M2_STREAMS];
        for (int i = 0; i < M2_STREAMS; i++)
            h[i] = v_set1(m2_bf16_to_f32(weights[row * M2_STREAMS + i]));
        for (int64_t d = 0; d < width; d += LANES) {
            v16 sum = v_zero();
            for (int i = 0; i < M2_STREAMS; i++) {
                const int64_t at = (row * M2_STREAMS + i) * width + d;
                sum = v_fma(h[i], v_get_n(s, M2_BF16, at, width - d), sum);
            }
            v_put_n(x, M2_BF16, row * width + d, sum, width - d);
        }
    }
}

void M2_LANES_NAME(mhc_read)(const m2_ops *ops, const m2_mhc_read_args *args)
{
    m2_parallel_for(ops->pool, args->s->shape[0], 16, read_rows, (void *)args);
}
