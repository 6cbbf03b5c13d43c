/* product.h - the order in which every product over K is summed on the CPU.
 *
 * K is cut into blocks of 32, the last one padded with zeros.  Inside a block the even and the odd
 * k are two FMA chains from +0, E and O; the block's sum is E + O.
 *   bf16  total = total + (E + O), block by block: what the tile units of AMX compute.
 *   f32   the sums of 16 blocks (512 of K) gather in a partial before it joins the total, so
 *         that rounding errors grow with the root of K / 512 and not of K.
 * Every version for a faster instruction set follows this order bit for bit.
 */
#ifndef M2_BACKEND_CPU_REF_PRODUCT_H
#define M2_BACKEND_CPU_REF_PRODUCT_H

#include <math.h>

#include "core/tensor.h"

#define M2_BLOCK_K        32
#define M2_PARTIAL_BLOCKS 16

typedef struct m2_sum {
    float total, partial;
    int n_blocks;     /* in the partial */
    int has_partials; /* the f32 rule   */
} m2_sum;

static inline m2_sum m2_sum_begin(m2_dtype dtype)
{
    return (m2_sum){ .has_partials = dtype == M2_F32 };
}

static inline void m2_sum_add(m2_sum *sum, float block)
{
    if (!sum->has_partials) {
        sum->total += block;
        return;
    }
    sum->partial += block;
    if (++sum->n_blocks == M2_PARTIAL_BLOCKS) {
        sum->total += sum->partial;
        sum->partial = 0;
        sum->n_blocks = 0;
    }
}

static inline float m2_sum_end(const m2_sum *sum)
{
    return sum->n_blocks ? sum->total + sum->partial : sum->total;
}

/* Element i of f32 or bf16 memory. */
static inline float m2_load(const void *data, m2_dtype dtype, int64_t i)
{
    return dtype == M2_BF16 ? m2_bf16_to_f32(((const m2_bf16 *)data)[i]) : ((const float *)data)[i];
}

static inline void m2_store(void *data, m2_dtype dtype, int64_t i, float value)
{
    if (dtype == M2_BF16)
        ((m2_bf16 *)data)[i] = m2_f32_to_bf16(value);
    else
        ((float *)data)[i] = value;
}

/* E + O over n <= 32 pairs; a is contiguous from a_idx, b goes in steps of b_stride.  Either type
 * may be bf16 or f32; `a` may be NULL for zeros. */
static inline float m2_block_sum(const void *a, m2_dtype a_dtype, int64_t a_idx, const void *b,
                                 m2_dtype b_dtype, int64_t b_idx, int64_t b_stride, int64_t n)
{
    float chain[2] = { 0, 0 };
    for (int64_t k = 0; k < M2_BLOCK_K; k++) {
        const float x = a && k < n ? m2_load(a, a_dtype, a_idx + k) : 0.0f;
        const float w = k < n ? m2_load(b, b_dtype, b_idx + k * b_stride) : 0.0f;
        chain[k & 1] = fmaf(x, w, chain[k & 1]);
    }
    return chain[0] + chain[1];
}

/* Add the products of n pairs to a sum, block by block. */
static inline void m2_sum_products(m2_sum *sum, const void *a, m2_dtype a_dtype, int64_t a_idx,
                                   const void *b, m2_dtype b_dtype, int64_t b_idx, int64_t b_stride,
                                   int64_t n)
{
    for (int64_t k = 0; k < n; k += M2_BLOCK_K)
        m2_sum_add(sum, m2_block_sum(a, a_dtype, a_idx + k, b, b_dtype, b_idx + k * b_stride,
                                     b_stride, n - k < M2_BLOCK_K ? n - k : M2_BLOCK_K));
}

#endif
