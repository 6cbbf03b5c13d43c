/* random_case.h - what tests of operators share: a table, memory, and random tensors. */
#ifndef M2_TESTS_BACKEND_RANDOM_CASE_H
#define M2_TESTS_BACKEND_RANDOM_CASE_H

#include <math.h>

#include "backend/cpu/cpu.h"
#include "core/arena.h"
#include "support/check.h"

typedef struct random_case {
    m2_arena arena;
    m2_test_random random;
    int is_plain;  /* no infinities or denormals among drawn values */
    uint64_t turn; /* of random_turn                                */
} random_case;

static inline void random_case_open(random_case *c, uint64_t seed)
{
    check_ok(m2_arena_create(&c->arena, "test", (size_t)1 << 30));
    c->random.state = seed;
    c->turn = seed;
    c->is_plain = 0;
}

static inline void random_case_close(random_case *c)
{
    m2_arena_destroy(&c->arena);
}

/* A whole number in [low, high]. */
static inline int64_t random_int(random_case *c, int64_t low, int64_t high)
{
    return low + (int64_t)(m2_test_random_u64(&c->random) % (uint64_t)(high - low + 1));
}

/* 0 ... n - 1 in turn, from seed to seed; the next call turns when this one has gone round.  What
 * several calls choose between is then met by as many seeds as there are choices. */
static inline int64_t random_turn(random_case *c, int64_t n)
{
    const int64_t turn = (int64_t)(c->turn % (uint64_t)n);
    c->turn /= (uint64_t)n;
    return turn;
}

/* About normal, deviation `scale`. */
static inline void random_fill(random_case *c, m2_tensor *tensor, float scale)
{
    const int64_t n = m2_tensor_count(tensor);
    for (int64_t i = 0; i < n; i++) {
        const float value = scale * m2_test_random_normal(&c->random);
        m2_convert(&value, M2_F32, (char *)tensor->data + (size_t)i * m2_dtype_bytes(tensor->dtype),
                   tensor->dtype, 1);
    }
}

#define random_tensor(c, dtype, scale, ...)                                                        \
    random_tensor_over((c), (scale), m2_tensor_make(&(c)->arena, (dtype), __VA_ARGS__))

static inline m2_tensor random_tensor_over(random_case *c, float scale, m2_tensor tensor)
{
    random_fill(c, &tensor, scale);
    return tensor;
}

static inline double value_at(const m2_tensor *tensor, int64_t i)
{
    double value;
    m2_convert((const char *)tensor->data + (size_t)i * m2_dtype_bytes(tensor->dtype),
               tensor->dtype, &value, M2_F64, 1);
    return value;
}

/* The scalar table; every faster one is compared with it elsewhere. */
static inline m2_ops reference_ops(void)
{
    m2_ops ops;
    check_ok(m2_ops_init_cpu(&ops, NULL, M2_ISA_REF));
    return ops;
}

#endif
