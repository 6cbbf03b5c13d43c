#include "backend/cpu/ref/ref.h"

#include "backend/cpu/ref/reduce.h"

#include <assert.h>

/* Times the rounded 1 / count, not a division by count: some last bits differ. */
void m2_ref_mean_rows(const m2_ops *ops, const m2_mean_rows_args *args)
{
    const int64_t n = args->idx->shape[0], width = args->x->shape[1];
    const int32_t *rows = args->idx->data;
    (void)ops;
    assert(m2_tensor_count(args->y) == width);
    const float scale = n > 0 ? 1.0f / (float)n : 0.0f;
    for (int64_t i = 0; i < width; i++) {
        float sum = 0.0f;
        for (int64_t r = 0; r < n; r++) sum += m2_ref_get(args->x, rows[r] * width + i);
        m2_ref_put(args->y, i, sum * scale);
    }
}
