/* tokenize_report.h - a prompt's way to tokens, written out for people and for programs.
 *
 * Text  one line a token, `id  begin-end  "bytes"`, then the counts;
 * JSON  one object: text (what is tokenised), n_tokens, n_total, is_truncated, has_figure and tokens,
 *       a list of {"id", "begin", "end", "text"} where bytes that are no UTF-8 are written \xNN in
 *       text.
 * Offsets are characters of the text that is tokenised, which for JSON prompts is the compact one.
 */
#ifndef M2_MODEL_TEXT_TOKENIZE_REPORT_H
#define M2_MODEL_TEXT_TOKENIZE_REPORT_H

#include "core/status.h"
#include "model/text/tokenizer.h"

#include <stddef.h>

typedef struct m2_tokenize_options {
    int is_json;     /* JSON, else lines                                        */
    int has_figure;  /* as with a first-frame picture                           */
    int is_verbatim; /* the text as it is: no JSON is looked for                */
} m2_tokenize_options;

/* *report_out is malloc'd for the caller to free, NUL-terminated, and ends in a newline.
 * Errors  those of the prompt and the tokenizer */
m2_status m2_tokenize_report(const m2_tokenizer *tokenizer, const char *text, size_t bytes,
                             const m2_tokenize_options *options, char **report_out,
                             size_t *bytes_out);

#endif
