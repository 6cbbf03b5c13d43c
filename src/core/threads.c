#include "core/threads.h"

#include "core/log.h"

#include <limits.h>
#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>
#if defined(__x86_64__)
#include <immintrin.h>
#endif

/* How long a worker looks for the next loop before it sleeps; a loop started in that time costs
 * about a microsecond, one that must wake the workers costs some 20 to 50. */
#define SPINS_MAX 20000

typedef struct pool_loop {
    m2_loop_body *body;
    void *context;
    int64_t n_items, chunk;
    const m2_log *log;
} pool_loop;

typedef struct pool_worker {
    m2_pool *pool;
    int idx;
    pthread_t thread;
} pool_worker;

struct m2_pool {
    int n_threads;
    int n_started;
    int spins;
    pool_loop loop;
    _Alignas(64) atomic_uint generation; /* grows by one a loop; workers sleep on it */
    _Alignas(64) _Atomic int64_t next;   /* first item that nobody has taken         */
    _Alignas(64) atomic_int n_busy;      /* workers still inside the loop            */
    atomic_int n_asleep;
    atomic_int caller_sleeps;
    atomic_bool is_closing;
    pool_worker *workers;
    unsigned char *scratch;
};

static void futex_wait(void *word, unsigned seen)
{
    syscall(SYS_futex, word, FUTEX_WAIT_PRIVATE, seen, NULL, NULL, 0);
}

static void futex_wake(void *word, int n)
{
    syscall(SYS_futex, word, FUTEX_WAKE_PRIVATE, n, NULL, NULL, 0);
}

static void cpu_pause(void)
{
#if defined(__x86_64__)
    _mm_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

/* Flush denormals to zero; gives back the mode before. */
static uint64_t flush_mode_enter(void)
{
#if defined(__x86_64__)
    const unsigned before = _mm_getcsr();
    _mm_setcsr(before | 0x8040u);
    return before;
#elif defined(__aarch64__)
    uint64_t before;
    __asm__ volatile("mrs %0, fpcr" : "=r"(before));
    __asm__ volatile("msr fpcr, %0" : : "r"(before | (1ull << 24)));
    return before;
#else
    return 0;
#endif
}

static void flush_mode_leave(uint64_t before)
{
#if defined(__x86_64__)
    _mm_setcsr((unsigned)before);
#elif defined(__aarch64__)
    __asm__ volatile("msr fpcr, %0" : : "r"(before));
#else
    (void)before;
#endif
}

/* The cgroup's CPU quota in CPUs, rounded up; INT_MAX without one. */
static int cgroup_cpu_limit(void)
{
    long long quota = -1, period = 0;
    FILE *file = fopen("/sys/fs/cgroup/cpu.max", "r");
    if (file) {
        if (fscanf(file, "%lld %lld", &quota, &period) != 2) quota = -1;
        fclose(file);
    } else if ((file = fopen("/sys/fs/cgroup/cpu/cpu.cfs_quota_us", "r"))) {
        if (fscanf(file, "%lld", &quota) != 1) quota = -1;
        fclose(file);
        file = fopen("/sys/fs/cgroup/cpu/cpu.cfs_period_us", "r");
        if (file) {
            if (fscanf(file, "%lld", &period) != 1) period = 0;
            fclose(file);
        }
    }
    if (quota <= 0 || period <= 0) return INT_MAX;
    const long long cpus = (quota + period - 1) / period;
    return cpus > INT_MAX ? INT_MAX : (int)cpus;
}

int m2_cpu_count(void)
{
    int n = 1;
    cpu_set_t set;
    if (sched_getaffinity(0, sizeof set, &set) == 0) {
        n = CPU_COUNT(&set);
    } else {
        const long online = sysconf(_SC_NPROCESSORS_ONLN); /* more CPUs than the set can hold */
        if (online > 0) n = (int)online;
    }
    const int limit = cgroup_cpu_limit();
    if (n > limit) n = limit;
    if (n > M2_THREADS_MAX) n = M2_THREADS_MAX;
    return n < 1 ? 1 : n;
}

static void run_chunks(m2_pool *pool, int worker)
{
    const pool_loop *loop = &pool->loop;
    const m2_log *log_before = m2_log_bind(loop->log);
    const uint64_t mode = flush_mode_enter();
    for (;;) {
        const int64_t begin =
            atomic_fetch_add_explicit(&pool->next, loop->chunk, memory_order_relaxed);
        if (begin >= loop->n_items) break;
        const int64_t left = loop->n_items - begin;
        loop->body(loop->context, begin, begin + (left < loop->chunk ? left : loop->chunk), worker);
    }
    flush_mode_leave(mode);
    m2_log_bind(log_before);
}

/* Wait until the generation differs from `seen`; gives back the new one. */
static unsigned wait_for_loop(m2_pool *pool, unsigned seen)
{
    for (int i = 0; i < pool->spins; i++) {
        const unsigned now = atomic_load_explicit(&pool->generation, memory_order_acquire);
        if (now != seen) return now;
        cpu_pause();
    }
    atomic_fetch_add(&pool->n_asleep, 1);
    unsigned now;
    while ((now = atomic_load(&pool->generation)) == seen) futex_wait(&pool->generation, seen);
    atomic_fetch_sub(&pool->n_asleep, 1);
    return now;
}

static void *worker_main(void *argument)
{
    pool_worker *worker = argument;
    m2_pool *pool = worker->pool;
    unsigned seen = 0;
    for (;;) {
        seen = wait_for_loop(pool, seen);
        if (atomic_load(&pool->is_closing)) return NULL;
        run_chunks(pool, worker->idx);
        if (atomic_fetch_sub(&pool->n_busy, 1) == 1 && atomic_load(&pool->caller_sleeps))
            futex_wake(&pool->n_busy, 1);
    }
}

m2_status m2_pool_create(int n_threads, m2_pool **pool_out)
{
    if (n_threads < 0 || n_threads > M2_THREADS_MAX)
        return m2_fail(M2_ERR_ARG, "%d threads asked for; use 1 to %d, or 0 for every CPU",
                       n_threads, M2_THREADS_MAX);
    if (n_threads == 0) n_threads = m2_cpu_count();

    m2_pool *pool = aligned_alloc(64, (sizeof(m2_pool) + 63) / 64 * 64);
    if (!pool) return m2_fail(M2_ERR_MEMORY, "thread pool: out of memory");
    memset(pool, 0, sizeof *pool);
    pool->n_threads = n_threads;
    pool->spins = n_threads <= m2_cpu_count() ? SPINS_MAX : 0;
    pool->workers = calloc((size_t)n_threads, sizeof *pool->workers);
    void *scratch = mmap(NULL, (size_t)n_threads * M2_WORKER_SCRATCH_BYTES, PROT_READ | PROT_WRITE,
                         MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    pool->scratch = scratch == MAP_FAILED ? NULL : scratch;
    if (!pool->workers || !pool->scratch) {
        m2_pool_destroy(pool);
        return m2_fail(M2_ERR_MEMORY, "thread pool: no memory for %d threads", n_threads);
    }

    /* Signals are the main thread's business. */
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int error = 0;
    for (int i = 1; i < n_threads && !error; i++) {
        pool->workers[i] = (pool_worker){ .pool = pool, .idx = i };
        error = pthread_create(&pool->workers[i].thread, NULL, worker_main, &pool->workers[i]);
        if (!error) pool->n_started++;
    }
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (error) {
        const int n_started = pool->n_started;
        m2_pool_destroy(pool);
        return m2_fail(M2_ERR_INTERNAL, "thread pool: only %d of %d threads could be started: %s",
                       n_started + 1, n_threads, strerror(error));
    }
    *pool_out = pool;
    return M2_OK;
}

void m2_pool_destroy(m2_pool *pool)
{
    if (!pool) return;
    atomic_store(&pool->is_closing, true);
    atomic_fetch_add(&pool->generation, 1);
    futex_wake(&pool->generation, INT_MAX);
    for (int i = 1; i <= pool->n_started; i++) pthread_join(pool->workers[i].thread, NULL);
    if (pool->scratch) munmap(pool->scratch, (size_t)pool->n_threads * M2_WORKER_SCRATCH_BYTES);
    free(pool->workers);
    free(pool);
}

int m2_pool_n_threads(const m2_pool *pool)
{
    return pool ? pool->n_threads : 1;
}

void *m2_pool_scratch(m2_pool *pool, int worker)
{
    return pool->scratch + (size_t)worker * M2_WORKER_SCRATCH_BYTES;
}

static void wait_for_workers(m2_pool *pool)
{
    for (int i = 0; i < pool->spins; i++) {
        if (atomic_load_explicit(&pool->n_busy, memory_order_acquire) == 0) return;
        cpu_pause();
    }
    atomic_store(&pool->caller_sleeps, 1);
    int busy;
    while ((busy = atomic_load(&pool->n_busy)) != 0) futex_wait(&pool->n_busy, (unsigned)busy);
    atomic_store(&pool->caller_sleeps, 0);
}

void m2_parallel_for(m2_pool *pool, int64_t n_items, int64_t chunk, m2_loop_body *body,
                     void *context)
{
    if (n_items <= 0) return;
    if (!pool || pool->n_threads == 1 || n_items <= chunk) {
        const uint64_t mode = flush_mode_enter();
        for (int64_t begin = 0; begin < n_items; begin += chunk)
            body(context, begin, begin + chunk < n_items ? begin + chunk : n_items, 0);
        flush_mode_leave(mode);
        return;
    }
    pool->loop = (pool_loop){
        .body = body, .context = context, .n_items = n_items, .chunk = chunk, .log = m2_log_bound()
    };
    atomic_store_explicit(&pool->next, 0, memory_order_relaxed);
    atomic_store_explicit(&pool->n_busy, pool->n_threads - 1, memory_order_relaxed);
    atomic_fetch_add(&pool->generation, 1);
    if (atomic_load(&pool->n_asleep) > 0) futex_wake(&pool->generation, INT_MAX);
    run_chunks(pool, 0);
    wait_for_workers(pool);
}
