/* SHA-256 (FIPS 180-4), for checking what was downloaded. */
#ifndef LT_BASE_SHA256_H
#define LT_BASE_SHA256_H

#include <stddef.h>
#include <stdint.h>

enum { LT_SHA256_SIZE = 32, LT_SHA256_BLOCK = 64 };

typedef struct lt_sha256 {
    uint32_t state[8];
    uint64_t length;                /* bytes taken so far */
    uint8_t block[LT_SHA256_BLOCK]; /* the last length % 64 of them */
} lt_sha256;

void lt_sha256_init(lt_sha256 *hash);
void lt_sha256_update(lt_sha256 *hash, const void *data, size_t size);
/* The digest of everything taken; the hash must be initialised again before further use. */
void lt_sha256_final(lt_sha256 *hash, uint8_t digest[LT_SHA256_SIZE]);
/* The digest as 64 lower-case hexadecimal digits and a NUL. */
void lt_sha256_hex(const uint8_t digest[LT_SHA256_SIZE], char hex[2 * LT_SHA256_SIZE + 1]);

#endif
