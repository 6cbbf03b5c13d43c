#include "support/check.h"
#include "support/dies.h"

#include "core/arena.h"

#include <stdlib.h>
#include <string.h>

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#define IS_POISONED(p) __asan_address_is_poisoned(p)
#endif

/* Catches overlap, bad alignment, and a size that is rounded down. */
static void arrays_are_aligned_and_apart(void **state)
{
    (void)state;
    m2_arena arena;
    check_ok(m2_arena_create(&arena, "test", 1 << 20));
    unsigned char *last_end = NULL;
    for (size_t bytes = 1; bytes <= 200; bytes++) {
        unsigned char *array = m2_arena_alloc(&arena, bytes);
        assert_int_equal((uintptr_t)array % M2_ARENA_ALIGN, 0);
        assert_true(array >= last_end);
        memset(array, 0xa5, bytes);
        last_end = array + bytes;
    }
    m2_arena_destroy(&arena);
}

/* The plan is the same code on a measuring arena: an arena of exactly the measured peak must do.
 * Catches a measuring arena that rounds, or counts scopes, differently. */
static void an_arena_of_the_measured_peak_is_enough(void **state)
{
    (void)state;
    for (uint64_t seed = 1; seed <= 50; seed++) {
        m2_arena measuring, arena;
        m2_arena_init_measuring(&measuring, "measuring");
        m2_arena_init_measuring(&arena, "unused");
        for (int pass = 0; pass < 2; pass++) {
            m2_arena *a = pass == 0 ? &measuring : &arena;
            m2_test_random random = { seed };
            if (pass == 1) check_ok(m2_arena_create(&arena, "exact", measuring.peak));
            for (int i = 0; i < 20; i++) {
                const size_t outer = m2_test_random_u64(&random) % 5000;
                const size_t inner = m2_test_random_u64(&random) % 50000;
                assert_non_null(m2_arena_alloc(a, outer));
                const size_t mark = m2_arena_save(a);
                assert_non_null(m2_arena_alloc(a, inner));
                m2_arena_restore(a, mark);
            }
        }
        assert_int_equal(arena.peak, measuring.peak);
        assert_int_equal(arena.used, measuring.used);
        m2_arena_destroy(&arena);
        m2_arena_destroy(&measuring);
    }
}

/* Nothing is behind a measuring arena: terabytes cost nothing.  Catches a limit in it. */
static void measuring_takes_any_size(void **state)
{
    (void)state;
    m2_arena arena;
    m2_arena_init_measuring(&arena, "plan");
    const size_t terabyte = (size_t)1 << 40;
    for (int i = 0; i < 10; i++) assert_non_null(m2_arena_alloc(&arena, terabyte));
    assert_int_equal(arena.used, 10 * terabyte);
    m2_arena_reset(&arena);
    assert_int_equal(arena.used, 0);
    assert_int_equal(arena.peak, 10 * terabyte);
}

/* Catches a scope that gives back too much or too little. */
static void a_scope_gives_its_memory_back(void **state)
{
    (void)state;
    m2_arena arena;
    check_ok(m2_arena_create(&arena, "test", 4096));
    int *kept = m2_new(&arena, int, 4);
    kept[3] = 7;
    const size_t mark = m2_arena_save(&arena);
    void *first = m2_arena_alloc(&arena, 1000);
    m2_arena_restore(&arena, mark);
    void *second = m2_arena_alloc(&arena, 2000);
    assert_ptr_equal(first, second);
    assert_int_equal(kept[3], 7);
    m2_arena_reset(&arena);
    assert_ptr_equal(m2_arena_alloc(&arena, 1), kept);
    m2_arena_destroy(&arena);
}

/* Memory that is the caller's is not unmapped, and may be a device's: nothing touches it. */
static void foreign_memory_is_only_counted(void **state)
{
    (void)state;
    _Alignas(M2_ARENA_ALIGN) static unsigned char room[256];
    m2_arena arena;
    memset(room, 1, sizeof room);
    m2_arena_init(&arena, "static", room, sizeof room);
    assert_ptr_equal(m2_arena_alloc(&arena, 65), room);
    assert_ptr_equal(m2_arena_alloc(&arena, 128), room + 128);
    m2_arena_reset(&arena);
    m2_arena_destroy(&arena);
    for (size_t i = 0; i < sizeof room; i++) assert_int_equal(room[i], 1);

    /* An address that cannot be followed. */
    m2_arena_init(&arena, "device", (void *)(uintptr_t)0x7f0000000000u, 4096);
    assert_non_null(m2_arena_alloc(&arena, 4096));
    m2_arena_reset(&arena);
    m2_arena_destroy(&arena);
}

static void take_one_too_many(void *argument)
{
    m2_arena *arena = argument;
    m2_arena_alloc(arena, 1);
}

static void take_too_large_an_array(void *argument)
{
    (void)argument;
    m2_arena_array_bytes(SIZE_MAX / 2, 3);
}

static void take_all_there_is(void *argument)
{
    m2_arena_alloc(argument, SIZE_MAX);
}

/* More than was planned is a bug, never NULL or a neighbour's memory. */
static void more_than_planned_aborts(void **state)
{
    (void)state;
    m2_arena arena;
    check_ok(m2_arena_create(&arena, "exact", 128));
    m2_arena_alloc(&arena, 128);
    assert_true(m2_test_aborts(take_one_too_many, &arena));
    assert_true(m2_test_aborts(take_all_there_is, &arena));
    assert_true(m2_test_aborts(take_too_large_an_array, NULL));
    m2_arena_destroy(&arena);
}

/* Catches a failure that leaves an arena that looks alive. */
static void memory_that_is_not_there_is_an_error(void **state)
{
    (void)state;
    m2_arena arena;
    check_fails(m2_arena_create(&arena, "weights", SIZE_MAX / 2), M2_ERR_MEMORY, "weights");
    assert_int_equal(arena.bytes_max, 0);
    m2_arena_destroy(&arena);
    m2_arena_destroy(NULL);
    check_ok(m2_arena_create(&arena, "empty", 0));
    m2_arena_destroy(&arena);
}

/* Under AddressSanitizer the gaps and what was taken back are poisoned; in debug builds what was
 * taken back is filled with ones.  Catches checks that stopped checking. */
static void what_is_not_given_out_is_guarded(void **state)
{
    (void)state;
    m2_arena arena;
    check_ok(m2_arena_create(&arena, "test", 4096));
    unsigned char *array = m2_arena_alloc(&arena, 70);
    memset(array, 3, 70);
#ifdef IS_POISONED
    assert_false(IS_POISONED(array + 69));
    assert_true(IS_POISONED(array + 72)); /* shadow memory counts in eights */
    assert_true(IS_POISONED(array + 128));
    m2_arena_reset(&arena);
    assert_true(IS_POISONED(array));
#else
    m2_arena_reset(&arena);
#endif
    array = m2_arena_alloc(&arena, 70);
#ifdef M2_DEBUG
    for (int i = 0; i < 70; i++) assert_int_equal(array[i], 0xff);
#else
    array[69] = 1;
#endif
    m2_arena_destroy(&arena);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(arrays_are_aligned_and_apart),
        cmocka_unit_test(an_arena_of_the_measured_peak_is_enough),
        cmocka_unit_test(measuring_takes_any_size),
        cmocka_unit_test(a_scope_gives_its_memory_back),
        cmocka_unit_test(foreign_memory_is_only_counted),
        cmocka_unit_test(more_than_planned_aborts),
        cmocka_unit_test(memory_that_is_not_there_is_an_error),
        cmocka_unit_test(what_is_not_given_out_is_guarded),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
