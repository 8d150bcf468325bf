/* The embedding cache's file. See cache_disk.h. */
#include "engine/cache_disk.h"

#include <errno.h>
#include <fcntl.h>
#include <lmdb.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/file.h"
#include "engine/cache_check.h"

/* What may wait for the disk: beyond it vectors are lost to the file, not to the memory. */
static const size_t max_waiting_bytes = (size_t)64 << 20;
enum { ENTRIES_BETWEEN_CHECKS = 32, MAX_IDLE_READERS = 64, MAX_READERS = 1022, MAX_ASIDE = 1000 };

/* A read transaction that is kept for the next lookup: renewing is cheaper than beginning. */
typedef struct reader {
    struct reader *next;
    MDB_txn *txn;
} reader;

struct lt_cache_disk {
    lattice_runtime *runtime;
    const lattice_allocator *mem;
    lt_slab_pool *pool;
    lt_cache_disk_options options;
    char *path;
    MDB_env *env;
    MDB_dbi dbi;
    size_t page_size;
    lt_buf value; /* the writer's */

    pthread_mutex_t lock; /* of all below */
    pthread_cond_t work, idle;
    bool has_lock, has_writer;
    pthread_t writer;
    lt_cache_entry *first, *last; /* waiting */
    size_t waiting_bytes;
    bool writing, stop;
    bool read_failed, write_failed; /* each is warned of once */
    reader *readers;
    size_t n_readers;
    uint64_t imported, lost;
    uint64_t random;
};

static lattice_status lmdb_error(lattice_error *err, const char *path, int rc)
{
    if (rc == ENOMEM) return lt_no_memory(err, 0, "an embedding cache");
    return lt_fail(err, LATTICE_ERR_IO, "%s: %s", path, mdb_strerror(rc));
}

/* Once; the caller holds the lock. */
static void give_up(lt_cache_disk *d, bool *failed, const char *doing, int rc)
{
    if (*failed) return;
    *failed = true;
    lt_log(d->runtime, LATTICE_LOG_WARNING, "%s: %s: %s; the embedding cache goes on without %s it", d->path, doing,
           mdb_strerror(rc), failed == &d->read_failed ? "reading" : "writing");
}

static void give_up_reading(lt_cache_disk *d, int rc)
{
    pthread_mutex_lock(&d->lock);
    give_up(d, &d->read_failed, "reading failed", rc);
    d->write_failed = true; /* what cannot be read must not be written to */
    pthread_mutex_unlock(&d->lock);
}

/* ------------------------------------------------------------------ readers */

static int reader_take(lt_cache_disk *d, reader **out)
{
    pthread_mutex_lock(&d->lock);
    reader *r = d->readers;
    bool failed = d->read_failed;
    if (r && !failed) {
        d->readers = r->next;
        d->n_readers--;
    }
    pthread_mutex_unlock(&d->lock);
    *out = NULL;
    if (failed) return MDB_PANIC;
    int rc;
    if (r) {
        rc = mdb_txn_renew(r->txn);
    } else {
        r = lt_alloc(d->mem, sizeof *r);
        if (!r) return ENOMEM;
        rc = mdb_txn_begin(d->env, NULL, MDB_RDONLY, &r->txn);
        if (rc != 0) r->txn = NULL;
    }
    if (rc == 0) {
        *out = r;
        return 0;
    }
    if (r->txn) mdb_txn_abort(r->txn);
    lt_free(d->mem, r);
    /* Without memory or a reader's place this lookup is a miss; everything else is a fault. */
    if (rc != MDB_READERS_FULL && rc != ENOMEM) give_up_reading(d, rc);
    return rc;
}

static void reader_return(lt_cache_disk *d, reader *r)
{
    mdb_txn_reset(r->txn);
    pthread_mutex_lock(&d->lock);
    bool keep = d->n_readers < MAX_IDLE_READERS;
    if (keep) {
        r->next = d->readers;
        d->readers = r;
        d->n_readers++;
    }
    pthread_mutex_unlock(&d->lock);
    if (keep) return;
    mdb_txn_abort(r->txn);
    lt_free(d->mem, r);
}

/* ------------------------------------------------------------------ finding */

static void key_bytes(lt_hash128 hash, char key[LT_CACHE_KEY_BYTES])
{
    key[0] = 'v';
    memcpy(key + 1, &hash, sizeof hash);
}

static void imported_key_bytes(uint64_t hash, uint32_t dim, char key[LT_CACHE_IMPORTED_KEY_BYTES])
{
    key[0] = 'u';
    memcpy(key + 1, &hash, sizeof hash);
    memcpy(key + 9, &dim, sizeof dim);
}

/* A record that is not one: the file is damaged, whatever else is in it. The next opening sets it aside. */
static bool sound(lt_cache_disk *d, const MDB_val *key, const MDB_val *value, lt_cache_record *record)
{
    if (lt_cache_record_read(key->mv_data, key->mv_size, value->mv_data, value->mv_size, record)) return true;
    give_up_reading(d, MDB_CORRUPTED);
    return false;
}

bool lt_cache_disk_find(lt_cache_disk *d, const lt_cache_key *key, float *out, size_t dim)
{
    reader *r;
    if (reader_take(d, &r) != 0) return false;
    char bytes[LT_CACHE_KEY_BYTES];
    key_bytes(key->hash, bytes);
    MDB_val k = { sizeof bytes, bytes }, v;
    lt_cache_record record;
    int rc = mdb_get(r->txn, d->dbi, &k, &v);
    bool found = rc == 0 && sound(d, &k, &v, &record) && lt_hash128_eq(record.space, key->space) && record.n_ids == key->n &&
                 memcmp(record.ids, key->ids, key->n * sizeof *key->ids) == 0 && record.dim == dim;
    if (found) memcpy(out, record.vector, dim * sizeof *out);
    reader_return(d, r);
    if (rc != 0 && rc != MDB_NOTFOUND) give_up_reading(d, rc);
    return found;
}

bool lt_cache_disk_find_imported(lt_cache_disk *d, uint64_t hash, float *out, size_t dim)
{
    reader *r;
    if (dim > UINT32_MAX || reader_take(d, &r) != 0) return false;
    char bytes[LT_CACHE_IMPORTED_KEY_BYTES];
    imported_key_bytes(hash, (uint32_t)dim, bytes);
    MDB_val k = { sizeof bytes, bytes }, v;
    lt_cache_record record;
    int rc = mdb_get(r->txn, d->dbi, &k, &v);
    bool found = rc == 0 && sound(d, &k, &v, &record);
    if (found) memcpy(out, (const char *)v.mv_data + LT_CACHE_IMPORTED_HEADER, dim * sizeof *out);
    reader_return(d, r);
    if (rc != 0 && rc != MDB_NOTFOUND) give_up_reading(d, rc);
    return found;
}

/* ------------------------------------------------------------------ writing */

static int put(lt_cache_disk *d, MDB_txn *txn, MDB_val *key, unsigned flags)
{
    uint64_t checksum = lt_cache_record_checksum(key->mv_data, key->mv_size, d->value.data, d->value.len);
    memcpy(d->value.data, &checksum, sizeof checksum);
    MDB_val v = { d->value.len, d->value.data };
    int rc = mdb_put(txn, d->dbi, key, &v, flags);
    return rc == MDB_KEYEXIST ? 0 : rc;
}

static int put_entry(lt_cache_disk *d, MDB_txn *txn, lt_cache_entry *e)
{
    char key[LT_CACHE_KEY_BYTES];
    key_bytes(e->hash, key);
    lt_buf *value = &d->value;
    lt_buf_clear(value);
    value->failed = false;
    lt_buf_append(value, "\0\0\0\0\0\0\0", 8);
    lt_buf_append(value, &e->space, sizeof e->space);
    lt_buf_append(value, &e->n_ids, sizeof e->n_ids);
    lt_buf_append(value, &e->dim, sizeof e->dim);
    lt_buf_append(value, e->data, ((size_t)e->dim + e->n_ids) * 4);
    if (value->failed) return ENOMEM;
    MDB_val k = { sizeof key, key };
    return put(d, txn, &k, MDB_NOOVERWRITE);
}

/* Bytes of the tree's pages. */
static int tree_bytes(lt_cache_disk *d, MDB_txn *txn, size_t *bytes)
{
    MDB_stat stat;
    int rc = mdb_stat(txn, d->dbi, &stat);
    if (rc == 0) *bytes = (stat.ms_branch_pages + stat.ms_leaf_pages + stat.ms_overflow_pages) * d->page_size;
    return rc;
}

/* Keys are hashes, so neighbours in their order are arbitrary vectors, and a run of them empties pages whole. Deletes from a
 * random place on until the tree is an eighth below its limit. */
static int make_room(lt_cache_disk *d, MDB_txn *txn)
{
    size_t bytes, limit = d->options.max_bytes;
    int rc = tree_bytes(d, txn, &bytes);
    if (rc != 0 || bytes <= limit) return rc;
    MDB_cursor *cursor;
    rc = mdb_cursor_open(txn, d->dbi, &cursor);
    if (rc != 0) return rc;
    d->random = lt_hash64(&d->random, sizeof d->random, 1);
    char key[LT_CACHE_KEY_BYTES] = { 'v' };
    memcpy(key + 1, &d->random, sizeof d->random);
    MDB_val k = { sizeof key, key }, v;
    rc = mdb_cursor_get(cursor, &k, &v, MDB_SET_RANGE);
    for (bool wrapped = false; bytes > limit - limit / 8;) {
        if (rc == MDB_NOTFOUND && !wrapped) {
            wrapped = true;
            k = (MDB_val){ 1, key };
            rc = mdb_cursor_get(cursor, &k, &v, MDB_SET_RANGE);
            continue;
        }
        if (rc == 0) rc = mdb_cursor_del(cursor, 0);
        if (rc == 0) rc = tree_bytes(d, txn, &bytes);
        if (rc != 0) break;
        rc = mdb_cursor_get(cursor, &k, &v, MDB_NEXT); /* after a deletion: the one that took its place */
    }
    mdb_cursor_close(cursor);
    return rc == MDB_NOTFOUND ? 0 : rc;
}

static int write_entries(lt_cache_disk *d, lt_cache_entry *first)
{
    MDB_txn *txn;
    int rc = mdb_txn_begin(d->env, NULL, 0, &txn);
    if (rc != 0) return rc;
    size_t n = 0;
    for (lt_cache_entry *e = first; e && rc == 0; e = e->next) {
        if (n++ % ENTRIES_BETWEEN_CHECKS == 0) rc = make_room(d, txn);
        if (rc == 0) rc = put_entry(d, txn, e);
    }
    if (rc == 0) return mdb_txn_commit(txn);
    mdb_txn_abort(txn);
    return rc;
}

static void *write_all(void *arg)
{
    lt_cache_disk *d = arg;
    pthread_mutex_lock(&d->lock);
    for (;;) {
        while (!d->first && !d->stop) {
            pthread_cond_broadcast(&d->idle);
            pthread_cond_wait(&d->work, &d->lock);
        }
        if (!d->first) break;
        lt_cache_entry *first = d->first;
        bool failed = d->write_failed;
        d->first = d->last = NULL;
        d->waiting_bytes = 0;
        d->writing = true;
        pthread_mutex_unlock(&d->lock);
        int rc = failed ? MDB_PANIC : write_entries(d, first);
        uint64_t n = 0;
        for (lt_cache_entry *next; first; first = next, n++) {
            next = first->next;
            lt_cache_entry_release(d->pool, first);
        }
        pthread_mutex_lock(&d->lock);
        d->writing = false;
        if (rc == 0) continue;
        d->lost += n;
        if (rc != ENOMEM) give_up(d, &d->write_failed, "writing failed", rc);
    }
    pthread_cond_broadcast(&d->idle);
    pthread_mutex_unlock(&d->lock);
    return NULL;
}

bool lt_cache_disk_put(lt_cache_disk *d, lt_cache_entry *e)
{
    size_t bytes = lt_cache_entry_bytes(e->n_ids, e->dim);
    pthread_mutex_lock(&d->lock);
    bool taken = !d->options.read_only && !d->write_failed && bytes <= max_waiting_bytes - d->waiting_bytes;
    if (taken) {
        atomic_fetch_add(&e->references, 1);
        e->next = NULL;
        if (d->last)
            d->last->next = e;
        else
            d->first = e;
        d->last = e;
        d->waiting_bytes += bytes;
        pthread_cond_signal(&d->work);
    } else if (!d->options.read_only) {
        d->lost++;
    }
    pthread_mutex_unlock(&d->lock);
    return taken;
}

/* Until nothing waits. */
static void drain(lt_cache_disk *d)
{
    pthread_mutex_lock(&d->lock);
    while (d->has_writer && (d->first || d->writing)) pthread_cond_wait(&d->idle, &d->lock);
    pthread_mutex_unlock(&d->lock);
}

/* ------------------------------------------------------------------ whole-file work */

static int begin_write(lt_cache_disk *d, MDB_txn **txn)
{
    pthread_mutex_lock(&d->lock);
    bool failed = d->options.read_only || d->write_failed;
    pthread_mutex_unlock(&d->lock);
    return failed ? EROFS : mdb_txn_begin(d->env, NULL, 0, txn);
}

static int put_format(lt_cache_disk *d, MDB_txn *txn)
{
    MDB_val k = { 1, LT_CACHE_FORMAT_KEY }, v = { sizeof LT_CACHE_FORMAT - 1, LT_CACHE_FORMAT };
    return mdb_put(txn, d->dbi, &k, &v, 0);
}

lattice_status lt_cache_disk_clear(lt_cache_disk *d, lattice_error *err)
{
    drain(d);
    MDB_txn *txn;
    int rc = begin_write(d, &txn);
    if (rc != 0) return lmdb_error(err, d->path, rc);
    rc = mdb_drop(txn, d->dbi, 0);
    if (rc == 0) rc = put_format(d, txn);
    if (rc == 0) {
        rc = mdb_txn_commit(txn);
    } else {
        mdb_txn_abort(txn);
    }
    if (rc != 0) return lmdb_error(err, d->path, rc);
    pthread_mutex_lock(&d->lock);
    d->imported = 0;
    pthread_mutex_unlock(&d->lock);
    return LATTICE_OK;
}

lattice_status lt_cache_disk_import(lt_cache_disk *d, lt_cache_next_fn next, void *arg, lattice_error *err)
{
    lt_buf value;
    lt_buf_init(&value, d->mem);
    MDB_txn *txn;
    int rc = begin_write(d, &txn);
    if (rc != 0) return lmdb_error(err, d->path, rc);
    uint64_t hash, added = 0;
    const void *vector;
    uint32_t dim;
    while (rc == 0 && next(arg, &hash, &vector, &dim)) {
        char key[LT_CACHE_IMPORTED_KEY_BYTES];
        imported_key_bytes(hash, dim, key);
        lt_buf_clear(&value);
        lt_buf_append(&value, "\0\0\0\0\0\0\0", LT_CACHE_IMPORTED_HEADER);
        lt_buf_append(&value, vector, (size_t)dim * sizeof(float));
        if (value.failed) {
            rc = ENOMEM;
            break;
        }
        MDB_val k = { sizeof key, key }, v = { value.len, value.data }, old;
        uint64_t checksum = lt_cache_record_checksum(key, sizeof key, value.data, value.len);
        memcpy(value.data, &checksum, sizeof checksum);
        added += mdb_get(txn, d->dbi, &k, &old) == MDB_NOTFOUND;
        rc = mdb_put(txn, d->dbi, &k, &v, 0);
    }
    lt_buf_free(&value);
    if (rc == 0) {
        rc = mdb_txn_commit(txn);
    } else {
        mdb_txn_abort(txn);
    }
    if (rc == MDB_MAP_FULL)
        return lt_fail(err, LATTICE_ERR_IO, "%s: no room for the imported vectors within its %zu bytes", d->path,
                       d->options.max_bytes);
    if (rc != 0) return lmdb_error(err, d->path, rc);
    pthread_mutex_lock(&d->lock);
    d->imported += added;
    pthread_mutex_unlock(&d->lock);
    return LATTICE_OK;
}

lattice_status lt_cache_disk_each(lt_cache_disk *d,
                                  lattice_status (*fn)(void *arg, const lt_cache_record *record, lattice_error *err), void *arg,
                                  lattice_error *err)
{
    drain(d);
    reader *r;
    int rc = reader_take(d, &r);
    if (rc != 0) return lmdb_error(err, d->path, rc);
    MDB_cursor *cursor;
    lattice_status status = LATTICE_OK;
    rc = mdb_cursor_open(r->txn, d->dbi, &cursor);
    if (rc == 0) {
        MDB_val k = { 1, "v" }, v;
        lt_cache_record record;
        for (rc = mdb_cursor_get(cursor, &k, &v, MDB_SET_RANGE); rc == 0 && status == LATTICE_OK;
             rc = mdb_cursor_get(cursor, &k, &v, MDB_NEXT)) {
            if (!sound(d, &k, &v, &record))
                status = lmdb_error(err, d->path, MDB_CORRUPTED);
            else
                status = fn(arg, &record, err);
        }
        mdb_cursor_close(cursor);
    }
    reader_return(d, r);
    if (status == LATTICE_OK && rc != 0 && rc != MDB_NOTFOUND) status = lmdb_error(err, d->path, rc);
    return status;
}

void lt_cache_disk_get_stats(lt_cache_disk *d, lt_cache_disk_stats *stats)
{
    *stats = (lt_cache_disk_stats){ 0 };
    pthread_mutex_lock(&d->lock);
    stats->imported = d->imported;
    stats->lost = d->lost;
    stats->in_use = !d->read_failed;
    pthread_mutex_unlock(&d->lock);
    reader *r;
    MDB_stat stat;
    if (stats->in_use && reader_take(d, &r) == 0) {
        if (mdb_stat(r->txn, d->dbi, &stat) == 0 && stat.ms_entries > stats->imported)
            stats->entries = stat.ms_entries - stats->imported - 1; /* the format's record */
        reader_return(d, r);
    }
    struct stat info;
    if (lstat(d->path, &info) == 0) stats->bytes = (uint64_t)info.st_blocks * 512;
}

/* ------------------------------------------------------------------ opening */

/* The folder of the file, locked against others that open or set aside: a lock on a file of LMDB's would be lost, or would lose
 * LMDB's, when closed. Where folders cannot be locked it is done without. */
static int lock_folder(const lattice_allocator *mem, const char *path)
{
    lt_buf folder;
    lt_buf_init(&folder, mem);
    const char *slash = strrchr(path, '/');
    if (slash)
        lt_buf_append(&folder, path, slash == path ? 1 : (size_t)(slash - path));
    else
        lt_buf_append_z(&folder, ".");
    int fd = folder.failed ? -1 : open(folder.data, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    lt_buf_free(&folder);
    if (fd >= 0) flock(fd, LOCK_EX);
    return fd;
}

/* Renames PATH to the first free PATH.damaged-N and removes LMDB's lock beside it, which others may hold that still have the old
 * file open. */
static lattice_status set_aside(lt_cache_disk *d, const char *why, lattice_error *err)
{
    if (d->options.read_only) return lt_fail(err, LATTICE_ERR_FORMAT, "%s: damaged: %s", d->path, why);
    lt_buf name;
    lt_buf_init(&name, d->mem);
    lattice_status status = LATTICE_OK;
    for (int n = 1; n <= MAX_ASIDE; n++) {
        lt_buf_clear(&name);
        lt_buf_printf(&name, "%s.damaged-%d", d->path, n);
        if (name.failed || !lt_path_exists(name.data)) break;
    }
    if (name.failed)
        status = lt_no_memory(err, strlen(d->path), "a path");
    else if (rename(d->path, name.data) != 0)
        status = lt_fail(err, LATTICE_ERR_IO, "%s: damaged (%s), and cannot be renamed: %s", d->path, why, strerror(errno));
    else
        lt_log(d->runtime, LATTICE_LOG_WARNING, "%s: damaged: %s; set aside as %s, and a new one is begun", d->path, why,
               name.data);
    if (status == LATTICE_OK) {
        lt_buf_clear(&name);
        lt_buf_printf(&name, "%s-lock", d->path);
        if (!name.failed) unlink(name.data);
    }
    lt_buf_free(&name);
    return status;
}

static int open_env(lt_cache_disk *d, unsigned flags)
{
    int rc = mdb_env_create(&d->env);
    if (rc != 0) {
        d->env = NULL;
        return rc;
    }
    /* Room beyond the limit: a transaction copies pages before it frees the old ones. */
    size_t map = d->options.max_bytes + d->options.max_bytes / 4 + ((size_t)16 << 20);
    rc = mdb_env_set_mapsize(d->env, (map + d->page_size - 1) / d->page_size * d->page_size);
    if (rc == 0) rc = mdb_env_set_maxreaders(d->env, MAX_READERS);
    /* NOMETASYNC: what is on the disk is whole after a power failure too; the last transaction may be missing. */
    if (rc == 0) rc = mdb_env_open(d->env, d->path, MDB_NOSUBDIR | MDB_NOTLS | MDB_NORDAHEAD | MDB_NOMETASYNC | flags, 0644);
    int dead;
    if (rc == 0) rc = mdb_reader_check(d->env, &dead); /* places of processes that were killed */
    MDB_txn *txn;
    if (rc == 0) rc = mdb_txn_begin(d->env, NULL, MDB_RDONLY, &txn);
    if (rc == 0) {
        rc = mdb_dbi_open(txn, NULL, 0, &d->dbi);
        if (rc == 0)
            rc = mdb_txn_commit(txn);
        else
            mdb_txn_abort(txn);
    }
    if (rc != 0) {
        mdb_env_close(d->env);
        d->env = NULL;
    }
    return rc;
}

/* Walks the file under a read transaction. */
static lattice_status check(lt_cache_disk *d, lt_cache_verdict *verdict, const char **why, lt_cache_census *census,
                            lattice_error *err)
{
    MDB_txn *txn;
    int rc = mdb_txn_begin(d->env, NULL, MDB_RDONLY, &txn);
    if (rc != 0) return lmdb_error(err, d->path, rc);
    bool done = lt_cache_check_all(d->mem, d->path, mdb_txn_id(txn), verdict, why, census);
    mdb_txn_abort(txn);
    return done ? LATTICE_OK : lt_no_memory(err, 0, "looking an embedding cache over");
}

static int write_format(lt_cache_disk *d)
{
    MDB_txn *txn;
    int rc = mdb_txn_begin(d->env, NULL, 0, &txn);
    if (rc != 0) return rc;
    rc = put_format(d, txn);
    if (rc == 0) return mdb_txn_commit(txn);
    mdb_txn_abort(txn);
    return rc;
}

static lattice_status unusable(lt_cache_disk *d, int rc)
{
    lt_log(d->runtime, LATTICE_LOG_WARNING, "%s: %s; the embedding cache goes on without it", d->path, mdb_strerror(rc));
    if (d->env) mdb_env_close(d->env);
    d->env = NULL;
    return LATTICE_OK;
}

/* Opens and checks; d->env NULL with LATTICE_OK: unusable, and the log was warned. *again: the file was set aside. */
static lattice_status open_file(lt_cache_disk *d, bool *again, lattice_error *err)
{
    *again = false;
    const char *why;
    lt_cache_verdict verdict = lt_cache_check_head(d->path, &why);
    if (verdict == LT_CACHE_FOREIGN) return lt_fail(err, LATTICE_ERR_FORMAT, "%s: not an embedding cache: %s", d->path, why);
    if (verdict == LT_CACHE_DAMAGED) {
        *again = true;
        return set_aside(d, why, err);
    }
    if (verdict == LT_CACHE_ABSENT && d->options.read_only && access(d->path, F_OK) != 0)
        return lt_fail(err, LATTICE_ERR_NOT_FOUND, "%s: no such file", d->path);
    int rc = open_env(d, d->options.read_only ? MDB_RDONLY : 0);
    if (rc == ENOMEM) return lt_no_memory(err, 0, "an embedding cache");
    if ((rc == EACCES || rc == EROFS || rc == EPERM) && !d->options.read_only) {
        /* It may still be read. */
        if (verdict != LT_CACHE_SOUND || open_env(d, MDB_RDONLY) != 0) return unusable(d, rc);
        d->write_failed = true;
        lt_log(d->runtime, LATTICE_LOG_WARNING, "%s: %s; the embedding cache is read and not written", d->path, mdb_strerror(rc));
        rc = 0;
    }
    if (rc == ENOENT && !d->options.read_only) return lt_fail(err, LATTICE_ERR_NOT_FOUND, "%s: no such folder", d->path);
    if (rc != 0) return unusable(d, rc);

    lt_cache_census census;
    LT_TRY(check(d, &verdict, &why, &census, err));
    if (verdict == LT_CACHE_FOREIGN) return lt_fail(err, LATTICE_ERR_FORMAT, "%s: not an embedding cache", d->path);
    if (verdict != LT_CACHE_SOUND) {
        mdb_env_close(d->env);
        d->env = NULL;
        *again = true;
        return set_aside(d, why ? why : "it is not one", err);
    }
    d->imported = census.imported;
    if (census.has_format) return LATTICE_OK;
    if (census.records || census.imported)
        return lt_fail(err, LATTICE_ERR_FORMAT, "%s: not an embedding cache of this version", d->path);
    if (d->options.read_only || d->write_failed) return LATTICE_OK;
    rc = write_format(d);
    return rc ? unusable(d, rc) : LATTICE_OK;
}

static lattice_status open_disk(lt_cache_disk *d, lattice_error *err)
{
    if (!d->path[0]) return lt_fail(err, LATTICE_ERR_INVALID_ARGUMENT, "the path of an embedding cache is empty");
    int folder = lock_folder(d->mem, d->path);
    bool again;
    lattice_status status = open_file(d, &again, err);
    if (status == LATTICE_OK && again) status = open_file(d, &again, err);
    if (folder >= 0) close(folder);
    if (status != LATTICE_OK || !d->env || d->options.read_only) return status;
    if (pthread_create(&d->writer, NULL, write_all, d) != 0) return lt_no_memory(err, 0, "a thread");
    d->has_writer = true;
    return LATTICE_OK;
}

lattice_status lt_cache_disk_open(lattice_runtime *runtime, lt_slab_pool *pool, const lt_cache_disk_options *options,
                                  lt_cache_disk **disk, lattice_error *err)
{
    *disk = NULL;
    lt_cache_disk *d = lt_alloc_zero(&runtime->mem, sizeof *d);
    if (!d) return lt_no_memory(err, sizeof *d, "an embedding cache");
    d->runtime = runtime;
    d->mem = &runtime->mem;
    d->pool = pool;
    d->options = *options;
    d->page_size = (size_t)sysconf(_SC_PAGESIZE);
    lt_buf_init(&d->value, d->mem);
    size_t length = strlen(options->path) + 1;
    d->path = lt_alloc(d->mem, length);
    lattice_status status = LATTICE_OK;
    if (d->path)
        memcpy(d->path, options->path, length);
    else
        status = lt_no_memory(err, length, "a path");
    if (status == LATTICE_OK && pthread_mutex_init(&d->lock, NULL) == 0) {
        pthread_cond_init(&d->work, NULL);
        pthread_cond_init(&d->idle, NULL);
        d->has_lock = true;
        status = open_disk(d, err);
    }
    if (status == LATTICE_OK && d->env)
        *disk = d;
    else
        lt_cache_disk_close(d);
    return status;
}

void lt_cache_disk_close(lt_cache_disk *d)
{
    if (!d) return;
    if (d->has_writer) {
        pthread_mutex_lock(&d->lock);
        d->stop = true;
        pthread_cond_signal(&d->work);
        pthread_mutex_unlock(&d->lock);
        pthread_join(d->writer, NULL);
    }
    for (reader *r = d->readers; r;) {
        reader *next = r->next;
        mdb_txn_abort(r->txn);
        lt_free(d->mem, r);
        r = next;
    }
    if (d->env) mdb_env_close(d->env);
    if (d->has_lock) {
        pthread_cond_destroy(&d->idle);
        pthread_cond_destroy(&d->work);
        pthread_mutex_destroy(&d->lock);
    }
    lt_buf_free(&d->value);
    lt_free(d->mem, d->path);
    lt_free(d->mem, d);
}
