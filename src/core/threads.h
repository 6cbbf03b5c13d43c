/* threads.h - a pool of workers that share one loop at a time.
 *
 * The split of a loop depends on the caller's `chunk` alone, never on the number of threads, and
 * every chunk is computed alone: so results have the same bits for any number of threads.  Workers
 * spin for some microseconds after a loop when every worker has a CPU of its own, then sleep; a loop
 * does not wait for a worker that comes when all items are taken.
 *
 * Floating point  while a loop runs, every worker and the calling thread flush denormals to zero
 *                 (FTZ and DAZ); the caller's mode is restored before m2_parallel_for returns.
 * Threads         one loop at a time; a loop must not start another on the same pool.
 */
#ifndef M2_CORE_THREADS_H
#define M2_CORE_THREADS_H

#include <stddef.h>
#include <stdint.h>

#include "core/status.h"

/* Each worker's own scratch memory, aligned to 64 bytes: for packed panels and partial sums. */
#define M2_WORKER_SCRATCH_BYTES ((size_t)8 << 20)
#define M2_THREADS_MAX          1024

typedef struct m2_pool m2_pool;

/* CPUs this process may use: its affinity mask, cut by the CPU quota of its cgroups (rounded up);
 * 1 to M2_THREADS_MAX. */
int m2_cpu_count(void);

/* n_threads counts the caller; 0 means m2_cpu_count().
 * Errors  M2_ERR_ARG (outside 0 ... M2_THREADS_MAX), M2_ERR_MEMORY, M2_ERR_INTERNAL */
m2_status m2_pool_create(int n_threads, m2_pool **pool_out);
void m2_pool_destroy(m2_pool *pool);
int m2_pool_n_threads(const m2_pool *pool);

/* [M2_WORKER_SCRATCH_BYTES], for worker 0 ... n_threads - 1; contents do not survive a loop. */
void *m2_pool_scratch(m2_pool *pool, int worker);

/* Work on items [begin, end) of the loop; begin is a multiple of the loop's chunk. */
typedef void m2_loop_body(void *context, int64_t begin, int64_t end, int worker);

/* Run `body` over [0, n_items) in chunks of `chunk` items (>= 1) on all workers; returns when all
 * is done.  `pool` may be NULL: then the caller does everything (scratch is not to be had). */
void m2_parallel_for(m2_pool *pool, int64_t n_items, int64_t chunk, m2_loop_body *body,
                     void *context);

#endif
