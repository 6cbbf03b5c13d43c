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
/* The whole file, malloc'd and NUL-terminated. */
char *m2_test_read_file(const char *path, size_t *n_out);

#endif
