/* lattice_cache: the table in memory. Nothing here fails a caller's embedding: a vector that cannot be kept is counted
 * as lost. */
#include "engine/cache.h"

#include <string.h>

enum { DEFAULT_ENTRIES = 10000 };

struct lattice_cache {
    lattice_runtime *runtime;
    const lattice_allocator *mem; /* the runtime's */
    lattice_cache_options options;
    lt_slab_pool *pool; /* of all entries */
    lt_cache_table *table;
    atomic_ullong stores, lost;
};

lattice_cache_options lattice_cache_options_default(void)
{
    return (lattice_cache_options){ .policy = LATTICE_CACHE_SIEVE };
}

static lattice_status check_options(lattice_cache_options *o, lattice_error *err)
{
    if (o->policy != LATTICE_CACHE_SIEVE && o->policy != LATTICE_CACHE_FLUSH)
        return lt_fail(err, LATTICE_ERR_INVALID_ARGUMENT, "unknown cache policy %d", (int)o->policy);
    if (o->path) return lt_fail(err, LATTICE_ERR_UNSUPPORTED, "%s: this build keeps no embedding cache on disk", o->path);
    if (!o->max_entries && !o->max_bytes) o->max_entries = DEFAULT_ENTRIES;
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
    lattice_status status;
    LT_GO(check_options(&c->options, err));
    LT_GO(lt_slab_pool_create(c->mem, &c->pool, err));
    LT_GO(
        lt_cache_table_create(c->mem, c->pool, c->options.max_entries, c->options.max_bytes, c->options.policy, &c->table, err));
    *cache = c;
    return LATTICE_OK;
done:
    lattice_cache_close(c);
    return status;
}

void lattice_cache_close(lattice_cache *c)
{
    if (!c) return;
    lt_cache_table_free(c->table);
    lt_slab_pool_free(c->pool);
    lt_free(c->mem, c);
}

/* ------------------------------------------------------------------ finding and storing */

bool lt_cache_find(lattice_cache *c, const lt_cache_key *key, bool probe, float *out, size_t dim)
{
    return lt_cache_table_find(c->table, key, probe, out, dim);
}

void lt_cache_store(lattice_cache *c, const lt_cache_key *key, const float *vector, size_t dim)
{
    lt_cache_entry *e = lt_cache_entry_new(c->pool, key, vector, dim);
    if (!e || !lt_cache_table_add(c->table, e))
        atomic_fetch_add(&c->lost, 1);
    else
        atomic_fetch_add(&c->stores, 1);
    if (e) lt_cache_entry_release(c->pool, e);
}

lattice_status lattice_cache_clear(lattice_cache *c, lattice_error *err)
{
    (void)err;
    lt_cache_table_clear(c->table);
    return LATTICE_OK;
}

void lattice_cache_get_stats(lattice_cache *c, lattice_cache_stats *stats)
{
    lt_cache_table_stats table;
    lt_cache_table_get_stats(c->table, &table);
    *stats = (lattice_cache_stats){ .entries = table.entries,
                                    .bytes = table.bytes,
                                    .max_entries = c->options.max_entries,
                                    .max_bytes = c->options.max_bytes,
                                    .hits = table.hits,
                                    .misses = table.misses,
                                    .stores = atomic_load(&c->stores),
                                    .evictions = table.evictions,
                                    .lost = atomic_load(&c->lost) };
}
