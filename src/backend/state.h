/* What a sequence leaves behind for its next tokens: the keys and values of its rows, layer by layer, and what recurrent layers
 * remember: the last inputs of a convolution, the matrix of a delta rule.
 *
 * Rows lie in blocks of 64 positions. A block holds the K and V rows of all layers and is counted: sequences with the same
 * beginning share its blocks by fork. What recurrent layers remember is one more such piece of memory; a run writes its
 * successor. It cannot be rewound. All of it comes from the runtime's allocator.
 *
 * States are transactional. A run reads the rows of the state and writes those of its own tokens behind them; they become the
 * state's when it is committed. A run that failed or was cancelled leaves the state as it was: it may be run again, elsewhere
 * too.
 *
 *     LT_TRY(states->reserve(state, n, err));     memory for n rows more: the run itself allocates nothing
 *     batch.states[s] = state, batch.past_lens[s] = states->length(state);
 *     LT_TRY(backend->run(…));
 *     states->commit(state);                      or discard: the rows of the run are forgotten
 *
 * Prefill in pieces that are cut at multiples of 64 rows, and a state forked there, give bit for bit what one run gives. */
#ifndef LT_BACKEND_STATE_H
#define LT_BACKEND_STATE_H

#include "base/status.h"

#define LT_BLOCK_ROWS 64

typedef struct lt_state lt_state;
struct lt_program;

/* What the states of every backend that runs them begin with. */
typedef struct lt_state_head {
    struct lt_program *program;
    size_t length;  /* rows committed */
    size_t pending; /* rows of the last run, behind them */
    bool running;   /* a run has it: found when a batch names it twice */
} lt_state_head;

/* Takes the next bytes of a snapshot. */
typedef lattice_status lt_state_sink(void *user, const void *data, size_t size, lattice_error *err);

/* A state is used by one thread at a time and freed before its program. */
typedef struct lt_state_ops {
    /* An empty state. LATTICE_ERR_UNSUPPORTED when the plan's attention is not causal: rows would depend on later ones. */
    lattice_status (*create)(struct lt_program *program, lt_state **state, lattice_error *err);
    void (*free)(lt_state *state); /* accepts NULL */
    /* Rows committed. */
    size_t (*length)(const lt_state *state);
    /* Makes room for n rows behind the committed ones, for this state alone: a block that another state shares is copied where
     * these rows would be written into it. Without memory the state stays as it is. */
    lattice_status (*reserve)(lt_state *state, size_t n, lattice_error *err);
    /* The rows of the last run become the state's; or are forgotten. Nothing happens when there are none. */
    void (*commit)(lt_state *state);
    void (*discard)(lt_state *state);
    /* Drops the rows from `length` on, the uncommitted and reserved ones too; more than there are is
     * LATTICE_ERR_INVALID_ARGUMENT. Of a model with recurrent layers either all rows are dropped or none: else
     * LATTICE_ERR_UNSUPPORTED, and the state stays as it is. */
    lattice_status (*truncate)(lt_state *state, size_t length, lattice_error *err);
    /* A state with the same committed rows, whose blocks both share. */
    lattice_status (*fork)(const lt_state *state, lt_state **copy, lattice_error *err);
    /* Bytes that n rows take in blocks of their own; SIZE_MAX when they cannot be counted. */
    size_t (*bytes)(const struct lt_program *program, size_t n);
    /* Snapshots: bytes that only a program of the same plan, arithmetic and kind of rows understands; the caller sees to that, and
     * to their being whole. saved_bytes says how many there are of a state of `length` rows, SIZE_MAX when they cannot be counted;
     * save hands them out; load refuses another number with LATTICE_ERR_FORMAT. The values are not looked at. */
    size_t (*saved_bytes)(const struct lt_program *program, size_t length);
    lattice_status (*save)(const lt_state *state, lt_state_sink *sink, void *user, lattice_error *err);
    lattice_status (*load)(struct lt_program *program, const void *data, size_t size, size_t length, lt_state **state,
                           lattice_error *err);
    const char *(*row_type)(const struct lt_program *program); /* "f32", "bf16" or "f16" */
} lt_state_ops;

/* ---- for backends: batch.c ---- */

struct lt_batch;

/* lt_state_ops.length and .discard. */
size_t lt_state_length(const lt_state *state);
void lt_state_discard(lt_state *state);

/* Whether a state may be cut to so many rows; see lt_state_ops.truncate. */
lattice_status lt_state_check_cut(const lt_state_head *state, size_t rows, bool is_recurrent, lattice_error *err);

/* Before a run, and behind it: all states of the batch are the program's, each in one sequence, none with a run that waits, where
 * the batch says that it is, with room for its rows. When one is not, none is entered. A batch may have none. */
lattice_status lt_states_enter(const struct lt_batch *batch, const struct lt_program *program,
                               bool (*has_room)(const lt_state *state, size_t n), lattice_error *err);
void lt_states_leave(const struct lt_batch *batch, bool succeeded);

#endif
