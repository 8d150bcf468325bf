/* What every backend checks of a batch, and of the states in it, before it runs it. */
#include "backend/plan.h"
#include "backend/state.h"

/* Everything that the kernels index with is checked here once, whoever packed the batch. */
static lattice_status check_ids(const lt_plan *plan, const lt_batch *batch, lattice_error *err)
{
    for (size_t i = 0; i < plan->n_body; i++) {
        const lt_op *op = &plan->ops[i];
        if (op->code != LT_OP_EMBED) continue;
        const lt_weight *weights = plan->weights;
        size_t words = weights[op->weight[0]].rows;
        size_t positions = op->weight[1] != LT_NONE ? weights[op->weight[1]].rows - op->position_offset : SIZE_MAX;
        size_t types = op->weight[2] != LT_NONE && batch->type_ids && !op->type_zero ? weights[op->weight[2]].rows : SIZE_MAX;
        for (size_t t = 0; t < batch->n_tokens; t++) {
            if (batch->ids[t] >= words) {
                return lt_fail(err, LATTICE_ERR_INVALID_ARGUMENT, "token id %u is outside the vocabulary of %zu",
                               (unsigned)batch->ids[t], words);
            }
            if (batch->positions[t] >= positions) {
                return lt_fail(err, LATTICE_ERR_TOO_LONG, "position %u is past the %zu that the model has",
                               (unsigned)batch->positions[t], positions);
            }
            if (types != SIZE_MAX && batch->type_ids[t] >= types) {
                return lt_fail(err, LATTICE_ERR_INVALID_ARGUMENT, "token type %u is outside the table of %zu",
                               (unsigned)batch->type_ids[t], types);
            }
        }
    }
    return LATTICE_OK;
}

static lattice_status check_rotary_positions(const lt_plan *plan, const lt_batch *batch, lattice_error *err)
{
    size_t most = SIZE_MAX;
    for (size_t i = 0; i < plan->n_body; i++) {
        if (plan->ops[i].code == LT_OP_QK_NORM_ROPE && plan->ops[i].max_positions < most) most = plan->ops[i].max_positions;
    }
    for (size_t t = 0; most != SIZE_MAX && t < batch->n_tokens; t++) {
        if (batch->positions[t] >= most) {
            return lt_fail(err, LATTICE_ERR_TOO_LONG, "position %u is past the %zu that the model has",
                           (unsigned)batch->positions[t], most);
        }
    }
    return LATTICE_OK;
}

lattice_status lt_batch_check(const lt_plan *plan, const lt_batch *batch, lt_tail_kind tail, size_t max_tokens, size_t max_seqs,
                              lattice_error *err)
{
    if (tail < 0 || tail >= LT_TAIL_COUNT || !plan->tails[tail].present) {
        return lt_fail(err, LATTICE_ERR_INVALID_ARGUMENT, "the model does not give results of kind %d", (int)tail);
    }
    if (batch->n_tokens == 0 || batch->n_seqs == 0) return lt_fail(err, LATTICE_ERR_INVALID_ARGUMENT, "the batch is empty");
    if (batch->n_tokens > max_tokens || batch->n_seqs > max_seqs || batch->n_out > max_tokens) {
        return lt_fail(err, LATTICE_ERR_INVALID_ARGUMENT,
                       "a batch of %zu tokens in %zu sequences is over the limit of %zu in %zu", batch->n_tokens, batch->n_seqs,
                       max_tokens, max_seqs);
    }
    if (batch->pooling >= 2 * LATTICE_POOLING_LASTTOKEN) return lt_fail(err, LATTICE_ERR_INVALID_ARGUMENT, "unknown pooling");
    bool tiled = batch->seq_starts[0] == 0 && batch->seq_starts[batch->n_seqs] == batch->n_tokens;
    for (size_t s = 0; tiled && s < batch->n_seqs; s++) tiled = batch->seq_starts[s] < batch->seq_starts[s + 1];
    if (!tiled) return lt_fail(err, LATTICE_ERR_INVALID_ARGUMENT, "the sequences do not tile the batch, or one is empty");
    for (size_t i = 0; i < batch->n_out; i++) {
        if (batch->out_rows[i] >= batch->n_tokens)
            return lt_fail(err, LATTICE_ERR_INVALID_ARGUMENT, "an output row is outside the batch");
    }
    if (!batch->states != !batch->past_lens) return lt_fail(err, LATTICE_ERR_INVALID_ARGUMENT, "states without their lengths");
    LT_TRY(check_rotary_positions(plan, batch, err));
    return check_ids(plan, batch, err);
}

/* ------------------------------------------------------------------ states */

static lt_state_head *head_of(const lt_state *state)
{
    return (lt_state_head *)(void *)state; /* its first member, in every backend */
}

size_t lt_state_length(const lt_state *state)
{
    return head_of(state)->length;
}

void lt_state_discard(lt_state *state)
{
    head_of(state)->pending = 0;
}

lattice_status lt_state_check_cut(const lt_state_head *state, size_t rows, bool is_recurrent, lattice_error *err)
{
    if (rows > state->length)
        return lt_fail(err, LATTICE_ERR_INVALID_ARGUMENT, "a state of %zu rows cannot be cut to %zu", state->length, rows);
    if (is_recurrent && rows > 0 && rows < state->length)
        return lt_fail(err, LATTICE_ERR_UNSUPPORTED, "the state of a recurrent layer cannot be cut from %zu rows to %zu",
                       state->length, rows);
    return LATTICE_OK;
}

static lattice_status enter_state(const lt_batch *batch, size_t s, const struct lt_program *program,
                                  bool (*has_room)(const lt_state *state, size_t n), lattice_error *err)
{
    lt_state *state = batch->states[s];
    const size_t past = batch->past_lens[s], begin = batch->seq_starts[s], n = batch->seq_starts[s + 1] - begin;
    if (!state || head_of(state)->program != program)
        return lt_fail(err, LATTICE_ERR_INVALID_ARGUMENT, "sequence %zu has no state, or one of another model", s);
    lt_state_head *head = head_of(state);
    if (head->running) return lt_fail(err, LATTICE_ERR_INVALID_ARGUMENT, "sequence %zu has the state of another one", s);
    if (head->pending)
        return lt_fail(err, LATTICE_ERR_INVALID_ARGUMENT, "sequence %zu: the last run was neither committed nor discarded", s);
    if (head->length != past)
        return lt_fail(err, LATTICE_ERR_INVALID_ARGUMENT, "sequence %zu has %zu rows behind it, not %zu", s, head->length, past);
    if (!has_room(state, n))
        return lt_fail(err, LATTICE_ERR_INVALID_ARGUMENT, "sequence %zu: no room was reserved for %zu rows", s, n);
    for (size_t i = 0; i < n; i++) {
        if (batch->positions[begin + i] != past + i)
            return lt_fail(err, LATTICE_ERR_INVALID_ARGUMENT, "sequence %zu: its positions do not follow its state", s);
    }
    head->running = true;
    return LATTICE_OK;
}

lattice_status lt_states_enter(const lt_batch *batch, const struct lt_program *program,
                               bool (*has_room)(const lt_state *state, size_t n), lattice_error *err)
{
    for (size_t s = 0; batch->states && s < batch->n_seqs; s++) {
        lattice_status status = enter_state(batch, s, program, has_room, err);
        if (status == LATTICE_OK) continue;
        while (s > 0) head_of(batch->states[--s])->running = false;
        return status;
    }
    return LATTICE_OK;
}

void lt_states_leave(const lt_batch *batch, bool succeeded)
{
    for (size_t s = 0; batch->states && s < batch->n_seqs; s++) {
        lt_state_head *head = head_of(batch->states[s]);
        head->running = false;
        head->pending = succeeded ? batch->seq_starts[s + 1] - batch->seq_starts[s] : 0;
    }
}
