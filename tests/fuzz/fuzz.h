/* fuzz.h - what a fuzz target is made of.
 *
 * A target is one function over hostile bytes.  With MAGI2_FUZZ it becomes a libFuzzer program; with
 * the tests it also runs over its committed corpus (run_corpus.c), so that no finding comes back.
 */
#ifndef M2_TESTS_FUZZ_H
#define M2_TESTS_FUZZ_H

#include <stddef.h>
#include <stdint.h>

/* Always returns 0; a finding is a crash, a sanitizer's report, a leak or a hang. */
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

/* The bytes as a file in memory, for parsers that take a path; valid until the next call. */
const char *m2_fuzz_file(const uint8_t *data, size_t bytes);

#endif
