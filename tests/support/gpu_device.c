#include "support/gpu_device.h"

#if defined(MAGI2_WITH_GPU)

const char *m2_test_gpu_vendor(void)
{
#if defined(MAGI2_GPU_MUSA)
    return "musa";
#else
    return "cuda";
#endif
}

m2_status m2_test_gpu_open(const m2_gpu_params *params, m2_ops *ops, m2_gpu **gpu_out)
{
    M2_TRY(m2_gpu_open(params, gpu_out));
    m2_ops_init_gpu(ops, *gpu_out);
    return M2_OK;
}

void m2_test_gpu_close(m2_gpu *gpu)
{
    m2_gpu_close(gpu);
}

#else

const char *m2_test_gpu_vendor(void)
{
    return NULL;
}

m2_status m2_test_gpu_open(const m2_gpu_params *params, m2_ops *ops, m2_gpu **gpu_out)
{
    (void)params;
    (void)ops;
    (void)gpu_out;
    return m2_fail(M2_ERR_UNSUPPORTED, "this build has no code for a GPU");
}

void m2_test_gpu_close(m2_gpu *gpu)
{
    (void)gpu;
}

#endif
