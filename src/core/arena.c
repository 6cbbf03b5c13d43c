#include "core/arena.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>

/* Looks like an address (non-null, aligned), faults when followed. */
#define MEASURING_BASE ((uintptr_t)M2_ARENA_ALIGN)

void m2_arena_init(m2_arena *arena, const char *name, void *memory, size_t bytes)
{
    assert(((uintptr_t)memory % M2_ARENA_ALIGN) == 0);
    *arena = (m2_arena){ .name = name, .base = (uintptr_t)memory, .bytes_max = bytes };
}

void m2_arena_init_measuring(m2_arena *arena, const char *name)
{
    *arena = (m2_arena){
        .name = name, .base = MEASURING_BASE, .bytes_max = SIZE_MAX, .is_measuring = 1
    };
}

m2_status m2_arena_create(m2_arena *arena, const char *name, size_t bytes)
{
    const size_t mapped = bytes ? bytes : M2_ARENA_ALIGN;
    void *memory = mmap(NULL, mapped, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED) {
        *arena = (m2_arena){ .name = name };
        return m2_fail(M2_ERR_MEMORY, "%s arena: cannot map %.1f MiB", name,
                       (double)mapped / 1048576.0);
    }
    m2_arena_init(arena, name, memory, mapped);
    arena->owns_memory = 1;
    return M2_OK;
}

void m2_arena_destroy(m2_arena *arena)
{
    if (!arena) return;
    if (arena->owns_memory) munmap((void *)arena->base, arena->bytes_max);
    *arena = (m2_arena){ 0 };
}

void *m2_arena_alloc(m2_arena *arena, size_t bytes)
{
    const size_t rounded = (bytes + (M2_ARENA_ALIGN - 1)) & ~(size_t)(M2_ARENA_ALIGN - 1);
    if (rounded < bytes || rounded > arena->bytes_max - arena->used) {
        fprintf(stderr, "%s arena: %zu bytes asked for, %zu of %zu used: the plan is wrong\n",
                arena->name, bytes, arena->used, arena->bytes_max);
        abort();
    }
    void *result = (void *)(arena->base + arena->used);
    arena->used += rounded;
    if (arena->used > arena->peak) arena->peak = arena->used;
    return result;
}

void m2_arena_reset(m2_arena *arena)
{
    arena->used = 0;
}

size_t m2_arena_save(const m2_arena *arena)
{
    return arena->used;
}

void m2_arena_restore(m2_arena *arena, size_t mark)
{
    assert(mark <= arena->used);
    arena->used = mark;
}

size_t m2_arena_array_bytes(size_t count, size_t size)
{
    size_t bytes;
    if (__builtin_mul_overflow(count, size, &bytes)) {
        fprintf(stderr, "arena: an array of %zu x %zu bytes overflows\n", count, size);
        abort();
    }
    return bytes;
}
