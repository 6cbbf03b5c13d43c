/* bench_threads.c - what starting and ending a parallel loop costs.
 *
 *   bench_threads [max threads]
 *
 * A region is one m2_parallel_for.  "empty" has nothing to do, and the caller need not wait for workers
 * that come too late; in "together" every thread waits for all others, so it tells how long it takes
 * until all are at work and the loop is over.  "at once" starts the next region as soon as one is
 * done, so the workers still spin; "after a pause" waits until they sleep.  Medians: on a machine that
 * does other work too, the mean is the other work's. */
#include "core/threads.h"

#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#define N_AT_ONCE     20000
#define N_AFTER_PAUSE 300
#define PAUSE_NS      500000

static void do_nothing(void *context, int64_t begin, int64_t end, int worker)
{
    (void)context;
    (void)begin;
    (void)end;
    (void)worker;
}

typedef struct meeting {
    atomic_int n_here;
    int n_wanted;
} meeting;

static void meet(void *context, int64_t begin, int64_t end, int worker)
{
    meeting *m = context;
    (void)begin;
    (void)end;
    (void)worker;
    atomic_fetch_add(&m->n_here, 1);
    /* Yielding now and then: the one that is waited for may need this CPU. */
    for (int i = 1; atomic_load(&m->n_here) < m->n_wanted; i++) {
        if (i % 1000 == 0) sched_yield();
    }
}

static double now_us(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec * 1e6 + (double)now.tv_nsec * 1e-3;
}

static int compare(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Microseconds of a region: {at 10 %, median, at 90 %}. */
static void measure(m2_pool *pool, int n_threads, int is_together, int n, long pause_ns,
                    double quantiles[3])
{
    double *times = malloc((size_t)n * sizeof *times);
    if (!times) abort();
    for (int i = 0; i < n; i++) {
        meeting m = { 0, n_threads };
        if (pause_ns) nanosleep(&(struct timespec){ .tv_nsec = pause_ns }, NULL);
        const double begin = now_us();
        if (is_together)
            m2_parallel_for(pool, n_threads, 1, meet, &m);
        else
            m2_parallel_for(pool, (int64_t)n_threads * 4, 1, do_nothing, NULL);
        times[i] = now_us() - begin;
    }
    qsort(times, (size_t)n, sizeof *times, compare);
    quantiles[0] = times[n / 10];
    quantiles[1] = times[n / 2];
    quantiles[2] = times[n - 1 - n / 10];
    free(times);
}

int main(int argc, char **argv)
{
    const int n_max = argc > 1 ? atoi(argv[1]) : m2_cpu_count();
    if (argc > 2 || n_max < 1 || n_max > M2_THREADS_MAX) {
        fprintf(stderr, "usage: bench_threads [max threads, 1 to %d]\n", M2_THREADS_MAX);
        return 2;
    }
    printf("%d CPUs; microseconds a region: at 10 %%, median, at 90 %%\n", m2_cpu_count());
    printf("threads  loop       at once                 after a pause\n");
    for (int n_threads = 1; n_threads <= n_max; n_threads++) {
        m2_pool *pool = NULL;
        if (m2_pool_create(n_threads, &pool) != M2_OK) {
            fprintf(stderr, "%s\n", m2_last_error());
            return 1;
        }
        for (int is_together = 0; is_together < 2; is_together++) {
            double a[3], b[3];
            measure(pool, n_threads, is_together, N_AT_ONCE, 0, a);
            measure(pool, n_threads, is_together, N_AFTER_PAUSE, PAUSE_NS, b);
            printf("%7d  %-8s  %6.2f %6.2f %6.2f    %6.1f %6.1f %6.1f\n", n_threads,
                   is_together ? "together" : "empty", a[0], a[1], a[2], b[0], b[1], b[2]);
        }
        m2_pool_destroy(pool);
    }
    return 0;
}
