/* no_dnn.c - dnn.h on MUSA and where cuDNN's headers are missing: our own kernels do every attention. */
#include "backend/gpu/dnn.h"

#include <stdio.h>

#if defined(MAGI2_GPU_MUSA)
#define WHY_NOT "own attention"
#elif !__has_include(<cudnn.h>)
#define WHY_NOT "built without cuDNN's headers"
#endif

#if defined(WHY_NOT)

m2_gpu_dnn *m2_gpu_dnn_open(m2_gpu *gpu, int is_wanted, char *text, size_t bytes)
{
    (void)gpu;
    (void)is_wanted;
    snprintf(text, bytes, "%s", WHY_NOT);
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

#endif
