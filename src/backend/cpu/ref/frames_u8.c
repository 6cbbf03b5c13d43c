#include "backend/cpu/ref/ref.h"

#include "backend/cpu/ref/reduce.h"

#include <assert.h>

#define VALUES 16384

static void quantise(void *context, int64_t begin, int64_t end, int worker)
{
    const m2_frames_u8_args *args = context;
    uint8_t *y = args->y->data;
    (void)worker;
    for (int64_t i = begin; i < end; i++) {
        const float x = m2_ref_get(args->x, i) * 0.5f + 0.5f;
        const float low = x > 0.0f ? x : 0.0f; /* a NaN gives 0 */
        const float clamped = low < 1.0f ? low : 1.0f;
        y[i] = (uint8_t)(clamped * 255.0f); /* truncated, not rounded */
    }
}

void m2_ref_frames_u8(const m2_ops *ops, const m2_frames_u8_args *args)
{
    const int64_t count = m2_tensor_count(args->x);
    assert(args->y->dtype == M2_U8 && m2_tensor_count(args->y) == count);
    m2_frames_u8_args copy = *args;
    m2_parallel_for(ops->pool, count, VALUES, quantise, &copy);
}
