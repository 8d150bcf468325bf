/* What the files of the configuration reader share: the fields of config.json as found, and the walk over an object whose
 * errors name the field. Private to config*.c. */
#ifndef LT_FORMAT_CONFIG_INTERNAL_H
#define LT_FORMAT_CONFIG_INTERNAL_H

#include "format/config.h"
#include "format/json.h"

/* X(name, largest value) */
#define SIZE_FIELD_LIST(X)                                                                                                       \
    X(vocab_size, 0x7fffffff)                                                                                                    \
    X(hidden_size, 1 << 20)                                                                                                      \
    X(num_hidden_layers, 4096)                                                                                                   \
    X(intermediate_size, 1 << 24)                                                                                                \
    X(num_attention_heads, 1 << 14)                                                                                              \
    X(num_key_value_heads, 1 << 14)                                                                                              \
    X(head_dim, 1 << 14)                                                                                                         \
    X(max_position_embeddings, 1 << 30)                                                                                          \
    X(type_vocab_size, 1 << 20)                                                                                                  \
    X(pad_token_id, 0x7fffffff)                                                                                                  \
    X(num_labels, 1 << 20)                                                                                                       \
    X(sliding_window, 1 << 30)                                                                                                   \
    X(full_attention_interval, 4096)                                                                                             \
    X(linear_conv_kernel_dim, 1024)                                                                                              \
    X(linear_key_head_dim, 1 << 14)                                                                                              \
    X(linear_value_head_dim, 1 << 14)                                                                                            \
    X(linear_num_key_heads, 1 << 14)                                                                                             \
    X(linear_num_value_heads, 1 << 14)

#define FLAG_LIST(X)                                                                                                             \
    X(is_decoder)                                                                                                                \
    X(add_cross_attention)                                                                                                       \
    X(attention_bias)                                                                                                            \
    X(tie_word_embeddings)                                                                                                       \
    X(use_sliding_window)                                                                                                        \
    X(attn_output_gate)

#define NUMBER_LIST(X)                                                                                                           \
    X(layer_norm_eps)                                                                                                            \
    X(rms_norm_eps)                                                                                                              \
    X(rope_theta)                                                                                                                \
    X(partial_rotary_factor)

typedef enum size_field {
#define X(name, limit) SIZE_##name,
    SIZE_FIELD_LIST(X)
#undef X
        N_SIZES
} size_field;

typedef enum flag_field {
#define X(name) FLAG_##name,
    FLAG_LIST(X)
#undef X
        N_FLAGS
} flag_field;

typedef enum number_field {
#define X(name) NUMBER_##name,
    NUMBER_LIST(X)
#undef X
        N_NUMBERS
} number_field;

typedef struct size_info {
    const char *name;
    size_t limit;
} size_info;

extern const size_info lt_size_fields[N_SIZES];
extern const char *const lt_flag_fields[N_FLAGS];
extern const char *const lt_number_fields[N_NUMBERS];

enum { MAX_EOS = 64, MAX_LAYERS = 4096, MAX_LABELS = 1 << 20 };

typedef enum flag { FLAG_ABSENT, FLAG_FALSE, FLAG_TRUE } flag;

typedef struct label {
    size_t id;
    const char *name;
} label;

typedef struct eos_list {
    bool given;
    size_t n;
    uint32_t ids[MAX_EOS];
} eos_list;

/* config.json as found; strings live in the configuration's arena. */
typedef struct fields {
    bool has_size[N_SIZES], has_number[N_NUMBERS];
    size_t size[N_SIZES];
    double number[N_NUMBERS];
    flag flag[N_FLAGS];
    const char *hidden_act, *position_embedding_type, *rope_type;
    bool inside[N_NUMBERS]; /* found inside rope_parameters, which outranks the top level */
    bool has_layer_types, has_labels, present;
    size_t n_layer_types;
    uint8_t layer_types[MAX_LAYERS]; /* lt_layer_type */
    label *labels;
    size_t n_labels, labels_capacity;
    eos_list eos;
} fields;

/* Walks one file. JSON's own errors go to `fault`, so that lt_reader_fault can add the field's name to them. */
typedef struct reader {
    lt_json json;
    lt_config *config;
    lattice_error *err;
    lattice_error fault;
    char field[64]; /* the one being read, "" before the first */
} reader;

void lt_reader_open(reader *r, const lattice_allocator *mem, const char *name, const void *text, size_t size, lt_config *config,
                    lattice_error *err);
void lt_reader_close(reader *r);
/* Fills err from a JSON fault, if that is why `status` failed; returns status. */
lattice_status lt_reader_fault(reader *r, lattice_status status);

/* Steps to the next member of the object and remembers its name. */
lattice_status lt_reader_next(reader *r, bool *more);
bool lt_reader_is(const reader *r, const char *name);
/* A string, copied to the configuration's arena. */
lattice_status lt_reader_text(reader *r, const char **out);
/* A number or a list of numbers, appended. */
lattice_status lt_reader_eos(reader *r, eos_list *eos);
/* Adds the ids that lie in the vocabulary to the configuration's. */
lattice_status lt_reader_set_eos(reader *r, const eos_list *eos);

/* Reads every known field of the object at hand into f, and what stands under `text_config` into text (NULL: that is skipped). */
lattice_status lt_reader_fields(reader *r, fields *f, fields *text);

/* Appends ", name" to a list in out[capacity], as far as it fits; returns the bytes used. */
size_t lt_list_name(char *out, size_t capacity, size_t used, const char *name);
/* "LABEL_<i>"; returns its length. */
size_t lt_write_label(char out[32], size_t i);

#endif
