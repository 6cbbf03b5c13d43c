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

/* The encoding of `bytes` by `window`, in one piece or run by run, is `wanted`. */
static void check_windows(const m2_bpe *bpe, const unsigned char *bytes, size_t n, size_t scan_max,
                          size_t window, int by_runs, const uint32_t *wanted, size_t n_wanted)
{
    m2_bpe_scratch scratch = { 0 };
    m2_bpe_tokens tokens = { 0 };
    size_t n_got = 0;
    for (size_t at = 0; at < n;) {
        const size_t run = by_runs ? m2_bpe_run(bpe, bytes + at, n - at) : n;
        check_ok(m2_bpe_encode(bpe, bytes + at, run, scan_max, window, &scratch, &tokens));
        for (size_t k = 0; k < tokens.n; k++, n_got++) {
            if (n_got >= n_wanted || tokens.ids[k] != wanted[n_got])
                fail_msg("window %zu of %zu bytes: token %zu differs", window, n, n_got);
            assert_true(tokens.ends[k] > (k ? tokens.ends[k - 1] : 0));
        }
        assert_int_equal(tokens.ends[tokens.n - 1], run);
        at += run;
    }
    assert_int_equal(n_got, n_wanted);
    m2_bpe_scratch_free(&scratch);
    m2_bpe_tokens_free(&tokens);
}

/* Scan, one window, many windows and the definition give the same tokens, also where a merge makes a
 * pair of lower rank than its own (shuffled ranks).  Catches stale entries, wrong order inside a
 * rank, overlapping pairs merged twice, a run cut where a merge crosses, and windows joined where
 * they do not agree. */
static void all_ways_give_the_tokens_of_the_definition(void **state)
{
    (void)state;
    m2_test_random random = { 20 };
    static const size_t windows[] = { 2, 3, 5, 8, 16, 17, 32, 60 };
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
            check_windows(&bpe, bytes, n, M2_BPE_SCAN_MAX, 60, 0, wanted, n_wanted);
            for (size_t j = 0; j < sizeof windows / sizeof *windows; j++)
                for (int by_runs = 0; by_runs < 2; by_runs++)
                    check_windows(&bpe, bytes, n, 0, windows[j], by_runs, wanted, n_wanted);
        }
        m2_bpe_destroy(&bpe);
    }
}

/* Pairs of neighbours of the alphabet, the later the lower the rank: the last letter decides which
 * pairs merge up to the first.  Windows that end on another letter agree nowhere, so the piece must
 * end in one window; behind a break of the chain they agree again.  Catches windows joined at a
 * boundary instead of a token, and a retry that is no wider. */
static void a_chain_from_the_right_end_is_followed_to_its_beginning(void **state)
{
    (void)state;
    enum { N = 200 };
    m2_bpe bpe;
    uint32_t byte_id[256], wanted[4 * N];
    unsigned char bytes[4 * N];
    for (uint32_t k = 0; k < 256; k++) byte_id[k] = k;
    check_ok(m2_bpe_create(&bpe, N));
    for (uint32_t k = N; k-- > 0;)
        m2_bpe_add(&bpe, k, k + 1, 256 + k, (unsigned char)k, (unsigned char)(k + 1));
    m2_bpe_set_bytes(&bpe, byte_id);
    for (size_t length = N - 1; length <= N; length++) {
        for (int n_chains = 1; n_chains <= 4; n_chains += 3) {
            size_t n = 0;
            for (int k = 0; k < n_chains; k++)
                for (size_t j = 0; j < length; j++) bytes[n++] = (unsigned char)j;
            const size_t n_wanted = encode_by_definition(&bpe, bytes, n, wanted);
            for (size_t window = 16; window <= 64; window += 16)
                check_windows(&bpe, bytes, n, 0, window, 0, wanted, n_wanted);
        }
    }
    m2_bpe_scratch scratch = { 0 };
    m2_bpe_tokens tokens = { 0 };
    /* Windows of 17 and of 136 bytes each end on another parity than the chain. */
    check_ok(m2_bpe_encode(&bpe, bytes, N - 1, 0, 17, &scratch, &tokens));
    assert_int_equal(scratch.room, N - 1); /* no way to know it from less */
    m2_bpe_scratch_free(&scratch);
    m2_bpe_tokens_free(&tokens);
    m2_bpe_destroy(&bpe);
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
    check_ok(m2_bpe_encode(&bpe, bytes, N, M2_BPE_SCAN_MAX, M2_BPE_WINDOW, &scratch, &tokens));
    assert_int_equal(tokens.n, N / 256 + 1); /* 64 left over are one token of 64 */
    assert_int_equal(tokens.ids[0], 263);
    /* 3 N: once at first, two a merge; a sixteenth and a token of each window twice. */
    assert_true(scratch.n_steps < 4 * (uint64_t)N);
    assert_int_equal(scratch.room, M2_BPE_WINDOW);
    m2_bpe_scratch_free(&scratch);
    m2_bpe_tokens_free(&tokens);
    m2_bpe_destroy(&bpe);
    free(bytes);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(all_ways_give_the_tokens_of_the_definition),
        cmocka_unit_test(a_chain_from_the_right_end_is_followed_to_its_beginning),
        cmocka_unit_test(a_long_word_takes_linear_steps),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
