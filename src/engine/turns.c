/* Continuous batching; see turns.h. */
#include "engine/turns.h"

#include "backend/state.h"
#include "base/clock.h"
#include "engine/session.h"

/* Part of a step's time that prompts and texts may each take beside it when both wait. */
static const double share = 0.45;
/* Until a step has been timed. */
static const double first_step_seconds = 0.005;

void lt_turns_init(lt_turns *turns, const lattice_allocator *mem)
{
    *turns = (lt_turns){ .mem = mem, .last = &turns->waiting };
}

/* ------------------------------------------------------------------ those that wait */

void lt_turns_add(lt_turns *turns, lt_turn *turn)
{
    turn->next = NULL;
    turn->cost = lattice_generator_pending(turn->generator);
    *turns->last = turn;
    turns->last = &turn->next;
    turns->n_waiting++;
    turns->waiting_tokens += turn->cost;
}

static void unlink_turn(lt_turns *turns, lt_turn **link)
{
    lt_turn *turn = *link;
    *link = turn->next;
    if (!*link) turns->last = link;
    turns->n_waiting--;
    turns->waiting_tokens -= turn->cost;
}

bool lt_turns_remove(lt_turns *turns, lt_turn *turn)
{
    for (lt_turn **link = &turns->waiting; *link; link = &(*link)->next) {
        if (*link != turn) continue;
        unlink_turn(turns, link);
        return true;
    }
    return false;
}

void lt_turns_admit(lt_turns *turns)
{
    while (turns->waiting && turns->n_active < LT_MAX_TURNS) {
        lt_turn *turn = turns->waiting;
        unlink_turn(turns, &turns->waiting);
        turn->started = lt_clock_seconds();
        turns->active[turns->n_active++] = turn;
    }
}

/* ------------------------------------------------------------------ a step */

static const lattice_model *model_of(const lt_turn *turn)
{
    return turn->session->model;
}

static void blend(double *average, double value)
{
    *average = *average > 0 ? 0.8 * *average + 0.2 * value : value;
}

double lt_turns_allowance(const lt_turns *turns)
{
    bool prompts = false;
    size_t n_generating = 0;
    for (size_t i = 0; i < turns->n_active; i++) {
        size_t pending = lattice_generator_pending(turns->active[i]->generator);
        prompts = prompts || pending > 0;
        n_generating += pending == 0;
    }
    if (n_generating == 0) return 0;
    double step = turns->step_seconds > 0 ? turns->step_seconds : first_step_seconds;
    return step * (prompts ? share : 2 * share);
}

/* Tokens of prompts beside n_generating single tokens. */
static size_t prompt_budget(const lt_turns *turns, const lattice_model *model, size_t n_generating)
{
    if (n_generating == 0) return model->batch_tokens;
    double step = turns->step_seconds > 0 ? turns->step_seconds : first_step_seconds;
    double tokens = turns->prompt_seconds > 0 ? step * share / turns->prompt_seconds : 0;
    size_t budget = LT_BLOCK_ROWS; /* less could not be cut where the bits stay the same */
    if (tokens > 2 * LT_BLOCK_ROWS) budget = (size_t)tokens / LT_BLOCK_ROWS * LT_BLOCK_ROWS;
    return budget < model->batch_tokens ? budget : model->batch_tokens;
}

static void fail(lt_turn *turn, lattice_status status, const lattice_error *err)
{
    if (turn->status != LATTICE_OK) return;
    turn->status = status;
    turn->err = *err;
}

/* One run of turns that stand together in `active`. */
static void step_group(lt_turns *turns, lt_turn **group, size_t n)
{
    const lattice_model *model = model_of(group[0]);
    size_t n_generating = 0, pending = 0, left = 0;
    for (size_t i = 0; i < n; i++) {
        size_t more = lattice_generator_pending(group[i]->generator);
        pending += more;
        n_generating += more == 0;
        turns->group[i] = group[i]->generator;
    }
    size_t budget = n_generating + (pending > 0 ? prompt_budget(turns, model, n_generating) : 0);
    if (budget > model->batch_tokens) budget = model->batch_tokens;
    lattice_error err = { 0 };
    double start = lt_clock_seconds();
    lattice_status status = lattice_generators_advance(turns->group, n, budget, &err);
    if (status != LATTICE_OK && n > 1) { /* whose fault it is shows when each goes alone */
        for (size_t i = 0; i < n; i++) {
            lattice_status alone = lattice_generators_advance(&turns->group[i], 1, 0, &err);
            if (alone != LATTICE_OK) fail(group[i], alone, &err);
        }
    } else if (status != LATTICE_OK) {
        fail(group[0], status, &err);
    }
    double seconds = lt_clock_seconds() - start;
    for (size_t i = 0; i < n; i++) {
        group[i]->seconds += seconds;
        left += lattice_generator_pending(group[i]->generator);
    }
    turns->n_steps++;
    turns->n_prompt_tokens += pending - left;
    turns->n_new_tokens += n_generating;
    if (status != LATTICE_OK) return;
    if (pending == 0)
        blend(&turns->step_seconds, seconds);
    else if (n_generating == 0 && pending - left >= LT_BLOCK_ROWS)
        blend(&turns->prompt_seconds, seconds / (double)(pending - left));
}

static bool has_ended(lt_turn *turn, double now)
{
    if (turn->status != LATTICE_OK) return true;
    if (!turn->was_appended && lattice_generator_pending(turn->generator) == 0) {
        turn->was_appended = true;
        lattice_error err = { 0 };
        lattice_status status = turn->appended ? turn->appended(turn, &err) : LATTICE_OK;
        if (status != LATTICE_OK) fail(turn, status, &err);
        if (status != LATTICE_OK) return true;
    }
    if (turn->deadline > 0 && now > turn->deadline) lattice_session_cancel(turn->session);
    return lattice_generator_done(turn->generator);
}

size_t lt_turns_step(lt_turns *turns)
{
    /* Turns of one model stand together: moved there as they are met. */
    size_t n = turns->n_active;
    for (size_t begin = 0, end; begin < n; begin = end) {
        end = begin + 1;
        for (size_t i = end; i < n; i++) {
            if (model_of(turns->active[i]) != model_of(turns->active[begin])) continue;
            lt_turn *turn = turns->active[i];
            turns->active[i] = turns->active[end];
            turns->active[end++] = turn;
        }
        step_group(turns, turns->active + begin, end - begin);
    }
    double now = lt_clock_seconds();
    size_t n_ended = 0;
    for (size_t i = 0; i + n_ended < n;) {
        lt_turn *turn = turns->active[i];
        if (!has_ended(turn, now)) {
            i++;
            continue;
        }
        n_ended++;
        for (size_t k = i; k + 1 < n; k++) turns->active[k] = turns->active[k + 1];
        turns->active[n - 1] = turn;
    }
    turns->n_active = n - n_ended;
    return n_ended;
}
