#include "support/check.h"
#include "support/dies.h"

#include "core/trace.h"

#include <stdio.h>
#include <string.h>

typedef struct trace_record {
    int n_shown;
    char name[M2_TAP_NAME_MAX];
    const void *data;
    int64_t count;
} trace_record;

static int wants_attention(void *user, const char *name)
{
    (void)user;
    return strstr(name, ".attn_out") != NULL;
}

static void keep(void *user, const char *name, m2_tensor *tensor)
{
    trace_record *record = user;
    record->n_shown++;
    snprintf(record->name, sizeof record->name, "%s", name);
    record->data = tensor->data;
    record->count = m2_tensor_count(tensor);
}

/* Catches a tap that shows what nobody asked for, or formats the name wrongly. */
static void a_tap_shows_what_is_wanted(void **state)
{
    (void)state;
    float values[6] = { 0 };
    const m2_tensor tensor = m2_tensor_over(values, M2_F32, 2, 3);
    trace_record record = { 0 };
    m2_trace trace = { .wants = wants_attention, .show = keep, .user = &record };
    m2_tap(&trace, &tensor, "preview.%02d.%s", 7, "mlp_out");
    assert_int_equal(record.n_shown, 0);
    m2_tap(&trace, &tensor, "preview.%02d.%s", 7, "attn_out");
    assert_int_equal(record.n_shown, 1);
    assert_string_equal(record.name, "preview.07.attn_out");
    assert_ptr_equal(record.data, values);
    assert_int_equal(record.count, 6);
    trace.wants = NULL;
    m2_tap(&trace, &tensor, "any");
    assert_int_equal(record.n_shown, 2);
}

/* Networks call taps always: without a trace they must cost nothing and touch nothing. */
static void without_a_trace_nothing_happens(void **state)
{
    (void)state;
    const m2_tensor nowhere = m2_tensor_over((void *)(uintptr_t)64, M2_F32, 1000000);
    m2_tap(NULL, &nowhere, "a");
    m2_tap(&(m2_trace){ .user = NULL }, &nowhere, "a");
}

static void tap_a_long_name(void *argument)
{
    const m2_tensor tensor = m2_tensor_over(NULL, M2_F32, 0);
    m2_tap(argument, &tensor, "%200d", 1);
}

/* A cut name would be compared with the wrong entry. */
static void a_name_that_does_not_fit_aborts(void **state)
{
    (void)state;
    trace_record record = { 0 };
    m2_trace trace = { .show = keep, .user = &record };
    assert_true(m2_test_aborts(tap_a_long_name, &trace));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_tap_shows_what_is_wanted),
        cmocka_unit_test(without_a_trace_nothing_happens),
        cmocka_unit_test(a_name_that_does_not_fit_aborts),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
