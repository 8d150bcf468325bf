/* What operating the server needs: health, what it serves, its numbers. */
#include <stdio.h>
#include <unistd.h>

#include "base/clock.h"
#include "engine/prefixes.h"
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

static void write_kind(lt_json_writer *w, const lattice_model_info *info, bool generates)
{
    lt_json_write_key(w, "model_type");
    lt_json_write_begin(w, '{');
    switch (generates ? LATTICE_HEAD_GENERATOR : info->head) {
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

static void write_model(lt_json_writer *w, const lt_server *server, size_t model)
{
    const char *name = server->options.models[model].name;
    const lattice_model_info *info = &server->infos[model];
    lt_json_write_key(w, "model_id");
    lt_json_write_z(w, name);
    lt_json_write_key(w, "model_dtype");
    lt_json_write_z(w, info->compute);
    write_kind(w, info, lt_generates(server, model) && info->n_labels == 0);
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
    write_model(&w, server, 0);
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
        write_model(&w, server, i);
        lt_json_write_end(&w, '}');
    }
    lt_json_write_end(&w, ']');
    lt_json_write_end(&w, '}');
    lt_answer_json(ex);
}

/* ------------------------------------------------------------------ GET /metrics */

static void head(lt_buf *out, const char *name, const char *type, const char *help)
{
    lt_buf_printf(out, "# HELP %s %s\n# TYPE %s %s\n", name, help, name, type);
}

static void one(lt_buf *out, const char *name, const char *type, const char *help, double value)
{
    char text[32];
    head(out, name, type, help);
    size_t n = (size_t)snprintf(text, sizeof text, "%.17g", value);
    lt_buf_printf(out, "%s %.*s\n", name, (int)n, text);
}

static void write_requests(lt_buf *out, const lt_metrics *m)
{
    head(out, "lattice_requests_total", "counter", "Answered requests by route and status.");
    for (int r = 0; r == 0 || lt_routes[r - 1].path; r++) {
        const char *path = lt_routes[r].path ? lt_routes[r].path : "other";
        for (int s = 0; s < LT_METRIC_STATUSES; s++) {
            uint64_t n = atomic_load_explicit(&m->requests[r][s], memory_order_relaxed);
            if (n == 0) continue;
            lt_buf_printf(out, "lattice_requests_total{route=\"%s\",method=\"%s\",status=\"", path,
                          lt_routes[r].path ? lt_routes[r].method : "");
            if (lt_metric_statuses[s])
                lt_buf_printf(out, "%u\"} %llu\n", lt_metric_statuses[s], (unsigned long long)n);
            else
                lt_buf_printf(out, "other\"} %llu\n", (unsigned long long)n);
        }
    }
    head(out, "lattice_request_duration_seconds", "histogram", "Seconds from the headers of a request to its answer.");
    for (int r = 0; r == 0 || lt_routes[r - 1].path; r++) {
        const char *path = lt_routes[r].path ? lt_routes[r].path : "other",
                   *method = lt_routes[r].path ? lt_routes[r].method : "";
        uint64_t sum = 0;
        for (int b = 0; b <= LT_METRIC_BOUNDS; b++) sum += atomic_load_explicit(&m->latency[r][b], memory_order_relaxed);
        if (sum == 0) continue;
        sum = 0;
        for (int b = 0; b <= LT_METRIC_BOUNDS; b++) {
            sum += atomic_load_explicit(&m->latency[r][b], memory_order_relaxed);
            lt_buf_printf(out, "lattice_request_duration_seconds_bucket{route=\"%s\",method=\"%s\",le=\"", path, method);
            if (b < LT_METRIC_BOUNDS)
                lt_buf_printf(out, "%g\"} %llu\n", lt_metric_bounds[b], (unsigned long long)sum);
            else
                lt_buf_printf(out, "+Inf\"} %llu\n", (unsigned long long)sum);
        }
        double seconds = (double)atomic_load_explicit(&m->latency_us[r], memory_order_relaxed) * 1e-6;
        lt_buf_printf(out, "lattice_request_duration_seconds_sum{route=\"%s\",method=\"%s\"} %.6f\n", path, method, seconds);
        lt_buf_printf(out, "lattice_request_duration_seconds_count{route=\"%s\",method=\"%s\"} %llu\n", path, method,
                      (unsigned long long)sum);
    }
}

static void write_batches(lt_buf *out, const lt_scheduler_stats *s)
{
    static const size_t bounds[LT_N_BATCH_BOUNDS] = LT_BATCH_BOUNDS;
    head(out, "lattice_batch_tokens", "histogram", "Tokens of a batch.");
    uint64_t sum = 0;
    for (int b = 0; b < LT_N_BATCH_BOUNDS; b++) {
        sum += s->batches_up_to[b];
        lt_buf_printf(out, "lattice_batch_tokens_bucket{le=\"%zu\"} %llu\n", bounds[b], (unsigned long long)sum);
    }
    lt_buf_printf(
        out, "lattice_batch_tokens_bucket{le=\"+Inf\"} %llu\nlattice_batch_tokens_sum %llu\nlattice_batch_tokens_count %llu\n",
        (unsigned long long)s->n_batches, (unsigned long long)s->n_tokens, (unsigned long long)s->n_batches);
    one(out, "lattice_texts_total", "counter", "Texts that were computed.", (double)s->n_texts);
    one(out, "lattice_engine_busy_seconds_total", "counter", "Seconds in which the engine computed.", s->busy_seconds);
    one(out, "lattice_queue_tokens", "gauge", "Tokens that wait.", (double)s->queue_tokens);
    one(out, "lattice_queue_texts", "gauge", "Texts that wait.", (double)s->queue_texts);
    one(out, "lattice_queue_requests", "gauge", "Requests of which something waits.", (double)s->queue_jobs);
    one(out, "lattice_turns_active", "gauge", "Generations in the running batch.", (double)s->turns_active);
    one(out, "lattice_turns_waiting", "gauge", "Generations that wait for a place in it.", (double)s->turns_waiting);
    one(out, "lattice_prompt_tokens_total", "counter", "Tokens of prompts that were computed.", (double)s->n_prompt_tokens);
    one(out, "lattice_generated_tokens_total", "counter", "Tokens that were generated.", (double)s->n_new_tokens);
    one(out, "lattice_steps_total", "counter", "Runs of the generations together.", (double)s->n_steps);
    one(out, "lattice_rejected_total", "counter", "Requests that found the queue full.", (double)s->n_rejected);
    one(out, "lattice_cancelled_total", "counter", "Requests that ended early: their client left, or time was up.",
        (double)s->n_cancelled);
}

/* Bytes of this process in memory; 0 where the system does not say. */
static double resident_bytes(void)
{
    unsigned long long pages = 0;
    FILE *file = fopen("/proc/self/statm", "r");
    if (!file) return 0;
    if (fscanf(file, "%*u %llu", &pages) != 1) pages = 0;
    fclose(file);
    return (double)pages * (double)sysconf(_SC_PAGESIZE);
}

void lt_metrics_route(lt_exchange *ex)
{
    lt_server *server = ex->server;
    lt_buf *out = &ex->out;
    lt_scheduler_stats stats;
    lt_scheduler_get_stats(server->scheduler, &stats);
    write_requests(out, &server->metrics);
    write_batches(out, &stats);
    if (server->options.cache) {
        lattice_cache_stats cache;
        lattice_cache_get_stats(server->options.cache, &cache);
        one(out, "lattice_cache_hits_total", "counter", "Texts whose vectors were found.", (double)cache.hits);
        one(out, "lattice_cache_misses_total", "counter", "Texts whose vectors were not.", (double)cache.misses);
        one(out, "lattice_cache_evictions_total", "counter", "Vectors that made room for others.", (double)cache.evictions);
        one(out, "lattice_cache_entries", "gauge", "Vectors in memory.", (double)cache.entries);
        one(out, "lattice_cache_bytes", "gauge", "Memory of the vectors.", (double)cache.bytes);
        one(out, "lattice_cache_disk_hits_total", "counter", "Texts whose vectors were found in the file.",
            (double)cache.disk_hits);
        one(out, "lattice_cache_disk_in_use", "gauge", "1 while a file is read.", cache.disk);
        one(out, "lattice_cache_lost_total", "counter", "Vectors that could not be kept: no memory, or a disk that fails.",
            (double)cache.lost);
    }
    lt_prefixes_stats prefixes;
    lt_prefixes_get_stats(server->prefixes, &prefixes);
    one(out, "lattice_prefix_hits_total", "counter", "Conversations that went on from a kept beginning.", (double)prefixes.hits);
    one(out, "lattice_prefix_misses_total", "counter", "Conversations that did not.", (double)prefixes.misses);
    one(out, "lattice_prefix_tokens_total", "counter", "Tokens of prompts found instead of computed.", (double)prefixes.tokens);
    one(out, "lattice_prefix_bytes", "gauge", "Memory of kept beginnings.", (double)prefixes.bytes);
    one(out, "lattice_tokens_total", "counter", "Tokens of answered requests.",
        (double)atomic_load_explicit(&server->metrics.tokens, memory_order_relaxed));
    one(out, "lattice_connections", "gauge", "Open connections.",
        (double)atomic_load_explicit(&server->metrics.connections, memory_order_relaxed));
    one(out, "process_resident_memory_bytes", "gauge", "Bytes of the process in memory.", resident_bytes());
    one(out, "lattice_uptime_seconds", "gauge", "Seconds since the server started.",
        lt_clock_seconds() - server->metrics.started);
    head(out, "lattice_build_info", "gauge", "What runs.");
    lt_buf_printf(out, "lattice_build_info{version=\"%s\",isa=\"%s\"} 1\n", lattice_version(), server->infos[0].isa);
    lt_answer_json(ex);
    if (ex->status == 200) ex->content_type = "text/plain; version=0.0.4; charset=utf-8";
}
