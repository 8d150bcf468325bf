/* lattice_cache from the inside: what a vector is stored under, and looking up and storing by it.
 *
 * A key is the 128-bit hash of a space and the token ids, which are stored and compared (INV-6). A space stands for everything
 * else that shapes a vector: the model's fingerprint (weights, configuration, arithmetic, device, instruction set, version) and
 * what the call asks for. Token types are not in it: texts with any type but 0 are not cached. */
#ifndef LT_ENGINE_CACHE_H
#define LT_ENGINE_CACHE_H

#include "engine/cache_disk.h"
#include "engine/cache_table.h"
#include "engine/model.h"

/* What a call asks for, resolved: no field is a default any more. */
typedef struct lt_vector_shape {
    unsigned pooling;
    size_t pool_skip; /* first tokens that pooling leaves out */
    size_t dim;
    bool normalize;
} lt_vector_shape;

/* The first call with a model reads its weights. */
lattice_status lt_cache_space(lattice_model *model, const lt_vector_shape *shape, lt_hash128 *space, lattice_error *err);

enum {
    LT_CACHE_MEMORY_ONLY = 1, /* look no further than memory, and do not count a miss: another lookup follows it */
    LT_CACHE_UNVERIFIED = 2,  /* look among imported vectors too */
};

/* Copies the vector to out[dim] and counts a hit, or counts a miss and returns false. */
bool lt_cache_find(lattice_cache *cache, const lt_cache_key *key, unsigned flags, float *out, size_t dim);
/* Keeps a copy. Failing to is counted and no error. */
void lt_cache_store(lattice_cache *cache, const lt_cache_key *key, const float *vector, size_t dim);

/* Shared by cache.c and cache_transfer.c. */
struct lattice_cache {
    lattice_runtime *runtime;
    const lattice_allocator *mem; /* the runtime's */
    lattice_cache_options options;
    lt_slab_pool *pool; /* of all entries */
    lt_cache_table *table;
    lt_cache_disk *disk; /* NULL: none */
    atomic_ullong stores, lost, disk_hits, unverified_hits;
    pthread_mutex_t imported_lock;
    bool has_imported_lock;
    lt_cache_table *_Atomic imported; /* without a disk; NULL: nothing imported yet */
};

/* The imported vector of these ids among those in memory. */
bool lt_cache_find_imported(lattice_cache *cache, uint64_t hash, float *out, size_t dim);

/* ------------------------------------------------------------------ fingerprints: fingerprint.c */

/* Stands for all that an open model's vectors depend on but the ids and lt_vector_shape. Reads every weight in use the first
 * time. Safe from several threads. */
lattice_status lt_model_fingerprint(lattice_model *model, lt_hash128 *fingerprint, lattice_error *err);

#endif
