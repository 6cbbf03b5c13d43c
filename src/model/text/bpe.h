/* bpe.h - byte-pair encoding: the bytes of one piece -> token ids, by merge rank.
 *
 * Starting from one token a byte, the pair of neighbours with the lowest rank is merged, the
 * leftmost first, until no pair has a rank.
 *
 * Cost     pieces of a word's length are scanned; longer ones keep their pairs in a queue by rank, so
 *          a piece of n bytes takes about n steps, whatever it holds.
 * Windows  a long piece is encoded window by window, each beginning at a token of the one before.
 *          That is exact: a row of tokens is the encoding of its bytes if and only if each two
 *          neighbours are the encoding of theirs.  (Take the first merge across one of the row's
 *          boundaries.  All merges before it lie within tokens, and each came first among all pairs,
 *          so it came first among those of any two neighbours: alone, the two would merge across
 *          their boundary as well.  The other way round likewise.)  Where two windows share a token,
 *          all neighbours of the joined row stand side by side in one of the two.  Where they share
 *          none, the piece is encoded again in wider windows, at last in one.
 * Memory   of a long piece: 8 bytes a byte for its tokens, and 48 bytes a byte of the window.
 * Threads  a table may be used by many threads, a scratch by one.
 */
#ifndef M2_MODEL_TEXT_BPE_H
#define M2_MODEL_TEXT_BPE_H

#include "core/status.h"

#include <stddef.h>
#include <stdint.h>

#define M2_BPE_NONE UINT32_MAX

typedef struct m2_bpe_merge {
    uint32_t left, right, merged; /* left is M2_BPE_NONE in a free slot */
    uint32_t rank;
} m2_bpe_merge;

typedef struct m2_bpe {
    uint32_t byte_id[256];
    m2_bpe_merge *slots; /* hash table, open addressing */
    uint32_t n_slots;    /* a power of two */
    uint64_t *filter; /* [n_slots / 8] 8 bits a slot: 0 where no pair can be; most pairs asked for
                            have no rank, and this stays in the cache where the table does not */
    uint32_t *byte_ranks; /* [65536] of pairs of single bytes */
    uint32_t *merged_of;  /* [n_merges] by rank */
    uint8_t joins[8192];  /* bit a * 256 + b: byte a can stand before byte b in a merged token */
    uint32_t n_merges;
} m2_bpe;

/* Room for n_merges, at most M2_BPE_MERGES_MAX. */
#define M2_BPE_MERGES_MAX ((uint32_t)1 << 24)
m2_status m2_bpe_create(m2_bpe *bpe, uint32_t n_merges);
void m2_bpe_destroy(m2_bpe *bpe);
/* The merge of the next rank, of tokens that meet at bytes `last` and `first`; a pair given again
 * takes the new rank. */
void m2_bpe_add(m2_bpe *bpe, uint32_t left, uint32_t right, uint32_t merged, unsigned char last,
                unsigned char first);
/* The tokens of single bytes; called once, when all merges are there. */
void m2_bpe_set_bytes(m2_bpe *bpe, const uint32_t byte_id[256]);
/* How many of bytes[0, n) can end up in one token; no merge crosses to what is behind. */
size_t m2_bpe_run(const m2_bpe *bpe, const unsigned char *bytes, size_t n);

/* A token of a window, by its first byte. */
typedef struct m2_bpe_symbol {
    uint32_t id;
    uint32_t next, previous; /* first bytes of its neighbours, or M2_BPE_NONE */
    uint32_t rank;           /* of the pair with the next one, or M2_BPE_NONE */
} m2_bpe_symbol;

typedef struct m2_bpe_scratch {
    m2_bpe_symbol *symbols; /* [room] */
    uint64_t *heap, *line;  /* [2 * room] pairs to merge: rank, first byte */
    size_t room;
    uint64_t n_steps; /* merges tried and pairs looked up so far, for tests of the cost */
} m2_bpe_scratch;

void m2_bpe_scratch_free(m2_bpe_scratch *scratch);

/* Tokens of the last encode: n of them, ids[k] over bytes [ends[k - 1], ends[k]). */
typedef struct m2_bpe_tokens {
    uint32_t *ids, *ends;
    size_t n, room;
} m2_bpe_tokens;

void m2_bpe_tokens_free(m2_bpe_tokens *tokens);

/* bytes[0, n), 1 <= n < 2^30.  Pieces over `scan_max` (at most M2_BPE_SCAN_MAX) bytes go through
 * windows of `window` (at least 2) bytes; every way gives the same tokens.
 * Errors  M2_ERR_MEMORY */
#define M2_BPE_SCAN_MAX 40
#define M2_BPE_WINDOW   8192
m2_status m2_bpe_encode(const m2_bpe *bpe, const unsigned char *bytes, size_t n, size_t scan_max,
                        size_t window, m2_bpe_scratch *scratch, m2_bpe_tokens *tokens);

#endif
