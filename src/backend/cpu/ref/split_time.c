#include "backend/cpu/ref/ref.h"

#include <assert.h>
#include <string.h>

/* One row of the output, counted over its frames. */
static void split_rows(void *context, int64_t begin, int64_t end, int worker)
{
    const m2_split_time_args *args = context;
    const int64_t height = args->y->shape[1], width = args->y->shape[2];
    const size_t pixel = (size_t)args->y->shape[3] * m2_dtype_bytes(args->y->dtype);
    (void)worker;
    for (int64_t row = begin; row < end; row++) {
        const int64_t frame = row / height + args->n_drop, y = row % height;
        const int64_t from_row = frame / 2 * height + y;
        const char *from = (const char *)args->x->data + (size_t)(from_row * width) * 2 * pixel +
                           (size_t)(frame % 2) * pixel;
        char *to = (char *)args->y->data + (size_t)(row * width) * pixel;
        for (int64_t x = 0; x < width; x++)
            memcpy(to + (size_t)x * pixel, from + (size_t)x * 2 * pixel, pixel);
    }
}

void m2_ref_split_time(const m2_ops *ops, const m2_split_time_args *args)
{
    const int64_t *from = args->x->shape, *to = args->y->shape;
    assert(args->x->n_dims == 4 && args->y->n_dims == 4 && args->x->dtype == args->y->dtype);
    assert(args->n_drop >= 0 && to[0] == 2 * from[0] - args->n_drop && to[1] == from[1] &&
           to[2] == from[2] && 2 * to[3] == from[3]);
    m2_split_time_args copy = *args;
    m2_parallel_for(ops->pool, to[0] * to[1], 1, split_rows, &copy);
}
