/* gpu_device.h - the GPU for tests: opened where the build has its code and the machine has one. */
#ifndef M2_TESTS_SUPPORT_GPU_DEVICE_H
#define M2_TESTS_SUPPORT_GPU_DEVICE_H

#include "backend/device.h"
#include "backend/gpu/gpu.h"

/* The name of the vendor that this build has code for, or NULL. */
const char *m2_test_gpu_vendor(void);

/* Errors  M2_ERR_UNSUPPORTED: the build has no code for a GPU, or the machine has no GPU. */
m2_status m2_test_gpu_open(const m2_gpu_params *params, m2_ops *ops, m2_gpu **gpu_out);
void m2_test_gpu_close(m2_gpu *gpu);

#endif
