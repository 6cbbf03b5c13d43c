#include "model/text/vocab.h"

#include <stdlib.h>
#include <string.h>

static uint32_t hash_text(const char *text, size_t bytes)
{
    uint64_t h = 0xcbf29ce484222325u ^ bytes;
    while (bytes >= 8) {
        uint64_t word;
        memcpy(&word, text, 8);
        h = (h ^ word) * 0x9e3779b97f4a7c15u;
        h ^= h >> 29;
        text += 8;
        bytes -= 8;
    }
    for (; bytes > 0; bytes--) h = (h ^ (unsigned char)*text++) * 0x100000001b3u;
    h = (h ^ (h >> 32)) * 0x9e3779b97f4a7c15u;
    return (uint32_t)(h >> 32);
}

/* Slot that holds the text, or the free one where it belongs. */
static uint32_t *find_slot(const m2_vocab *vocab, const char *text, size_t bytes)
{
    uint32_t k = hash_text(text, bytes) & (vocab->n_slots - 1);
    for (;; k = (k + 1) & (vocab->n_slots - 1)) {
        const uint32_t id = vocab->slots[k];
        if (id == M2_VOCAB_NONE) return &vocab->slots[k];
        const struct m2_vocab_entry *entry = &vocab->entries[id];
        if (entry->bytes == bytes && memcmp(vocab->pool.data + entry->begin, text, bytes) == 0)
            return &vocab->slots[k];
    }
}

static int grow_slots(m2_vocab *vocab)
{
    const uint32_t n_old = vocab->n_slots, n_slots = n_old ? n_old * 2 : 1024;
    uint32_t *old = vocab->slots, *slots = malloc(n_slots * sizeof *slots);
    if (!slots) return 0;
    memset(slots, 0xff, n_slots * sizeof *slots);
    vocab->slots = slots;
    vocab->n_slots = n_slots;
    for (uint32_t k = 0; k < n_old; k++) {
        if (old[k] == M2_VOCAB_NONE) continue;
        const struct m2_vocab_entry *entry = &vocab->entries[old[k]];
        *find_slot(vocab, vocab->pool.data + entry->begin, entry->bytes) = old[k];
    }
    free(old);
    return 1;
}

static int grow_entries(m2_vocab *vocab, uint32_t id)
{
    if (id >= vocab->room_ids) {
        uint32_t room = vocab->room_ids ? vocab->room_ids : 1024;
        while (room <= id) room *= 2;
        struct m2_vocab_entry *larger = realloc(vocab->entries, room * sizeof *larger);
        if (!larger) return 0;
        vocab->entries = larger;
        vocab->room_ids = room;
    }
    for (; vocab->n_ids <= id; vocab->n_ids++) vocab->entries[vocab->n_ids].begin = M2_VOCAB_NONE;
    return 1;
}

int m2_vocab_add(m2_vocab *vocab, const char *text, size_t bytes, uint32_t id)
{
    if (id >= M2_VOCAB_ID_MAX) return 0;
    if (vocab->n_tokens >= vocab->n_slots / 2 && !grow_slots(vocab)) goto no_memory;
    if (!grow_entries(vocab, id)) goto no_memory;
    if (vocab->entries[id].begin != M2_VOCAB_NONE) return 0;
    uint32_t *slot = find_slot(vocab, text, bytes);
    if (*slot != M2_VOCAB_NONE) return 0;
    if (vocab->pool.bytes + bytes >= M2_VOCAB_NONE) goto no_memory;
    const uint32_t begin = (uint32_t)vocab->pool.bytes;
    m2_buffer_append(&vocab->pool, text, bytes);
    if (vocab->pool.has_failed) return 0;
    vocab->entries[id] = (struct m2_vocab_entry){ begin, (uint32_t)bytes };
    *slot = id;
    vocab->n_tokens++;
    return 1;
no_memory:
    vocab->pool.has_failed = 1;
    return 0;
}

uint32_t m2_vocab_find(const m2_vocab *vocab, const char *text, size_t bytes)
{
    return vocab->n_slots ? *find_slot(vocab, text, bytes) : M2_VOCAB_NONE;
}

const char *m2_vocab_text(const m2_vocab *vocab, uint32_t id, size_t *bytes_out)
{
    if (id >= vocab->n_ids || vocab->entries[id].begin == M2_VOCAB_NONE) return NULL;
    *bytes_out = vocab->entries[id].bytes;
    return vocab->pool.data + vocab->entries[id].begin;
}

void m2_vocab_free(m2_vocab *vocab)
{
    m2_buffer_free(&vocab->pool);
    free(vocab->entries);
    free(vocab->slots);
    *vocab = (m2_vocab){ 0 };
}
