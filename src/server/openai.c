/* OpenAI's API: embeddings and the list of models. */
#include <string.h>

#include "server/base64.h"
#include "server/embedding.h"
#include "server/readers.h"

enum { AS_FLOATS, AS_BASE64 };

/* ------------------------------------------------------------------ POST /v1/embeddings */

static lattice_status read_embeddings_member(lt_json *json, void *request, lt_str key)
{
    lt_embedding *e = request;
    if (lt_str_is(key, "input")) {
        LT_TRY(lt_read_inputs(json, &e->inputs, true));
    } else if (lt_str_is(key, "model")) {
        LT_TRY(lt_read_name(json, &e->inputs, &e->model_name));
    } else if (lt_str_is(key, "dimensions")) {
        LT_TRY(lt_read_dimensions(json, &e->options.dim));
    } else if (lt_str_is(key, "encoding_format")) {
        const char *name = "float";
        LT_TRY(lt_read_name(json, &e->inputs, &name));
        if (strcmp(name, "base64") == 0)
            e->format = AS_BASE64;
        else if (strcmp(name, "float") == 0)
            e->format = AS_FLOATS;
        else
            return lt_json_fail(json, "'encoding_format' must be 'float' or 'base64', not '%s'", name);
    } else if (lt_str_is(key, "truncate")) {
        bool truncate = false;
        LT_TRY(lt_read_bool(json, &truncate));
        e->truncation = truncate ? LT_TRUNCATE_YES : LT_TRUNCATE_NO;
    } else if (lt_str_is(key, "prompt_name")) {
        LT_TRY(lt_read_name(json, &e->inputs, &e->options.prompt_name));
    } else {
        LT_TRY(lt_json_skip(json)); /* `user` and whatever else clients send */
    }
    return LATTICE_OK;
}

lattice_status lt_read_openai_embeddings(lt_json *json, void *request)
{
    LT_TRY(lt_read_members(json, read_embeddings_member, request));
    return lt_json_end(json);
}

void lt_write_usage(lt_json_writer *w, uint64_t n_tokens)
{
    lt_json_write_key(w, "usage");
    lt_json_write_begin(w, '{');
    lt_json_write_key(w, "prompt_tokens");
    lt_json_write_uint(w, n_tokens);
    lt_json_write_key(w, "total_tokens");
    lt_json_write_uint(w, n_tokens);
    lt_json_write_end(w, '}');
}

static void write_embeddings(lt_embedding *e)
{
    lt_exchange *ex = e->exchange;
    lt_json_writer w = lt_json_writer_on(&ex->out);
    lt_json_write_begin(&w, '{');
    lt_json_write_key(&w, "object");
    lt_json_write_z(&w, "list");
    lt_json_write_key(&w, "data");
    lt_json_write_begin(&w, '[');
    for (size_t i = 0; i < e->window.n; i++) {
        const float *vector = e->vectors + i * e->dim;
        lt_json_write_begin(&w, '{');
        lt_json_write_key(&w, "object");
        lt_json_write_z(&w, "embedding");
        lt_json_write_key(&w, "index");
        lt_json_write_uint(&w, i);
        lt_json_write_key(&w, "embedding");
        if (e->format == AS_BASE64)
            lt_write_base64(&w, vector, e->dim * sizeof *vector);
        else
            lt_json_write_floats(&w, vector, e->dim);
        lt_json_write_end(&w, '}');
    }
    lt_json_write_end(&w, ']');
    lt_json_write_key(&w, "model");
    lt_json_write_z(&w, ex->server->options.models[e->model].name);
    lt_write_usage(&w, ex->n_tokens);
    lt_json_write_end(&w, '}');
    lt_answer_json(ex);
}

void lt_openai_embeddings(lt_exchange *ex)
{
    lt_embedding *e = lt_embedding_create(ex);
    if (e) {
        e->field = "input";
        e->write = write_embeddings;
    }
    if (!e || !lt_read_body(ex, lt_read_openai_embeddings, e))
        lt_exchange_finish(ex);
    else
        lt_embedding_run(e);
}

/* ------------------------------------------------------------------ GET /v1/models */

void lt_openai_models(lt_exchange *ex)
{
    const lt_server *server = ex->server;
    lt_json_writer w = lt_json_writer_on(&ex->out);
    lt_json_write_begin(&w, '{');
    lt_json_write_key(&w, "object");
    lt_json_write_z(&w, "list");
    lt_json_write_key(&w, "data");
    lt_json_write_begin(&w, '[');
    for (size_t i = 0; i < server->options.n_models; i++) {
        lt_json_write_begin(&w, '{');
        lt_json_write_key(&w, "id");
        lt_json_write_z(&w, server->options.models[i].name);
        lt_json_write_key(&w, "object");
        lt_json_write_z(&w, "model");
        lt_json_write_key(&w, "created");
        lt_json_write_uint(&w, server->created);
        lt_json_write_key(&w, "owned_by");
        lt_json_write_z(&w, "lattice");
        lt_json_write_end(&w, '}');
    }
    lt_json_write_end(&w, ']');
    lt_json_write_end(&w, '}');
    lt_answer_json(ex);
}
