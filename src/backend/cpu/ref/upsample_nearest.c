#include "backend/cpu/ref/ref.h"

#include <assert.h>
#include <string.h>

/* One row of the output: frame and y are one number, as frames follow each other. */
static void repeat_rows(void *context, int64_t begin, int64_t end, int worker)
{
    const m2_upsample_nearest_args *args = context;
    const int64_t width = args->x->shape[2];
    const size_t pixel = (size_t)args->x->shape[3] * m2_dtype_bytes(args->x->dtype);
    (void)worker;
    for (int64_t row = begin; row < end; row++) {
        const char *from = (const char *)args->x->data + (size_t)(row / args->fh * width) * pixel;
        char *to = (char *)args->y->data + (size_t)(row * width * args->fw) * pixel;
        for (int64_t x = 0; x < width; x++) {
            for (int i = 0; i < args->fw; i++) {
                memcpy(to, from + (size_t)x * pixel, pixel);
                to += pixel;
            }
        }
    }
}

void m2_ref_upsample_nearest(const m2_ops *ops, const m2_upsample_nearest_args *args)
{
    const int64_t *from = args->x->shape, *to = args->y->shape;
    assert(args->x->n_dims == 4 && args->y->n_dims == 4 && args->x->dtype == args->y->dtype);
    assert(to[0] == from[0] && to[1] == from[1] * args->fh && to[2] == from[2] * args->fw &&
           to[3] == from[3]);
    m2_upsample_nearest_args copy = *args;
    m2_parallel_for(ops->pool, to[0] * to[1], 1, repeat_rows, &copy);
}
