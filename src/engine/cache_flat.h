/* The original's flat file of vectors: {hash u64, dim u32, dim × float32} an entry, little-endian. */
#ifndef LT_ENGINE_CACHE_FLAT_H
#define LT_ENGINE_CACHE_FLAT_H

#include "base/bytes.h"

enum { LT_FLAT_HEADER = 12, LT_FLAT_MAX_DIM = 65536 };

/* 64-bit FNV-1a over the ids as little-endian u32 (unaligned). */
uint64_t lt_flat_hash(const void *ids, size_t n);

/* Goes over the bytes of a whole file. */
typedef struct lt_flat_reader {
    const uint8_t *data;
    size_t size, at;
} lt_flat_reader;

/* Checks every entry: an error names `name` and the byte. *n: entries. */
lattice_status lt_flat_check(const char *name, const uint8_t *data, size_t size, uint64_t *n, lattice_error *err);
/* The next entry of a checked file; `vector` is unaligned. false at the end. Fits lt_cache_next_fn. */
bool lt_flat_next(void *reader, uint64_t *hash, const void **vector, uint32_t *dim);

void lt_flat_append(lt_buf *out, uint64_t hash, const void *vector, uint32_t dim);

#endif
