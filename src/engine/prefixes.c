/* Kept beginnings of conversations; see prefixes.h. There are a few hundred at most, so a search compares the ids of all. */
#include "engine/prefixes.h"

#include <string.h>

#include "engine/session.h"

typedef struct prefix {
    lattice_session *session;
    size_t bytes;
    uint64_t used; /* when: larger is later */
} prefix;

struct lt_prefixes {
    const lattice_allocator *mem;
    pthread_mutex_t lock;
    size_t max_bytes;
    prefix *list;
    size_t n, capacity;
    uint64_t clock;
    lt_prefixes_stats stats;
};

lattice_status lt_prefixes_create(const lattice_allocator *mem, size_t max_bytes, lt_prefixes **out, lattice_error *err)
{
    *out = NULL;
    lt_prefixes *p = lt_alloc_zero(mem, sizeof *p);
    if (!p) return lt_no_memory(err, sizeof *p, "kept prefixes");
    int error = pthread_mutex_init(&p->lock, NULL);
    if (error) {
        lt_free(mem, p);
        return lt_fail(err, LATTICE_ERR_IO, "cannot create a lock (error %d)", error);
    }
    p->mem = mem;
    p->max_bytes = max_bytes;
    *out = p;
    return LATTICE_OK;
}

static void drop(lt_prefixes *p, size_t i)
{
    lattice_session_free(p->list[i].session);
    p->stats.bytes -= p->list[i].bytes;
    p->list[i] = p->list[--p->n];
}

void lt_prefixes_free(lt_prefixes *p)
{
    if (!p) return;
    while (p->n > 0) drop(p, p->n - 1);
    lt_free(p->mem, p->list);
    pthread_mutex_destroy(&p->lock);
    lt_free(p->mem, p);
}

static bool begins_with(const uint32_t *ids, size_t n, const lattice_session *session)
{
    return session->n < n && memcmp(ids, session->ids, session->n * sizeof *ids) == 0;
}

lattice_status lt_prefixes_find(lt_prefixes *p, lattice_model *model, const uint32_t *ids, size_t n, lattice_session **session,
                                size_t *n_found, lattice_error *err)
{
    lattice_status status = LATTICE_OK;
    prefix *best = NULL;
    *session = NULL;
    *n_found = 0;
    pthread_mutex_lock(&p->lock);
    for (size_t i = 0; i < p->n; i++) {
        prefix *candidate = &p->list[i];
        if (candidate->session->model != model || !begins_with(ids, n, candidate->session)) continue;
        if (!best || candidate->session->n > best->session->n) best = candidate;
    }
    if (best) {
        status = lattice_session_fork(best->session, session, err);
        *n_found = status == LATTICE_OK ? best->session->n : 0;
        best->used = ++p->clock;
        p->stats.hits++;
        p->stats.tokens += *n_found;
    } else {
        p->stats.misses++;
    }
    pthread_mutex_unlock(&p->lock);
    return best ? status : lattice_session_create(model, NULL, session, err);
}

static bool is_kept(const lt_prefixes *p, const lattice_session *session)
{
    for (size_t i = 0; i < p->n; i++) {
        const lattice_session *kept = p->list[i].session;
        if (kept->model == session->model && kept->n == session->n &&
            memcmp(kept->ids, session->ids, kept->n * sizeof *kept->ids) == 0)
            return true;
    }
    return false;
}

void lt_prefixes_keep(lt_prefixes *p, const lattice_session *session)
{
    size_t bytes = session->model->backend->states->bytes(session->model->program, session->n), logits;
    if (session->n == 0 || !lt_mul(session->model->config.vocab_size, sizeof(float), &logits) || !lt_add(bytes, logits, &bytes) ||
        bytes > p->max_bytes)
        return;
    lattice_session *copy = NULL;
    pthread_mutex_lock(&p->lock);
    if (!is_kept(p, session) && LT_GROW(p->mem, p->list, p->capacity, p->n + 1) &&
        lattice_session_fork(session, &copy, NULL) == LATTICE_OK) {
        while (p->n > 0 && p->stats.bytes + bytes > p->max_bytes) {
            size_t oldest = 0;
            for (size_t i = 1; i < p->n; i++)
                if (p->list[i].used < p->list[oldest].used) oldest = i;
            drop(p, oldest);
        }
        p->list[p->n++] = (prefix){ copy, bytes, ++p->clock };
        p->stats.bytes += bytes;
    }
    pthread_mutex_unlock(&p->lock);
}

void lt_prefixes_get_stats(lt_prefixes *p, lt_prefixes_stats *stats)
{
    pthread_mutex_lock(&p->lock);
    *stats = p->stats;
    stats->n = p->n;
    pthread_mutex_unlock(&p->lock);
}
