/* simt_mhc_write_open.cu - the streams after a half layer, and what the next half reads. */
#include "backend/gpu/launch.h"
#include "backend/joined.h"

extern "C" void m2_gpu_mhc_write_open(const m2_ops *ops, const m2_mhc_write_open_args *args)
{
    if (M2_GPU_TRY_SM90(mhc_write_open, m2_gpu_of(ops), args)) return;
    m2_joined_mhc_write_open(ops, args);
}
