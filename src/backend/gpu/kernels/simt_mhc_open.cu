/* simt_mhc_open.cu - coefficients, then the read: two passes over the streams. */
#include "backend/gpu/launch.h"
#include "backend/joined.h"

extern "C" void m2_gpu_mhc_open(const m2_ops *ops, const m2_mhc_open_args *args)
{
    if (M2_GPU_TRY_SM90(mhc_open, m2_gpu_of(ops), args)) return;
    m2_joined_mhc_open(ops, args);
}
