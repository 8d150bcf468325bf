/* config.json, generation_config.json and inference_config.json of every family in one structure.
 *
 * Multimodal checkpoints keep the text part under `text_config`; it is read from there. What a family does not have stays zero.
 * Nothing is guessed: a dimension that the family needs and the file lacks is an error naming the field. */
#ifndef LT_FORMAT_CONFIG_H
#define LT_FORMAT_CONFIG_H

#include "base/bytes.h"
#include "base/hash.h"

typedef enum lt_model_type {
    LT_MODEL_BERT,
    LT_MODEL_ROBERTA,      /* roberta, xlm-roberta */
    LT_MODEL_QWEN3,
    LT_MODEL_QWEN3_5,      /* qwen3_5, qwen3_5_text */
} lt_model_type;

typedef enum lt_activation {
    LT_ACT_NONE,
    LT_ACT_GELU,      /* x/2 (1 + erf(x/√2)) */
    LT_ACT_GELU_TANH, /* gelu_new, gelu_pytorch_tanh */
    LT_ACT_RELU,
    LT_ACT_SILU,      /* silu, swish */
    LT_ACT_TANH,
    LT_ACT_SIGMOID,
} lt_activation;

typedef enum lt_head {
    LT_HEAD_NONE,           /* BertModel, XLMRobertaModel, Qwen3Model, … and masked-language-model heads, which are not used */
    LT_HEAD_CLASSIFIER,     /* …ForSequenceClassification */
    LT_HEAD_LM,             /* …ForCausalLM, …ForConditionalGeneration */
} lt_head;

typedef enum lt_layer_type {
    LT_LAYER_FULL_ATTENTION,
    LT_LAYER_LINEAR_ATTENTION,
} lt_layer_type;

typedef struct lt_config {
    lt_arena arena;           /* owns every string and array below */
    lt_model_type model_type;
    const char *model_type_name;   /* as stored */
    const char *architecture;      /* architectures[0], "" when absent */
    lt_hash128 hash;               /* of config.json's bytes */
    lt_head head;

    size_t vocab_size, hidden_size, n_layers, intermediate_size;
    size_t n_heads, n_kv_heads, head_dim;
    size_t max_positions;     /* max_position_embeddings */
    lt_activation activation;
    float norm_eps;           /* layer_norm_eps or rms_norm_eps */

    /* BERT, RoBERTa */
    size_t type_vocab_size;
    size_t position_offset;   /* 0, or pad_token_id + 1 */
    size_t pad_token_id;

    /* Qwen */
    bool attention_bias, tie_word_embeddings;
    double rope_theta;
    size_t rotary_dim;        /* partial_rotary_factor * head_dim, even */
    lt_layer_type *layer_types; /* [n_layers] */
    size_t linear_key_heads, linear_value_heads, linear_key_dim, linear_value_dim, conv_kernel;
    bool attn_output_gate;

    /* Classifier: [n_labels] names by id2label ("LABEL_0", … when absent) */
    size_t n_labels;
    const char **labels;

    /* The ids that end a generation: those of config.json and generation_config.json together, or those of inference_config.json
     * alone. Ids outside the vocabulary can never be generated and are left out. */
    uint32_t *eos_token_ids;
    size_t n_eos_token_ids;
    struct {
        bool do_sample;
        float temperature, top_p, min_p, repetition_penalty;
        size_t top_k;
    } generation;             /* defaults: 1, 1, 0, 1, 50, do_sample false, as transformers */

    /* inference_config.json; 0 when absent */
    size_t rope_table_max_seq_len, gpu_max_seq_len;
} lt_config;

/* Reads `folder`/config.json and its neighbours. Unknown model_type or architecture: LATTICE_ERR_UNSUPPORTED naming what was
 * found and what is supported. Released by lt_config_free, also after a failure. */
lattice_status lt_config_read(const lattice_allocator *mem, const char *folder, lt_config *config, lattice_error *err);
void lt_config_free(lt_config *config);

/* The same from bytes in memory, for one file each: config.json first (it initialises *config, also when it fails), then the other
 * two on top of it. `name` is for messages. */
lattice_status lt_config_parse(const lattice_allocator *mem, const char *name, const void *text, size_t size, lt_config *config,
                               lattice_error *err);
lattice_status lt_config_parse_generation(const lattice_allocator *mem, const char *name, const void *text, size_t size,
                                          lt_config *config, lattice_error *err);
lattice_status lt_config_parse_inference(const lattice_allocator *mem, const char *name, const void *text, size_t size,
                                         lt_config *config, lattice_error *err);

/* How many positions are admitted: the smaller of the position table (RoBERTa: less its offset) and
 * rope_table_max_seq_len. */
size_t lt_config_max_length(const lt_config *config);

#endif
