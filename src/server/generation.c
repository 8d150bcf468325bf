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
    lattice_generator_free(r->generator);
    lattice_session_free(r->session);
    lattice_encoding_free(&r->ids);
    lt_inputs_free(&r->inputs);
    lt_free(mem, r->messages);
    lt_free(mem, r->stop);
    lt_free(mem, r->entries);
    lt_free(mem, r->tops);
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

static lattice_status read_stream_options(lt_json *json, lt_text_request *r)
{
    if (lt_json_peek(json) == LT_JSON_NULL) return lt_json_null(json);
    LT_TRY(lt_json_begin_object(json));
    for (lt_str key;;) {
        bool more;
        LT_TRY(lt_json_next_member(json, &key, &more));
        if (!more) return LATTICE_OK;
        LT_TRY(lt_str_is(key, "include_usage") ? lt_read_bool(json, &r->include_usage) : lt_json_skip(json));
    }
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
    lt_text_request *r = user;
    if (r->stream) r->write_text(r, (lt_str){ text, length });
    return !atomic_load(&r->exchange->gone);
}

static bool on_token(void *user, const lattice_token *token)
{
    lt_text_request *r = user;
    const lattice_allocator *mem = r->exchange->server->mem;
    r->n_new++;
    if (!r->logprobs) return true;
    if (!LT_GROW(mem, r->entries, r->entries_capacity, r->n_entries + 1) ||
        (r->top_logprobs > 0 && !LT_GROW(mem, r->tops, r->tops_capacity, (r->n_entries + 1) * r->top_logprobs))) {
        r->failed = true;
        return false;
    }
    r->entries[r->n_entries] = (lt_token_entry){ token->id, token->logprob };
    for (size_t i = 0; i < r->top_logprobs; i++) r->tops[r->n_entries * r->top_logprobs + i] = token->top[i];
    r->n_entries++;
    return true;
}

static void on_done(lt_turn *turn)
{
    lt_text_request *r = (lt_text_request *)(void *)((char *)turn - offsetof(lt_text_request, turn));
    lt_exchange *ex = r->exchange;
    r->result = lattice_generator_result(r->generator);
    ex->queue_seconds = turn->started > 0 ? turn->started - turn->submitted : 0;
    ex->inference_seconds = turn->seconds;
    ex->n_tokens = r->ids.n + r->n_new;
    lattice_error err = turn->err;
    lattice_status status = turn->status;
    if (status == LATTICE_OK && r->failed) status = lt_no_memory(&err, 0, "tokens");
    if (status == LATTICE_OK && r->result->finish == LATTICE_FINISH_CANCELLED)
        status = lt_fail(&err, LATTICE_ERR_CANCELLED, "cancelled");
    if (status == LATTICE_OK) {
        lattice_finish finish = r->result->finish;
        r->finish_reason = finish == LATTICE_FINISH_LENGTH || finish == LATTICE_FINISH_CONTEXT ? "length" : "stop";
        if (r->is_chat && !r->session->model->thinks) lt_prefixes_keep(ex->server->prefixes, r->session);
        (r->stream ? r->write_end : r->write_all)(r);
    } else if (r->stream) {
        lt_buf text;
        lt_buf_init(&text, ex->server->mem);
        lt_write_status(ex, &err, &text);
        lt_exchange_write_event(ex, lt_buf_str(&text));
        lt_buf_free(&text);
    } else {
        lt_answer_status(ex, NULL, &err);
    }
    if (!r->stream) {
        lt_exchange_finish(ex);
        return;
    }
    lt_exchange_write_event(ex, LT_STR("[DONE]"));
    lt_exchange_end_stream(ex);
}

/* ------------------------------------------------------------------ starting */

static lattice_generate_options options_of(const lt_text_request *r, const lattice_model *model)
{
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
    o.user = (void *)(uintptr_t)r;
    return o;
}

/* The generator of the answer, behind the ids [begin, r->ids.n). */
static lattice_status create_generator(lt_text_request *r, size_t begin, lattice_error *err)
{
    lattice_generate_options o = options_of(r, r->session->model);
    lattice_generator_free(r->generator);
    r->generator = NULL;
    LT_TRY(lattice_generator_create(r->session, r->ids.ids + begin, r->ids.n - begin, &o, &r->generator, err));
    r->turn.generator = r->generator;
    return LATTICE_OK;
}

/* The conversation is appended up to the end of its last message. */
static lattice_status on_appended(lt_turn *turn, lattice_error *err)
{
    lt_text_request *r = (lt_text_request *)(void *)((char *)turn - offsetof(lt_text_request, turn));
    lt_prefixes_keep(r->exchange->server->prefixes, r->session);
    return create_generator(r, r->n_base, err);
}

static lattice_status encode(lt_text_request *r, lattice_model *model, lattice_error *err)
{
    if (!r->is_chat) {
        if (r->inputs.by_ids) { /* as given: they go into an encoding of their own */
            lattice_encode_options none = { 0 };
            LT_TRY(lattice_encode(lattice_model_tokenizer(model), (lattice_text){ "", 0 }, NULL, &none, &r->ids, err));
            lt_free(model->mem, r->ids.ids);
            r->ids.ids = lt_alloc_array(model->mem, r->inputs.n_ids + 1, sizeof *r->ids.ids);
            if (!r->ids.ids) return lt_no_memory(err, r->inputs.n_ids, "token ids");
            if (r->inputs.n_ids > 0) memcpy(r->ids.ids, r->inputs.ids, r->inputs.n_ids * sizeof *r->ids.ids);
            r->ids.n = r->inputs.n_ids;
            return LATTICE_OK;
        }
        lattice_encode_options o = lattice_encode_options_default();
        o.add_special = false;
        return lattice_encode(lattice_model_tokenizer(model), r->inputs.texts[0], NULL, &o, &r->ids, err);
    }
    lattice_chat_options o = lattice_chat_options_default();
    o.think = r->think;
    LT_TRY(lattice_chat_encode(model, r->messages, r->n_messages, &o, &r->ids, err));
    o.no_prompt = true;
    lattice_encoding base;
    LT_TRY(lattice_chat_encode(model, r->messages, r->n_messages, &o, &base, err));
    bool is_prefix = base.n > 0 && base.n < r->ids.n && memcmp(base.ids, r->ids.ids, base.n * sizeof *base.ids) == 0;
    r->n_base = is_prefix ? base.n : 0;
    lattice_encoding_free(&base);
    return LATTICE_OK;
}

static lattice_status prepare(lt_text_request *r, lattice_model *model, lattice_error *err)
{
    const lattice_generate_options options = options_of(r, model);
    LT_TRY(lt_sampling_check(&options.sampling, err));
    LT_TRY(encode(r, model, err));
    if (r->ids.n == 0) return lt_fail(err, LATTICE_ERR_INVALID_ARGUMENT, "the prompt has no tokens");
    if (r->ids.n >= model->max_positions)
        return lt_fail(err, LATTICE_ERR_TOO_LONG, "the prompt's %zu tokens leave no room for an answer in the model's %zu",
                       r->ids.n, model->max_positions);
    for (size_t i = 0; i < r->ids.n; i++)
        if (r->ids.ids[i] >= model->config.vocab_size)
            return lt_fail(err, LATTICE_ERR_INVALID_ARGUMENT, "token id %u is outside the model's vocabulary of %zu",
                           r->ids.ids[i], model->config.vocab_size);
    if (r->is_chat)
        LT_TRY(lt_prefixes_find(r->exchange->server->prefixes, model, r->ids.ids, r->ids.n, &r->session, &r->n_found, err));
    else
        LT_TRY(lattice_session_create(model, NULL, &r->session, err));
    r->turn = (lt_turn){ .session = r->session, .deadline = r->exchange->deadline, .done = on_done };
    LT_TRY(create_generator(r, r->n_found, err)); /* says what is wrong with the options, too */
    if (r->n_found >= r->n_base) return LATTICE_OK;
    lattice_generator_free(r->generator);
    r->generator = NULL;
    LT_TRY(lattice_generator_create(r->session, r->ids.ids + r->n_found, r->n_base - r->n_found, NULL, &r->generator, err));
    r->turn.generator = r->generator;
    r->turn.appended = on_appended;
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
        if (prepare(r, model, &err) != LATTICE_OK)
            lt_answer_status(ex, r->is_chat ? "messages" : "prompt", &err);
        else if (lt_exchange_begin_turn(ex, &r->turn, r->stream))
            return;
    }
    lt_exchange_finish(ex);
}
