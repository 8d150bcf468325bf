/* Embedding for every API: what a request asks for, and how it becomes vectors. An API reads its body into an lt_embedding and
 * writes its answer from the vectors. */
#ifndef LT_SERVER_EMBEDDING_H
#define LT_SERVER_EMBEDDING_H

#include "server/exchange.h"
#include "server/inputs.h"

typedef enum lt_truncation { LT_TRUNCATE_DEFAULT, LT_TRUNCATE_YES, LT_TRUNCATE_NO } lt_truncation;

typedef struct lt_embedding {
    lt_exchange *exchange;
    lt_inputs inputs;
    const char *model_name; /* NULL: any */
    int model;
    const char *field; /* what the body calls the inputs, for errors */
    lattice_embed_options options;
    lt_truncation truncation;
    bool normalize;                                /* even if the checkpoint does not */
    const char *role;                              /* Cohere's input_type; NULL: none */
    bool tokens;                                   /* the vectors of all tokens instead of one for each text */
    void (*write)(struct lt_embedding *embedding); /* writes the answer into the exchange */
    unsigned format;                               /* of the answer; the API's own */
    void *data;                                    /* the API's own, in the arena of the inputs */

    lt_window window; /* ids of all inputs */
    lt_embed_call *call;
    float *vectors; /* [n][dim] */
    size_t dim;
    size_t *missing; /* [n_missing] of the inputs, those that the cache does not have; NULL: all */
    size_t n_missing;
    lt_window missed; /* their ids, */
    float *computed;  /* and vectors */
    lt_job job;
} lt_embedding;

/* A new one, freed with the exchange; NULL: the answer (an error) is set. */
lt_embedding *lt_embedding_create(lt_exchange *exchange);
/* Computes what has been read, and finishes the exchange with `write`, or with an error. */
void lt_embedding_run(lt_embedding *embedding);

#endif
