#include "model/text/json_pull.h"

#include <string.h>

void m2_pull_init(m2_json_pull *pull, const char *text, size_t bytes)
{
    *pull = (m2_json_pull){ .text = text, .bytes = bytes };
}

int m2_pull_fail(m2_json_pull *pull, const char *error)
{
    if (!pull->error) pull->error = error;
    return 0;
}

static void skip_space(m2_json_pull *pull)
{
    while (pull->at < pull->bytes) {
        const char c = pull->text[pull->at];
        if (c != ' ' && c != '\t' && c != '\n' && c != '\r') return;
        pull->at++;
    }
}

char m2_pull_peek(m2_json_pull *pull)
{
    if (pull->error) return '\0';
    skip_space(pull);
    if (pull->at == pull->bytes) return '\0';
    const char c = pull->text[pull->at];
    if (c >= '0' && c <= '9') return '0';
    if (c == '-') {
        const char next = pull->at + 1 < pull->bytes ? pull->text[pull->at + 1] : '\0';
        return next == 'I' ? '-' : '0';
    }
    return c != '\0' && strchr("{[\"tfnNI", c) ? c : '\0';
}

int m2_pull_open(m2_json_pull *pull, char bracket)
{
    if (m2_pull_peek(pull) != bracket) return m2_pull_fail(pull, "another kind of value");
    pull->at++;
    return 1;
}

int m2_pull_more(m2_json_pull *pull, char closing, int *is_first)
{
    if (pull->error) return 0;
    skip_space(pull);
    if (pull->at == pull->bytes) return m2_pull_fail(pull, "the text ends inside a list or object");
    if (pull->text[pull->at] == closing) {
        pull->at++;
        return 0;
    }
    if (!*is_first) {
        if (pull->text[pull->at] != ',') return m2_pull_fail(pull, "a comma is missing");
        pull->at++;
        skip_space(pull);
        /* A bracket behind a comma is met as a value that is none. */
    }
    *is_first = 0;
    return 1;
}

/* Four hexadecimal digits at `at`, or -1. */
static int hex4(const m2_json_pull *pull, size_t at)
{
    if (pull->bytes - at < 4) return -1;
    int value = 0;
    for (size_t k = 0; k < 4; k++) {
        const char c = pull->text[at + k];
        const int digit = c >= '0' && c <= '9'   ? c - '0'
                          : c >= 'a' && c <= 'f' ? c - 'a' + 10
                          : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                                 : -1;
        if (digit < 0) return -1;
        value = value * 16 + digit;
    }
    return value;
}

/* Behind a backslash. */
static int read_escape(m2_json_pull *pull, m2_buffer *out)
{
    static const char names[] = "\"\\/bfnrt", values[] = "\"\\/\b\f\n\r\t";
    const char c = pull->at < pull->bytes ? pull->text[pull->at] : '\0';
    const char *name = c ? strchr(names, c) : NULL;
    if (name) {
        m2_buffer_append(out, &values[name - names], 1);
        pull->at++;
        return 1;
    }
    if (c != 'u') return m2_pull_fail(pull, "an escape that JSON does not have");
    const int unit = hex4(pull, pull->at + 1);
    if (unit < 0) return m2_pull_fail(pull, "\\u without four hexadecimal digits");
    pull->at += 5;
    uint32_t code_point = (uint32_t)unit;
    if (unit >= 0xd800 && unit < 0xdc00 && pull->bytes - pull->at >= 6 &&
        pull->text[pull->at] == '\\' && pull->text[pull->at + 1] == 'u') {
        const int low = hex4(pull, pull->at + 2);
        if (low >= 0xdc00 && low < 0xe000) {
            code_point = 0x10000 + ((uint32_t)(unit - 0xd800) << 10) + (uint32_t)(low - 0xdc00);
            pull->at += 6;
        }
    }
    m2_buffer_put_code_point(out, code_point);
    return 1;
}

int m2_pull_string(m2_json_pull *pull, m2_buffer *out)
{
    m2_buffer_clear(out);
    if (m2_pull_peek(pull) != '"') return m2_pull_fail(pull, "a string is missing");
    pull->at++;
    for (;;) {
        const size_t begin = pull->at;
        while (pull->at < pull->bytes && pull->text[pull->at] != '"' &&
               pull->text[pull->at] != '\\' && (unsigned char)pull->text[pull->at] >= 0x20)
            pull->at++;
        m2_buffer_append(out, pull->text + begin, pull->at - begin);
        if (pull->at == pull->bytes) return m2_pull_fail(pull, "a string is not closed");
        const char c = pull->text[pull->at];
        if (c != '"' && c != '\\') return m2_pull_fail(pull, "a control character in a string");
        pull->at++;
        if (c == '"') break;
        if (!read_escape(pull, out)) return 0;
    }
    return out->has_failed ? m2_pull_fail(pull, "no memory") : 1;
}

int m2_pull_key(m2_json_pull *pull, m2_buffer *out)
{
    if (!m2_pull_string(pull, out)) return 0;
    skip_space(pull);
    if (pull->at == pull->bytes || pull->text[pull->at] != ':')
        return m2_pull_fail(pull, "a colon is missing");
    pull->at++;
    return 1;
}

static size_t skip_digits(const m2_json_pull *pull, size_t at)
{
    while (at < pull->bytes && pull->text[at] >= '0' && pull->text[at] <= '9') at++;
    return at;
}

int m2_pull_number(m2_json_pull *pull, const char **begin_out, size_t *bytes_out,
                   int *is_integer_out)
{
    if (m2_pull_peek(pull) != '0') return m2_pull_fail(pull, "a number is missing");
    const size_t begin = pull->at;
    size_t at = begin + (pull->text[begin] == '-');
    const size_t digits = at;
    at = at < pull->bytes && pull->text[at] == '0' ? at + 1 : skip_digits(pull, at);
    if (at == digits) return m2_pull_fail(pull, "a minus without a number");
    int is_integer = 1;
    /* A point or an exponent without digits is not part of the number. */
    if (at < pull->bytes && pull->text[at] == '.') {
        const size_t end = skip_digits(pull, at + 1);
        if (end > at + 1) {
            is_integer = 0;
            at = end;
        }
    }
    if (at < pull->bytes && (pull->text[at] == 'e' || pull->text[at] == 'E')) {
        const size_t sign = at + 1;
        const size_t from =
            sign + (sign < pull->bytes && (pull->text[sign] == '+' || pull->text[sign] == '-'));
        const size_t end = skip_digits(pull, from);
        if (end > from) {
            is_integer = 0;
            at = end;
        }
    }
    pull->at = at;
    *begin_out = pull->text + begin;
    *bytes_out = at - begin;
    *is_integer_out = is_integer;
    return 1;
}

int m2_pull_word(m2_json_pull *pull, const char *word)
{
    const size_t bytes = strlen(word);
    m2_pull_peek(pull);
    if (pull->error || pull->bytes - pull->at < bytes ||
        memcmp(pull->text + pull->at, word, bytes) != 0)
        return m2_pull_fail(pull, "a value is missing");
    pull->at += bytes;
    return 1;
}

static int skip_string(m2_json_pull *pull)
{
    for (pull->at++; pull->at < pull->bytes; pull->at++) {
        const char c = pull->text[pull->at];
        if (c == '\\') {
            pull->at++;
        } else if (c == '"') {
            pull->at++;
            return 1;
        }
    }
    pull->at = pull->bytes;
    return m2_pull_fail(pull, "a string is not closed");
}

static int skip_key(m2_json_pull *pull)
{
    if (m2_pull_peek(pull) != '"') return m2_pull_fail(pull, "a key is missing");
    if (!skip_string(pull)) return 0;
    skip_space(pull);
    if (pull->at == pull->bytes || pull->text[pull->at] != ':')
        return m2_pull_fail(pull, "a colon is missing");
    pull->at++;
    return 1;
}

int m2_pull_skip(m2_json_pull *pull, int depth_max)
{
    const char *number;
    size_t bytes;
    int is_integer;
    const char kind = m2_pull_peek(pull);
    switch (kind) {
    case '{':
    case '[':
        if (depth_max <= 0) return m2_pull_fail(pull, "nested too deep");
        for (int is_first = m2_pull_open(pull, kind);
             m2_pull_more(pull, kind == '{' ? '}' : ']', &is_first);) {
            if (kind == '{' && !skip_key(pull)) return 0;
            if (!m2_pull_skip(pull, depth_max - 1)) return 0;
        }
        return !pull->error;
    case '"':
        return skip_string(pull);
    case '0':
        return m2_pull_number(pull, &number, &bytes, &is_integer);
    case 't':
        return m2_pull_word(pull, "true");
    case 'f':
        return m2_pull_word(pull, "false");
    case 'n':
        return m2_pull_word(pull, "null");
    default:
        return m2_pull_fail(pull, "a value is missing");
    }
}

int m2_pull_end(m2_json_pull *pull)
{
    if (pull->error) return 0;
    skip_space(pull);
    return pull->at == pull->bytes ? 1 : m2_pull_fail(pull, "text behind the value");
}
