/* XXH3 under our own names, so that one file knows the library. */
#include "base/hash.h"

#include <xxhash.h>

uint64_t lt_hash64(const void *data, size_t size, uint64_t seed)
{
    return XXH3_64bits_withSeed(data, size, seed);
}

lt_hash128 lt_hash_128(const void *data, size_t size, uint64_t seed)
{
    XXH128_hash_t hash = XXH3_128bits_withSeed(data, size, seed);
    return (lt_hash128){ hash.low64, hash.high64 };
}
