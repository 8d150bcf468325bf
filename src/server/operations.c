/* What operating the server needs: health, what it serves, its numbers. */
#include <stdio.h>

#include "server/exchange.h"

void lt_health(lt_exchange *ex)
{
    lt_json_writer w = lt_json_writer_on(&ex->out);
    lt_json_write_begin(&w, '{');
    lt_json_write_key(&w, "status");
    lt_json_write_z(&w, "ok"); /* the server listens only when its models are loaded */
    lt_json_write_end(&w, '}');
    lt_answer_json(ex);
}

/* ------------------------------------------------------------------ GET /info */

static void write_kind(lt_json_writer *w, const lattice_model_info *info)
{
    lt_json_write_key(w, "model_type");
    lt_json_write_begin(w, '{');
    switch (info->head) {
    case LATTICE_HEAD_EMBEDDING:
        lt_json_write_key(w, "embedding");
        lt_json_write_begin(w, '{');
        lt_json_write_key(w, "dim");
        lt_json_write_uint(w, info->embedding_dim);
        lt_json_write_end(w, '}');
        break;
    case LATTICE_HEAD_CLASSIFIER:
    case LATTICE_HEAD_RERANKER:
        lt_json_write_key(w, info->n_scores == 1 ? "reranker" : "classifier");
        lt_json_write_begin(w, '{');
        lt_json_write_key(w, "id2label");
        lt_json_write_begin(w, '{');
        for (size_t i = 0; i < info->n_labels; i++) {
            char number[24];
            snprintf(number, sizeof number, "%zu", i);
            lt_json_write_key(w, number);
            lt_json_write_z(w, info->labels[i]);
        }
        lt_json_write_end(w, '}');
        lt_json_write_end(w, '}');
        break;
    case LATTICE_HEAD_GENERATOR:
        lt_json_write_key(w, "generator");
        lt_json_write_begin(w, '{');
        lt_json_write_end(w, '}');
        break;
    }
    lt_json_write_end(w, '}');
}

static void write_model(lt_json_writer *w, const char *name, const lattice_model_info *info)
{
    lt_json_write_key(w, "model_id");
    lt_json_write_z(w, name);
    lt_json_write_key(w, "model_dtype");
    lt_json_write_z(w, info->compute);
    write_kind(w, info);
    lt_json_write_key(w, "max_input_length");
    lt_json_write_uint(w, info->max_length);
    lt_json_write_key(w, "device");
    lt_json_write_z(w, info->device);
    lt_json_write_key(w, "isa");
    lt_json_write_z(w, info->isa);
}

/* The first model's facts at the top, as Text Embeddings Inference has them, and all models in a list. */
void lt_info(lt_exchange *ex)
{
    const lt_server *server = ex->server;
    const lt_server_options *o = &server->options;
    lt_json_writer w = lt_json_writer_on(&ex->out);
    lt_json_write_begin(&w, '{');
    write_model(&w, o->models[0].name, &server->infos[0]);
    lt_json_write_key(&w, "max_batch_tokens");
    lt_json_write_uint(&w, o->max_batch_tokens);
    lt_json_write_key(&w, "max_queue_tokens");
    lt_json_write_uint(&w, o->max_queue_tokens);
    lt_json_write_key(&w, "max_client_batch_size");
    lt_json_write_uint(&w, o->max_client_batch);
    lt_json_write_key(&w, "max_concurrent_requests");
    lt_json_write_uint(&w, o->max_connections);
    lt_json_write_key(&w, "tokenization_workers");
    lt_json_write_int(&w, lattice_runtime_threads(server->runtime));
    lt_json_write_key(&w, "auto_truncate");
    lt_json_write_bool(&w, o->auto_truncate);
    lt_json_write_key(&w, "version");
    lt_json_write_z(&w, lattice_version());
    lt_json_write_key(&w, "models");
    lt_json_write_begin(&w, '[');
    for (size_t i = 0; i < o->n_models; i++) {
        lt_json_write_begin(&w, '{');
        write_model(&w, o->models[i].name, &server->infos[i]);
        lt_json_write_end(&w, '}');
    }
    lt_json_write_end(&w, ']');
    lt_json_write_end(&w, '}');
    lt_answer_json(ex);
}
