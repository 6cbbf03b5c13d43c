/* tokenizer_internal.h - what the loader fills and the encoder reads. */
#ifndef M2_MODEL_TEXT_TOKENIZER_INTERNAL_H
#define M2_MODEL_TEXT_TOKENIZER_INTERNAL_H

#include "model/text/added_tokens.h"
#include "model/text/bpe.h"
#include "model/text/split_regex.h"
#include "model/text/tokenizer.h"
#include "model/text/vocab.h"

struct m2_tokenizer {
    m2_vocab vocab;       /* of the model and added tokens */
    uint32_t n_model_ids; /* ids at or above it are added tokens' only */
    m2_bpe bpe;
    m2_added_tokens added, added_normalised; /* looked for before and behind NFC */
    int has_nfc;
    m2_split_regex *split;
    m2_char_map char_map;
};

/* The character that stands for a byte in the file's strings: the printable ones of Latin-1 stand
 * for themselves, the others follow from U+0100 on. */
uint32_t m2_byte_char(unsigned byte);
/* The other way; -1 for a character that stands for none. */
int m2_char_byte(uint32_t code_point);

#endif
