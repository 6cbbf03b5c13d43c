#include "backend/cpu/ref/ref.h"

#include <assert.h>
#include <string.h>

/* One row of the output, 2 y + q, counted over all frames: frames have an even number of rows. */
static void shuffle_rows(void *context, int64_t begin, int64_t end, int worker)
{
    const m2_pixel_shuffle_args *args = context;
    const int64_t width = args->x->shape[2], channels = args->y->shape[3];
    const size_t value = m2_dtype_bytes(args->x->dtype);
    (void)worker;
    for (int64_t row = begin; row < end; row++) {
        const int64_t q = row % 2;
        const char *from =
            (const char *)args->x->data + (size_t)(row / 2 * width * channels * 4) * value;
        char *to = (char *)args->y->data + (size_t)(row * width * 2 * channels) * value;
        for (int64_t x = 0; x < width * 2; x++) {
            const int64_t r = x % 2, phase = args->column_outer ? 2 * r + q : 2 * q + r;
            for (int64_t c = 0; c < channels; c++) {
                const int64_t idx = x / 2 * channels * 4 + c * 4 + phase;
                memcpy(to, from + (size_t)idx * value, value);
                to += value;
            }
        }
    }
}

void m2_ref_pixel_shuffle(const m2_ops *ops, const m2_pixel_shuffle_args *args)
{
    const int64_t *from = args->x->shape, *to = args->y->shape;
    assert(args->x->n_dims == 4 && args->y->n_dims == 4 && args->x->dtype == args->y->dtype);
    assert(to[0] == from[0] && to[1] == 2 * from[1] && to[2] == 2 * from[2] &&
           4 * to[3] == from[3]);
    m2_pixel_shuffle_args copy = *args;
    m2_parallel_for(ops->pool, to[0] * to[1], 1, shuffle_rows, &copy);
}
