#include "support/files.h"

#include "support/check.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

char *m2_test_join(const char *dir, const char *name)
{
    char *path = malloc(strlen(dir) + strlen(name) + 2);
    if (!path) fail_msg("no memory");
    sprintf(path, "%s/%s", dir, name);
    return path;
}

void m2_test_write_file(const char *path, const void *bytes, size_t n)
{
    FILE *file = fopen(path, "wb");
    if (!file || fwrite(bytes, 1, n, file) != n || fclose(file) != 0)
        fail_msg("%s: cannot be written", path);
}

void m2_test_write_safetensors(const char *path, const char *header, size_t n)
{
    const size_t length = strlen(header);
    unsigned char *bytes = malloc(8 + length + n);
    if (!bytes) fail_msg("no memory");
    for (int i = 0; i < 8; i++) bytes[i] = (unsigned char)((uint64_t)length >> (8 * i));
    memcpy(bytes + 8, header, length);
    for (size_t i = 0; i < n; i++) bytes[8 + length + i] = (unsigned char)(i % 251);
    m2_test_write_file(path, bytes, 8 + length + n);
    free(bytes);
}

char *m2_test_read_file(const char *path, size_t *n_out)
{
    FILE *file = fopen(path, "rb");
    if (!file) fail_msg("%s: cannot be read", path);
    fseek(file, 0, SEEK_END);
    const long n = ftell(file);
    rewind(file);
    char *bytes = malloc((size_t)n + 1);
    if (!bytes || fread(bytes, 1, (size_t)n, file) != (size_t)n) fail_msg("%s: cannot read", path);
    fclose(file);
    bytes[n] = '\0';
    *n_out = (size_t)n;
    return bytes;
}

void m2_test_zip_forget_sums(char *bytes, size_t n)
{
    int n_entries = 0;
    for (char *at = bytes; (at = memmem(at, (size_t)(bytes + n - at), "PK\1\2", 4)); at += 4) {
        assert_true((size_t)(bytes + n - at) >= 46);
        memset(at + 16, 0, 4);
        n_entries++;
    }
    assert_true(n_entries > 0);
}
