/* cpu.h - the operator table on the CPU.
 *
 * m2_ops_init_cpu fills every slot from ref/ and then lets each faster instruction set that the
 * machine has and `isa` allows replace the slots it is better at.  All of them give the same bits.
 */
#ifndef M2_BACKEND_CPU_CPU_H
#define M2_BACKEND_CPU_CPU_H

#include "backend/ops.h"

typedef enum m2_isa {
    M2_ISA_REF = 0,
    M2_ISA_AVX2,   /* with FMA               */
    M2_ISA_AVX512, /* F, BW, DQ, VL          */
    M2_ISA_BEST    /* the best of the machine */
} m2_isa;

/* "ref", "avx2", "avx512"; 0 for an unknown name. */
int m2_isa_parse(const char *name, m2_isa *isa_out);
const char *m2_isa_name(m2_isa isa);
/* The best one that this machine and system can run. */
m2_isa m2_isa_detect(void);

/* `pool` is borrowed and may be NULL (one thread).
 * Errors  M2_ERR_UNSUPPORTED: the machine lacks `isa`, or (x86-64) lacks FMA. */
m2_status m2_ops_init_cpu(m2_ops *ops, m2_pool *pool, m2_isa isa);

/* Parts of it, one per folder. */
void m2_ops_init_ref(m2_ops *ops);
void m2_ops_init_avx2(m2_ops *ops);
void m2_ops_init_avx512(m2_ops *ops);

#endif
