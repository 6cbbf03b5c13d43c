#include "support/check.h"

#include "model/text/bpe.h"

#include <stdlib.h>
#include <string.h>

/* A table over `n_bytes` letters from 'a', each new token made of two tokens drawn from those before;
 * ranks in the order of making, or shuffled. */
static void make_table(m2_test_random *random, int n_bytes, int n_merges, int is_shuffled,
                       m2_bpe *bpe)
{
    struct {
        uint32_t left, right;
    } pairs[64];
    unsigned char first[320], last[320];
    uint32_t byte_id[256], rank[64];
    for (unsigned byte = 0; byte < 256; byte++) {
        byte_id[byte] = byte;
        first[byte] = last[byte] = (unsigned char)byte;
    }
    int n = 0;
    while (n < n_merges) {
        const uint32_t k = (uint32_t)n,
                       a = (uint32_t)(m2_test_random_u64(random) % (uint64_t)(n_bytes + n)),
                       b = (uint32_t)(m2_test_random_u64(random) % (uint64_t)(n_bytes + n));
        pairs[k].left = a < (uint32_t)n_bytes ? 'a' + a : 256 + a - (uint32_t)n_bytes;
        pairs[k].right = b < (uint32_t)n_bytes ? 'a' + b : 256 + b - (uint32_t)n_bytes;
        int is_new = 1;
        for (int j = 0; j < n; j++)
            is_new &= pairs[j].left != pairs[k].left || pairs[j].right != pairs[k].right;
        if (!is_new) continue;
        first[256 + n] = first[pairs[k].left];
        last[256 + n] = last[pairs[k].right];
        rank[n] = k;
        n++;
    }
    for (int k = n - 1; k > 0 && is_shuffled; k--) {
        const int j = (int)(m2_test_random_u64(random) % (uint64_t)(k + 1));
        const uint32_t swapped = rank[k];
        rank[k] = rank[j];
        rank[j] = swapped;
    }
    check_ok(m2_bpe_create(bpe, (uint32_t)n));
    for (int k = 0; k < n; k++)
        m2_bpe_add(bpe, pairs[rank[k]].left, pairs[rank[k]].right, 256 + rank[k],
                   last[pairs[rank[k]].left], first[pairs[rank[k]].right]);
    m2_bpe_set_bytes(bpe, byte_id);
}

/* The definition: merge the leftmost pair of the lowest rank until there is none. */
static size_t encode_by_definition(const m2_bpe *bpe, const unsigned char *bytes, size_t n,
                                   uint32_t *ids)
{
    for (size_t k = 0; k < n; k++) ids[k] = bytes[k];
    for (;;) {
        uint32_t best = M2_BPE_NONE;
        size_t at = 0;
        for (size_t k = 0; k + 1 < n; k++) {
            for (uint32_t s = 0; s < bpe->n_slots; s++) {
                const m2_bpe_merge *merge = &bpe->slots[s];
                if (merge->left == ids[k] && merge->right == ids[k + 1] && merge->rank < best) {
                    best = merge->rank;
                    at = k;
                }
            }
        }
        if (best == M2_BPE_NONE) return n;
        ids[at] = bpe->merged_of[best];
        memmove(ids + at + 1, ids + at + 2, (n - at - 2) * sizeof *ids);
        n--;
    }
}

/* Scan, buckets and the definition give the same tokens, also where a merge makes a pair of lower
 * rank than its own (shuffled ranks).  Catches stale entries, wrong order inside a rank, overlapping
 * pairs merged twice, and a run cut where a merge crosses. */
static void all_ways_give_the_tokens_of_the_definition(void **state)
{
    (void)state;
    m2_test_random random = { 20 };
    m2_bpe_scratch scratch = { 0 };
    m2_bpe_tokens tokens = { 0 };
    for (int round = 0; round < 150; round++) {
        m2_bpe bpe;
        const int n_bytes = 1 + round % 4;
        make_table(&random, n_bytes, n_bytes == 1 ? 1 + round % 3 : 4 + round % 40, round % 2,
                   &bpe);
        for (int k = 0; k < 8; k++) {
            unsigned char bytes[60];
            uint32_t wanted[60];
            const size_t n = 1 + m2_test_random_u64(&random) % sizeof bytes;
            for (size_t j = 0; j < n; j++)
                bytes[j] = (unsigned char)('a' + m2_test_random_u64(&random) % (uint64_t)n_bytes);
            const size_t n_wanted = encode_by_definition(&bpe, bytes, n, wanted);
            for (int way = 0; way < 3; way++) { /* buckets, scan, buckets by runs */
                size_t n_got = 0;
                for (size_t at = 0; at < n;) {
                    const size_t run = way == 2 ? m2_bpe_run(&bpe, bytes + at, n - at) : n;
                    check_ok(m2_bpe_encode(&bpe, bytes + at, run, way == 1 ? M2_BPE_SCAN_MAX : 0,
                                           &scratch, &tokens));
                    for (size_t j = 0; j < tokens.n; j++, n_got++)
                        if (n_got >= n_wanted || tokens.ids[j] != wanted[n_got])
                            fail_msg("round %d way %d: token %zu differs", round, way, n_got);
                    assert_int_equal(tokens.ends[tokens.n - 1], run);
                    at += run;
                }
                assert_int_equal(n_got, n_wanted);
            }
        }
        m2_bpe_scratch_free(&scratch);
        m2_bpe_destroy(&bpe);
    }
    m2_bpe_tokens_free(&tokens);
}

/* A word of a million letters takes a few steps a letter, not a square of them. */
static void a_long_word_takes_linear_steps(void **state)
{
    (void)state;
    enum { N = 1000000 };
    m2_bpe bpe;
    uint32_t byte_id[256];
    for (uint32_t k = 0; k < 256; k++) byte_id[k] = k;
    check_ok(m2_bpe_create(&bpe, 8));
    for (uint32_t k = 0; k < 8; k++) /* aa, aaaa, ... */
        m2_bpe_add(&bpe, k ? 255 + k : 'a', k ? 255 + k : 'a', 256 + k, 'a', 'a');
    m2_bpe_set_bytes(&bpe, byte_id);
    unsigned char *bytes = malloc(N);
    assert_non_null(bytes);
    memset(bytes, 'a', N);
    m2_bpe_scratch scratch = { 0 };
    m2_bpe_tokens tokens = { 0 };
    check_ok(m2_bpe_encode(&bpe, bytes, N, M2_BPE_SCAN_MAX, &scratch, &tokens));
    assert_int_equal(tokens.n, N / 256 + 1); /* 64 left over are one token of 64 */
    assert_int_equal(tokens.ids[0], 263);
    assert_true(scratch.n_steps < 4 * (uint64_t)N); /* 3 N: once at first, two a merge */
    m2_bpe_scratch_free(&scratch);
    m2_bpe_tokens_free(&tokens);
    m2_bpe_destroy(&bpe);
    free(bytes);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(all_ways_give_the_tokens_of_the_definition),
        cmocka_unit_test(a_long_word_takes_linear_steps),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
