/* Snapshots of sessions, as bytes and as files.
 *
 *     header | ids [n] | logits [vocab_size], if there are any | what the backend saves of the state | checksum
 *
 * Numbers are little-endian, as on every machine that this is built for. The checksum is XXH3-64 of everything before it, a
 * megabyte after the other, each with the one before as its seed: so a snapshot is written without being held in memory. A reader
 * believes nothing before sizes and checksum agree; what a snapshot is for comes next, and its ids last. */
#include <string.h>

#include "base/file.h"
#include "base/hash.h"
#include "engine/cache.h"
#include "engine/session.h"

enum { VERSION = 1, CHUNK = 1 << 20 };

typedef struct header {
    char magic[16];
    uint32_t version, header_bytes;
    char compute[8], isa[16], rows[8]; /* names, zeros behind */
    uint64_t fingerprint[2];
    uint64_t vocab_size, n, n_prompt, has_logits;
    uint64_t state_bytes, total_bytes; /* the checksum counted */
} header;

_Static_assert(sizeof(header) == 120, "a header has no holes");

static const char magic[16] = "lattice session";

/* ------------------------------------------------------------------ writing */

typedef struct writer {
    lt_replace *file; /* NULL: the bytes are kept */
    lt_buf bytes;
    size_t begin; /* of the chunk that is not hashed yet */
    uint64_t hash;
} writer;

static lattice_status end_chunk(writer *w, lattice_error *err)
{
    const size_t n = w->bytes.len - w->begin;
    w->hash = lt_hash64(w->bytes.data + w->begin, n, w->hash);
    w->begin = w->bytes.len;
    if (!w->file) return LATTICE_OK;
    LT_TRY(lt_replace_write(w->file, w->bytes.data, w->bytes.len, err));
    lt_buf_clear(&w->bytes);
    w->begin = 0;
    return LATTICE_OK;
}

static lattice_status put(void *user, const void *data, size_t size, lattice_error *err)
{
    writer *w = user;
    for (const char *from = data; size > 0;) {
        const size_t room = CHUNK - (w->bytes.len - w->begin), n = size < room ? size : room;
        lt_buf_append(&w->bytes, from, n);
        if (w->bytes.failed) return lt_no_memory(err, n, "a snapshot");
        from += n;
        size -= n;
        if (n == room) LT_TRY(end_chunk(w, err));
    }
    return LATTICE_OK;
}

static void set_name(char *to, size_t size, const char *name)
{
    memset(to, 0, size);
    for (size_t i = 0; i + 1 < size && name[i]; i++) to[i] = name[i];
}

/* What a snapshot of this model says it is for. */
static lattice_status describe(lattice_model *m, header *h, lattice_error *err)
{
    lattice_model_info info;
    lt_hash128 fingerprint;
    lattice_model_get_info(m, &info);
    LT_TRY(lt_model_fingerprint(m, &fingerprint, err));
    *h = (header){ .version = VERSION, .header_bytes = sizeof *h, .vocab_size = m->config.vocab_size };
    memcpy(h->magic, magic, sizeof magic);
    set_name(h->compute, sizeof h->compute, info.compute);
    set_name(h->isa, sizeof h->isa, info.isa);
    set_name(h->rows, sizeof h->rows, m->backend->states->row_type(m->program));
    h->fingerprint[0] = fingerprint.low;
    h->fingerprint[1] = fingerprint.high;
    return LATTICE_OK;
}

static lattice_status check_device(const lattice_model *m, lattice_error *err)
{
    if (m->backend->states->save) return LATTICE_OK;
    return lt_fail(err, LATTICE_ERR_UNSUPPORTED, "sessions on device %s cannot be saved", m->backend->name);
}

static lattice_status write_session(const lattice_session *s, writer *w, lattice_error *err)
{
    const lattice_model *m = s->model;
    LT_TRY(check_device(m, err));
    if (s->has_logits) LT_TRY(lt_rows_fetch(s, err));
    const size_t ids = s->n * sizeof *s->ids, logits = s->has_logits ? m->config.vocab_size * sizeof *s->logits : 0;
    header h;
    LT_TRY(describe(s->model, &h, err));
    h.n = s->n;
    h.n_prompt = s->n_prompt;
    h.has_logits = s->has_logits;
    h.state_bytes = m->backend->states->saved_bytes(m->program, s->n);
    h.total_bytes = sizeof h + ids + logits + h.state_bytes + sizeof w->hash; /* less than what is in memory */
    LT_TRY(put(w, &h, sizeof h, err));
    LT_TRY(put(w, s->ids, ids, err));
    if (logits) LT_TRY(put(w, s->logits, logits, err));
    LT_TRY(m->backend->states->save(s->state, put, w, err));
    if (w->bytes.len > w->begin) LT_TRY(end_chunk(w, err));
    lt_buf_append(&w->bytes, &w->hash, sizeof w->hash);
    if (w->bytes.failed) return lt_no_memory(err, sizeof w->hash, "a snapshot");
    return w->file ? lt_replace_write(w->file, w->bytes.data, w->bytes.len, err) : LATTICE_OK;
}

lattice_status lattice_session_save(const lattice_session *session, const char *path, lattice_error *err)
{
    lt_replace file;
    LT_TRY(lt_replace_begin(session->mem, path, &file, err));
    writer w = { .file = &file };
    lt_buf_init(&w.bytes, session->mem);
    lattice_status status = write_session(session, &w, err);
    lt_buf_free(&w.bytes);
    if (status == LATTICE_OK) return lt_replace_commit(&file, err);
    lt_replace_abort(&file);
    return status;
}

lattice_status lattice_session_save_bytes(const lattice_session *session, lattice_snapshot *snapshot, lattice_error *err)
{
    writer w = { 0 };
    *snapshot = (lattice_snapshot){ 0 };
    lt_buf_init(&w.bytes, session->mem);
    lattice_status status = write_session(session, &w, err);
    if (status == LATTICE_OK)
        *snapshot = (lattice_snapshot){ (unsigned char *)w.bytes.data, w.bytes.len, session->model };
    else
        lt_buf_free(&w.bytes);
    return status;
}

void lattice_snapshot_free(lattice_snapshot *snapshot)
{
    if (snapshot->owner) lt_free(snapshot->owner->mem, snapshot->data);
    *snapshot = (lattice_snapshot){ 0 };
}

/* ------------------------------------------------------------------ reading */

static uint64_t checksum(const unsigned char *data, size_t size)
{
    uint64_t hash = 0;
    for (size_t at = 0; at < size; at += CHUNK) hash = lt_hash64(data + at, size - at < CHUNK ? size - at : CHUNK, hash);
    return hash;
}

void lt_snapshot_seal(unsigned char *data, size_t size)
{
    if (size < sizeof(uint64_t)) return;
    const uint64_t hash = checksum(data, size - sizeof hash);
    memcpy(data + size - sizeof hash, &hash, sizeof hash);
}

/* Are the bytes those of a snapshot, all of them and undamaged? */
static lattice_status check_bytes(const unsigned char *data, size_t size, const char *name, header *h, lattice_error *err)
{
    uint64_t hash;
    if (size < sizeof *h + sizeof hash || memcmp(data, magic, sizeof magic) != 0)
        return lt_fail(err, LATTICE_ERR_FORMAT, "%s: not a saved session", name);
    memcpy(h, data, sizeof *h);
    if (h->version != VERSION || h->header_bytes != sizeof *h)
        return lt_fail(err, LATTICE_ERR_UNSUPPORTED, "%s: a saved session of version %u; this program reads version %d", name,
                       (unsigned)h->version, VERSION);
    if (h->total_bytes != size)
        return lt_fail(err, LATTICE_ERR_FORMAT, "%s: has %zu bytes, but should have %llu", name, size,
                       (unsigned long long)h->total_bytes);
    memcpy(&hash, data + size - sizeof hash, sizeof hash);
    if (checksum(data, size - sizeof hash) != hash)
        return lt_fail(err, LATTICE_ERR_FORMAT, "%s: damaged: the checksum does not fit", name);
    return LATTICE_OK;
}

static lattice_status check_name(const char *what, const char *saved, const char *here, const char *name, lattice_error *err)
{
    if (strcmp(saved, here) == 0) return LATTICE_OK;
    return lt_fail(err, LATTICE_ERR_UNSUPPORTED, "%s: saved with %s %s; the model is open with %s", name, what, saved, here);
}

/* Is it for this model, as it is open? */
static lattice_status check_purpose(lattice_model *m, header *h, const char *name, lattice_error *err)
{
    header here;
    LT_TRY(describe(m, &here, err));
    h->compute[sizeof h->compute - 1] = h->isa[sizeof h->isa - 1] = h->rows[sizeof h->rows - 1] = '\0';
    LT_TRY(check_name("compute", h->compute, here.compute, name, err));
    LT_TRY(check_name("isa", h->isa, here.isa, name, err));
    LT_TRY(check_name("keys and values as", h->rows, here.rows, name, err));
    if (memcmp(h->fingerprint, here.fingerprint, sizeof here.fingerprint) != 0 || h->vocab_size != here.vocab_size)
        return lt_fail(err, LATTICE_ERR_UNSUPPORTED, "%s: saved with another model than %s, or by another version of lattice",
                       name, m->folder);
    return LATTICE_OK;
}

/* Do the sizes fit each other and the session? */
static lattice_status check_sizes(const lattice_session *s, const header *h, const char *name, lattice_error *err)
{
    const lattice_model *m = s->model;
    if (h->n > s->max_length)
        return lt_fail(err, LATTICE_ERR_TOO_LONG, "%s: %llu tokens are more than the %zu that the session holds", name,
                       (unsigned long long)h->n, s->max_length);
    const size_t n = (size_t)h->n, logits = h->has_logits ? m->config.vocab_size * sizeof(float) : 0;
    size_t state = m->backend->states->saved_bytes(m->program, n), total;
    if (h->n_prompt > h->n || h->has_logits > 1 || (h->has_logits && n == 0) || h->state_bytes != state ||
        !lt_add(state, sizeof *h + n * sizeof(uint32_t) + logits + sizeof(uint64_t), &total) || total != h->total_bytes)
        return lt_fail(err, LATTICE_ERR_FORMAT, "%s: the sizes in its header do not fit each other", name);
    return LATTICE_OK;
}

static lattice_status read_session(lattice_session *s, const unsigned char *data, const header *h, const char *name,
                                   lattice_error *err)
{
    const lattice_model *m = s->model;
    const size_t n = (size_t)h->n, width = m->config.vocab_size;
    LT_TRY(check_sizes(s, h, name, err));
    if (n > 0 && !LT_GROW(s->mem, s->ids, s->capacity, n)) return lt_no_memory(err, n * sizeof *s->ids, "token ids");
    data += sizeof *h;
    if (n > 0) memcpy(s->ids, data, n * sizeof *s->ids);
    data += n * sizeof *s->ids;
    for (size_t i = 0; i < n; i++) {
        if (s->ids[i] >= width)
            return lt_fail(err, LATTICE_ERR_FORMAT, "%s: token id %u is outside the model's vocabulary of %zu", name,
                           (unsigned)s->ids[i], width);
    }
    if (h->has_logits) {
        memcpy(s->logits, data, width * sizeof *s->logits);
        data += width * sizeof *s->logits;
        if (!m->kernels->all_finite(s->logits, width))
            return lt_fail(err, LATTICE_ERR_FORMAT, "%s: its logits are not finite", name);
    }
    LT_TRY(m->backend->states->load(m->program, data, (size_t)h->state_bytes, n, &s->state, err));
    s->n = n;
    s->n_prompt = (size_t)h->n_prompt;
    s->has_logits = h->has_logits != 0;
    return LATTICE_OK;
}

static lattice_status load(lattice_model *model, const unsigned char *data, size_t size, const char *name,
                           const lattice_session_options *options, lattice_session **session, lattice_error *err)
{
    header h;
    *session = NULL;
    LT_TRY(check_device(model, err));
    LT_TRY(check_bytes(data, size, name, &h, err));
    LT_TRY(check_purpose(model, &h, name, err));
    LT_TRY(lt_session_new(model, options, session, err));
    return lt_session_finish(session, read_session(*session, data, &h, name, err));
}

lattice_status lattice_session_load_bytes(lattice_model *model, const void *data, size_t size,
                                          const lattice_session_options *options, lattice_session **session, lattice_error *err)
{
    return load(model, data, size, "snapshot", options, session, err);
}

lattice_status lattice_session_load(lattice_model *model, const char *path, const lattice_session_options *options,
                                    lattice_session **session, lattice_error *err)
{
    lt_file file;
    *session = NULL;
    LT_TRY(lt_file_open(model->mem, path, true, &file, err));
    lattice_status status = load(model, file.data, file.size, path, options, session, err);
    lt_file_close(&file);
    return status;
}
