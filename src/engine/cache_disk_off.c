/* The embedding cache's file in a build without LMDB (LATTICE_DISK_CACHE off): opening one is refused, so nothing else is called.
 */
#include "engine/cache_disk.h"

lattice_status lt_cache_disk_open(lattice_runtime *runtime, lt_slab_pool *pool, const lt_cache_disk_options *options,
                                  lt_cache_disk **disk, lattice_error *err)
{
    (void)runtime, (void)pool;
    *disk = NULL;
    return lt_fail(err, LATTICE_ERR_UNSUPPORTED, "%s: this build keeps no embedding cache on disk", options->path);
}

void lt_cache_disk_close(lt_cache_disk *disk)
{
    (void)disk;
}

bool lt_cache_disk_find(lt_cache_disk *disk, const lt_cache_key *key, float *out, size_t dim)
{
    (void)disk, (void)key, (void)out, (void)dim;
    return false;
}

bool lt_cache_disk_find_imported(lt_cache_disk *disk, uint64_t hash, float *out, size_t dim)
{
    (void)disk, (void)hash, (void)out, (void)dim;
    return false;
}

bool lt_cache_disk_put(lt_cache_disk *disk, lt_cache_entry *entry)
{
    (void)disk, (void)entry;
    return false;
}

lattice_status lt_cache_disk_import(lt_cache_disk *disk, lt_cache_next_fn next, void *arg, lattice_error *err)
{
    (void)disk, (void)next, (void)arg;
    return lt_fail(err, LATTICE_ERR_UNSUPPORTED, "no embedding cache on disk");
}

lattice_status lt_cache_disk_clear(lt_cache_disk *disk, lattice_error *err)
{
    (void)disk;
    return lt_fail(err, LATTICE_ERR_UNSUPPORTED, "no embedding cache on disk");
}

lattice_status lt_cache_disk_each(lt_cache_disk *disk,
                                  lattice_status (*fn)(void *arg, const lt_cache_record *record, lattice_error *err), void *arg,
                                  lattice_error *err)
{
    (void)disk, (void)fn, (void)arg;
    return lt_fail(err, LATTICE_ERR_UNSUPPORTED, "no embedding cache on disk");
}

void lt_cache_disk_get_stats(lt_cache_disk *disk, lt_cache_disk_stats *stats)
{
    (void)disk;
    *stats = (lt_cache_disk_stats){ 0 };
}
