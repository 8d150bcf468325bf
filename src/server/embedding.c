/* Embedding for every API; see embedding.h. */
#include "server/embedding.h"

#include <math.h>
#include <string.h>

/* Answers of more floats than this are written beside the batches. */
static const size_t long_floats = (size_t)64 << 10;

static void embedding_free(void *opaque)
{
    lt_embedding *e = opaque;
    const lattice_allocator *mem = e->exchange->server->mem;
    lt_inputs_free(&e->inputs);
    lt_window_free(&e->window);
    lt_window_free(&e->missed);
    lt_free(mem, e->missing);
    lt_free(mem, e->computed);
    lt_embed_call_free(e->call);
    lt_free(mem, e->vectors);
    lt_free(mem, e);
}

lt_embedding *lt_embedding_create(lt_exchange *exchange)
{
    const lattice_allocator *mem = exchange->server->mem;
    lt_embedding *e = lt_alloc_zero(mem, sizeof *e);
    if (!e) {
        lt_answer_error(exchange, LT_PROBLEM_BACKEND, NULL, "no memory for the request");
        return NULL;
    }
    e->exchange = exchange;
    e->options = lattice_embed_options_default();
    lt_inputs_init(&e->inputs, mem);
    lt_window_init(&e->window, mem);
    lt_window_init(&e->missed, mem);
    exchange->call = e;
    exchange->free_call = embedding_free;
    return e;
}

/* Vectors of unit length where the request asks for them and the checkpoint does not make them so, or where they were cut. */
static void normalize(const lt_embedding *e)
{
    for (size_t i = 0; i < e->window.n; i++) {
        float *v = e->vectors + i * e->dim;
        double sum = 0;
        for (size_t k = 0; k < e->dim; k++) sum += (double)v[k] * (double)v[k];
        double scale = sum > 0 ? 1 / sqrt(sum) : 0;
        for (size_t k = 0; k < e->dim; k++) v[k] = (float)((double)v[k] * scale);
    }
}

/* The checkpoint's prompt for one of Cohere's roles, its default where it has none of that role. */
static const char *prompt_of_role(const lattice_model *model, const char *role)
{
    static const char *const names[][5] = {
        { "search_query", "search_query", "query", "s2p_query", NULL },
        { "search_document", "search_document", "document", "passage", NULL },
        { "classification", "classification", "Classification", NULL },
        { "clustering", "clustering", "Clustering", NULL },
    };
    for (size_t r = 0; role && r < sizeof names / sizeof *names; r++) {
        if (strcmp(role, names[r][0]) != 0) continue;
        for (size_t i = 1; names[r][i]; i++)
            for (size_t k = 0; k < model->sentence.n_prompts; k++)
                if (strcmp(model->sentence.prompts[k].name, names[r][i]) == 0) return names[r][i];
    }
    return NULL;
}

/* All vectors are there. */
static void answer(lt_embedding *e)
{
    lt_exchange *ex = e->exchange;
    ex->n_tokens = e->window.starts[e->window.n];
    bool cut = e->options.dim > 0 && !e->options.no_normalize;
    if (!e->tokens && (e->normalize || cut) && !ex->server->infos[e->model].normalizes) normalize(e);
    e->write(e);
}

/* What was computed goes to its place, and into the cache for the next time. */
static void keep_computed(lt_embedding *e)
{
    for (size_t k = 0; k < e->n_missing; k++) {
        size_t i = e->missing ? e->missing[k] : k;
        float *vector = e->vectors + i * e->dim;
        if (e->missing) memcpy(vector, e->computed + k * e->dim, e->dim * sizeof *vector);
        lt_embed_call_store(e->call, &e->window, i, vector);
    }
}

static void on_done(lt_job *job)
{
    lt_embedding *e = (lt_embedding *)(void *)((char *)job - offsetof(lt_embedding, job));
    lt_exchange *ex = e->exchange;
    ex->queue_seconds = job->started > 0 ? job->started - job->submitted : 0;
    ex->inference_seconds = job->seconds;
    if (job->status == LATTICE_OK) {
        if (e->options.cache) keep_computed(e);
        answer(e);
    } else {
        lt_answer_status(ex, e->field, &job->err);
    }
    lt_exchange_finish(ex);
}

static lattice_status tokenize(lt_embedding *e, lattice_model *model, lattice_error *err)
{
    LT_TRY(lt_embed_call_create(model, &e->options, e->inputs.by_ids, &e->call, err));
    if (!e->inputs.by_ids) return lt_embed_call_texts(e->call, e->inputs.texts, e->inputs.n, &e->window, err);
    for (size_t i = 0; i < e->inputs.n; i++) {
        size_t begin = i ? e->inputs.ends[i - 1] : 0;
        lattice_ids ids = { e->inputs.ids + begin, e->inputs.ends[i] - begin };
        LT_TRY(lt_embed_call_ids(e->call, &ids, 1, &e->window, err));
    }
    return LATTICE_OK;
}

/* Takes from the cache what it has. Ids of the rest go to `missed` where there is any besides. */
static lattice_status look_up(lt_embedding *e, lattice_error *err)
{
    const lattice_allocator *mem = e->exchange->server->mem;
    const lt_window *w = &e->window;
    e->n_missing = w->n;
    if (!e->options.cache) return LATTICE_OK;
    e->missing = lt_alloc_array(mem, w->n, sizeof *e->missing);
    if (!e->missing) return lt_no_memory(err, w->n * sizeof *e->missing, "a list of texts");
    e->n_missing = 0;
    for (size_t i = 0; i < w->n; i++)
        if (!lt_embed_call_find(e->call, w, i, e->vectors + i * e->dim)) e->missing[e->n_missing++] = i;
    if (e->n_missing == w->n) {
        lt_free(mem, e->missing);
        e->missing = NULL;
        return LATTICE_OK;
    }
    e->computed = lt_alloc_array(mem, e->n_missing * e->dim + 1, sizeof *e->computed);
    if (!e->computed) return lt_no_memory(err, e->n_missing * e->dim, "the vectors");
    for (size_t k = 0; k < e->n_missing; k++) {
        size_t i = e->missing[k], begin = w->starts[i];
        if (!lt_window_add(&e->missed, w->ids + begin, w->types + begin, lt_window_length(w, i)))
            return lt_no_memory(err, begin, "token ids");
    }
    return LATTICE_OK;
}

/* Everything up to the queue; false: the answer is set, an error or not. */
static bool prepare(lt_embedding *e)
{
    lt_exchange *ex = e->exchange;
    const lt_server *server = ex->server;
    lt_str name = e->model_name ? lt_str_of(e->model_name) : (lt_str){ NULL, 0 };
    e->model = lt_find_model(ex, name, lt_gives_vectors, "gives embeddings");
    if (e->model < 0) return false;
    if (e->inputs.n == 0) {
        lt_answer_error(ex, LT_PROBLEM_INVALID, e->field, "'%s' is missing or empty: at least one text is needed", e->field);
        return false;
    }
    if (e->inputs.n > server->options.max_client_batch) {
        lt_answer_error(ex, LT_PROBLEM_BATCH, e->field, "%zu texts are more than the %zu that a request may have", e->inputs.n,
                        server->options.max_client_batch);
        return false;
    }
    e->options.truncate = e->truncation == LT_TRUNCATE_DEFAULT ? server->options.auto_truncate : e->truncation == LT_TRUNCATE_YES;
    lattice_model *model = server->options.models[e->model].model;
    if (e->role) e->options.prompt_name = prompt_of_role(model, e->role);
    if (!e->tokens) e->options.cache = server->options.cache;
    lattice_error err = { 0 };
    lattice_status status = tokenize(e, model, &err);
    size_t n_vectors = 0, floats = 0;
    if (status == LATTICE_OK) {
        e->dim = e->tokens ? server->infos[e->model].hidden_size : lt_embed_call_dim(e->call);
        n_vectors = e->tokens ? e->window.starts[e->window.n] : e->window.n;
        if (!lt_mul(n_vectors, e->dim, &floats) || !(e->vectors = lt_alloc_array(server->mem, floats, sizeof *e->vectors)))
            status = lt_no_memory(&err, floats, "the vectors");
        else
            status = look_up(e, &err);
    }
    if (status != LATTICE_OK) {
        lt_answer_status(ex, e->field, &err);
        return false;
    }
    if (e->n_missing == 0) {
        answer(e);
        return false;
    }
    const lt_window *window = e->missing ? &e->missed : &e->window;
    e->job = (lt_job){ .model = model,
                       .work = e->tokens ? LT_WORK_TOKENS : LT_WORK_VECTORS,
                       .n = window->n,
                       .starts = window->starts,
                       .ids = window->ids,
                       .types = window->types,
                       .call = e->call,
                       .out = e->missing ? e->computed : e->vectors,
                       .beside = floats > long_floats,
                       .done = on_done };
    return true;
}

void lt_embedding_run(lt_embedding *e)
{
    if (!prepare(e) || !lt_exchange_submit(e->exchange, &e->job)) lt_exchange_finish(e->exchange);
}
