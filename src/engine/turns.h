/* Continuous batching of generations: conversations join a running batch and leave it, prompts are appended in pieces beside the
 * single tokens of others.
 *
 * A turn is one generation of one session. Every step takes all active turns of a model forward in one run. While some of them
 * generate, what else there is - prompts, texts to embed - comes in portions that take about as long as their own step, so that
 * nobody's stream pauses for longer than twice that. */
#ifndef LT_ENGINE_TURNS_H
#define LT_ENGINE_TURNS_H

#include "engine/model.h"
#include "engine/posts.h"

enum { LT_MAX_TURNS = 64 }; /* active at once; the others wait */

typedef struct lt_turn lt_turn;

struct lt_turn {
    /* Filled by the caller. Session and generator stay his, and are only his again in done(). */
    lattice_session *session;
    lattice_generator *generator;
    double deadline; /* lt_clock_seconds; 0: none */
    /* Begun and cancelled together with this one, and so on; NULL: none. All of a chain live until the last is done. */
    lt_turn *also;
    /* Called once between two runs, when the generator's prompt is appended whole; it may put another generator in its place.
     * NULL: none. */
    lattice_status (*appended)(lt_turn *turn, lattice_error *err);
    void (*done)(lt_turn *turn); /* as a post; may free the turn */

    /* For done(). */
    lattice_status status;
    lattice_error err;
    double submitted, started; /* started 0: never */
    double seconds;            /* of the runs that it had part in */

    /* Private. */
    lt_post post;
    lt_turn *next;
    size_t cost; /* tokens of the prompt, while it waits */
    bool is_submitted, is_cancelled, was_appended;
};

typedef struct lt_turns {
    const lattice_allocator *mem;
    lt_turn *waiting, **last;
    size_t n_waiting, waiting_tokens;
    lt_turn *active[LT_MAX_TURNS]; /* the scheduler's thread alone */
    size_t n_active;
    lattice_generator *group[LT_MAX_TURNS];
    double step_seconds;   /* of a run of single tokens, lately; 0: not known */
    double prompt_seconds; /* of a token in a prompt, lately */
    uint64_t n_prompt_tokens, n_new_tokens, n_steps;
} lt_turns;

void lt_turns_init(lt_turns *turns, const lattice_allocator *mem);

/* With the scheduler's lock: appends to those that wait; takes one out of them (false: it is not there); makes those active for
 * which there is room. */
void lt_turns_add(lt_turns *turns, lt_turn *turn);
bool lt_turns_remove(lt_turns *turns, lt_turn *turn);
void lt_turns_admit(lt_turns *turns);

/* Without it: one step of every active turn. Turns that have ended are moved to the end of `active` and their number returned:
 * active[n_active … n_active + returned). */
size_t lt_turns_step(lt_turns *turns);

/* Seconds that other work may take until the next step; 0: as many as it likes. */
double lt_turns_allowance(const lt_turns *turns);

#endif
