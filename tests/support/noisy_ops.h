/* noisy_ops.h - the CPU's operators with every f32 result off by up to half a unit of its last place,
 * at random: each run is what another right implementation might have given.
 *
 * How far the results of a network spread tells how well its input is conditioned.
 */
#ifndef M2_TESTS_SUPPORT_NOISY_OPS_H
#define M2_TESTS_SUPPORT_NOISY_OPS_H

#include "backend/ops.h"
#include "support/check.h"

typedef struct m2_noisy {
    m2_ops cpu;
    m2_test_random random;
} m2_noisy;

/* The table works through `noisy`, which must outlive it. */
void m2_ops_init_noisy(m2_ops *ops, m2_noisy *noisy, const m2_ops *cpu, uint64_t seed);

#endif
