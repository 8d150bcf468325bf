/* Scores for every API: documents against a query, or texts and pairs by themselves. */
#ifndef LT_SERVER_SCORING_H
#define LT_SERVER_SCORING_H

#include "server/exchange.h"
#include "server/inputs.h"

typedef struct lt_scoring {
    lt_exchange *exchange;
    lt_inputs inputs;       /* texts: the documents, or what is classified */
    const char *model_name; /* NULL: any */
    int model;
    const char *field; /* what the body calls the texts, for errors */
    bool has_query;
    lt_str query;
    lattice_rerank_options options;
    /* Classification: each item is a text, or a text and the next one as a pair. */
    bool classifies;
    uint8_t *is_pair; /* [n_items] */
    size_t n_items, pairs_capacity;

    size_t top_n; /* 0: all */
    bool return_texts;
    void (*write)(struct lt_scoring *scoring); /* writes the answer into the exchange */
    unsigned format;                           /* of the answer; the API's own */

    lt_window window; /* a classifier's ids */
    size_t *costs;    /* of a language model's documents, as a job's starts */
    size_t n;         /* rows below */
    size_t n_labels, n_scores;
    float *logits, *scores; /* [n][n_labels], [n][n_scores] */
    size_t *order;          /* [n] rows by score, best first */
    lt_job job;
} lt_scoring;

/* A new one, freed with the exchange; NULL: the answer (an error) is set. */
lt_scoring *lt_scoring_create(lt_exchange *exchange);
/* Computes what has been read, and finishes the exchange with `write`, or with an error. */
void lt_scoring_run(lt_scoring *scoring);
/* Appends an item of one text, or of two: the texts read last. */
lattice_status lt_scoring_add_item(lt_scoring *scoring, bool is_pair, lattice_error *err);

#endif
