/* Texts, through the demo's tokenizer: every byte of UTF-8 is in some token, in order. */
#include "fuzz.h"

#include "model/text/tokenizer.h"

#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    static m2_tokenizer *tokenizer;
    if (!tokenizer && m2_tokenizer_open(M2_FUZZ_TOKENIZER, &tokenizer) != M2_OK) abort();
    m2_encode_options options;
    m2_encode_options_init(&options);
    options.max_tokens = 0;
    m2_tokens tokens;
    m2_pieces pieces;
    if (m2_tokenizer_encode(tokenizer, (const char *)data, bytes, &options, &tokens) != M2_OK)
        return 0;
    if (tokens.n != tokens.n_total || tokens.n == 0) abort();
    for (int64_t k = 1; k < tokens.n; k++)
        if (tokens.begin[k] < tokens.begin[k - 1] || tokens.end[k] < tokens.end[k - 1]) abort();
    m2_tokens_free(&tokens);
    if (m2_tokenizer_split(tokenizer, (const char *)data, bytes, &options, &pieces) != M2_OK)
        abort();
    int64_t at = 0;
    for (int64_t k = 0; k < pieces.n; k++) {
        if (pieces.begin[k] != at || pieces.end[k] <= at) abort();
        at = pieces.end[k];
    }
    if ((size_t)at != pieces.bytes) abort();
    m2_pieces_free(&pieces);
    return 0;
}
