/* lattice_cache: the table in memory, and the disk under it when there is one.
 *
 * A lookup asks the table, then the disk, whose vector goes into the table, then, only where the caller wants it, what was
 * imported. A store puts one entry into the table and into the disk's queue; each holds a reference. Nothing here fails a
 * caller's embedding: a vector that cannot be kept is counted as lost. */
#include "engine/cache.h"

#include <string.h>

#include "engine/cache_flat.h"

enum { DEFAULT_ENTRIES = 10000 };
static const size_t default_disk_bytes = (size_t)1 << 30;

lattice_cache_options lattice_cache_options_default(void)
{
    return (lattice_cache_options){ .policy = LATTICE_CACHE_SIEVE };
}

static lattice_status check_options(lattice_cache_options *o, lattice_error *err)
{
    if (o->policy != LATTICE_CACHE_SIEVE && o->policy != LATTICE_CACHE_FLUSH)
        return lt_fail(err, LATTICE_ERR_INVALID_ARGUMENT, "unknown cache policy %d", (int)o->policy);
    if (!o->max_entries && !o->max_bytes) o->max_entries = DEFAULT_ENTRIES;
    if (!o->max_disk_bytes) o->max_disk_bytes = default_disk_bytes;
    return LATTICE_OK;
}

static lattice_status open_disk(lattice_cache *c, lattice_error *err)
{
    if (!c->options.path) return LATTICE_OK;
    lt_cache_disk_options disk = { c->options.path, c->options.max_disk_bytes, c->options.read_only };
    LT_TRY(lt_cache_disk_open(c->runtime, c->pool, &disk, &c->disk, err));
    c->options.path = NULL; /* the caller's */
    return LATTICE_OK;
}

lattice_status lattice_cache_open(lattice_runtime *runtime, const lattice_cache_options *options, lattice_cache **cache,
                                  lattice_error *err)
{
    *cache = NULL;
    lattice_cache *c = lt_alloc_zero(&runtime->mem, sizeof *c);
    if (!c) return lt_no_memory(err, sizeof *c, "an embedding cache");
    c->runtime = runtime;
    c->mem = &runtime->mem;
    c->options = options ? *options : lattice_cache_options_default();
    lattice_status status = pthread_mutex_init(&c->imported_lock, NULL) == 0 ? LATTICE_OK : lt_no_memory(err, 0, "a lock");
    if (status != LATTICE_OK) goto done;
    c->has_imported_lock = true;
    LT_GO(check_options(&c->options, err));
    LT_GO(lt_slab_pool_create(c->mem, &c->pool, err));
    LT_GO(
        lt_cache_table_create(c->mem, c->pool, c->options.max_entries, c->options.max_bytes, c->options.policy, &c->table, err));
    LT_GO(open_disk(c, err));
    *cache = c;
    return LATTICE_OK;
done:
    lattice_cache_close(c);
    return status;
}

void lattice_cache_close(lattice_cache *c)
{
    if (!c) return;
    lt_cache_disk_close(c->disk);
    lt_cache_table_free(c->table);
    lt_cache_table_free(c->imported);
    lt_slab_pool_free(c->pool);
    if (c->has_imported_lock) pthread_mutex_destroy(&c->imported_lock);
    lt_free(c->mem, c);
}

/* ------------------------------------------------------------------ finding and storing */

static bool find_on_disk(lattice_cache *c, const lt_cache_key *key, float *out, size_t dim)
{
    if (!c->disk || !lt_cache_disk_find(c->disk, key, out, dim)) return false;
    lt_cache_entry *e = lt_cache_entry_new(c->pool, key, out, dim);
    if (e) {
        lt_cache_table_add(c->table, e);
        lt_cache_entry_release(c->pool, e);
    }
    atomic_fetch_add_explicit(&c->disk_hits, 1, memory_order_relaxed);
    return true;
}

static bool find_unverified(lattice_cache *c, const lt_cache_key *key, float *out, size_t dim)
{
    uint64_t hash = lt_flat_hash(key->ids, key->n);
    bool found = c->disk ? lt_cache_disk_find_imported(c->disk, hash, out, dim) : lt_cache_find_imported(c, hash, out, dim);
    if (found) atomic_fetch_add_explicit(&c->unverified_hits, 1, memory_order_relaxed);
    return found;
}

bool lt_cache_find(lattice_cache *c, const lt_cache_key *key, unsigned flags, float *out, size_t dim)
{
    if (lt_cache_table_find(c->table, key, flags & LT_CACHE_MEMORY_ONLY, out, dim)) return true;
    if (flags & LT_CACHE_MEMORY_ONLY) return false;
    return find_on_disk(c, key, out, dim) || ((flags & LT_CACHE_UNVERIFIED) && find_unverified(c, key, out, dim));
}

void lt_cache_store(lattice_cache *c, const lt_cache_key *key, const float *vector, size_t dim)
{
    lt_cache_entry *e = lt_cache_entry_new(c->pool, key, vector, dim);
    if (!e) {
        atomic_fetch_add(&c->lost, 1);
        return;
    }
    bool kept = lt_cache_table_add(c->table, e);
    if (c->disk) kept |= lt_cache_disk_put(c->disk, e); /* which counts its own losses */
    atomic_fetch_add(kept ? &c->stores : &c->lost, 1);
    lt_cache_entry_release(c->pool, e);
}

/* ------------------------------------------------------------------ whole-cache work */

lattice_status lattice_cache_clear(lattice_cache *c, lattice_error *err)
{
    lt_cache_table_clear(c->table);
    lt_cache_table *imported = atomic_load(&c->imported);
    if (imported) lt_cache_table_clear(imported);
    return c->disk ? lt_cache_disk_clear(c->disk, err) : LATTICE_OK;
}

void lattice_cache_get_stats(lattice_cache *c, lattice_cache_stats *stats)
{
    lt_cache_table_stats table, imported = { 0 };
    lt_cache_disk_stats disk = { 0 };
    lt_cache_table_get_stats(c->table, &table);
    if (c->disk)
        lt_cache_disk_get_stats(c->disk, &disk);
    else if (atomic_load(&c->imported))
        lt_cache_table_get_stats(atomic_load(&c->imported), &imported);
    uint64_t disk_hits = atomic_load(&c->disk_hits), unverified_hits = atomic_load(&c->unverified_hits);
    uint64_t elsewhere = disk_hits + unverified_hits; /* each was a miss of the table first */
    *stats = (lattice_cache_stats){ .entries = table.entries,
                                    .bytes = table.bytes,
                                    .max_entries = c->options.max_entries,
                                    .max_bytes = c->options.max_bytes,
                                    .hits = table.hits + elsewhere,
                                    .misses = table.misses > elsewhere ? table.misses - elsewhere : 0,
                                    .disk_hits = disk_hits,
                                    .unverified_hits = unverified_hits,
                                    .stores = atomic_load(&c->stores),
                                    .evictions = table.evictions,
                                    .lost = atomic_load(&c->lost) + disk.lost,
                                    .disk_entries = disk.entries,
                                    .disk_bytes = disk.bytes,
                                    .unverified_entries = disk.imported + imported.entries,
                                    .disk = disk.in_use };
}
