#include "backend/cpu/ref/ref.h"

#include "backend/cpu/ref/reduce.h"
#include "core/fmath.h"

#include <assert.h>

/* The inverse frequency is rounded to f32 and the angle is an f32 product: near position 7,000 the
 * angle is a few 1e-4 off the exact one, and the model was trained with just that. */
static void table_rows(void *context, int64_t begin, int64_t end, int worker)
{
    const m2_text_rope_table_args *args = context;
    const int64_t n_rot = args->cos->shape[1];
    (void)worker;
    for (int64_t i = 0; i < n_rot; i++) {
        const double exponent = -(double)(2 * i) / (double)(2 * n_rot);
        const float frequency = (float)pow(args->theta, exponent);
        for (int64_t row = begin; row < end; row++) {
            const float angle = (float)row * frequency;
            m2_ref_put(args->cos, row * n_rot + i, m2_cosf(angle));
            m2_ref_put(args->sin, row * n_rot + i, m2_sinf(angle));
        }
    }
}

void m2_ref_text_rope_table(const m2_ops *ops, const m2_text_rope_table_args *args)
{
    assert(args->cos->n_dims == 2 && args->cos->dtype == args->sin->dtype);
    assert(m2_tensor_count(args->cos) == m2_tensor_count(args->sin));
    m2_text_rope_table_args copy = *args;
    m2_parallel_for(ops->pool, args->cos->shape[0], 64, table_rows, &copy);
}
