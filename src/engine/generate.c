/* Generation: sample, append, turn into text, until something says stop.
 *
 * Text that could be the beginning of a stop string is held back until it is known not to be, so a stop string is found wherever
 * the borders of tokens are, and nothing of it is ever handed out. */
#include <string.h>

#include "engine/session.h"
#include "text/stream.h"

const char *lattice_finish_text(lattice_finish finish)
{
    static const char *const texts[] = { "length", "end", "stop", "context", "cancelled" };
    return (size_t)finish < sizeof texts / sizeof *texts ? texts[finish] : "unknown";
}

lattice_generate_options lattice_generate_options_default(const lattice_model *model)
{
    return (lattice_generate_options){ .sampling = lattice_sampling_default(model) };
}

typedef struct job {
    lattice_session *session;
    const lattice_generate_options *options;
    lt_stream *stream; /* NULL without a tokenizer */
    uint32_t *ids;
    size_t n, capacity;
    lt_buf text;
    size_t given; /* bytes of the text that the callback has */
    lattice_finish finish;
} job;

static bool is_end(const lattice_session *s, uint32_t id)
{
    const lt_config *c = &s->model->config;
    for (size_t i = 0; i < c->n_eos_token_ids; i++)
        if (c->eos_token_ids[i] == id) return true;
    return false;
}

/* ------------------------------------------------------------------ text */

/* Where the first stop string begins in the text that is not given yet; SIZE_MAX: nowhere. */
static size_t find_stop(const job *j)
{
    for (size_t at = j->given; at < j->text.len; at++) {
        for (size_t k = 0; k < j->options->n_stop; k++) {
            const lattice_text *stop = &j->options->stop[k];
            if (stop->length <= j->text.len - at && memcmp(j->text.data + at, stop->data, stop->length) == 0) return at;
        }
    }
    return SIZE_MAX;
}

/* Bytes at the end of the text that may be the beginning of a stop string. */
static size_t held_back(const job *j)
{
    size_t most = 0;
    for (size_t k = 0; k < j->options->n_stop; k++) {
        const lattice_text *stop = &j->options->stop[k];
        size_t available = j->text.len - j->given, n = stop->length - 1 < available ? stop->length - 1 : available;
        while (n > most && memcmp(j->text.data + j->text.len - n, stop->data, n) != 0) n--;
        if (n > most) most = n;
    }
    return most;
}

/* Hands out text up to `end`; false: the callback wants no more. */
static bool give(job *j, size_t end)
{
    size_t begin = j->given;
    if (end <= begin) return true;
    j->given = end;
    return !j->options->on_text || j->options->on_text(j->options->user, j->text.data + begin, end - begin);
}

/* After text was appended. *go_on false: a stop string, or the callback, has ended the generation. */
static void take_text(job *j, bool last, bool *go_on)
{
    size_t stop = find_stop(j);
    if (stop != SIZE_MAX) {
        j->text.len = stop;
        j->text.data[stop] = '\0';
        j->finish = LATTICE_FINISH_STOP;
        *go_on = false;
        if (!give(j, stop)) j->finish = LATTICE_FINISH_CANCELLED;
    } else if (!give(j, j->text.len - (last ? 0 : held_back(j)))) {
        j->finish = LATTICE_FINISH_CANCELLED;
        *go_on = false;
    }
}

/* ------------------------------------------------------------------ tokens */

/* The next token. *go_on false: it was the last. */
static lattice_status next_token(job *j, bool *go_on, lattice_error *err)
{
    lattice_session *s = j->session;
    const lattice_generate_options *o = j->options;
    uint32_t id;
    *go_on = false;
    if (lt_session_take_cancel(s)) {
        j->finish = LATTICE_FINISH_CANCELLED;
        return LATTICE_OK;
    }
    if (s->n >= s->max_length) {
        j->finish = LATTICE_FINISH_CONTEXT;
        return LATTICE_OK;
    }
    LT_TRY(lattice_session_sample(s, &o->sampling, &id, err));
    if (!LT_GROW(s->mem, j->ids, j->capacity, j->n + 1)) return lt_no_memory(err, j->n * sizeof id, "token ids");
    if (!o->ignore_end && is_end(s, id)) {
        j->ids[j->n++] = id;
        j->finish = LATTICE_FINISH_END;
        return LATTICE_OK;
    }
    lattice_status status = lt_session_append(s, &id, 1, true, err);
    if (status == LATTICE_ERR_CANCELLED) {
        j->finish = LATTICE_FINISH_CANCELLED;
        return LATTICE_OK;
    }
    if (status != LATTICE_OK) return status;
    j->ids[j->n++] = id;
    *go_on = true;
    j->finish = LATTICE_FINISH_LENGTH;
    if (j->stream) {
        LT_TRY(lt_stream_push_id(j->stream, id, &j->text, err));
        if (j->text.failed) return lt_no_memory(err, j->text.len, "text");
        take_text(j, false, go_on);
    }
    return LATTICE_OK;
}

static lattice_status generate(job *j, lattice_error *err)
{
    lattice_session *s = j->session;
    bool go_on = true;
    if (s->model->tokenizer) LT_TRY(lt_stream_create_for(lt_tokenizer_of(s->model->tokenizer), true, &j->stream, err));
    while (go_on && (j->options->max_tokens == 0 || j->n < j->options->max_tokens)) LT_TRY(next_token(j, &go_on, err));
    if (!j->stream || j->finish == LATTICE_FINISH_STOP || j->finish == LATTICE_FINISH_CANCELLED) return LATTICE_OK;
    LT_TRY(lt_stream_flush(j->stream, &j->text, err));
    if (j->text.failed) return lt_no_memory(err, j->text.len, "text");
    take_text(j, true, &go_on);
    return LATTICE_OK;
}

lattice_status lattice_generate(lattice_session *session, const lattice_generate_options *options, lattice_generation *out,
                                lattice_error *err)
{
    *out = (lattice_generation){ .owner = session };
    lattice_generate_options defaults = lattice_generate_options_default(session->model);
    job j = { .session = session, .options = options ? options : &defaults };
    for (size_t k = 0; k < j.options->n_stop; k++) {
        if (j.options->stop[k].length == 0) return lt_fail(err, LATTICE_ERR_INVALID_ARGUMENT, "a stop string is empty");
    }
    if (session->n == 0) return lt_fail(err, LATTICE_ERR_INVALID_ARGUMENT, "the session is empty: nothing follows");
    lt_buf_init(&j.text, session->mem);
    lattice_status status = LATTICE_OK;
    if (!lt_buf_reserve(&j.text, 1)) status = lt_no_memory(err, 1, "text");
    if (status == LATTICE_OK) j.text.data[0] = '\0';
    if (status == LATTICE_OK) status = generate(&j, err);
    lt_stream_free(j.stream);
    if (status != LATTICE_OK) {
        lt_free(session->mem, j.ids);
        lt_buf_free(&j.text);
        return status;
    }
    if (j.finish == LATTICE_FINISH_CANCELLED) { /* what was held back is not text that anybody has */
        j.text.len = j.given;
        j.text.data[j.given] = '\0';
    }
    out->ids = j.ids;
    out->n = j.n;
    out->text = j.text.data;
    out->length = j.text.len;
    out->finish = j.finish;
    return LATTICE_OK;
}

void lattice_generation_free(lattice_generation *generation)
{
    if (!generation || !generation->owner) return;
    lt_free(generation->owner->mem, generation->ids);
    lt_free(generation->owner->mem, generation->text);
    *generation = (lattice_generation){ 0 };
}
