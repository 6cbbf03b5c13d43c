/* arena.h - memory of one lifetime, given out in order and taken back all at once.
 *
 * Three lifetimes: weights (process), request (one clip), step (one network call).  An arena only
 * does arithmetic on addresses and never touches the memory, so the same code serves device memory.
 *
 * A measuring arena has no memory behind it: it hands out addresses that must not be followed and
 * remembers the peak.  A network is planned by running its own code on a measuring arena with the
 * operator table of m2_ops_init_measure(), so the plan cannot drift from the run.
 *
 * Checks   in memory of m2_arena_create: AddressSanitizer builds trap every touch of what is not
 *          given out, the gaps between arrays included; debug builds fill what is taken back with
 *          ones, which are NaNs.
 * Threads  one arena, one thread at a time.
 */
#ifndef M2_CORE_ARENA_H
#define M2_CORE_ARENA_H

#include <stddef.h>
#include <stdint.h>

#include "core/status.h"

#define M2_ARENA_ALIGN 64

typedef struct m2_arena {
    const char *name; /* for messages: "step", "weights"          */
    uintptr_t base;
    size_t bytes_max; /* SIZE_MAX for a measuring arena            */
    size_t used;
    size_t peak; /* largest `used` since init                 */
    int is_measuring;
    int owns_memory; /* destroy unmaps it                         */
} m2_arena;

/* Over memory that the caller owns, aligned to 64 bytes. */
void m2_arena_init(m2_arena *arena, const char *name, void *memory, size_t bytes);
void m2_arena_init_measuring(m2_arena *arena, const char *name);
/* Maps `bytes` of zeroed host memory (taken by the system when touched).
 * Errors  M2_ERR_MEMORY, saying how much was asked for. */
m2_status m2_arena_create(m2_arena *arena, const char *name, size_t bytes);
void m2_arena_destroy(m2_arena *arena);

/* `bytes` aligned to 64; never NULL.  More than was planned is a bug and aborts with the figures. */
void *m2_arena_alloc(m2_arena *arena, size_t bytes);
void m2_arena_reset(m2_arena *arena);

/* Stack-like scopes inside an arena: everything given out after `save` is gone after `restore`. */
size_t m2_arena_save(const m2_arena *arena);
void m2_arena_restore(m2_arena *arena, size_t mark);

/* count * size with overflow checked (an overflow aborts: shapes were checked where they came in). */
size_t m2_arena_array_bytes(size_t count, size_t size);
#define m2_new(arena, type, count)                                                                 \
    ((type *)m2_arena_alloc((arena), m2_arena_array_bytes((size_t)(count), sizeof(type))))

#endif
