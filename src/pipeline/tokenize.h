/* tokenize.h - a prompt as the encoder of a model will see it, for people and machines. */
#ifndef M2_PIPELINE_TOKENIZE_H
#define M2_PIPELINE_TOKENIZE_H

#include "core/status.h"

/* *text_out is malloc'd: a token a line and the counts, or one JSON object.
 * Errors  M2_ERR_IO, M2_ERR_FORMAT (tokenizer.json), M2_ERR_ARG (the prompt), M2_ERR_MEMORY */
m2_status m2_tokenize_for_model(const char *model_dir, const char *prompt, int as_json,
                                char **text_out);

#endif
