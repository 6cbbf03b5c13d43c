#include "core/arena.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#if defined(__SANITIZE_ADDRESS__)
#define M2_ARENA_ASAN
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define M2_ARENA_ASAN
#endif
#endif
#ifdef M2_ARENA_ASAN
#include <sanitizer/asan_interface.h>
#endif

/* Bytes behind the last array that may not be touched; not all there is, for marking memory costs an
 * eighth of its size. */
#define GUARD_BYTES 4096

/* Looks like an address (non-null, aligned), faults when followed. */
#define MEASURING_BASE ((uintptr_t)M2_ARENA_ALIGN)

/* Memory that is not given out may not be touched: AddressSanitizer says who does, and debug builds
 * leave all ones behind (a NaN in every float type).  Host memory of the arena's own alone: other
 * addresses may be a device's. */
static void take_back(const m2_arena *arena, size_t begin, size_t end)
{
    if (!arena->owns_memory) return;
    void *memory = (void *)(arena->base + begin);
#ifdef M2_ARENA_ASAN
    __asan_unpoison_memory_region(memory, end - begin);
#endif
#ifdef M2_DEBUG
    memset(memory, 0xff, end - begin);
#endif
#ifdef M2_ARENA_ASAN
    __asan_poison_memory_region(memory, end - begin);
#endif
    (void)memory;
    (void)end;
}

/* `bytes` from `used` on are given out, what follows is not. */
static void guard(const m2_arena *arena, size_t bytes)
{
#ifdef M2_ARENA_ASAN
    if (!arena->owns_memory) return;
    const size_t end = arena->used + bytes, left = arena->bytes_max - end;
    __asan_unpoison_memory_region((void *)(arena->base + arena->used), bytes);
    __asan_poison_memory_region((void *)(arena->base + end),
                                left < GUARD_BYTES ? left : GUARD_BYTES);
#endif
    (void)arena;
    (void)bytes;
}

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
    guard(arena, 0);
    return M2_OK;
}

void m2_arena_destroy(m2_arena *arena)
{
    if (!arena) return;
    if (arena->owns_memory) {
#ifdef M2_ARENA_ASAN
        /* Other memory will take these addresses. */
        const size_t marked = arena->bytes_max - arena->peak < GUARD_BYTES
                                  ? arena->bytes_max
                                  : arena->peak + GUARD_BYTES;
        __asan_unpoison_memory_region((void *)arena->base, marked);
#endif
        munmap((void *)arena->base, arena->bytes_max);
    }
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
    guard(arena, bytes);
    arena->used += rounded;
    if (arena->used > arena->peak) arena->peak = arena->used;
    return result;
}

void m2_arena_reset(m2_arena *arena)
{
    take_back(arena, 0, arena->used);
    arena->used = 0;
}

size_t m2_arena_save(const m2_arena *arena)
{
    return arena->used;
}

void m2_arena_restore(m2_arena *arena, size_t mark)
{
    assert(mark <= arena->used);
    take_back(arena, mark, arena->used);
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
