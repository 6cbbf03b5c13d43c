/* musa_dnn.c - dnn.h on MUSA: our own kernel does every attention. */
#include "backend/gpu/dnn.h"

#include <stdio.h>

m2_gpu_dnn *m2_gpu_dnn_open(m2_gpu *gpu, int is_wanted, char *text, size_t bytes)
{
    (void)gpu;
    (void)is_wanted;
    snprintf(text, bytes, "own attention");
    return NULL;
}

void m2_gpu_dnn_close(m2_gpu_dnn *dnn)
{
    (void)dnn;
}

int m2_gpu_dnn_attend(m2_gpu *gpu, const m2_gpu_heads *heads)
{
    (void)gpu;
    (void)heads;
    return 0;
}
