#include "core/hash.h"

#include <openssl/err.h>
#include <openssl/evp.h>
#include <stdlib.h>

struct m2_sha256 {
    EVP_MD_CTX *context;
};

static m2_status crypto_failure(const char *what)
{
    char reason[256];
    ERR_error_string_n(ERR_get_error(), reason, sizeof reason);
    return m2_fail(M2_ERR_INTERNAL, "sha256: libcrypto cannot %s: %s", what, reason);
}

m2_status m2_sha256_create(m2_sha256 **hash_out)
{
    m2_sha256 *hash = calloc(1, sizeof *hash);
    if (!hash) return m2_fail(M2_ERR_MEMORY, "sha256: out of memory");
    hash->context = EVP_MD_CTX_new();
    if (!hash->context) {
        m2_sha256_destroy(hash);
        return m2_fail(M2_ERR_MEMORY, "sha256: out of memory");
    }
    if (!EVP_DigestInit_ex(hash->context, EVP_sha256(), NULL)) {
        m2_sha256_destroy(hash);
        return crypto_failure("start");
    }
    *hash_out = hash;
    return M2_OK;
}

void m2_sha256_destroy(m2_sha256 *hash)
{
    if (!hash) return;
    EVP_MD_CTX_free(hash->context);
    free(hash);
}

m2_status m2_sha256_update(m2_sha256 *hash, const void *bytes, size_t n_bytes)
{
    if (n_bytes == 0) return M2_OK;
    if (!EVP_DigestUpdate(hash->context, bytes, n_bytes)) return crypto_failure("take bytes");
    return M2_OK;
}

m2_status m2_sha256_finish(m2_sha256 *hash, char hex_out[M2_SHA256_HEX_BYTES])
{
    static const char digits[] = "0123456789abcdef";
    unsigned char digest[32];
    if (!EVP_DigestFinal_ex(hash->context, digest, NULL)) return crypto_failure("finish");
    if (!EVP_DigestInit_ex(hash->context, EVP_sha256(), NULL)) return crypto_failure("start again");
    for (int i = 0; i < 32; i++) {
        hex_out[2 * i] = digits[digest[i] >> 4];
        hex_out[2 * i + 1] = digits[digest[i] & 15];
    }
    hex_out[64] = '\0';
    return M2_OK;
}

m2_status m2_sha256_of(const void *bytes, size_t n_bytes, char hex_out[M2_SHA256_HEX_BYTES])
{
    m2_sha256 *hash = NULL;
    M2_TRY(m2_sha256_create(&hash));
    m2_status status = m2_sha256_update(hash, bytes, n_bytes);
    if (status == M2_OK) status = m2_sha256_finish(hash, hex_out);
    m2_sha256_destroy(hash);
    return status;
}
