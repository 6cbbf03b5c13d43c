#include "support/check.h"

#include "model/text/split_regex.h"
#include "model/text/unicode_ranges.h"

#include <stdio.h>
#include <string.h>

/* Pieces of `classes` as a string of lengths, "2 1 3". */
static void check_cuts(const char *pattern, const char *classes, const char *lengths)
{
    m2_split_regex *regex = NULL;
    m2_split_matcher *matcher = NULL;
    check_ok(m2_split_regex_create(pattern, "test", &regex));
    check_ok(m2_split_matcher_create(regex, &matcher));
    char got[256] = "";
    const size_t n = strlen(classes);
    for (size_t at = 0; at < n;) {
        size_t begin, end;
        check_ok(m2_split_matcher_next(matcher, (const uint8_t *)classes, n, at, &begin, &end));
        if (begin > at) sprintf(got + strlen(got), "%s-%zu", *got ? " " : "", begin - at);
        if (end > begin) sprintf(got + strlen(got), "%s%zu", *got ? " " : "", end - begin);
        at = end;
    }
    m2_split_matcher_destroy(matcher);
    m2_split_regex_destroy(regex);
    assert_string_equal(got, lengths);
}

/* What the pattern language means; a minus is text between matches.  Catches a class folded or
 * negated wrongly, a range read as three members, a lookahead over the wrong set. */
static void patterns_mean_what_they_say(void **state)
{
    (void)state;
    check_cuts("\\p{L}+", "abc  de", "3 -2 2");
    check_cuts("[^\\p{L}]+", "ab,,c", "-2 2 -1");
    check_cuts("[a-c]+|\\P{L}", "abcd1", "3 -1 1");
    check_cuts("\\s+(?!\\S)|\\s+", "   x", "2 1 -1");
    check_cuts("(?i:'s|'ve)", "'S'Ve's", "2 3 2");
    check_cuts("(?i:'s)", "'\x85", "2"); /* U+017F folds to s ... */
    check_cuts("'s", "'\x85", "-2");     /* ... but only there */
    check_cuts("(?i:[^s])", "sS\x85k", "-3 1");
    check_cuts("a{2,3}", "aaaaa", "3 2");
    check_cuts("[-a]+\\-", "-a--", "4");
    check_cuts("(?:a|b)(?=c)", "acbd", "1 -3");
    check_cuts("[\\s\\p{N}]", "\x83\x82\x84", "1 1 -1");
}

/* Every part of a pattern that is not understood is refused, named, and not guessed at. */
static void other_syntax_is_refused(void **state)
{
    (void)state;
    static const char *const patterns[] = {
        "a.",          "^a",         "a$",      "\\d",     "\\w+",  "\\p{Lu}", "\\pL",
        "[[:alpha:]]", "[a&&b]",     "(?<=a)b", "(?<n>a)", "\\x41", "a{2}+",   "a{,3}",
        "\xc3\xa9",    "[\xc3\xa9]", "[a-\\s]", "[z-a]",   "(a",    "a)",      "[a",
        "\\",          "(?x)a",      "(*F)",    "[]a]"
    };
    for (size_t k = 0; k < sizeof patterns / sizeof *patterns; k++) {
        m2_split_regex *regex = NULL;
        if (m2_split_regex_create(patterns[k], "file", &regex) != M2_ERR_UNSUPPORTED)
            fail_msg("'%s' was taken", patterns[k]);
        assert_null(regex);
        assert_non_null(strstr(m2_last_error(), "file: the split pattern"));
    }
    m2_split_regex *regex = NULL;
    check_fails(m2_split_regex_create("a*", "file", &regex), M2_ERR_UNSUPPORTED, "empty text");
    check_fails(m2_split_regex_create("+a", "file", &regex), M2_ERR_FORMAT, "no regex");
}

/* A pattern that backtracks without end stops with an error. */
static void a_pattern_without_end_stops(void **state)
{
    (void)state;
    m2_split_regex *regex = NULL;
    m2_split_matcher *matcher = NULL;
    char text[64];
    size_t begin, end;
    memset(text, 'a', sizeof text);
    check_ok(m2_split_regex_create("(?:a+)+[bc]", "file", &regex));
    check_ok(m2_split_matcher_create(regex, &matcher));
    check_fails(m2_split_matcher_next(matcher, (const uint8_t *)text, sizeof text, 0, &begin, &end),
                M2_ERR_FORMAT, "split pattern");
    m2_split_matcher_destroy(matcher);
    m2_split_regex_destroy(regex);
}

/* Points where libraries and versions of Unicode disagree are where the committed table says. */
static void characters_have_the_classes_of_the_committed_table(void **state)
{
    (void)state;
    static const struct {
        uint32_t code_point;
        uint8_t class;
    } points[] = { { 'a', 'a' },
                   { 0x1c, 0x1c }, /* Python's white space, not the pattern's   */
                   { 0x85, M2_CHAR_SPACE },
                   { 0xa0, M2_CHAR_SPACE },
                   { 0xaa, M2_CHAR_LETTER },
                   { 0xb2, M2_CHAR_NUMBER },
                   { 0x17f, M2_CHAR_LONG_S },
                   { 0x212a, M2_CHAR_KELVIN },
                   { 0x180e, M2_CHAR_OTHER }, /* was a space until Unicode 6.3             */
                   { 0x200b, M2_CHAR_OTHER },
                   { 0x301, M2_CHAR_MARK },
                   { 0xfe0f, M2_CHAR_MARK },
                   { 0x1c89, M2_CHAR_LETTER }, /* Unicode 16 */
                   { 0x3000, M2_CHAR_SPACE },
                   { 0x10ffff, M2_CHAR_OTHER },
                   { 0x20000, M2_CHAR_LETTER } };
    m2_char_map map;
    check_ok(m2_char_map_create(&map));
    for (size_t k = 0; k < sizeof points / sizeof *points; k++)
        if (m2_char_map_get(&map, points[k].code_point) != points[k].class)
            fail_msg("U+%04X is 0x%02x", points[k].code_point,
                     m2_char_map_get(&map, points[k].code_point));
    m2_char_map_destroy(&map);
    const m2_unicode_set *const sets[] = { &m2_unicode_letters,  &m2_unicode_marks,
                                           &m2_unicode_numbers,  &m2_unicode_white_space,
                                           &m2_unicode_word,     &m2_unicode_nfc_active,
                                           &m2_unicode_printable };
    for (size_t s = 0; s < sizeof sets / sizeof *sets; s++)
        for (int k = 0; k < sets[s]->n_ranges; k++) {
            assert_true(sets[s]->ranges[k].first <= sets[s]->ranges[k].last);
            assert_true(k == 0 || sets[s]->ranges[k - 1].last + 1 < sets[s]->ranges[k].first);
        }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(patterns_mean_what_they_say),
        cmocka_unit_test(other_syntax_is_refused),
        cmocka_unit_test(a_pattern_without_end_stops),
        cmocka_unit_test(characters_have_the_classes_of_the_committed_table),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
