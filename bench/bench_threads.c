/* bench_threads.c - what starting and ending a parallel loop costs.
 *
 *   bench_threads [max threads]
 *
 * A region is one m2_parallel_for of an empty body.  "at once" starts the next region as soon as one
 * is done, so the workers still spin; "after a pause" waits until they sleep.  Medians: on a machine
 * that does other work too, the mean is the other work's. */
#include "core/threads.h"

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
static void measure(m2_pool *pool, int n_threads, int n, long pause_ns, double quantiles[3])
{
    double *times = malloc((size_t)n * sizeof *times);
    if (!times) abort();
    for (int i = 0; i < n; i++) {
        if (pause_ns) nanosleep(&(struct timespec){ .tv_nsec = pause_ns }, NULL);
        const double begin = now_us();
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
    printf("threads   at once                 after a pause\n");
    for (int n_threads = 1; n_threads <= n_max; n_threads++) {
        m2_pool *pool = NULL;
        double at_once[3], after_pause[3];
        if (m2_pool_create(n_threads, &pool) != M2_OK) {
            fprintf(stderr, "%s\n", m2_last_error());
            return 1;
        }
        measure(pool, n_threads, N_AT_ONCE, 0, at_once);
        measure(pool, n_threads, N_AFTER_PAUSE, PAUSE_NS, after_pause);
        printf("%7d   %6.2f %6.2f %6.2f    %6.1f %6.1f %6.1f\n", n_threads, at_once[0], at_once[1],
               at_once[2], after_pause[0], after_pause[1], after_pause[2]);
        m2_pool_destroy(pool);
    }
    return 0;
}
