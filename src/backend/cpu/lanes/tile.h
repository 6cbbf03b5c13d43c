/* tile.h - the inner loop of every product: TILE_ROWS x TILE_COLUMNS sums over blocks of 32.
 *
 * The order is that of cpu/ref/product.h: chains over the even and over the odd k of a block, then
 * their sum.  The even chains fill the registers, are set aside, and the odd ones follow: that
 * costs a store and an addition for sixteen FMAs.
 *
 *   a  rows of f32, `stride` apart, 32 values a block
 *   b  [32][TILE_COLUMNS] f32 a block
 */
#ifndef M2_BACKEND_CPU_LANES_TILE_H
#define M2_BACKEND_CPU_LANES_TILE_H

#include "backend/cpu/lanes/lanes.h"

#define TILE_K       32
#define TILE_COLUMNS (TILE_VECTORS * LANES)
#define TILE_B       (TILE_K * TILE_COLUMNS) /* floats of one packed block */

typedef struct tile {
    v16 at[TILE_ROWS][TILE_VECTORS];
} tile;

/* One chain for each element, over k = first, first + 2 ... first + 30. */
static inline __attribute__((always_inline)) tile tile_chain(const float *a, int64_t stride,
                                                             const float *b, int first)
{
    tile t;
    LANES_UNROLL for (int r = 0; r < TILE_ROWS; r++)
        LANES_UNROLL for (int v = 0; v < TILE_VECTORS; v++) t.at[r][v] = v_zero();
    for (int k = first; k < TILE_K; k += 2) {
        v16 w[TILE_VECTORS];
        LANES_UNROLL for (int v = 0; v < TILE_VECTORS; v++) w[v] =
            v_load(b + k * TILE_COLUMNS + v * LANES);
        LANES_UNROLL for (int r = 0; r < TILE_ROWS; r++)
        {
            const v16 x = v_set1(a[r * stride + k]);
            LANES_UNROLL for (int v = 0; v < TILE_VECTORS; v++) t.at[r][v] =
                v_fma(x, w[v], t.at[r][v]);
        }
    }
    return t;
}

/* E + O of one block. */
static inline __attribute__((always_inline)) tile tile_block(const float *a, int64_t stride,
                                                             const float *b)
{
    const tile even = tile_chain(a, stride, b, 0);
    tile sum = tile_chain(a, stride, b, 1);
    LANES_UNROLL for (int r = 0; r < TILE_ROWS; r++)
        LANES_UNROLL for (int v = 0; v < TILE_VECTORS; v++)
            sum.at[r][v] = v_add(even.at[r][v], sum.at[r][v]);
    return sum;
}

/* c = c + (E + O), block by block; rows of c are c_stride apart. */
static inline void tile_product(const float *a, int64_t stride, const float *b, int64_t n_blocks,
                                float *c, int64_t c_stride)
{
    for (int64_t block = 0; block < n_blocks; block++) {
        const tile sum = tile_block(a + block * TILE_K, stride, b + block * TILE_B);
        LANES_UNROLL for (int r = 0; r < TILE_ROWS; r++)
            LANES_UNROLL for (int v = 0; v < TILE_VECTORS; v++)
        {
            float *to = c + r * c_stride + v * LANES;
            v_store(to, v_add(v_load(to), sum.at[r][v]));
        }
    }
}

/* Pack one block of b.  "columns": each output's k are contiguous, outputs `stride` elements
 * apart; "rows": each k's outputs are contiguous, k `stride` apart.  What is missing becomes 0. */
void M2_LANES_NAME(pack_columns)(const void *from, m2_dtype dtype, int64_t first, int64_t stride,
                                 int64_t n_k, int64_t n_columns, float *to);
void M2_LANES_NAME(pack_rows)(const void *from, m2_dtype dtype, int64_t first, int64_t stride,
                              int64_t n_k, int64_t n_columns, float *to);
/* n values widened to f32, zeros up to the next multiple of 32. */
void M2_LANES_NAME(widen)(const void *from, m2_dtype dtype, int64_t first, int64_t n, float *to);

#endif
