/* Reading the fields of the configuration files, and the two small files beside config.json.
 *
 * Fields are listed once, in config_internal.h; a null is an absent field. Errors name the field: JSON's own ("expected a
 * number") are collected in the reader and completed by lt_reader_fault. */
#include <stdio.h>

#include "format/config_internal.h"

#define X(name, limit) { #name, (limit) },
const size_info lt_size_fields[N_SIZES] = { SIZE_FIELD_LIST(X) };
#undef X
#define X(name) #name,
const char *const lt_flag_fields[N_FLAGS] = { FLAG_LIST(X) };
const char *const lt_number_fields[N_NUMBERS] = { NUMBER_LIST(X) };
#undef X

/* ------------------------------------------------------------------ the walk */

void lt_reader_open(reader *r, const lattice_allocator *mem, const char *name, const void *text, size_t size, lt_config *config,
                    lattice_error *err)
{
    r->config = config;
    r->err = err;
    r->fault = (lattice_error){ .code = LATTICE_OK };
    r->field[0] = '\0';
    lt_json_open(&r->json, mem, name, text, size, &r->fault);
}

void lt_reader_close(reader *r)
{
    lt_json_close(&r->json);
}

lattice_status lt_reader_fault(reader *r, lattice_status status)
{
    if (status == LATTICE_OK || r->fault.code == LATTICE_OK) return status;
    if (!r->field[0]) return lt_fail(r->err, status, "%s", r->fault.message);
    return lt_fail(r->err, status, "%s (in field '%s')", r->fault.message, r->field);
}

lattice_status lt_reader_next(reader *r, bool *more)
{
    lt_str key;
    LT_TRY(lt_json_next_member(&r->json, &key, more));
    r->field[0] = '\0';
    if (!*more) return LATTICE_OK;
    size_t n = key.len < sizeof r->field - 1 ? key.len : sizeof r->field - 1;
    if (n) memcpy(r->field, key.data, n);
    r->field[n] = '\0';
    if (strlen(r->field) != key.len) r->field[0] = '\0'; /* no field that is known here: a NUL in it, or too long */
    return LATTICE_OK;
}

bool lt_reader_is(const reader *r, const char *name)
{
    return strcmp(r->field, name) == 0;
}

lattice_status lt_reader_text(reader *r, const char **out)
{
    lt_str s;
    LT_TRY(lt_json_string(&r->json, &s));
    *out = lt_arena_copy(&r->config->arena, s.data, s.len);
    return *out ? LATTICE_OK : lt_no_memory(r->err, s.len, "a string of the configuration");
}

/* A number field: false when the value is null. */
static bool is_null(reader *r, lattice_status *status)
{
    if (lt_json_peek(&r->json) != LT_JSON_NULL) return false;
    *status = lt_json_null(&r->json);
    return true;
}

static lattice_status read_size(reader *r, const size_info *field, size_t *out)
{
    LT_TRY(lt_json_size(&r->json, out));
    if (*out > field->limit)
        return lt_fail(r->err, LATTICE_ERR_FORMAT, "%s: %s is %zu, over the limit of %zu", r->json.name, field->name, *out,
                       field->limit);
    return LATTICE_OK;
}

/* -1 stands for "none" in some files. */
static lattice_status read_pad_token_id(reader *r, fields *f)
{
    int64_t id;
    LT_TRY(lt_json_int64(&r->json, &id));
    if (id > (int64_t)lt_size_fields[SIZE_pad_token_id].limit || id < -1)
        return lt_fail(r->err, LATTICE_ERR_FORMAT, "%s: pad_token_id is %lld, which is no token id", r->json.name, (long long)id);
    f->has_size[SIZE_pad_token_id] = id >= 0;
    f->size[SIZE_pad_token_id] = id >= 0 ? (size_t)id : 0;
    return LATTICE_OK;
}

static lattice_status read_number(reader *r, fields *f, number_field i, bool inside)
{
    double value;
    LT_TRY(lt_json_double(&r->json, &value));
    if (f->inside[i] && !inside) return LATTICE_OK;
    f->number[i] = value;
    f->has_number[i] = true;
    f->inside[i] = inside;
    return LATTICE_OK;
}

/* rope_scaling (older) and rope_parameters (newer) are alike. */
static lattice_status read_rope(reader *r, fields *f)
{
    LT_TRY(lt_json_begin_object(&r->json));
    for (bool more;;) {
        lattice_status status = LATTICE_OK;
        LT_TRY(lt_reader_next(r, &more));
        if (!more) return LATTICE_OK;
        if (is_null(r, &status))
            LT_TRY(status);
        else if (lt_reader_is(r, "rope_theta"))
            LT_TRY(read_number(r, f, NUMBER_rope_theta, true));
        else if (lt_reader_is(r, "partial_rotary_factor"))
            LT_TRY(read_number(r, f, NUMBER_partial_rotary_factor, true));
        else if (lt_reader_is(r, "rope_type") || lt_reader_is(r, "type"))
            LT_TRY(lt_reader_text(r, &f->rope_type));
        else
            LT_TRY(lt_json_skip(&r->json));
    }
}

static lattice_status read_layer_types(reader *r, fields *f)
{
    f->has_layer_types = true;
    LT_TRY(lt_json_begin_array(&r->json));
    for (bool more;;) {
        lt_str type;
        LT_TRY(lt_json_next_element(&r->json, &more));
        if (!more) return LATTICE_OK;
        if (f->n_layer_types == MAX_LAYERS)
            return lt_fail(r->err, LATTICE_ERR_FORMAT, "%s: layer_types has more than %d entries", r->json.name, MAX_LAYERS);
        LT_TRY(lt_json_string(&r->json, &type));
        if (!lt_str_is(type, "full_attention") && !lt_str_is(type, "linear_attention"))
            return lt_fail(r->err, LATTICE_ERR_UNSUPPORTED,
                           "%s: layer_types: '%.*s' is not supported (supported: full_attention, linear_attention)", r->json.name,
                           LT_STR_ARG(type));
        f->layer_types[f->n_layer_types++] =
            lt_str_is(type, "full_attention") ? LT_LAYER_FULL_ATTENTION : LT_LAYER_LINEAR_ATTENTION;
    }
}

/* Keys are numbers written as strings, in any order; that they are 0 to n - 1 is checked when all are known. */
static lattice_status read_id2label(reader *r, fields *f)
{
    f->has_labels = true;
    LT_TRY(lt_json_begin_object(&r->json));
    for (lt_str key;;) {
        bool more;
        LT_TRY(lt_json_next_member(&r->json, &key, &more));
        if (!more) return LATTICE_OK;
        size_t id = 0;
        bool digits = key.len > 0 && key.len <= 7 && f->n_labels < MAX_LABELS;
        for (size_t i = 0; digits && i < key.len; i++) {
            digits = key.data[i] >= '0' && key.data[i] <= '9';
            id = id * 10 + (size_t)(key.data[i] - '0');
        }
        if (!digits)
            return lt_fail(r->err, LATTICE_ERR_FORMAT, "%s: id2label: '%.*s' is no label number", r->json.name, LT_STR_ARG(key));
        if (!LT_GROW(r->config->arena.mem, f->labels, f->labels_capacity, f->n_labels + 1))
            return lt_no_memory(r->err, (f->n_labels + 1) * sizeof *f->labels, "labels");
        f->labels[f->n_labels] = (label){ .id = id };
        LT_TRY(lt_reader_text(r, &f->labels[f->n_labels].name));
        f->n_labels++;
    }
}

static lattice_status read_text_config(reader *r, fields *text)
{
    LT_TRY(lt_reader_fields(r, text, NULL));
    text->present = true;
    return LATTICE_OK;
}

static lattice_status read_field(reader *r, fields *f, fields *text)
{
    lt_config *config = r->config;
    bool qwen = config->model_type == LT_MODEL_QWEN3 || config->model_type == LT_MODEL_QWEN3_5;
    if (lt_reader_is(r, "pad_token_id")) return read_pad_token_id(r, f);
    for (size_t i = 0; i < N_SIZES; i++) {
        if (!lt_reader_is(r, lt_size_fields[i].name)) continue;
        LT_TRY(read_size(r, &lt_size_fields[i], &f->size[i]));
        f->has_size[i] = true;
        return LATTICE_OK;
    }
    for (size_t i = 0; i < N_FLAGS; i++) {
        if (!lt_reader_is(r, lt_flag_fields[i])) continue;
        bool value;
        LT_TRY(lt_json_bool(&r->json, &value));
        f->flag[i] = value ? FLAG_TRUE : FLAG_FALSE;
        return LATTICE_OK;
    }
    for (size_t i = 0; i < N_NUMBERS; i++)
        if (lt_reader_is(r, lt_number_fields[i])) return read_number(r, f, (number_field)i, false);
    if (lt_reader_is(r, "hidden_act")) return lt_reader_text(r, &f->hidden_act);
    if (lt_reader_is(r, "position_embedding_type")) return lt_reader_text(r, &f->position_embedding_type);
    if (lt_reader_is(r, "eos_token_id")) return lt_reader_eos(r, &f->eos);
    if (qwen && (lt_reader_is(r, "rope_parameters") || lt_reader_is(r, "rope_scaling"))) return read_rope(r, f);
    if (qwen && lt_reader_is(r, "layer_types")) return read_layer_types(r, f);
    if (config->head == LT_HEAD_CLASSIFIER && lt_reader_is(r, "id2label")) return read_id2label(r, f);
    if (text && lt_reader_is(r, "text_config")) return read_text_config(r, text);
    return lt_json_skip(&r->json);
}

lattice_status lt_reader_fields(reader *r, fields *f, fields *text)
{
    LT_TRY(lt_json_begin_object(&r->json));
    for (bool more;;) {
        lattice_status status = LATTICE_OK;
        LT_TRY(lt_reader_next(r, &more));
        if (!more) return LATTICE_OK;
        if (is_null(r, &status))
            LT_TRY(status);
        else
            LT_TRY(read_field(r, f, text));
    }
}

/* ------------------------------------------------------------------ end tokens */

lattice_status lt_reader_eos(reader *r, eos_list *eos)
{
    eos->given = true;
    bool list = lt_json_peek(&r->json) == LT_JSON_ARRAY, more = true;
    if (list) LT_TRY(lt_json_begin_array(&r->json));
    for (;;) {
        if (list) LT_TRY(lt_json_next_element(&r->json, &more));
        if (!more) return LATTICE_OK;
        if (eos->n == MAX_EOS)
            return lt_fail(r->err, LATTICE_ERR_FORMAT, "%s: eos_token_id lists more than %d ids", r->json.name, MAX_EOS);
        LT_TRY(lt_json_uint32(&r->json, &eos->ids[eos->n]));
        eos->n++;
        if (!list) return LATTICE_OK;
    }
}

lattice_status lt_reader_set_eos(reader *r, const eos_list *eos)
{
    lt_config *config = r->config;
    if (eos->n == 0) return LATTICE_OK;
    uint32_t *ids = lt_arena_array(&config->arena, config->n_eos_token_ids + eos->n, sizeof *ids);
    if (!ids) return lt_no_memory(r->err, eos->n * sizeof *ids, "eos_token_id");
    if (config->n_eos_token_ids) memcpy(ids, config->eos_token_ids, config->n_eos_token_ids * sizeof *ids);
    config->eos_token_ids = ids;
    for (size_t i = 0; i < eos->n; i++) {
        bool known = eos->ids[i] >= config->vocab_size;
        for (size_t j = 0; j < config->n_eos_token_ids && !known; j++) known = ids[j] == eos->ids[i];
        if (!known) ids[config->n_eos_token_ids++] = eos->ids[i];
    }
    return LATTICE_OK;
}

/* ------------------------------------------------------------------ generation_config.json, inference_config.json */

static lattice_status read_float(reader *r, double low, double high, float *out)
{
    double value;
    LT_TRY(lt_json_double(&r->json, &value));
    if (!(value >= low && value <= high))
        return lt_fail(r->err, LATTICE_ERR_FORMAT, "%s: %s is %g, expected %g to %g", r->json.name, r->field, value, low, high);
    *out = (float)value;
    return LATTICE_OK;
}

static lattice_status read_generation(reader *r, eos_list *eos)
{
    lt_config *config = r->config;
    LT_TRY(lt_json_begin_object(&r->json));
    for (bool more;;) {
        lattice_status status = LATTICE_OK;
        LT_TRY(lt_reader_next(r, &more));
        if (!more) break;
        if (is_null(r, &status))
            LT_TRY(status);
        else if (lt_reader_is(r, "eos_token_id"))
            LT_TRY(lt_reader_eos(r, eos));
        else if (lt_reader_is(r, "do_sample"))
            LT_TRY(lt_json_bool(&r->json, &config->generation.do_sample));
        else if (lt_reader_is(r, "temperature"))
            LT_TRY(read_float(r, 0, 1e6, &config->generation.temperature));
        else if (lt_reader_is(r, "top_p"))
            LT_TRY(read_float(r, 0, 1, &config->generation.top_p));
        else if (lt_reader_is(r, "min_p"))
            LT_TRY(read_float(r, 0, 1, &config->generation.min_p));
        else if (lt_reader_is(r, "repetition_penalty"))
            LT_TRY(read_float(r, 1e-3, 1e3, &config->generation.repetition_penalty));
        else if (lt_reader_is(r, "top_k"))
            LT_TRY(lt_json_size(&r->json, &config->generation.top_k));
        else
            LT_TRY(lt_json_skip(&r->json));
    }
    return lt_json_end(&r->json);
}

static lattice_status read_inference(reader *r, eos_list *eos)
{
    static const size_info rope = { "rope_table_max_seq_len", 1 << 30 }, gpu = { "gpu_max_seq_len", 1 << 30 };
    lt_config *config = r->config;
    LT_TRY(lt_json_begin_object(&r->json));
    for (bool more;;) {
        lattice_status status = LATTICE_OK;
        LT_TRY(lt_reader_next(r, &more));
        if (!more) break;
        size_t *limit = lt_reader_is(r, rope.name)  ? &config->rope_table_max_seq_len
                        : lt_reader_is(r, gpu.name) ? &config->gpu_max_seq_len
                                                    : NULL;
        if (is_null(r, &status)) {
            LT_TRY(status);
        } else if (limit) {
            LT_TRY(read_size(r, limit == &config->gpu_max_seq_len ? &gpu : &rope, limit));
            if (*limit == 0) return lt_fail(r->err, LATTICE_ERR_FORMAT, "%s: %s is 0", r->json.name, r->field);
        } else if (lt_reader_is(r, "eos_token_id")) {
            LT_TRY(lt_reader_eos(r, eos));
        } else {
            LT_TRY(lt_json_skip(&r->json));
        }
    }
    return lt_json_end(&r->json);
}

lattice_status lt_config_parse_generation(const lattice_allocator *mem, const char *name, const void *text, size_t size,
                                          lt_config *config, lattice_error *err)
{
    reader r;
    eos_list eos = { 0 };
    lt_reader_open(&r, mem, name, text, size, config, err);
    lattice_status status = read_generation(&r, &eos);
    if (status == LATTICE_OK) status = lt_reader_set_eos(&r, &eos);
    status = lt_reader_fault(&r, status);
    lt_reader_close(&r);
    return status;
}

lattice_status lt_config_parse_inference(const lattice_allocator *mem, const char *name, const void *text, size_t size,
                                         lt_config *config, lattice_error *err)
{
    reader r;
    eos_list eos = { 0 };
    lt_reader_open(&r, mem, name, text, size, config, err);
    lattice_status status = read_inference(&r, &eos);
    if (status == LATTICE_OK && eos.given) {
        config->n_eos_token_ids = 0;
        status = lt_reader_set_eos(&r, &eos);
    }
    status = lt_reader_fault(&r, status);
    lt_reader_close(&r);
    return status;
}

/* ------------------------------------------------------------------ small texts */

size_t lt_list_name(char *out, size_t capacity, size_t used, const char *name)
{
    int n = snprintf(out + used, capacity - used, "%s%s", used ? ", " : "", name);
    return n >= 0 && (size_t)n < capacity - used ? used + (size_t)n : used;
}

size_t lt_write_label(char out[32], size_t i)
{
    int n = snprintf(out, 32, "LABEL_%zu", i);
    return n > 0 ? (size_t)n : 0;
}
