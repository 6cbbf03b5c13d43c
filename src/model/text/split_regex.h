/* split_regex.h - the tokenizer's split pattern, matched over classes of characters.
 *
 * The pattern only asks of a character whether it is a letter, a mark, a number, white space or one
 * of a few ASCII characters.  So text is mapped to one byte a character - ASCII as itself, the rest
 * by class from committed tables - and the pattern is rewritten over those bytes.  What a class
 * holds then never depends on the regex library, every class is a bitmap of 256, and positions are
 * characters.
 *
 * Understood  literals, \r \n \t \f \v, \p{L} \p{M} \p{N} (and \P), \s \S, [...] of those, groups
 *             (...) (?:...) (?i:...) (?=...) (?!...), | ? * + {m,n}; all else is refused by name.
 * Threads     a regex may be used by many threads, a matcher by one.
 */
#ifndef M2_MODEL_TEXT_SPLIT_REGEX_H
#define M2_MODEL_TEXT_SPLIT_REGEX_H

#include "core/status.h"

#include <stddef.h>
#include <stdint.h>

/* Bytes of characters beyond ASCII. */
enum {
    M2_CHAR_LETTER = 0x80,
    M2_CHAR_MARK,
    M2_CHAR_NUMBER,
    M2_CHAR_SPACE,
    M2_CHAR_OTHER,
    M2_CHAR_LONG_S, /* U+017F, a letter that (?i:s) takes */
    M2_CHAR_KELVIN  /* U+212A, a letter that (?i:k) takes */
};

/* Classes of all code points in two stages: map->pages[map->page_of[c >> 8]][c & 255]. */
typedef struct m2_char_map {
    uint8_t page_of[0x1100];
    uint8_t (*pages)[256];
    int n_pages;
} m2_char_map;

m2_status m2_char_map_create(m2_char_map *map);
void m2_char_map_destroy(m2_char_map *map);
static inline uint8_t m2_char_map_get(const m2_char_map *map, uint32_t code_point)
{
    return map->pages[map->page_of[code_point >> 8]][code_point & 0xff];
}

typedef struct m2_split_regex m2_split_regex;
typedef struct m2_split_matcher m2_split_matcher;

/* `pattern` is NUL-terminated UTF-8 as in tokenizer.json; `what` names it in messages.
 * Errors  M2_ERR_UNSUPPORTED (syntax not listed above), M2_ERR_FORMAT (not a regex, or one that
 *         matches nothing at all), M2_ERR_MEMORY */
m2_status m2_split_regex_create(const char *pattern, const char *what, m2_split_regex **regex_out);
void m2_split_regex_destroy(m2_split_regex *regex);

m2_status m2_split_matcher_create(const m2_split_regex *regex, m2_split_matcher **matcher_out);
void m2_split_matcher_destroy(m2_split_matcher *matcher);

/* The first match in classes[from, n): *begin_out < *end_out, or both n where there is none.
 * Errors  M2_ERR_FORMAT (a pattern that takes too many steps on this text), M2_ERR_MEMORY */
m2_status m2_split_matcher_next(m2_split_matcher *matcher, const uint8_t *classes, size_t n,
                                size_t from, size_t *begin_out, size_t *end_out);

#endif
