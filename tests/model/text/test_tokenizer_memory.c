/* How much memory a prompt takes while it is turned to tokens: the linker puts the functions below in
 * the place of our own code's, and they count what is held. */
#include "tokenizer_file.h"

#include "support/check.h"
#include "support/files.h"

#include "model/text/tokenizer_internal.h"
#include "model/text/utf8.h"

#include <malloc.h>
#include <stdlib.h>
#include <string.h>

#define BYTES_PER_CHAR_MAX 64
#define N_CHARS            100000
#define MERGES_MAX         128

void *__real_malloc(size_t bytes);
void *__real_calloc(size_t count, size_t bytes);
void *__real_realloc(void *memory, size_t bytes);
void __real_free(void *memory);
void *__wrap_malloc(size_t bytes);
void *__wrap_calloc(size_t count, size_t bytes);
void *__wrap_realloc(void *memory, size_t bytes);
void __wrap_free(void *memory);

static size_t n_held, n_peak;

static void *count(void *memory)
{
    n_held += memory ? malloc_usable_size(memory) : 0;
    if (n_held > n_peak) n_peak = n_held;
    return memory;
}

void *__wrap_malloc(size_t bytes)
{
    return count(__real_malloc(bytes));
}

void *__wrap_calloc(size_t n, size_t bytes)
{
    return count(__real_calloc(n, bytes));
}

/* A large block is moved by its pages, so the old and the new one never lie side by side. */
void *__wrap_realloc(void *memory, size_t bytes)
{
    const size_t before = memory ? malloc_usable_size(memory) : 0;
    void *moved = __real_realloc(memory, bytes);
    if (!moved) return NULL;
    n_held -= before;
    return count(moved);
}

void __wrap_free(void *memory)
{
    n_held -= memory ? malloc_usable_size(memory) : 0;
    __real_free(memory);
}

/* A merge of the bytes `left` and `right`, as the file spells it. */
static char *make_merge(const char *left, const char *right)
{
    char *text = malloc(64), *to = text;
    assert_non_null(text);
    for (; *left; left++) to += m2_utf8_put(m2_byte_char((unsigned char)*left), to);
    *to++ = ' ';
    for (; *right; right++) to += m2_utf8_put(m2_byte_char((unsigned char)*right), to);
    *to = '\0';
    return text;
}

/* Merges that put whole characters together, then pairs of characters. */
static int merge_characters(char **merges)
{
    static const char *const pairs[][2] = {
        { "\xf0", "\x9f" },
        { "\x91", "\xa9" },
        { "\xf0\x9f", "\x91\xa9" },
        { "\xe2\x80", "\x8d" },
        { "\xf0\x9f\x91\xa9", "\xe2\x80\x8d" },
        { "\xf0\x9f\x91\xa9\xe2\x80\x8d", "\xf0\x9f\x91\xa9\xe2\x80\x8d" },
        { "\xf0\x9f\x91\xa9", "\xf0\x9f\x91\xa9" },
        { "\xf0", "\xa0" },
        { "\x80", "\x80" },
        { "\xf0\xa0", "\x80\x80" },
        { "\xf0\xa0\x80\x80", "\xf0\xa0\x80\x80" },
        { "\xe0", "\xa4" },
        { "\xe0\xa4", "\xa8" },
        { "\xe0\xa4\xa8", "\xe0\xa4\xa8" },
        { "\xe0", "\xa5" },
        { "\xe0\xa5", "\x8d" },
        { "\xe0\xa4\xa8", "\xe0\xa5\x8d" },
        { "\xe0\xa4\xa8\xe0\xa5\x8d", "\xe0\xa4\xa8\xe0\xa5\x8d" },
        { " ", " " },
        { "  ", "  " },
        { "a", "b" },
        { "ab", "ab" },
    };
    int n = 0;
    merges[n++] = make_merge("\xe2", "\x80");
    for (size_t k = 0; k < sizeof pairs / sizeof *pairs; k++)
        merges[n++] = make_merge(pairs[k][0], pairs[k][1]);
    return n;
}

/* For each pair of bytes of `text`, a merge across it of a token that is not in the text: nothing of
 * the text merges, yet by its bytes alone all of it could. */
static int merge_beside(char **merges, const char *text)
{
    int n = 0;
    char done[32] = "";
    const size_t bytes = strlen(text);
    for (size_t k = 0; k < bytes; k++) {
        const char left[3] = { 'Q', text[k], '\0' }, right[2] = { text[(k + 1) % bytes], '\0' };
        if (!strchr(done, text[k])) {
            merges[n++] = make_merge("Q", left + 1);
            done[strlen(done)] = text[k];
        }
        merges[n++] = make_merge(left, right);
    }
    return n;
}

static m2_tokenizer *open_with(char **merges, int n)
{
    merges[n] = NULL;
    char *dir = m2_test_make_dir();
    char *path = test_write_tokenizer(dir, (const char *const *)merges, 0, "[]");
    m2_tokenizer *tokenizer = NULL;
    check_ok(m2_tokenizer_open(path, &tokenizer));
    free(path);
    m2_test_remove_tree(dir);
    for (int k = 0; k < n; k++) free(merges[k]);
    return tokenizer;
}

/* Encodes `unit` repeated; gives the number of tokens. */
static int64_t check_memory(const m2_tokenizer *tokenizer, const char *unit)
{
    size_t bad, n_chars = 0;
    const size_t unit_bytes = strlen(unit);
    assert_true(m2_utf8_check(unit, unit_bytes, 0, &bad, &n_chars));
    const size_t n_units = N_CHARS / n_chars;
    char *text = malloc(n_units * unit_bytes);
    assert_non_null(text);
    for (size_t k = 0; k < n_units; k++) memcpy(text + k * unit_bytes, unit, unit_bytes);
    const size_t before = n_held;
    n_peak = n_held;
    m2_tokens tokens;
    check_ok(m2_tokenizer_encode(tokenizer, text, n_units * unit_bytes, NULL, &tokens));
    const double each = (double)(n_peak - before) / (double)(n_units * n_chars);
    print_message("'%s': %.1f bytes a character\n", unit, each);
    if (each > BYTES_PER_CHAR_MAX)
        fail_msg("'%s': %.1f bytes a character, at most %d", unit, each, BYTES_PER_CHAR_MAX);
    const int64_t n_total = tokens.n_total;
    m2_tokens_free(&tokens);
    assert_int_equal(n_held, before);
    free(text);
    return n_total;
}

/* A long run of characters of four bytes is the dearest text.  Catches lists kept for each byte of
 * the whole run, and room for more tokens than there are bytes. */
static void every_class_of_text_stays_within_64_bytes_a_character(void **state)
{
    (void)state;
    static const char *const units[] = {
        "\xf0\x9f\x91\xa9\xe2\x80\x8d", /* emoji and joiner          */
        "\xf0\x9f\x91\xa9",             /* emoji                     */
        "\xf0\xa0\x80\x80",             /* CJK beyond the extra split */
        "\xe0\xa4\xa8",                 /* Devanagari                */
        "\xe0\xa4\xa8\xe0\xa5\x8d",     /* Devanagari with a mark    */
        " ",
        "a",
        "ab",
        "\xe4\xbd\xa0", /* isolated characters */
        "-",
        "7",
    };
    char *merges[MERGES_MAX];
    m2_tokenizer *tokenizer = open_with(merges, merge_characters(merges));
    assert_int_equal(check_memory(tokenizer, units[0]), N_CHARS / 4); /* they merge */
    assert_int_equal(check_memory(tokenizer, units[2]), N_CHARS / 2);
    for (size_t k = 0; k < sizeof units / sizeof *units; k++) check_memory(tokenizer, units[k]);
    m2_tokenizer_close(tokenizer);
}

/* Four tokens a character, in one run: the most that a character can make. */
static void a_run_of_which_nothing_merges_stays_within_it_too(void **state)
{
    (void)state;
    static const char unit[] = "\xf0\xa0\x81\x82";
    char *merges[MERGES_MAX];
    m2_tokenizer *tokenizer = open_with(merges, merge_beside(merges, unit));
    const unsigned char twice[] = "\xf0\xa0\x81\x82\xf0\xa0\x81\x82";
    assert_int_equal(m2_bpe_run(&tokenizer->bpe, twice, 8), 8);
    assert_int_equal(check_memory(tokenizer, unit), 4 * N_CHARS);
    m2_tokenizer_close(tokenizer);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_class_of_text_stays_within_64_bytes_a_character),
        cmocka_unit_test(a_run_of_which_nothing_merges_stays_within_it_too),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
