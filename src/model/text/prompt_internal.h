/* prompt_internal.h - what the two ways to rewrite a prompt share. */
#ifndef M2_MODEL_TEXT_PROMPT_INTERNAL_H
#define M2_MODEL_TEXT_PROMPT_INTERNAL_H

#include "core/status.h"
#include "model/text/buffer.h"
#include "model/text/pyjson.h"

/* UTF-8, lone surrogates let through.  Errors  M2_ERR_ARG, naming the byte */
m2_status m2_prompt_check(const char *text, size_t bytes);
/* *document_out is NULL where the text is no JSON object; fault_out (which may be NULL) says why a
 * text that begins as one is none. */
m2_status m2_prompt_parse_object(const char *text, size_t bytes, m2_py_document **document_out,
                                 m2_py_fault *fault_out);
/* Hands the buffer's memory over, or frees it and fails. */
m2_status m2_prompt_give(m2_buffer *buffer, char **text_out, size_t *bytes_out);

#endif
