#include "backend/device.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

#define HOST_ALIGN 256

static m2_status host_alloc(const m2_ops *ops, const char *name, size_t bytes, void **memory_out)
{
    (void)ops;
    const size_t whole = (bytes + HOST_ALIGN - 1) / HOST_ALIGN * HOST_ALIGN;
    *memory_out = aligned_alloc(HOST_ALIGN, whole ? whole : HOST_ALIGN);
    if (*memory_out) return M2_OK;
    return m2_fail(M2_ERR_MEMORY, "%s: no memory for %zu bytes", name, bytes);
}

static void host_release(const m2_ops *ops, void *memory)
{
    (void)ops;
    free(memory);
}

static m2_status host_wait(const m2_ops *ops)
{
    (void)ops;
    return M2_OK;
}

static void host_memory(const m2_ops *ops, size_t *free_out, size_t *total_out)
{
    (void)ops;
    *free_out = *total_out = 0;
}

static m2_status host_mailbox_create(const m2_ops *ops, size_t bytes, void **host_out)
{
    M2_TRY(host_alloc(ops, "mailbox", bytes, host_out));
    memset(*host_out, 0, bytes);
    return M2_OK;
}

static void host_publish(const m2_ops *ops, void *host, const m2_tensor *from)
{
    ops->download(ops, host, from);
}

/* On the host an operator is over when its call is: a mark is the time of day. */
struct m2_timer {
    struct timespec *marks;
};

static void host_timer_destroy(const m2_ops *ops, m2_timer *timer)
{
    (void)ops;
    if (!timer) return;
    free(timer->marks);
    free(timer);
}

static m2_status host_timer_create(const m2_ops *ops, int n_marks, m2_timer **timer_out)
{
    m2_timer *timer = calloc(1, sizeof *timer);
    if (timer) timer->marks = calloc((size_t)n_marks, sizeof *timer->marks);
    if (!timer || !timer->marks) {
        host_timer_destroy(ops, timer);
        return m2_fail(M2_ERR_MEMORY, "no memory for %d marks of time", n_marks);
    }
    *timer_out = timer;
    return M2_OK;
}

static void host_timer_mark(const m2_ops *ops, m2_timer *timer, int idx)
{
    (void)ops;
    clock_gettime(CLOCK_MONOTONIC, &timer->marks[idx]);
}

static double host_timer_ms(const m2_ops *ops, const m2_timer *timer, int from, int to)
{
    (void)ops;
    const struct timespec *a = &timer->marks[from], *b = &timer->marks[to];
    return 1e3 * (double)(b->tv_sec - a->tv_sec) + 1e-6 * (double)(b->tv_nsec - a->tv_nsec);
}

const m2_device_api m2_host_device = { .alloc = host_alloc,
                                       .release = host_release,
                                       .wait = host_wait,
                                       .memory = host_memory,
                                       .mailbox_create = host_mailbox_create,
                                       .mailbox_destroy = host_release,
                                       .publish = host_publish,
                                       .timer_create = host_timer_create,
                                       .timer_destroy = host_timer_destroy,
                                       .timer_mark = host_timer_mark,
                                       .timer_ms = host_timer_ms };

/* A host arena is mapped when touched, and poisoned in sanitized builds; a device's is one block. */
m2_status m2_device_arena_create(const m2_ops *ops, m2_arena *arena, const char *name, size_t bytes)
{
    if (m2_device_is_host(ops)) return m2_arena_create(arena, name, bytes);
    void *memory;
    M2_TRY(ops->device_api->alloc(ops, name, bytes, &memory));
    m2_arena_init(arena, name, memory, bytes);
    return M2_OK;
}

void m2_device_arena_destroy(const m2_ops *ops, m2_arena *arena)
{
    if (arena->base && !arena->is_measuring && !arena->owns_memory)
        ops->device_api->release(ops, (void *)arena->base);
    m2_arena_destroy(arena);
}

m2_status m2_device_wait(const m2_ops *ops)
{
    return ops->device_api->wait(ops);
}

m2_status m2_device_fetch(const m2_ops *ops, const m2_tensor *tensor, m2_tensor *host_out,
                          void **copy_out)
{
    *host_out = *tensor;
    *copy_out = NULL;
    if (m2_device_is_host(ops)) return M2_OK;
    const size_t bytes = m2_tensor_bytes(tensor);
    void *copy = malloc(bytes ? bytes : 1);
    if (!copy) return m2_fail(M2_ERR_MEMORY, "no memory for %zu bytes from the device", bytes);
    ops->download(ops, copy, tensor);
    const m2_status status = m2_device_wait(ops);
    if (status != M2_OK) {
        free(copy);
        return status;
    }
    host_out->data = copy;
    *copy_out = copy;
    return M2_OK;
}

m2_status m2_device_check_size(const char *what, int64_t value, int64_t most)
{
    if (value <= most) return M2_OK;
    return m2_fail(M2_ERR_UNSUPPORTED,
                   "%s: %lld, and the GPU's kernels take %lld at most; --backend cpu has no such "
                   "limit",
                   what, (long long)value, (long long)most);
}

int m2_device_is_host(const m2_ops *ops)
{
    return ops->device_api == &m2_host_device;
}
