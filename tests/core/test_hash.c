#include "support/check.h"

#include "core/hash.h"

#include <string.h>

/* The standard's own examples (FIPS 180-4). */
static void digests_are_those_of_the_standard(void **state)
{
    (void)state;
    char hex[M2_SHA256_HEX_BYTES];
    check_ok(m2_sha256_of("abc", 3, hex));
    assert_string_equal(hex, "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
    check_ok(m2_sha256_of(NULL, 0, hex));
    assert_string_equal(hex, "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
}

/* Catches updates that are lost or joined wrongly, and a hash that cannot be used again. */
static void pieces_hash_as_the_whole(void **state)
{
    (void)state;
    unsigned char bytes[1000];
    char whole[M2_SHA256_HEX_BYTES], pieces[M2_SHA256_HEX_BYTES];
    for (int i = 0; i < 1000; i++) bytes[i] = (unsigned char)(i * 7);
    check_ok(m2_sha256_of(bytes, sizeof bytes, whole));
    m2_sha256 *hash = NULL;
    check_ok(m2_sha256_create(&hash));
    for (int repeat = 0; repeat < 2; repeat++) {
        for (size_t at = 0; at < sizeof bytes; at += 100)
            check_ok(m2_sha256_update(hash, bytes + at, 100));
        check_ok(m2_sha256_finish(hash, pieces));
        assert_string_equal(pieces, whole);
    }
    m2_sha256_destroy(hash);
    m2_sha256_destroy(NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(digests_are_those_of_the_standard),
        cmocka_unit_test(pieces_hash_as_the_whole),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
