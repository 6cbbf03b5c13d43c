/* simt_linear_qk_norm_rope.cu - the product of queries, keys and values, then norms and rotation. */
#include "backend/gpu/launch.h"
#include "backend/joined.h"

extern "C" void m2_gpu_linear_qk_norm_rope(const m2_ops *ops, const m2_linear_qk_norm_rope_args *args)
{
    if (M2_GPU_TRY_SM90(linear_qk_norm_rope, m2_gpu_of(ops), args)) return;
    m2_joined_linear_qk_norm_rope(ops, args);
}
