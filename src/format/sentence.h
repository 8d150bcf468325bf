/* Sentence-Transformers files: what turns hidden states into a vector.
 *
 * modules.json (Transformer, Pooling, Dense, Normalize), N_Pooling/config.json, N_Dense/, sentence_bert_config.json,
 * config_sentence_transformers.json. All are optional; without modules.json: BERT and XLM-R pool the mean, Qwen3 the last token,
 * both normalise. A module that is not one of these four is LATTICE_ERR_UNSUPPORTED naming it. */
#ifndef LT_FORMAT_SENTENCE_H
#define LT_FORMAT_SENTENCE_H

#include "format/checkpoint.h"
#include "format/config.h"

typedef struct lt_prompt {
    const char *name, *text;
} lt_prompt;

typedef struct lt_dense {
    size_t in_features, out_features;
    lt_activation activation;   /* torch.nn.modules.activation.Tanh (the default), linear.Identity, ReLU, GELU, Sigmoid, SiLU */
    lt_checkpoint *weights;     /* N_Dense/model.safetensors: linear.weight [out, in], linear.bias [out] if `bias` */
    bool bias;
} lt_dense;

typedef struct lt_sentence {
    lt_arena arena;
    bool has_modules;           /* modules.json is there: the checkpoint is meant for vectors */
    unsigned pooling;           /* lattice_pooling bits */
    bool include_prompt;        /* pool over the prompt's tokens too (default true) */
    bool normalize;
    lt_dense *dense;            /* in order */
    size_t n_dense;
    size_t max_length;          /* tokens of one text: max_seq_length, else model_max_length, capped by the positions */
    bool lower_case;            /* do_lower_case of sentence_bert_config.json: texts are lower-cased before tokenising */
    lt_prompt *prompts;
    size_t n_prompts;
    const char *default_prompt; /* name, or NULL */
} lt_sentence;

/* Reads the files of `folder`. config is borrowed during the call. Released by lt_sentence_free, also after a failure. */
lattice_status lt_sentence_read(const lattice_allocator *mem, const char *folder, const lt_config *config, bool use_mmap,
                                lt_sentence *sentence, lattice_error *err);
void lt_sentence_free(lt_sentence *sentence);

#endif
