#include "model/text/bpe.h"

#include <stdlib.h>
#include <string.h>

#define PREFETCH 12 /* merges ahead; positions of one rank lie far apart */

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
    uint32_t *ids = realloc(tokens->ids, n * sizeof *ids);
    if (ids) tokens->ids = ids;
    uint32_t *ends = ids ? realloc(tokens->ends, n * sizeof *ends) : NULL;
    if (!ends) return m2_fail(M2_ERR_MEMORY, "tokenizer: no memory for %zu tokens", n);
    tokens->ends = ends;
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
    free(scratch->nodes);
    free(scratch->batch);
    free(scratch->heap);
    free(scratch->bucket_of);
    *scratch = (m2_bpe_scratch){ 0 };
}

static m2_status scratch_reserve(const m2_bpe *bpe, m2_bpe_scratch *s, size_t n)
{
    if (n <= s->room) return M2_OK;
    const uint64_t n_steps = s->n_steps;
    m2_bpe_scratch_free(s);
    s->n_steps = n_steps;
    s->symbols = malloc(n * sizeof *s->symbols);
    /* A merge uses up a node and makes at most two, and there are less than n: 2 n live at most. */
    s->nodes = malloc((2 * n + 1) * sizeof *s->nodes);
    s->batch = malloc((2 * n + 1) * sizeof *s->batch); /* all nodes may be in one list */
    s->heap = malloc(n * sizeof *s->heap);
    s->bucket_of = calloc(bpe->n_merges + (size_t)1, sizeof *s->bucket_of);
    if (!s->symbols || !s->nodes || !s->batch || !s->heap || !s->bucket_of) {
        m2_bpe_scratch_free(s);
        return m2_fail(M2_ERR_MEMORY, "tokenizer: no memory for a word of %zu bytes", n);
    }
    s->room = n;
    return M2_OK;
}

/* State of one long piece.  A rank with positions waiting is in the heap once, its positions in a
 * linked list; an entry whose pair has changed since is dropped when it is met. */
typedef struct long_piece {
    const m2_bpe *bpe;
    m2_bpe_scratch *s;
    size_t n_heap;
    uint32_t n_nodes, free_node; /* nodes are counted from 1; 0 ends a list */
} long_piece;

static uint64_t make_node(uint32_t at, uint32_t next)
{
    return (uint64_t)at << 32 | next;
}

static uint32_t node_next(uint64_t node)
{
    return (uint32_t)node;
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

static uint32_t pair_rank(const m2_bpe *bpe, m2_bpe_scratch *s, uint32_t at)
{
    const uint32_t right = s->symbols[at].next;
    s->n_steps++;
    return right == M2_BPE_NONE ? M2_BPE_NONE
                                : rank_of(bpe, s->symbols[at].id, s->symbols[right].id);
}

static void heap_push(long_piece *p, uint32_t rank)
{
    uint32_t *heap = p->s->heap;
    size_t k = p->n_heap++;
    for (; k > 0 && heap[(k - 1) / 2] > rank; k = (k - 1) / 2) heap[k] = heap[(k - 1) / 2];
    heap[k] = rank;
}

static uint32_t heap_pop(long_piece *p)
{
    uint32_t *heap = p->s->heap;
    const uint32_t top = heap[0], last = heap[--p->n_heap];
    size_t k = 0;
    for (size_t child; (child = 2 * k + 1) < p->n_heap; k = child) {
        if (child + 1 < p->n_heap && heap[child + 1] < heap[child]) child++;
        if (heap[child] >= last) break;
        heap[k] = heap[child];
    }
    heap[k] = last;
    return top;
}

/* The pair that begins at `at` has become another one. */
static void set_pair(long_piece *p, uint32_t at, uint32_t rank)
{
    m2_bpe_scratch *s = p->s;
    s->symbols[at].rank = rank;
    if (rank == M2_BPE_NONE) return;
    uint32_t node = p->free_node;
    if (node)
        p->free_node = node_next(s->nodes[node]);
    else
        node = ++p->n_nodes;
    if (!s->bucket_of[rank]) heap_push(p, rank);
    s->nodes[node] = make_node(at, s->bucket_of[rank]);
    s->bucket_of[rank] = node;
}

static int by_position(const void *a, const void *b)
{
    const uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
    return (x > y) - (x < y);
}

/* Take a rank's positions, in order from left to right, and forget its list. */
static size_t take_bucket(long_piece *p, uint32_t rank)
{
    m2_bpe_scratch *s = p->s;
    size_t n_listed = 0, n = 0;
    /* Following the list and looking at the symbols are kept apart: only the first has to wait for
     * one load after the other. */
    for (uint32_t node = s->bucket_of[rank], after; node; node = after) {
        s->batch[n_listed++] = (uint32_t)(s->nodes[node] >> 32);
        after = node_next(s->nodes[node]);
        s->nodes[node] = make_node(0, p->free_node);
        p->free_node = node;
    }
    for (size_t k = 0; k < n_listed; k++) {
        const uint32_t at = s->batch[k];
        /* Stale, or here twice: the mark keeps a position from being taken again. */
        if (s->symbols[at].rank != rank) continue;
        s->symbols[at].rank = M2_BPE_NONE;
        s->batch[n++] = at;
    }
    s->bucket_of[rank] = 0;
    int is_descending = 1;
    for (size_t k = 0; k < n; k++) {
        s->symbols[s->batch[k]].rank = rank;
        is_descending &= k == 0 || s->batch[k - 1] > s->batch[k];
    }
    if (is_descending) { /* the usual case: found from left to right, listed last first */
        for (size_t k = 0; k < n / 2; k++) {
            const uint32_t swapped = s->batch[k];
            s->batch[k] = s->batch[n - 1 - k];
            s->batch[n - 1 - k] = swapped;
        }
    } else {
        qsort(s->batch, n, sizeof *s->batch, by_position);
    }
    return n;
}

/* All pairs still to be merged, as rank * 2^32 + position, in a binary heap over the nodes' memory. */
static void ordered_push(uint64_t *heap, size_t *n_heap, uint32_t rank, uint32_t at)
{
    const uint64_t key = (uint64_t)rank << 32 | at;
    size_t k = (*n_heap)++;
    for (; k > 0 && heap[(k - 1) / 2] > key; k = (k - 1) / 2) heap[k] = heap[(k - 1) / 2];
    heap[k] = key;
}

static uint64_t ordered_pop(uint64_t *heap, size_t *n_heap)
{
    const uint64_t top = heap[0], last = heap[--*n_heap];
    size_t k = 0;
    for (size_t child; (child = 2 * k + 1) < *n_heap; k = child) {
        if (child + 1 < *n_heap && heap[child + 1] < heap[child]) child++;
        if (heap[child] >= last) break;
        heap[k] = heap[child];
    }
    heap[k] = last;
    return top;
}

/* Finish a piece in which a merge has made a pair of lower rank than its own: trained merges never
 * do, but a file may hold any.  Every pair then goes through one heap, at a few times the cost. */
static void finish_by_heap(const m2_bpe *bpe, m2_bpe_scratch *s)
{
    uint64_t *heap = s->nodes;
    size_t n_heap = 0;
    for (uint32_t k = 0; k != M2_BPE_NONE; k = s->symbols[k].next)
        if (s->symbols[k].rank != M2_BPE_NONE) ordered_push(heap, &n_heap, s->symbols[k].rank, k);
    while (n_heap > 0) {
        const uint64_t key = ordered_pop(heap, &n_heap);
        const uint32_t rank = (uint32_t)(key >> 32), at = (uint32_t)key;
        if (s->symbols[at].rank != rank) continue;
        unlink_right(s, at, bpe->merged_of[rank]);
        const uint32_t changed[2] = { at, s->symbols[at].previous };
        for (int k = 0; k < 2; k++) {
            if (changed[k] == M2_BPE_NONE) continue;
            s->symbols[changed[k]].rank = pair_rank(bpe, s, changed[k]);
            if (s->symbols[changed[k]].rank != M2_BPE_NONE)
                ordered_push(heap, &n_heap, s->symbols[changed[k]].rank, changed[k]);
        }
    }
}

static void encode_by_buckets(const m2_bpe *bpe, const unsigned char *bytes, size_t n,
                              m2_bpe_scratch *s, m2_bpe_tokens *tokens)
{
    long_piece p = { .bpe = bpe, .s = s };
    for (uint32_t k = 0; k < n; k++) {
        s->symbols[k].id = bpe->byte_id[bytes[k]];
        s->symbols[k].next = k + 1 < n ? k + 1 : M2_BPE_NONE;
        s->symbols[k].previous = k > 0 ? k - 1 : M2_BPE_NONE;
    }
    for (uint32_t k = 0; k + 1 < n; k++)
        set_pair(&p, k, bpe->byte_ranks[bytes[k] * 256 + bytes[k + 1]]);
    s->symbols[n - 1].rank = M2_BPE_NONE;
    s->n_steps += n;
    int is_falling = 0;
    while (p.n_heap > 0 && !is_falling) {
        const uint32_t rank = heap_pop(&p);
        const size_t n_batch = take_bucket(&p, rank);
        for (size_t k = 0; k < n_batch && !is_falling; k++) {
            const uint32_t at = s->batch[k];
            if (k + PREFETCH < n_batch) __builtin_prefetch(&s->symbols[s->batch[k + PREFETCH]], 1);
            if (s->symbols[at].rank != rank) continue; /* its left half went to the pair before */
            unlink_right(s, at, bpe->merged_of[rank]);
            set_pair(&p, at, pair_rank(bpe, s, at));
            const uint32_t before = s->symbols[at].previous;
            if (before != M2_BPE_NONE) set_pair(&p, before, pair_rank(bpe, s, before));
            is_falling = p.n_heap > 0 && s->heap[0] <= rank;
        }
    }
    for (; p.n_heap > 0; heap_pop(&p)) s->bucket_of[s->heap[0]] = 0;
    if (is_falling) finish_by_heap(bpe, s);
    tokens->n = 0;
    for (uint32_t k = 0; k != M2_BPE_NONE; k = s->symbols[k].next) {
        tokens->ids[tokens->n] = s->symbols[k].id;
        tokens->ends[tokens->n++] =
            s->symbols[k].next == M2_BPE_NONE ? (uint32_t)n : s->symbols[k].next;
    }
}

m2_status m2_bpe_encode(const m2_bpe *bpe, const unsigned char *bytes, size_t n, size_t scan_max,
                        m2_bpe_scratch *scratch, m2_bpe_tokens *tokens)
{
    M2_TRY(tokens_reserve(tokens, n));
    if (n <= scan_max && n <= M2_BPE_SCAN_MAX) {
        encode_by_scan(bpe, bytes, n, scratch, tokens);
        return M2_OK;
    }
    M2_TRY(scratch_reserve(bpe, scratch, n));
    encode_by_buckets(bpe, bytes, n, scratch, tokens);
    return M2_OK;
}
