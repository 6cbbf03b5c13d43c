#include "backend/cpu/cpu.h"

#if defined(M2_LANES_avx512)
void m2_ops_init_avx512(m2_ops *ops)
#else
void m2_ops_init_avx2(m2_ops *ops)
#endif
{
    (void)ops;
}
