#include "support/check.h"

#include "model/text/tokenize_report.h"

#include <jansson.h>
#include <stdlib.h>
#include <string.h>

/* Both forms hold every token; JSON is JSON even where a token is half a character. */
static void both_forms_hold_every_token(void **state)
{
    (void)state;
    static const char text[] = "\xf0\xa0\x80\x80 \"q\"\n<Figure 1>";
    m2_tokenizer *tokenizer = NULL;
    check_ok(m2_tokenizer_open(m2_test_path("data/tokenizer/tokenizer.json"), &tokenizer));
    m2_tokens tokens;
    check_ok(m2_tokenizer_encode(tokenizer, text, strlen(text), NULL, &tokens));

    char *report = NULL;
    size_t bytes = 0;
    check_ok(m2_tokenize_report(tokenizer, text, strlen(text),
                                &(m2_tokenize_options){ .is_json = 1 }, &report, &bytes));
    json_t *json = json_loadb(report, bytes, JSON_REJECT_DUPLICATES, NULL);
    assert_non_null(json);
    assert_string_equal(json_string_value(json_object_get(json, "text")), text);
    assert_int_equal(json_integer_value(json_object_get(json, "n_tokens")), tokens.n);
    const json_t *list = json_object_get(json, "tokens");
    assert_int_equal(json_array_size(list), tokens.n);
    for (int64_t k = 0; k < tokens.n; k++) {
        const json_t *token = json_array_get(list, (size_t)k);
        assert_int_equal(json_integer_value(json_object_get(token, "id")), tokens.id[k]);
        assert_int_equal(json_integer_value(json_object_get(token, "begin")), tokens.begin[k]);
        assert_int_equal(json_integer_value(json_object_get(token, "end")), tokens.end[k]);
    }
    assert_string_equal(json_string_value(json_object_get(json_array_get(list, 0), "text")),
                        "\\xf0");
    json_decref(json);
    free(report);

    check_ok(m2_tokenize_report(tokenizer, text, strlen(text), &(m2_tokenize_options){ 0 }, &report,
                                &bytes));
    int n_lines = 0;
    for (size_t k = 0; k < bytes; k++) n_lines += report[k] == '\n';
    assert_int_equal(n_lines, tokens.n + 1);
    assert_int_equal(strlen(report), bytes);
    assert_non_null(strstr(report, "\"\\xf0\""));
    free(report);
    m2_tokens_free(&tokens);
    m2_tokenizer_close(tokenizer);
}

/* With a picture and JSON, what is tokenised is the compact text with the sentence. */
static void the_report_shows_what_the_encoder_sees(void **state)
{
    (void)state;
    static const char text[] = "{\"global_layer\": {\"context\": \"c\"}}";
    m2_tokenizer *tokenizer = NULL;
    check_ok(m2_tokenizer_open(m2_test_path("data/tokenizer/tokenizer.json"), &tokenizer));
    char *report = NULL;
    size_t bytes = 0;
    const m2_tokenize_options options = { .is_json = 1, .has_figure = 1 };
    check_ok(m2_tokenize_report(tokenizer, text, strlen(text), &options, &report, &bytes));
    assert_non_null(strstr(
        report, "\"text\": \"context: c\\nThe first frame refers to <Figure 1>\", \"n_tokens\""));
    free(report);
    check_fails(m2_tokenize_report(tokenizer, "", 0, &(m2_tokenize_options){ 0 }, &report, &bytes),
                M2_ERR_ARG, "empty");
    m2_tokenizer_close(tokenizer);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(both_forms_hold_every_token),
        cmocka_unit_test(the_report_shows_what_the_encoder_sees),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
