#include "support/check.h"

#include "core/log.h"

#include <pthread.h>
#include <string.h>

static m2_status fails_deep_down(int n)
{
    if (n == 0) return m2_fail(M2_ERR_IO, "%s: no such file", "a.safetensors");
    M2_TRY(fails_deep_down(n - 1));
    return M2_OK;
}

/* Catches M2_TRY swallowing or changing a status, and a message that callers overwrite. */
static void a_failure_passes_up_with_its_first_message(void **state)
{
    (void)state;
    m2_clear_error();
    assert_string_equal(m2_last_error(), "");
    assert_int_equal(fails_deep_down(5), M2_ERR_IO);
    assert_string_equal(m2_last_error(), "a.safetensors: no such file");
}

/* Catches formatting straight into the buffer that an argument points to. */
static void a_message_may_quote_the_one_before(void **state)
{
    (void)state;
    m2_fail(M2_ERR_FORMAT, "inner");
    m2_fail(M2_ERR_MODEL, "outer: %s", m2_last_error());
    assert_string_equal(m2_last_error(), "outer: inner");
}

/* Catches an overrun by a message made of a file's bytes. */
static void an_endless_message_is_cut(void **state)
{
    (void)state;
    char text[10000];
    memset(text, 'x', sizeof text - 1);
    text[sizeof text - 1] = '\0';
    assert_int_equal(m2_fail(M2_ERR_ARG, "%s", text), M2_ERR_ARG);
    const size_t length = strlen(m2_last_error());
    assert_in_range(length, 4000, 4095);
}

static void *fail_in_thread(void *argument)
{
    m2_fail(M2_ERR_MEMORY, "other thread");
    strcpy(argument, m2_last_error());
    return NULL;
}

/* Catches a last error shared between threads. */
static void every_thread_has_its_own_last_error(void **state)
{
    (void)state;
    char other[64] = "";
    pthread_t thread;
    m2_fail(M2_ERR_ARG, "this thread");
    assert_int_equal(pthread_create(&thread, NULL, fail_in_thread, other), 0);
    assert_int_equal(pthread_join(thread, NULL), 0);
    assert_string_equal(other, "other thread");
    assert_string_equal(m2_last_error(), "this thread");
}

/* Catches a status added without a name. */
static void every_status_has_a_name_of_its_own(void **state)
{
    (void)state;
    for (int a = M2_OK; a <= M2_ERR_INTERNAL; a++) {
        assert_string_not_equal(m2_status_name((m2_status)a), "unknown");
        for (int b = M2_OK; b < a; b++)
            assert_string_not_equal(m2_status_name((m2_status)a), m2_status_name((m2_status)b));
    }
    assert_string_equal(m2_status_name((m2_status)-1), "unknown");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_failure_passes_up_with_its_first_message),
        cmocka_unit_test(a_message_may_quote_the_one_before),
        cmocka_unit_test(an_endless_message_is_cut),
        cmocka_unit_test(every_thread_has_its_own_last_error),
        cmocka_unit_test(every_status_has_a_name_of_its_own),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
