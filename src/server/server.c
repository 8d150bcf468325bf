/* The server as a whole: its models, the scheduler, the event loop. */
#include "server/server.h"

#include <string.h>
#include <time.h>

#include "base/clock.h"
#include "engine/prefixes.h"
#include "server/loop.h"

bool lt_gives_vectors(const lt_server *server, size_t model)
{
    return server->infos[model].head == LATTICE_HEAD_EMBEDDING;
}

bool lt_gives_scores(const lt_server *server, size_t model)
{
    return server->infos[model].n_labels > 0;
}

bool lt_generates(const lt_server *server, size_t model)
{
    const lattice_model *m = server->options.models[model].model;
    return m->plan.tails[LT_TAIL_LOGITS].present && m->tokenizer && !m->sentence.has_modules;
}

int lt_find_model(lt_exchange *exchange, lt_str name, bool (*fits)(const lt_server *server, size_t model), const char *what)
{
    const lt_server *server = exchange->server;
    int found = -1;
    for (size_t i = 0; i < server->options.n_models; i++) {
        const char *own = server->options.models[i].name;
        if (name.data && lt_str_is(name, own)) {
            if (fits(server, i)) return (int)i;
            lt_answer_error(exchange, LT_PROBLEM_INVALID, "model", "model '%s' is not one that %s", own, what);
            return -1;
        }
        if (name.data || !fits(server, i)) continue;
        if (fits == lt_generates || !lt_generates(server, i)) return (int)i;
        if (found < 0) found = (int)i;
    }
    if (name.data)
        lt_answer_error(exchange, LT_PROBLEM_NO_MODEL, "model", "model '%.*s' does not exist; GET /v1/models lists those that do",
                        LT_STR_ARG(name));
    else if (found < 0)
        lt_answer_error(exchange, LT_PROBLEM_INVALID, "model", "no model served here %s", what);
    return found;
}

/* A cache reads a model's weights the first time it meets it: now, rather than during a request. */
static lattice_status meet_models(const lt_server *server, lattice_error *err)
{
    lattice_embed_options options = lattice_embed_options_default();
    options.cache = server->options.cache;
    for (size_t i = 0; options.cache && i < server->options.n_models; i++) {
        if (!lt_gives_vectors(server, i)) continue;
        lt_embed_call *call;
        LT_TRY(lt_embed_call_create(server->options.models[i].model, &options, true, &call, err));
        lt_embed_call_free(call);
    }
    return LATTICE_OK;
}

static lattice_status serve(lt_server *server, lattice_error *err)
{
    const lt_server_options *o = &server->options;
    server->infos = lt_alloc_array(server->mem, o->n_models, sizeof *server->infos);
    if (!server->infos) return lt_no_memory(err, o->n_models * sizeof *server->infos, "the list of models");
    size_t n_devices = SIZE_MAX; /* of the model with the fewest: no batch may be too large for one of them */
    for (size_t i = 0; i < o->n_models; i++) {
        lattice_model_get_info(o->models[i].model, &server->infos[i]);
        if (server->infos[i].n_devices < n_devices) n_devices = server->infos[i].n_devices;
    }
    LT_TRY(meet_models(server, err));
    const lt_scheduler_options options = { .batch_tokens = o->max_batch_tokens * n_devices, .queue_tokens = o->max_queue_tokens };
    LT_TRY(lt_scheduler_create(server->runtime, &options, &server->scheduler, err));
    LT_TRY(lt_prefixes_create(server->mem, o->prefix_bytes, &server->prefixes, err));
    lt_loop *loop;
    lattice_status status = lt_loop_create(server, &loop, err);
    if (status == LATTICE_OK) lt_loop_run(loop);
    lt_scheduler_free(server->scheduler);
    server->scheduler = NULL;
    lt_loop_free(loop);
    return status;
}

lattice_status lt_server_run(lattice_runtime *runtime, const lt_server_options *options, lattice_error *err)
{
    lt_server *server = lt_alloc_zero(&lt_malloc_allocator, sizeof *server);
    if (!server) return lt_no_memory(err, sizeof *server, "the server");
    server->runtime = runtime;
    server->mem = &lt_malloc_allocator;
    server->options = *options;
    server->metrics.started = lt_clock_seconds();
    server->created = (uint64_t)time(NULL);
    lattice_status status = serve(server, err);
    lt_scheduler_free(server->scheduler);
    lt_prefixes_free(server->prefixes);
    lt_free(server->mem, server->infos);
    lt_free(server->mem, server);
    return status;
}
