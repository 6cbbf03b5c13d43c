/* `bench step` and `plan` as a user runs them, on the bundled model. */
#include "support/check.h"

#include "cli_run.h"

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static cli_result result;

/* The JSON objects of stdout, one a line. */
static json_t *lines_of(const char *out)
{
    json_t *lines = json_array();
    char *text = strdup(out);
    for (char *save = NULL, *line = strtok_r(text, "\n", &save); line;
         line = strtok_r(NULL, "\n", &save)) {
        json_error_t error;
        json_t *object = json_loads(line, JSON_REJECT_DUPLICATES, &error);
        if (!object) fail_msg("not JSON: %s: %s", error.text, line);
        json_array_append_new(lines, object);
    }
    free(text);
    return lines;
}

static json_t *event(json_t *lines, const char *name)
{
    size_t i;
    json_t *line;
    json_array_foreach(lines, i, line)
    {
        if (strcmp(json_string_value(json_object_get(line, "event")), name) == 0) return line;
    }
    fail_msg("no line of event %s", name);
    return NULL;
}

static double number(json_t *line, const char *key)
{
    json_t *value = json_object_get(line, key);
    if (!json_is_number(value)) fail_msg("%s is no number", key);
    return json_number_value(value);
}

/* Roofs, a line for each step that was timed, parts that add up to what the result says of them, and
 * the same bits in every run.  Catches figures of another run, parts that are counted twice or not at
 * all, FLOP in other units. */
static void a_step_is_measured_whole_and_by_parts(void **state)
{
    (void)state;
    cli_run(&result, "/tmp", "bench step --backend cpu --steps 2 --json");
    if (result.code != 0) fail_msg("exit %d: %s", result.code, result.err);
    json_t *lines = lines_of(result.out);
    json_t *roofs = event(lines, "roofs"), *all = event(lines, "result");
    assert_true(number(roofs, "flop_s") > 1e9 && number(roofs, "bytes_s") > 1e8);

    int n_steps = 0, has_attention = 0;
    double ms = 0, flop = 0, bytes = 0, limit = 0;
    size_t i;
    json_t *line;
    json_array_foreach(lines, i, line)
    {
        const char *name = json_string_value(json_object_get(line, "event"));
        n_steps += strcmp(name, "step") == 0;
        if (strcmp(name, "part") != 0) continue;
        has_attention |=
            strcmp(json_string_value(json_object_get(line, "op")), "attention_gated") == 0;
        ms += number(line, "ms");
        flop += number(line, "flop");
        bytes += number(line, "bytes");
        limit += number(line, "limit_ms");
    }
    assert_int_equal(n_steps, 2);
    assert_true(has_attention);
    check_near(ms, number(all, "parts_ms"), 1e-6 * ms, "parts");
    check_near(flop / number(all, "flop"), 1, 1e-9, "FLOP of the parts");
    check_near(bytes / number(all, "bytes"), 1, 1e-9, "bytes of the parts");
    check_near(limit / number(all, "limit_ms"), 1, 1e-9, "limits of the parts");
    assert_true(number(all, "parts_ms") <= number(all, "parts_whole_ms"));
    assert_true(number(all, "step_ms_min") <= number(all, "step_ms") &&
                number(all, "step_ms") <= number(all, "step_ms_max"));
    assert_true(json_is_true(json_object_get(all, "bits_equal")));
    assert_int_equal(json_array_size(json_object_get(all, "sha256")), 2);
    assert_true(number(all, "velocity_rms") > 0);
    /* 6 layers of 2,480 tokens: attention 0.0146 TFLOP of 0.0240, counted apart from this program */
    check_near(flop / 1e12, 0.02396, 1e-5, "TFLOP of the demo model");
    json_decref(lines);
}

/* The page names what it measured. */
static void the_page_is_for_people(void **state)
{
    (void)state;
    cli_run(&result, "/tmp", "bench step --backend cpu --steps 1");
    assert_int_equal(result.code, 0);
    static const char *const parts[] = {
        "tier demo, backend cpu", "roofs",    "a step",
        "attention_gated 6 x 32", "limit ms", "memory      planned",
        "bits        equal"
    };
    for (size_t i = 0; i < sizeof parts / sizeof parts[0]; i++)
        if (!strstr(result.out, parts[i])) fail_msg("no \"%s\" in:\n%s", parts[i], result.out);
}

/* A step of the release takes a CPU hours: what is measured and how long it takes at best is said before
 * the first, on stderr, which leaves the page and JSON alone.  Catches a run that says nothing until its
 * end, and one that talks where it is told to be quiet. */
static void what_it_takes_is_said_before_the_steps(void **state)
{
    (void)state;
    cli_run(&result, "/tmp", "bench step --backend cpu --steps 1 --json");
    assert_int_equal(result.code, 0);
    static const char *const parts[] = { "tier demo, backend cpu",
                                         "2480 tokens, 6 layers: 0.02396 TFLOP", "memory: weights ",
                                         "so a step takes ", "the about 11 that are run" };
    const char *at = result.err;
    for (size_t i = 0; i < sizeof parts / sizeof parts[0]; i++) {
        const char *next = strstr(at, parts[i]);
        if (!next) fail_msg("no \"%s\" in:\n%s", parts[i], at);
        at = next;
    }
    json_decref(lines_of(result.out));
    cli_run(&result, "/tmp", "bench step --backend cpu --steps 1 -q");
    assert_int_equal(result.code, 0);
    assert_string_equal(result.err, "");
}

/* The release's page comes before its first gigabyte is touched; a limit that holds nothing ends it. */
static void the_release_says_what_it_takes_before_it_is_refused(void **state)
{
    (void)state;
    cli_run(&result, "/tmp", "bench step --backend cpu --tier 272p --ram-limit 1G");
    assert_int_equal(result.code, 1);
    assert_non_null(strstr(result.err, "29616 tokens, 40 layers: 568.1 TFLOP"));
    assert_non_null(strstr(result.err, "--ram-limit allows 1024 MiB"));
}

/* One stage of the bundled model, by its own weights. */
static void a_stage_is_measured_whole_and_by_parts(void **state)
{
    (void)state;
    cli_run(&result, "/tmp", "bench stage --backend cpu --stage text --tokens 40 --steps 2 --json");
    if (result.code != 0) fail_msg("exit %d: %s", result.code, result.err);
    json_t *lines = lines_of(result.out);
    json_t *bench = event(lines, "bench"), *stage = event(lines, "stage");
    assert_true(json_is_false(json_object_get(bench, "synthetic")));
    assert_string_equal(json_string_value(json_object_get(event(lines, "part"), "stage")), "text");
    assert_string_equal(json_string_value(json_object_get(stage, "work")),
                        "40 tokens to features, 4 layers");
    assert_true(json_is_true(json_object_get(stage, "bits_equal")));
    assert_int_equal(json_array_size(json_object_get(stage, "runs_ms")), 2);
    assert_true(number(stage, "ms") > 0 && number(stage, "rms") > 0);
    json_decref(lines);
}

/* ---- plan ---- */

static json_t *plan(const char *arguments, int code)
{
    char command[256];
    snprintf(command, sizeof command, "plan --json %s", arguments);
    cli_run(&result, "/tmp", command);
    if (result.code != code) fail_msg("%s: exit %d: %s", command, result.code, result.err);
    json_t *lines = lines_of(result.out), *line = event(lines, "plan");
    json_incref(line);
    json_decref(lines);
    return line;
}

/* The released transformer is planned without a file and without a GPU, to the counts that were made
 * apart from this program: 568.1 and 4,662 TFLOP a step, 228 GB of weights. */
static void the_release_is_planned_without_files_or_gpu(void **state)
{
    (void)state;
    json_t *small = plan("--tier 272p --backend cuda", 0); /* nothing to hold it against */
    json_t *large = plan("--tier 540p --backend cuda --vram-limit 300G", 0);
    json_t *usual = json_object_get(small, "usual");
    check_near(number(usual, "step_flop") / 1e12, 568.1, 0.1, "272p");
    check_near(number(json_object_get(large, "usual"), "step_flop") / 1e12, 4662.3, 1, "540p");
    check_near(number(json_object_get(small, "weights"), "preview transformer") / 1e9, 228.1, 0.1,
               "weights");
    assert_int_equal(number(usual, "tokens"), 29616);
    assert_int_equal(number(small, "resident_moe_layers"), 36);
    assert_true(json_is_null(json_object_get(small, "model")));
    assert_int_equal(number(large, "resident_moe_layers"), 36);
    assert_true(json_is_true(json_object_get(large, "fits")));
    json_decref(small);
    json_decref(large);
}

static void check_mib(json_t *line, const char *key, double mib)
{
    check_near(number(line, key) / 0x1p20, mib, 0.51, "MiB of %s", key);
}

/* What `bench step` planned and took on an H200, whose driver gives 143,156 MiB: 22 MoE layers with experts
 * of their own at 272p, 19 at 540p, to the MiB.  Catches a plan by another rule than the measurement's, a
 * limit that leaves the driver's part out, a reserve that is forgotten. */
static void a_limit_is_planned_as_the_measurement_takes_it(void **state)
{
    (void)state;
    json_t *small = plan("--tier 272p --backend cuda --vram-limit 143156M", 1);
    json_t *large = plan("--tier 540p --backend cuda --vram-limit 143156M", 1);
    json_t *usual = json_object_get(small, "usual");
    assert_int_equal(number(small, "moe_layers"), 36);
    assert_int_equal(number(small, "resident_moe_layers"), 22);
    check_mib(json_object_get(small, "weights"), "preview transformer", 136901);
    check_mib(usual, "request_bytes", 45);
    check_mib(usual, "step_bytes", 4121);
    check_mib(usual, "planned_bytes", 141067);
    assert_int_equal(number(large, "resident_moe_layers"), 19);
    check_mib(json_object_get(large, "usual"), "planned_bytes", 135844);
    /* The whole model is another matter: a card that holds part of it is too small. */
    check_mib(small, "whole_model_bytes", 222379);
    assert_true(json_is_false(json_object_get(small, "fits_usual")));
    json_decref(small);
    json_decref(large);

    cli_run(&result, "/tmp", "plan --tier 272p --backend cuda --vram-limit 143156M");
    if (!strstr(result.out, "22 of 36 MoE layers have experts of their own, the others share them: "
                            "made-up weights, as bench step") ||
        !strstr(result.out, "what bench step takes fits; the whole model needs 222378.7 MiB: it "
                            "does not fit"))
        fail_msg("%s", result.out);
    /* One layer of its own is the least: 15,941 of weights, and 1,024 that stay free. */
    json_t *tiny = plan("--tier 272p --backend cuda --vram-limit 12G", 1);
    assert_int_equal(number(tiny, "resident_moe_layers"), 1);
    assert_true(json_is_false(json_object_get(tiny, "fits_usual")));
    json_decref(tiny);
}

/* Each limit is of one kind of machine; the other is refused by name, not passed over. */
static void limits_are_of_their_own_machine(void **state)
{
    (void)state;
    cli_run(&result, "/tmp", "plan --backend cuda --ram-limit 1K --vram-limit 1G");
    assert_int_equal(result.code, 2);
    assert_non_null(strstr(result.err, "--ram-limit is of the CPU"));
    cli_run(&result, "/tmp", "generate -p x -o a.mp4 --backend cuda --ram-limit 1K");
    assert_int_equal(result.code, 2);
    assert_non_null(strstr(result.err, "--ram-limit is of the CPU"));
    cli_run(&result, "/tmp", "plan --backend cpu --vram-limit 1G");
    assert_int_equal(result.code, 2);
    assert_non_null(strstr(result.err, "--vram-limit is of a GPU"));
}

/* A tier of the demo model's own is planned with the demo model, like no tier at all. */
static void a_tier_of_the_demo_model_is_planned_with_it(void **state)
{
    (void)state;
    json_t *named = plan("--tier demo --backend cuda --vram-limit 64G", 0);
    json_t *plain = plan("--backend cuda --vram-limit 64G", 0);
    assert_true(json_equal(named, plain));
    assert_string_equal(json_string_value(json_object_get(named, "tier")), "demo");
    assert_non_null(json_string_value(json_object_get(named, "model")));
    json_decref(named);
    json_decref(plain);
    cli_run(&result, "/tmp", "plan --tier 272p --backend cuda --vram-limit 8G");
    assert_non_null(strstr(result.out, "the released transformer, by its tables"));
    assert_non_null(strstr(result.err, "try a smaller --tier"));
}

/* Everything that the plan names adds up, and the limit decides at the very byte. */
static void a_plan_fits_its_own_sum_and_not_a_byte_less(void **state)
{
    (void)state;
    char arguments[128];
    json_t *line = plan("--backend cuda --vram-limit 64G", 0);
    json_t *weights = json_object_get(line, "weights"), *longest = json_object_get(line, "longest");
    const double sum = number(weights, "text encoder") + number(weights, "preview transformer") +
                       number(weights, "video decoder") + number(weights, "audio decoder") +
                       number(line, "overhead_bytes") + number(longest, "request_bytes") +
                       number(longest, "step_bytes");
    assert_true(sum == number(longest, "all_bytes"));
    json_decref(line);

    snprintf(arguments, sizeof arguments, "--backend cuda --vram-limit %.0f", sum);
    line = plan(arguments, 0);
    assert_true(json_is_true(json_object_get(line, "fits")));
    json_decref(line);
    snprintf(arguments, sizeof arguments, "--backend cuda --vram-limit %.0f", sum - 1);
    line = plan(arguments, 0);
    assert_true(json_is_false(json_object_get(line, "fits")));
    json_decref(line);
}

/* What plan says of the host is what generate refuses or takes. */
static void plan_and_generate_agree_on_a_limit(void **state)
{
    (void)state;
    char *dir = m2_test_make_dir();
    json_t *line = plan("--backend cpu --ram-limit 100M", 1);
    json_decref(line);
    cli_run(&result, dir, "generate -p 'a ball' --steps 1 -o a.mp4 --backend cpu --ram-limit 100M");
    assert_int_equal(result.code, 1);
    assert_non_null(strstr(result.err, "--ram-limit allows 100 MiB"));
    line = plan("--backend cpu --ram-limit 400M", 0);
    assert_true(json_is_true(json_object_get(line, "fits")));
    json_decref(line);
    cli_run(&result, dir, "generate -p 'a ball' --steps 1 -o a.mp4 --backend cpu --ram-limit 400M");
    if (result.code != 0) fail_msg("exit %d: %s", result.code, result.err);
    m2_test_remove_tree(dir);
}

int main(void)
{
    unsetenv("MAGI2_MODEL");
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_step_is_measured_whole_and_by_parts),
        cmocka_unit_test(the_page_is_for_people),
        cmocka_unit_test(what_it_takes_is_said_before_the_steps),
        cmocka_unit_test(the_release_says_what_it_takes_before_it_is_refused),
        cmocka_unit_test(a_stage_is_measured_whole_and_by_parts),
        cmocka_unit_test(the_release_is_planned_without_files_or_gpu),
        cmocka_unit_test(a_limit_is_planned_as_the_measurement_takes_it),
        cmocka_unit_test(limits_are_of_their_own_machine),
        cmocka_unit_test(a_tier_of_the_demo_model_is_planned_with_it),
        cmocka_unit_test(a_plan_fits_its_own_sum_and_not_a_byte_less),
        cmocka_unit_test(plan_and_generate_agree_on_a_limit),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
