/* simt_linear_swiglu7.cu - a product and its activation. */
#include "backend/gpu/launch.h"
#include "backend/joined.h"

extern "C" void m2_gpu_linear_swiglu7(const m2_ops *ops, const m2_linear_swiglu7_args *args)
{
    if (M2_GPU_TRY_SM90(linear_swiglu7, m2_gpu_of(ops), args)) return;
    m2_joined_linear_swiglu7(ops, args);
}
