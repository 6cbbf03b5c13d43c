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

/* The program, its libraries and the video encoder: measured 85 MiB for the demo clip. */
#define M2_MEMORY_PROGRAM_BYTES ((size_t)96 << 20)

/* What a plan adds up to, in bytes. */
typedef struct m2_memory_plan {
    size_t mapped; /* weights read in place: the system may drop and read them again */
    size_t copied; /* weights that had to be converted                              */
    size_t wanted; /* the clip: what is still to be taken                           */
} m2_memory_plan;

/* Errors  M2_ERR_MEMORY: needed, free or allowed (limit, 0 for none), and what to try */
m2_status m2_memory_check(const m2_memory_plan *plan, size_t limit);

#endif
