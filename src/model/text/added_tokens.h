/* added_tokens.h - strings that become one id wherever they stand, whatever is around them.
 *
 * Found before anything else is done to the text: leftmost first, of those that begin at one place
 * the longest.  User text can hold them; that is so in the reference too and is kept.
 */
#ifndef M2_MODEL_TEXT_ADDED_TOKENS_H
#define M2_MODEL_TEXT_ADDED_TOKENS_H

#include "core/status.h"

#include <stddef.h>
#include <stdint.h>

typedef struct m2_added_token {
    char *text; /* malloc'd, owned by the set */
    size_t bytes;
    uint32_t id;
    uint8_t single_word, lstrip, rstrip;
} m2_added_token;

typedef struct m2_added_tokens {
    m2_added_token *tokens; /* [n], sorted by text after m2_added_tokens_sort */
    size_t n, room;
    uint32_t first[257]; /* tokens that begin with byte b: [first[b], first[b + 1]) */
} m2_added_tokens;

typedef struct m2_added_match {
    size_t begin, end; /* bytes, with the white space that lstrip and rstrip take */
    size_t next;       /* where to look on */
    uint32_t id;
} m2_added_match;

/* Takes token->text over, also on failure. */
m2_status m2_added_tokens_add(m2_added_tokens *set, m2_added_token token);
void m2_added_tokens_sort(m2_added_tokens *set);
void m2_added_tokens_free(m2_added_tokens *set);

/* The first match in checked UTF-8 text[0, bytes) that begins at or behind `from`; `floor` is the
 * end of the match before (0 at first).  Returns 0 where there is none. */
int m2_added_tokens_next(const m2_added_tokens *set, const char *text, size_t bytes, size_t from,
                         size_t floor, m2_added_match *match_out);

#endif
