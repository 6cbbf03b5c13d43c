/* mirror_ops.h - a device's operator table for tensors that stand on the host: every call takes its
 * tensors to the device, runs there, waits, and brings back what was written.
 *
 * It also sees what a kernel may not do.  Outputs are filled with ones first, so that what stays
 * unwritten shows; inputs must come back unchanged, and so must the bytes around every tensor.
 * Tensors keep their alignment modulo 64 unless shifted, and tensors that share memory share it on the device.
 *
 *     check_ok(m2_mirror_open(&device_ops, &mirror));
 *     m2_ops_init_mirror(&ops, mirror);
 *     ops.linear(&ops, &(m2_linear_args){ .x = &x ... });
 *     assert_null(m2_mirror_fault(mirror));
 */
#ifndef M2_TESTS_SUPPORT_MIRROR_OPS_H
#define M2_TESTS_SUPPORT_MIRROR_OPS_H

#include "backend/device.h"

typedef struct m2_mirror m2_mirror;

/* `device` is borrowed. */
m2_status m2_mirror_open(const m2_ops *device, m2_mirror **mirror_out);
void m2_mirror_close(m2_mirror *mirror);
/* Every tensor in an allocation of its own, where a memory checker sees each one's end. */
void m2_mirror_use_own_memory(m2_mirror *mirror);
/* On: tensors stand one element further on the device than on the host, where nothing is aligned to
 * more than an element. */
void m2_mirror_shift(m2_mirror *mirror, int is_on);

/* The table works through `mirror`, which must outlive it. */
void m2_ops_init_mirror(m2_ops *ops, m2_mirror *mirror);

/* The first fault since the last asking, or NULL: the device's own, a byte written outside of the
 * outputs.  Valid until the next call of an operator. */
const char *m2_mirror_fault(m2_mirror *mirror);

#endif
