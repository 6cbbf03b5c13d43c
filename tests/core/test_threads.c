#include "support/check.h"
#include "support/company.h"
#include "support/dies.h"

#include "core/threads.h"

#include <fenv.h>
#include <math.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

typedef struct count_loop {
    atomic_int *visits; /* [n_items] */
    int64_t n_items, chunk;
    int n_threads;
    atomic_int n_faults;
} count_loop;

static void count_items(void *context, int64_t begin, int64_t end, int worker)
{
    count_loop *loop = context;
    const int64_t left = loop->n_items - begin;
    if (begin % loop->chunk != 0 || end - begin != (left < loop->chunk ? left : loop->chunk) ||
        worker < 0 || worker >= loop->n_threads)
        atomic_fetch_add(&loop->n_faults, 1);
    for (int64_t i = begin; i < end; i++) atomic_fetch_add(&loop->visits[i], 1);
}

/* Catches items lost or done twice at the ends of chunks, and a split that depends on the number of
 * threads: every body must see [k chunk, (k + 1) chunk). */
static void every_item_is_done_once_for_any_split(void **state)
{
    (void)state;
    static const int n_threads[] = { 1, 2, 3, 8, 33 };
    static const int64_t n_items[] = { 0, 1, 2, 3, 63, 64, 65, 1000 };
    static const int64_t chunks[] = { 1, 2, 3, 7, 64, 999, 1000, 1001, INT64_MAX };
    for (int t = 0; t < 6; t++) {
        m2_pool *pool = NULL; /* the last round has none */
        if (t < 5) check_ok(m2_pool_create(n_threads[t], &pool));
        for (size_t n = 0; n < 8; n++) {
            for (size_t c = 0; c < 9; c++) {
                atomic_int visits[1000] = { 0 };
                count_loop loop = { visits, n_items[n], chunks[c], m2_pool_n_threads(pool), 0 };
                m2_parallel_for(pool, n_items[n], chunks[c], count_items, &loop);
                assert_int_equal(loop.n_faults, 0);
                for (int64_t i = 0; i < 1000; i++)
                    assert_int_equal(visits[i], i < n_items[n] ? 1 : 0);
            }
        }
        m2_pool_destroy(pool);
    }
}

typedef struct sum_loop {
    const float *x;
    float *partial; /* one a chunk */
    int64_t chunk;
} sum_loop;

static void sum_chunk(void *context, int64_t begin, int64_t end, int worker)
{
    (void)worker;
    const sum_loop *loop = context;
    float sum = 0;
    for (int64_t i = begin; i < end; i++) sum += loop->x[i];
    loop->partial[begin / loop->chunk] = sum;
}

/* Sums of chunks have the same bits for any number of threads, above the CPUs too. */
static void results_have_the_same_bits_for_any_number_of_threads(void **state)
{
    (void)state;
    enum { N = 100000, CHUNK = 97, N_CHUNKS = (N + CHUNK - 1) / CHUNK };
    static float x[N], expected[N_CHUNKS], got[N_CHUNKS];
    m2_test_random random = { 3 };
    for (int i = 0; i < N; i++) x[i] = m2_test_random_normal(&random);
    m2_parallel_for(NULL, N, CHUNK, sum_chunk, &(sum_loop){ x, expected, CHUNK });
    for (int n_threads = 1; n_threads <= 64; n_threads = n_threads * 2 + 1) {
        m2_pool *pool = NULL;
        check_ok(m2_pool_create(n_threads, &pool));
        for (int repeat = 0; repeat < 20; repeat++) {
            memset(got, 0xff, sizeof got);
            m2_parallel_for(pool, N, CHUNK, sum_chunk, &(sum_loop){ x, got, CHUNK });
            assert_memory_equal(got, expected, sizeof got);
        }
        m2_pool_destroy(pool);
    }
}

static void do_nothing(void *context, int64_t begin, int64_t end, int worker)
{
    (void)context;
    (void)begin;
    (void)end;
    (void)worker;
}

static double seconds(clockid_t clock)
{
    struct timespec now;
    clock_gettime(clock, &now);
    return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

static void sleep_for(double time)
{
    const struct timespec pause = { .tv_sec = (time_t)time,
                                    .tv_nsec = (long)((time - floor(time)) * 1e9) };
    nanosleep(&pause, NULL);
}

/* Catches a wake that is lost between a worker's look and its sleep: the test would hang. */
static void a_hundred_thousand_empty_loops_end(void **state)
{
    (void)state;
    static const int n_threads[] = { 2, 5 };
    for (int t = 0; t < 2; t++) {
        m2_pool *pool = NULL;
        check_ok(m2_pool_create(n_threads[t], &pool));
        const int n_loops = t == 0 ? 100000 : 10000;
        for (int i = 0; i < n_loops; i++) m2_parallel_for(pool, 8, 1, do_nothing, NULL);
        m2_pool_destroy(pool);
    }
}

/* Loops at random distances meet workers that spin, fall asleep, and sleep. */
static void loops_after_pauses_of_any_length_end(void **state)
{
    (void)state;
    m2_test_random random = { 4 };
    m2_pool *pool = NULL;
    check_ok(m2_pool_create(m2_cpu_count() > 1 ? 2 : 3, &pool));
    const double end = seconds(CLOCK_MONOTONIC) + 1.5;
    while (seconds(CLOCK_MONOTONIC) < end) {
        atomic_int visits[64] = { 0 };
        count_loop loop = { visits, 64, 1, m2_pool_n_threads(pool), 0 };
        m2_parallel_for(pool, 64, 1, count_items, &loop);
        for (int i = 0; i < 64; i++) assert_int_equal(visits[i], 1);
        const double until = seconds(CLOCK_MONOTONIC) + m2_test_random_uniform(&random, 0, 120e-6f);
        while (seconds(CLOCK_MONOTONIC) < until) continue;
    }
    m2_pool_destroy(pool);
}

/* Catches workers that spin for ever: 7 of them would burn 7 CPU seconds a second. */
static void idle_workers_sleep(void **state)
{
    (void)state;
    m2_pool *pools[2] = { NULL, NULL };
    check_ok(m2_pool_create(m2_cpu_count(), &pools[0])); /* these may spin, shortly */
    check_ok(m2_pool_create(8, &pools[1]));
    for (int i = 0; i < 2; i++) m2_parallel_for(pools[i], 100, 1, do_nothing, NULL);
    sleep_for(0.05);
    const double before = seconds(CLOCK_PROCESS_CPUTIME_ID);
    sleep_for(0.5);
    const double used = seconds(CLOCK_PROCESS_CPUTIME_ID) - before;
    for (int i = 0; i < 2; i++) m2_pool_destroy(pools[i]);
    assert_true(used < 0.02); /* of 0.5; measured: below 0.001 */
}

typedef struct slow_loop {
    atomic_uint seen;
    atomic_int n_done;
} slow_loop;

static void be_slow_elsewhere(void *context, int64_t begin, int64_t end, int worker)
{
    slow_loop *loop = context;
    m2_test_wait_for_company(&loop->seen, worker);
    if (worker != 0) sleep_for(0.05);
    atomic_fetch_add(&loop->n_done, (int)(end - begin));
}

/* A caller that is done early sleeps until the last worker is, and returns after it.  Catches a loop
 * that ends while a worker is still in it, and a wait that burns the CPU. */
static void a_waiting_caller_sleeps(void **state)
{
    (void)state;
    m2_pool *pool = NULL;
    check_ok(m2_pool_create(2, &pool));
    double used = 0;
    for (int i = 0; i < 10; i++) {
        slow_loop loop = { 0, 0 };
        const double before = seconds(CLOCK_PROCESS_CPUTIME_ID);
        m2_parallel_for(pool, 2, 1, be_slow_elsewhere, &loop);
        used += seconds(CLOCK_PROCESS_CPUTIME_ID) - before;
        assert_true(m2_test_had_company(&loop.seen));
        assert_int_equal(loop.n_done, 2);
    }
    m2_pool_destroy(pool);
    assert_true(used < 0.2); /* of 0.5 s of waiting */
}

/* ---- floating point mode ---- */

typedef struct denormal_loop {
    volatile float smallest, denormal; /* volatile: no compiler folds what is done with them */
    atomic_int n_kept;
    bool wants_company;
    atomic_uint seen;
} denormal_loop;

static void halve_smallest(void *context, int64_t begin, int64_t end, int worker)
{
    denormal_loop *loop = context;
    if (loop->wants_company) m2_test_wait_for_company(&loop->seen, worker);
    for (int64_t i = begin; i < end; i++) {
        const float written = loop->smallest * 0.5f;  /* FTZ */
        const float read = loop->denormal * 0x1p100f; /* DAZ */
        atomic_fetch_add(&loop->n_kept, (written > 0) + (read > 0));
    }
}

/* Catches a worker or the caller outside flush mode, or a caller left in it. */
static void denormals_are_flushed_inside_a_loop_alone(void **state)
{
    (void)state;
#if defined(__x86_64__) || defined(__aarch64__)
    for (int n_threads = 0; n_threads <= 4; n_threads++) {
        m2_pool *pool = NULL; /* none in the first round */
        if (n_threads > 0) check_ok(m2_pool_create(n_threads, &pool));
        for (int64_t n_items = 1; n_items <= 1000; n_items *= 10) {
            denormal_loop loop = { .smallest = 0x1p-126f,
                                   .denormal = 0x1p-149f,
                                   .wants_company = n_threads > 1 && n_items > 1 };
            m2_parallel_for(pool, n_items, 1, halve_smallest, &loop);
            assert_int_equal(loop.n_kept, 0);
            if (loop.wants_company) assert_true(m2_test_had_company(&loop.seen));
            const float kept = loop.denormal * 0x1p100f;
            assert_true(kept > 0);
        }
        m2_pool_destroy(pool);
    }
#else
    skip();
#endif
}

/* The caller's whole mode comes back, a rounding mode of its own too. */
static void the_callers_mode_is_restored(void **state)
{
    (void)state;
    m2_pool *pool = NULL;
    check_ok(m2_pool_create(2, &pool));
    assert_int_equal(fesetround(FE_UPWARD), 0);
    m2_parallel_for(pool, 10, 1, do_nothing, NULL);
    assert_int_equal(fegetround(), FE_UPWARD);
    fesetround(FE_TONEAREST);
    m2_pool_destroy(pool);
}

/* ---- scratch, counts, misuse ---- */

typedef struct scratch_loop {
    m2_pool *pool;
    atomic_int n_faults;
} scratch_loop;

static void use_scratch(void *context, int64_t begin, int64_t end, int worker)
{
    scratch_loop *loop = context;
    unsigned char *scratch = m2_pool_scratch(loop->pool, worker);
    if ((uintptr_t)scratch % 64 != 0) atomic_fetch_add(&loop->n_faults, 1);
    for (int64_t i = begin; i < end; i++) {
        memset(scratch, (int)i, 4096);
        scratch[M2_WORKER_SCRATCH_BYTES - 1] = (unsigned char)i;
        if (scratch[0] != (unsigned char)i || scratch[4095] != (unsigned char)i ||
            scratch[M2_WORKER_SCRATCH_BYTES - 1] != (unsigned char)i)
            atomic_fetch_add(&loop->n_faults, 1);
    }
}

/* Catches two workers with one scratch, or one that is too short. */
static void every_worker_has_scratch_of_its_own(void **state)
{
    (void)state;
    scratch_loop loop = { NULL, 0 };
    check_ok(m2_pool_create(6, &loop.pool));
    m2_parallel_for(loop.pool, 2000, 1, use_scratch, &loop);
    m2_pool_destroy(loop.pool);
    assert_int_equal(loop.n_faults, 0);
}

/* A container or taskset that gives one CPU gives one thread. */
static void the_cpu_count_follows_the_affinity_mask(void **state)
{
    (void)state;
    cpu_set_t before, one;
    assert_int_equal(sched_getaffinity(0, sizeof before, &before), 0);
    assert_in_range(m2_cpu_count(), 1, CPU_COUNT(&before));
    CPU_ZERO(&one);
    for (int cpu = 0; cpu < CPU_SETSIZE; cpu++) {
        if (!CPU_ISSET(cpu, &before)) continue;
        CPU_SET(cpu, &one);
        break;
    }
    assert_int_equal(sched_setaffinity(0, sizeof one, &one), 0);
    const int count = m2_cpu_count();
    m2_pool *pool = NULL;
    const m2_status status = m2_pool_create(0, &pool);
    assert_int_equal(sched_setaffinity(0, sizeof before, &before), 0);
    check_ok(status);
    assert_int_equal(count, 1);
    assert_int_equal(m2_pool_n_threads(pool), 1);
    m2_pool_destroy(pool);
}

static void a_thread_count_out_of_range_is_an_error(void **state)
{
    (void)state;
    m2_pool *pool = NULL;
    check_fails(m2_pool_create(-1, &pool), M2_ERR_ARG, "-1 threads");
    check_fails(m2_pool_create(M2_THREADS_MAX + 1, &pool), M2_ERR_ARG, "1025 threads");
    assert_null(pool);
    m2_pool_destroy(NULL);
    assert_int_equal(m2_pool_n_threads(NULL), 1);
}

static void start_inner_loop(void *context, int64_t begin, int64_t end, int worker)
{
    (void)begin;
    (void)end;
    (void)worker;
    m2_parallel_for(context, 1, 1, do_nothing, NULL);
}

static void start_nested_loops(void *argument)
{
    m2_pool *pool = NULL;
    if (m2_pool_create(*(int *)argument, &pool) != M2_OK) return;
    m2_parallel_for(pool, 4, 1, start_inner_loop, pool);
}

/* A loop inside a loop would share scratch, silently, or wait for itself. */
static void a_loop_inside_a_loop_aborts(void **state)
{
    (void)state;
    for (int n_threads = 1; n_threads <= 2; n_threads++)
        assert_true(m2_test_aborts(start_nested_loops, &n_threads));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_item_is_done_once_for_any_split),
        cmocka_unit_test(results_have_the_same_bits_for_any_number_of_threads),
        cmocka_unit_test(a_hundred_thousand_empty_loops_end),
        cmocka_unit_test(loops_after_pauses_of_any_length_end),
        cmocka_unit_test(idle_workers_sleep),
        cmocka_unit_test(a_waiting_caller_sleeps),
        cmocka_unit_test(denormals_are_flushed_inside_a_loop_alone),
        cmocka_unit_test(the_callers_mode_is_restored),
        cmocka_unit_test(every_worker_has_scratch_of_its_own),
        cmocka_unit_test(the_cpu_count_follows_the_affinity_mask),
        cmocka_unit_test(a_thread_count_out_of_range_is_an_error),
        cmocka_unit_test(a_loop_inside_a_loop_aborts),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
