/* One call of lattice_rerank from the inside: what rerank.c does for every model, and what depends on the head. */
#ifndef LT_ENGINE_RERANK_H
#define LT_ENGINE_RERANK_H

#include "engine/batch.h"
#include "engine/model.h"

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

    /* Tokenising uses these and one window, */
    lt_scratch *scratch;
    lt_tokens tokens;
    lt_window windows[2];
    /* computing the rest. */
    lt_packer packer;
    float *rows; /* [batch n_seqs][n_labels] */
    size_t rows_capacity;
} lt_rerank;

#endif
