/* A model family: binds the weights of a checkpoint and records the forward pass. */
#ifndef LT_MODEL_FAMILY_H
#define LT_MODEL_FAMILY_H

#include "backend/plan.h"
#include "base/runtime.h"
#include "format/sentence.h"

typedef struct lt_family {
    const char *name; /* "bert", … for `inspect` */
    bool (*matches)(const lt_config *config);
    /* Records body and tails. score_ids: the tokens whose logits are the scores of a language model that reranks, in this order;
     * none: it has no scores, and a classifier needs none. Every dimension is checked against the tensors; a missing tensor is
     * LATTICE_ERR_FORMAT naming it, one that the family does not know is a warning in the log. */
    lattice_status (*record)(const lattice_runtime *runtime, const lt_config *config, const lt_sentence *sentence,
                             lt_checkpoint *checkpoint, const uint32_t *score_ids, size_t n_score_ids, lt_plan *plan,
                             lattice_error *err);
} lt_family;

extern const lt_family lt_family_bert;   /* bert, roberta, xlm-roberta */
extern const lt_family lt_family_qwen3;  /* qwen3 */
extern const lt_family lt_family_qwen35; /* qwen3_5, qwen3_5_text */

/* The family of a configuration; NULL: none is built in. */
const lt_family *lt_family_find(const lt_config *config);

#endif
