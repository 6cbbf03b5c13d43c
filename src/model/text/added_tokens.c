#include "model/text/added_tokens.h"

#include "model/text/unicode_ranges.h"
#include "model/text/utf8.h"

#include <stdlib.h>
#include <string.h>

m2_status m2_added_tokens_add(m2_added_tokens *set, m2_added_token token)
{
    if (set->n == set->room) {
        const size_t room = set->room ? set->room * 2 : 64;
        m2_added_token *larger = realloc(set->tokens, room * sizeof *larger);
        if (!larger) {
            free(token.text);
            return m2_fail(M2_ERR_MEMORY, "tokenizer: no memory for %zu added tokens", room);
        }
        set->tokens = larger;
        set->room = room;
    }
    set->tokens[set->n++] = token;
    return M2_OK;
}

static int by_text(const void *a, const void *b)
{
    const m2_added_token *x = a, *y = b;
    const int order = memcmp(x->text, y->text, x->bytes < y->bytes ? x->bytes : y->bytes);
    return order ? order : (x->bytes > y->bytes) - (x->bytes < y->bytes);
}

void m2_added_tokens_sort(m2_added_tokens *set)
{
    if (set->n) qsort(set->tokens, set->n, sizeof *set->tokens, by_text);
    size_t k = 0;
    for (unsigned byte = 0; byte < 256; byte++) {
        while (k < set->n && (unsigned char)set->tokens[k].text[0] < byte) k++;
        set->first[byte] = (uint32_t)k;
    }
    set->first[256] = (uint32_t)set->n;
}

void m2_added_tokens_free(m2_added_tokens *set)
{
    for (size_t k = 0; k < set->n; k++) free(set->tokens[k].text);
    free(set->tokens);
    *set = (m2_added_tokens){ 0 };
}

/* First token of [low, high) whose byte at `depth` is at least `byte`; all share what is before. */
static size_t lower_bound(const m2_added_tokens *set, size_t low, size_t high, size_t depth,
                          unsigned byte)
{
    while (low < high) {
        const size_t middle = low + (high - low) / 2;
        const m2_added_token *token = &set->tokens[middle];
        if (token->bytes <= depth || (unsigned char)token->text[depth] < byte)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

/* The longest token that text[0, bytes) begins with, or NULL. */
static const m2_added_token *longest_at(const m2_added_tokens *set, const char *text, size_t bytes)
{
    const m2_added_token *found = NULL;
    size_t low = set->first[(unsigned char)text[0]], high = set->first[(unsigned char)text[0] + 1];
    for (size_t depth = 1; low < high; depth++) {
        if (set->tokens[low].bytes == depth) found = &set->tokens[low];
        if (depth == bytes) break;
        const unsigned byte = (unsigned char)text[depth];
        low = lower_bound(set, low, high, depth, byte);
        high = lower_bound(set, low, high, depth, byte + 1);
    }
    return found;
}

static size_t step_back(const char *text, size_t at)
{
    do at--;
    while (at > 0 && ((unsigned char)text[at] & 0xc0) == 0x80);
    return at;
}

static int is_at(const m2_unicode_set *set, const char *text, size_t at)
{
    return m2_unicode_has(set, m2_utf8_next(text, &at));
}

int m2_added_tokens_next(const m2_added_tokens *set, const char *text, size_t bytes, size_t from,
                         size_t floor, m2_added_match *match_out)
{
    if (set->n == 0) return 0;
    for (size_t at = from; at < bytes;) {
        const unsigned char byte = (unsigned char)text[at];
        const m2_added_token *token =
            set->first[byte] < set->first[byte + 1] ? longest_at(set, text + at, bytes - at) : NULL;
        if (!token) {
            at++;
            continue;
        }
        size_t begin = at, end = at + token->bytes;
        const size_t next = end;
        at = end;
        if (token->single_word &&
            ((begin > 0 && is_at(&m2_unicode_word, text, step_back(text, begin))) ||
             (end < bytes && is_at(&m2_unicode_word, text, end))))
            continue;
        if (begin < floor) continue; /* inside the white space that the match before took */
        while (token->lstrip && begin > floor) {
            const size_t before = step_back(text, begin);
            if (!is_at(&m2_unicode_white_space, text, before)) break;
            begin = before;
        }
        while (token->rstrip && end < bytes && is_at(&m2_unicode_white_space, text, end))
            m2_utf8_next(text, &end);
        *match_out = (m2_added_match){ begin, end, next, token->id };
        return 1;
    }
    return 0;
}
