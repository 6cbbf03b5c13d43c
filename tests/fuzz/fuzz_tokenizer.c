/* tokenizer.json: opened, and a text encoded with whatever tokenizer came of it. */
#include "fuzz.h"

#include "model/text/tokenizer.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    static const char text[] =
        "A 'S caf\xc3\xa9 e\xcc\x81 \xe4\xbd\xa0\n\n  <|im_end|> aaaaaaaaaaaa"
        "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa x1";
    m2_tokenizer *tokenizer = NULL;
    if (m2_tokenizer_open(m2_fuzz_file(data, bytes), &tokenizer) != M2_OK) return 0;
    m2_tokens tokens;
    if (m2_tokenizer_encode(tokenizer, text, strlen(text), NULL, &tokens) == M2_OK) {
        for (int64_t k = 0; k < tokens.n; k++)
            if (tokens.id[k] < 0 || tokens.id[k] >= m2_tokenizer_n_ids(tokenizer) ||
                tokens.begin[k] < 0 || tokens.begin[k] >= tokens.end[k])
                abort();
        m2_tokens_free(&tokens);
    }
    m2_tokenizer_close(tokenizer);
    return 0;
}
