/* absent.c - gpu.h in a build for the CPU alone. */
#include "backend/gpu/gpu.h"

#include <stdio.h>

#define ADVICE "this build has no GPU backend; `./run build cuda` makes one"

const char *m2_gpu_vendor(void)
{
    return "";
}

int m2_gpu_count(char *text, size_t bytes)
{
    snprintf(text, bytes, ADVICE);
    return 0;
}

m2_status m2_gpu_open(const m2_gpu_params *params, m2_gpu **gpu_out)
{
    (void)params;
    *gpu_out = NULL;
    return m2_fail(M2_ERR_UNSUPPORTED, ADVICE);
}

void m2_gpu_close(m2_gpu *gpu)
{
    (void)gpu;
}

void m2_ops_init_gpu(m2_ops *ops, m2_gpu *gpu)
{
    (void)gpu;
    m2_ops_init_measure(ops); /* never reached: there is no gpu to give */
}

const char *m2_gpu_banner(const m2_gpu *gpu)
{
    (void)gpu;
    return "";
}
