/* company.h - makes sure that a parallel loop of a test is run by more than its caller, who on a busy
 * machine could be done before any worker wakes. */
#ifndef M2_TESTS_SUPPORT_COMPANY_H
#define M2_TESTS_SUPPORT_COMPANY_H

#include <sched.h>
#include <stdatomic.h>
#include <time.h>

/* Called by every body with its worker's number; comes back once two workers have called, or after
 * ten seconds.  `seen` starts at 0, one for a loop; the loop needs two items and two threads. */
static inline void m2_test_wait_for_company(atomic_uint *seen, int worker)
{
    struct timespec begin, now;
    clock_gettime(CLOCK_MONOTONIC, &begin);
    unsigned all = atomic_fetch_or(seen, 1u << worker) | 1u << worker;
    while ((all & (all - 1)) == 0) {
        sched_yield();
        all = atomic_load(seen);
        clock_gettime(CLOCK_MONOTONIC, &now);
        if (now.tv_sec - begin.tv_sec > 10) return;
    }
}

/* 1 if two workers have been there. */
static inline int m2_test_had_company(const atomic_uint *seen)
{
    const unsigned all = atomic_load(seen);
    return (all & (all - 1)) != 0;
}

#endif
