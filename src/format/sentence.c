/* Reading Sentence-Transformers files.
 *
 * modules.json lists a pipeline; lattice runs Transformer, Pooling, then Dense modules, then Normalize, and any other order is
 * refused rather than run wrongly. Folder names come from the file: they must stay inside the checkpoint. */
#include "format/sentence.h"

#include "format/json.h"

typedef enum module_kind { MODULE_TRANSFORMER, MODULE_POOLING, MODULE_DENSE, MODULE_NORMALIZE, N_MODULE_KINDS } module_kind;

static const char *const module_names[N_MODULE_KINDS] = { "Transformer", "Pooling", "Dense", "Normalize" };

enum { MAX_MODULES = 32 };

typedef struct module {
    module_kind kind;
    const char *path; /* below the checkpoint's folder; "": the folder itself */
} module;

typedef struct sentence_reader {
    const lattice_allocator *mem;
    const char *folder;
    const lt_config *config;
    bool use_mmap;
    lt_sentence *out;
    lattice_error *err;
    module modules[MAX_MODULES];
    size_t n_modules;
} sentence_reader;

/* ------------------------------------------------------------------ one JSON file */

typedef struct document {
    lt_buf path;
    lt_file file;
    lt_json json;
    bool open;
} document;

/* Opens folder/module/name; optional and absent: doc->open stays false. */
static lattice_status document_open(const sentence_reader *r, const char *in, const char *name, bool optional, document *doc)
{
    doc->open = false;
    lt_buf_init(&doc->path, r->mem);
    lt_buf_append_z(&doc->path, r->folder);
    if (in[0]) lt_buf_printf(&doc->path, "/%s", in);
    lt_buf_printf(&doc->path, "/%s", name);
    lattice_status status = LATTICE_OK;
    if (doc->path.failed)
        status = lt_no_memory(r->err, strlen(r->folder), "a path");
    else if (!optional || lt_path_exists(doc->path.data)) {
        status = lt_file_open(r->mem, doc->path.data, false, &doc->file, r->err);
        doc->open = status == LATTICE_OK;
    }
    if (doc->open)
        lt_json_open(&doc->json, r->mem, doc->path.data, doc->file.data, doc->file.size, r->err);
    else
        lt_buf_free(&doc->path);
    return status;
}

static void document_close(document *doc)
{
    if (!doc->open) return;
    lt_json_close(&doc->json);
    lt_file_close(&doc->file);
    lt_buf_free(&doc->path);
}

/* Reads one file with `fn`, which gets the reader at the first byte; what follows the value is checked here. */
typedef lattice_status (*document_fn)(sentence_reader *r, lt_json *json, void *arg);

static lattice_status read_document(sentence_reader *r, const char *in, const char *name, bool optional, document_fn fn,
                                    void *arg)
{
    document doc;
    LT_TRY(document_open(r, in, name, optional, &doc));
    if (!doc.open) return LATTICE_OK;
    lattice_status status = fn(r, &doc.json, arg);
    if (status == LATTICE_OK) status = lt_json_end(&doc.json);
    document_close(&doc);
    return status;
}

/* Steps to the next member whose value is not null. */
static lattice_status next_value(lt_json *json, lt_str *key, bool *more)
{
    for (;;) {
        LT_TRY(lt_json_next_member(json, key, more));
        if (!*more || lt_json_peek(json) != LT_JSON_NULL) return LATTICE_OK;
        LT_TRY(lt_json_null(json));
    }
}

/* Copies a string that is used as a C string: NUL would cut it. */
static lattice_status copy_text(sentence_reader *r, lt_json *json, lt_str s, const char **out)
{
    if (s.len && memchr(s.data, '\0', s.len)) return lt_json_fail(json, "a string with a NUL character is not supported here");
    *out = lt_arena_copy(&r->out->arena, s.data, s.len);
    return *out ? LATTICE_OK : lt_no_memory(r->err, s.len, "a string of the configuration");
}

/* ------------------------------------------------------------------ modules.json */

/* "" or names joined by '/', none of which leads out. */
static bool path_stays_inside(lt_str path)
{
    if (path.len == 0) return true;
    for (size_t begin = 0, i = 0; i <= path.len; i++) {
        if (i < path.len && path.data[i] != '/') continue;
        if (!lt_path_is_plain_name((lt_str){ path.data + begin, i - begin })) return false;
        begin = i + 1;
    }
    return true;
}

/* Older files say sentence_transformers.models.Pooling, newer ones name the file as well: the class is the last part. */
static bool find_kind(lt_str type, module_kind *kind)
{
    if (!lt_str_starts(type, "sentence_transformers.")) return false;
    size_t begin = type.len;
    while (begin > 0 && type.data[begin - 1] != '.') begin--;
    for (int i = 0; i < N_MODULE_KINDS; i++) {
        *kind = (module_kind)i;
        if (lt_str_is((lt_str){ type.data + begin, type.len - begin }, module_names[i])) return true;
    }
    return false;
}

static lattice_status read_module(sentence_reader *r, lt_json *json, module *m)
{
    bool has_type = false;
    m->path = "";
    LT_TRY(lt_json_begin_object(json));
    for (lt_str key, value;;) {
        bool more;
        LT_TRY(next_value(json, &key, &more));
        if (!more) break;
        if (lt_str_is(key, "type")) {
            LT_TRY(lt_json_string(json, &value));
            if (!find_kind(value, &m->kind))
                return lt_fail(r->err, LATTICE_ERR_UNSUPPORTED,
                               "%s: module type '%.*s' is not supported (supported: Transformer, Pooling, Dense, Normalize)",
                               json->name, LT_STR_ARG(value));
            has_type = true;
        } else if (lt_str_is(key, "path")) {
            LT_TRY(lt_json_string(json, &value));
            if (!path_stays_inside(value))
                return lt_fail(r->err, LATTICE_ERR_FORMAT, "%s: module path '%.*s' leads out of the folder", json->name,
                               LT_STR_ARG(value));
            LT_TRY(copy_text(r, json, value, &m->path));
        } else {
            LT_TRY(lt_json_skip(json));
        }
    }
    return has_type ? LATTICE_OK : lt_fail(r->err, LATTICE_ERR_FORMAT, "%s: a module has no type", json->name);
}

/* Transformer, Pooling, Dense*, Normalize. A classifier's list may end after the Transformer. */
static lattice_status check_order(const sentence_reader *r, const char *name)
{
    const module *m = r->modules;
    size_t n = r->n_modules;
    bool classifier = r->config->head == LT_HEAD_CLASSIFIER;
    if (n == 0 || m[0].kind != MODULE_TRANSFORMER)
        return lt_fail(r->err, LATTICE_ERR_UNSUPPORTED, "%s: the first module is not a Transformer", name);
    if (m[0].path[0])
        return lt_fail(r->err, LATTICE_ERR_UNSUPPORTED, "%s: the Transformer is in '%s': only the folder itself is supported",
                       name, m[0].path);
    if (n == 1 && classifier) return LATTICE_OK;
    if (n == 1 || m[1].kind != MODULE_POOLING)
        return lt_fail(r->err, LATTICE_ERR_UNSUPPORTED, "%s: the second module is not a Pooling", name);
    for (size_t i = 2; i < n; i++)
        if (m[i].kind < MODULE_DENSE || (m[i].kind == MODULE_DENSE && m[i - 1].kind == MODULE_NORMALIZE))
            return lt_fail(r->err, LATTICE_ERR_UNSUPPORTED,
                           "%s: module %zu is a %s after a %s (supported: Transformer, Pooling, Dense …, Normalize)", name, i,
                           module_names[m[i].kind], module_names[m[i - 1].kind]);
    return LATTICE_OK;
}

static lattice_status read_modules(sentence_reader *r, lt_json *json, void *arg)
{
    *(bool *)arg = true;
    LT_TRY(lt_json_begin_array(json));
    for (bool more;;) {
        LT_TRY(lt_json_next_element(json, &more));
        if (!more) return check_order(r, json->name);
        if (r->n_modules == MAX_MODULES)
            return lt_fail(r->err, LATTICE_ERR_UNSUPPORTED, "%s: more than %d modules", json->name, MAX_MODULES);
        LT_TRY(read_module(r, json, &r->modules[r->n_modules]));
        r->n_modules++;
    }
}

/* ------------------------------------------------------------------ Pooling */

// clang-format off
static const struct {
    const char *flag, *mode; /* older spelling, a boolean each; newer one, a string or list of strings */
    unsigned bit;
} poolings[] = {
    { "pooling_mode_cls_token",            "cls",                  LATTICE_POOLING_CLS },
    { "pooling_mode_max_tokens",           "max",                  LATTICE_POOLING_MAX },
    { "pooling_mode_mean_tokens",          "mean",                 LATTICE_POOLING_MEAN },
    { "pooling_mode_mean_sqrt_len_tokens", "mean_sqrt_len_tokens", LATTICE_POOLING_MEAN_SQRT_LEN },
    { "pooling_mode_weightedmean_tokens",  "weightedmean",         LATTICE_POOLING_WEIGHTEDMEAN },
    { "pooling_mode_lasttoken",            "lasttoken",            LATTICE_POOLING_LASTTOKEN },
};
// clang-format on
enum { N_POOLINGS = sizeof poolings / sizeof *poolings };

static lattice_status read_mode(sentence_reader *r, lt_json *json, unsigned *modes)
{
    lt_str mode;
    LT_TRY(lt_json_string(json, &mode));
    for (int i = 0; i < N_POOLINGS; i++) {
        if (!lt_str_is(mode, poolings[i].mode)) continue;
        if (*modes >= poolings[i].bit) /* the bits are in the order in which poolings are concatenated */
            return lt_fail(r->err, LATTICE_ERR_UNSUPPORTED,
                           "%s: pooling_mode: '%s' stands after a mode that it is put before (order: cls, max, mean, "
                           "mean_sqrt_len_tokens, weightedmean, lasttoken)",
                           json->name, poolings[i].mode);
        *modes |= poolings[i].bit;
        return LATTICE_OK;
    }
    return lt_fail(r->err, LATTICE_ERR_UNSUPPORTED, "%s: pooling_mode '%.*s' is not supported", json->name, LT_STR_ARG(mode));
}

static lattice_status read_modes(sentence_reader *r, lt_json *json, unsigned *modes)
{
    if (lt_json_peek(json) != LT_JSON_ARRAY) return read_mode(r, json, modes);
    LT_TRY(lt_json_begin_array(json));
    for (bool more;;) {
        LT_TRY(lt_json_next_element(json, &more));
        if (!more) return LATTICE_OK;
        LT_TRY(read_mode(r, json, modes));
    }
}

static lattice_status read_flag(sentence_reader *r, lt_json *json, lt_str key, unsigned *flags)
{
    unsigned bit = 0;
    bool value;
    for (int i = 0; i < N_POOLINGS; i++)
        if (lt_str_is(key, poolings[i].flag)) bit = poolings[i].bit;
    char name[64];
    size_t n = key.len < sizeof name - 1 ? key.len : sizeof name - 1;
    memcpy(name, key.data, n); /* the key does not outlive the next value */
    name[n] = '\0';
    LT_TRY(lt_json_bool(json, &value));
    if (value && !bit) return lt_fail(r->err, LATTICE_ERR_UNSUPPORTED, "%s: '%s' is not supported", json->name, name);
    if (value) *flags |= bit;
    return LATTICE_OK;
}

static lattice_status read_pooling(sentence_reader *r, lt_json *json, void *arg)
{
    (void)arg;
    unsigned flags = 0, modes = 0;
    size_t width;
    LT_TRY(lt_json_begin_object(json));
    for (lt_str key;;) {
        bool more;
        LT_TRY(next_value(json, &key, &more));
        if (!more) break;
        if (lt_str_is(key, "pooling_mode"))
            LT_TRY(read_modes(r, json, &modes));
        else if (lt_str_starts(key, "pooling_mode_"))
            LT_TRY(read_flag(r, json, key, &flags));
        else if (lt_str_is(key, "include_prompt"))
            LT_TRY(lt_json_bool(json, &r->out->include_prompt));
        else if (lt_str_is(key, "word_embedding_dimension") || lt_str_is(key, "embedding_dimension")) {
            LT_TRY(lt_json_size(json, &width));
            if (width != r->config->hidden_size)
                return lt_fail(r->err, LATTICE_ERR_FORMAT, "%s: pools vectors of %zu, but hidden_size is %zu", json->name, width,
                               r->config->hidden_size);
        } else
            LT_TRY(lt_json_skip(json));
    }
    /* Sentence-Transformers: the newer key wins, and no flag at all means the mean. */
    r->out->pooling = modes ? modes : flags ? flags : LATTICE_POOLING_MEAN;
    return LATTICE_OK;
}

/* ------------------------------------------------------------------ Dense */

static const struct {
    const char *name;
    lt_activation activation;
} dense_activations[] = {
    { "torch.nn.modules.activation.Tanh", LT_ACT_TANH }, { "torch.nn.modules.activation.ReLU", LT_ACT_RELU },
    { "torch.nn.modules.activation.GELU", LT_ACT_GELU }, { "torch.nn.modules.activation.Sigmoid", LT_ACT_SIGMOID },
    { "torch.nn.modules.activation.SiLU", LT_ACT_SILU }, { "torch.nn.modules.linear.Identity", LT_ACT_NONE },
};

static lattice_status read_activation(sentence_reader *r, lt_json *json, lt_activation *out)
{
    lt_str name;
    LT_TRY(lt_json_string(json, &name));
    for (size_t i = 0; i < sizeof dense_activations / sizeof *dense_activations; i++) {
        *out = dense_activations[i].activation;
        if (lt_str_is(name, dense_activations[i].name)) return LATTICE_OK;
    }
    return lt_fail(
        r->err, LATTICE_ERR_UNSUPPORTED,
        "%s: activation_function '%.*s' is not supported (supported: Tanh, ReLU, GELU, Sigmoid, SiLU, Identity of torch.nn)",
        json->name, LT_STR_ARG(name));
}

static lattice_status read_dense_config(sentence_reader *r, lt_json *json, void *arg)
{
    lt_dense *dense = arg;
    LT_TRY(lt_json_begin_object(json));
    for (lt_str key;;) {
        bool more;
        LT_TRY(next_value(json, &key, &more));
        if (!more) break;
        if (lt_str_is(key, "in_features"))
            LT_TRY(lt_json_size(json, &dense->in_features));
        else if (lt_str_is(key, "out_features"))
            LT_TRY(lt_json_size(json, &dense->out_features));
        else if (lt_str_is(key, "bias"))
            LT_TRY(lt_json_bool(json, &dense->bias));
        else if (lt_str_is(key, "activation_function"))
            LT_TRY(read_activation(r, json, &dense->activation));
        else if (lt_str_is(key, "use_residual")) {
            bool residual;
            LT_TRY(lt_json_bool(json, &residual));
            if (residual) return lt_fail(r->err, LATTICE_ERR_UNSUPPORTED, "%s: use_residual is not supported", json->name);
        } else if (lt_str_is(key, "module_input_name") || lt_str_is(key, "module_output_name")) {
            lt_str value;
            LT_TRY(lt_json_string(json, &value));
            if (!lt_str_is(value, "sentence_embedding"))
                return lt_fail(r->err, LATTICE_ERR_UNSUPPORTED, "%s: a Dense module on '%.*s' is not supported", json->name,
                               LT_STR_ARG(value));
        } else
            LT_TRY(lt_json_skip(json));
    }
    if (dense->in_features == 0 || dense->out_features == 0)
        return lt_fail(r->err, LATTICE_ERR_FORMAT, "%s: %s is missing or 0", json->name,
                       dense->in_features == 0 ? "in_features" : "out_features");
    return LATTICE_OK;
}

static lattice_status check_dense_tensor(const sentence_reader *r, const lt_checkpoint *weights, const char *name, int rank,
                                         size_t rows, size_t cols)
{
    const lt_tensor *tensor = lt_checkpoint_find(weights, lt_str_of(name));
    if (!tensor) return lt_fail(r->err, LATTICE_ERR_FORMAT, "%s: tensor '%s' is missing", lt_checkpoint_folder(weights), name);
    if (tensor->rank != rank || tensor->shape[0] != rows || (rank == 2 && tensor->shape[1] != cols))
        return lt_fail(r->err, LATTICE_ERR_FORMAT, "%s: tensor '%s' does not have the shape that config.json says (%zu by %zu)",
                       lt_checkpoint_folder(weights), name, rows, cols);
    return LATTICE_OK;
}

static size_t pooled_width(const sentence_reader *r)
{
    size_t n = 0;
    for (int i = 0; i < N_POOLINGS; i++) n += (r->out->pooling & poolings[i].bit) != 0;
    return n * r->config->hidden_size;
}

static lattice_status read_dense(sentence_reader *r, const char *path)
{
    lt_sentence *out = r->out;
    lt_dense *dense = &out->dense[out->n_dense];
    *dense = (lt_dense){ .activation = LT_ACT_TANH, .bias = true };
    LT_TRY(read_document(r, path, "config.json", false, read_dense_config, dense));
    size_t width = out->n_dense > 0 ? dense[-1].out_features : pooled_width(r);
    if (dense->in_features != width)
        return lt_fail(r->err, LATTICE_ERR_FORMAT, "%s/%s/config.json: in_features is %zu, but the vectors have %zu", r->folder,
                       path, dense->in_features, width);
    lt_buf folder;
    lt_buf_init(&folder, r->mem);
    lattice_status status;
    if (lt_path_join(&folder, r->folder, path))
        status = lt_checkpoint_open(r->mem, folder.data, r->use_mmap, &dense->weights, r->err);
    else
        status = lt_no_memory(r->err, strlen(r->folder), "a path");
    lt_buf_free(&folder);
    if (status != LATTICE_OK) return status;
    out->n_dense++; /* from here on lt_sentence_free closes it */
    LT_TRY(check_dense_tensor(r, dense->weights, "linear.weight", 2, dense->out_features, dense->in_features));
    if (!dense->bias) return LATTICE_OK;
    return check_dense_tensor(r, dense->weights, "linear.bias", 1, dense->out_features, 1);
}

static lattice_status apply_modules(sentence_reader *r)
{
    lt_sentence *out = r->out;
    out->dense = lt_arena_array(&out->arena, r->n_modules + 1, sizeof *out->dense);
    if (!out->dense) return lt_no_memory(r->err, r->n_modules * sizeof *out->dense, "Dense modules");
    out->normalize = false;
    for (size_t i = 0; i < r->n_modules; i++) {
        const module *m = &r->modules[i];
        if (m->kind == MODULE_POOLING)
            LT_TRY(read_document(r, m->path, "config.json", false, read_pooling, NULL));
        else if (m->kind == MODULE_DENSE)
            LT_TRY(read_dense(r, m->path));
        else if (m->kind == MODULE_NORMALIZE)
            out->normalize = true;
    }
    return LATTICE_OK;
}

/* ------------------------------------------------------------------ lengths and prompts */

static lattice_status read_transformer(sentence_reader *r, lt_json *json, void *arg)
{
    (void)arg;
    LT_TRY(lt_json_begin_object(json));
    for (lt_str key;;) {
        bool more;
        LT_TRY(next_value(json, &key, &more));
        if (!more) return LATTICE_OK;
        if (lt_str_is(key, "max_seq_length")) {
            LT_TRY(lt_json_size(json, &r->out->max_length));
            if (r->out->max_length == 0) return lt_fail(r->err, LATTICE_ERR_FORMAT, "%s: max_seq_length is 0", json->name);
        } else if (lt_str_is(key, "do_lower_case"))
            LT_TRY(lt_json_bool(json, &r->out->lower_case));
        else
            LT_TRY(lt_json_skip(json));
    }
}

static lattice_status read_tokenizer_config(sentence_reader *r, lt_json *json, void *arg)
{
    (void)arg;
    LT_TRY(lt_json_begin_object(json));
    for (lt_str key;;) {
        bool more;
        LT_TRY(next_value(json, &key, &more));
        if (!more) return LATTICE_OK;
        if (lt_str_is(key, "model_max_length")) {
            double length; /* "no limit" is written as 1e30 */
            LT_TRY(lt_json_double(json, &length));
            if (!(length >= 1))
                return lt_fail(r->err, LATTICE_ERR_FORMAT, "%s: model_max_length is %g, expected at least 1", json->name, length);
            r->out->max_length = length < 1e9 ? (size_t)length : (size_t)1000000000;
        } else
            LT_TRY(lt_json_skip(json));
    }
}

static lattice_status read_max_length(sentence_reader *r)
{
    /* The file is named after the kind of model in some older checkpoints. */
    static const char *const names[] = { "sentence_bert_config.json", "sentence_roberta_config.json",
                                         "sentence_xlm-roberta_config.json" };
    lt_sentence *out = r->out;
    for (size_t i = 0; i < sizeof names / sizeof *names && out->max_length == 0; i++)
        LT_TRY(read_document(r, "", names[i], true, read_transformer, NULL));
    if (out->max_length == 0) LT_TRY(read_document(r, "", "tokenizer_config.json", true, read_tokenizer_config, NULL));
    size_t limit = lt_config_max_length(r->config);
    if (out->max_length == 0 || out->max_length > limit) out->max_length = limit;
    return LATTICE_OK;
}

typedef struct prompt_list {
    lt_prompt *data;
    size_t capacity;
} prompt_list;

static lattice_status read_prompts(sentence_reader *r, lt_json *json, prompt_list *list)
{
    lt_sentence *out = r->out;
    LT_TRY(lt_json_begin_object(json));
    for (lt_str key, value;;) {
        bool more;
        LT_TRY(lt_json_next_member(json, &key, &more));
        if (!more) return LATTICE_OK;
        if (!LT_GROW(r->mem, list->data, list->capacity, out->n_prompts + 1))
            return lt_no_memory(r->err, (out->n_prompts + 1) * sizeof *list->data, "prompts");
        lt_prompt *prompt = &list->data[out->n_prompts];
        LT_TRY(copy_text(r, json, key, &prompt->name));
        prompt->text = "";
        if (lt_json_peek(json) == LT_JSON_NULL) {
            LT_TRY(lt_json_null(json));
        } else {
            LT_TRY(lt_json_string(json, &value));
            LT_TRY(copy_text(r, json, value, &prompt->text));
        }
        out->n_prompts++;
    }
}

static lattice_status read_prompt_config(sentence_reader *r, lt_json *json, void *arg)
{
    LT_TRY(lt_json_begin_object(json));
    for (lt_str key, value;;) {
        bool more;
        LT_TRY(next_value(json, &key, &more));
        if (!more) break;
        if (lt_str_is(key, "prompts"))
            LT_TRY(read_prompts(r, json, arg));
        else if (lt_str_is(key, "default_prompt_name")) {
            LT_TRY(lt_json_string(json, &value));
            LT_TRY(copy_text(r, json, value, &r->out->default_prompt));
        } else
            LT_TRY(lt_json_skip(json));
    }
    if (!r->out->default_prompt) return LATTICE_OK;
    const prompt_list *list = arg;
    for (size_t i = 0; i < r->out->n_prompts; i++)
        if (strcmp(list->data[i].name, r->out->default_prompt) == 0) return LATTICE_OK;
    return lt_fail(r->err, LATTICE_ERR_FORMAT, "%s: default_prompt_name '%.200s' is not among the prompts", json->name,
                   r->out->default_prompt);
}

static lattice_status read_all_prompts(sentence_reader *r)
{
    prompt_list list = { 0 };
    lt_sentence *out = r->out;
    lattice_status status = read_document(r, "", "config_sentence_transformers.json", true, read_prompt_config, &list);
    if (status == LATTICE_OK && out->n_prompts > 0) {
        out->prompts = lt_arena_array(&out->arena, out->n_prompts, sizeof *out->prompts);
        if (out->prompts)
            memcpy(out->prompts, list.data, out->n_prompts * sizeof *out->prompts);
        else
            status = lt_no_memory(r->err, out->n_prompts * sizeof *out->prompts, "prompts");
    }
    lt_free(r->mem, list.data);
    return status;
}

/* ------------------------------------------------------------------ public */

lattice_status lt_sentence_read(const lattice_allocator *mem, const char *folder, const lt_config *config, bool use_mmap,
                                lt_sentence *sentence, lattice_error *err)
{
    bool qwen = config->model_type == LT_MODEL_QWEN3 || config->model_type == LT_MODEL_QWEN3_5, has_modules = false;
    *sentence = (lt_sentence){
        .pooling = qwen ? LATTICE_POOLING_LASTTOKEN : LATTICE_POOLING_MEAN,
        .include_prompt = true,
        .normalize = true,
    };
    lt_arena_init(&sentence->arena, mem);
    sentence_reader r = { .mem = mem, .folder = folder, .config = config, .use_mmap = use_mmap, .out = sentence, .err = err };
    LT_TRY(read_document(&r, "", "modules.json", true, read_modules, &has_modules));
    sentence->has_modules = has_modules;
    if (has_modules) LT_TRY(apply_modules(&r));
    LT_TRY(read_max_length(&r));
    return read_all_prompts(&r);
}

void lt_sentence_free(lt_sentence *sentence)
{
    if (!sentence->arena.mem) return;
    for (size_t i = 0; i < sentence->n_dense; i++) lt_checkpoint_close(sentence->dense[i].weights);
    lt_arena_free(&sentence->arena);
    *sentence = (lt_sentence){ 0 };
}
