#include "model/text/bpe.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

/* Tokens are sure up to a token that two windows share, so a window re-reads the last part of the one
 * before it: a sixteenth. */
#define OVERLAP(window) ((window) / 16)
#define DIGIT_BITS_MAX  12 /* two of them hold a rank: ids end at 2^24 */
#define WIDER           8  /* a window's growth where two shared no token */

static uint64_t hash_pair(uint32_t left, uint32_t right)
{
    const uint64_t x = ((uint64_t)left << 32 | right) * 0x9e3779b97f4a7c15u;
    return x ^ x >> 32;
}

m2_status m2_bpe_create(m2_bpe *bpe, uint32_t n_merges)
{
    uint32_t n_slots = 64;
    while (n_slots / 2 < n_merges) n_slots *= 2;
    *bpe = (m2_bpe){ .n_slots = n_slots };
    bpe->slots = malloc(n_slots * sizeof *bpe->slots);
    bpe->merged_of = malloc((n_merges + (size_t)1) * sizeof *bpe->merged_of);
    bpe->filter = calloc(n_slots / 8, sizeof *bpe->filter);
    bpe->byte_ranks = malloc(65536 * sizeof *bpe->byte_ranks);
    if (!bpe->slots || !bpe->merged_of || !bpe->filter || !bpe->byte_ranks) {
        m2_bpe_destroy(bpe);
        return m2_fail(M2_ERR_MEMORY, "tokenizer: no memory for %u merges", n_merges);
    }
    for (uint32_t k = 0; k < n_slots; k++) bpe->slots[k].left = M2_BPE_NONE;
    return M2_OK;
}

void m2_bpe_destroy(m2_bpe *bpe)
{
    free(bpe->slots);
    free(bpe->merged_of);
    free(bpe->filter);
    free(bpe->byte_ranks);
    *bpe = (m2_bpe){ 0 };
}

/* The pair's slot, or the free one where it belongs. */
static m2_bpe_merge *find(const m2_bpe *bpe, uint64_t hash, uint32_t left, uint32_t right)
{
    uint32_t k = (uint32_t)hash & (bpe->n_slots - 1);
    while (bpe->slots[k].left != M2_BPE_NONE &&
           (bpe->slots[k].left != left || bpe->slots[k].right != right))
        k = (k + 1) & (bpe->n_slots - 1);
    return &bpe->slots[k];
}

static uint64_t *filter_word(const m2_bpe *bpe, uint64_t hash)
{
    return &bpe->filter[(hash >> 6) & (bpe->n_slots / 8 - 1)];
}

void m2_bpe_add(m2_bpe *bpe, uint32_t left, uint32_t right, uint32_t merged, unsigned char last,
                unsigned char first)
{
    const uint32_t rank = bpe->n_merges++;
    const uint64_t hash = hash_pair(left, right);
    *find(bpe, hash, left, right) = (m2_bpe_merge){ left, right, merged, rank };
    *filter_word(bpe, hash) |= (uint64_t)1 << (hash & 63);
    bpe->merged_of[rank] = merged;
    bpe->joins[last * 32 + first / 8] |= (uint8_t)(1u << first % 8);
}

size_t m2_bpe_run(const m2_bpe *bpe, const unsigned char *bytes, size_t n)
{
    size_t k = 1;
    while (k < n && bpe->joins[bytes[k - 1] * 32 + bytes[k] / 8] >> bytes[k] % 8 & 1) k++;
    return k;
}

static uint32_t rank_of(const m2_bpe *bpe, uint32_t left, uint32_t right)
{
    const uint64_t hash = hash_pair(left, right);
    if (!(*filter_word(bpe, hash) >> (hash & 63) & 1)) return M2_BPE_NONE;
    const m2_bpe_merge *merge = find(bpe, hash, left, right);
    return merge->left == M2_BPE_NONE ? M2_BPE_NONE : merge->rank;
}

void m2_bpe_set_bytes(m2_bpe *bpe, const uint32_t byte_id[256])
{
    memcpy(bpe->byte_id, byte_id, sizeof bpe->byte_id);
    for (unsigned a = 0; a < 256; a++)
        for (unsigned b = 0; b < 256; b++)
            bpe->byte_ranks[a * 256 + b] = rank_of(bpe, byte_id[a], byte_id[b]);
}

static m2_status tokens_reserve(m2_bpe_tokens *tokens, size_t n)
{
    if (n <= tokens->room) return M2_OK;
    /* What they hold is of no use any more: freed first, so that there is never room for both. */
    m2_bpe_tokens_free(tokens);
    tokens->ids = malloc(n * sizeof *tokens->ids);
    tokens->ends = malloc(n * sizeof *tokens->ends);
    if (!tokens->ids || !tokens->ends) {
        m2_bpe_tokens_free(tokens);
        return m2_fail(M2_ERR_MEMORY, "tokenizer: no memory for %zu tokens", n);
    }
    tokens->room = n;
    return M2_OK;
}

void m2_bpe_tokens_free(m2_bpe_tokens *tokens)
{
    free(tokens->ids);
    free(tokens->ends);
    *tokens = (m2_bpe_tokens){ 0 };
}

/* A word: the arrays are short, so the lowest rank is looked for in all of them. */
static void encode_by_scan(const m2_bpe *bpe, const unsigned char *bytes, size_t n,
                           m2_bpe_scratch *scratch, m2_bpe_tokens *tokens)
{
    uint32_t *ids = tokens->ids, *ends = tokens->ends;
    uint32_t ranks[M2_BPE_SCAN_MAX];
    for (size_t k = 0; k < n; k++) {
        ids[k] = bpe->byte_id[bytes[k]];
        ends[k] = (uint32_t)k + 1;
    }
    for (size_t k = 0; k + 1 < n; k++) ranks[k] = bpe->byte_ranks[bytes[k] * 256 + bytes[k + 1]];
    scratch->n_steps += n;
    while (n > 1) {
        size_t at = 0;
        for (size_t k = 1; k + 1 < n; k++)
            if (ranks[k] < ranks[at]) at = k;
        if (ranks[at] == M2_BPE_NONE) break;
        ids[at] = bpe->merged_of[ranks[at]];
        ends[at] = ends[at + 1];
        n--;
        const size_t behind = n - at - 1;
        memmove(ids + at + 1, ids + at + 2, behind * sizeof *ids);
        memmove(ends + at + 1, ends + at + 2, behind * sizeof *ends);
        if (at + 1 < n) {
            memmove(ranks + at + 1, ranks + at + 2, (behind - 1) * sizeof *ranks);
            ranks[at] = rank_of(bpe, ids[at], ids[at + 1]);
        }
        if (at > 0) ranks[at - 1] = rank_of(bpe, ids[at - 1], ids[at]);
        scratch->n_steps += 2;
    }
    tokens->n = n;
}

void m2_bpe_scratch_free(m2_bpe_scratch *scratch)
{
    free(scratch->symbols);
    free(scratch->heap);
    free(scratch->line);
    *scratch = (m2_bpe_scratch){ 0 };
}

static m2_status scratch_reserve(m2_bpe_scratch *s, size_t n)
{
    if (n <= s->room) return M2_OK;
    const uint64_t n_steps = s->n_steps;
    m2_bpe_scratch_free(s);
    s->n_steps = n_steps;
    s->symbols = malloc(n * sizeof *s->symbols);
    /* At first less than n pairs; a merge takes one out and puts at most two in, and there are less
     * than n merges. */
    s->heap = malloc(2 * n * sizeof *s->heap);
    s->line = malloc(2 * n * sizeof *s->line);
    if (!s->symbols || !s->heap || !s->line) {
        m2_bpe_scratch_free(s);
        return m2_fail(M2_ERR_MEMORY, "tokenizer: no memory for a word of %zu bytes", n);
    }
    s->room = n;
    return M2_OK;
}

/* Pairs to be merged, in the order of merging: by rank, then by position.  What comes in that order
 * stands in line, the rest in a heap: of a pattern repeated all comes in order, and costs a step
 * each.  An entry whose pair has changed since is dropped when it is met. */
typedef struct pair_queue {
    uint64_t *heap, *line;
    size_t n_heap, begin, end, room; /* line[begin, end), at most line[room - 1] */
} pair_queue;

static uint64_t make_key(uint32_t rank, uint32_t at)
{
    return (uint64_t)rank << 32 | at;
}

static void queue_push(pair_queue *queue, uint64_t key)
{
    if (queue->end < queue->room &&
        (queue->end == queue->begin || queue->line[queue->end - 1] < key)) {
        queue->line[queue->end++] = key;
        return;
    }
    uint64_t *heap = queue->heap;
    size_t k = queue->n_heap++;
    for (; k > 0 && heap[(k - 1) / 2] > key; k = (k - 1) / 2) heap[k] = heap[(k - 1) / 2];
    heap[k] = key;
}

static int queue_pop(pair_queue *queue, uint64_t *key_out)
{
    uint64_t *heap = queue->heap;
    if (queue->begin < queue->end && (queue->n_heap == 0 || queue->line[queue->begin] < heap[0])) {
        *key_out = queue->line[queue->begin++];
        return 1;
    }
    if (queue->n_heap == 0) return 0;
    *key_out = heap[0];
    const size_t n = --queue->n_heap;
    const uint64_t last = heap[n];
    size_t k = 0;
    for (size_t child; (child = 2 * k + 1) < n; k = child) {
        child += child + 1 < n && heap[child + 1] < heap[child];
        if (heap[child] >= last) break;
        heap[k] = heap[child];
    }
    heap[k] = last;
    return 1;
}

/* Make the pair at `at` one token. */
static void unlink_right(m2_bpe_scratch *s, uint32_t at, uint32_t merged)
{
    const uint32_t gone = s->symbols[at].next, behind = s->symbols[gone].next;
    s->symbols[at].id = merged;
    s->symbols[gone].rank = M2_BPE_NONE;
    s->symbols[at].next = behind;
    if (behind != M2_BPE_NONE) s->symbols[behind].previous = at;
}

/* The pair that begins at `at` has become another one. */
static void set_pair(const m2_bpe *bpe, m2_bpe_scratch *s, uint32_t at, pair_queue *queue)
{
    const uint32_t right = s->symbols[at].next;
    const uint32_t rank =
        right == M2_BPE_NONE ? M2_BPE_NONE : rank_of(bpe, s->symbols[at].id, s->symbols[right].id);
    s->n_steps++;
    s->symbols[at].rank = rank;
    if (rank != M2_BPE_NONE) queue_push(queue, make_key(rank, at));
}

/* Order keys[0, n) by rank, stably, by two digits of the rank. */
static void sort_by_rank(uint64_t *keys, uint64_t *spare, size_t n, uint32_t n_ranks)
{
    int digit_bits = 1;
    while ((uint64_t)1 << 2 * digit_bits < n_ranks) digit_bits++;
    assert(digit_bits <= DIGIT_BITS_MAX);
    for (int digit = 0; digit < 2; digit++) {
        const int shift = 32 + digit * digit_bits;
        const uint64_t mask = ((uint64_t)1 << digit_bits) - 1;
        uint32_t begin[1 << DIGIT_BITS_MAX];
        memset(begin, 0, sizeof *begin << digit_bits);
        for (size_t k = 0; k < n; k++) begin[keys[k] >> shift & mask]++;
        for (uint32_t k = 0, sum = 0, count; k <= mask; k++, sum += count) {
            count = begin[k];
            begin[k] = sum;
        }
        for (size_t k = 0; k < n; k++) spare[begin[keys[k] >> shift & mask]++] = keys[k];
        uint64_t *swapped = keys;
        keys = spare;
        spare = swapped;
    }
}

/* One token a byte. */
static void load_symbols(const m2_bpe *bpe, const unsigned char *bytes, size_t n, m2_bpe_scratch *s,
                         pair_queue *queue)
{
    size_t n_keys = 0;
    for (uint32_t k = 0; k < n; k++) {
        const int is_last = k + 1 == n;
        const uint32_t rank =
            is_last ? M2_BPE_NONE : bpe->byte_ranks[bytes[k] * 256 + bytes[k + 1]];
        s->symbols[k] = (m2_bpe_symbol){ .id = bpe->byte_id[bytes[k]],
                                         .next = is_last ? M2_BPE_NONE : k + 1,
                                         .previous = k > 0 ? k - 1 : M2_BPE_NONE,
                                         .rank = rank };
        if (rank != M2_BPE_NONE) s->line[n_keys++] = make_key(rank, k);
    }
    sort_by_rank(s->line, s->heap, n_keys, bpe->n_merges);
    queue->end = n_keys;
    s->n_steps += n;
}

/* Tokens of a window that begins at `from`, behind those that are there. */
static void encode_window(const m2_bpe *bpe, const unsigned char *bytes, size_t from, size_t n,
                          m2_bpe_scratch *s, m2_bpe_tokens *tokens)
{
    pair_queue queue = { .heap = s->heap, .line = s->line, .room = 2 * n };
    load_symbols(bpe, bytes + from, n, s, &queue);
    for (uint64_t key; queue_pop(&queue, &key);) {
        const uint32_t rank = (uint32_t)(key >> 32), at = (uint32_t)key;
        if (s->symbols[at].rank != rank) continue;
        unlink_right(s, at, bpe->merged_of[rank]);
        set_pair(bpe, s, at, &queue);
        const uint32_t before = s->symbols[at].previous;
        if (before != M2_BPE_NONE) set_pair(bpe, s, before, &queue);
    }
    for (uint32_t k = 0; k != M2_BPE_NONE; k = s->symbols[k].next) {
        const uint32_t next = s->symbols[k].next;
        tokens->ids[tokens->n] = s->symbols[k].id;
        tokens->ends[tokens->n++] = (uint32_t)from + (next == M2_BPE_NONE ? (uint32_t)n : next);
    }
}

/* Join tokens [0, n_old) with those of a window that began at the token `first` of them: up to the
 * first token of the same bytes the old ones stay, behind it come the new.  0 where there is none. */
static int join(m2_bpe_tokens *tokens, size_t first, size_t n_old)
{
    uint32_t *ids = tokens->ids, *ends = tokens->ends;
    uint32_t old_begin = ends[first - 1], new_begin = old_begin;
    for (size_t a = first, b = n_old; a < n_old && b < tokens->n;) {
        if (old_begin == new_begin && ends[a] == ends[b]) {
            const size_t n = tokens->n - (b + 1);
            memmove(ids + a + 1, ids + b + 1, n * sizeof *ids);
            memmove(ends + a + 1, ends + b + 1, n * sizeof *ends);
            tokens->n = a + 1 + n;
            return 1;
        }
        if (ends[a] <= ends[b])
            old_begin = ends[a++];
        else
            new_begin = ends[b++];
    }
    return 0;
}

/* A long piece, `window` bytes at a time; 0 where two windows shared no token. */
static int encode_by_windows(const m2_bpe *bpe, const unsigned char *bytes, size_t n, size_t window,
                             m2_bpe_scratch *s, m2_bpe_tokens *tokens)
{
    size_t end = window < n ? window : n;
    tokens->n = 0;
    encode_window(bpe, bytes, 0, end, s, tokens);
    while (end < n) {
        size_t first = tokens->n - 1; /* the last token that begins in front of the overlap */
        while (first > 0 && tokens->ends[first - 1] + OVERLAP(window) > end) first--;
        if (first == 0) return 0;
        const size_t from = tokens->ends[first - 1], n_old = tokens->n;
        if (from + window <= end) return 0;
        end = from + window < n ? from + window : n;
        encode_window(bpe, bytes, from, end - from, s, tokens);
        if (!join(tokens, first, n_old)) return 0;
    }
    return 1;
}

m2_status m2_bpe_encode(const m2_bpe *bpe, const unsigned char *bytes, size_t n, size_t scan_max,
                        size_t window, m2_bpe_scratch *scratch, m2_bpe_tokens *tokens)
{
    if (n <= scan_max && n <= M2_BPE_SCAN_MAX) {
        M2_TRY(tokens_reserve(tokens, n));
        encode_by_scan(bpe, bytes, n, scratch, tokens);
        return M2_OK;
    }
    for (;; window *= WIDER) {
        const int is_whole = window >= n;
        M2_TRY(tokens_reserve(tokens, is_whole ? n : n + window));
        M2_TRY(scratch_reserve(scratch, is_whole ? n : window));
        if (encode_by_windows(bpe, bytes, n, window, scratch, tokens)) return M2_OK;
    }
}
