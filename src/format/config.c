/* config.json of every family.
 *
 * The file is walked twice. The first walk finds model_type and architectures, so that a foreign model is refused by name before
 * anything of it is misread. The second reads every known field into `fields` (a null counts as absent, as Hugging Face writes
 * it); then the family takes what it needs, and checks it, from there. A dimension has an upper limit, chosen so that the product
 * of any three that are ever multiplied fits in 64 bits. */
#include "format/config.h"

#include "base/file.h"
#include "format/config_internal.h"

/* ------------------------------------------------------------------ what is supported */

typedef struct architecture {
    const char *name;
    lt_head head;
} architecture;

/* Masked-language-model and pre-training checkpoints hold the encoder; their heads are not used. */
// clang-format off
static const architecture bert_architectures[] = {
    { "BertModel", LT_HEAD_NONE },          { "BertForMaskedLM", LT_HEAD_NONE }, { "BertForPreTraining", LT_HEAD_NONE },
    { "BertForNextSentencePrediction", LT_HEAD_NONE }, { "BertForSequenceClassification", LT_HEAD_CLASSIFIER }, { NULL, LT_HEAD_NONE },
};
static const architecture roberta_architectures[] = {
    { "RobertaModel", LT_HEAD_NONE },       { "RobertaForMaskedLM", LT_HEAD_NONE },
    { "RobertaForSequenceClassification", LT_HEAD_CLASSIFIER }, { NULL, LT_HEAD_NONE },
};
static const architecture xlm_roberta_architectures[] = {
    { "XLMRobertaModel", LT_HEAD_NONE },    { "XLMRobertaForMaskedLM", LT_HEAD_NONE },
    { "XLMRobertaForSequenceClassification", LT_HEAD_CLASSIFIER }, { NULL, LT_HEAD_NONE },
};
static const architecture qwen3_architectures[] = {
    { "Qwen3Model", LT_HEAD_NONE },         { "Qwen3ForCausalLM", LT_HEAD_LM }, { NULL, LT_HEAD_NONE },
};
static const architecture qwen3_5_architectures[] = {
    { "Qwen3_5ForCausalLM", LT_HEAD_LM },   { "Qwen3_5ForConditionalGeneration", LT_HEAD_LM },
    { "Qwen3_5Model", LT_HEAD_NONE },       { "Qwen3_5TextModel", LT_HEAD_NONE }, { NULL, LT_HEAD_NONE },
};

static const struct model_type {
    const char *name;
    lt_model_type type;
    const architecture *architectures;
} model_types[] = {
    { "bert", LT_MODEL_BERT, bert_architectures },
    { "roberta", LT_MODEL_ROBERTA, roberta_architectures },
    { "xlm-roberta", LT_MODEL_ROBERTA, xlm_roberta_architectures },
    { "qwen3", LT_MODEL_QWEN3, qwen3_architectures },
    { "qwen3_5", LT_MODEL_QWEN3_5, qwen3_5_architectures },
    { "qwen3_5_text", LT_MODEL_QWEN3_5, qwen3_5_architectures },
};

static const struct {
    const char *name;
    lt_activation activation;
} activations[] = {
    { "gelu", LT_ACT_GELU },              { "gelu_python", LT_ACT_GELU },
    { "gelu_new", LT_ACT_GELU_TANH },     { "gelu_pytorch_tanh", LT_ACT_GELU_TANH }, { "gelu_fast", LT_ACT_GELU_TANH },
    { "relu", LT_ACT_RELU },              { "silu", LT_ACT_SILU },                   { "swish", LT_ACT_SILU },
};
// clang-format on
#define COUNT(array) (sizeof(array) / sizeof *(array))

/* ------------------------------------------------------------------ first walk */

static bool is_bert_like(const lt_config *config)
{
    return config->model_type == LT_MODEL_BERT || config->model_type == LT_MODEL_ROBERTA;
}

static lattice_status check_identity(reader *r, const char *model_type, const char *found)
{
    lt_config *config = r->config;
    const struct model_type *type = NULL;
    char supported[256] = "";
    size_t used = 0;
    if (!model_type) return lt_fail(r->err, LATTICE_ERR_FORMAT, "%s: model_type is missing", r->json.name);
    for (size_t i = 0; i < COUNT(model_types); i++) {
        if (strcmp(model_types[i].name, model_type) == 0) type = &model_types[i];
        used = lt_list_name(supported, sizeof supported, used, model_types[i].name);
    }
    if (!type)
        return lt_fail(r->err, LATTICE_ERR_UNSUPPORTED, "%s: model_type '%.100s' is not supported (supported: %s)", r->json.name,
                       model_type, supported);
    config->model_type = type->type;
    config->model_type_name = model_type;
    config->architecture = found ? found : "";
    config->head = LT_HEAD_NONE;
    if (!found) return LATTICE_OK;
    used = 0;
    for (const architecture *a = type->architectures; a->name; a++) {
        if (strcmp(a->name, found) == 0) {
            config->head = a->head;
            return LATTICE_OK;
        }
        used = lt_list_name(supported, sizeof supported, used, a->name);
    }
    return lt_fail(r->err, LATTICE_ERR_UNSUPPORTED,
                   "%s: architecture '%.100s' of model_type '%s' is not supported (supported: %s)", r->json.name, found,
                   model_type, supported);
}

static lattice_status read_identity(reader *r)
{
    const char *model_type = NULL, *found = NULL;
    LT_TRY(lt_json_begin_object(&r->json));
    for (bool more;;) {
        LT_TRY(lt_reader_next(r, &more));
        if (!more) break;
        if (lt_reader_is(r, "model_type") && lt_json_peek(&r->json) == LT_JSON_STRING) {
            LT_TRY(lt_reader_text(r, &model_type));
        } else if (lt_reader_is(r, "architectures") && lt_json_peek(&r->json) == LT_JSON_ARRAY) {
            LT_TRY(lt_json_begin_array(&r->json));
            for (bool another;;) {
                LT_TRY(lt_json_next_element(&r->json, &another));
                if (!another) break;
                if (found)
                    LT_TRY(lt_json_skip(&r->json));
                else
                    LT_TRY(lt_reader_text(r, &found));
            }
        } else {
            LT_TRY(lt_json_skip(&r->json));
        }
    }
    LT_TRY(lt_json_end(&r->json));
    return check_identity(r, model_type, found);
}

/* ------------------------------------------------------------------ taking fields */

static lattice_status missing(reader *r, const char *name)
{
    return lt_fail(r->err, LATTICE_ERR_FORMAT, "%s: %s is missing", r->json.name, name);
}

/* A dimension that must be there and not be 0. */
static lattice_status take(reader *r, const fields *f, size_field i, size_t *out)
{
    if (!f->has_size[i]) return missing(r, lt_size_fields[i].name);
    if (f->size[i] == 0) return lt_fail(r->err, LATTICE_ERR_FORMAT, "%s: %s is 0", r->json.name, lt_size_fields[i].name);
    *out = f->size[i];
    return LATTICE_OK;
}

static lattice_status must_divide(reader *r, size_t n, const char *name, size_t by, const char *by_name)
{
    if (n % by == 0) return LATTICE_OK;
    return lt_fail(r->err, LATTICE_ERR_FORMAT, "%s: %s %zu is not divisible by %s %zu", r->json.name, name, n, by_name, by);
}

static lattice_status take_eps(reader *r, const fields *f, number_field i)
{
    const char *name = lt_number_fields[i];
    if (!f->has_number[i]) return missing(r, name);
    r->config->norm_eps = (float)f->number[i];
    if (!(f->number[i] >= 0 && f->number[i] < 1))
        return lt_fail(r->err, LATTICE_ERR_FORMAT, "%s: %s is %g, expected 0 to 1", r->json.name, name, f->number[i]);
    return LATTICE_OK;
}

static lattice_status take_common(reader *r, const fields *f)
{
    lt_config *config = r->config;
    LT_TRY(take(r, f, SIZE_vocab_size, &config->vocab_size));
    LT_TRY(take(r, f, SIZE_hidden_size, &config->hidden_size));
    LT_TRY(take(r, f, SIZE_num_hidden_layers, &config->n_layers));
    LT_TRY(take(r, f, SIZE_intermediate_size, &config->intermediate_size));
    LT_TRY(take(r, f, SIZE_num_attention_heads, &config->n_heads));
    LT_TRY(take(r, f, SIZE_max_position_embeddings, &config->max_positions));
    config->pad_token_id = f->size[SIZE_pad_token_id];
    if (!f->hidden_act) return missing(r, "hidden_act");
    char supported[256] = "";
    size_t used = 0;
    for (size_t i = 0; i < COUNT(activations); i++) {
        if (strcmp(activations[i].name, f->hidden_act) == 0) {
            config->activation = activations[i].activation;
            return LATTICE_OK;
        }
        used = lt_list_name(supported, sizeof supported, used, activations[i].name);
    }
    return lt_fail(r->err, LATTICE_ERR_UNSUPPORTED, "%s: hidden_act '%.100s' is not supported (supported: %s)", r->json.name,
                   f->hidden_act, supported);
}

/* ------------------------------------------------------------------ BERT, RoBERTa, XLM-RoBERTa */

static lattice_status take_labels(reader *r, const fields *f)
{
    lt_config *config = r->config;
    /* transformers writes no id2label for its default of two labels. */
    config->n_labels = f->has_labels ? f->n_labels : f->has_size[SIZE_num_labels] ? f->size[SIZE_num_labels] : 2;
    if (config->n_labels == 0)
        return lt_fail(r->err, LATTICE_ERR_FORMAT, "%s: %s", r->json.name,
                       f->has_labels ? "id2label is empty" : "num_labels is 0");
    config->labels = lt_arena_array(&config->arena, config->n_labels, sizeof *config->labels);
    if (!config->labels) return lt_no_memory(r->err, config->n_labels * sizeof *config->labels, "labels");
    for (size_t i = 0; i < f->n_labels; i++) {
        const label *l = &f->labels[i];
        if (l->id >= config->n_labels || config->labels[l->id])
            return lt_fail(r->err, LATTICE_ERR_FORMAT, "%s: id2label has %zu labels, but they are not numbered 0 to %zu",
                           r->json.name, config->n_labels, config->n_labels - 1);
        config->labels[l->id] = l->name;
    }
    for (size_t i = f->has_labels ? config->n_labels : 0; i < config->n_labels; i++) {
        char name[32];
        size_t length = lt_write_label(name, i);
        config->labels[i] = lt_arena_copy(&config->arena, name, length);
        if (!config->labels[i]) return lt_no_memory(r->err, length, "a label");
    }
    return LATTICE_OK;
}

static lattice_status take_bert(reader *r, const fields *f)
{
    lt_config *config = r->config;
    const char *name = r->json.name;
    if (f->flag[FLAG_is_decoder] == FLAG_TRUE || f->flag[FLAG_add_cross_attention] == FLAG_TRUE)
        return lt_fail(r->err, LATTICE_ERR_UNSUPPORTED, "%s: %s is true: decoders of this family are not supported", name,
                       f->flag[FLAG_is_decoder] == FLAG_TRUE ? "is_decoder" : "add_cross_attention");
    if (f->position_embedding_type && strcmp(f->position_embedding_type, "absolute") != 0)
        return lt_fail(r->err, LATTICE_ERR_UNSUPPORTED,
                       "%s: position_embedding_type '%.100s' is not supported (supported: absolute)", name,
                       f->position_embedding_type);
    LT_TRY(take_eps(r, f, NUMBER_layer_norm_eps));
    LT_TRY(take(r, f, SIZE_type_vocab_size, &config->type_vocab_size));
    LT_TRY(must_divide(r, config->hidden_size, "hidden_size", config->n_heads, "num_attention_heads"));
    config->head_dim = config->hidden_size / config->n_heads;
    config->n_kv_heads = config->n_heads;
    if (config->model_type == LT_MODEL_ROBERTA) {
        if (!f->has_size[SIZE_pad_token_id]) return missing(r, "pad_token_id");
        config->position_offset = config->pad_token_id + 1;
        if (config->max_positions <= config->position_offset)
            return lt_fail(r->err, LATTICE_ERR_FORMAT,
                           "%s: max_position_embeddings %zu leaves no position after pad_token_id + 1 = %zu", name,
                           config->max_positions, config->position_offset);
    }
    return config->head == LT_HEAD_CLASSIFIER ? take_labels(r, f) : LATTICE_OK;
}

/* ------------------------------------------------------------------ Qwen3, Qwen3.5 */

static lattice_status take_rope(reader *r, const fields *f)
{
    lt_config *config = r->config;
    const char *name = r->json.name;
    if (f->rope_type && strcmp(f->rope_type, "default") != 0)
        return lt_fail(r->err, LATTICE_ERR_UNSUPPORTED, "%s: rope_type '%.100s' is not supported (supported: default)", name,
                       f->rope_type);
    if (!f->has_number[NUMBER_rope_theta]) return missing(r, "rope_theta");
    config->rope_theta = f->number[NUMBER_rope_theta];
    if (!(config->rope_theta >= 1 && config->rope_theta < 1e30))
        return lt_fail(r->err, LATTICE_ERR_FORMAT, "%s: rope_theta is %g, expected at least 1", name, config->rope_theta);
    double factor = 1;
    if (f->has_number[NUMBER_partial_rotary_factor])
        factor = f->number[NUMBER_partial_rotary_factor];
    else if (config->model_type == LT_MODEL_QWEN3_5)
        return missing(r, "partial_rotary_factor");
    if (!(factor > 0 && factor <= 1))
        return lt_fail(r->err, LATTICE_ERR_FORMAT, "%s: partial_rotary_factor is %g, expected more than 0 and at most 1", name,
                       factor);
    config->rotary_dim = (size_t)((double)config->head_dim * factor);
    if (config->rotary_dim == 0 || config->rotary_dim % 2 != 0)
        return lt_fail(r->err, LATTICE_ERR_FORMAT,
                       "%s: head_dim %zu with partial_rotary_factor %g rotates %zu dimensions, expected an even number", name,
                       config->head_dim, factor, config->rotary_dim);
    return LATTICE_OK;
}

static lattice_status take_layer_types(reader *r, const fields *f)
{
    lt_config *config = r->config;
    size_t interval = 1;
    if (f->has_layer_types) {
        if (f->n_layer_types != config->n_layers)
            return lt_fail(r->err, LATTICE_ERR_FORMAT, "%s: layer_types has %zu entries, but num_hidden_layers is %zu",
                           r->json.name, f->n_layer_types, config->n_layers);
    } else if (config->model_type == LT_MODEL_QWEN3_5) {
        if (!f->has_size[SIZE_full_attention_interval]) return missing(r, "layer_types (or full_attention_interval)");
        LT_TRY(take(r, f, SIZE_full_attention_interval, &interval));
    }
    config->layer_types = lt_arena_array(&config->arena, config->n_layers, sizeof *config->layer_types);
    if (!config->layer_types) return lt_no_memory(r->err, config->n_layers * sizeof *config->layer_types, "layer_types");
    for (size_t i = 0; i < config->n_layers; i++) {
        bool linear = f->has_layer_types ? f->layer_types[i] == LT_LAYER_LINEAR_ATTENTION : (i + 1) % interval != 0;
        if (linear && config->model_type != LT_MODEL_QWEN3_5)
            return lt_fail(r->err, LATTICE_ERR_UNSUPPORTED,
                           "%s: layer_types: 'linear_attention' is not supported in model_type '%s'", r->json.name,
                           config->model_type_name);
        config->layer_types[i] = linear ? LT_LAYER_LINEAR_ATTENTION : LT_LAYER_FULL_ATTENTION;
    }
    return LATTICE_OK;
}

static lattice_status take_qwen(reader *r, const fields *f)
{
    lt_config *config = r->config;
    LT_TRY(take_eps(r, f, NUMBER_rms_norm_eps));
    config->n_kv_heads = config->n_heads;
    if (f->has_size[SIZE_num_key_value_heads]) LT_TRY(take(r, f, SIZE_num_key_value_heads, &config->n_kv_heads));
    if (config->n_heads % config->n_kv_heads != 0) /* INV-3 */
        return lt_fail(
            r->err, LATTICE_ERR_FORMAT,
            "%s: num_attention_heads %zu is not divisible by num_key_value_heads %zu: query heads share key/value heads "
            "in equal groups",
            r->json.name, config->n_heads, config->n_kv_heads);
    if (f->has_size[SIZE_head_dim]) {
        LT_TRY(take(r, f, SIZE_head_dim, &config->head_dim));
    } else {
        LT_TRY(must_divide(r, config->hidden_size, "hidden_size", config->n_heads, "num_attention_heads"));
        config->head_dim = config->hidden_size / config->n_heads;
    }
    LT_TRY(take_rope(r, f));
    LT_TRY(take_layer_types(r, f));
    config->attention_bias = f->flag[FLAG_attention_bias] == FLAG_TRUE;
    config->tie_word_embeddings = f->flag[FLAG_tie_word_embeddings] == FLAG_TRUE;
    if (config->model_type == LT_MODEL_QWEN3) {
        if (f->flag[FLAG_use_sliding_window] == FLAG_TRUE && f->has_size[SIZE_sliding_window] && !f->has_layer_types)
            return lt_fail(r->err, LATTICE_ERR_UNSUPPORTED, "%s: use_sliding_window is true: sliding windows are not supported",
                           r->json.name);
        return LATTICE_OK;
    }
    config->attn_output_gate = f->flag[FLAG_attn_output_gate] != FLAG_FALSE;
    LT_TRY(take(r, f, SIZE_linear_num_key_heads, &config->linear_key_heads));
    LT_TRY(take(r, f, SIZE_linear_num_value_heads, &config->linear_value_heads));
    LT_TRY(take(r, f, SIZE_linear_key_head_dim, &config->linear_key_dim));
    LT_TRY(take(r, f, SIZE_linear_value_head_dim, &config->linear_value_dim));
    LT_TRY(take(r, f, SIZE_linear_conv_kernel_dim, &config->conv_kernel));
    return must_divide(r, config->linear_value_heads, "linear_num_value_heads", config->linear_key_heads, "linear_num_key_heads");
}

/* ------------------------------------------------------------------ public */

lattice_status lt_config_parse(const lattice_allocator *mem, const char *name, const void *text, size_t size, lt_config *config,
                               lattice_error *err)
{
    *config = (lt_config){
        .model_type_name = "",
        .architecture = "",
        .hash = lt_hash_128(text, size, 0),
        .generation = { .temperature = 1, .top_p = 1, .repetition_penalty = 1, .top_k = 50 },
    };
    lt_arena_init(&config->arena, mem);
    reader r;
    fields *found = lt_alloc_zero(mem, 2 * sizeof *found), *f = found; /* the top level, text_config */
    if (!found) return lt_no_memory(err, 2 * sizeof *found, "the fields of config.json");

    lattice_status status;
    lt_reader_open(&r, mem, name, text, size, config, err);
    LT_GO(read_identity(&r));
    lt_reader_close(&r);
    lt_reader_open(&r, mem, name, text, size, config, err);
    LT_GO(lt_reader_fields(&r, found, strcmp(config->model_type_name, "qwen3_5") == 0 ? found + 1 : NULL));
    LT_GO(lt_json_end(&r.json));
    if (found[1].present) {
        f = found + 1;
        if (found[0].flag[FLAG_tie_word_embeddings] == FLAG_TRUE) f->flag[FLAG_tie_word_embeddings] = FLAG_TRUE;
    }
    LT_GO(take_common(&r, f));
    LT_GO(is_bert_like(config) ? take_bert(&r, f) : take_qwen(&r, f));
    LT_GO(lt_reader_set_eos(&r, &f->eos));
    if (f != found) LT_GO(lt_reader_set_eos(&r, &found->eos));
done:
    status = lt_reader_fault(&r, status);
    lt_reader_close(&r);
    lt_free(mem, found->labels);
    lt_free(mem, found);
    return status;
}

typedef lattice_status (*parse_fn)(const lattice_allocator *mem, const char *name, const void *text, size_t size,
                                   lt_config *config, lattice_error *err);

static lattice_status read_file(const lattice_allocator *mem, const char *folder, const char *name, bool optional, parse_fn parse,
                                lt_config *config, lattice_error *err)
{
    lt_buf path;
    lt_file file;
    lt_buf_init(&path, mem);
    lattice_status status = LATTICE_OK;
    if (!lt_path_join(&path, folder, name)) {
        status = lt_no_memory(err, strlen(folder), "a path");
    } else if (!optional || lt_path_exists(path.data)) {
        status = lt_file_open(mem, path.data, false, &file, err);
        if (status == LATTICE_OK) {
            status = parse(mem, path.data, file.data, file.size, config, err);
            lt_file_close(&file);
        }
    }
    lt_buf_free(&path);
    return status;
}

lattice_status lt_config_read(const lattice_allocator *mem, const char *folder, lt_config *config, lattice_error *err)
{
    *config = (lt_config){ 0 };
    lt_arena_init(&config->arena, mem);
    LT_TRY(read_file(mem, folder, "config.json", false, lt_config_parse, config, err));
    LT_TRY(read_file(mem, folder, "generation_config.json", true, lt_config_parse_generation, config, err));
    return read_file(mem, folder, "inference_config.json", true, lt_config_parse_inference, config, err);
}

void lt_config_free(lt_config *config)
{
    if (config->arena.mem) lt_arena_free(&config->arena);
    *config = (lt_config){ 0 };
}

size_t lt_config_max_length(const lt_config *config)
{
    size_t n = config->max_positions - config->position_offset;
    return config->rope_table_max_seq_len && config->rope_table_max_seq_len < n ? config->rope_table_max_seq_len : n;
}
