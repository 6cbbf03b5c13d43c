/* utf8.h - code points in and out of UTF-8; bytes are checked once, then trusted. */
#ifndef M2_MODEL_TEXT_UTF8_H
#define M2_MODEL_TEXT_UTF8_H

#include <stddef.h>
#include <stdint.h>

/* Whether text[0, bytes) is UTF-8.  *bad_out: offset of the first byte of the first fault, else
 * `bytes`.  *n_chars_out: code points before it.  `with_surrogates` lets lone surrogates pass,
 * coded in three bytes: a Python string holds them where JSON escapes one half of a pair. */
int m2_utf8_check(const char *text, size_t bytes, int with_surrogates, size_t *bad_out,
                  size_t *n_chars_out);

/* The code point at text[*at], which must be checked text; moves *at behind it. */
static inline uint32_t m2_utf8_next(const char *text, size_t *at)
{
    const unsigned char *s = (const unsigned char *)text + *at;
    if (s[0] < 0x80) {
        *at += 1;
        return s[0];
    }
    if (s[0] < 0xe0) {
        *at += 2;
        return (uint32_t)(s[0] & 0x1f) << 6 | (s[1] & 0x3f);
    }
    if (s[0] < 0xf0) {
        *at += 3;
        return (uint32_t)(s[0] & 0x0f) << 12 | (uint32_t)(s[1] & 0x3f) << 6 | (s[2] & 0x3f);
    }
    *at += 4;
    return (uint32_t)(s[0] & 0x07) << 18 | (uint32_t)(s[1] & 0x3f) << 12 |
           (uint32_t)(s[2] & 0x3f) << 6 | (s[3] & 0x3f);
}

/* Bytes of the code point that begins with `first`. */
static inline size_t m2_utf8_width(unsigned char first)
{
    return first < 0x80 ? 1 : first < 0xe0 ? 2 : first < 0xf0 ? 3 : 4;
}

/* Writes 1 ... 4 bytes; surrogates are written in three. */
static inline size_t m2_utf8_put(uint32_t code_point, char out[4])
{
    if (code_point < 0x80) {
        out[0] = (char)code_point;
        return 1;
    }
    if (code_point < 0x800) {
        out[0] = (char)(0xc0 | code_point >> 6);
        out[1] = (char)(0x80 | (code_point & 0x3f));
        return 2;
    }
    if (code_point < 0x10000) {
        out[0] = (char)(0xe0 | code_point >> 12);
        out[1] = (char)(0x80 | (code_point >> 6 & 0x3f));
        out[2] = (char)(0x80 | (code_point & 0x3f));
        return 3;
    }
    out[0] = (char)(0xf0 | code_point >> 18);
    out[1] = (char)(0x80 | (code_point >> 12 & 0x3f));
    out[2] = (char)(0x80 | (code_point >> 6 & 0x3f));
    out[3] = (char)(0x80 | (code_point & 0x3f));
    return 4;
}

#endif
