/* The embedding cache's memory: vectors by token ids, within a budget.
 *
 * A shard, chosen by the key's hash, is an open-addressing table of hashes and entries, and a queue of the same entries in the
 * order they came. An entry is one block: header, vector, ids. Readers of a shard do not keep one another out, nor write to a
 * line that another thread reads: each counts itself in a place of its own (a mutex's line, going from core to core, cost a third
 * of a hit). Who changes a shard waits until no reader is in it.
 *
 * SIEVE (Zhang, Yang, Yue, Vigfusson, Rashmi: "SIEVE is Simpler than LRU", NSDI 2024): a hit only marks its entry. To make room a
 * hand goes through the queue from the oldest on, takes the mark off marked entries and evicts the first unmarked one; it stays
 * where it stopped. Budget and count are the table's, so a shard is as large as its share of what comes in. */
#ifndef LT_ENGINE_CACHE_TABLE_H
#define LT_ENGINE_CACHE_TABLE_H

#include <stdatomic.h>

#include "base/hash.h"
#include "base/memory.h"
#include "engine/cache_slab.h"

/* What a vector is stored under. `space` stands for everything but the ids that shapes it. */
typedef struct lt_cache_key {
    lt_hash128 space, hash;
    const uint32_t *ids;
    size_t n;
} lt_cache_key;

/* Hashes the ids. */
static inline lt_cache_key lt_cache_key_of(lt_hash128 space, const uint32_t *ids, size_t n)
{
    return (lt_cache_key){ space, lt_hash_128(ids, n * sizeof *ids, space.low ^ space.high), ids, n };
}

typedef struct lt_cache_entry {
    lt_hash128 hash, space;
    uint32_t n_ids, dim;
    atomic_uint references;               /* the table's, and that of the queue to the disk */
    atomic_bool found;                    /* SIEVE's mark */
    struct lt_cache_entry *newer, *older; /* in the shard's queue */
    struct lt_cache_entry *next;          /* in the queue to the disk */
    float data[];                         /* vector [dim], then ids [n_ids] */
} lt_cache_entry;

static inline uint32_t *lt_cache_entry_ids(lt_cache_entry *entry)
{
    return (uint32_t *)(void *)(entry->data + entry->dim);
}

/* A copy of key and vector with one reference; NULL: no memory, or gigabytes. */
lt_cache_entry *lt_cache_entry_new(lt_slab_pool *pool, const lt_cache_key *key, const float *vector, size_t dim);
void lt_cache_entry_release(lt_slab_pool *pool, lt_cache_entry *entry);
/* Bytes that an entry counts for, its share of the table included. */
size_t lt_cache_entry_bytes(size_t n_ids, size_t dim);

typedef struct lt_cache_table lt_cache_table;

/* max_entries or max_bytes 0: no such limit. Entries come from `pool`, which is borrowed. */
lattice_status lt_cache_table_create(const lattice_allocator *mem, lt_slab_pool *pool, size_t max_entries, size_t max_bytes,
                                     lattice_cache_policy policy, lt_cache_table **table, lattice_error *err);
void lt_cache_table_free(lt_cache_table *table);

/* Copies the vector to out[dim] and counts a hit; else counts a miss, unless `probe`, and returns false. */
bool lt_cache_table_find(lt_cache_table *table, const lt_cache_key *key, bool probe, float *out, size_t dim);
/* Adds a reference of the table's own unless the key is there already, after making room. false: no memory, or the entry is
 * larger than the budget. */
bool lt_cache_table_add(lt_cache_table *table, lt_cache_entry *entry);
/* As lt_cache_table_add, in the place of what has the same key. */
bool lt_cache_table_replace(lt_cache_table *table, lt_cache_entry *entry);
void lt_cache_table_clear(lt_cache_table *table);

/* Calls fn for every entry, shard by shard, until it fails. The shard does not change meanwhile; it may be read. */
lattice_status lt_cache_table_each(lt_cache_table *table,
                                   lattice_status (*fn)(void *arg, lt_cache_entry *entry, lattice_error *err), void *arg,
                                   lattice_error *err);

typedef struct lt_cache_table_stats {
    uint64_t entries, bytes, hits, misses, evictions;
} lt_cache_table_stats;

void lt_cache_table_get_stats(lt_cache_table *table, lt_cache_table_stats *stats);

#endif
