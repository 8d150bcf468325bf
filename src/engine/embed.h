/* The parts of lattice_embed, for a scheduler that packs the texts of several callers into one batch.
 *
 * A call holds one caller's options, resolved against the model. Its texts become ids in a window; the ids of any number of calls
 * may share a batch; each pooled row is finished by the call that its text came from. */
#ifndef LT_ENGINE_EMBED_H
#define LT_ENGINE_EMBED_H

#include "engine/batch.h"
#include "engine/model.h"

typedef struct lt_embed_call lt_embed_call;

/* Strings of `options` are borrowed until the call is freed. by_ids: inputs are ids, prompts do not matter. With a cache, the first
 * call of a model reads its weights (lt_model_fingerprint, which may be called before). */
lattice_status lt_embed_call_create(lattice_model *model, const lattice_embed_options *options, bool by_ids, lt_embed_call **call,
                                    lattice_error *err);
void lt_embed_call_free(lt_embed_call *call);
/* Floats of a finished vector. */
size_t lt_embed_call_dim(const lt_embed_call *call);
/* Tokens of each text that pooling leaves out. */
size_t lt_embed_call_skip(const lt_embed_call *call);
/* Append the tokens of n inputs to the window. Errors are those of lattice_embed. */
lattice_status lt_embed_call_texts(lt_embed_call *call, const lattice_text *texts, size_t n, lt_window *window,
                                   lattice_error *err);
lattice_status lt_embed_call_ids(lt_embed_call *call, const lattice_ids *inputs, size_t n, lt_window *window, lattice_error *err);
/* Cuts and normalises a row of lt_embed_forward into out[dim]; false: a value is not finite. */
bool lt_embed_call_finish(const lt_embed_call *call, const float *row, float *out);

/* With options.cache: what its vectors are kept under. */
lt_hash128 lt_embed_call_space(const lt_embed_call *call);
/* With options.cache: the vector of a text of the window, when it is there, into out[dim]; and keeps a finished one. Any thread. */
bool lt_embed_call_find(const lt_embed_call *call, const lt_window *window, size_t member, float *out);
void lt_embed_call_store(const lt_embed_call *call, const lt_window *window, size_t member, const float *vector);

/* Memory of a forward pass: pooled vectors, and Dense outputs in turns. */
typedef struct lt_embed_rows {
    float *data[2];
    size_t capacity[2];
} lt_embed_rows;

void lt_embed_rows_free(const lattice_allocator *mem, lt_embed_rows *memory);
/* Runs a batch with its pooling and the Dense modules: (*rows)[n_seqs][*width], in `memory`. */
lattice_status lt_embed_forward(lattice_model *model, const lt_batch *batch, lt_embed_rows *memory, const float **rows,
                                size_t *width, lattice_error *err);

#endif
