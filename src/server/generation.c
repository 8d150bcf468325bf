/* Generating text for every API; see generation.h.
 *
 * A conversation's prompt is appended in two parts: up to the end of its last message, where a copy of the session is kept, and
 * the beginning of the answer. The next turn has the first part in common with this one, whatever a thought between them was: it
 * vanishes from the conversation. */
#include "server/generation.h"

#include <string.h>
#include <time.h>

#include "engine/model.h"
#include "engine/prefixes.h"
#include "engine/session.h"

static void text_request_free(void *opaque)
{
    lt_text_request *r = opaque;
    const lattice_allocator *mem = r->exchange->server->mem;
    for (size_t i = 0; i < r->n_choices; i++) {
        lt_choice *c = &r->choices[i];
        lattice_generator_free(c->generator);
        lattice_session_free(c->session);
        lattice_encoding_free(&c->ids);
        lt_free(mem, c->entries);
        lt_free(mem, c->tops);
    }
    lt_free(mem, r->choices);
    lt_inputs_free(&r->inputs);
    lt_free(mem, r->messages);
    lt_free(mem, r->stop);
    lt_free(mem, r);
}

lt_text_request *lt_text_request_create(lt_exchange *exchange)
{
    const lattice_allocator *mem = exchange->server->mem;
    lt_text_request *r = lt_alloc_zero(mem, sizeof *r);
    if (!r) {
        lt_answer_error(exchange, LT_PROBLEM_BACKEND, NULL, "no memory for the request");
        return NULL;
    }
    r->exchange = exchange;
    lt_inputs_init(&r->inputs, mem);
    exchange->call = r;
    exchange->free_call = text_request_free;
    return r;
}

/* ------------------------------------------------------------------ reading */

static lattice_status read_number(lt_json *json, double *out, bool *has)
{
    if (lt_json_peek(json) == LT_JSON_NULL) return lt_json_null(json);
    *has = true;
    return lt_json_double(json, out);
}

static lattice_status read_tokens(lt_json *json, const char *name, size_t *out)
{
    if (lt_json_peek(json) == LT_JSON_NULL) return lt_json_null(json);
    int64_t value;
    LT_TRY(lt_json_int64(json, &value));
    if (value < 1) return lt_json_fail(json, "'%s' must be at least 1, not %lld", name, (long long)value);
    *out = (size_t)value;
    return LATTICE_OK;
}

static lattice_status add_stop(lt_json *json, lt_text_request *r)
{
    lt_str text;
    LT_TRY(lt_read_string(json, &r->inputs, &text));
    if (text.len == 0) return lt_json_fail(json, "a text of 'stop' is empty");
    if (!LT_GROW(r->inputs.arena.mem, r->stop, r->stop_capacity, r->n_stop + 1)) return lt_no_memory(json->err, 0, "stop texts");
    r->stop[r->n_stop++] = (lattice_text){ text.data, text.len };
    return LATTICE_OK;
}

static lattice_status read_stop(lt_json *json, lt_text_request *r)
{
    enum { MOST = 16 };
    if (lt_json_peek(json) == LT_JSON_NULL) return lt_json_null(json);
    if (lt_json_peek(json) == LT_JSON_STRING) return add_stop(json, r);
    LT_TRY(lt_json_begin_array(json));
    for (;;) {
        bool more;
        LT_TRY(lt_json_next_element(json, &more));
        if (!more) return LATTICE_OK;
        LT_TRY(add_stop(json, r));
        if (r->n_stop > MOST) return lt_json_fail(json, "'stop' may have %d texts", MOST);
    }
}

static lattice_status read_stream_option(lt_json *json, void *request, lt_str key)
{
    lt_text_request *r = request;
    return lt_str_is(key, "include_usage") ? lt_read_bool(json, &r->include_usage) : lt_json_skip(json);
}

static lattice_status read_stream_options(lt_json *json, lt_text_request *r)
{
    if (lt_json_peek(json) == LT_JSON_NULL) return lt_json_null(json);
    return lt_read_members(json, read_stream_option, r);
}

static lattice_status read_seed(lt_json *json, lt_text_request *r)
{
    if (lt_json_peek(json) == LT_JSON_NULL) return lt_json_null(json);
    int64_t seed;
    LT_TRY(lt_json_int64(json, &seed));
    r->seed = (uint64_t)seed;
    r->has_seed = true;
    return LATTICE_OK;
}

/* What is only allowed to say nothing: one answer, no tools. */
static lattice_status read_one(lt_json *json, const char *name)
{
    if (lt_json_peek(json) == LT_JSON_NULL) return lt_json_null(json);
    int64_t n;
    LT_TRY(lt_json_int64(json, &n));
    return n == 1 ? LATTICE_OK : lt_json_fail(json, "'%s' can only be 1", name);
}

static lattice_status refuse(lt_json *json, const char *name)
{
    lt_json_type type = lt_json_peek(json);
    LT_TRY(lt_json_skip(json));
    return type == LT_JSON_NULL ? LATTICE_OK : lt_json_fail(json, "'%s' is not supported", name);
}

lattice_status lt_read_text_option(lt_json *json, lt_text_request *r, lt_str key)
{
    bool has;
    if (lt_str_is(key, "model")) return lt_read_name(json, &r->inputs, &r->model_name);
    if (lt_str_is(key, "temperature")) return read_number(json, &r->temperature, &r->has_temperature);
    if (lt_str_is(key, "top_p")) return read_number(json, &r->top_p, &r->has_top_p);
    if (lt_str_is(key, "min_p")) return read_number(json, &r->min_p, &r->has_min_p);
    if (lt_str_is(key, "repetition_penalty")) return read_number(json, &r->repetition_penalty, &r->has_repetition_penalty);
    if (lt_str_is(key, "presence_penalty")) return read_number(json, &r->presence_penalty, &has);
    if (lt_str_is(key, "frequency_penalty")) return read_number(json, &r->frequency_penalty, &has);
    if (lt_str_is(key, "top_k")) {
        int64_t k = 0; /* -1 and 0: all */
        if (lt_json_peek(json) == LT_JSON_NULL) return lt_json_null(json);
        LT_TRY(lt_json_int64(json, &k));
        r->top_k = k > 0 ? (size_t)k : 0;
        r->has_top_k = true;
        return LATTICE_OK;
    }
    if (lt_str_is(key, "seed")) return read_seed(json, r);
    if (lt_str_is(key, "max_tokens")) return read_tokens(json, "max_tokens", &r->max_tokens);
    if (lt_str_is(key, "max_completion_tokens")) return read_tokens(json, "max_completion_tokens", &r->max_tokens);
    if (lt_str_is(key, "ignore_eos")) return lt_read_bool(json, &r->ignore_end);
    if (lt_str_is(key, "stop")) return read_stop(json, r);
    if (lt_str_is(key, "stream")) return lt_read_bool(json, &r->stream);
    if (lt_str_is(key, "stream_options")) return read_stream_options(json, r);
    if (lt_str_is(key, "n")) return read_one(json, "n");
    if (lt_str_is(key, "best_of")) return read_one(json, "best_of");
    if (lt_str_is(key, "logit_bias")) return refuse(json, "logit_bias");
    return lt_json_skip(json);
}

/* ------------------------------------------------------------------ events */

static bool on_text(void *user, const char *text, size_t length)
{
    lt_choice *c = user;
    lt_text_request *r = c->request;
    if (r->stream) r->write_text(c, (lt_str){ text, length });
    return !atomic_load(&r->exchange->gone);
}

static bool on_token(void *user, const lattice_token *token)
{
    lt_choice *c = user;
    const lt_text_request *r = c->request;
    const lattice_allocator *mem = r->exchange->server->mem;
    c->n_new++;
    if (!r->logprobs) return true;
    if (!LT_GROW(mem, c->entries, c->entries_capacity, c->n_entries + 1) ||
        (r->top_logprobs > 0 && !LT_GROW(mem, c->tops, c->tops_capacity, (c->n_entries + 1) * r->top_logprobs))) {
        c->failed = true;
        return false;
    }
    c->entries[c->n_entries] = (lt_token_entry){ token->id, token->logprob };
    for (size_t i = 0; i < r->top_logprobs; i++) c->tops[c->n_entries * r->top_logprobs + i] = token->top[i];
    c->n_entries++;
    return true;
}

static void write_stream_error(const lt_text_request *r, const lattice_error *err)
{
    lt_buf text;
    lt_buf_init(&text, r->exchange->server->mem);
    lt_write_status(r->exchange, err, &text);
    lt_exchange_write_event(r->exchange, lt_buf_str(&text));
    lt_buf_free(&text);
}

/* The last choice is done: the answer goes out. */
static void finish(lt_text_request *r)
{
    lt_exchange *ex = r->exchange;
    const lattice_error *err = NULL; /* the first one */
    for (size_t i = 0; i < r->n_choices; i++) {
        const lt_choice *c = &r->choices[i];
        double queued = c->turn.started > 0 ? c->turn.started - c->turn.submitted : 0;
        if (queued > ex->queue_seconds) ex->queue_seconds = queued;
        if (c->turn.seconds > ex->inference_seconds) ex->inference_seconds = c->turn.seconds;
        ex->n_tokens += c->ids.n + c->n_new;
        if (!err && c->err.code != LATTICE_OK) err = &c->err;
    }
    if (!r->stream) {
        if (err)
            lt_answer_status(ex, NULL, err);
        else
            r->write_all(r);
        lt_exchange_finish(ex);
        return;
    }
    if (!err && r->include_usage) r->write_usage(r);
    lt_exchange_write_event(ex, LT_STR("[DONE]"));
    lt_exchange_end_stream(ex);
}

static lt_choice *choice_of(lt_turn *turn)
{
    return (lt_choice *)(void *)((char *)turn - offsetof(lt_choice, turn));
}

static void on_done(lt_turn *turn)
{
    lt_choice *c = choice_of(turn);
    lt_text_request *r = c->request;
    c->result = lattice_generator_result(c->generator);
    c->err = turn->err;
    c->err.code = turn->status;
    if (turn->status == LATTICE_OK && c->failed)
        lt_no_memory(&c->err, 0, "tokens");
    else if (turn->status == LATTICE_OK && c->result->finish == LATTICE_FINISH_CANCELLED)
        lt_fail(&c->err, LATTICE_ERR_CANCELLED, "cancelled");
    if (c->err.code == LATTICE_OK) {
        lattice_finish ended = c->result->finish;
        c->finish_reason = ended == LATTICE_FINISH_LENGTH || ended == LATTICE_FINISH_CONTEXT ? "length" : "stop";
        if (r->is_chat && !c->session->model->thinks) lt_prefixes_keep(r->exchange->server->prefixes, c->session);
        if (r->stream) r->write_end(c);
    } else if (r->stream) {
        write_stream_error(r, &c->err);
    }
    if (atomic_fetch_sub(&r->n_going, 1) == 1) finish(r);
}

/* ------------------------------------------------------------------ starting */

static lattice_generate_options options_of(lt_choice *c, const lattice_model *model)
{
    const lt_text_request *r = c->request;
    static atomic_uint_fast64_t counter;
    lattice_generate_options o = lattice_generate_options_default(model);
    lattice_sampling *s = &o.sampling;
    if (r->has_temperature) s->temperature = r->temperature;
    if (r->has_top_p) s->top_p = r->top_p;
    if (r->has_min_p) s->min_p = r->min_p;
    if (r->has_top_k) s->top_k = r->top_k;
    if (r->has_repetition_penalty) s->repetition_penalty = r->repetition_penalty;
    s->presence_penalty = r->presence_penalty;
    s->frequency_penalty = r->frequency_penalty;
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    s->seed = r->has_seed ? r->seed : (uint64_t)now.tv_nsec << 32 ^ (uint64_t)now.tv_sec ^ atomic_fetch_add(&counter, 1) << 20;
    o.max_tokens = r->max_tokens;
    o.stop = r->stop;
    o.n_stop = r->n_stop;
    o.ignore_end = r->ignore_end;
    o.logprobs = r->logprobs;
    o.top_logprobs = r->top_logprobs;
    o.on_text = on_text;
    o.on_token = on_token;
    o.user = c;
    return o;
}

/* The generator of the answer, behind the ids [begin, c->ids.n). */
static lattice_status create_generator(lt_choice *c, size_t begin, lattice_error *err)
{
    lattice_generate_options o = options_of(c, c->session->model);
    lattice_generator_free(c->generator);
    c->generator = NULL;
    LT_TRY(lattice_generator_create(c->session, c->ids.ids + begin, c->ids.n - begin, &o, &c->generator, err));
    c->turn.generator = c->generator;
    return LATTICE_OK;
}

/* The conversation is appended up to the end of its last message. */
static lattice_status on_appended(lt_turn *turn, lattice_error *err)
{
    lt_choice *c = choice_of(turn);
    lt_prefixes_keep(c->request->exchange->server->prefixes, c->session);
    return create_generator(c, c->n_base, err);
}

/* As given: they go into an encoding of their own. */
static lattice_status take_ids(lt_choice *c, lattice_model *model, lattice_error *err)
{
    const lt_inputs *inputs = &c->request->inputs;
    size_t begin = c->index ? inputs->ends[c->index - 1] : 0, n = inputs->ends[c->index] - begin;
    lattice_encode_options none = { 0 };
    LT_TRY(lattice_encode(lattice_model_tokenizer(model), (lattice_text){ "", 0 }, NULL, &none, &c->ids, err));
    lt_free(model->mem, c->ids.ids);
    c->ids.n = 0;
    c->ids.ids = lt_alloc_array(model->mem, n + 1, sizeof *c->ids.ids);
    if (!c->ids.ids) return lt_no_memory(err, n, "token ids");
    if (n > 0) memcpy(c->ids.ids, inputs->ids + begin, n * sizeof *c->ids.ids);
    c->ids.n = n;
    return LATTICE_OK;
}

static lattice_status encode(lt_choice *c, lattice_model *model, lattice_error *err)
{
    const lt_text_request *r = c->request;
    if (!r->is_chat) {
        if (r->inputs.by_ids) return take_ids(c, model, err);
        lattice_encode_options o = lattice_encode_options_default();
        o.add_special = false;
        return lattice_encode(lattice_model_tokenizer(model), r->inputs.texts[c->index], NULL, &o, &c->ids, err);
    }
    lattice_chat_options o = lattice_chat_options_default();
    o.think = r->think;
    LT_TRY(lattice_chat_encode(model, r->messages, r->n_messages, &o, &c->ids, err));
    o.no_prompt = true;
    lattice_encoding base;
    LT_TRY(lattice_chat_encode(model, r->messages, r->n_messages, &o, &base, err));
    bool is_prefix = base.n > 0 && base.n < c->ids.n && memcmp(base.ids, c->ids.ids, base.n * sizeof *base.ids) == 0;
    c->n_base = is_prefix ? base.n : 0;
    lattice_encoding_free(&base);
    return LATTICE_OK;
}

static lattice_status prepare(lt_choice *c, lattice_model *model, lattice_error *err)
{
    const lt_text_request *r = c->request;
    const lattice_generate_options options = options_of(c, model);
    LT_TRY(lt_sampling_check(&options.sampling, err));
    LT_TRY(encode(c, model, err));
    if (c->ids.n == 0) return lt_fail(err, LATTICE_ERR_INVALID_ARGUMENT, "prompt %zu has no tokens", c->index);
    if (c->ids.n >= model->max_positions)
        return lt_fail(err, LATTICE_ERR_TOO_LONG,
                       "prompt %zu has %zu tokens, which leave no room for an answer in the model's %zu", c->index, c->ids.n,
                       model->max_positions);
    for (size_t i = 0; i < c->ids.n; i++)
        if (c->ids.ids[i] >= model->config.vocab_size)
            return lt_fail(err, LATTICE_ERR_INVALID_ARGUMENT, "token id %u is outside the model's vocabulary of %zu",
                           c->ids.ids[i], model->config.vocab_size);
    if (r->is_chat)
        LT_TRY(lt_prefixes_find(r->exchange->server->prefixes, model, c->ids.ids, c->ids.n, &c->session, &c->n_found, err));
    else
        LT_TRY(lattice_session_create(model, NULL, &c->session, err));
    c->turn = (lt_turn){ .session = c->session, .deadline = r->exchange->deadline, .done = on_done };
    LT_TRY(create_generator(c, c->n_found, err)); /* says what is wrong with the options, too */
    if (c->n_found >= c->n_base) return LATTICE_OK;
    lattice_generator_free(c->generator);
    c->generator = NULL;
    LT_TRY(lattice_generator_create(c->session, c->ids.ids + c->n_found, c->n_base - c->n_found, NULL, &c->generator, err));
    c->turn.generator = c->generator;
    c->turn.appended = on_appended;
    return LATTICE_OK;
}

/* All choices, chained. */
static lattice_status prepare_all(lt_text_request *r, lattice_model *model, lattice_error *err)
{
    const lattice_allocator *mem = r->exchange->server->mem;
    size_t n = r->is_chat ? 1 : r->inputs.n;
    r->choices = lt_alloc_zero(mem, n * sizeof *r->choices);
    if (!r->choices) return lt_no_memory(err, n * sizeof *r->choices, "the choices");
    r->n_choices = n;
    atomic_init(&r->n_going, n);
    for (size_t i = 0; i < n; i++) {
        r->choices[i].request = r;
        r->choices[i].index = i;
        LT_TRY(prepare(&r->choices[i], model, err));
        if (i > 0) r->choices[i - 1].turn.also = &r->choices[i].turn;
    }
    return LATTICE_OK;
}

void lt_text_request_run(lt_text_request *r)
{
    lt_exchange *ex = r->exchange;
    lt_str name = r->model_name ? lt_str_of(r->model_name) : (lt_str){ NULL, 0 };
    lattice_error err = { 0 };
    r->model = lt_find_model(ex, name, lt_generates, "generates text");
    if (r->model >= 0) {
        lattice_model *model = ex->server->options.models[r->model].model;
        if (prepare_all(r, model, &err) != LATTICE_OK)
            lt_answer_status(ex, r->is_chat ? "messages" : "prompt", &err);
        else if (lt_exchange_begin_turn(ex, &r->choices[0].turn, r->stream))
            return;
    }
    lt_exchange_finish(ex);
}
