#include "support/check.h"
#include "support/company.h"

#include "core/log.h"
#include "core/threads.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

typedef struct log_record {
    pthread_mutex_t lock;
    int n_lines;
    m2_log_level level;
    char component[64];
    char text[5000];
} log_record;

static void keep(void *user, m2_log_level level, const char *component, const char *text)
{
    log_record *record = user;
    pthread_mutex_lock(&record->lock);
    record->n_lines++;
    record->level = level;
    snprintf(record->component, sizeof record->component, "%s", component);
    snprintf(record->text, sizeof record->text, "%s", text);
    pthread_mutex_unlock(&record->lock);
}

#define RECORD                                                                                     \
    {                                                                                              \
        .lock = PTHREAD_MUTEX_INITIALIZER                                                          \
    }

/* Catches a level compared the wrong way round. */
static void messages_above_the_level_are_dropped(void **state)
{
    (void)state;
    log_record record = RECORD;
    const m2_log log = { .write = keep, .user = &record, .level = M2_LOG_INFO };
    const m2_log *before = m2_log_bind(&log);
    m2_debug("pipeline", "not shown");
    assert_int_equal(record.n_lines, 0);
    m2_info("pipeline", "step %d", 17);
    assert_int_equal(record.n_lines, 1);
    assert_string_equal(record.component, "pipeline");
    assert_string_equal(record.text, "step 17");
    assert_ptr_equal(m2_log_bind(before), &log);
}

/* Without a log nothing is written and nothing crashes. */
static void an_unbound_thread_is_silent(void **state)
{
    (void)state;
    const m2_log *before = m2_log_bind(NULL);
    assert_null(m2_log_bound());
    m2_warn("io", "nobody hears %s", "this");
    m2_log_bind(before);
}

/* Catches a failure that is kept but never shown, or shown twice. */
static void a_failure_is_logged_once_as_an_error(void **state)
{
    (void)state;
    log_record record = RECORD;
    const m2_log log = { .write = keep, .user = &record, .level = M2_LOG_ERROR };
    const m2_log *before = m2_log_bind(&log);
    m2_fail(M2_ERR_IO, "disk full");
    m2_log_bind(before);
    assert_int_equal(record.n_lines, 1);
    assert_int_equal(record.level, M2_LOG_ERROR);
    assert_string_equal(record.text, "disk full");
}

static void log_from_loop(void *context, int64_t begin, int64_t end, int worker)
{
    m2_test_wait_for_company(context, worker);
    for (int64_t i = begin; i < end; i++) m2_info("test", "item %d", (int)i);
}

/* Catches workers that keep no log, or the log of an earlier loop. */
static void workers_log_where_the_caller_does(void **state)
{
    (void)state;
    log_record first = RECORD, second = RECORD;
    const m2_log log_first = { .write = keep, .user = &first, .level = M2_LOG_INFO };
    const m2_log log_second = { .write = keep, .user = &second, .level = M2_LOG_INFO };
    m2_pool *pool = NULL;
    check_ok(m2_pool_create(4, &pool));
    const m2_log *before = m2_log_bind(&log_first);
    atomic_uint seen[3] = { 0 };
    m2_parallel_for(pool, 100, 1, log_from_loop, &seen[0]);
    m2_log_bind(&log_second);
    m2_parallel_for(pool, 50, 1, log_from_loop, &seen[1]);
    assert_ptr_equal(m2_log_bound(), &log_second);
    m2_log_bind(NULL);
    m2_parallel_for(pool, 50, 1, log_from_loop, &seen[2]);
    m2_log_bind(before);
    m2_pool_destroy(pool);
    for (int i = 0; i < 3; i++) assert_true(m2_test_had_company(&seen[i]));
    assert_int_equal(first.n_lines, 100);
    assert_int_equal(second.n_lines, 50);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(messages_above_the_level_are_dropped),
        cmocka_unit_test(an_unbound_thread_is_silent),
        cmocka_unit_test(a_failure_is_logged_once_as_an_error),
        cmocka_unit_test(workers_log_where_the_caller_does),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
