#include "model/text/tokenize_report.h"

#include "model/text/prompt.h"
#include "model/text/prompt_internal.h"
#include "model/text/utf8.h"

#include <stdlib.h>
#include <string.h>

/* Bytes between quotes: what JSON escapes is escaped, what is no UTF-8 is \xNN (in JSON a literal
 * backslash, so doubled). */
static void append_quoted(m2_buffer *out, const char *text, size_t bytes, int is_json)
{
    m2_buffer_puts(out, "\"");
    for (size_t at = 0; at < bytes;) {
        const unsigned char c = (unsigned char)text[at];
        const size_t width = m2_utf8_width(c);
        size_t bad, n_chars;
        if (width > bytes - at || !m2_utf8_check(text + at, width, 0, &bad, &n_chars)) {
            m2_buffer_printf(out, is_json ? "\\\\x%02x" : "\\x%02x", c);
            at++;
            continue;
        }
        if (c == '"' || c == '\\')
            m2_buffer_printf(out, "\\%c", c);
        else if (c == '\n' || c == '\r' || c == '\t')
            m2_buffer_puts(out, c == '\n' ? "\\n" : c == '\r' ? "\\r" : "\\t");
        else if (c < 0x20 || c == 0x7f)
            m2_buffer_printf(out, "\\u%04x", c);
        else
            m2_buffer_append(out, text + at, width);
        at += width;
    }
    m2_buffer_puts(out, "\"");
}

static void append_token(const m2_tokenizer *tokenizer, int32_t id, int is_json, m2_buffer *word,
                         m2_buffer *out)
{
    m2_buffer_clear(word);
    m2_tokenizer_append_token(tokenizer, id, word);
    append_quoted(out, word->data, word->bytes, is_json);
}

static void write_lines(const m2_tokenizer *tokenizer, const m2_tokens *tokens, m2_buffer *out)
{
    m2_buffer word = { 0 };
    for (int64_t k = 0; k < tokens->n; k++) {
        m2_buffer_printf(out, "%7d  %lld-%lld  ", tokens->id[k], (long long)tokens->begin[k],
                         (long long)tokens->end[k]);
        append_token(tokenizer, tokens->id[k], 0, &word, out);
        m2_buffer_puts(out, "\n");
    }
    m2_buffer_printf(out, "%lld tokens", (long long)tokens->n_total);
    if (tokens->n < tokens->n_total)
        m2_buffer_printf(out, ", the encoder takes the first %lld", (long long)tokens->n);
    m2_buffer_puts(out, "\n");
    if (word.has_failed) out->has_failed = 1;
    m2_buffer_free(&word);
}

static void write_json(const m2_tokenizer *tokenizer, const m2_tokens *tokens, const char *text,
                       size_t bytes, int has_figure, m2_buffer *out)
{
    m2_buffer word = { 0 };
    m2_buffer_puts(out, "{\"text\": ");
    append_quoted(out, text, bytes, 1);
    m2_buffer_printf(out, ", \"n_tokens\": %lld, \"n_total\": %lld, \"is_truncated\": %s",
                     (long long)tokens->n, (long long)tokens->n_total,
                     tokens->n < tokens->n_total ? "true" : "false");
    m2_buffer_printf(out, ", \"has_figure\": %s, \"tokens\": [", has_figure ? "true" : "false");
    for (int64_t k = 0; k < tokens->n; k++) {
        m2_buffer_printf(out,
                         "%s{\"id\": %d, \"begin\": %lld, \"end\": %lld, \"text\": ", k ? ", " : "",
                         tokens->id[k], (long long)tokens->begin[k], (long long)tokens->end[k]);
        append_token(tokenizer, tokens->id[k], 1, &word, out);
        m2_buffer_puts(out, "}");
    }
    m2_buffer_puts(out, "]}\n");
    if (word.has_failed) out->has_failed = 1;
    m2_buffer_free(&word);
}

m2_status m2_tokenize_report(const m2_tokenizer *tokenizer, const char *text, size_t bytes,
                             const m2_tokenize_options *options, char **report_out,
                             size_t *bytes_out)
{
    char *with_figure = NULL, *normalised = NULL;
    size_t used_bytes = bytes;
    const char *used = text;
    m2_tokens tokens = { 0 };
    m2_buffer out = { 0 };
    m2_status status = M2_OK;
    if (options->has_figure) {
        status = m2_prompt_add_figure(used, used_bytes, &with_figure, &used_bytes);
        used = with_figure;
    }
    if (status == M2_OK && !options->is_verbatim) {
        status = m2_prompt_normalise(used, used_bytes, &normalised, &used_bytes);
        used = normalised;
    }
    if (status == M2_OK) status = m2_tokenizer_encode(tokenizer, used, used_bytes, NULL, &tokens);
    if (status == M2_OK) {
        if (options->is_json)
            write_json(tokenizer, &tokens, used, used_bytes, options->has_figure, &out);
        else
            write_lines(tokenizer, &tokens, &out);
        status = m2_prompt_give(&out, report_out, bytes_out);
    }
    m2_tokens_free(&tokens);
    free(with_figure);
    free(normalised);
    return status;
}
