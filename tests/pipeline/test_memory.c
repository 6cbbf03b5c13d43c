#include "support/check.h"

#include "clip_run.h"
#include "pipeline/engine.h"
#include "pipeline/memory.h"

#include <stdio.h>
#include <string.h>

/* More than any machine has. */
#define TOO_MUCH ((size_t)1 << 60)

/* What is free is looked at beside the limit, whether one is given or not.  Catches a run that is ended
 * by the system, hours later, as its pages are touched. */
static void a_plan_beyond_the_free_memory_is_refused(void **state)
{
    (void)state;
    static const size_t limits[] = { 0, 2 * TOO_MUCH };
    assert_true(m2_memory_available() > 0);
    for (int i = 0; i < 2; i++) {
        const m2_memory_plan more = { .wanted = TOO_MUCH }, less = { .wanted = 1 };
        check_fails(m2_memory_check(&more, limits[i]), M2_ERR_MEMORY, "MiB are free");
        check_ok(m2_memory_check(&less, limits[i]));
    }
    /* Mapped weights can be dropped and read again: they need not be free. */
    const m2_memory_plan mapped = { .mapped = TOO_MUCH, .wanted = 1 };
    check_ok(m2_memory_check(&mapped, 0));
}

static void count_reports(void *user, const magi2_progress *progress)
{
    (void)progress;
    ++*(int *)user;
}

/* What the weights need fits, the clip on top of it does not.  Catches a clip that is begun without its
 * own memory having been counted. */
static void a_clip_that_does_not_fit_is_refused_before_it_begins(void **state)
{
    (void)state;
    char *dir = m2_test_make_dir(), model[4096], save[4096];
    int n_reports = 0;
    clip_make_tiny_model(dir, model);
    snprintf(save, sizeof save, "%s/clip", dir);
    magi2_params params;
    magi2_params_init(&params);
    params.model_dir = model;
    params.backend = "cpu"; /* limits are of their own machine */
    m2_engine *weights = NULL;
    check_ok(m2_engine_open(&params, &weights));
    params.ram_limit = weights->mapped_bytes + weights->weights.used + M2_MEMORY_PROGRAM_BYTES;
    m2_engine_close(weights);
    magi2_engine *engine = NULL;
    if (magi2_open(&params, &engine) != MAGI2_OK) fail_msg("%s", magi2_last_error());
    magi2_request request;
    magi2_request_init(&request);
    request.prompt = "a red ball";
    request.n_steps = 1;
    request.save_dir = save;
    request.progress = count_reports;
    request.progress_user = &n_reports;
    assert_int_equal(magi2_generate(engine, &request, NULL), MAGI2_ERR_MEMORY);
    if (!strstr(magi2_last_error(), "the plan needs")) fail_msg("%s", magi2_last_error());
    assert_int_equal(n_reports, 0);
    magi2_close(engine);
    m2_test_remove_tree(dir);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_plan_beyond_the_free_memory_is_refused),
        cmocka_unit_test(a_clip_that_does_not_fit_is_refused_before_it_begins),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
