/* A part of a batch as a batch of its own: some of its sequences, and where their results belong.
 *
 * What a sequence gives does not depend on what else is in its batch, so a batch may be cut between any two sequences. */
#ifndef LT_BACKEND_PIECE_H
#define LT_BACKEND_PIECE_H

#include "backend/backend.h"

#define LT_ANYWHERE (-1)

/* A batch that may be cut, and for batches with states, what stands for them where they live. */
typedef struct lt_whole {
    const lt_plan *plan;
    const lt_batch *batch;
    lt_tail_kind tail;
    float *out;
    lt_state *const *states; /* [n_seqs] used in the place of batch->states; NULL: there are none */
    const int *homes;        /* [n_seqs] the number of the device that each lives on; NULL with states NULL */
} lt_whole;

/* The sequences of [first, end) that live on `home`; LT_ANYWHERE: all of them. */
typedef struct lt_cut {
    size_t first, end;
    int home;
} lt_cut;

static inline bool lt_cut_has(const lt_cut *cut, const lt_whole *whole, size_t seq)
{
    return seq >= cut->first && seq < cut->end && (cut->home == LT_ANYWHERE || whole->homes[seq] == cut->home);
}

static inline size_t lt_whole_tokens(const lt_whole *whole, size_t seq)
{
    return whole->batch->seq_starts[seq + 1] - whole->batch->seq_starts[seq];
}

/* The piece; its arrays are kept from one fill to the next. */
typedef struct lt_piece {
    const lattice_allocator *mem;
    lt_batch batch;
    size_t n_rows, width; /* of the results */
    float *out;           /* [n_rows][width], to be run into: their place in whole->out, or memory of the piece */
    uint32_t *ids, *positions, *types;
    size_t *starts, *out_rows, *past_lens, *pool_skip;
    size_t *begins; /* [cut->end - cut->first] where each sequence begins in the piece */
    size_t *to;     /* [n_rows] rows of whole->out */
    lt_state **states;
    float *rows;
    size_t tokens_capacity[3], seqs_capacity[5], out_capacity, to_capacity, rows_capacity;
    bool scattered; /* the results lie in `rows` */
} lt_piece;

void lt_piece_init(lt_piece *piece, const lattice_allocator *mem);
void lt_piece_free(lt_piece *piece);
/* Fills the piece with the cut, which has at least one sequence. */
lattice_status lt_piece_fill(lt_piece *piece, const lt_whole *whole, const lt_cut *cut, lattice_error *err);
/* Puts the results where they belong. */
void lt_piece_deliver(const lt_piece *piece, const lt_whole *whole);

#endif
