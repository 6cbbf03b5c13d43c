/* memory.h - what the process uses, and whether a plan fits the machine. */
#ifndef M2_PIPELINE_MEMORY_H
#define M2_PIPELINE_MEMORY_H

#include "core/status.h"

#include <stddef.h>

/* Resident set of this process, now and at most, in bytes; 0 if the system does not say. */
size_t m2_memory_resident(void);
size_t m2_memory_peak(void);
/* Bytes that can still be taken: of the machine, or of the cgroup if that is less. */
size_t m2_memory_available(void);

/* Errors  M2_ERR_MEMORY: needed, free or allowed, and what to try.
 *   resident  already taken by this engine (counts against the limit alone)
 *   wanted    still to be taken
 *   limit     0: none */
m2_status m2_memory_check(size_t resident, size_t wanted, size_t limit);

#endif
