/* Cohere's API, and Jina's where the two agree: reranking and embeddings by type. */
#include <string.h>

#include "engine/vector_types.h"
#include "server/base64.h"
#include "server/embedding.h"
#include "server/readers.h"
#include "server/scoring.h"

/* ------------------------------------------------------------------ POST /v1/rerank, /v2/rerank, /rerank */

static lattice_status read_document_member(lt_json *json, void *inputs, lt_str key)
{
    return lt_str_is(key, "text") ? lt_read_text(json, inputs) : lt_json_skip(json);
}

/* A text, or an object with the member "text". */
static lattice_status read_document(lt_json *json, lt_inputs *inputs)
{
    if (lt_json_peek(json) != LT_JSON_OBJECT) return lt_read_text(json, inputs);
    size_t before = inputs->n;
    LT_TRY(lt_read_members(json, read_document_member, inputs));
    return inputs->n == before ? lt_json_fail(json, "a document without 'text'") : LATTICE_OK;
}

static void write_results(lt_scoring *s)
{
    lt_exchange *ex = s->exchange;
    lt_json_writer w = lt_json_writer_on(&ex->out);
    lt_json_write_begin(&w, '{');
    lt_json_write_key(&w, "id");
    lt_json_write_z(&w, ex->id);
    lt_json_write_key(&w, "object");
    lt_json_write_z(&w, "list");
    lt_json_write_key(&w, "model");
    lt_json_write_z(&w, ex->server->options.models[s->model].name);
    lt_json_write_key(&w, "results");
    lt_json_write_begin(&w, '[');
    for (size_t k = 0; k < s->n && (s->top_n == 0 || k < s->top_n); k++) {
        size_t i = s->order[k];
        lt_json_write_begin(&w, '{');
        lt_json_write_key(&w, "index");
        lt_json_write_uint(&w, i);
        lt_json_write_key(&w, "relevance_score");
        lt_json_write_float(&w, s->scores[i]);
        if (s->return_texts) {
            lt_json_write_key(&w, "document");
            lt_json_write_begin(&w, '{');
            lt_json_write_key(&w, "text");
            lt_json_write_str(&w, (lt_str){ s->inputs.texts[i].data, s->inputs.texts[i].length });
            lt_json_write_end(&w, '}');
        }
        lt_json_write_end(&w, '}');
    }
    lt_json_write_end(&w, ']');
    lt_write_usage(&w, ex->n_tokens);
    lt_write_cohere_meta(&w, "search_units", 1);
    lt_json_write_end(&w, '}');
    lt_answer_json(ex);
}

static lattice_status read_documents(lt_json *json, lt_scoring *s)
{
    s->write = write_results;
    s->field = "documents";
    LT_TRY(lt_json_begin_array(json));
    for (;;) {
        bool more;
        LT_TRY(lt_json_next_element(json, &more));
        if (!more) return LATTICE_OK;
        LT_TRY(read_document(json, &s->inputs));
    }
}

static lattice_status read_top_n(lt_json *json, size_t *top_n)
{
    if (lt_json_peek(json) == LT_JSON_NULL) return lt_json_null(json);
    int64_t value;
    LT_TRY(lt_json_int64(json, &value));
    if (value < 1) return lt_json_fail(json, "'top_n' must be at least 1, not %lld", (long long)value);
    *top_n = (size_t)value;
    return LATTICE_OK;
}

typedef struct rerank_body {
    lt_scoring *scoring;
    bool has_texts, has_documents;
} rerank_body;

static lattice_status read_rerank_member(lt_json *json, void *request, lt_str key)
{
    rerank_body *body = request;
    lt_scoring *s = body->scoring;
    body->has_texts = body->has_texts || lt_str_is(key, "texts");
    body->has_documents = body->has_documents || lt_str_is(key, "documents");
    if (body->has_texts && body->has_documents) {
        LT_TRY(lt_json_skip(json));
        return lt_json_fail(json, "'texts' and 'documents' in one request");
    }
    if (lt_str_is(key, "query")) {
        s->has_query = true;
        return lt_read_string(json, &s->inputs, &s->query);
    }
    if (lt_str_is(key, "documents")) return read_documents(json, s);
    if (lt_str_is(key, "top_n")) return read_top_n(json, &s->top_n);
    if (lt_str_is(key, "return_documents")) return lt_read_bool(json, &s->return_texts);
    if (lt_str_is(key, "model")) return lt_read_name(json, &s->inputs, &s->model_name);
    if (lt_str_is(key, "instruction")) return lt_read_name(json, &s->inputs, &s->options.instruction);
    return lt_read_tei_rerank_member(json, s, key);
}

lattice_status lt_read_rerank(lt_json *json, void *request)
{
    rerank_body body = { .scoring = request };
    LT_TRY(lt_read_members(json, read_rerank_member, &body));
    return lt_json_end(json);
}

void lt_rerank_route(lt_exchange *ex)
{
    lt_scoring *s = lt_scoring_create(ex);
    if (!s) {
        lt_exchange_finish(ex);
        return;
    }
    /* Without texts and documents, the route says whose request it is. */
    bool is_tei = ex->api == LT_API_TEI;
    s->field = is_tei ? "texts" : "documents";
    bool read = lt_read_body(ex, lt_read_rerank, s);
    if (s->write == write_results) ex->api = LT_API_COHERE;
    if (!s->write) s->write = write_results;
    if (read)
        lt_scoring_run(s);
    else
        lt_exchange_finish(ex);
}

/* ------------------------------------------------------------------ POST /v2/embed */

enum { TYPE_FLOAT = 1, TYPE_INT8 = 2, TYPE_UINT8 = 4, TYPE_BINARY = 8, TYPE_UBINARY = 16, TYPE_BASE64 = 32 };
static const char *const type_names[] = { "float", "int8", "uint8", "binary", "ubinary", "base64" };
enum { N_TYPES = sizeof type_names / sizeof *type_names };

static lattice_status read_types(lt_json *json, lt_embedding *e)
{
    if (lt_json_peek(json) == LT_JSON_NULL) return lt_json_null(json);
    LT_TRY(lt_json_begin_array(json));
    for (;;) {
        bool more, known = false;
        LT_TRY(lt_json_next_element(json, &more));
        if (!more) return LATTICE_OK;
        lt_str name;
        LT_TRY(lt_json_string(json, &name));
        for (unsigned i = 0; i < N_TYPES; i++) {
            if (!lt_str_is(name, type_names[i])) continue;
            e->format |= 1u << i;
            known = true;
        }
        if (!known)
            return lt_json_fail(json, "'embedding_types' are float, int8, uint8, binary, ubinary and base64, not '%.*s'",
                                LT_STR_ARG(name));
    }
}

static lattice_status read_truncate(lt_json *json, lt_embedding *e)
{
    const char *name = "END";
    LT_TRY(lt_read_name(json, &e->inputs, &name));
    e->truncation = LT_TRUNCATE_YES;
    e->options.truncate_left = strcmp(name, "START") == 0;
    if (strcmp(name, "NONE") == 0)
        e->truncation = LT_TRUNCATE_NO;
    else if (!e->options.truncate_left && strcmp(name, "END") != 0)
        return lt_json_fail(json, "'truncate' must be NONE, START or END, not '%s'", name);
    return LATTICE_OK;
}

static lattice_status read_content(lt_json *json, void *inputs, lt_str key)
{
    if (!lt_str_is(key, "content")) return lt_json_skip(json);
    LT_TRY(lt_json_begin_array(json));
    for (bool more;;) {
        LT_TRY(lt_json_next_element(json, &more));
        if (!more) return LATTICE_OK;
        LT_TRY(read_document(json, inputs));
    }
}

/* {"content": [{"type": "text", "text": …}]}: its text; other content is refused. */
static lattice_status read_input(lt_json *json, lt_embedding *e)
{
    size_t before = e->inputs.n;
    LT_TRY(lt_read_members(json, read_content, &e->inputs));
    return e->inputs.n == before + 1 ? LATTICE_OK : lt_json_fail(json, "an item of 'inputs' must have one text as its content");
}

static lattice_status read_embed_member(lt_json *json, void *request, lt_str key)
{
    lt_embedding *e = request;
    if (lt_str_is(key, "texts") && lt_json_peek(json) != LT_JSON_NULL) {
        if (lt_json_peek(json) == LT_JSON_STRING) {
            LT_TRY(lt_json_skip(json));
            return lt_json_fail(json, "'texts' must be a list");
        }
        LT_TRY(lt_read_inputs(json, &e->inputs, false));
    } else if (lt_str_is(key, "inputs") && lt_json_peek(json) != LT_JSON_NULL) {
        LT_TRY(lt_json_begin_array(json));
        for (;;) {
            bool more;
            LT_TRY(lt_json_next_element(json, &more));
            if (!more) break;
            LT_TRY(read_input(json, e));
        }
    } else if (lt_str_is(key, "model")) {
        LT_TRY(lt_read_name(json, &e->inputs, &e->model_name));
    } else if (lt_str_is(key, "input_type")) {
        LT_TRY(lt_read_name(json, &e->inputs, &e->role));
    } else if (lt_str_is(key, "embedding_types")) {
        LT_TRY(read_types(json, e));
    } else if (lt_str_is(key, "truncate")) {
        LT_TRY(read_truncate(json, e));
    } else if (lt_str_is(key, "output_dimension")) {
        LT_TRY(lt_read_dimensions(json, &e->options.dim));
    } else if (lt_str_is(key, "images") && lt_json_peek(json) == LT_JSON_ARRAY) {
        LT_TRY(lt_json_skip(json));
        return lt_json_fail(json, "'images' cannot be embedded here");
    } else {
        LT_TRY(lt_json_skip(json));
    }
    return LATTICE_OK;
}

lattice_status lt_read_cohere_embed(lt_json *json, void *request)
{
    LT_TRY(lt_read_members(json, read_embed_member, request));
    return lt_json_end(json);
}

static void write_vector(lt_json_writer *w, unsigned type, const float *vector, size_t dim)
{
    if (type == TYPE_FLOAT) {
        lt_json_write_floats(w, vector, dim);
        return;
    }
    if (type == TYPE_BASE64) {
        lt_write_base64(w, vector, dim * sizeof *vector);
        return;
    }
    lt_json_write_begin(w, '[');
    if (type & (TYPE_INT8 | TYPE_UINT8)) {
        float scale = lt_int8_scale(vector, dim);
        for (size_t i = 0; i < dim; i++) lt_json_write_int(w, lt_int8_value(vector, scale, i) + (type == TYPE_UINT8 ? 128 : 0));
    } else {
        for (size_t i = 0; i < lt_ubinary_bytes(dim); i++)
            lt_json_write_int(w, lt_ubinary_value(vector, dim, i) - (type == TYPE_BINARY ? 128 : 0));
    }
    lt_json_write_end(w, ']');
}

static void write_embeddings(lt_embedding *e)
{
    lt_exchange *ex = e->exchange;
    lt_json_writer w = lt_json_writer_on(&ex->out);
    lt_json_write_begin(&w, '{');
    lt_json_write_key(&w, "id");
    lt_json_write_z(&w, ex->id);
    lt_json_write_key(&w, "response_type");
    lt_json_write_z(&w, "embeddings_by_type");
    lt_json_write_key(&w, "embeddings");
    lt_json_write_begin(&w, '{');
    for (unsigned t = 0; t < N_TYPES; t++) {
        if (!((e->format ? e->format : TYPE_FLOAT) & 1u << t)) continue;
        lt_json_write_key(&w, type_names[t]);
        lt_json_write_begin(&w, '[');
        for (size_t i = 0; i < e->window.n; i++) write_vector(&w, 1u << t, e->vectors + i * e->dim, e->dim);
        lt_json_write_end(&w, ']');
    }
    lt_json_write_end(&w, '}');
    lt_json_write_key(&w, "texts");
    lt_json_write_begin(&w, '[');
    for (size_t i = 0; i < e->inputs.n; i++)
        lt_json_write_str(&w, (lt_str){ e->inputs.texts[i].data, e->inputs.texts[i].length });
    lt_json_write_end(&w, ']');
    lt_write_cohere_meta(&w, "input_tokens", ex->n_tokens);
    lt_json_write_end(&w, '}');
    lt_answer_json(ex);
}

void lt_write_cohere_meta(lt_json_writer *w, const char *unit, uint64_t n)
{
    lt_json_write_key(w, "meta");
    lt_json_write_begin(w, '{');
    lt_json_write_key(w, "api_version");
    lt_json_write_begin(w, '{');
    lt_json_write_key(w, "version");
    lt_json_write_z(w, "2");
    lt_json_write_end(w, '}');
    lt_json_write_key(w, "billed_units");
    lt_json_write_begin(w, '{');
    lt_json_write_key(w, unit);
    lt_json_write_uint(w, n);
    lt_json_write_end(w, '}');
    lt_json_write_end(w, '}');
}

void lt_cohere_embed(lt_exchange *ex)
{
    lt_embedding *e = lt_embedding_create(ex);
    if (e) {
        e->field = "texts";
        e->truncation = LT_TRUNCATE_YES; /* Cohere cuts unless it is told not to */
        e->write = write_embeddings;
    }
    if (!e || !lt_read_body(ex, lt_read_cohere_embed, e))
        lt_exchange_finish(ex);
    else
        lt_embedding_run(e);
}
