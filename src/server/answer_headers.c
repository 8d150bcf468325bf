/* Headers of an answer: what it is, how long it took and what it cost, under the names that Text Embeddings Inference gives them.
 */
#include "server/answer_headers.h"

#include <microhttpd.h>
#include <stdio.h>
#include <string.h>

static void add_number(struct MHD_Response *response, const char *name, uint64_t value)
{
    char text[24];
    snprintf(text, sizeof text, "%llu", (unsigned long long)value);
    MHD_add_response_header(response, name, text);
}

static void add_ms(struct MHD_Response *response, const char *name, double seconds)
{
    add_number(response, name, seconds > 0 ? (uint64_t)(seconds * 1e3 + 0.5) : 0);
}

struct MHD_Response *lt_make_response(lt_exchange *ex, double now,
                                      ssize_t (*reader)(void *exchange, uint64_t position, char *to, size_t most))
{
    enum { STREAM_BLOCK = 4096 };
    struct MHD_Response *response;
    if (reader) {
        response = MHD_create_response_from_callback(MHD_SIZE_UNKNOWN, STREAM_BLOCK, reader, ex, NULL);
        if (!response) return NULL;
        MHD_add_response_header(response, "Cache-Control", "no-store");
    } else if (ex->out.len > 0) {
        response = MHD_create_response_from_buffer(ex->out.len, ex->out.data, MHD_RESPMEM_MUST_FREE);
        if (!response) return NULL;
        lt_buf_init(&ex->out, ex->server->mem);
    } else {
        response = MHD_create_response_from_buffer(0, (void *)"", MHD_RESPMEM_PERSISTENT);
        if (!response) return NULL;
    }
    if (ex->content_type) MHD_add_response_header(response, "Content-Type", ex->content_type);
    MHD_add_response_header(response, "x-request-id", ex->id);
    if (ex->allow) MHD_add_response_header(response, "Allow", ex->allow);
    if (ex->status == 401) MHD_add_response_header(response, "WWW-Authenticate", "Bearer");
    if (ex->status == 429 || ex->status == 503) MHD_add_response_header(response, "Retry-After", "1");
    if (ex->close) MHD_add_response_header(response, "Connection", "close");
    const char *origin = ex->server->options.cors_origin;
    if (origin) {
        MHD_add_response_header(response, "Access-Control-Allow-Origin", origin);
        if (strcmp(origin, "*") != 0) MHD_add_response_header(response, "Vary", "Origin");
        if (ex->status == 204) {
            MHD_add_response_header(response, "Access-Control-Allow-Methods", ex->allow);
            MHD_add_response_header(response, "Access-Control-Allow-Headers", "Authorization, Content-Type, X-Request-Id");
            MHD_add_response_header(response, "Access-Control-Max-Age", "86400");
        }
    }
    if (ex->route && !ex->route->is_quick) {
        add_ms(response, "x-total-time", now - ex->begun);
        add_ms(response, "x-compute-time", now - ex->received);
        add_ms(response, "x-queue-time", ex->queue_seconds);
        add_ms(response, "x-inference-time", ex->inference_seconds);
        add_number(response, "x-tokens", ex->n_tokens);
        add_number(response, "x-compute-tokens", ex->n_tokens);
        MHD_add_response_header(response, "x-compute-type", "cpu");
    }
    return response;
}
