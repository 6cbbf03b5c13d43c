#include "core/threads.h"

#include "core/log.h"

#include <assert.h>
#include <errno.h>
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
#include <time.h>
#include <unistd.h>
#if defined(__x86_64__)
#include <immintrin.h>
#endif

/* How long a worker looks for the next loop before it sleeps: about what waking it costs, so that
 * waiting never takes more than twice the better choice.  In time, not in rounds: a pause takes 40
 * cycles on some CPUs and 140 on others. */
#define SPIN_NS        50000
#define PAUSES_A_CHECK 32

/* A worker takes part in a loop only if it comes before the caller, done with the last item, shuts
 * the gate.  So nobody waits for a worker that still sleeps, or has lost its CPU to another process:
 * what it would have done, others have. */
#define GATE_OPEN 0x80000000u

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
    bool may_spin; /* every worker has a CPU of its own */
    pool_loop loop;
    _Alignas(64) atomic_uint generation; /* grows by one a loop; workers sleep on it */
    _Alignas(64) _Atomic int64_t next;   /* first item that nobody has taken         */
    _Alignas(64) atomic_uint gate;       /* GATE_OPEN, and the workers in the loop   */
    atomic_int n_asleep;
    atomic_bool caller_sleeps;
    atomic_bool is_closing;
    atomic_bool is_running; /* a loop is under way: another one is a bug */
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

static int quota_in_cpus(long long quota, long long period)
{
    if (quota <= 0 || period <= 0) return INT_MAX;
    const long long cpus = quota / period + (quota % period != 0);
    return cpus > INT_MAX ? INT_MAX : (int)cpus;
}

/* Numbers at the start of a file; gives back how many were read. */
static int read_numbers(const char *path, long long *first, long long *second)
{
    FILE *file = fopen(path, "re");
    if (!file) return 0;
    const int n = fscanf(file, "%lld %lld", first, second);
    fclose(file);
    return n < 0 ? 0 : n;
}

/* This process's group below the second hierarchy, "/" if it cannot be told. */
static void own_cgroup(char *path, size_t bytes)
{
    char line[PATH_MAX];
    snprintf(path, bytes, "/");
    FILE *file = fopen("/proc/self/cgroup", "re");
    if (!file) return;
    while (fgets(line, sizeof line, file)) {
        if (strncmp(line, "0::/", 4) != 0) continue;
        line[strcspn(line, "\n")] = '\0';
        snprintf(path, bytes, "%s", line + 3);
    }
    fclose(file);
}

/* The least CPU quota of the own cgroup and those above it, in CPUs rounded up; INT_MAX without. */
static int cgroup_cpu_limit(void)
{
    static const char v1[] = "/sys/fs/cgroup/cpu/cpu.cfs_";
    char group[PATH_MAX], path[PATH_MAX + 64];
    long long quota, period, unused;
    int limit = INT_MAX;
    own_cgroup(group, sizeof group);
    for (char *end = group + strlen(group); end; end = strrchr(group, '/')) {
        *end = '\0';
        snprintf(path, sizeof path, "/sys/fs/cgroup%s/cpu.max", group);
        if (read_numbers(path, &quota, &period) != 2) continue; /* none, or "max" */
        const int cpus = quota_in_cpus(quota, period);
        if (cpus < limit) limit = cpus;
    }
    snprintf(path, sizeof path, "%squota_us", v1);
    if (read_numbers(path, &quota, &unused) >= 1) {
        snprintf(path, sizeof path, "%speriod_us", v1);
        if (read_numbers(path, &period, &unused) >= 1 && quota_in_cpus(quota, period) < limit)
            limit = quota_in_cpus(quota, period);
    }
    return limit;
}

/* CPUs in the affinity mask of this thread. */
static int affinity_cpu_count(void)
{
    for (int n_bits = CPU_SETSIZE; n_bits <= 1 << 20; n_bits *= 2) {
        cpu_set_t *set = CPU_ALLOC((size_t)n_bits);
        if (!set) break;
        const size_t bytes = CPU_ALLOC_SIZE((size_t)n_bits);
        const int failed = sched_getaffinity(0, bytes, set);
        const int n = failed ? 0 : CPU_COUNT_S(bytes, set);
        CPU_FREE(set);
        if (!failed) return n;
        if (errno != EINVAL) break; /* EINVAL: the machine has more CPUs than the set */
    }
    const long online = sysconf(_SC_NPROCESSORS_ONLN);
    return online > 0 && online < INT_MAX ? (int)online : 1;
}

int m2_cpu_count(void)
{
    int n = affinity_cpu_count();
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
        loop->body(loop->context, begin, left < loop->chunk ? loop->n_items : begin + loop->chunk,
                   worker);
    }
    flush_mode_leave(mode);
    m2_log_bind(log_before);
}

static int64_t now_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

/* Look at `word` for a while; true as soon as it is (or, with `wanted` false, is not) `value`. */
static bool spin_for(const m2_pool *pool, atomic_uint *word, unsigned value, bool wanted)
{
    if (!pool->may_spin) return (atomic_load(word) == value) == wanted;
    const int64_t deadline = now_ns() + SPIN_NS;
    do {
        for (int i = 0; i < PAUSES_A_CHECK; i++) {
            if ((atomic_load_explicit(word, memory_order_acquire) == value) == wanted) return true;
            cpu_pause();
        }
    } while (now_ns() < deadline);
    return false;
}

/* Wait until the generation differs from `seen`; gives back the new one. */
static unsigned wait_for_loop(m2_pool *pool, unsigned seen)
{
    if (spin_for(pool, &pool->generation, seen, false))
        return atomic_load_explicit(&pool->generation, memory_order_acquire);
    atomic_fetch_add(&pool->n_asleep, 1);
    unsigned now;
    while ((now = atomic_load(&pool->generation)) == seen) futex_wait(&pool->generation, seen);
    atomic_fetch_sub(&pool->n_asleep, 1);
    return now;
}

static bool enter_loop(m2_pool *pool)
{
    unsigned gate = atomic_load(&pool->gate);
    while (gate & GATE_OPEN) {
        if (atomic_compare_exchange_weak(&pool->gate, &gate, gate + 1)) return true;
    }
    return false;
}

static void leave_loop(m2_pool *pool)
{
    /* One and shut: the last of those that the caller waits for. */
    if (atomic_fetch_sub(&pool->gate, 1) == 1 && atomic_load(&pool->caller_sleeps))
        futex_wake(&pool->gate, 1);
}

static void *worker_main(void *argument)
{
    pool_worker *worker = argument;
    m2_pool *pool = worker->pool;
    unsigned seen = 0;
    for (;;) {
        seen = wait_for_loop(pool, seen);
        if (atomic_load(&pool->is_closing)) return NULL;
        if (!enter_loop(pool)) continue;
        run_chunks(pool, worker->idx);
        leave_loop(pool);
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
    pool->may_spin = n_threads <= m2_cpu_count();
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
    /* Faults of an instruction go to the thread that runs it: blocked, they would end the process
     * without the handler that names the file behind a lost page. */
    static const int faults[] = { SIGBUS, SIGSEGV, SIGFPE, SIGILL, SIGTRAP };
    for (size_t i = 0; i < sizeof faults / sizeof faults[0]; i++) sigdelset(&all, faults[i]);
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
    assert(pool && worker >= 0 && worker < pool->n_threads);
    return pool->scratch + (size_t)worker * M2_WORKER_SCRATCH_BYTES;
}

static void wait_for_workers(m2_pool *pool)
{
    atomic_fetch_and(&pool->gate, ~GATE_OPEN);
    if (spin_for(pool, &pool->gate, 0, true)) return;
    /* The last worker reads the flag after its count, we the count after the flag: one of the two
     * sees the other. */
    atomic_store(&pool->caller_sleeps, true);
    unsigned inside;
    while ((inside = atomic_load(&pool->gate)) != 0) futex_wait(&pool->gate, inside);
    atomic_store(&pool->caller_sleeps, false);
}

static void run_alone(int64_t n_items, int64_t chunk, m2_loop_body *body, void *context)
{
    const uint64_t mode = flush_mode_enter();
    for (int64_t begin = 0; begin < n_items; begin += chunk)
        body(context, begin, n_items - begin < chunk ? n_items : begin + chunk, 0);
    flush_mode_leave(mode);
}

void m2_parallel_for(m2_pool *pool, int64_t n_items, int64_t chunk, m2_loop_body *body,
                     void *context)
{
    assert(chunk >= 1);
    if (n_items <= 0) return;
    if (!pool) {
        run_alone(n_items, chunk, body, context);
        return;
    }
    /* A loop inside a loop would share the scratch of a worker that is in use. */
    const bool was_running =
        atomic_exchange_explicit(&pool->is_running, true, memory_order_acquire);
    assert(!was_running);
    (void)was_running;
    if (pool->n_threads == 1 || n_items <= chunk) {
        run_alone(n_items, chunk, body, context);
    } else {
        pool->loop = (pool_loop){ .body = body,
                                  .context = context,
                                  .n_items = n_items,
                                  .chunk = chunk,
                                  .log = m2_log_bound() };
        atomic_store_explicit(&pool->next, 0, memory_order_relaxed);
        atomic_store(&pool->gate, GATE_OPEN); /* what is above is seen by whoever enters */
        atomic_fetch_add(&pool->generation, 1);
        if (atomic_load(&pool->n_asleep) > 0) futex_wake(&pool->generation, INT_MAX);
        run_chunks(pool, 0);
        wait_for_workers(pool);
    }
    atomic_store_explicit(&pool->is_running, false, memory_order_release);
}
