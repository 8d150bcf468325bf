/* The embedding cache's file: LMDB, shared by processes.
 *
 * Keys: 'v' and the 128-bit hash; 'u', the 64-bit hash of an imported vector, and its dimensions; "!" for the format's name.
 * Values: a checksum over key and value, then what an entry has. Words are in the byte order of the machine, as LMDB's own are.
 *
 * LMDB writes a transaction's pages to free places and then one page that makes them the current ones, so a killed process leaves
 * the state before or after. One thread of the cache writes: what comes while a transaction is being synced goes into the next
 * one together, so nobody waits for the disk. A file that comes from elsewhere is another matter: LMDB believes what it reads. So
 * opening checks the file whole (cache_check.h), and every vector is compared with its checksum when it is served. */
#ifndef LT_ENGINE_CACHE_DISK_H
#define LT_ENGINE_CACHE_DISK_H

#include "base/runtime.h"
#include "engine/cache_table.h"

typedef struct lt_cache_disk lt_cache_disk;

typedef struct lt_cache_disk_options {
    const char *path;
    size_t max_bytes;
    bool read_only;
} lt_cache_disk_options;

/* *disk NULL with LATTICE_OK: the file cannot be used, and the log was warned. Entries to be written come from `pool`. */
lattice_status lt_cache_disk_open(lattice_runtime *runtime, lt_slab_pool *pool, const lt_cache_disk_options *options,
                                  lt_cache_disk **disk, lattice_error *err);
/* Writes what waits. */
void lt_cache_disk_close(lt_cache_disk *disk);

/* From any thread. */
bool lt_cache_disk_find(lt_cache_disk *disk, const lt_cache_key *key, float *out, size_t dim);
bool lt_cache_disk_find_imported(lt_cache_disk *disk, uint64_t hash, float *out, size_t dim);
/* Takes a reference and writes the entry in the background; false: too much waits already, or the disk cannot be written. */
bool lt_cache_disk_put(lt_cache_disk *disk, lt_cache_entry *entry);

/* Writes imported vectors at once: `next` gives one at a time, false at the end. */
typedef bool (*lt_cache_next_fn)(void *arg, uint64_t *hash, const void **vector, uint32_t *dim);
lattice_status lt_cache_disk_import(lt_cache_disk *disk, lt_cache_next_fn next, void *arg, lattice_error *err);
lattice_status lt_cache_disk_clear(lt_cache_disk *disk, lattice_error *err);

/* A vector of the file, during the call; ids and vector may be unaligned. */
typedef struct lt_cache_record {
    lt_hash128 space;
    const void *ids, *vector;
    uint32_t n_ids, dim;
} lt_cache_record;

/* Waits for what is to be written, then calls fn for every vector that is not imported, until it fails. */
lattice_status lt_cache_disk_each(lt_cache_disk *disk,
                                  lattice_status (*fn)(void *arg, const lt_cache_record *record, lattice_error *err), void *arg,
                                  lattice_error *err);

typedef struct lt_cache_disk_stats {
    uint64_t entries, imported, bytes, lost;
    bool in_use;
} lt_cache_disk_stats;

void lt_cache_disk_get_stats(lt_cache_disk *disk, lt_cache_disk_stats *stats);

/* ------------------------------------------------------------------ records: cache_record.c */

enum { LT_CACHE_KEY_BYTES = 17, LT_CACHE_IMPORTED_KEY_BYTES = 13, LT_CACHE_RECORD_HEADER = 32, LT_CACHE_IMPORTED_HEADER = 8 };
#define LT_CACHE_FORMAT_KEY "!"
#define LT_CACHE_FORMAT "lattice embedding cache 1"

/* Over the key and all of the value but its first eight bytes, where the checksum goes. size >= 8. */
uint64_t lt_cache_record_checksum(const void *key, size_t key_size, const void *value, size_t size);
/* Whether key and value are a whole record of the format, checksum and all; *record for 'v', else cleared. */
bool lt_cache_record_read(const void *key, size_t key_size, const void *value, size_t size, lt_cache_record *record);

#endif
