/* Prompts: JSON or not, with and without a picture, down to the text for the tokenizer. */
#include "fuzz.h"

#include "model/text/prompt.h"
#include "model/text/utf8.h"

#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    char *text = NULL, *again = NULL;
    size_t n = 0, n_again = 0, bad, n_chars;
    if (m2_prompt_normalise((const char *)data, bytes, &text, &n) == M2_OK) {
        if (!m2_utf8_check(text, n, 1, &bad, &n_chars)) abort();
        free(text);
    }
    if (m2_prompt_add_figure((const char *)data, bytes, &text, &n) == M2_OK) {
        if (!m2_utf8_check(text, n, 1, &bad, &n_chars)) abort();
        /* What Python writes, Python reads. */
        if (m2_prompt_normalise(text, n, &again, &n_again) != M2_OK) abort();
        free(again);
        free(text);
    }
    return 0;
}
