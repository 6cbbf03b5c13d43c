/* product.h - many sums over K at once: rows x columns of a matrix product, a convolution, ...
 *
 * An operator says where rows of a and blocks of b come from and where sums go; the engine packs
 * them into a worker's scratch, 256 of K at a time, and runs the tiles.  No result depends on how
 * rows and columns were cut.
 */
#ifndef M2_BACKEND_CPU_LANES_PRODUCT_H
#define M2_BACKEND_CPU_LANES_PRODUCT_H

#include "backend/cpu/lanes/tile.h"

#define PRODUCT_ROWS    96  /* of one piece of work; a multiple of TILE_ROWS    */
#define PRODUCT_COLUMNS 128 /* likewise, of TILE_COLUMNS                        */
#define PRODUCT_BLOCKS  8   /* blocks of K packed at once: 16 KiB of b in cache */

typedef struct product {
    const void *context;
    int64_t n_blocks; /* of 32 along K                                          */
    int has_partials; /* the f32 rule: sums of 16 blocks gather in a partial    */
    /* Blocks [block, block + n_blocks) of one row as f32, each padded to 32. */
    void (*fill_a)(const void *context, int64_t row, int64_t block, int64_t n_blocks, float *to);
    /* One block of b for columns [column, column + n_columns), packed as tile.h says. */
    void (*fill_b)(const void *context, int64_t row, int64_t block, int64_t column,
                   int64_t n_columns, float *to);
    /* The finished sums of one row. */
    void (*store)(const void *context, int64_t row, int64_t column, int64_t n_columns,
                  const float *sums);
} product;

/* Bytes of a worker's scratch that the engine uses, from its beginning; the rest is the operator's. */
#define PRODUCT_SCRATCH ((size_t)512 << 10)

/* Rows [row, row + n_rows) and columns [column, column + n_columns), at most PRODUCT_ROWS and
 * PRODUCT_COLUMNS; all rows share the b that fill_b gives for the first of them. */
void M2_LANES_NAME(product_run)(const product *p, void *scratch, int64_t row, int64_t n_rows,
                                int64_t column, int64_t n_columns);

#endif
