/* tokenizer.h - text -> token ids, from the `tokenizer.json` beside the text encoder.
 *
 * Order   added tokens on the raw text; NFC of what lies between; one-character pieces where the
 *         model's extra split isolates; the file's split pattern; byte-level BPE.  Nothing is put in
 *         front or behind.
 * Extra split  the reference puts a pattern that was meant to isolate CJK in front of the file's
 *         own.  As written its engine reads it otherwise: it isolates U+0030-0055 (digits and
 *         `:` ... `@`, A ... U), U+1100-11FF, U+2E80-A4CF, U+A840-D7AF, U+F900-FAFF, U+FE30-FE4F and
 *         U+FF65-FFDC.  The model was conditioned on that, so it is kept: `Hello` is `H`, `ello`.
 * Offsets code points of the text as given, before NFC.
 * Threads an open tokenizer is read-only: any number of threads may encode with it.
 */
#ifndef M2_MODEL_TEXT_TOKENIZER_H
#define M2_MODEL_TEXT_TOKENIZER_H

#include "core/status.h"
#include "model/text/buffer.h"

#include <stddef.h>
#include <stdint.h>

#define M2_PROMPT_TOKENS_MAX 7000 /* what the encoder takes of a prompt */

typedef struct m2_tokenizer m2_tokenizer;

typedef struct m2_encode_options {
    int64_t max_tokens; /* the rest is cut off with a warning; 0: no limit     */
    int has_cjk_split;  /* the extra split                                     */
    int takes_empty;    /* an empty text is no tokens; else it is an error     */
} m2_encode_options;

typedef struct m2_tokens {
    int64_t n;            /* tokens kept                                         */
    int64_t n_total;      /* tokens that the text has                            */
    int32_t *id;          /* [n]                                                 */
    int64_t *begin, *end; /* [n] code points; tokens that share one overlap      */
} m2_tokens;

/* The pieces that the text is cut into, added tokens left aside. */
typedef struct m2_pieces {
    char *normalised; /* NFC of the text, NUL-terminated                     */
    size_t bytes;
    int64_t n;
    int64_t *begin, *end; /* [n] bytes of `normalised`                           */
} m2_pieces;

/* Errors  M2_ERR_IO, M2_ERR_FORMAT (not JSON, a merge of unknown tokens, two tokens with one id),
 *         M2_ERR_UNSUPPORTED (another kind of tokenizer, an option that is not understood; named),
 *         M2_ERR_MEMORY */
m2_status m2_tokenizer_open(const char *path, m2_tokenizer **tokenizer_out);
void m2_tokenizer_close(m2_tokenizer *tokenizer);

/* Largest id + 1, added tokens included. */
int64_t m2_tokenizer_n_ids(const m2_tokenizer *tokenizer);
/* The token's bytes (not always whole characters); returns 0 for an id without a token. */
int m2_tokenizer_append_token(const m2_tokenizer *tokenizer, int32_t id, m2_buffer *out);

/* max_tokens 7,000, extra split on, empty refused. */
void m2_encode_options_init(m2_encode_options *options);

/* `options` may be NULL for the defaults.  m2_tokens_free() frees what `tokens_out` holds.
 * Errors  M2_ERR_ARG (empty, or not UTF-8: names the byte), M2_ERR_FORMAT (a split pattern that takes
 *         too many steps), M2_ERR_MEMORY */
m2_status m2_tokenizer_encode(const m2_tokenizer *tokenizer, const char *text, size_t bytes,
                              const m2_encode_options *options, m2_tokens *tokens_out);
void m2_tokens_free(m2_tokens *tokens);

m2_status m2_tokenizer_split(const m2_tokenizer *tokenizer, const char *text, size_t bytes,
                             const m2_encode_options *options, m2_pieces *pieces_out);
void m2_pieces_free(m2_pieces *pieces);

#endif
