/* vocab.h - token strings and their ids, both ways. */
#ifndef M2_MODEL_TEXT_VOCAB_H
#define M2_MODEL_TEXT_VOCAB_H

#include "core/status.h"
#include "model/text/buffer.h"

#include <stddef.h>
#include <stdint.h>

/* The release has 248,320 ids; more than this is no vocabulary. */
#define M2_VOCAB_ID_MAX ((uint32_t)1 << 24)
#define M2_VOCAB_NONE   UINT32_MAX

typedef struct m2_vocab {
    m2_buffer pool;
    struct m2_vocab_entry {
        uint32_t begin, bytes; /* in the pool; begin is M2_VOCAB_NONE for an id without a token */
    } * entries;               /* [n_ids], room for room_ids */
    uint32_t n_ids, room_ids, n_tokens;
    uint32_t *slots; /* hash table of ids, open addressing, M2_VOCAB_NONE where free */
    uint32_t n_slots;
} m2_vocab;

/* 1 when added; 0 when the text or the id is taken, or memory ran out (then vocab->pool.has_failed). */
int m2_vocab_add(m2_vocab *vocab, const char *text, size_t bytes, uint32_t id);
/* M2_VOCAB_NONE where there is none. */
uint32_t m2_vocab_find(const m2_vocab *vocab, const char *text, size_t bytes);
/* NULL for an id without a token; not NUL-terminated. */
const char *m2_vocab_text(const m2_vocab *vocab, uint32_t id, size_t *bytes_out);
void m2_vocab_free(m2_vocab *vocab);

#endif
