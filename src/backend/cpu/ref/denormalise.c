#include "backend/cpu/ref/ref.h"

#include "backend/cpu/ref/act.h"

#include <assert.h>

/* One row of the output, counted over its frames. */
static void denormalise_rows(void *context, int64_t begin, int64_t end, int worker)
{
    const m2_denormalise_args *args = context;
    const m2_dtype dtype = args->y->dtype;
    const int64_t n_frames = args->z->shape[1], height = args->z->shape[2];
    const int64_t width = args->z->shape[3], channels = args->z->shape[0];
    const float *z = args->z->data, *mean = args->mean->data, *std = args->std->data;
    (void)worker;
    for (int64_t row = begin; row < end; row++) {
        int64_t frame = args->t_begin + row / height;
        if (frame >= n_frames) frame = n_frames - 1;
        for (int64_t c = 0; c < channels; c++) {
            const float *from = z + ((c * n_frames + frame) * height + row % height) * width;
            /* A division by the rounded reciprocal, as the reference does it: not a product. */
            const float reciprocal = 1.0f / std[c];
            for (int64_t x = 0; x < width; x++)
                m2_ref_put(args->y, (row * width + x) * channels + c,
                           m2_ref_round(dtype, from[x]) / reciprocal + mean[c]);
        }
    }
}

void m2_ref_denormalise(const m2_ops *ops, const m2_denormalise_args *args)
{
    const int64_t *from = args->z->shape, *to = args->y->shape;
    assert(args->z->n_dims == 4 && args->y->n_dims == 4 && args->z->dtype == M2_F32);
    assert(to[1] == from[2] && to[2] == from[3] && to[3] == from[0] && args->t_begin >= 0);
    assert(args->mean->shape[0] == from[0] && args->std->shape[0] == from[0]);
    m2_denormalise_args copy = *args;
    m2_parallel_for(ops->pool, to[0] * to[1], 1, denormalise_rows, &copy);
}
