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

static lattice_status create(lattice_session *s, lattice_error *err)
{
    const lattice_model *m = s->model;
    const size_t width = m->config.vocab_size;
    s->logits = lt_alloc_array(s->mem, width, sizeof *s->logits);
    s->next = lt_alloc_array(s->mem, width, sizeof *s->next);
    s->candidates = lt_alloc_array(s->mem, width, sizeof *s->candidates);
    s->counts = lt_alloc_array(s->mem, width, sizeof *s->counts);
    if (!s->logits || !s->next || !s->candidates || !s->counts) return lt_no_memory(err, width * sizeof(float), "a session");
    return m->backend->states->create(m->program, &s->state, err);
}

lattice_status lattice_session_create(lattice_model *model, const lattice_session_options *options, lattice_session **session,
                                      lattice_error *err)
{
    *session = NULL;
    size_t most = options ? options->max_length : 0;
    if (!model->plan.tails[LT_TAIL_LOGITS].present)
        return lt_fail(err, LATTICE_ERR_UNSUPPORTED, "%s: this %s model has no language model's head", model->folder,
                       model->family->name);
    if (most > model->max_positions)
        return lt_fail(err, LATTICE_ERR_INVALID_ARGUMENT, "a session of %zu tokens is more than the %zu that %s admits", most,
                       model->max_positions, model->folder);
    lattice_session *s = lt_alloc_zero(model->mem, sizeof *s);
    if (!s) return lt_no_memory(err, sizeof *s, "a session");
    s->model = model;
    s->mem = model->mem;
    s->max_length = most ? most : model->max_positions;
    lattice_status status = create(s, err);
    if (status != LATTICE_OK) {
        lattice_session_free(s);
        return status;
    }
    *session = s;
    return LATTICE_OK;
}

void lattice_session_free(lattice_session *s)
{
    if (!s) return;
    s->model->backend->states->free(s->state);
    lt_free(s->mem, s->ids);
    lt_free(s->mem, s->logits);
    lt_free(s->mem, s->next);
    lt_free(s->mem, s->positions);
    lt_free(s->mem, s->candidates);
    lt_free(s->mem, s->counts);
    lt_free(s->mem, s);
}

void lattice_session_reset(lattice_session *s)
{
    (void)s->model->backend->states->truncate(s->state, 0, NULL); /* to nothing always succeeds */
    s->n = s->n_prompt = 0;
}

const uint32_t *lattice_session_ids(const lattice_session *s, size_t *n)
{
    *n = s->n;
    return s->ids;
}

const float *lattice_session_logits(const lattice_session *s)
{
    return s->n > 0 ? s->logits : NULL;
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

/* Runs n tokens behind the `past` of the state; the logits of the last one go to s->next. */
static lattice_status run_piece(lattice_session *s, const uint32_t *ids, size_t past, size_t n, lattice_error *err)
{
    const lattice_model *m = s->model;
    const size_t starts[2] = { 0, n }, last = n - 1;
    LT_TRY(m->backend->states->reserve(s->state, n, err));
    for (size_t i = 0; i < n; i++) s->positions[i] = (uint32_t)(past + i);
    lt_batch batch = {
        .n_tokens = n,
        .n_seqs = 1,
        .n_out = 1,
        .ids = ids,
        .positions = s->positions,
        .seq_starts = starts,
        .out_rows = &last,
        .past_lens = &past,
        .states = &s->state,
    };
    const lt_run_hooks hooks = { .cancel = &s->cancel };
    LT_TRY(m->backend->run(m->program, &batch, LT_TAIL_LOGITS, s->next, &hooks, err));
    if (!m->kernels->all_finite(s->next, m->config.vocab_size)) {
        m->backend->states->discard(s->state);
        return lt_fail(err, LATTICE_ERR_NOT_FINITE,
                       "%s: the logits of token %zu are not finite; checking the model names a weight at fault", m->folder,
                       past + n);
    }
    m->backend->states->commit(s->state);
    return LATTICE_OK;
}

static lattice_status run_pieces(lattice_session *s, const uint32_t *ids, size_t n, lt_state **before, lattice_error *err)
{
    const lattice_model *m = s->model;
    const size_t budget = m->batch_tokens;
    for (size_t done = 0, piece; done < n; done += piece) {
        size_t past = s->n + done;
        piece = n - done;
        if (piece > budget) {
            piece = budget;
            if ((past + piece) / 64 * 64 > past) piece = (past + piece) / 64 * 64 - past;
            if (!*before) LT_TRY(m->backend->states->fork(s->state, before, err));
        }
        LT_TRY(run_piece(s, ids + done, past, piece, err));
    }
    return LATTICE_OK;
}

static lattice_status check_ids(const lattice_session *s, const uint32_t *ids, size_t n, lattice_error *err)
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

lattice_status lt_session_append(lattice_session *s, const uint32_t *ids, size_t n, bool generated, lattice_error *err)
{
    LT_TRY(check_ids(s, ids, n, err));
    const size_t budget = s->model->batch_tokens;
    if (!LT_GROW(s->mem, s->ids, s->capacity, s->n + n) ||
        !LT_GROW(s->mem, s->positions, s->positions_capacity, n < budget ? n : budget))
        return lt_no_memory(err, n * sizeof *s->ids, "token ids");
    lt_state *before = NULL;
    lattice_status status = run_pieces(s, ids, n, &before, err);
    if (status != LATTICE_OK) {
        if (before) {
            s->model->backend->states->free(s->state);
            s->state = before;
        }
        if (status == LATTICE_ERR_CANCELLED) lt_session_take_cancel(s);
        return status;
    }
    s->model->backend->states->free(before);
    float *logits = s->next;
    s->next = s->logits;
    s->logits = logits;
    memcpy(s->ids + s->n, ids, n * sizeof *ids);
    s->n += n;
    if (!generated) s->n_prompt = s->n;
    return LATTICE_OK;
}

lattice_status lattice_session_prefill(lattice_session *s, const uint32_t *ids, size_t n, lattice_error *err)
{
    return lt_session_append(s, ids, n, false, err);
}

lattice_status lattice_session_step(lattice_session *s, uint32_t id, lattice_error *err)
{
    return lt_session_append(s, &id, 1, true, err);
}
