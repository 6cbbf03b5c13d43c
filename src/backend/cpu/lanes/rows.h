/* rows.h - ref/reduce.h and ref/act.h for sixteen lanes: sums of squares in the same order, and the
 * rounding of intermediate values. */
#ifndef M2_BACKEND_CPU_LANES_ROWS_H
#define M2_BACKEND_CPU_LANES_ROWS_H

#include <math.h>

#include "backend/cpu/lanes/lanes.h"
#include "core/tensor.h"

#define ROWS_BLOCK 512 /* elements that lanes gather before they join the totals */

/* Of elements [begin, begin + n).  Zeros behind the end change no lane: squares are never -0. */
static inline float v_sum_squares(const m2_tensor *x, int64_t begin, int64_t n)
{
    v16 total = v_zero();
    for (int64_t block = 0; block < n; block += ROWS_BLOCK) {
        const int64_t end = block + ROWS_BLOCK < n ? block + ROWS_BLOCK : n;
        v16 lane = v_zero();
        for (int64_t i = block; i < end; i += LANES) {
            const v16 value = v_get_n(x->data, x->dtype, begin + i, end - i);
            lane = v_fma(value, value, lane);
        }
        total = v_add(total, lane);
    }
    return v_tree_sum(total);
}

static inline float v_inverse_rms(const m2_tensor *x, int64_t begin, int64_t n, float eps)
{
    return 1.0f / sqrtf(v_sum_squares(x, begin, n) / (float)n + eps);
}

static inline v16 v_round(m2_dtype dtype, v16 value)
{
    return dtype == M2_BF16 ? v_round_bf16(value) : value;
}

#endif
