/* blas.h - the vendor's matrix library, opened at run time if it is there.
 *
 * One algorithm per weight shape and types, found once and kept: never chosen by the number of rows,
 * without split K, so that the bits of a row do not depend on its neighbours.
 */
#ifndef M2_BACKEND_GPU_BLAS_H
#define M2_BACKEND_GPU_BLAS_H

#include "backend/gpu/launch.h"

typedef struct m2_gpu_blas m2_gpu_blas;

/* NULL with the reason in `text` if there is none, else its name and version. */
m2_gpu_blas *m2_gpu_blas_open(m2_gpu *gpu, char *text, size_t bytes);
void m2_gpu_blas_close(m2_gpu_blas *blas);

typedef struct m2_gpu_product {
    int64_t n, k, out; /* y [n, out] = x [n, k] . w [out, k]^T (+ bias [out]) */
    const void *x, *w, *bias;
    void *y;
    m2_dtype dtype, y_dtype, bias_dtype; /* of x and w; of y */
} m2_gpu_product;

/* 1 when it is on the stream, 0 when the library has nothing for these shapes. */
int m2_gpu_blas_linear(m2_gpu *gpu, const m2_gpu_product *product);

/* Our own kernel, for every shape (kernels/simt_linear.cu). */
void m2_gpu_linear_own(m2_gpu *gpu, const m2_linear_args *args);

#endif
