/* Sessions: the tokens of one sequence, their state, and the logits behind them.
 *
 * A prompt runs in pieces of the model's token budget, cut where positions are multiples of 64, so that its logits do not depend
 * on the budget. Each piece is a transaction of its own; before a second one begins, the state is forked, which copies nothing,
 * so that a failure can go back to where the call began even where a state cannot be rewound. */
#include <string.h>

#include "engine/session.h"

lattice_session_options lattice_session_options_default(void)
{
    return (lattice_session_options){ 0 };
}

lattice_status lt_session_new(lattice_model *model, const lattice_session_options *options, lattice_session **session,
                              lattice_error *err)
{
    const size_t width = model->config.vocab_size, most = options ? options->max_length : 0;
    *session = NULL;
    if (!model->plan.tails[LT_TAIL_LOGITS].present)
        return lt_fail(err, LATTICE_ERR_UNSUPPORTED, "%s: this %s model has no language model's head", model->folder,
                       model->family->name);
    if (most > model->max_positions)
        return lt_fail(err, LATTICE_ERR_INVALID_ARGUMENT, "a session of %zu tokens is more than the %zu that %s admits", most,
                       model->max_positions, model->folder);
    lattice_session *s = lt_alloc_zero(model->mem, sizeof *s);
    if (!s) return lt_no_memory(err, sizeof *s, "a session");
    *s = (lattice_session){ .model = model, .mem = model->mem, .max_length = most ? most : model->max_positions };
    s->logits = lt_alloc_array(s->mem, width, sizeof *s->logits);
    *session = s;
    return lt_session_finish(session, s->logits ? LATTICE_OK : lt_no_memory(err, width * sizeof *s->logits, "a session"));
}

lattice_status lt_session_finish(lattice_session **session, lattice_status status)
{
    if (status == LATTICE_OK) return status;
    lattice_session_free(*session);
    *session = NULL;
    return status;
}

lattice_status lattice_session_create(lattice_model *model, const lattice_session_options *options, lattice_session **session,
                                      lattice_error *err)
{
    LT_TRY(lt_session_new(model, options, session, err));
    return lt_session_finish(session, model->backend->states->create(model->program, &(*session)->state, err));
}

lattice_status lattice_session_fork(const lattice_session *s, lattice_session **copy, lattice_error *err)
{
    const lattice_session_options options = { .max_length = s->max_length };
    *copy = NULL;
    if (s->has_logits) LT_TRY(lt_rows_fetch(s, err));
    LT_TRY(lt_session_new(s->model, &options, copy, err));
    lattice_session *c = *copy;
    if (s->n > 0 && !LT_GROW(c->mem, c->ids, c->capacity, s->n))
        return lt_session_finish(copy, lt_no_memory(err, s->n * sizeof *c->ids, "token ids"));
    lattice_status status = s->model->backend->states->fork(s->state, &c->state, err);
    if (status != LATTICE_OK) return lt_session_finish(copy, status);
    if (s->n > 0) memcpy(c->ids, s->ids, s->n * sizeof *c->ids);
    if (s->has_logits) memcpy(c->logits, s->logits, s->model->config.vocab_size * sizeof *c->logits);
    c->n = s->n;
    c->n_prompt = s->n_prompt;
    c->has_logits = s->has_logits;
    c->top = s->top;
    return LATTICE_OK;
}

void lattice_session_free(lattice_session *s)
{
    if (!s) return;
    lt_rows_forget(s);
    s->model->backend->states->free(s->state);
    lt_free(s->mem, s->ids);
    lt_free(s->mem, s->logits);
    lt_free(s->mem, s);
}

void lattice_session_reset(lattice_session *s)
{
    (void)s->model->backend->states->truncate(s->state, 0, NULL); /* to nothing always succeeds */
    s->n = s->n_prompt = 0;
    s->has_logits = false;
}

const uint32_t *lattice_session_ids(const lattice_session *s, size_t *n)
{
    *n = s->n;
    return s->ids;
}

const float *lattice_session_logits(const lattice_session *s)
{
    return s->has_logits && lt_rows_fetch(s, NULL) == LATTICE_OK ? s->logits : NULL;
}

void lattice_session_cancel(lattice_session *s)
{
    __atomic_store_n(&s->cancel, true, __ATOMIC_RELAXED);
}

bool lt_session_take_cancel(lattice_session *s)
{
    return __atomic_exchange_n(&s->cancel, false, __ATOMIC_RELAXED);
}

/* ------------------------------------------------------------------ tokens */

static lattice_status run_pieces(lattice_session *s, const uint32_t *ids, size_t n, lt_state **before, lattice_error *err)
{
    const lattice_model *m = s->model;
    for (size_t done = 0, length; done < n; done += length) {
        length = lt_piece_length(s->n, n - done, m->batch_tokens);
        const bool last = done + length == n;
        if (!last && !*before) LT_TRY(m->backend->states->fork(s->state, before, err));
        const lattice_piece piece = { .session = s, .ids = ids + done, .n = length, .no_logits = !last };
        LT_TRY(lt_sessions_run(&piece, 1, 1, &s->cancel, err));
    }
    return LATTICE_OK;
}

lattice_status lattice_session_prefill(lattice_session *s, const uint32_t *ids, size_t n, lattice_error *err)
{
    LT_TRY(lt_session_check_ids(s, ids, n, err));
    const size_t length = s->n, n_prompt = s->n_prompt;
    const bool has_logits = s->has_logits;
    lt_state *before = NULL;
    lattice_status status = run_pieces(s, ids, n, &before, err);
    if (status == LATTICE_OK || !before) {
        s->model->backend->states->free(before);
    } else { /* only the last piece writes logits: they are still those of before */
        s->model->backend->states->free(s->state);
        s->state = before;
        s->n = length;
        s->n_prompt = n_prompt;
        s->has_logits = has_logits;
    }
    if (status == LATTICE_ERR_CANCELLED) lt_session_take_cancel(s);
    return status;
}

lattice_status lattice_session_step(lattice_session *s, uint32_t id, lattice_error *err)
{
    const lattice_piece piece = { .session = s, .ids = &id, .n = 1, .generated = true };
    return lattice_sessions_append(&piece, 1, err);
}
