/* Scores for every API; see scoring.h.
 *
 * A classifier's pairs are tokenised here and share batches with those of others. What a language model is asked about one query
 * shares that query's state, so such a request has the engine to itself, a few documents at a time. */
#include "server/scoring.h"

#include <stdlib.h>

#include "engine/rerank.h"

static void scoring_free(void *opaque)
{
    lt_scoring *s = opaque;
    const lattice_allocator *mem = s->exchange->server->mem;
    lt_inputs_free(&s->inputs);
    lt_window_free(&s->window);
    lt_free(mem, s->is_pair);
    lt_free(mem, s->costs);
    lt_free(mem, s->logits);
    lt_free(mem, s->scores);
    lt_free(mem, s->order);
    lt_free(mem, s);
}

lt_scoring *lt_scoring_create(lt_exchange *exchange)
{
    const lattice_allocator *mem = exchange->server->mem;
    lt_scoring *s = lt_alloc_zero(mem, sizeof *s);
    if (!s) {
        lt_answer_error(exchange, LT_PROBLEM_BACKEND, NULL, "no memory for the request");
        return NULL;
    }
    s->exchange = exchange;
    s->options = lattice_rerank_options_default();
    lt_inputs_init(&s->inputs, mem);
    lt_window_init(&s->window, mem);
    exchange->call = s;
    exchange->free_call = scoring_free;
    return s;
}

lattice_status lt_scoring_add_item(lt_scoring *s, bool is_pair, lattice_error *err)
{
    if (!LT_GROW(s->inputs.arena.mem, s->is_pair, s->pairs_capacity, s->n_items + 1))
        return lt_no_memory(err, s->n_items, "a list of pairs");
    s->is_pair[s->n_items++] = is_pair;
    return LATTICE_OK;
}

/* ------------------------------------------------------------------ after */

typedef struct ranked {
    double score; /* the first one, or the largest label's */
    size_t row;
} ranked;

/* Best first, equals in the order of the request. */
static int by_score(const void *a, const void *b)
{
    const ranked *x = a, *y = b;
    if (x->score != y->score) return x->score > y->score ? -1 : 1;
    return x->row < y->row ? -1 : 1;
}

static bool sort_rows(lt_scoring *s)
{
    const lattice_allocator *mem = s->exchange->server->mem;
    ranked *rows = lt_alloc_array(mem, s->n, sizeof *rows);
    s->order = lt_alloc_array(mem, s->n, sizeof *s->order);
    if (rows && s->order) {
        for (size_t i = 0; i < s->n; i++) rows[i] = (ranked){ (double)s->scores[i * s->n_scores], i };
        qsort(rows, s->n, sizeof *rows, by_score);
        for (size_t i = 0; i < s->n; i++) s->order[i] = rows[i].row;
    }
    bool sorted = rows && s->order;
    lt_free(mem, rows);
    return sorted;
}

static void on_done(lt_job *job)
{
    lt_scoring *s = (lt_scoring *)(void *)((char *)job - offsetof(lt_scoring, job));
    lt_exchange *ex = s->exchange;
    ex->queue_seconds = job->started > 0 ? job->started - job->submitted : 0;
    ex->inference_seconds = job->seconds;
    if (job->status != LATTICE_OK) {
        lt_answer_status(ex, s->field, &job->err);
    } else {
        if (job->work == LT_WORK_SCORES) {
            ex->n_tokens = s->window.starts[s->window.n];
            lt_rerank_scores(job->model, s->options.raw, s->logits, s->n, s->scores);
        }
        if (sort_rows(s))
            s->write(s);
        else
            lt_answer_error(ex, LT_PROBLEM_BACKEND, NULL, "no memory for the order of documents");
    }
    lt_exchange_finish(ex);
}

/* ------------------------------------------------------------------ before */

static lattice_status judge(lt_job *job, size_t first, size_t n, lattice_error *err)
{
    lt_scoring *s = (lt_scoring *)(void *)((char *)job - offsetof(lt_scoring, job));
    lattice_usage usage = { 0 };
    LT_TRY(lattice_rerank(job->model, (lattice_text){ s->query.data, s->query.len }, s->inputs.texts + first, n, &s->options,
                          s->scores + first, NULL, &usage, err));
    s->exchange->n_tokens += usage.n_tokens;
    return LATTICE_OK;
}

static lattice_status tokenize_items(lt_scoring *s, lattice_model *model, lattice_error *err)
{
    for (size_t item = 0, at = 0; item < s->n_items; item++) {
        const lattice_text *text = &s->inputs.texts[at];
        LT_TRY(lt_rerank_pairs(model, text[0], s->is_pair[item] ? text + 1 : NULL, 1, &s->options, &s->window, err));
        at += s->is_pair[item] ? 2 : 1;
    }
    return LATTICE_OK;
}

static lattice_status prepare_job(lt_scoring *s, lattice_model *model, const lattice_model_info *info, lattice_error *err)
{
    const lattice_allocator *mem = s->exchange->server->mem;
    LT_TRY(lt_rerank_check(model, s->n, &s->options, err));
    s->scores = lt_alloc_array(mem, s->n * s->n_scores, sizeof *s->scores);
    if (!s->scores) return lt_no_memory(err, s->n, "scores");
    s->job = (lt_job){ .model = model, .n = s->n, .done = on_done };
    if (info->head == LATTICE_HEAD_RERANKER) {
        s->costs = lt_alloc_array(mem, s->n + 1, sizeof *s->costs);
        if (!s->costs) return lt_no_memory(err, s->n, "a list of documents");
        s->costs[0] = 0;
        for (size_t i = 0; i < s->n; i++) { /* four bytes a token, and the prompt's own words */
            size_t tokens = (s->query.len + s->inputs.texts[i].length) / 4 + 64;
            s->costs[i + 1] = s->costs[i] + (tokens < info->max_length ? tokens : info->max_length);
        }
        s->job.work = LT_WORK_CALL;
        s->job.starts = s->costs;
        s->job.run = judge;
        return LATTICE_OK;
    }
    s->logits = lt_alloc_array(mem, s->n * s->n_labels, sizeof *s->logits);
    if (!s->logits) return lt_no_memory(err, s->n, "logits");
    if (s->classifies)
        LT_TRY(tokenize_items(s, model, err));
    else
        LT_TRY(lt_rerank_pairs(model, (lattice_text){ s->query.data, s->query.len }, s->inputs.texts, s->n, &s->options,
                               &s->window, err));
    s->job.work = LT_WORK_SCORES;
    s->job.starts = s->window.starts;
    s->job.ids = s->window.ids;
    s->job.types = s->window.types;
    s->job.out = s->logits;
    return LATTICE_OK;
}

static bool gives_labels(const lt_server *server, size_t model)
{
    return server->infos[model].head == LATTICE_HEAD_CLASSIFIER;
}

/* Everything up to the queue; false: the answer (an error) is set. */
static bool prepare(lt_scoring *s)
{
    lt_exchange *ex = s->exchange;
    const lt_server *server = ex->server;
    lt_str name = s->model_name ? lt_str_of(s->model_name) : (lt_str){ NULL, 0 };
    s->model = s->classifies ? lt_find_model(ex, name, gives_labels, "classifies texts")
                             : lt_find_model(ex, name, lt_gives_scores, "scores documents");
    if (s->model < 0) return false;
    const lattice_model_info *info = &server->infos[s->model];
    s->n = s->classifies ? s->n_items : s->inputs.n;
    s->n_labels = info->n_labels;
    s->n_scores = info->n_scores;
    if (!s->classifies && !s->has_query) {
        lt_answer_error(ex, LT_PROBLEM_INVALID, "query", "'query' is missing");
        return false;
    }
    if (!s->classifies && info->n_scores != 1) {
        lt_answer_error(ex, LT_PROBLEM_INVALID, "model", "model '%s' has %zu labels: it classifies, but does not rank",
                        server->options.models[s->model].name, info->n_labels);
        return false;
    }
    if (s->n == 0) {
        lt_answer_error(ex, LT_PROBLEM_INVALID, s->field, "'%s' is missing or empty: at least one text is needed", s->field);
        return false;
    }
    if (s->n > server->options.max_client_batch) {
        lt_answer_error(ex, LT_PROBLEM_BATCH, s->field, "%zu texts are more than the %zu that a request may have", s->n,
                        server->options.max_client_batch);
        return false;
    }
    lattice_error err = { 0 };
    if (prepare_job(s, server->options.models[s->model].model, info, &err) == LATTICE_OK) return true;
    lt_answer_status(ex, s->field, &err);
    return false;
}

void lt_scoring_run(lt_scoring *s)
{
    if (!prepare(s) || !lt_exchange_submit(s->exchange, &s->job)) lt_exchange_finish(s->exchange);
}
