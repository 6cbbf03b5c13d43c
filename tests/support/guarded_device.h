/* guarded_device.h - a device that needs no card: the CPU's operators over memory that the host
 * cannot touch outside of them.
 *
 * What follows a device pointer on the host dies at once, and what takes host memory for a device's
 * is told; so every path for GPUs can be tried on any machine, with the CPU's bits as the result.
 */
#ifndef M2_TESTS_SUPPORT_GUARDED_DEVICE_H
#define M2_TESTS_SUPPORT_GUARDED_DEVICE_H

#include "backend/device.h"

typedef struct m2_guarded m2_guarded;

/* `pool` is borrowed.  One at a time in a process. */
m2_status m2_guarded_open(m2_pool *pool, m2_guarded **guarded_out);
/* From now on the last value of an operator's first result is wrong: for tests of tests. */
void m2_guarded_spoil(m2_guarded *guarded);
void m2_guarded_close(m2_guarded *guarded);
void m2_ops_init_guarded(m2_ops *ops, m2_guarded *guarded);

#endif
