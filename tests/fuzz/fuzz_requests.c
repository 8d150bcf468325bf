/* Request bodies of every API: the first byte chooses the route, the rest is the body. Whatever it is, it is read or refused with
 * a message, and what was read lies within the body or the request's own memory. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "server/embedding.h"
#include "server/generation.h"
#include "server/readers.h"
#include "server/scoring.h"
#include "server/tokenizing.h"

static uint64_t touched; /* so that reading every text is not left out */

static void touch(const lt_inputs *inputs)
{
    for (size_t i = 0; !inputs->by_ids && i < inputs->n; i++)
        for (size_t k = 0; k < inputs->texts[i].length; k++) touched += (uint8_t)inputs->texts[i].data[k];
    for (size_t i = 0; inputs->by_ids && i < inputs->n; i++) {
        if (inputs->ends[i] > inputs->n_ids) abort();
    }
}

static void check(lattice_status status, const lattice_error *err)
{
    if (status != LATTICE_OK && !err->message[0]) abort();
}

static lattice_status read_body(lattice_status (*reader)(lt_json *json, void *request), void *request, const uint8_t *body,
                                size_t size)
{
    lattice_error err = { 0 };
    lt_json json;
    lt_json_open(&json, &lt_malloc_allocator, "request", body, size, &err);
    lattice_status status = reader(&json, request);
    lt_json_close(&json);
    check(status, &err);
    return status;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static lattice_status (*const embeddings[])(lt_json *, void *) = { lt_read_openai_embeddings, lt_read_tei_embed,
                                                                       lt_read_tei_similarity, lt_read_cohere_embed };
    static lattice_status (*const scorings[])(lt_json *, void *) = { lt_read_rerank, lt_read_tei_predict };
    static lattice_status (*const texts[])(lt_json *, void *) = { lt_read_openai_chat, lt_read_openai_completion };
    static lattice_status (*const tokens[])(lt_json *, void *) = { lt_read_tei_tokenize, lt_read_tei_decode };
    if (size == 0) return 0;
    unsigned route = data[0] % 10;
    /* A copy of its own size, so that reading past it is seen. */
    uint8_t *body = malloc(size);
    memcpy(body, data + 1, size - 1);
    if (route < 4) {
        lt_embedding e = { 0 };
        lt_inputs_init(&e.inputs, &lt_malloc_allocator);
        if (read_body(embeddings[route], &e, body, size - 1) == LATTICE_OK) touch(&e.inputs);
        lt_inputs_free(&e.inputs);
    } else if (route < 6) {
        lt_scoring s = { 0 };
        lt_inputs_init(&s.inputs, &lt_malloc_allocator);
        if (read_body(scorings[route - 4], &s, body, size - 1) == LATTICE_OK) {
            size_t n = 0;
            touch(&s.inputs);
            for (size_t i = 0; i < s.n_items; i++) n += s.is_pair[i] ? 2 : 1;
            if (route == 5 && n != s.inputs.n) abort();
        }
        lt_free(&lt_malloc_allocator, s.is_pair);
        lt_inputs_free(&s.inputs);
    } else if (route < 8) {
        lt_text_request r = { 0 };
        lt_inputs_init(&r.inputs, &lt_malloc_allocator);
        if (read_body(texts[route - 6], &r, body, size - 1) == LATTICE_OK) {
            for (size_t i = 0; i < r.n_messages; i++) {
                touched += strlen(r.messages[i].role);
                for (size_t k = 0; k < r.messages[i].content.length; k++) touched += (uint8_t)r.messages[i].content.data[k];
            }
            if (route == 7) touch(&r.inputs);
        }
        lt_free(&lt_malloc_allocator, r.messages);
        lt_free(&lt_malloc_allocator, r.stop);
        lt_inputs_free(&r.inputs);
    } else {
        lt_tokenizing t = { .mem = &lt_malloc_allocator };
        lt_inputs_init(&t.inputs, &lt_malloc_allocator);
        if (read_body(tokens[route - 8], &t, body, size - 1) == LATTICE_OK) touch(&t.inputs);
        lt_inputs_free(&t.inputs);
    }
    free(body);
    return 0;
}
