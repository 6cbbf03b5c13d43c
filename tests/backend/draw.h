/* draw.h - random cases of every operator.
 *
 * Each operator has a function that draws one case and runs it on a table; drawn again from the
 * same seed it gives the same case.
 */
#ifndef M2_TESTS_BACKEND_DRAW_H
#define M2_TESTS_BACKEND_DRAW_H

#include "backend/random_case.h"

/* Draws the case and runs it; *y_out is what has to agree. */
typedef void draw_and_run(random_case *c, const m2_ops *ops, m2_tensor *y_out);

#define DRAW_DECLARE_(name) draw_and_run draw_##name;
M2_OPS(DRAW_DECLARE_)
#undef DRAW_DECLARE_

/* Small counts often, larger ones now and then, and the edges of blocks. */
int64_t draw_size(random_case *c, int64_t largest);
m2_dtype draw_act(random_case *c);
m2_dtype turn_act(random_case *c);
/* Kinds 0 ... of a row: a multiple of eight above most[kind - 1] and up to most[kind], which kernels
 * that move eight values at a time tell apart; kind n_most: any length up to `largest`. */
int64_t draw_width_of(random_case *c, int64_t kind, const int64_t *most, int64_t n_most,
                      int64_t largest);
#define draw_width(c, kind, most, largest)                                                         \
    draw_width_of((c), (kind), (most), (int64_t)(sizeof(most) / sizeof((most)[0])), (largest))
/* Of a head that turns 3/4 of its dims: short and long, and with whole eights of pairs or not. */
int64_t draw_head_dim(random_case *c);
/* One to three groups over n rows, some of them empty. */
m2_groups draw_groups(random_case *c, int64_t n);
/* The numbers 0 ... n - 1 in some order, i32. */
m2_tensor draw_order(random_case *c, int64_t n);

/* Random values; now and then a zero row, denormals, an infinity, unless the case is plain. */
m2_tensor drawn(random_case *c, float scale, m2_tensor tensor);
#define draw_tensor(c, dtype, scale, ...)                                                          \
    drawn((c), (scale), m2_tensor_make(&(c)->arena, (dtype), __VA_ARGS__))

#endif
