/* mhc_write.c - the streams after a half layer: mixed with each other, then the layer's output. */
#include "backend/cpu/ref/reduce.h"
#include "backend/cpu/ref/ref.h"

static void write_rows(void *context, int64_t begin, int64_t end, int worker)
{
    const m2_mhc_write_args *args = context;
    const int64_t width = args->s->shape[2];
    (void)worker;

    for (int64_t row = begin; row < end; row++) {
        for (int64_t d = 0; d < width; d++) {
            /* All four are read before any is written: s_out may be s. */
            float old[M2_STREAMS];
            for (int j = 0; j < M2_STREAMS; j++)
                old[j] = m2_ref_get(args->s, (row * M2_STREAMS + j) * width + d);
            const float added = m2_ref_get(args->o, row * width + d);
            for (int i = 0; i < M2_STREAMS; i++) {
                const int64_t target = row * M2_STREAMS + i;
                float sum = 0.0f;
                for (int j = 0; j < M2_STREAMS; j++)
                    sum = fmaf(m2_ref_get(args->h_res, target * M2_STREAMS + j), old[j], sum);
                sum = fmaf(m2_ref_get(args->h_post, target), added, sum);
                m2_ref_put(args->s_out, target * width + d, sum);
            }
        }
    }
}

void m2_ref_mhc_write(const m2_ops *ops, const m2_mhc_write_args *args)
{
    assert(args->s->n_dims == 3 && args->s->shape[1] == M2_STREAMS);
    assert(m2_tensor_count(args->o) == args->s->shape[0] * args->s->shape[2]);
    m2_mhc_write_args copy = *args;
    m2_parallel_for(ops->pool, args->s->shape[0], M2_REF_ROWS_CHUNK, write_rows, &copy);
}
