#include "support/check.h"
#include "support/files.h"

#include "core/log.h"
#include "model/text/prompt.h"
#include "model/text/pyjson.h"

#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef m2_status rewrite(const char *text, size_t bytes, char **text_out, size_t *bytes_out);

static void check_rewrite(rewrite *apply, const char *text, const char *wanted)
{
    char *got = NULL;
    size_t bytes;
    check_ok(apply(text, strlen(text), &got, &bytes));
    assert_string_equal(got, wanted);
    assert_int_equal(bytes, strlen(wanted));
    free(got);
}

/* The reference's own results for JSON prompts with damage in odd places. */
static void recorded_prompts_give_their_text(void **state)
{
    (void)state;
    size_t n;
    char *text = m2_test_read_file(m2_test_path("data/prompt/fuzz.jsonl"), &n);
    int n_lines = 0;
    for (char *line = text, *end; (end = strchr(line, '\n')); line = end + 1, n_lines++) {
        json_t *json = json_loadb(line, (size_t)(end - line), 0, NULL);
        const char *input = json_string_value(json_object_get(json, "input"));
        const char *with_figure = json_string_value(json_object_get(json, "with_figure"));
        assert_true(input && with_figure);
        check_rewrite(m2_prompt_normalise, input,
                      json_string_value(json_object_get(json, "expected")));
        check_rewrite(m2_prompt_add_figure, input, with_figure);
        check_rewrite(m2_prompt_normalise, with_figure,
                      json_string_value(json_object_get(json, "normalized")));
        json_decref(json);
    }
    assert_true(n_lines >= 20);
    free(text);
}

/* What is no JSON object with a global layer passes byte for byte. */
static void other_text_stays_as_it_is(void **state)
{
    (void)state;
    static const char *const texts[] = {
        "# A caption\n\n- of many lines\n- with \\n and \\t\n",
        "{\"a\": 1}",
        "[1, 2]",
        " 7 ",
        "{\"global_layer\": {}}",
        "{\"global_layer\": null, \"dynamic_layer\": {}}",
        "{\"global_layer\": {\"context\": \"x\"}} trailing",
        "{\"global_layer\": {\"context\": 'x'}}",
        "{\"global_layer\": {\"context\": \"x\",}}",
        "{\"global_layer\": {\"context\": \"a\tb\"}}",
        "\xef\xbb\xbf{\"global_layer\": {\"context\": \"x\"}}",
        "",
        /* Python's TypeError: a number, true or NaN cannot be walked */
        "{\"global_layer\": 1, \"dynamic_layer\": {\"timeline_segments\": [{\"objects\": true}]}}",
        "{\"global_layer\": 1, \"dynamic_layer\": {\"timeline_segments\": [{\"objects\": NaN}]}}",
        "{\"global_layer\": 1, \"dynamic_layer\": {\"timeline_segments\": [{\"objects\": 7}]}}",
    };
    for (size_t k = 0; k < sizeof texts / sizeof *texts; k++)
        check_rewrite(m2_prompt_normalise, texts[k], texts[k]);
}

/* Rules that are easy to get wrong, one a line. */
static void compact_text_follows_the_rules(void **state)
{
    (void)state;
    static const char *const cases[][2] = {
        { "{\"global_layer\": {\"context\": \" a \\n b\"}}", "context: a b" },
        { "{\"global_layer\": {\"description\": \"d\"}}", "context\nd" },
        { "{\"global_layer\": {\"context\": 1e16, \"context\": 100000.0}}", "context: 100000.0" },
        { "{\"global_layer\": {\"context\": -0}}", "context: 0" },
        { "{\"global_layer\": {\"context\": {\"k\": [true, null, \"it's\"]}}}",
          "context: {'k': [True, \"it's\"]}" },
        { "{\"global_layer\": {\"audio_baseline\": {\"dialogue\": {\"speaker_tags\": \"s\"}}}}",
          "audio: speakers=s" },
        { "{\"global_layer\": {\"objects_static\": [{\"position\": \"p\"}, 3]}}",
          "objects:\n -  :: p" },
        { "{\"global_layer\": {\"alive_subjects_static\": [{\"subject_id\": 1, \"orientation\": "
          "\"o\"}]}}",
          "subjects:\n - 1 (o)" },
        { "{\"global_layer\": 1, \"dynamic_layer\": {\"timeline_segments\": [{\"objects\": -0.0, "
          "\"alive_subjects\": \"ab\"}]}}",
          "timeline:\n -" },
        { "{\"global_layer\": 1, \"reference_layer\": [\" a  b \", \" \", 2]}", " a  b \n2" },
        { "{\"global_layer\": \"x\"}", "" },
    };
    for (size_t k = 0; k < sizeof cases / sizeof *cases; k++)
        check_rewrite(m2_prompt_normalise, cases[k][0], cases[k][1]);
}

typedef struct warnings {
    int n;
    char text[300];
} warnings;

static void keep_warning(void *user, m2_log_level level, const char *component, const char *text)
{
    warnings *kept = user;
    assert_int_equal(level, M2_LOG_WARNING);
    assert_string_equal(component, "prompt");
    kept->n++;
    snprintf(kept->text, sizeof kept->text, "%s", text);
}

/* A comma too many makes a caption plain text, and a part of another kind is left out: one line says so
 * and where, as nothing else would.  What is plain text from the start is no reason for a word. */
static void captions_that_are_not_taken_whole_are_warned_of(void **state)
{
    (void)state;
    static const char *const cases[][2] = {
        { "a ball {\"x\"}", NULL },
        { "[1, 2", NULL },
        { "{\"global_layer\": {\"context\": \"x\", \"aesthetics\": null}}", NULL },
        /* Nothing is lost where there is nothing: what Python takes for false. */
        { "{\"global_layer\": {\"context\": \"x\", \"aesthetics\": \"\", \"objects_static\": 0, "
          "\"alive_subjects_static\": false, \"audio_baseline\": {\"dialogue\": 0.0}}}",
          NULL },
        { "{\"global_layer\": {\"objects_static\": [\"\", null, false, 0, -0, -0.0, [], {}]}, "
          "\"dynamic_layer\": {\"timeline_segments\": [{\"audio\": \"\", \"objects\": 0, "
          "\"alive_subjects\": {}}]}, \"reference_layer\": \"\"}",
          NULL },
        { "{\"global_layer\": {\"objects_static\": [\"\", true]}}",
          "JSON an item of \"objects_static\" is not an object; that is left out" },
        { "{\"global_layer\": {\"context\": \"x\",}}",
          "a string is missing at line 1, column 34; it is taken as plain text" },
        { "\n {\"a\":\n\"\xc3\xa9\" \"b\"}", "a comma is missing at line 3, column 5;" },
        { "{a cat}", "a string is missing at line 1, column 2;" },
        { "{\"a\": 1} x", "text behind the value at line 1, column 10;" },
        { "{\"a\": 1}", "without a \"global_layer\"; it is taken as plain text" },
        { "{\"global_layer\": {}, \"reference_layer\": [\"x\"]}",
          "it is JSON with nothing in its \"global_layer\"; it is taken as plain text" },
        { "{\"global_layer\": null}", "with nothing in its \"global_layer\"" },
        { "{\"global_layer\": {\"aesthetics\": \"oops\"}}",
          "JSON \"aesthetics\" is not an object; that is left out" },
        { "{\"global_layer\": {\"objects_static\": [{\"position\": \"p\"}, 3]}}",
          "JSON an item of \"objects_static\" is not an object; that is left out" },
        { "{\"global_layer\": [1], \"dynamic_layer\": {\"timeline_segments\": {\"a\": 1}}}",
          "JSON \"global_layer\" is not an object; that is left out, and 1 more like it" },
        { "{\"global_layer\": {\"audio_baseline\": []}, \"reference_layer\": 1}",
          "with nothing in its \"global_layer\"" },
        { "{\"global_layer\": 1, \"dynamic_layer\": {\"timeline_segments\": [{\"objects\": 7}]}}",
          "JSON \"objects\" is not a list; it is taken as plain text" },
    };
    for (size_t k = 0; k < sizeof cases / sizeof *cases; k++) {
        warnings kept = { 0, "" };
        const m2_log log = { .write = keep_warning, .user = &kept, .level = M2_LOG_WARNING };
        const m2_log *before = m2_log_bind(&log);
        char *got = NULL;
        size_t bytes;
        const m2_status status =
            m2_prompt_normalise(cases[k][0], strlen(cases[k][0]), &got, &bytes);
        m2_log_bind(before);
        check_ok(status);
        free(got);
        assert_int_equal(kept.n, cases[k][1] != NULL);
        if (cases[k][1] && !strstr(kept.text, cases[k][1]))
            fail_msg("%s: %s", cases[k][0], kept.text);
    }
}

static void a_picture_adds_its_sentence(void **state)
{
    (void)state;
    check_rewrite(m2_prompt_add_figure, "A kite.",
                  "A kite.reference_layer:The first frame refers to <Figure 1>");
    check_rewrite(m2_prompt_add_figure, "[1]",
                  "[1]reference_layer:The first frame refers to <Figure 1>");
    check_rewrite(m2_prompt_add_figure, "{\"reference_layer\": 1, \"b\": \"\\u00e9\\u0001/\"}",
                  "{\"reference_layer\": [\"The first frame refers to <Figure 1>\"], \"b\": "
                  "\"\xc3\xa9\\u0001/\"}");
    check_rewrite(m2_prompt_add_figure, "{\"b\": [NaN, -Infinity, 1E2, 12345678901234567890]}",
                  "{\"b\": [NaN, -Infinity, 100.0, 12345678901234567890], \"reference_layer\": "
                  "[\"The first frame refers to <Figure 1>\"]}");
}

/* Deep JSON is refused, not followed into the stack; a list is never read at all. */
static void deep_prompts_are_refused(void **state)
{
    (void)state;
    enum { DEEP = 100000 };
    char *text = malloc(DEEP * 5 + 1), *got = NULL;
    size_t bytes;
    assert_non_null(text);
    for (int k = 0; k < DEEP; k++) memcpy(text + k * 5, "{\"a\":", 5);
    check_fails(m2_prompt_normalise(text, DEEP * 5, &got, &bytes), M2_ERR_ARG, "deeper than 200");
    check_fails(m2_prompt_add_figure(text, DEEP * 5, &got, &bytes), M2_ERR_ARG, "deeper than 200");
    memset(text, '[', DEEP);
    check_ok(m2_prompt_normalise(text, DEEP, &got, &bytes));
    assert_int_equal(bytes, DEEP);
    free(got);
    free(text);
    check_fails(m2_prompt_normalise("{\"\xff\": 1}", 8, &got, &bytes), M2_ERR_ARG, "byte 2");
}

/* Floats print as Python's repr; the last three are where the nearest decimal of 16 digits does not
 * read back but its neighbour does, a denormal, and the largest. */
static void floats_print_with_the_fewest_digits(void **state)
{
    (void)state;
    static const struct {
        double x;
        const char *text;
    } cases[] = { { 0.1, "0.1" },
                  { -0.0, "-0.0" },
                  { 100000, "100000.0" },
                  { 1e-4, "0.0001" },
                  { 1e-5, "1e-05" },
                  { 1e16, "1e+16" },
                  { 123456789012345680.0, "1.2345678901234568e+17" },
                  { 9007199254740993.0, "9007199254740992.0" },
                  { 0.1 + 0.2, "0.30000000000000004" },
                  { 1e22, "1e+22" },
                  { 0x1p-44, "5.684341886080802e-14" },
                  { 5e-324, "5e-324" },
                  { 1.7976931348623157e308, "1.7976931348623157e+308" },
                  { INFINITY, "inf" },
                  { -INFINITY, "-inf" },
                  { NAN, "nan" } };
    for (size_t k = 0; k < sizeof cases / sizeof *cases; k++) {
        m2_buffer out = { 0 };
        m2_py_append_float(&out, cases[k].x);
        assert_string_equal(out.data, cases[k].text);
        m2_buffer_free(&out);
    }
    m2_test_random random = { 5 };
    for (int k = 0; k < 20000; k++) { /* whatever is printed reads back */
        const uint64_t bits = m2_test_random_u64(&random);
        double x;
        memcpy(&x, &bits, sizeof x);
        if (!isfinite(x)) continue;
        m2_buffer out = { 0 };
        m2_py_append_float(&out, x);
        assert_true(strtod(out.data, NULL) == x);
        m2_buffer_free(&out);
    }
}

/* Many equal keys: the first one's place, the last one's value. */
static void the_last_of_equal_keys_counts(void **state)
{
    (void)state;
    static const char text[] = "{\"b\": 1, \"a\": 2, \"b\": [3], \"c\": {}, \"a\": null, \"b\": 4}";
    m2_py_document *document = NULL;
    check_ok(m2_py_parse(text, strlen(text), &document, NULL));
    assert_non_null(document);
    m2_buffer out = { 0 };
    m2_py_append_str(&out, m2_py_root(document));
    assert_string_equal(out.data, "{'b': 4, 'a': None, 'c': {}}");
    m2_buffer_free(&out);
    m2_py_destroy(document);
}

/* The tokens that share a character with the tag, and no other. */
static void figure_tokens_overlap_the_tag(void **state)
{
    (void)state;
    int64_t begin[] = { 0, 1, 0, 2, 3, 4, 11, 12 }, end[] = { 1, 2, 0, 4, 4, 12, 13, 14 };
    const m2_tokens tokens = { .n = 8, .n_total = 8, .begin = begin, .end = end };
    const char *text = "\xc3\xa9--<Figure 1>.<Figure 1>"; /* the tag is [3, 13) */
    int64_t *indices = NULL, n = -1;
    check_ok(m2_prompt_figure_tokens(&tokens, text, strlen(text), 1, &indices, &n));
    const int64_t wanted[] = { 3, 4, 5, 6, 7 };
    assert_int_equal(n, 5);
    assert_memory_equal(indices, wanted, sizeof wanted);
    free(indices);
    check_ok(m2_prompt_figure_tokens(&tokens, text, strlen(text), 2, &indices, &n));
    assert_int_equal(n, 0);
    assert_null(indices);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(recorded_prompts_give_their_text),
        cmocka_unit_test(other_text_stays_as_it_is),
        cmocka_unit_test(compact_text_follows_the_rules),
        cmocka_unit_test(captions_that_are_not_taken_whole_are_warned_of),
        cmocka_unit_test(a_picture_adds_its_sentence),
        cmocka_unit_test(deep_prompts_are_refused),
        cmocka_unit_test(floats_print_with_the_fewest_digits),
        cmocka_unit_test(the_last_of_equal_keys_counts),
        cmocka_unit_test(figure_tokens_overlap_the_tag),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
