/* Import and export of the original's flat file (cache_flat.h).
 *
 * The file knows neither model nor ids, so imported vectors live apart: in records of their own on the disk, else in a table of
 * their own, under the hash and the dimensions. */
#include "base/file.h"
#include "engine/cache.h"
#include "engine/cache_flat.h"
#include "engine/embed.h"

enum { WRITE_BYTES = 1 << 18 };

/* ------------------------------------------------------------------ imported vectors in memory */

/* Stands where a key has a space: no fingerprint comes out as it. */
static const lt_hash128 imported_space = { 0, 0 };

static void imported_words(uint64_t hash, size_t dim, uint32_t words[3])
{
    words[0] = (uint32_t)hash;
    words[1] = (uint32_t)(hash >> 32);
    words[2] = (uint32_t)dim;
}

bool lt_cache_find_imported(lattice_cache *c, uint64_t hash, float *out, size_t dim)
{
    lt_cache_table *table = atomic_load(&c->imported);
    if (!table) return false;
    uint32_t words[3];
    imported_words(hash, dim, words);
    lt_cache_key key = lt_cache_key_of(imported_space, words, 3);
    return lt_cache_table_find(table, &key, true, out, dim);
}

/* Of a file that memory does not suffice for, some vectors stay. */
static lattice_status add_imported(lattice_cache *c, lt_cache_table *table, lt_flat_reader *reader, lattice_error *err)
{
    uint64_t hash;
    const void *vector;
    uint32_t dim;
    while (lt_flat_next(reader, &hash, &vector, &dim)) {
        uint32_t words[3];
        imported_words(hash, dim, words);
        lt_cache_key key = lt_cache_key_of(imported_space, words, 3);
        lt_cache_entry *e = lt_cache_entry_new(c->pool, &key, vector, dim);
        bool added = e && lt_cache_table_replace(table, e);
        if (e) lt_cache_entry_release(c->pool, e);
        if (!added) return lt_no_memory(err, (size_t)dim * 4, "an imported vector");
    }
    return LATTICE_OK;
}

static lattice_status import_to_memory(lattice_cache *c, lt_flat_reader *reader, lattice_error *err)
{
    pthread_mutex_lock(&c->imported_lock);
    lt_cache_table *table = atomic_load(&c->imported);
    lattice_status status = LATTICE_OK;
    if (!table) {
        status = lt_cache_table_create(c->mem, c->pool, 0, 0, LATTICE_CACHE_SIEVE, &table, err);
        if (status == LATTICE_OK) atomic_store(&c->imported, table);
    }
    if (status == LATTICE_OK) status = add_imported(c, table, reader, err);
    pthread_mutex_unlock(&c->imported_lock);
    return status;
}

lattice_status lattice_cache_import(lattice_cache *c, const char *path, uint64_t *n, lattice_error *err)
{
    *n = 0;
    lt_file file;
    LT_TRY(lt_file_open(c->mem, path, true, &file, err));
    uint64_t entries;
    lattice_status status = lt_flat_check(path, file.data, file.size, &entries, err);
    if (status == LATTICE_OK && entries) {
        lt_flat_reader reader = { file.data, file.size, 0 };
        status = c->disk ? lt_cache_disk_import(c->disk, lt_flat_next, &reader, err) : import_to_memory(c, &reader, err);
    }
    lt_file_close(&file);
    if (status == LATTICE_OK) *n = entries;
    return status;
}

/* ------------------------------------------------------------------ export */

typedef struct exporter {
    lt_replace file;
    lt_buf buffer;
    bool one_space; /* of `space` alone, set before; else it is the first vector's, which all must share */
    lt_hash128 space;
    uint64_t n;
} exporter;

static lattice_status flush(exporter *x, lattice_error *err)
{
    if (x->buffer.failed) return lt_no_memory(err, WRITE_BYTES, "writing vectors");
    lattice_status status = lt_replace_write(&x->file, x->buffer.data, x->buffer.len, err);
    lt_buf_clear(&x->buffer);
    return status;
}

static lattice_status export_vector(exporter *x, lt_hash128 space, const void *ids, size_t n_ids, const void *vector,
                                    uint32_t dim, lattice_error *err)
{
    if (!x->one_space && x->n == 0) x->space = space;
    if (!lt_hash128_eq(space, x->space)) {
        if (x->one_space) return LATTICE_OK;
        return lt_fail(err, LATTICE_ERR_INVALID_ARGUMENT,
                       "the cache has vectors of several models or options, which the file cannot tell apart: name a model");
    }
    lt_flat_append(&x->buffer, lt_flat_hash(ids, n_ids), vector, dim);
    x->n++;
    return x->buffer.len < WRITE_BYTES && !x->buffer.failed ? LATTICE_OK : flush(x, err);
}

static lattice_status export_entry(void *arg, lt_cache_entry *e, lattice_error *err)
{
    return export_vector(arg, e->space, lt_cache_entry_ids(e), e->n_ids, e->data, e->dim, err);
}

static lattice_status export_record(void *arg, const lt_cache_record *r, lattice_error *err)
{
    return export_vector(arg, r->space, r->ids, r->n_ids, r->vector, r->dim, err);
}

static lattice_status find_space(lattice_cache *c, lattice_model *model, const lattice_embed_options *options, lt_hash128 *space,
                                 lattice_error *err)
{
    lattice_embed_options o = options ? *options : lattice_embed_options_default();
    o.cache = c;
    lt_embed_call *call;
    LT_TRY(lt_embed_call_create(model, &o, !model->tokenizer, &call, err));
    *space = lt_embed_call_space(call);
    lt_embed_call_free(call);
    return LATTICE_OK;
}

lattice_status lattice_cache_export(lattice_cache *c, const char *path, lattice_model *model,
                                    const lattice_embed_options *options, uint64_t *n, lattice_error *err)
{
    *n = 0;
    exporter x = { .one_space = model != NULL };
    if (model) LT_TRY(find_space(c, model, options, &x.space, err));
    LT_TRY(lt_replace_begin(c->mem, path, &x.file, err));
    lt_buf_init(&x.buffer, c->mem);
    lattice_status status =
        c->disk ? lt_cache_disk_each(c->disk, export_record, &x, err) : lt_cache_table_each(c->table, export_entry, &x, err);
    if (status == LATTICE_OK) status = flush(&x, err);
    lt_buf_free(&x.buffer);
    if (status != LATTICE_OK) {
        lt_replace_abort(&x.file);
        return status;
    }
    *n = x.n;
    return lt_replace_commit(&x.file, err);
}
