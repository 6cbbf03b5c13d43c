#include "pipeline/tokenize.h"

#include "model/text/prompt.h"
#include "pipeline/engine.h"

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* A token's bytes as text: what is no whole character is shown as \xNN. */
static char *token_text(const m2_tokenizer *tokenizer, int32_t id)
{
    m2_buffer bytes = { 0 };
    char *text = NULL;
    size_t n = 0;
    FILE *stream = open_memstream(&text, &n);
    if (!stream) return NULL;
    m2_tokenizer_append_token(tokenizer, id, &bytes);
    json_t *whole = json_stringn(bytes.data ? bytes.data : "", bytes.bytes);
    for (size_t i = 0; i < bytes.bytes; i++) {
        const unsigned char c = (unsigned char)bytes.data[i];
        if (whole || (c >= 0x20 && c < 0x7f))
            fputc(c, stream);
        else
            fprintf(stream, "\\x%02x", c);
    }
    json_decref(whole);
    m2_buffer_free(&bytes);
    return fclose(stream) == 0 ? text : NULL;
}

static char *report_json(const m2_tokenizer *tokenizer, const char *rendered,
                         const m2_tokens *tokens)
{
    json_t *ids = json_array(), *texts = json_array();
    for (int64_t i = 0; i < tokens->n; i++) {
        char *text = token_text(tokenizer, tokens->id[i]);
        json_array_append_new(ids, json_integer(tokens->id[i]));
        json_array_append_new(texts, json_string(text ? text : ""));
        free(text);
    }
    json_t *root = json_pack(
        "{s:s, s:I, s:I, s:o, s:o}", "text", rendered, "tokens", (json_int_t)tokens->n,
        "tokens_cut", (json_int_t)(tokens->n_total - tokens->n), "ids", ids, "pieces", texts);
    char *dumped = root ? json_dumps(root, JSON_COMPACT) : NULL;
    char *line = NULL;
    if (dumped && asprintf(&line, "%s\n", dumped) < 0) line = NULL;
    free(dumped);
    json_decref(root);
    return line;
}

static char *report_text(const m2_tokenizer *tokenizer, const m2_tokens *tokens)
{
    char *report = NULL;
    size_t n = 0;
    FILE *stream = open_memstream(&report, &n);
    if (!stream) return NULL;
    for (int64_t i = 0; i < tokens->n; i++) {
        char *text = token_text(tokenizer, tokens->id[i]);
        fprintf(stream, "%7d  ", tokens->id[i]);
        for (const char *c = text ? text : ""; *c; c++) {
            if (*c == '\n')
                fputs("\\n", stream);
            else if (*c == '\r')
                fputs("\\r", stream);
            else if (*c == '\t')
                fputs("\\t", stream);
            else
                fputc(*c, stream);
        }
        fputs("|\n", stream);
        free(text);
    }
    fprintf(stream, "%lld tokens", (long long)tokens->n);
    if (tokens->n_total > tokens->n)
        fprintf(stream, " of %lld; the rest is cut off", (long long)tokens->n_total);
    fputc('\n', stream);
    return fclose(stream) == 0 ? report : NULL;
}

m2_status m2_tokenize_report(const char *model_dir, const char *prompt, int as_json,
                             char **text_out)
{
    m2_model_paths paths;
    m2_tokenizer *tokenizer = NULL;
    char *rendered = NULL;
    m2_tokens tokens = { 0 };
    M2_TRY(m2_model_paths_find(model_dir, &paths));
    M2_TRY(m2_tokenizer_open(paths.tokenizer, &tokenizer));
    size_t bytes = 0;
    m2_status status = m2_prompt_normalise(prompt, strlen(prompt), &rendered, &bytes);
    if (status == M2_OK) status = m2_tokenizer_encode(tokenizer, rendered, bytes, NULL, &tokens);
    if (status == M2_OK) {
        char *text =
            as_json ? report_json(tokenizer, rendered, &tokens) : report_text(tokenizer, &tokens);
        if (text)
            *text_out = text;
        else
            status = m2_fail(M2_ERR_MEMORY, "no memory for the report");
    }
    m2_tokens_free(&tokens);
    free(rendered);
    m2_tokenizer_close(tokenizer);
    return status;
}
