#include "support/check.h"
#include "support/files.h"
#include "tokenizer_file.h"

#include "core/log.h"
#include "model/text/tokenizer.h"

#include <jansson.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define SPECIAL                                                                                    \
    "{\"id\":%d,\"content\":\"%s\",\"special\":true,\"normalized\":%s,\"single_word\":%s,"         \
    "\"lstrip\":%s,\"rstrip\":%s}"

static m2_tokenizer *open_data(void)
{
    m2_tokenizer *tokenizer = NULL;
    check_ok(m2_tokenizer_open(m2_test_path("data/tokenizer/tokenizer.json"), &tokenizer));
    return tokenizer;
}

/* "id[begin,end) ..." */
static void check_tokens(const m2_tokenizer *tokenizer, const char *text, const char *wanted)
{
    m2_tokens tokens;
    char got[1024] = "";
    check_ok(m2_tokenizer_encode(tokenizer, text, strlen(text), NULL, &tokens));
    for (int64_t k = 0; k < tokens.n; k++)
        sprintf(got + strlen(got), "%s%d[%lld,%lld)", k ? " " : "", tokens.id[k],
                (long long)tokens.begin[k], (long long)tokens.end[k]);
    m2_tokens_free(&tokens);
    assert_string_equal(got, wanted);
}

static void check_lines(const m2_tokenizer *tokenizer, const char *path,
                        const m2_encode_options *options, int min_lines)
{
    size_t bytes;
    char *text = m2_test_read_file(m2_test_path(path), &bytes);
    int n = 0;
    for (char *line = text, *end; (end = strchr(line, '\n')); line = end + 1, n++) {
        json_t *json = json_loadb(line, (size_t)(end - line), JSON_ALLOW_NUL, NULL);
        const json_t *input = json_object_get(json, "text"), *ids = json_object_get(json, "ids"),
                     *offsets = json_object_get(json, "offsets");
        assert_true(json_is_array(ids) && json_is_array(offsets));
        m2_tokens tokens;
        check_ok(m2_tokenizer_encode(tokenizer, json_string_value(input), json_string_length(input),
                                     options, &tokens));
        assert_int_equal(tokens.n, json_array_size(ids));
        for (int64_t k = 0; k < tokens.n; k++) {
            const json_t *range = json_array_get(offsets, (size_t)k);
            if (tokens.id[k] != json_integer_value(json_array_get(ids, (size_t)k)) ||
                tokens.begin[k] != json_integer_value(json_array_get(range, 0)) ||
                tokens.end[k] != json_integer_value(json_array_get(range, 1)))
                fail_msg("%s:%d: token %lld differs", path, n + 1, (long long)k);
        }
        m2_tokens_free(&tokens);
        json_decref(json);
    }
    free(text);
    assert_true(n >= min_lines);
}

/* Ids and offsets recorded from the reference's library: random Unicode with the extra split, plain
 * text without it. */
static void recorded_texts_give_their_ids_and_offsets(void **state)
{
    (void)state;
    m2_tokenizer *tokenizer = open_data();
    m2_encode_options options;
    m2_encode_options_init(&options);
    options.takes_empty = 1;
    options.max_tokens = 0;
    check_lines(tokenizer, "data/tokenizer/fuzz.jsonl", &options, 40);
    options.has_cjk_split = 0;
    check_lines(tokenizer, "data/tokenizer/cases_without_cjk_split.jsonl", &options, 100);
    m2_tokenizer_close(tokenizer);
}

/* Merges come as pairs or as "a b"; both layouts are one tokenizer. */
static void both_layouts_of_merges_are_read(void **state)
{
    (void)state;
    char *dir = m2_test_make_dir();
    const char *const merges[] = { "h e", "l l", "he ll", "\xc4\xa0 w", NULL };
    for (int as_pairs = 0; as_pairs < 2; as_pairs++) {
        char *path = test_write_tokenizer(dir, merges, as_pairs, "[]");
        m2_tokenizer *tokenizer = NULL;
        check_ok(m2_tokenizer_open(path, &tokenizer));
        check_tokens(tokenizer, "hello w", "258[0,4) 111[4,5) 259[5,7)");
        /* A capital from A to U is cut off; V is not. */
        check_tokens(tokenizer, "Hell", "72[0,1) 101[1,2) 257[2,4)");
        m2_tokenizer_close(tokenizer);
        free(path);
    }
    m2_test_remove_tree(dir);
}

/* Added tokens stand before all else: longest first, with the white space their flags take, not
 * inside a word where that is asked, in NFC text where they are `normalized`. */
static void added_tokens_obey_their_flags(void **state)
{
    (void)state;
    char *dir = m2_test_make_dir(), added[2048];
    sprintf(added, "[" SPECIAL "," SPECIAL "," SPECIAL "," SPECIAL "," SPECIAL "," SPECIAL "]", 300,
            "<a>", "false", "false", "false", "false", 301, "<a>b", "false", "false", "false",
            "false", 302, "<l>", "false", "false", "true", "false", 303, "<r>", "false", "false",
            "false", "true", 304, "<w>", "false", "true", "false", "false", 305, "\xc3\xa9\xc3\xa9",
            "true", "false", "false", "false");
    char *path = test_write_tokenizer(dir, NULL, 0, added);
    m2_tokenizer *tokenizer = NULL;
    check_ok(m2_tokenizer_open(path, &tokenizer));
    check_tokens(tokenizer, "<a><a>b", "300[0,3) 301[3,7)");
    check_tokens(tokenizer, "x \n<l>", "120[0,1) 302[1,6)");
    check_tokens(tokenizer, "<r> \xe3\x80\x80x", "303[0,5) 120[5,6)");
    check_tokens(tokenizer, "<r> <l>", "303[0,4) 302[4,7)");
    check_tokens(tokenizer, "<w>-", "304[0,3) 45[3,4)");
    check_tokens(tokenizer, "v<w>", "118[0,1) 60[1,2) 119[2,3) 62[3,4)");
    check_tokens(tokenizer,
                 "\xc3\xa9"
                 "e\xcc\x81"
                 "x",
                 "305[0,2) 120[3,4)");
    assert_int_equal(m2_tokenizer_n_ids(tokenizer), 306);
    m2_buffer word = { 0 };
    assert_true(m2_tokenizer_append_token(tokenizer, 305, &word));
    assert_string_equal(word.data, "\xc3\xa9\xc3\xa9");
    m2_buffer_clear(&word);
    assert_true(m2_tokenizer_append_token(tokenizer, 0xe9, &word)); /* a byte, not a character */
    assert_string_equal(word.data, "\xe9");
    assert_false(m2_tokenizer_append_token(tokenizer, 299, &word));
    assert_false(m2_tokenizer_append_token(tokenizer, -1, &word));
    m2_buffer_free(&word);
    m2_tokenizer_close(tokenizer);
    free(path);
    m2_test_remove_tree(dir);
}

static void remember(void *user, m2_log_level level, const char *component, const char *text)
{
    if (level == M2_LOG_WARNING) snprintf(user, 512, "%s: %s", component, text);
}

/* 7,000 tokens pass silently, one more is cut on the right, with both counts in a warning. */
static void a_long_prompt_is_cut_with_both_counts(void **state)
{
    (void)state;
    m2_tokenizer *tokenizer = open_data();
    char text[9000], warning[512] = "";
    memset(text, '7', sizeof text); /* digits are one token each */
    const m2_log log = { remember, warning, M2_LOG_WARNING };
    const m2_log *before = m2_log_bind(&log);
    m2_tokens tokens;
    check_ok(m2_tokenizer_encode(tokenizer, text, 7000, NULL, &tokens));
    assert_int_equal(tokens.n, 7000);
    assert_string_equal(warning, "");
    m2_tokens_free(&tokens);
    check_ok(m2_tokenizer_encode(tokenizer, text, 9000, NULL, &tokens));
    assert_int_equal(tokens.n, 7000);
    assert_int_equal(tokens.n_total, 9000);
    assert_int_equal(tokens.end[6999], 7000);
    assert_non_null(strstr(warning, "9000"));
    assert_non_null(strstr(warning, "7000"));
    m2_tokens_free(&tokens);
    m2_log_bind(before);
    m2_tokenizer_close(tokenizer);
}

/* The place of the fault is named: bytes and characters differ behind other than ASCII. */
static void text_that_is_no_utf8_is_refused_with_its_place(void **state)
{
    (void)state;
    static const char *const bad[] = {
        "ok \xc3\xa9 \xff",     "ok \xc3\xa9 \xc0\x80",         "ok \xc3\xa9 \xed\xa0\x80",
        "ok \xc3\xa9 \xe2\x82", "ok \xc3\xa9 \xf4\x90\x80\x80", "ok \xc3\xa9 \x80"
    };
    m2_tokenizer *tokenizer = open_data();
    m2_tokens tokens;
    for (size_t k = 0; k < sizeof bad / sizeof *bad; k++)
        check_fails(m2_tokenizer_encode(tokenizer, bad[k], strlen(bad[k]), NULL, &tokens),
                    M2_ERR_ARG, "not UTF-8: byte 6");
    check_fails(m2_tokenizer_encode(tokenizer, "", 0, NULL, &tokens), M2_ERR_ARG, "empty");
    m2_tokenizer_close(tokenizer);
}

/* Escapes are not read: a backslash and an n are two characters. */
static void a_backslash_n_is_no_line_break(void **state)
{
    (void)state;
    m2_tokenizer *tokenizer = open_data();
    m2_tokens two, one;
    check_ok(m2_tokenizer_encode(tokenizer, "a\\nb", 4, NULL, &two));
    check_ok(m2_tokenizer_encode(tokenizer, "a\nb", 3, NULL, &one));
    assert_true(two.end[two.n - 1] == 4 && one.end[one.n - 1] == 3);
    assert_true(two.n != one.n || memcmp(two.id, one.id, (size_t)one.n * sizeof *one.id) != 0);
    m2_tokens_free(&two);
    m2_tokens_free(&one);
    m2_tokenizer_close(tokenizer);
}

/* A file that asks for something else is refused, and the message says what. */
static void other_kinds_of_tokenizer_are_refused(void **state)
{
    (void)state;
    static const struct {
        const char *part, *text, *message;
        m2_status status;
    } cases[] = {
        { "normalizer", "{\"type\":\"NFKC\"}", "NFKC", M2_ERR_UNSUPPORTED },
        { "normalizer", "{\"type\":\"Sequence\",\"normalizers\":[]}", "Sequence",
          M2_ERR_UNSUPPORTED },
        { "pre_tokenizer", "{\"type\":\"Whitespace\"}", "Whitespace", M2_ERR_UNSUPPORTED },
        { "pre_tokenizer", "null", "pre_tokenizer", M2_ERR_UNSUPPORTED },
        { "post_processor", "{\"type\":\"TemplateProcessing\"}", "Template", M2_ERR_UNSUPPORTED },
        { "model_head", "\"type\":\"WordPiece\",", "WordPiece", M2_ERR_UNSUPPORTED },
        { "model_head", "", "not given", M2_ERR_UNSUPPORTED },
        { "model_head", "\"type\":\"BPE\",\"dropout\":0.1,", "dropout", M2_ERR_UNSUPPORTED },
        { "model_head", "\"type\":\"BPE\",\"byte_fallback\":true,", "byte_fallback",
          M2_ERR_UNSUPPORTED },
        { "model_head", "\"type\":\"BPE\",\"ignore_merges\":true,", "ignore_merges",
          M2_ERR_UNSUPPORTED },
        { "model_head", "\"type\":\"BPE\",\"end_of_word_suffix\":\"</w>\",", "suffix",
          M2_ERR_UNSUPPORTED },
        { "model_head", "\"type\":\"BPE\",\"scores\":[],", "scores", M2_ERR_UNSUPPORTED },
        { "model_head", "\"type\":\"BPE\",\"type\":\"BPE\",", "twice", M2_ERR_FORMAT },
    };
    char *dir = m2_test_make_dir();
    for (size_t k = 0; k < sizeof cases / sizeof *cases; k++) {
        char *path = test_write_tokenizer_with(dir, cases[k].part, cases[k].text);
        m2_tokenizer *tokenizer = NULL;
        check_fails(m2_tokenizer_open(path, &tokenizer), cases[k].status, cases[k].message);
        assert_null(tokenizer);
        free(path);
    }
    m2_test_remove_tree(dir);
}

static void damaged_files_are_refused(void **state)
{
    (void)state;
    static const char *const merges[] = { "a b", NULL };
    char *dir = m2_test_make_dir();
    char *path = test_write_tokenizer(dir, merges, 0, "[{\"id\":256,\"content\":\"x\"}]");
    m2_tokenizer *tokenizer = NULL;
    check_fails(m2_tokenizer_open(path, &tokenizer), M2_ERR_FORMAT, "another");
    free(path);
    path = test_write_tokenizer(dir, merges, 0, "[{\"id\":300,\"content\":\"\"}]");
    check_fails(m2_tokenizer_open(path, &tokenizer), M2_ERR_UNSUPPORTED, "content");
    free(path);
    path = test_write_tokenizer(dir, merges, 0, "[]");
    size_t bytes;
    char *text = m2_test_read_file(path, &bytes);
    /* Cut anywhere, it is not a tokenizer. */
    for (size_t n = 0; n < bytes; n += 97) {
        m2_test_write_file(path, text, n);
        assert_int_not_equal(m2_tokenizer_open(path, &tokenizer), M2_OK);
    }
    /* A merge of what is not there, an id twice, a byte without a token. */
    char *at = strstr(text, "\"a b\"");
    memcpy(at, "\"a c\"", 5);
    m2_test_write_file(path, text, bytes);
    check_fails(m2_tokenizer_open(path, &tokenizer), M2_ERR_FORMAT, "the whole");
    memcpy(at, "\"a b\"", 5);
    at = strstr(text, "\"a\":97");
    memcpy(at, "\"a\":96", 6);
    m2_test_write_file(path, text, bytes);
    check_fails(m2_tokenizer_open(path, &tokenizer), M2_ERR_FORMAT, "twice");
    memcpy(at, "\"a\":97", 6);
    at = strstr(text, "\"z\":122");
    memcpy(at, "\"z\":-12", 7);
    m2_test_write_file(path, text, bytes);
    check_fails(m2_tokenizer_open(path, &tokenizer), M2_ERR_FORMAT, "'z'");
    check_fails(m2_tokenizer_open("/nonexistent/tokenizer.json", &tokenizer), M2_ERR_IO,
                "cannot open");
    free(text);
    free(path);
    m2_test_remove_tree(dir);
}

static void *encode_many(void *context)
{
    const m2_tokenizer *tokenizer = context;
    const char *text = "A tall woman's caf\xc3\xa9, \xe4\xbd\xa0\xe5\xa5\xbd <|im_end|> 12:34";
    uintptr_t sum = 1;
    for (int k = 0; k < 200; k++) {
        m2_tokens tokens;
        if (m2_tokenizer_encode(tokenizer, text, strlen(text), NULL, &tokens) != M2_OK) return NULL;
        uintptr_t hash = 7;
        for (int64_t j = 0; j < tokens.n; j++) hash = hash * 31 + (uintptr_t)tokens.id[j];
        if (k > 0 && hash != sum) return NULL;
        sum = hash;
        m2_tokens_free(&tokens);
    }
    return (void *)sum;
}

/* One open tokenizer serves many threads. */
static void threads_share_a_tokenizer(void **state)
{
    (void)state;
    m2_tokenizer *tokenizer = open_data();
    pthread_t threads[4];
    for (int k = 0; k < 4; k++)
        assert_int_equal(pthread_create(&threads[k], NULL, encode_many, tokenizer), 0);
    void *first = NULL, *other;
    for (int k = 0; k < 4; k++) {
        pthread_join(threads[k], k ? &other : &first);
        assert_non_null(first);
        assert_true(k == 0 || other == first);
    }
    m2_tokenizer_close(tokenizer);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(recorded_texts_give_their_ids_and_offsets),
        cmocka_unit_test(both_layouts_of_merges_are_read),
        cmocka_unit_test(added_tokens_obey_their_flags),
        cmocka_unit_test(a_long_prompt_is_cut_with_both_counts),
        cmocka_unit_test(text_that_is_no_utf8_is_refused_with_its_place),
        cmocka_unit_test(a_backslash_n_is_no_line_break),
        cmocka_unit_test(other_kinds_of_tokenizer_are_refused),
        cmocka_unit_test(damaged_files_are_refused),
        cmocka_unit_test(threads_share_a_tokenizer),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
