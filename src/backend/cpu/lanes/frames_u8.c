#include "backend/cpu/lanes/ops.h"

#include <assert.h>

#define VALUES 16384

/* v_max and v_min give their second operand for a NaN, as the scalar definition gives 0. */
static void quantise(void *context, int64_t begin, int64_t end, int worker)
{
    const m2_frames_u8_args *args = context;
    uint8_t *y = args->y->data;
    (void)worker;
    for (int64_t i = begin; i < end; i += LANES) {
        const int64_t n = end - i < LANES ? end - i : LANES;
        float level[LANES];
        const v16 x = v_get_n(args->x->data, args->x->dtype, i, n);
        const v16 half = v_add(v_mul(x, v_set1(0.5f)), v_set1(0.5f));
        const v16 clamped = v_min(v_max(half, v_zero()), v_set1(1.0f));
        v_store(level, v_mul(clamped, v_set1(255.0f)));
        for (int64_t l = 0; l < n; l++) y[i + l] = (uint8_t)level[l];
    }
}

void M2_LANES_NAME(frames_u8)(const m2_ops *ops, const m2_frames_u8_args *args)
{
    const int64_t count = m2_tensor_count(args->x);
    assert(args->y->dtype == M2_U8 && m2_tensor_count(args->y) == count);
    m2_frames_u8_args copy = *args;
    m2_parallel_for(ops->pool, count, VALUES, quantise, &copy);
}
