/* prompt.h - what is done to a prompt's text before it is tokenised.
 *
 * A prompt may be JSON in the layout that the model was conditioned on; it then becomes compact
 * Markdown.  Any other text, and JSON of another layout, stays as it is: no escapes are read, no
 * line is cut.  The rules are the reference's to the letter, Python's printing of odd values
 * included.
 *
 * A picture adds one sentence, "The first frame refers to <Figure 1>", and the tokens of
 * `<Figure 1>` in the result are those whose encoding stands for the picture.
 */
#ifndef M2_MODEL_TEXT_PROMPT_H
#define M2_MODEL_TEXT_PROMPT_H

#include "core/status.h"
#include "model/text/tokenizer.h"

#include <stddef.h>
#include <stdint.h>

/* JSON -> compact Markdown; any other text is copied.  *text_out is malloc'd for the caller to free,
 * NUL-terminated; a text that begins as JSON and is not taken as such, or not whole, is warned of.  It
 * may be empty (JSON that says nothing) or hold lone surrogates where JSON
 * escapes some, which the tokenizer refuses.
 * Errors  M2_ERR_ARG (not UTF-8: names the byte; JSON objects nested deeper than 200), M2_ERR_MEMORY */
m2_status m2_prompt_normalise(const char *text, size_t bytes, char **text_out, size_t *bytes_out);

/* The prompt with the sentence that a picture adds, to be normalised next: as `reference_layer` of
 * a JSON object, which is written anew, else behind the text without any separator.
 * Errors  as above */
m2_status m2_prompt_add_figure(const char *text, size_t bytes, char **text_out, size_t *bytes_out);

/* Indices of the tokens that share a character with the first `<Figure N>` (figure = N, >= 1) in
 * `text`, of which `tokens` are the tokens.  *n_out is 0 (and *indices_out NULL) where there is
 * none: the picture's embedding is zero then.  *indices_out is malloc'd.
 * Errors  M2_ERR_MEMORY */
m2_status m2_prompt_figure_tokens(const m2_tokens *tokens, const char *text, size_t bytes,
                                  int figure, int64_t **indices_out, int64_t *n_out);

#endif
