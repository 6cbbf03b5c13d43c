#include "backend/device.h"

#include <stdlib.h>
#include <string.h>

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

const m2_device_api m2_host_device = { .alloc = host_alloc,
                                       .release = host_release,
                                       .wait = host_wait,
                                       .memory = host_memory,
                                       .mailbox_create = host_mailbox_create,
                                       .mailbox_destroy = host_release,
                                       .publish = host_publish };

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

int m2_device_is_host(const m2_ops *ops)
{
    return ops->device_api == &m2_host_device;
}
