/* Hashes: XXH3 for tables, caches and fingerprints. */
#ifndef LT_BASE_HASH_H
#define LT_BASE_HASH_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct lt_hash128 {
    uint64_t low, high;
} lt_hash128;

static inline bool lt_hash128_eq(lt_hash128 a, lt_hash128 b)
{
    return a.low == b.low && a.high == b.high;
}

uint64_t lt_hash64(const void *data, size_t size, uint64_t seed);
lt_hash128 lt_hash_128(const void *data, size_t size, uint64_t seed);

#endif
