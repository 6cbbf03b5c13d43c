#include "backend/cpu/lanes/product.h"

#include <assert.h>

#include "core/threads.h"

/* A little more than 256, so that rows do not fall on the same cache lines. */
#define A_STRIDE (PRODUCT_BLOCKS * TILE_K + LANES)
/* Blocks after which a partial of the f32 rule joins its total. */
#define PARTIAL_BLOCKS 16

typedef struct product_memory {
    float sums[PRODUCT_ROWS * PRODUCT_COLUMNS];
    float totals[PRODUCT_ROWS * PRODUCT_COLUMNS]; /* of the f32 rule; sums are the partials then */
    float a[PRODUCT_ROWS * A_STRIDE];
    float b[PRODUCT_BLOCKS * TILE_B];
} product_memory;

_Static_assert(sizeof(product_memory) <= PRODUCT_SCRATCH, "scratch is too small");
_Static_assert(PRODUCT_ROWS % TILE_ROWS == 0 && PRODUCT_COLUMNS % TILE_COLUMNS == 0, "tiles");
_Static_assert(PARTIAL_BLOCKS % PRODUCT_BLOCKS == 0, "partials end with a chunk");

static void join_partials(product_memory *m, int64_t n_rows, int64_t n_columns)
{
    for (int64_t r = 0; r < n_rows; r++) {
        for (int64_t c = 0; c < n_columns; c += LANES) {
            float *sum = m->sums + r * PRODUCT_COLUMNS + c;
            float *total = m->totals + r * PRODUCT_COLUMNS + c;
            v_store(total, v_add(v_load(total), v_load(sum)));
            v_store(sum, v_zero());
        }
    }
}

void M2_LANES_NAME(product_run)(const product *p, void *scratch, int64_t row, int64_t n_rows,
                                int64_t column, int64_t n_columns)
{
    assert(n_rows <= PRODUCT_ROWS && n_columns <= PRODUCT_COLUMNS);
    product_memory *m = scratch;
    const int64_t tile_rows = (n_rows + TILE_ROWS - 1) / TILE_ROWS * TILE_ROWS;
    const int64_t tile_columns = (n_columns + TILE_COLUMNS - 1) / TILE_COLUMNS * TILE_COLUMNS;
    memset(m->sums, 0, (size_t)(tile_rows * PRODUCT_COLUMNS) * sizeof(float));
    if (p->has_partials)
        memset(m->totals, 0, (size_t)(tile_rows * PRODUCT_COLUMNS) * sizeof(float));
    memset(m->a + n_rows * A_STRIDE, 0, (size_t)((tile_rows - n_rows) * A_STRIDE) * sizeof(float));

    for (int64_t block = 0; block < p->n_blocks; block += PRODUCT_BLOCKS) {
        const int64_t left = p->n_blocks - block;
        const int64_t n = left < PRODUCT_BLOCKS ? left : PRODUCT_BLOCKS;
        for (int64_t r = 0; r < n_rows; r++)
            p->fill_a(p->context, row + r, block, n, m->a + r * A_STRIDE);
        for (int64_t c = 0; c < tile_columns; c += TILE_COLUMNS) {
            const int64_t rest = n_columns - c;
            for (int64_t i = 0; i < n; i++)
                p->fill_b(p->context, row, block + i, column + c,
                          rest < TILE_COLUMNS ? rest : TILE_COLUMNS, m->b + i * TILE_B);
            for (int64_t r = 0; r < tile_rows; r += TILE_ROWS)
                tile_product(m->a + r * A_STRIDE, A_STRIDE, m->b, n,
                             m->sums + r * PRODUCT_COLUMNS + c, PRODUCT_COLUMNS);
        }
        if (p->has_partials && ((block + n) % PARTIAL_BLOCKS == 0 || block + n == p->n_blocks))
            join_partials(m, tile_rows, tile_columns);
    }
    for (int64_t r = 0; r < n_rows; r++)
        p->store(p->context, row + r, column, n_columns,
                 (p->has_partials ? m->totals : m->sums) + r * PRODUCT_COLUMNS);
}
