#include "backend/cpu/cpu.h"
#include "backend/cpu/lanes/ops.h"

#if defined(M2_LANES_avx512)
void m2_ops_init_avx512(m2_ops *ops)
#else
void m2_ops_init_avx2(m2_ops *ops)
#endif
{
#define SET_SLOT(name) ops->name = M2_LANES_NAME(name);
    M2_LANES_OPS(SET_SLOT)
#undef SET_SLOT
}
