/* Text Embeddings Inference's routes of the tokenizer: texts to tokens, ids to texts. */
#include "server/exchange.h"
#include "server/inputs.h"
#include "server/readers.h"
#include "server/tokenizing.h"

static bool has_tokenizer(const lt_server *server, size_t model)
{
    return lattice_model_tokenizer(server->options.models[model].model) != NULL;
}

static void tokenizing_free(void *opaque)
{
    lt_tokenizing *t = opaque;
    lt_inputs_free(&t->inputs);
    lt_free(t->mem, t);
}

static lt_tokenizing *create(lt_exchange *ex)
{
    const lattice_allocator *mem = ex->server->mem;
    lt_tokenizing *t = lt_alloc_zero(mem, sizeof *t);
    if (!t) {
        lt_answer_error(ex, LT_PROBLEM_BACKEND, NULL, "no memory for the request");
        return NULL;
    }
    t->mem = mem;
    t->special = true;
    lt_inputs_init(&t->inputs, mem);
    ex->call = t;
    ex->free_call = tokenizing_free;
    return t;
}

/* The tokenizer of the model that was asked for; NULL: the answer (an error) is set. */
static lattice_tokenizer *find_tokenizer(lt_exchange *ex, lt_tokenizing *t, const char *field)
{
    const lt_server *server = ex->server;
    lt_str name = t->model_name ? lt_str_of(t->model_name) : (lt_str){ NULL, 0 };
    int model = lt_find_model(ex, name, has_tokenizer, "has a tokenizer");
    if (model < 0) return NULL;
    if (t->inputs.n == 0 && !t->inputs.single) {
        lt_answer_error(ex, LT_PROBLEM_INVALID, field, "'%s' is missing or empty", field);
        return NULL;
    }
    if (t->inputs.n > server->options.max_client_batch) {
        lt_answer_error(ex, LT_PROBLEM_BATCH, field, "%zu texts are more than the %zu that a request may have", t->inputs.n,
                        server->options.max_client_batch);
        return NULL;
    }
    return lattice_model_tokenizer(server->options.models[model].model);
}

typedef lattice_status answer_fn(lt_exchange *ex, const lt_tokenizing *t, lattice_tokenizer *tokenizer, lattice_error *err);

/* Reads the body, whose inputs are its member `field`, and writes the answer. */
static void answer(lt_exchange *ex, lattice_status (*read)(lt_json *json, void *request), const char *field, answer_fn *write)
{
    lt_tokenizing *t = create(ex);
    lattice_tokenizer *tokenizer = t && lt_read_body(ex, read, t) ? find_tokenizer(ex, t, field) : NULL;
    lattice_error err = { 0 };
    if (tokenizer) {
        if (write(ex, t, tokenizer, &err) == LATTICE_OK)
            lt_answer_json(ex);
        else
            lt_answer_status(ex, field, &err);
    }
    lt_exchange_finish(ex);
}

/* ------------------------------------------------------------------ POST /tokenize */

static lattice_status read_tokenize_member(lt_json *json, void *request, lt_str key)
{
    lt_tokenizing *t = request;
    if (lt_str_is(key, "inputs"))
        LT_TRY(lt_read_inputs(json, &t->inputs, false));
    else if (lt_str_is(key, "add_special_tokens"))
        LT_TRY(lt_read_bool(json, &t->special));
    else if (lt_str_is(key, "model"))
        LT_TRY(lt_read_name(json, &t->inputs, &t->model_name));
    else
        LT_TRY(lt_json_skip(json));
    return LATTICE_OK;
}

lattice_status lt_read_tei_tokenize(lt_json *json, void *request)
{
    LT_TRY(lt_read_members(json, read_tokenize_member, request));
    return lt_json_end(json);
}

static void write_token(lt_json_writer *w, const lattice_tokenizer *tokenizer, lattice_text text, const lattice_encoding *e,
                        size_t i)
{
    lt_json_write_begin(w, '{');
    lt_json_write_key(w, "id");
    lt_json_write_uint(w, e->ids[i]);
    lt_json_write_key(w, "text");
    if (e->special[i]) {
        lattice_text spelling = lattice_token_text(tokenizer, e->ids[i]);
        lt_json_write_str(w, (lt_str){ spelling.data ? spelling.data : "", spelling.length });
    } else {
        lt_json_write_str(w, (lt_str){ text.data + e->offsets[i].start, e->offsets[i].end - e->offsets[i].start });
    }
    lt_json_write_key(w, "special");
    lt_json_write_bool(w, e->special[i]);
    lt_json_write_key(w, "start");
    if (e->special[i])
        lt_json_write_null(w);
    else
        lt_json_write_uint(w, e->offsets[i].start);
    lt_json_write_key(w, "stop");
    if (e->special[i])
        lt_json_write_null(w);
    else
        lt_json_write_uint(w, e->offsets[i].end);
    lt_json_write_end(w, '}');
}

static lattice_status tokenize(lt_exchange *ex, const lt_tokenizing *t, lattice_tokenizer *tokenizer, lattice_error *err)
{
    lattice_encode_options options = lattice_encode_options_default();
    options.add_special = t->special;
    lt_json_writer w = lt_json_writer_on(&ex->out);
    lt_json_write_begin(&w, '[');
    for (size_t k = 0; k < t->inputs.n; k++) {
        lattice_encoding e;
        LT_TRY(lattice_encode(tokenizer, t->inputs.texts[k], NULL, &options, &e, err));
        lt_json_write_begin(&w, '[');
        for (size_t i = 0; i < e.n; i++) write_token(&w, tokenizer, t->inputs.texts[k], &e, i);
        lt_json_write_end(&w, ']');
        ex->n_tokens += e.n;
        lattice_encoding_free(&e);
    }
    lt_json_write_end(&w, ']');
    return LATTICE_OK;
}

void lt_tei_tokenize(lt_exchange *ex)
{
    answer(ex, lt_read_tei_tokenize, "inputs", tokenize);
}

/* ------------------------------------------------------------------ POST /decode */

static lattice_status read_decode_member(lt_json *json, void *request, lt_str key)
{
    lt_tokenizing *t = request;
    if (lt_str_is(key, "ids")) {
        LT_TRY(lt_read_inputs(json, &t->inputs, true));
        if (t->inputs.n > 0 && !t->inputs.by_ids)
            return lt_json_fail(json, "'ids' must be a list of ids, or a list of such lists");
    } else if (lt_str_is(key, "skip_special_tokens")) {
        LT_TRY(lt_read_bool(json, &t->special));
    } else if (lt_str_is(key, "model")) {
        LT_TRY(lt_read_name(json, &t->inputs, &t->model_name));
    } else {
        LT_TRY(lt_json_skip(json));
    }
    return LATTICE_OK;
}

lattice_status lt_read_tei_decode(lt_json *json, void *request)
{
    LT_TRY(lt_read_members(json, read_decode_member, request));
    return lt_json_end(json);
}

static lattice_status decode(lt_exchange *ex, const lt_tokenizing *t, lattice_tokenizer *tokenizer, lattice_error *err)
{
    lt_json_writer w = lt_json_writer_on(&ex->out);
    size_t vocabulary = lattice_vocabulary_size(tokenizer);
    lt_json_write_begin(&w, '[');
    for (size_t k = 0; k < t->inputs.n; k++) {
        size_t begin = k ? t->inputs.ends[k - 1] : 0, n = t->inputs.ends[k] - begin;
        for (size_t i = begin; i < begin + n; i++)
            if (t->inputs.ids[i] >= vocabulary)
                return lt_fail(err, LATTICE_ERR_INVALID_ARGUMENT, "token id %u is outside the vocabulary of %zu",
                               t->inputs.ids[i], vocabulary);
        lattice_text text;
        LT_TRY(lattice_decode(tokenizer, t->inputs.ids + begin, n, t->special, &text, err));
        lt_json_write_str(&w, (lt_str){ text.data, text.length });
        lattice_text_free(tokenizer, &text);
    }
    lt_json_write_end(&w, ']');
    return LATTICE_OK;
}

void lt_tei_decode(lt_exchange *ex)
{
    answer(ex, lt_read_tei_decode, "ids", decode);
}
