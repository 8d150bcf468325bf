/* One call of lattice_rerank from the inside: what rerank.c does for every model, and what depends on the head. */
#ifndef LT_ENGINE_RERANK_H
#define LT_ENGINE_RERANK_H

#include "engine/batch.h"
#include "engine/model.h"

/* What a causal language model needs besides: its prompt in pieces, and the state of what all prompts of the call begin with. */
typedef struct lt_judge {
    lt_tokens suffix;
    uint32_t *base; /* [n_base] the prompt up to where a document begins: prefix, instruction, query */
    size_t n_base, base_capacity;
    size_t n_prefix; /* of them, before the instruction */
    size_t room;     /* tokens that instruction, query and document may have together */
    size_t shared;   /* rows of the prefixes: n_base less what is over a multiple of 64 */
    lt_state **prefixes; /* [n_prefixes] the same rows, one for each device */
    size_t n_prefixes;
    lt_buf text;   /* the middle of a prompt */
    uint32_t *own; /* what a document's prompt has behind the shared rows */
    size_t own_capacity;
    size_t *pasts[2]; /* for each window: rows that a document's prompt shares */
    size_t pasts_capacity[2];
    /* Of the batch: states are kept between batches with the memory they have reserved. */
    lt_state **states; /* [n_states] */
    size_t *past_lens, *out_rows;
    size_t n_states, states_capacity, past_lens_capacity, out_rows_capacity;
} lt_judge;

typedef struct lt_rerank {
    lattice_model *model;
    const lattice_rerank_options *options;
    lt_str query;
    const lattice_text *documents;
    size_t n;
    float *scores, *logits; /* the caller's; either may be NULL */
    lattice_usage *usage;
    size_t max_length, budget;
    size_t n_labels, n_scores;
    size_t done;
    bool judges; /* a causal language model does it */
    lt_judge judge;

    /* Tokenising uses these and one window, */
    lt_scratch *scratch;
    lt_tokens tokens;
    lt_window windows[2];
    /* computing the rest. */
    lt_packer packer;
    float *rows; /* [batch n_seqs][n_labels] */
    size_t rows_capacity;
} lt_rerank;

/* ------------------------------------------------------------------ the parts of a call, for a scheduler */

/* Do options and n documents fit the model? */
lattice_status lt_rerank_check(lattice_model *model, size_t n, const lattice_rerank_options *options, lattice_error *err);
/* Appends the tokens of n pairs to the window, for a classifier; documents NULL: of the query alone (n is 1 then). */
lattice_status lt_rerank_pairs(lattice_model *model, lattice_text query, const lattice_text *documents, size_t n,
                               const lattice_rerank_options *options, lt_window *window, lattice_error *err);
/* Scores from logits[n][n_labels], as lattice_rerank gives them. */
void lt_rerank_scores(const lattice_model *model, bool raw, const float *logits, size_t n, float *scores);

/* ------------------------------------------------------------------ language models: judge.c */

/* Tokenises the prompt and computes what all documents share. */
lattice_status lt_judge_begin(lt_rerank *job, lattice_error *err);
void lt_judge_end(lt_rerank *job);
/* Appends the prompt of document i, without the shared rows, to a window. */
lattice_status lt_judge_add(lt_rerank *job, lt_window *window, size_t i, lattice_error *err);
/* Gives the packed batch its states, positions and output rows; and takes the states back after the run. */
lattice_status lt_judge_prepare(lt_rerank *job, const lt_window *window, lattice_error *err);
void lt_judge_discard(lt_rerank *job);
/* Shared rows of document i of the window. */
size_t lt_judge_past(const lt_rerank *job, const lt_window *window, size_t i);

#endif
