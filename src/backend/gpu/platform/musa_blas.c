/* musa_blas.c - blas.h on MUSA: our own kernels do every product. */
#include "backend/gpu/blas.h"

#include <stdio.h>

m2_gpu_blas *m2_gpu_blas_open(m2_gpu *gpu, char *text, size_t bytes)
{
    (void)gpu;
    snprintf(text, bytes, "own products");
    return NULL;
}

void m2_gpu_blas_close(m2_gpu_blas *blas)
{
    (void)blas;
}

int m2_gpu_blas_linear(m2_gpu *gpu, const m2_gpu_product *product)
{
    (void)gpu;
    (void)product;
    return 0;
}
