/* files.h - writing small hostile files for tests of parsers. */
#ifndef M2_TESTS_SUPPORT_FILES_H
#define M2_TESTS_SUPPORT_FILES_H

#include <stddef.h>

/* dir + "/" + name, malloc'd. */
char *m2_test_join(const char *dir, const char *name);
/* Write a file whole; fails the test if it cannot. */
void m2_test_write_file(const char *path, const void *bytes, size_t n);
/* A safetensors file with this header text, then `n` data bytes 0, 1, 2 ... (modulo 251). */
void m2_test_write_safetensors(const char *path, const char *header, size_t n);
/* A zip file's bytes as of a writer that left the checksums of its entries out: a value that is
 * changed then is not found by them. */
void m2_test_zip_forget_sums(char *bytes, size_t n);
/* The whole file, malloc'd and NUL-terminated. */
char *m2_test_read_file(const char *path, size_t *n_out);

#endif
