/* A session from the inside: session.c keeps it, sample.c chooses its next token, generate.c goes on with it. */
#ifndef LT_ENGINE_SESSION_H
#define LT_ENGINE_SESSION_H

#include "engine/model.h"

/* A token and its penalised logit. */
typedef struct lt_candidate {
    float logit;
    uint32_t id;
} lt_candidate;

struct lattice_session {
    lattice_model *model;
    const lattice_allocator *mem;
    size_t max_length;
    lt_state *state;
    uint32_t *ids; /* [n] */
    size_t n, capacity;
    size_t n_prompt; /* tokens up to the end of the last prefill: those behind it were generated */
    float *logits;   /* [vocab_size] of the token that follows, when n > 0 */
    float *next;     /* [vocab_size] for a run; the two change places when it has succeeded */
    uint32_t *positions;
    size_t positions_capacity;
    lt_candidate *candidates; /* [vocab_size] sampling's working memory */
    uint32_t *counts;         /* [vocab_size] */
    bool cancel;              /* read and written atomically */
};

/* Appends tokens; `generated`: they are not of a prompt. */
lattice_status lt_session_append(lattice_session *session, const uint32_t *ids, size_t n, bool generated, lattice_error *err);
/* Was it cancelled? The mark is taken away. */
bool lt_session_take_cancel(lattice_session *session);

#endif
