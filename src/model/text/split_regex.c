#define PCRE2_CODE_UNIT_WIDTH 8

#include "model/text/split_regex.h"

#include "model/text/buffer.h"

#include <pcre2.h>
#include <stdlib.h>
#include <string.h>

#define PATTERN_BYTES_MAX 8192
#define GROUP_DEPTH_MAX   64
/* Steps that one search may take: a run of n spaces takes about n. */
#define STEPS_MAX(n_chars) (1000000 + 64 * (uint64_t)(n_chars))

struct m2_split_regex {
    pcre2_code *code;
};

struct m2_split_matcher {
    const pcre2_code *code;
    pcre2_match_data *data;
    pcre2_match_context *context;
};

/* A set of character bytes. */
typedef struct byte_set {
    uint64_t bits[4];
} byte_set;

static void set_add(byte_set *set, unsigned byte)
{
    set->bits[byte >> 6] |= (uint64_t)1 << (byte & 63);
}

static int set_has(const byte_set *set, unsigned byte)
{
    return (int)(set->bits[byte >> 6] >> (byte & 63) & 1);
}

static void set_add_range(byte_set *set, unsigned first, unsigned last)
{
    for (unsigned c = first; c <= last; c++) set_add(set, c);
}

static void set_invert(byte_set *set)
{
    for (int k = 0; k < 4; k++) set->bits[k] = ~set->bits[k];
}

static void set_join(byte_set *set, const byte_set *other)
{
    for (int k = 0; k < 4; k++) set->bits[k] |= other->bits[k];
}

static int is_ascii_letter(unsigned c)
{
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
}

/* Close the set under simple case folding. */
static void set_fold(byte_set *set)
{
    for (unsigned c = 'a'; c <= 'z'; c++) {
        const unsigned other = c - 'a' + 'A';
        const unsigned third = c == 's' ? M2_CHAR_LONG_S : c == 'k' ? M2_CHAR_KELVIN : c;
        if (!set_has(set, c) && !set_has(set, other) && !set_has(set, third)) continue;
        set_add(set, c);
        set_add(set, other);
        set_add(set, third);
    }
}

static byte_set set_of_category(char letter)
{
    byte_set set = { { 0 } };
    if (letter == 'L') {
        set_add_range(&set, 'a', 'z');
        set_add_range(&set, 'A', 'Z');
        set_add(&set, M2_CHAR_LETTER);
        set_add(&set, M2_CHAR_LONG_S);
        set_add(&set, M2_CHAR_KELVIN);
    } else if (letter == 'M') {
        set_add(&set, M2_CHAR_MARK);
    } else if (letter == 'N') {
        set_add_range(&set, '0', '9');
        set_add(&set, M2_CHAR_NUMBER);
    } else { /* white space */
        set_add_range(&set, '\t', '\r');
        set_add(&set, ' ');
        set_add(&set, M2_CHAR_SPACE);
    }
    return set;
}

/* The pattern being read and the one being written. */
typedef struct rewriter {
    const char *what;
    const char *pattern;
    size_t bytes, at;
    m2_buffer out;
    int depth;
    uint8_t folds[GROUP_DEPTH_MAX]; /* is the group at this depth inside (?i: ... ) */
} rewriter;

static m2_status refuse(const rewriter *r, size_t at, const char *reason)
{
    return m2_fail(M2_ERR_UNSUPPORTED,
                   "%s: the split pattern's \"%.12s\" (byte %zu): %s; literals, \\p{L} \\p{M} "
                   "\\p{N} \\s, classes of these and plain groups are understood",
                   r->what, r->pattern + at, at, reason);
}

static void write_set(rewriter *r, byte_set set)
{
    if (r->folds[r->depth]) set_fold(&set);
    int n = 0;
    for (unsigned c = 0; c < 256; c++) n += set_has(&set, c);
    if (n == 0) {
        m2_buffer_puts(&r->out, "(?!)");
        return;
    }
    m2_buffer_puts(&r->out, "[");
    for (unsigned c = 0; c < 256; c++) {
        if (!set_has(&set, c)) continue;
        unsigned last = c;
        while (last < 255 && set_has(&set, last + 1)) last++;
        m2_buffer_printf(&r->out, "\\x%02x", c);
        if (last > c) m2_buffer_printf(&r->out, "-\\x%02x", last);
        c = last;
    }
    m2_buffer_puts(&r->out, "]");
}

/* Behind a backslash: a set of one or more characters. */
static m2_status read_escape(rewriter *r, byte_set *set_out, int *is_single_out)
{
    const size_t begin = r->at - 1;
    byte_set set = { { 0 } };
    *is_single_out = 1;
    const char c = r->at < r->bytes ? r->pattern[r->at++] : '\0';
    switch (c) {
    case 'r':
        set_add(&set, '\r');
        break;
    case 'n':
        set_add(&set, '\n');
        break;
    case 't':
        set_add(&set, '\t');
        break;
    case 'f':
        set_add(&set, '\f');
        break;
    case 'v':
        set_add(&set, '\v');
        break;
    case 's':
    case 'S':
        set = set_of_category('Z');
        if (c == 'S') set_invert(&set);
        *is_single_out = 0;
        break;
    case 'p':
    case 'P':
        if (r->bytes - r->at < 3 || r->pattern[r->at] != '{' || r->pattern[r->at + 2] != '}' ||
            !strchr("LMN", r->pattern[r->at + 1]))
            return refuse(r, begin, "a property that is not understood");
        set = set_of_category(r->pattern[r->at + 1]);
        if (c == 'P') set_invert(&set);
        *is_single_out = 0;
        r->at += 3;
        break;
    default:
        if (c <= ' ' || c == 0x7f || is_ascii_letter((unsigned char)c) || (c >= '0' && c <= '9'))
            return refuse(r, begin, "an escape that is not understood");
        set_add(&set, (unsigned char)c);
    }
    *set_out = set;
    return M2_OK;
}

static unsigned set_first(const byte_set *set)
{
    unsigned c = 0;
    while (!set_has(set, c)) c++;
    return c;
}

/* One member of a class; `is_single` where it may begin or end a range. */
static m2_status read_member(rewriter *r, byte_set *set_out, int *is_single_out)
{
    const size_t begin = r->at;
    const unsigned char c = (unsigned char)r->pattern[r->at++];
    if (c == '\\') return read_escape(r, set_out, is_single_out);
    if (c >= 0x80) return refuse(r, begin, "a character beyond ASCII");
    if (c == '[') return refuse(r, begin, "a class inside a class");
    if (c == '&' && r->at < r->bytes && r->pattern[r->at] == '&')
        return refuse(r, begin, "an intersection of classes");
    *set_out = (byte_set){ { 0 } };
    set_add(set_out, c);
    *is_single_out = 1;
    return M2_OK;
}

/* Behind '['. */
static m2_status read_class(rewriter *r)
{
    const size_t begin = r->at - 1;
    byte_set set = { { 0 } };
    const int is_negated = r->at < r->bytes && r->pattern[r->at] == '^';
    r->at += (size_t)is_negated;
    if (r->at < r->bytes && r->pattern[r->at] == ']') return refuse(r, begin, "an empty class");
    while (r->at < r->bytes && r->pattern[r->at] != ']') {
        byte_set member, last;
        int is_single, last_is_single;
        M2_TRY(read_member(r, &member, &is_single));
        if (r->bytes - r->at >= 2 && r->pattern[r->at] == '-' && r->pattern[r->at + 1] != ']') {
            const size_t at = r->at++;
            M2_TRY(read_member(r, &last, &last_is_single));
            if (!is_single || !last_is_single || set_first(&last) < set_first(&member))
                return refuse(r, at, "a range without two ends");
            set_add_range(&member, set_first(&member), set_first(&last));
        }
        set_join(&set, &member);
    }
    if (r->at == r->bytes) return refuse(r, begin, "a class that is not closed");
    r->at++;
    if (r->folds[r->depth]) set_fold(&set);
    if (is_negated) set_invert(&set);
    write_set(r, set);
    return M2_OK;
}

/* Behind '('. */
static m2_status read_group(rewriter *r)
{
    static const struct {
        const char *head, *written;
        int folds;
    } kinds[] = { { "?:", "(?:", 0 },
                  { "?i:", "(?:", 1 },
                  { "?=", "(?=", 0 },
                  { "?!", "(?!", 0 },
                  { "?>", "(?>", 0 } };
    const size_t begin = r->at - 1;
    if (r->depth + 1 == GROUP_DEPTH_MAX) return refuse(r, begin, "groups too deep");
    const uint8_t folds = r->folds[r->depth];
    if (r->at < r->bytes && r->pattern[r->at] != '?') {
        if (r->pattern[r->at] == '*') return refuse(r, begin, "a verb");
        m2_buffer_puts(&r->out, "(?:");
        r->folds[++r->depth] = folds;
        return M2_OK;
    }
    for (size_t k = 0; k < sizeof kinds / sizeof *kinds; k++) {
        const size_t n = strlen(kinds[k].head);
        if (strncmp(r->pattern + r->at, kinds[k].head, n) != 0) continue;
        m2_buffer_puts(&r->out, kinds[k].written);
        r->folds[++r->depth] = folds || kinds[k].folds;
        r->at += n;
        return M2_OK;
    }
    return refuse(r, begin, "a group of another kind");
}

/* Behind '{': digits, and then more digits, or none of it. */
static m2_status read_count(rewriter *r)
{
    const size_t begin = r->at - 1;
    size_t at = r->at, n_digits = 0;
    while (at < r->bytes && r->pattern[at] >= '0' && r->pattern[at] <= '9') at++, n_digits++;
    if (at < r->bytes && r->pattern[at] == ',') do
            at++;
        while (at < r->bytes && r->pattern[at] >= '0' && r->pattern[at] <= '9');
    if (n_digits == 0 || at == r->bytes || r->pattern[at] != '}')
        return refuse(r, begin, "a brace that is no count");
    at++;
    if (at < r->bytes && (r->pattern[at] == '+' || r->pattern[at] == '?'))
        return refuse(r, begin, "a possessive or lazy count");
    m2_buffer_append(&r->out, r->pattern + begin, at - begin);
    r->at = at;
    return M2_OK;
}

static m2_status rewrite(rewriter *r)
{
    while (r->at < r->bytes) {
        const size_t begin = r->at;
        const unsigned char c = (unsigned char)r->pattern[r->at++];
        byte_set set = { { 0 } };
        int is_single;
        switch (c) {
        case '\\':
            M2_TRY(read_escape(r, &set, &is_single));
            write_set(r, set);
            break;
        case '[':
            M2_TRY(read_class(r));
            break;
        case '(':
            M2_TRY(read_group(r));
            break;
        case ')':
            if (r->depth == 0) return refuse(r, begin, "a group that was not opened");
            r->depth--;
            m2_buffer_puts(&r->out, ")");
            break;
        case '{':
            M2_TRY(read_count(r));
            break;
        case '|':
        case '?':
        case '*':
        case '+':
            m2_buffer_append(&r->out, (const char *)&r->pattern[begin], 1);
            break;
        case '.':
        case '^':
        case '$':
            return refuse(r, begin, "an operator that is not understood");
        default:
            if (c >= 0x80) return refuse(r, begin, "a character beyond ASCII");
            set_add(&set, c);
            write_set(r, set);
        }
    }
    return r->depth == 0 ? M2_OK : refuse(r, 0, "a group that is not closed");
}

m2_status m2_split_regex_create(const char *pattern, const char *what, m2_split_regex **regex_out)
{
    rewriter r = { .what = what, .pattern = pattern, .bytes = strlen(pattern) };
    if (r.bytes > PATTERN_BYTES_MAX)
        return m2_fail(M2_ERR_UNSUPPORTED, "%s: a split pattern of %zu bytes, at most %d are taken",
                       what, r.bytes, PATTERN_BYTES_MAX);
    m2_split_regex *regex = calloc(1, sizeof *regex);
    m2_status status = rewrite(&r);
    if (status != M2_OK) goto fail;
    if (!regex || r.out.has_failed) {
        status = m2_fail(M2_ERR_MEMORY, "%s: no memory for the split pattern", what);
        goto fail;
    }
    int code = 0;
    PCRE2_SIZE where = 0;
    regex->code = pcre2_compile((PCRE2_SPTR)(r.out.data ? r.out.data : ""), r.out.bytes, 0, &code,
                                &where, NULL);
    if (!regex->code) {
        PCRE2_UCHAR reason[160] = "";
        pcre2_get_error_message(code, reason, sizeof reason);
        status = m2_fail(M2_ERR_FORMAT, "%s: the split pattern is no regex: %s", what,
                         (const char *)reason);
        goto fail;
    }
    uint32_t may_be_empty = 0;
    pcre2_pattern_info(regex->code, PCRE2_INFO_MATCHEMPTY, &may_be_empty);
    if (may_be_empty) {
        status = m2_fail(M2_ERR_UNSUPPORTED,
                         "%s: the split pattern matches the empty text, which cuts nothing", what);
        goto fail;
    }
    /* Without the JIT (or where it runs out of stack) the interpreter gives the same matches. */
    pcre2_jit_compile(regex->code, PCRE2_JIT_COMPLETE);
    m2_buffer_free(&r.out);
    *regex_out = regex;
    return M2_OK;
fail:
    m2_buffer_free(&r.out);
    m2_split_regex_destroy(regex);
    return status;
}

void m2_split_regex_destroy(m2_split_regex *regex)
{
    if (!regex) return;
    pcre2_code_free(regex->code);
    free(regex);
}

m2_status m2_split_matcher_create(const m2_split_regex *regex, m2_split_matcher **matcher_out)
{
    m2_split_matcher *matcher = calloc(1, sizeof *matcher);
    if (matcher) {
        matcher->code = regex->code;
        matcher->data = pcre2_match_data_create(1, NULL);
        matcher->context = pcre2_match_context_create(NULL);
    }
    if (!matcher || !matcher->data || !matcher->context) {
        m2_split_matcher_destroy(matcher);
        return m2_fail(M2_ERR_MEMORY, "tokenizer: no memory to match the split pattern");
    }
    *matcher_out = matcher;
    return M2_OK;
}

void m2_split_matcher_destroy(m2_split_matcher *matcher)
{
    if (!matcher) return;
    pcre2_match_data_free(matcher->data);
    pcre2_match_context_free(matcher->context);
    free(matcher);
}

m2_status m2_split_matcher_next(m2_split_matcher *matcher, const uint8_t *classes, size_t n,
                                size_t from, size_t *begin_out, size_t *end_out)
{
    const uint64_t steps_max = STEPS_MAX(n);
    pcre2_set_match_limit(matcher->context,
                          steps_max < UINT32_MAX ? (uint32_t)steps_max : UINT32_MAX);
    int code = pcre2_match(matcher->code, classes, n, from, 0, matcher->data, matcher->context);
    if (code == PCRE2_ERROR_JIT_STACKLIMIT)
        code = pcre2_match(matcher->code, classes, n, from, PCRE2_NO_JIT, matcher->data,
                           matcher->context);
    if (code == PCRE2_ERROR_NOMATCH) {
        *begin_out = *end_out = n;
        return M2_OK;
    }
    if (code < 0) {
        PCRE2_UCHAR reason[160] = "";
        pcre2_get_error_message(code, reason, sizeof reason);
        return m2_fail(code == PCRE2_ERROR_NOMEMORY ? M2_ERR_MEMORY : M2_ERR_FORMAT,
                       "tokenizer: the split pattern fails at character %zu of a run of %zu: %s",
                       from, n, (const char *)reason);
    }
    const PCRE2_SIZE *ends = pcre2_get_ovector_pointer(matcher->data);
    *begin_out = ends[0];
    *end_out = ends[1];
    return M2_OK;
}
