/* simt_attention_gated.cu - attention and the gate of its heads. */
#include "backend/gpu/launch.h"
#include "backend/joined.h"

extern "C" void m2_gpu_attention_gated(const m2_ops *ops, const m2_attention_gated_args *args)
{
    struct m2_gpu *gpu = m2_gpu_of(ops);
    if (!gpu->prefers_dnn && M2_GPU_TRY_SM90(attention_gated, gpu, args)) return;
    m2_joined_attention_gated(ops, args);
}
