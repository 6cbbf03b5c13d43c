#include "model/text/pyjson.h"

#include "model/text/unicode_ranges.h"
#include "model/text/utf8.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int m2_py_is_space(uint32_t c)
{
    return (c >= 0x1c && c <= 0x1f) || m2_unicode_has(&m2_unicode_white_space, c);
}

/* ---- floats ---- */

/* Digits of |x|, rounded to n of them, and the power of ten of the first one.  printf is correctly
 * rounded; its decimal point is the locale's, so only digits are taken. */
static int round_digits(double x, int n, char digits[24])
{
    char text[64];
    snprintf(text, sizeof text, "%.*e", n - 1, x);
    const char *at = text;
    int k = 0;
    for (; *at && *at != 'e'; at++)
        if (*at >= '0' && *at <= '9' && k < n) digits[k++] = *at;
    digits[k] = '\0';
    return atoi(at + 1);
}

static int reads_back(double x, const char *digits, int exponent)
{
    char text[64]; /* without a decimal point, so in any locale */
    snprintf(text, sizeof text, "%se%d", digits, exponent - (int)strlen(digits) + 1);
    return strtod(text, NULL) == x;
}

/* One more in the last place. */
static void count_up(char *digits, int *exponent)
{
    size_t k = strlen(digits);
    while (k > 0 && digits[k - 1] == '9') digits[--k] = '0';
    if (k > 0) {
        digits[k - 1]++;
    } else {
        digits[0] = '1'; /* 99...9 became 00...0 */
        *exponent += 1;
    }
}

/* The shortest digits that read back as x > 0, of those the closest to it. */
static int shortest_digits(double x, char digits[24])
{
    int power;
    const double fraction = frexp(x, &power);
    const int is_denormal = x < 0x1p-1022;
    /* 15 digits survive reading and printing, so a shorter result is 15 digits with zeros behind;
     * denormals have fewer bits and need the search from 1. */
    for (int n = is_denormal ? 1 : 15;; n++) {
        int exponent = round_digits(x, n, digits);
        int found = n == 17 || reads_back(x, digits, exponent);
        if (!found && fraction == 0.5) {
            /* Below a power of two doubles lie closer than above it, so where the nearest decimal
             * is below and too far, the next one above may still read back. */
            count_up(digits, &exponent);
            found = reads_back(x, digits, exponent);
        }
        if (!found) continue;
        size_t k = strlen(digits);
        while (k > 1 && digits[k - 1] == '0') digits[--k] = '\0';
        return exponent;
    }
}

void m2_py_append_float(m2_buffer *out, double x)
{
    if (isnan(x)) {
        m2_buffer_puts(out, "nan");
        return;
    }
    if (signbit(x)) m2_buffer_puts(out, "-");
    x = fabs(x);
    if (isinf(x) || x == 0) {
        m2_buffer_puts(out, x == 0 ? "0.0" : "inf");
        return;
    }
    char digits[24];
    const int exponent = shortest_digits(x, digits), n = (int)strlen(digits);
    if (exponent < -4 || exponent >= 16) {
        m2_buffer_append(out, digits, 1);
        if (n > 1) m2_buffer_printf(out, ".%s", digits + 1);
        m2_buffer_printf(out, "e%c%02d", exponent < 0 ? '-' : '+', abs(exponent));
    } else if (exponent < 0) {
        m2_buffer_puts(out, "0.");
        for (int k = -1; k > exponent; k--) m2_buffer_puts(out, "0");
        m2_buffer_puts(out, digits);
    } else {
        for (int k = 0; k <= exponent; k++) m2_buffer_append(out, k < n ? &digits[k] : "0", 1);
        m2_buffer_printf(out, ".%s", exponent + 1 < n ? digits + exponent + 1 : "0");
    }
}

/* ---- strings ---- */

/* repr() of a str. */
static void append_repr(m2_buffer *out, const char *text, size_t bytes)
{
    const char quote = bytes && memchr(text, '\'', bytes) && !memchr(text, '"', bytes) ? '"' : '\'';
    m2_buffer_append(out, &quote, 1);
    for (size_t at = 0; at < bytes;) {
        const size_t begin = at;
        const uint32_t c = m2_utf8_next(text, &at);
        if (c == (uint32_t)quote || c == '\\')
            m2_buffer_printf(out, "\\%c", (int)c);
        else if (c == '\t' || c == '\n' || c == '\r')
            m2_buffer_puts(out, c == '\t' ? "\\t" : c == '\n' ? "\\n" : "\\r");
        else if (m2_unicode_has(&m2_unicode_printable, c))
            m2_buffer_append(out, text + begin, at - begin);
        else
            m2_buffer_printf(out, c < 0x100 ? "\\x%02x" : c < 0x10000 ? "\\u%04x" : "\\U%08x", c);
    }
    m2_buffer_append(out, &quote, 1);
}

/* A JSON string with all beyond ASCII as it is. */
static void append_json_string(m2_buffer *out, const char *text, size_t bytes)
{
    m2_buffer_puts(out, "\"");
    size_t begin = 0;
    for (size_t at = 0; at < bytes; at++) {
        const unsigned char c = (unsigned char)text[at];
        if (c >= 0x20 && c != '"' && c != '\\') continue;
        m2_buffer_append(out, text + begin, at - begin);
        begin = at + 1;
        static const char names[] = "\"\\\b\f\n\r\t", letters[] = "\"\\bfnrt";
        const char *name = c ? strchr(names, c) : NULL;
        if (name)
            m2_buffer_printf(out, "\\%c", letters[name - names]);
        else
            m2_buffer_printf(out, "\\u%04x", c);
    }
    m2_buffer_append(out, text + begin, bytes - begin);
    m2_buffer_puts(out, "\"");
}

/* ---- values ---- */

/* How a kind of text writes what is not a list or dict. */
typedef struct spelling {
    const char *none, *no, *yes, *nan, *infinity, *minus_infinity;
    void (*string)(m2_buffer *out, const char *text, size_t bytes);
} spelling;

static const spelling python = { "None", "False", "True", "nan", "inf", "-inf", append_repr };
static const spelling json = { "null",      "false",           "true", "NaN", "Infinity",
                               "-Infinity", append_json_string };

static void append_value(m2_buffer *out, const m2_py_value *value, const spelling *as)
{
    const int is_dict = value->kind == M2_PY_DICT;
    switch (value->kind) {
    case M2_PY_NONE:
        m2_buffer_puts(out, as->none);
        break;
    case M2_PY_FALSE:
        m2_buffer_puts(out, as->no);
        break;
    case M2_PY_TRUE:
        m2_buffer_puts(out, as->yes);
        break;
    case M2_PY_INT:
        m2_buffer_append(out, value->text, value->bytes);
        break;
    case M2_PY_FLOAT:
        if (isfinite(value->number))
            m2_py_append_float(out, value->number);
        else
            m2_buffer_puts(out, isnan(value->number) ? as->nan
                                : value->number > 0  ? as->infinity
                                                     : as->minus_infinity);
        break;
    case M2_PY_STRING:
        as->string(out, value->text, value->bytes);
        break;
    case M2_PY_LIST:
    case M2_PY_DICT:
        m2_buffer_puts(out, is_dict ? "{" : "[");
        for (const m2_py_value *item = value->first; item; item = item->next) {
            if (item != value->first) m2_buffer_puts(out, ", ");
            if (is_dict) {
                as->string(out, item->key, item->key_bytes);
                m2_buffer_puts(out, ": ");
            }
            append_value(out, item, as);
        }
        m2_buffer_puts(out, is_dict ? "}" : "]");
        break;
    }
}

void m2_py_append_str(m2_buffer *out, const m2_py_value *value)
{
    if (value->kind == M2_PY_STRING)
        m2_buffer_append(out, value->text, value->bytes);
    else
        append_value(out, value, &python);
}

void m2_py_append_dumps(m2_buffer *out, const m2_py_value *value)
{
    append_value(out, value, &json);
}
