/* reduce.h - loads, stores and the one order of long sums that the scalar operators share.
 *
 * Order  element i of a row joins lane i % 16 as an FMA; after every 512 elements the lanes join
 *        their totals and start again from zero, so no chain is longer than 32; at the end the
 *        totals combine as l += l + 8, l + 4, l + 2, l + 1.
 */
#ifndef M2_BACKEND_CPU_REF_REDUCE_H
#define M2_BACKEND_CPU_REF_REDUCE_H

#include <assert.h>
#include <math.h>

#include "core/tensor.h"

#define M2_REF_LANES      16
#define M2_REF_BLOCK      512 /* elements that lanes gather before they join the totals */
#define M2_REF_ROWS_CHUNK 8   /* rows of one piece of work; bits do not depend on it    */

/* Element `i` of a bf16 or f32 tensor. */
static inline float m2_ref_get(const m2_tensor *tensor, int64_t i)
{
    if (tensor->dtype == M2_F32) return ((const float *)tensor->data)[i];
    assert(tensor->dtype == M2_BF16);
    return m2_bf16_to_f32(((const m2_bf16 *)tensor->data)[i]);
}

static inline void m2_ref_put(m2_tensor *tensor, int64_t i, float value)
{
    if (tensor->dtype == M2_F32) {
        ((float *)tensor->data)[i] = value;
        return;
    }
    assert(tensor->dtype == M2_BF16);
    ((m2_bf16 *)tensor->data)[i] = m2_f32_to_bf16(value);
}

/* Sum of squares of the elements [begin, begin + n). */
static inline float m2_ref_sum_squares(const m2_tensor *x, int64_t begin, int64_t n)
{
    float total[M2_REF_LANES] = { 0 };
    for (int64_t block = 0; block < n; block += M2_REF_BLOCK) {
        const int64_t end = block + M2_REF_BLOCK < n ? block + M2_REF_BLOCK : n;
        float lane[M2_REF_LANES] = { 0 };
        for (int64_t i = block; i < end; i++) {
            const float value = m2_ref_get(x, begin + i);
            lane[i % M2_REF_LANES] = fmaf(value, value, lane[i % M2_REF_LANES]);
        }
        for (int l = 0; l < M2_REF_LANES; l++) total[l] += lane[l];
    }
    for (int half = M2_REF_LANES / 2; half >= 1; half /= 2)
        for (int l = 0; l < half; l++) total[l] += total[l + half];
    return total[0];
}

/* 1 / sqrt(mean of squares + eps) of the elements [begin, begin + n). */
static inline float m2_ref_inverse_rms(const m2_tensor *x, int64_t begin, int64_t n, float eps)
{
    return 1.0f / sqrtf(m2_ref_sum_squares(x, begin, n) / (float)n + eps);
}

#endif
