/* Rows of logits that stay with the backend: a device finds the likeliest tokens itself, and a row is a megabyte to bring.
 *
 * The model's list says whose the rows of the last run are. Before the next one, those of sessions that have no part in it are
 * brought; those of its own are given up only when it has succeeded. */
#include "engine/session.h"

/* Row number i; with the lock. */
static lattice_status bring(lattice_model *m, size_t i, lattice_error *err)
{
    LT_TRY(m->backend->fetch(m->program, i, m->row_owners[i]->logits, err));
    m->row_owners[i] = NULL;
    return LATTICE_OK;
}

lattice_status lt_rows_fetch(const lattice_session *s, lattice_error *err)
{
    lattice_model *m = s->model;
    if (!m->backend->fetch) return LATTICE_OK;
    lattice_status status = LATTICE_OK;
    pthread_mutex_lock(&m->rows_lock);
    for (size_t i = 0; i < m->n_row_owners && status == LATTICE_OK; i++)
        if (m->row_owners[i] == s) status = bring(m, i, err);
    pthread_mutex_unlock(&m->rows_lock);
    return status;
}

void lt_rows_forget(const lattice_session *s)
{
    lattice_model *m = s->model;
    if (!m->backend->fetch) return;
    pthread_mutex_lock(&m->rows_lock);
    for (size_t i = 0; i < m->n_row_owners; i++)
        if (m->row_owners[i] == s) m->row_owners[i] = NULL;
    pthread_mutex_unlock(&m->rows_lock);
}

static bool makes_anew(const lattice_piece *pieces, size_t n, const lattice_session *s)
{
    for (size_t i = 0; i < n; i++)
        if (pieces[i].session == s) return !pieces[i].no_logits;
    return false;
}

lattice_status lt_rows_begin(lattice_model *m, const lattice_piece *pieces, size_t n, lattice_error *err)
{
    if (!m->backend->fetch) return LATTICE_OK;
    pthread_mutex_lock(&m->rows_lock);
    lattice_status status = LATTICE_OK;
    if (!LT_GROW(m->mem, m->row_owners, m->row_owners_capacity, n)) status = lt_no_memory(err, n * sizeof(void *), "a run");
    for (size_t i = 0; i < m->n_row_owners && status == LATTICE_OK; i++) {
        /* Steps of the same sessions are in the same order mostly. */
        const lattice_session *s = m->row_owners[i];
        bool again = i < n && pieces[i].session == s && !pieces[i].no_logits;
        if (s && !again && !makes_anew(pieces, n, s)) status = bring(m, i, err);
    }
    if (status != LATTICE_OK) pthread_mutex_unlock(&m->rows_lock);
    return status;
}

void lt_rows_end(lattice_model *m, const lattice_piece *pieces, size_t n, bool succeeded, bool keeps)
{
    if (!m->backend->fetch) return;
    if (succeeded) {
        m->n_row_owners = 0;
        for (size_t i = 0; i < n && keeps; i++)
            if (!pieces[i].no_logits) m->row_owners[m->n_row_owners++] = pieces[i].session;
    }
    pthread_mutex_unlock(&m->rows_lock);
}
