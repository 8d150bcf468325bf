/* Records of the embedding cache's file. See cache_disk.h.
 *
 * 'v': checksum u64, space 2 × u64, n_ids u32, dim u32, vector [dim], ids [n_ids].   'u': checksum u64, vector [dim]. */
#include <string.h>

#include "engine/cache_disk.h"

uint64_t lt_cache_record_checksum(const void *key, size_t key_size, const void *value, size_t size)
{
    return lt_hash64((const char *)value + 8, size - 8, lt_hash64(key, key_size, 0));
}

static uint32_t word_at(const char *p)
{
    uint32_t v;
    memcpy(&v, p, sizeof v);
    return v;
}

bool lt_cache_record_read(const void *key, size_t key_size, const void *value, size_t size, lt_cache_record *record)
{
    *record = (lt_cache_record){ 0 };
    const char *k = key, *v = value;
    if (key_size == 1 && k[0] == LT_CACHE_FORMAT_KEY[0])
        return size == sizeof LT_CACHE_FORMAT - 1 && memcmp(v, LT_CACHE_FORMAT, size) == 0;
    uint64_t checksum;
    if (size < LT_CACHE_IMPORTED_HEADER) return false;
    memcpy(&checksum, v, sizeof checksum);
    if (checksum != lt_cache_record_checksum(key, key_size, value, size)) return false;
    if (key_size == LT_CACHE_IMPORTED_KEY_BYTES && k[0] == 'u')
        return size - LT_CACHE_IMPORTED_HEADER == (size_t)word_at(k + 9) * sizeof(float);
    if (key_size != LT_CACHE_KEY_BYTES || k[0] != 'v' || size < LT_CACHE_RECORD_HEADER) return false;
    memcpy(&record->space, v + 8, sizeof record->space);
    record->n_ids = word_at(v + 24);
    record->dim = word_at(v + 28);
    record->vector = v + LT_CACHE_RECORD_HEADER;
    record->ids = v + LT_CACHE_RECORD_HEADER + (size_t)record->dim * 4;
    return size - LT_CACHE_RECORD_HEADER == ((size_t)record->n_ids + record->dim) * 4;
}
