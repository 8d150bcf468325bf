/* OpenAI's API: chat and text completions, whole or as a stream of events. */
#include <stdio.h>
#include <string.h>

#include "base/utf8.h"
#include "server/generation.h"
#include "server/readers.h"

/* ------------------------------------------------------------------ reading */

/* A string, or a list of parts {"type": "text", "text": …} that are put together. */
static lattice_status read_part(lt_json *json, void *content, lt_str key)
{
    lt_buf *all = content;
    lt_str text;
    if (lt_str_is(key, "text")) {
        LT_TRY(lt_json_string(json, &text));
        lt_buf_append(all, text.data, text.len);
        return LATTICE_OK;
    }
    if (!lt_str_is(key, "type")) return lt_json_skip(json);
    LT_TRY(lt_json_string(json, &text));
    return lt_str_is(text, "text") ? LATTICE_OK : lt_json_fail(json, "content of type '%.*s' is not supported", LT_STR_ARG(text));
}

static lattice_status read_content(lt_json *json, lt_text_request *r, lattice_text *content)
{
    lt_json_type type = lt_json_peek(json);
    if (type == LT_JSON_NULL) {
        *content = (lattice_text){ "", 0 };
        return lt_json_null(json);
    }
    if (type == LT_JSON_STRING) {
        lt_str text;
        LT_TRY(lt_read_string(json, &r->inputs, &text));
        *content = (lattice_text){ text.data, text.len };
        return LATTICE_OK;
    }
    lt_buf all;
    lt_buf_init(&all, r->inputs.arena.mem);
    lattice_status status = LATTICE_OK;
    LT_GO(lt_json_begin_array(json));
    for (bool more;;) {
        LT_GO(lt_json_next_element(json, &more));
        if (!more) break;
        LT_GO(lt_read_members(json, read_part, &all));
    }
    char *copy = lt_arena_copy(&r->inputs.arena, all.data ? all.data : "", all.len);
    if (!copy || all.failed) status = lt_no_memory(json->err, all.len, "a message");
    *content = (lattice_text){ copy, all.len };
done:
    lt_buf_free(&all);
    return status;
}

typedef struct read_message_args {
    lt_text_request *request;
    lattice_message message;
} read_message_args;

static lattice_status read_message_member(lt_json *json, void *opaque, lt_str key)
{
    read_message_args *a = opaque;
    if (lt_str_is(key, "role")) return lt_read_name(json, &a->request->inputs, &a->message.role);
    if (lt_str_is(key, "content")) return read_content(json, a->request, &a->message.content);
    return lt_json_skip(json);
}

static lattice_status read_message(lt_json *json, lt_text_request *r)
{
    read_message_args a = { .request = r };
    lattice_message *message = &a.message;
    LT_TRY(lt_read_members(json, read_message_member, &a));
    if (!message->role) return lt_json_fail(json, "a message without 'role'");
    if (!message->content.data) return lt_json_fail(json, "a message without 'content'");
    if (strcmp(message->role, "developer") == 0) message->role = "system";
    if (!LT_GROW(r->inputs.arena.mem, r->messages, r->messages_capacity, r->n_messages + 1))
        return lt_no_memory(json->err, r->n_messages, "messages");
    r->messages[r->n_messages++] = *message;
    return LATTICE_OK;
}

static lattice_status read_messages(lt_json *json, lt_text_request *r)
{
    LT_TRY(lt_json_begin_array(json));
    for (;;) {
        bool more;
        LT_TRY(lt_json_next_element(json, &more));
        if (!more) return LATTICE_OK;
        LT_TRY(read_message(json, r));
    }
}

/* What a chat template is given: whether to think. */
static lattice_status read_template_member(lt_json *json, void *request, lt_str key)
{
    lt_text_request *r = request;
    return lt_str_is(key, "enable_thinking") ? lt_read_bool(json, &r->think) : lt_json_skip(json);
}

static lattice_status read_template(lt_json *json, lt_text_request *r)
{
    if (lt_json_peek(json) == LT_JSON_NULL) return lt_json_null(json);
    return lt_read_members(json, read_template_member, r);
}

static lattice_status read_top_logprobs(lt_json *json, lt_text_request *r)
{
    enum { MOST = 20 };
    LT_TRY(lt_read_size(json, &r->top_logprobs));
    return r->top_logprobs <= MOST ? LATTICE_OK : lt_json_fail(json, "at most %d alternatives are told of", MOST);
}

static lattice_status read_tools(lt_json *json)
{
    lt_str raw;
    LT_TRY(lt_json_raw(json, &raw));
    bool none = lt_str_is(raw, "null") || lt_str_is(raw, "[]");
    return none ? LATTICE_OK : lt_json_fail(json, "tools are not supported");
}

static lattice_status read_chat_member(lt_json *json, void *request, lt_str key)
{
    lt_text_request *r = request;
    if (lt_str_is(key, "messages")) return read_messages(json, r);
    if (lt_str_is(key, "logprobs")) return lt_read_bool(json, &r->logprobs);
    if (lt_str_is(key, "top_logprobs")) return read_top_logprobs(json, r);
    if (lt_str_is(key, "tools") || lt_str_is(key, "functions")) return read_tools(json);
    if (lt_str_is(key, "chat_template_kwargs")) return read_template(json, r);
    return lt_read_text_option(json, r, key);
}

lattice_status lt_read_openai_chat(lt_json *json, void *request)
{
    const lt_text_request *r = request;
    LT_TRY(lt_read_members(json, read_chat_member, request));
    if (r->n_messages == 0) return lt_json_fail(json, "'messages' is missing or empty");
    if (r->top_logprobs > 0 && !r->logprobs) return lt_json_fail(json, "'top_logprobs' needs 'logprobs'");
    return lt_json_end(json);
}

static lattice_status read_prompts(lt_json *json, lt_text_request *r)
{
    LT_TRY(lt_read_inputs(json, &r->inputs, true));
    if (r->inputs.n == 0) return lt_json_fail(json, "'prompt' is empty");
    if (r->inputs.n > LT_MAX_PROMPTS)
        return lt_json_fail(json, "%zu prompts are more than the %d that a request may have", r->inputs.n, LT_MAX_PROMPTS);
    r->has_prompt = true;
    return LATTICE_OK;
}

static lattice_status read_completion_member(lt_json *json, void *request, lt_str key)
{
    lt_text_request *r = request;
    if (lt_str_is(key, "prompt")) return read_prompts(json, r);
    if (lt_str_is(key, "logprobs")) {
        r->logprobs = lt_json_peek(json) != LT_JSON_NULL;
        return read_top_logprobs(json, r);
    }
    if (lt_str_is(key, "echo")) {
        bool echo = false;
        LT_TRY(lt_read_bool(json, &echo));
        return echo ? lt_json_fail(json, "'echo' is not supported") : LATTICE_OK;
    }
    if (lt_str_is(key, "suffix")) {
        lt_json_type type = lt_json_peek(json);
        LT_TRY(lt_json_skip(json));
        return type == LT_JSON_NULL ? LATTICE_OK : lt_json_fail(json, "'suffix' is not supported");
    }
    return lt_read_text_option(json, r, key);
}

lattice_status lt_read_openai_completion(lt_json *json, void *request)
{
    const lt_text_request *r = request;
    LT_TRY(lt_read_members(json, read_completion_member, request));
    if (!r->has_prompt) return lt_json_fail(json, "'prompt' is missing");
    return lt_json_end(json);
}

/* ------------------------------------------------------------------ logprobs */

/* The text of one token; what is half a character is U+FFFD. */
static void write_token_text(lt_json_writer *w, const lt_text_request *r, uint32_t id, bool with_bytes)
{
    lattice_tokenizer *tokenizer = lattice_model_tokenizer(r->exchange->server->options.models[r->model].model);
    lattice_text text = { "", 0 };
    bool decoded = lattice_decode(tokenizer, &id, 1, false, &text, NULL) == LATTICE_OK;
    lt_json_write_str(w, (lt_str){ text.data, text.length });
    if (with_bytes) {
        bool is_whole = true;
        for (size_t i = 0; i + 3 <= text.length; i++) is_whole = is_whole && memcmp(text.data + i, "\xEF\xBF\xBD", 3) != 0;
        lt_json_write_key(w, "bytes");
        if (is_whole) {
            lt_json_write_begin(w, '[');
            for (size_t i = 0; i < text.length; i++) lt_json_write_uint(w, (uint8_t)text.data[i]);
            lt_json_write_end(w, ']');
        } else {
            lt_json_write_null(w);
        }
    }
    if (decoded) lattice_text_free(tokenizer, &text);
}

/* Probabilities of exactly 0 have no logarithm in JSON: a very small one stands for it. */
static void write_logprob(lt_json_writer *w, float logprob)
{
    lt_json_write_float(w, logprob < -9999 ? -9999 : logprob);
}

static void write_chat_token(lt_json_writer *w, const lt_text_request *r, uint32_t id, float logprob)
{
    lt_json_write_key(w, "token");
    write_token_text(w, r, id, true);
    lt_json_write_key(w, "logprob");
    write_logprob(w, logprob);
}

static void write_chat_logprobs(lt_json_writer *w, lt_choice *c)
{
    const lt_text_request *r = c->request;
    lt_json_write_key(w, "logprobs");
    if (!r->logprobs) {
        lt_json_write_null(w);
        return;
    }
    lt_json_write_begin(w, '{');
    lt_json_write_key(w, "content");
    lt_json_write_begin(w, '[');
    for (size_t i = 0; i < c->n_entries; i++) {
        lt_json_write_begin(w, '{');
        write_chat_token(w, r, c->entries[i].id, c->entries[i].logprob);
        lt_json_write_key(w, "top_logprobs");
        lt_json_write_begin(w, '[');
        for (size_t k = 0; k < r->top_logprobs; k++) {
            const lattice_logprob *top = &c->tops[i * r->top_logprobs + k];
            lt_json_write_begin(w, '{');
            write_chat_token(w, r, top->id, top->logprob);
            lt_json_write_end(w, '}');
        }
        lt_json_write_end(w, ']');
        lt_json_write_end(w, '}');
    }
    lt_json_write_end(w, ']');
    lt_json_write_key(w, "refusal");
    lt_json_write_null(w);
    lt_json_write_end(w, '}');
    c->n_entries = 0;
}

/* The older form: lists of tokens, of their logarithms, and an object of alternatives at each place. */
static void write_completion_logprobs(lt_json_writer *w, lt_choice *c)
{
    const lt_text_request *r = c->request;
    lt_json_write_key(w, "logprobs");
    if (!r->logprobs) {
        lt_json_write_null(w);
        return;
    }
    lt_json_write_begin(w, '{');
    lt_json_write_key(w, "tokens");
    lt_json_write_begin(w, '[');
    for (size_t i = 0; i < c->n_entries; i++) write_token_text(w, r, c->entries[i].id, false);
    lt_json_write_end(w, ']');
    lt_json_write_key(w, "token_logprobs");
    lt_json_write_begin(w, '[');
    for (size_t i = 0; i < c->n_entries; i++) write_logprob(w, c->entries[i].logprob);
    lt_json_write_end(w, ']');
    lt_json_write_key(w, "top_logprobs");
    lt_json_write_begin(w, '[');
    for (size_t i = 0; i < c->n_entries; i++) {
        lt_json_write_begin(w, '{');
        lt_buf keys; /* of two tokens with one text the likelier stays: an object has a key once */
        lt_buf_init(&keys, r->exchange->server->mem);
        for (size_t k = 0; k < r->top_logprobs; k++) {
            const lattice_logprob *top = &c->tops[i * r->top_logprobs + k];
            lt_buf text;
            lt_buf_init(&text, r->exchange->server->mem);
            lt_json_writer key = lt_json_writer_on(&text);
            write_token_text(&key, r, top->id, false);
            bool is_new = !text.failed && (keys.len == 0 || !memmem(keys.data, keys.len, text.data, text.len));
            if (is_new) {
                lt_buf_append(&keys, text.data, text.len);
                if (w->comma) lt_buf_byte(w->out, ',');
                lt_buf_append(w->out, text.data, text.len);
                lt_buf_byte(w->out, ':');
                w->comma = false;
                write_logprob(w, top->logprob);
            }
            lt_buf_free(&text);
        }
        lt_buf_free(&keys);
        lt_json_write_end(w, '}');
    }
    lt_json_write_end(w, ']');
    lt_json_write_end(w, '}');
    c->n_entries = 0;
}

/* ------------------------------------------------------------------ writing */

static void write_head(lt_json_writer *w, const lt_text_request *r, const char *object)
{
    const lt_exchange *ex = r->exchange;
    char id[96];
    snprintf(id, sizeof id, "%s-%s", r->is_chat ? "chatcmpl" : "cmpl", ex->id);
    lt_json_write_begin(w, '{');
    lt_json_write_key(w, "id");
    lt_json_write_z(w, id);
    lt_json_write_key(w, "object");
    lt_json_write_z(w, object);
    lt_json_write_key(w, "created");
    lt_json_write_uint(w, ex->server->created + (uint64_t)(ex->begun - ex->server->metrics.started));
    lt_json_write_key(w, "model");
    lt_json_write_z(w, ex->server->options.models[r->model].name);
}

static void write_usage(lt_json_writer *w, const lt_text_request *r)
{
    size_t n_prompt = 0, n_new = 0, n_found = 0;
    for (size_t i = 0; i < r->n_choices; i++) {
        n_prompt += r->choices[i].ids.n;
        n_new += r->choices[i].n_new;
        n_found += r->choices[i].n_found;
    }
    lt_json_write_key(w, "usage");
    lt_json_write_begin(w, '{');
    lt_json_write_key(w, "prompt_tokens");
    lt_json_write_uint(w, n_prompt);
    lt_json_write_key(w, "completion_tokens");
    lt_json_write_uint(w, n_new);
    lt_json_write_key(w, "total_tokens");
    lt_json_write_uint(w, n_prompt + n_new);
    lt_json_write_key(w, "prompt_tokens_details");
    lt_json_write_begin(w, '{');
    lt_json_write_key(w, "cached_tokens");
    lt_json_write_uint(w, n_found);
    lt_json_write_end(w, '}');
    lt_json_write_end(w, '}');
}

static void write_finish(lt_json_writer *w, const char *reason)
{
    lt_json_write_key(w, "finish_reason");
    if (reason)
        lt_json_write_z(w, reason);
    else
        lt_json_write_null(w);
}

static void write_choice(lt_json_writer *w, lt_choice *c)
{
    lt_str text = { c->result->text, c->result->length };
    lt_json_write_begin(w, '{');
    lt_json_write_key(w, "index");
    lt_json_write_uint(w, c->index);
    if (c->request->is_chat) {
        lt_json_write_key(w, "message");
        lt_json_write_begin(w, '{');
        lt_json_write_key(w, "role");
        lt_json_write_z(w, "assistant");
        lt_json_write_key(w, "content");
        lt_json_write_str(w, text);
        lt_json_write_key(w, "refusal");
        lt_json_write_null(w);
        lt_json_write_end(w, '}');
        write_chat_logprobs(w, c);
    } else {
        lt_json_write_key(w, "text");
        lt_json_write_str(w, text);
        write_completion_logprobs(w, c);
    }
    write_finish(w, c->finish_reason);
    lt_json_write_end(w, '}');
}

static void write_all(lt_text_request *r)
{
    lt_json_writer w = lt_json_writer_on(&r->exchange->out);
    write_head(&w, r, r->is_chat ? "chat.completion" : "text_completion");
    lt_json_write_key(&w, "choices");
    lt_json_write_begin(&w, '[');
    for (size_t i = 0; i < r->n_choices; i++) write_choice(&w, &r->choices[i]);
    lt_json_write_end(&w, ']');
    write_usage(&w, r);
    lt_json_write_end(&w, '}');
    lt_answer_json(r->exchange);
}

/* ------------------------------------------------------------------ events */

static lt_json_writer begin_event(const lt_text_request *r, lt_buf *out)
{
    lt_buf_init(out, r->exchange->server->mem);
    lt_json_writer w = lt_json_writer_on(out);
    write_head(&w, r, r->is_chat ? "chat.completion.chunk" : "text_completion");
    lt_json_write_key(&w, "choices");
    lt_json_write_begin(&w, '[');
    return w;
}

/* One event: a piece of text (NULL data: none), the reason of the end (NULL: not yet). */
static void write_event(lt_choice *c, lt_str text, bool with_role, const char *reason)
{
    const lt_text_request *r = c->request;
    lt_buf out;
    lt_json_writer w = begin_event(r, &out);
    lt_json_write_begin(&w, '{');
    lt_json_write_key(&w, "index");
    lt_json_write_uint(&w, c->index);
    if (r->is_chat) {
        lt_json_write_key(&w, "delta");
        lt_json_write_begin(&w, '{');
        if (with_role) {
            lt_json_write_key(&w, "role");
            lt_json_write_z(&w, "assistant");
        }
        if (text.data) {
            lt_json_write_key(&w, "content");
            lt_json_write_str(&w, text);
        }
        lt_json_write_end(&w, '}');
        write_chat_logprobs(&w, c);
    } else {
        lt_json_write_key(&w, "text");
        lt_json_write_str(&w, text.data ? text : (lt_str){ "", 0 });
        write_completion_logprobs(&w, c);
    }
    write_finish(&w, reason);
    lt_json_write_end(&w, '}');
    lt_json_write_end(&w, ']');
    if (r->include_usage) {
        lt_json_write_key(&w, "usage");
        lt_json_write_null(&w);
    }
    lt_json_write_end(&w, '}');
    if (out.failed)
        c->failed = true;
    else
        lt_exchange_write_event(r->exchange, lt_buf_str(&out));
    lt_buf_free(&out);
}

static void write_text(lt_choice *c, lt_str text)
{
    if (c->request->is_chat && !c->has_role) write_event(c, (lt_str){ "", 0 }, true, NULL);
    c->has_role = true;
    write_event(c, text, false, NULL);
}

static void write_end(lt_choice *c)
{
    if (c->request->is_chat && !c->has_role) write_event(c, (lt_str){ "", 0 }, true, NULL);
    write_event(c, (lt_str){ NULL, 0 }, false, c->finish_reason);
}

static void write_usage_event(lt_text_request *r)
{
    lt_buf out;
    lt_json_writer w = begin_event(r, &out);
    lt_json_write_end(&w, ']');
    write_usage(&w, r);
    lt_json_write_end(&w, '}');
    if (!out.failed) lt_exchange_write_event(r->exchange, lt_buf_str(&out));
    lt_buf_free(&out);
}

static void answer(lt_exchange *ex, bool is_chat, lattice_status (*reader)(lt_json *json, void *request))
{
    lt_text_request *r = lt_text_request_create(ex);
    if (r) {
        r->is_chat = is_chat;
        r->write_text = write_text;
        r->write_end = write_end;
        r->write_usage = write_usage_event;
        r->write_all = write_all;
        if (!is_chat) r->max_tokens = 16; /* as OpenAI's, unless the body says more */
    }
    if (!r || !lt_read_body(ex, reader, r))
        lt_exchange_finish(ex);
    else
        lt_text_request_run(r);
}

void lt_openai_chat(lt_exchange *ex)
{
    answer(ex, true, lt_read_openai_chat);
}

void lt_openai_completion(lt_exchange *ex)
{
    answer(ex, false, lt_read_openai_completion);
}
