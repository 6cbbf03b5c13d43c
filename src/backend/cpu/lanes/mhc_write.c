#include "backend/cpu/lanes/ops.h"

typedef struct write_weights {
    v16 res[M2_STREAMS][M2_STREAMS], post[M2_STREAMS];
} write_weights;

/* Sixteen channels of one row; all streams are read before any is written. */
static inline void write_channels(const m2_mhc_write_args *args, const write_weights *w,
                                  int64_t row, int64_t d)
{
    const int64_t width = args->s->shape[2], left = width - d;
    const v16 added = v_get_n(args->o->data, M2_BF16, row * width + d, left);
    v16 old[M2_STREAMS];
    for (int j = 0; j < M2_STREAMS; j++)
        old[j] = v_get_n(args->s->data, M2_BF16, (row * M2_STREAMS + j) * width + d, left);
    for (int i = 0; i < M2_STREAMS; i++) {
        v16 sum = v_zero();
        for (int j = 0; j < M2_STREAMS; j++) sum = v_fma(w->res[i][j], old[j], sum);
        sum = v_fma(w->post[i], added, sum);
        v_put_n(args->s_out->data, M2_BF16, (row * M2_STREAMS + i) * width + d, sum, left);
    }
}

static void write_rows(void *context, int64_t begin, int64_t end, int worker)
{
    (void)worker;
    const m2_mhc_write_args *args = context;
    const m2_bf16 *res = args->h_res->data, *post = args->h_post->data;
    for (int64_t row = begin; row < end; row++) {
        write_weights w;
        for (int i = 0; i < M2_STREAMS; i++) {
            const int64_t target = row * M2_STREAMS + i;
            w.post[i] = v_set1(m2_bf16_to_f32(post[target]));
            for (int j = 0; j < M2_STREAMS; j++)
                w.res[i][j] = v_set1(m2_bf16_to_f32(res[target * M2_STREAMS + j]));
        }
        for (int64_t d = 0; d < args->s->shape[2]; d += LANES) write_channels(args, &w, row, d);
    }
}

void M2_LANES_NAME(mhc_write)(const m2_ops *ops, const m2_mhc_write_args *args)
{
    m2_parallel_for(ops->pool, args->s->shape[0], 16, write_rows, (void *)args);
}
