/* One run of several sessions: pieces of prompts and single tokens, packed into one batch.
 *
 * A run is a transaction: states, ids and logits of all its sessions change together, or none does. Its working memory belongs to
 * the model and is taken by one call at a time, so that an idle session keeps no more than its state and one row of logits. */
#include <string.h>

#include "engine/session.h"

/* ------------------------------------------------------------------ working memory */

lattice_status lt_stepper_take(lattice_model *m, lt_stepper **stepper, lattice_error *err)
{
    pthread_mutex_lock(&m->lock);
    lt_stepper *t = m->idle_steppers;
    if (t) m->idle_steppers = t->next;
    pthread_mutex_unlock(&m->lock);
    if (!t) t = lt_alloc_zero(m->mem, sizeof *t);
    *stepper = t;
    return t ? LATTICE_OK : lt_no_memory(err, sizeof *t, "a run of sessions");
}

void lt_stepper_give_back(lattice_model *m, lt_stepper *t)
{
    pthread_mutex_lock(&m->lock);
    t->next = m->idle_steppers;
    m->idle_steppers = t;
    pthread_mutex_unlock(&m->lock);
}

void lt_steppers_free(const lattice_allocator *mem, lt_stepper *first)
{
    while (first) {
        lt_stepper *t = first;
        first = t->next;
        lt_free(mem, t->ids);
        lt_free(mem, t->positions);
        lt_free(mem, t->starts);
        lt_free(mem, t->past_lens);
        lt_free(mem, t->out_rows);
        lt_free(mem, t->states);
        lt_free(mem, t->rows);
        lt_free(mem, t->finite);
        lt_free(mem, t->tops);
        lt_free(mem, t->candidates);
        lt_free(mem, t->counts);
        lt_free(mem, t);
    }
}

/* ------------------------------------------------------------------ pieces */

size_t lt_piece_length(size_t past, size_t rest, size_t budget)
{
    if (rest <= budget) return rest;
    size_t end = (past + budget) / LT_BLOCK_ROWS * LT_BLOCK_ROWS;
    return end > past ? end - past : budget;
}

lattice_status lt_session_check_ids(const lattice_session *s, const uint32_t *ids, size_t n, lattice_error *err)
{
    const size_t width = s->model->config.vocab_size;
    if (n == 0) return lt_fail(err, LATTICE_ERR_INVALID_ARGUMENT, "the prompt has no tokens");
    if (n > s->max_length - s->n)
        return lt_fail(err, LATTICE_ERR_TOO_LONG, "%zu tokens behind %zu are more than the %zu that the session holds", n, s->n,
                       s->max_length);
    for (size_t i = 0; i < n; i++) {
        if (ids[i] >= width)
            return lt_fail(err, LATTICE_ERR_INVALID_ARGUMENT, "token id %u is outside the model's vocabulary of %zu",
                           (unsigned)ids[i], width);
    }
    return LATTICE_OK;
}

/* Makes room for everything that the run writes. */
static lattice_status prepare(lt_stepper *t, const lattice_piece *pieces, size_t n, lattice_error *err)
{
    const lattice_model *m = pieces[0].session->model;
    const lattice_allocator *mem = m->mem;
    size_t n_tokens = 0, n_out = 0, floats;
    for (size_t i = 0; i < n; i++) {
        lattice_session *s = pieces[i].session;
        n_tokens += pieces[i].n;
        n_out += !pieces[i].no_logits;
        if (!LT_GROW(mem, s->ids, s->capacity, s->n + pieces[i].n))
            return lt_no_memory(err, pieces[i].n * sizeof *s->ids, "token ids");
        LT_TRY(m->backend->states->reserve(s->state, pieces[i].n, err));
    }
    if (!LT_GROW(mem, t->ids, t->ids_capacity, n_tokens) || !LT_GROW(mem, t->positions, t->positions_capacity, n_tokens) ||
        !LT_GROW(mem, t->starts, t->starts_capacity, n + 1) || !LT_GROW(mem, t->past_lens, t->past_lens_capacity, n) ||
        !LT_GROW(mem, t->out_rows, t->out_rows_capacity, n) || !LT_GROW(mem, t->states, t->states_capacity, n) ||
        !LT_GROW(mem, t->finite, t->finite_capacity, n) || !LT_GROW(mem, t->tops, t->tops_capacity, n))
        return lt_no_memory(err, n_tokens * sizeof *t->ids, "a batch");
    if (!lt_mul(n_out, m->config.vocab_size, &floats) || !LT_GROW(mem, t->rows, t->rows_capacity, floats))
        return lt_no_memory(err, m->config.vocab_size * sizeof *t->rows, "logits");
    return LATTICE_OK;
}

static lt_batch pack(lt_stepper *t, const lattice_piece *pieces, size_t n)
{
    size_t at = 0, n_out = 0;
    for (size_t i = 0; i < n; i++) {
        const lattice_piece *p = &pieces[i];
        t->starts[i] = at;
        t->past_lens[i] = p->session->n;
        t->states[i] = p->session->state;
        memcpy(t->ids + at, p->ids, p->n * sizeof *t->ids);
        for (size_t k = 0; k < p->n; k++) t->positions[at + k] = (uint32_t)(p->session->n + k);
        at += p->n;
        if (!p->no_logits) t->out_rows[n_out++] = at - 1;
    }
    t->starts[n] = at;
    return (lt_batch){
        .n_tokens = at,
        .n_seqs = n,
        .n_out = n_out,
        .ids = t->ids,
        .positions = t->positions,
        .seq_starts = t->starts,
        .out_rows = t->out_rows,
        .past_lens = t->past_lens,
        .states = t->states,
    };
}

/* The rows of logits that a run has made: checked, then kept, by all threads where there are many. */
typedef struct rows_job {
    const lattice_model *m;
    const lattice_piece *pieces;
    const float *rows; /* [pieces that have logits][width] */
    size_t n, width;
    bool *finite; /* [pieces]; NULL: the rows are copied to their sessions */
} rows_job;

static void for_rows(void *arg, int thread, int n_threads)
{
    const rows_job *job = arg;
    const float *row = job->rows;
    for (size_t i = 0, turn = 0; i < job->n; i++) {
        if (job->pieces[i].no_logits) continue;
        if (turn++ % (size_t)n_threads == (size_t)thread) {
            if (job->finite)
                job->finite[i] = job->m->kernels->all_finite(row, job->width);
            else
                memcpy(job->pieces[i].session->logits, row, job->width * sizeof *row);
        }
        row += job->width;
    }
}

static void run_rows(rows_job *job, size_t n_rows)
{
    enum { PARALLEL_FROM = 1 << 20 }; /* numbers */
    if (n_rows * job->width < PARALLEL_FROM)
        for_rows(job, 0, 1);
    else
        lt_pool_run(job->m->runtime->pool, for_rows, job);
}

static void keep(const lattice_piece *p)
{
    lattice_session *s = p->session;
    s->model->backend->states->commit(s->state);
    memcpy(s->ids + s->n, p->ids, p->n * sizeof *s->ids);
    s->n += p->n;
    if (!p->generated) s->n_prompt = s->n;
    s->has_logits = !p->no_logits;
    s->top.n = 0;
}

/* The rows become the sessions'. An only row changes places with its session's, which costs nothing. */
static void keep_rows(lt_stepper *t, rows_job *job, size_t n_rows)
{
    if (n_rows == 1 && t->rows_capacity == job->width) {
        size_t i = 0;
        while (job->pieces[i].no_logits) i++;
        float *row = t->rows;
        t->rows = job->pieces[i].session->logits;
        job->pieces[i].session->logits = row;
    } else {
        job->finite = NULL;
        run_rows(job, n_rows);
    }
}

/* Are the rows of all pieces finite, as they are here or as the backend says? */
static lattice_status check_rows(const lt_stepper *t, const lattice_piece *pieces, size_t n, bool kept, lattice_error *err)
{
    const lattice_model *m = pieces[0].session->model;
    for (size_t i = 0, row = 0; i < n; i++) {
        if (pieces[i].no_logits) continue;
        bool finite = kept ? t->tops[row].finite : t->finite[i];
        row++;
        if (finite) continue;
        for (size_t k = 0; k < n; k++) m->backend->states->discard(pieces[k].session->state);
        return lt_fail(err, LATTICE_ERR_NOT_FINITE,
                       "%s: the logits of token %zu are not finite; checking the model names a weight at fault", m->folder,
                       pieces[i].session->n + pieces[i].n);
    }
    return LATTICE_OK;
}

/* *kept: the backend keeps the rows, and has named the likeliest tokens of each. */
static lattice_status run(lt_stepper *t, const lattice_piece *pieces, size_t n, size_t n_top, const bool *cancel, bool *kept,
                          lattice_error *err)
{
    const lattice_model *m = pieces[0].session->model;
    LT_TRY(prepare(t, pieces, n, err));
    lt_batch batch = pack(t, pieces, n);
    const lt_run_hooks hooks = { .cancel = cancel };
    if (m->backend->fetch && n_top > 0) {
        batch.tops = t->tops;
        batch.n_top = n_top;
        for (size_t i = 0; i < batch.n_out; i++) t->tops[i].n = 0;
    }
    LT_TRY(m->backend->run(m->program, &batch, LT_TAIL_LOGITS, t->rows, &hooks, err));
    *kept = batch.tops && batch.n_out > 0 && t->tops[0].n > 0;
    rows_job job = { .m = m, .pieces = pieces, .rows = t->rows, .n = n, .width = m->config.vocab_size, .finite = t->finite };
    if (!*kept) run_rows(&job, batch.n_out);
    LT_TRY(check_rows(t, pieces, n, *kept, err));
    if (!*kept) keep_rows(t, &job, batch.n_out);
    for (size_t i = 0, row = 0; i < n; i++) {
        keep(&pieces[i]);
        if (*kept && !pieces[i].no_logits) pieces[i].session->top = t->tops[row++];
    }
    return LATTICE_OK;
}

lattice_status lt_sessions_run(const lattice_piece *pieces, size_t n, size_t n_top, const bool *cancel, lattice_error *err)
{
    lattice_model *m = pieces[0].session->model;
    lt_stepper *stepper;
    bool kept = false;
    LT_TRY(lt_stepper_take(m, &stepper, err));
    lattice_status status = lt_rows_begin(m, pieces, n, err);
    if (status == LATTICE_OK) {
        status = run(stepper, pieces, n, n_top, cancel, &kept, err);
        lt_rows_end(m, pieces, n, status == LATTICE_OK, kept);
    }
    lt_stepper_give_back(m, stepper);
    return status;
}

lattice_status lattice_sessions_append(const lattice_piece *pieces, size_t n, lattice_error *err)
{
    if (n == 0) return LATTICE_OK;
    const lattice_model *m = pieces[0].session->model;
    size_t n_tokens = 0;
    for (size_t i = 0; i < n; i++) {
        if (pieces[i].session->model != m)
            return lt_fail(err, LATTICE_ERR_INVALID_ARGUMENT, "session %zu is of another model than the first", i);
        LT_TRY(lt_session_check_ids(pieces[i].session, pieces[i].ids, pieces[i].n, err));
        if (!lt_add(n_tokens, pieces[i].n, &n_tokens)) n_tokens = SIZE_MAX;
    }
    if (n_tokens > m->batch_tokens || n > m->max_seqs)
        return lt_fail(err, LATTICE_ERR_INVALID_ARGUMENT,
                       "a run of %zu tokens of %zu sessions is more than the %zu of %zu admitted", n_tokens, n, m->batch_tokens,
                       m->max_seqs);
    bool *cancel = n == 1 ? &pieces[0].session->cancel : NULL;
    lattice_status status = lt_sessions_run(pieces, n, 1, cancel, err);
    if (status == LATTICE_ERR_CANCELLED) lt_session_take_cancel(pieces[0].session);
    return status;
}
