/* mhc_read.c - the input of a half layer: its streams, weighted and summed. */
#include "backend/cpu/ref/reduce.h"
#include "backend/cpu/ref/ref.h"

static void read_rows(void *context, int64_t begin, int64_t end, int worker)
{
    const m2_mhc_read_args *args = context;
    const int64_t width = args->s->shape[2];
    (void)worker;

    for (int64_t row = begin; row < end; row++) {
        for (int64_t d = 0; d < width; d++) {
            float sum = 0.0f;
            for (int i = 0; i < M2_STREAMS; i++)
                sum = fmaf(m2_ref_get(args->h_pre, row * M2_STREAMS + i),
                           m2_ref_get(args->s, (row * M2_STREAMS + i) * width + d), sum);
            m2_ref_put(args->x, row * width + d, sum);
        }
    }
}

void m2_ref_mhc_read(const m2_ops *ops, const m2_mhc_read_args *args)
{
    assert(args->s->n_dims == 3 && args->s->shape[1] == M2_STREAMS);
    assert(m2_tensor_count(args->x) == args->s->shape[0] * args->s->shape[2]);
    m2_mhc_read_args copy = *args;
    m2_parallel_for(ops->pool, args->s->shape[0], M2_REF_ROWS_CHUNK, read_rows, &copy);
}
