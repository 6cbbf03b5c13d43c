/* tensor.h - a pointer with a type and a shape.
 *
 * Outermost dimension first, the last one contiguous, no strides.  A tensor owns nothing: its
 * memory belongs to an arena or a mapped file.  `data` may be a device address.
 */
#ifndef M2_CORE_TENSOR_H
#define M2_CORE_TENSOR_H

#include <stdint.h>

#include "core/arena.h"
#include "core/dtype.h"

#define M2_MAX_DIMS 6

typedef struct m2_tensor {
    void *data;
    m2_dtype dtype;
    int n_dims;                 /* 0 for a scalar */
    int64_t shape[M2_MAX_DIMS]; /* [n_dims]       */
} m2_tensor;

int64_t m2_tensor_count(const m2_tensor *tensor);
size_t m2_tensor_bytes(const m2_tensor *tensor);
/* Shape in words, "[8, 16]", into `text`; gives back `text`. */
char *m2_tensor_shape_text(const m2_tensor *tensor, char *text, size_t bytes);

m2_tensor m2_tensor_wrap(void *data, m2_dtype dtype, int n_dims, const int64_t *shape);
m2_tensor m2_tensor_new(m2_arena *arena, m2_dtype dtype, int n_dims, const int64_t *shape);

/* m2_tensor_make(arena, M2_BF16, n_tokens, 3, 128), m2_tensor_over(pointer, M2_F32, 7) */
#define M2_DIMS_(...)   ((const int64_t[]){ __VA_ARGS__ })
#define M2_N_DIMS_(...) ((int)(sizeof(M2_DIMS_(__VA_ARGS__)) / sizeof(int64_t)))
#define m2_tensor_make(arena, dtype, ...)                                                          \
    m2_tensor_new((arena), (dtype), M2_N_DIMS_(__VA_ARGS__), M2_DIMS_(__VA_ARGS__))
#define m2_tensor_over(data, dtype, ...)                                                           \
    m2_tensor_wrap((data), (dtype), M2_N_DIMS_(__VA_ARGS__), M2_DIMS_(__VA_ARGS__))

/* Rows [begin, end) of the outermost dimension, the same memory. */
m2_tensor m2_tensor_rows(const m2_tensor *tensor, int64_t begin, int64_t end);

#endif
