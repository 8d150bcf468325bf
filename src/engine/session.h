/* A session from the inside: session.c keeps it, steps.c appends to several at once, sample.c chooses the next token, generate.c
 * goes on with it. */
#ifndef LT_ENGINE_SESSION_H
#define LT_ENGINE_SESSION_H

#include "engine/model.h"

struct lattice_session {
    lattice_model *model;
    const lattice_allocator *mem;
    size_t max_length;
    lt_state *state;
    uint32_t *ids; /* [n] */
    size_t n, capacity;
    size_t n_prompt; /* tokens up to the end of the last prompt: those behind it were generated */
    float *logits;   /* [vocab_size] of the token that follows, if has_logits */
    bool has_logits;
    lt_top top;  /* the likeliest of them; n 0: they are not known, and `logits` is there. Else rows.c may have to bring it */
    bool cancel; /* read and written atomically */
};

/* Working memory of one call that runs or samples, kept by the model between calls. */
struct lt_stepper {
    lt_stepper *next;
    uint32_t *ids, *positions; /* of the run's tokens */
    size_t ids_capacity, positions_capacity;
    size_t *starts, *past_lens, *out_rows; /* of its sequences */
    size_t starts_capacity, past_lens_capacity, out_rows_capacity;
    lt_state **states;
    size_t states_capacity;
    float *rows; /* [n_out][vocab_size] */
    size_t rows_capacity;
    bool *finite; /* [sequences] */
    size_t finite_capacity;
    lt_top *tops; /* [n_out] */
    size_t tops_capacity;
    lt_candidate *candidates; /* [vocab_size] */
    uint32_t *counts;         /* [vocab_size] */
    size_t candidates_capacity, counts_capacity;
};

/* Takes an idle stepper of the model, or makes one; every one that is taken is given back. */
lattice_status lt_stepper_take(lattice_model *model, lt_stepper **stepper, lattice_error *err);
void lt_stepper_give_back(lattice_model *model, lt_stepper *stepper);

/* A session whose state is still to come, NULL; and what to do with it and `status` in the end: it is freed unless all went well.
 */
lattice_status lt_session_new(lattice_model *model, const lattice_session_options *options, lattice_session **session,
                              lattice_error *err);
lattice_status lt_session_finish(lattice_session **session, lattice_status status);
/* Gives a snapshot the checksum that its bytes should have. For tests. */
void lt_snapshot_seal(unsigned char *data, size_t size);
/* Are n tokens more admissible? */
lattice_status lt_session_check_ids(const lattice_session *session, const uint32_t *ids, size_t n, lattice_error *err);
/* lattice_sessions_append with everything checked. `cancel` may be NULL. n_top: so many of the likeliest tokens are probably
 * enough of the logits; 0: they are wanted whole. */
lattice_status lt_sessions_run(const lattice_piece *pieces, size_t n, size_t n_top, const bool *cancel, lattice_error *err);
/* rows.c: logits that the backend keeps to itself, until they are asked for or others take their place. */
/* Brings the session's, if they are there. The session itself is not changed, but for what its `logits` point to. */
lattice_status lt_rows_fetch(const lattice_session *session, lattice_error *err);
/* The session needs them no more. */
void lt_rows_forget(const lattice_session *session);
/* Around a run of these pieces, which is to succeed or leave all as it is; both hold the model's lock of rows in between. begin
 * brings what the run does not make anew; after a failure it has not locked. end: whether the run succeeded, and whether the
 * backend keeps its rows. */
lattice_status lt_rows_begin(lattice_model *model, const lattice_piece *pieces, size_t n, lattice_error *err);
void lt_rows_end(lattice_model *model, const lattice_piece *pieces, size_t n, bool succeeded, bool keeps);
/* Are they in range? */
lattice_status lt_sampling_check(const lattice_sampling *sampling, lattice_error *err);
/* So many of the likeliest tokens decide the choice; 0: all logits do, or too many. */
size_t lt_sampling_top(const lattice_sampling *sampling);
/* Was it cancelled? The mark is taken away. */
bool lt_session_take_cancel(lattice_session *session);
/* Tokens of a piece behind `past`, of the `rest` of a prompt and within a budget of at least one: it ends where positions are
 * multiples of 64 or with the prompt, wherever the budget allows that. */
size_t lt_piece_length(size_t past, size_t rest, size_t budget);

#endif
