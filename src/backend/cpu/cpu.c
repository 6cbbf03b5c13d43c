#include "backend/cpu/cpu.h"

#include <string.h>

static const char *const isa_names[] = {
    [M2_ISA_REF] = "ref", [M2_ISA_AVX2] = "avx2", [M2_ISA_AVX512] = "avx512"
};

int m2_isa_parse(const char *name, m2_isa *isa_out)
{
    for (int i = 0; i < M2_ISA_BEST; i++) {
        if (strcmp(name, isa_names[i]) == 0) {
            *isa_out = (m2_isa)i;
            return 1;
        }
    }
    return 0;
}

const char *m2_isa_name(m2_isa isa)
{
    return isa == M2_ISA_BEST ? "best" : isa_names[isa];
}

m2_isa m2_isa_detect(void)
{
#if defined(__x86_64__)
    __builtin_cpu_init();
    if (!__builtin_cpu_supports("fma") || !__builtin_cpu_supports("avx2")) return M2_ISA_REF;
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
        __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl"))
        return M2_ISA_AVX512;
    return M2_ISA_AVX2;
#else
    return M2_ISA_REF;
#endif
}

m2_status m2_ops_init_cpu(m2_ops *ops, m2_pool *pool, m2_isa isa)
{
#if defined(__x86_64__)
    __builtin_cpu_init();
    if (!__builtin_cpu_supports("fma"))
        return m2_fail(
            M2_ERR_UNSUPPORTED,
            "this CPU has no FMA instructions; magi2 needs an x86-64 CPU of 2013 or later");
#endif
    const m2_isa best = m2_isa_detect();
    if (isa == M2_ISA_BEST) isa = best;
    if (isa > best)
        return m2_fail(M2_ERR_UNSUPPORTED, "this CPU cannot run --isa %s; its best is %s",
                       m2_isa_name(isa), m2_isa_name(best));
    *ops = (m2_ops){ .pool = pool };
    m2_ops_init_ref(ops);
#if defined(__x86_64__)
    if (isa >= M2_ISA_AVX2) m2_ops_init_avx2(ops);
    if (isa >= M2_ISA_AVX512) m2_ops_init_avx512(ops);
#endif
    ops->isa = m2_isa_name(isa);
    return M2_OK;
}
