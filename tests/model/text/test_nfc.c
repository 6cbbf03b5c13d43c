#include "support/check.h"

#include "model/text/nfc.h"
#include "model/text/unicode_ranges.h"
#include "model/text/utf8.h"

#include <stdlib.h>
#include <string.h>
#include <utf8proc.h>

typedef struct result {
    uint32_t *code_points, *origins;
    size_t n, room;
} result;

static m2_status collect(void *context, uint32_t code_point, uint32_t origin)
{
    result *r = context;
    if (r->n == r->room) {
        r->room = r->room ? r->room * 2 : 64;
        r->code_points = realloc(r->code_points, r->room * sizeof *r->code_points);
        r->origins = realloc(r->origins, r->room * sizeof *r->origins);
        assert_non_null(r->code_points);
        assert_non_null(r->origins);
    }
    r->code_points[r->n] = code_point;
    r->origins[r->n++] = origin;
    return M2_OK;
}

static void free_result(result *r)
{
    free(r->code_points);
    free(r->origins);
}

static void check_nfc(const char *text, size_t n, const uint32_t *code_points,
                      const uint32_t *origins)
{
    result r = { 0 };
    check_ok(m2_nfc(text, strlen(text), collect, &r));
    assert_int_equal(r.n, n);
    assert_memory_equal(r.code_points, code_points, n * sizeof *code_points);
    assert_memory_equal(r.origins, origins, n * sizeof *origins);
    free_result(&r);
}

/* Offsets of tokens come from here.  Catches a composition that spans its marks, a decomposition
 * that moves what follows, and marks that take their positions along when they are reordered. */
static void origins_are_counted_as_the_reference_does(void **state)
{
    (void)state;
    /* e U+0301 x: the composed one stands on the e alone, x on its own place. */
    check_nfc("e\xcc\x81x", 2, (const uint32_t[]){ 0xe9, 'x' }, (const uint32_t[]){ 0, 2 });
    /* U+0958 is taken apart: both parts stand on it. */
    check_nfc("\xe0\xa5\x98x", 3, (const uint32_t[]){ 0x915, 0x93c, 'x' },
              (const uint32_t[]){ 0, 0, 1 });
    /* q U+0301 U+0323: the marks change places, the positions do not. */
    check_nfc("q\xcc\x81\xcc\xa3", 3, (const uint32_t[]){ 'q', 0x323, 0x301 },
              (const uint32_t[]){ 0, 1, 2 });
    /* U+1E9B U+0323: taken apart, reordered, put together again. */
    check_nfc("\xe1\xba\x9b\xcc\xa3", 2, (const uint32_t[]){ 0x1e9b, 0x323 },
              (const uint32_t[]){ 0, 1 });
    /* Jamo compose to one syllable, standing on the first. */
    check_nfc("\xe1\x84\x80\xe1\x85\xa1\xe1\x86\xa8!", 2, (const uint32_t[]){ 0xac01, '!' },
              (const uint32_t[]){ 0, 3 });
    /* Marks without a base stay. */
    check_nfc("\xcc\x81\xcc\xa3", 2, (const uint32_t[]){ 0x323, 0x301 },
              (const uint32_t[]){ 0, 1 });
}

/* The library that conditioned the model knows Unicode 9: marks that came later are not moved,
 * whatever the system's library knows. */
static void characters_newer_than_the_table_pass_unchanged(void **state)
{
    (void)state;
    /* U+1ABF (Unicode 13, class 220) behind U+0301 (class 230). */
    check_nfc("a\xcc\x81\xe1\xaa\xbf", 2, (const uint32_t[]){ 0xe1, 0x1abf },
              (const uint32_t[]){ 0, 2 });
    check_nfc("q\xcc\x81\xe1\xaa\xbf", 3, (const uint32_t[]){ 'q', 0x301, 0x1abf },
              (const uint32_t[]){ 0, 1, 2 });
}

/* Characters against utf8proc's own NFC, on text of those that the table has; runs of marks long
 * enough for the counting sort. */
static void characters_are_those_of_utf8proc(void **state)
{
    (void)state;
    m2_test_random random = { 31 };
    for (int round = 0; round < 2000; round++) {
        char text[2048];
        size_t bytes = 0;
        const int n = 1 + (int)(m2_test_random_u64(&random) % (round % 10 ? 12 : 400));
        for (int k = 0; k < n; k++) {
            const m2_unicode_range *range =
                &m2_unicode_nfc_active.ranges[m2_test_random_u64(&random) %
                                              (uint64_t)m2_unicode_nfc_active.n_ranges];
            const uint64_t draw = m2_test_random_u64(&random);
            uint32_t c = range->first + (uint32_t)(draw % (range->last - range->first + 1));
            if (round % 3 == 1 && draw >> 60 < 13) c = 0x300 + (uint32_t)(draw >> 20) % 0x45;
            if (draw >> 60 == 15) c = 'a' + (uint32_t)(draw >> 8) % 26;
            bytes += m2_utf8_put(c, text + bytes);
        }
        text[bytes] = '\0';
        utf8proc_uint8_t *wanted = utf8proc_NFC((const utf8proc_uint8_t *)text);
        assert_non_null(wanted);
        result r = { 0 };
        check_ok(m2_nfc(text, bytes, collect, &r));
        size_t at = 0;
        for (size_t k = 0; k < r.n; k++) {
            if (m2_utf8_next((const char *)wanted, &at) != r.code_points[k])
                fail_msg("round %d: character %zu differs", round, k);
            assert_true(r.origins[k] < (uint32_t)n);
            assert_true(k == 0 || r.origins[k] >= r.origins[k - 1]);
        }
        assert_int_equal(wanted[at], '\0');
        free(wanted);
        free_result(&r);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(origins_are_counted_as_the_reference_does),
        cmocka_unit_test(characters_newer_than_the_table_pass_unchanged),
        cmocka_unit_test(characters_are_those_of_utf8proc),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
