/* json_pull.h - reads JSON text piece by piece, as Python's json module does, without a tree.
 *
 * Strings are strict (no raw control characters); lone surrogate escapes are kept, coded in three
 * bytes.  The caller walks the structure; the first fault stops everything: functions then give 0
 * and `error` and `at` say what and where.
 */
#ifndef M2_MODEL_TEXT_JSON_PULL_H
#define M2_MODEL_TEXT_JSON_PULL_H

#include "model/text/buffer.h"

#include <stddef.h>

typedef struct m2_json_pull {
    const char *text;
    size_t bytes, at;
    const char *error; /* NULL while all is well */
} m2_json_pull;

/* text[0, bytes) must be checked UTF-8 and stay while it is read. */
void m2_pull_init(m2_json_pull *pull, const char *text, size_t bytes);
int m2_pull_fail(m2_json_pull *pull, const char *error); /* keeps the first; gives 0 */

/* What comes next, white space skipped: one of { [ " t f n, 0 for a number, N for NaN, I for
 * Infinity, - for -Infinity, or NUL for anything else (also the end). */
char m2_pull_peek(m2_json_pull *pull);

/* for (int is_first = m2_pull_open(pull, '['); m2_pull_more(pull, ']', &is_first);) ... */
int m2_pull_open(m2_json_pull *pull, char bracket);
int m2_pull_more(m2_json_pull *pull, char closing, int *is_first);
/* A string, or a key and its colon; `out` is emptied first. */
int m2_pull_string(m2_json_pull *pull, m2_buffer *out);
int m2_pull_key(m2_json_pull *pull, m2_buffer *out);
/* The number as spelt. */
int m2_pull_number(m2_json_pull *pull, const char **begin_out, size_t *bytes_out,
                   int *is_integer_out);
int m2_pull_word(m2_json_pull *pull, const char *word);
/* Any value; deeper than `depth_max` is a fault. */
int m2_pull_skip(m2_json_pull *pull, int depth_max);
/* Nothing but white space is left. */
int m2_pull_end(m2_json_pull *pull);

#endif
