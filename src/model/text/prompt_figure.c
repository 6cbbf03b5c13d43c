#include "model/text/prompt.h"

#include "model/text/prompt_internal.h"
#include "model/text/pyjson.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define SENTENCE "The first frame refers to <Figure 1>"

/* dict["reference_layer"] = [SENTENCE]: in the place of an existing one, else last. */
static m2_status set_reference(m2_py_document *document)
{
    m2_py_value *root = m2_py_root(document);
    m2_py_value *layer = m2_py_get(root, "reference_layer"), *item = m2_py_new(document);
    if (!layer && item) {
        layer = m2_py_new(document);
        m2_py_value **link = &root->first;
        while (*link) link = &(*link)->next;
        *link = layer;
        if (layer) {
            layer->key = "reference_layer";
            layer->key_bytes = strlen(layer->key);
        }
    }
    if (!layer || !item) return m2_fail(M2_ERR_MEMORY, "no memory for the prompt's text");
    item->kind = M2_PY_STRING;
    item->text = SENTENCE;
    item->bytes = strlen(SENTENCE);
    layer->kind = M2_PY_LIST;
    layer->first = item;
    return M2_OK;
}

m2_status m2_prompt_add_figure(const char *text, size_t bytes, char **text_out, size_t *bytes_out)
{
    m2_py_document *document;
    M2_TRY(m2_prompt_check(text, bytes));
    M2_TRY(m2_prompt_parse_object(text, bytes, &document, NULL));
    m2_buffer out = { 0 };
    if (document) {
        const m2_status status = set_reference(document);
        if (status == M2_OK) m2_py_append_dumps(&out, m2_py_root(document));
        m2_py_destroy(document);
        if (status != M2_OK) return status;
    } else {
        m2_buffer_append(&out, text, bytes);
        m2_buffer_puts(&out, "reference_layer:" SENTENCE);
    }
    return m2_prompt_give(&out, text_out, bytes_out);
}

static int64_t count_chars(const char *text, size_t bytes)
{
    int64_t n = 0;
    for (size_t k = 0; k < bytes; k++) n += ((unsigned char)text[k] & 0xc0) != 0x80;
    return n;
}

m2_status m2_prompt_figure_tokens(const m2_tokens *tokens, const char *text, size_t bytes,
                                  int figure, int64_t **indices_out, int64_t *n_out)
{
    char tag[32];
    const int tag_bytes = snprintf(tag, sizeof tag, "<Figure %d>", figure);
    const char *found = bytes ? memmem(text, bytes, tag, (size_t)tag_bytes) : NULL;
    int64_t *indices = NULL, n = 0;
    if (found && tokens->n > 0) {
        const int64_t begin = count_chars(text, (size_t)(found - text)), end = begin + tag_bytes;
        indices = malloc((size_t)tokens->n * sizeof *indices);
        if (!indices)
            return m2_fail(M2_ERR_MEMORY, "no memory for %lld tokens", (long long)tokens->n);
        for (int64_t k = 0; k < tokens->n; k++) {
            /* The reference takes an empty range at 0 for a token without text. */
            if (k > 0 && tokens->begin[k] == 0 && tokens->end[k] == 0) continue;
            const int64_t low = tokens->begin[k] > begin ? tokens->begin[k] : begin;
            const int64_t high = tokens->end[k] < end ? tokens->end[k] : end;
            if (low < high) indices[n++] = k;
        }
    }
    if (n == 0) {
        free(indices);
        indices = NULL;
    }
    *indices_out = indices;
    *n_out = n;
    return M2_OK;
}
