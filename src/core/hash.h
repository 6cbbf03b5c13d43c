/* hash.h - SHA-256 of bytes, as manifests and golden data name arrays.
 *
 * Threads  one m2_sha256, one thread.
 */
#ifndef M2_CORE_HASH_H
#define M2_CORE_HASH_H

#include <stddef.h>

#include "core/status.h"

#define M2_SHA256_HEX_BYTES 65 /* 64 digits, lower case, and the end of the string */

typedef struct m2_sha256 m2_sha256;

/* Errors  M2_ERR_MEMORY, M2_ERR_INTERNAL (libcrypto refuses, as in some FIPS set-ups) */
m2_status m2_sha256_create(m2_sha256 **hash_out);
void m2_sha256_destroy(m2_sha256 *hash);
m2_status m2_sha256_update(m2_sha256 *hash, const void *bytes, size_t n_bytes);
/* The digest of all updates so far; the hash then starts anew. */
m2_status m2_sha256_finish(m2_sha256 *hash, char hex_out[M2_SHA256_HEX_BYTES]);

/* All in one. */
m2_status m2_sha256_of(const void *bytes, size_t n_bytes, char hex_out[M2_SHA256_HEX_BYTES]);

#endif
