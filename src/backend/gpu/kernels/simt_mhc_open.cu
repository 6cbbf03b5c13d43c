/* simt_mhc_open.cu - coefficients, then the read: two passes over the streams. */
#include "backend/gpu/launch.h"

extern "C" void m2_gpu_mhc_open(const m2_ops *ops, const m2_mhc_open_args *args)
{
    m2_mhc_read_args read;
    if (M2_GPU_TRY_SM90(mhc_open, m2_gpu_of(ops), args)) return;
    read.s = args->coefficients.s;
    read.h_pre = args->coefficients.h_pre;
    read.x = args->x;
    ops->mhc_coefficients(ops, &args->coefficients);
    ops->mhc_read(ops, &read);
}
