/* simt_linear_add.cu - a product that joins a sum. */
#include "backend/gpu/launch.h"
#include "backend/joined.h"

extern "C" void m2_gpu_linear_add(const m2_ops *ops, const m2_linear_add_args *args)
{
    m2_joined_linear_add(ops, args);
}
