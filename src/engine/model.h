/* An open model from the inside: what model.c puts together and embed.c, dense.c, describe.c and bench.c use.
 *
 * A lattice_model is immutable once open, but for the workers and steppers below: working memory of one call of
 * lattice_embed, or of a run of sessions, kept between calls so that the next one allocates nothing; and but for the fingerprint,
 * computed when a cache first asks for it. */
#ifndef LT_ENGINE_MODEL_H
#define LT_ENGINE_MODEL_H

#include <pthread.h>
#include <stdatomic.h>

#include "backend/backend.h"
#include "backend/cpu/kernels.h"
#include "engine/tokenizer_api.h"
#include "format/sentence.h"
#include "model/family.h"

/* A Dense module of Sentence-Transformers, y = act(W x + b), with W packed for the kernels. */
typedef struct lt_dense_layer {
    size_t in_features, out_features;
    lt_activation activation;
    float *panels; /* 64-byte aligned, inside `block` */
    void *block;
    float *bias; /* NULL: none */
} lt_dense_layer;

typedef struct lt_worker lt_worker;
typedef struct lt_stepper lt_stepper;

struct lattice_model {
    lattice_runtime *runtime;
    const lattice_allocator *mem; /* the runtime's */
    lt_arena arena;               /* names */
    const char *folder;
    lt_config config;
    lt_sentence sentence;
    lt_checkpoint *checkpoint;
    const lt_family *family;
    lt_plan plan;
    lt_backend *backend;
    lt_program *program;
    const lt_kernels *kernels; /* of the backend's instruction set: Dense, checks */
    lattice_tokenizer *tokenizer;
    lt_dense_layer *dense;
    size_t n_dense;
    const char **op_details;     /* [plan.n_ops] the weight or shape an op is about, for profiles */
    size_t max_length;           /* tokens of a text unless asked otherwise */
    size_t max_positions;        /* tokens that the positions admit */
    size_t batch_tokens;         /* budget of one batch */
    size_t max_tokens, max_seqs; /* what the workspace is reserved for: a single text may exceed the budget */
    uint64_t n_parameters, weight_bytes, dense_bytes;
    bool thinks; /* the chat template mentions <think> */

    pthread_mutex_t lock; /* of the lists */
    pthread_mutex_t fingerprint_lock;
    bool has_lock, has_fingerprint_lock;
    lt_worker *idle;
    lt_stepper *idle_steppers;
    pthread_mutex_t rows_lock; /* of the following; held while sessions are run on a backend that may keep their logits */
    bool has_rows_lock;
    struct lattice_session **row_owners; /* [n_row_owners] whose logits the backend keeps; NULL: they are not needed */
    size_t n_row_owners, row_owners_capacity;
    lt_hash128 fingerprint; /* once has_fingerprint; fingerprint.c */
    atomic_bool has_fingerprint;
};

/* Floats of a pooled vector before the Dense modules, under `pooling` (0: the model's). */
size_t lt_model_pooled_width(const lattice_model *model, unsigned pooling);

/* How many devices share the model's batches. */
static inline size_t lt_model_devices(const lattice_model *model)
{
    return model->backend->n_devices > 1 ? model->backend->n_devices : 1;
}

/* Sequences of a batch that is shared by all devices. */
static inline size_t lt_model_max_seqs(const lattice_model *model)
{
    return model->max_seqs * lt_model_devices(model);
}

/* What the model's head gives: a classifier's scores before anything else. */
lattice_head lt_model_head(const lattice_model *model);

/* ------------------------------------------------------------------ Dense modules: dense.c */

/* Packs module number i of the checkpoint's list. */
lattice_status lt_dense_create(lattice_model *model, size_t i, lattice_error *err);
void lt_dense_free(const lattice_allocator *mem, lt_dense_layer *layer);
uint64_t lt_dense_packed_bytes(const lt_kernels *kernels, const lt_dense_layer *layer);
/* y[m, out] = act(x[m, in] Wᵀ + b) */
void lt_dense_run(const lattice_model *model, const lt_dense_layer *layer, const float *x, size_t m, float *y);

/* ------------------------------------------------------------------ workers: embed.c */

/* Frees the list of idle workers. */
void lt_workers_free(lt_worker *first);

/* ------------------------------------------------------------------ runs of sessions: steps.c */

/* Frees the list of idle ones. */
void lt_steppers_free(const lattice_allocator *mem, lt_stepper *first);

/* ------------------------------------------------------------------ conversations: chat.c */

/* Looks at the chat template, where there is one. */
lattice_status lt_chat_open(lattice_model *model, lattice_error *err);

/* ------------------------------------------------------------------ description: describe.c */

#endif
