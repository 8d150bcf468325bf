/* Generation: sample, append, turn into text, until something says stop.
 *
 * A generator keeps what one generation has come to; a step takes several of them forward. It has three phases: every generator
 * chooses what it appends (a sampled token, or the next piece of its prompt); one run appends everything; what was appended is
 * reported. Nothing that a generator holds changes before the run has succeeded.
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

struct lattice_generator {
    lattice_session *session;
    const lattice_allocator *mem;
    lattice_generate_options options; /* its stop strings are the copies below */
    lattice_text *stop;
    char *stop_bytes;
    uint32_t *prompt; /* [n_prompt] */
    size_t n_prompt, appended;
    lt_stream *stream; /* NULL without a tokenizer */
    uint32_t *ids;
    float *logprobs;
    lattice_logprob *top; /* [capacity][options.top_logprobs] */
    size_t n, capacity, logprobs_capacity, top_capacity;
    lt_buf text;
    size_t given; /* bytes of the text that the callback has */
    bool done;
    lattice_finish finish;
    lattice_generation result; /* a view of the above */
    /* What the step in progress appends. */
    uint32_t chosen;
    lattice_piece piece;
};

static bool is_end(const lattice_session *s, uint32_t id)
{
    const lt_config *c = &s->model->config;
    for (size_t i = 0; i < c->n_eos_token_ids; i++)
        if (c->eos_token_ids[i] == id) return true;
    return false;
}

/* ------------------------------------------------------------------ life */

static lattice_status copy_stops(lattice_generator *g, const lattice_generate_options *o, lattice_error *err)
{
    size_t bytes = 0, at = 0;
    for (size_t k = 0; k < o->n_stop; k++) {
        if (o->stop[k].length == 0) return lt_fail(err, LATTICE_ERR_INVALID_ARGUMENT, "a stop string is empty");
        if (!lt_add(bytes, o->stop[k].length, &bytes)) return lt_no_memory(err, SIZE_MAX, "stop strings");
    }
    if (o->n_stop == 0) return LATTICE_OK;
    g->stop = lt_alloc_array(g->mem, o->n_stop, sizeof *g->stop);
    g->stop_bytes = lt_alloc(g->mem, bytes);
    if (!g->stop || !g->stop_bytes) return lt_no_memory(err, bytes, "stop strings");
    for (size_t k = 0; k < o->n_stop; k++) {
        memcpy(g->stop_bytes + at, o->stop[k].data, o->stop[k].length);
        g->stop[k] = (lattice_text){ g->stop_bytes + at, o->stop[k].length };
        at += o->stop[k].length;
    }
    g->options.stop = g->stop;
    return LATTICE_OK;
}

static lattice_status create(lattice_generator *g, const uint32_t *ids, size_t n, const lattice_generate_options *o,
                             lattice_error *err)
{
    lattice_session *s = g->session;
    LT_TRY(copy_stops(g, o, err));
    if (o->top_logprobs > s->model->config.vocab_size)
        return lt_fail(err, LATTICE_ERR_INVALID_ARGUMENT, "%zu alternatives are more than the vocabulary of %zu", o->top_logprobs,
                       s->model->config.vocab_size);
    if (n > 0) {
        LT_TRY(lt_session_check_ids(s, ids, n, err));
        g->prompt = lt_alloc_array(g->mem, n, sizeof *g->prompt);
        if (!g->prompt) return lt_no_memory(err, n * sizeof *g->prompt, "a prompt");
        memcpy(g->prompt, ids, n * sizeof *g->prompt);
        g->n_prompt = n;
    } else if (!s->has_logits) {
        return lt_fail(err, LATTICE_ERR_INVALID_ARGUMENT,
                       s->n == 0 ? "the session is empty: nothing follows"
                                 : "the session has no logits: they were not asked for");
    }
    if (!lt_buf_reserve(&g->text, 1)) return lt_no_memory(err, 1, "text");
    g->text.data[0] = '\0';
    if (!s->model->tokenizer) return LATTICE_OK;
    return lt_stream_create_for(lt_tokenizer_of(s->model->tokenizer), true, &g->stream, err);
}

lattice_status lattice_generator_create(lattice_session *session, const uint32_t *ids, size_t n,
                                        const lattice_generate_options *options, lattice_generator **generator,
                                        lattice_error *err)
{
    const lattice_generate_options defaults = lattice_generate_options_default(session->model);
    if (!options) options = &defaults;
    *generator = NULL;
    lattice_generator *g = lt_alloc_zero(session->mem, sizeof *g);
    if (!g) return lt_no_memory(err, sizeof *g, "a generation");
    g->session = session;
    g->mem = session->mem;
    g->options = *options;
    if (options->top_logprobs > 0) g->options.logprobs = true;
    lt_buf_init(&g->text, g->mem);
    lattice_status status = create(g, ids, n, options, err);
    if (status != LATTICE_OK) {
        lattice_generator_free(g);
        return status;
    }
    *generator = g;
    return LATTICE_OK;
}

void lattice_generator_free(lattice_generator *g)
{
    if (!g) return;
    lt_stream_free(g->stream);
    lt_buf_free(&g->text);
    lt_free(g->mem, g->stop);
    lt_free(g->mem, g->stop_bytes);
    lt_free(g->mem, g->prompt);
    lt_free(g->mem, g->ids);
    lt_free(g->mem, g->logprobs);
    lt_free(g->mem, g->top);
    lt_free(g->mem, g);
}

size_t lattice_generator_pending(const lattice_generator *g)
{
    return g->n_prompt - g->appended;
}

bool lattice_generator_done(const lattice_generator *g)
{
    return g->done;
}

const lattice_generation *lattice_generator_result(const lattice_generator *g)
{
    return &g->result;
}

static void show_result(lattice_generator *g)
{
    g->result = (lattice_generation){
        .n = g->n,
        .ids = g->ids,
        .text = g->text.data,
        .length = g->text.len,
        .finish = g->finish,
        .owner = g->session,
        .logprobs = g->logprobs,
        .top = g->top,
        .n_top = g->options.top_logprobs,
    };
}

/* ------------------------------------------------------------------ text */

/* Where the first stop string begins in the text that is not given yet; SIZE_MAX: nowhere. */
static size_t find_stop(const lattice_generator *g)
{
    for (size_t at = g->given; at < g->text.len; at++) {
        for (size_t k = 0; k < g->options.n_stop; k++) {
            const lattice_text *stop = &g->stop[k];
            if (stop->length <= g->text.len - at && memcmp(g->text.data + at, stop->data, stop->length) == 0) return at;
        }
    }
    return SIZE_MAX;
}

/* Bytes at the end of the text that may be the beginning of a stop string. */
static size_t held_back(const lattice_generator *g)
{
    size_t most = 0;
    for (size_t k = 0; k < g->options.n_stop; k++) {
        const lattice_text *stop = &g->stop[k];
        size_t available = g->text.len - g->given, n = stop->length - 1 < available ? stop->length - 1 : available;
        while (n > most && memcmp(g->text.data + g->text.len - n, stop->data, n) != 0) n--;
        if (n > most) most = n;
    }
    return most;
}

static void finish(lattice_generator *g, lattice_finish how)
{
    g->done = true;
    g->finish = how;
}

/* Hands out text up to `end`; the callback may want no more. */
static void give(lattice_generator *g, size_t end)
{
    size_t begin = g->given;
    if (end <= begin) return;
    g->given = end;
    if (g->options.on_text && !g->options.on_text(g->options.user, g->text.data + begin, end - begin))
        finish(g, LATTICE_FINISH_CANCELLED);
}

static void cut_text(lattice_generator *g, size_t length)
{
    g->text.len = length;
    g->text.data[length] = '\0';
}

/* After text was appended; `last`: nothing more comes. */
static void take_text(lattice_generator *g, bool last)
{
    size_t stop = find_stop(g);
    if (stop != SIZE_MAX) {
        cut_text(g, stop);
        finish(g, LATTICE_FINISH_STOP);
        give(g, stop);
    } else {
        give(g, g->text.len - (last ? 0 : held_back(g)));
    }
}

/* Gives what the stream holds back, or, of a cancelled generation, drops what nobody has. */
static lattice_status end_text(lattice_generator *g, lattice_error *err)
{
    if (g->finish == LATTICE_FINISH_CANCELLED) {
        cut_text(g, g->given);
    } else if (g->stream && g->finish != LATTICE_FINISH_STOP) {
        LT_TRY(lt_stream_flush(g->stream, &g->text, err));
        if (g->text.failed) return lt_no_memory(err, g->text.len, "text");
        take_text(g, true);
    }
    return LATTICE_OK;
}

/* ------------------------------------------------------------------ a step */

/* What one more token may be: reserved before the run, so that only its text can still find no memory. */
static lattice_status make_room(lattice_generator *g, lattice_error *err)
{
    const size_t n_top = g->options.top_logprobs;
    if (!LT_GROW(g->mem, g->ids, g->capacity, g->n + 1) ||
        (g->options.logprobs && !LT_GROW(g->mem, g->logprobs, g->logprobs_capacity, g->n + 1)) ||
        (n_top > 0 && (g->n + 1 > SIZE_MAX / n_top || !LT_GROW(g->mem, g->top, g->top_capacity, (g->n + 1) * n_top))))
        return lt_no_memory(err, (g->n + 1) * (sizeof *g->ids + n_top * sizeof *g->top), "generated tokens");
    return LATTICE_OK;
}

/* Does a generation end without appending anything, and by what? */
typedef struct ending {
    bool ends;
    lattice_finish how;
} ending;

/* Chooses the next token; piece.n stays 0 where the generation ends here. */
static lattice_status choose(lattice_generator *g, ending *end, lattice_error *err)
{
    lattice_session *s = g->session;
    *end = (ending){ true, LATTICE_FINISH_CONTEXT };
    if (s->n >= s->max_length) return LATTICE_OK;
    LT_TRY(lattice_session_sample(s, &g->options.sampling, &g->chosen, err));
    LT_TRY(make_room(g, err));
    float *logprob = g->options.logprobs ? &g->logprobs[g->n] : NULL;
    const size_t n_top = g->options.top_logprobs;
    if (logprob) LT_TRY(lattice_session_logprobs(s, g->chosen, logprob, n_top ? g->top + g->n * n_top : NULL, n_top, err));
    *end = (ending){ !g->options.ignore_end && is_end(s, g->chosen), LATTICE_FINISH_END };
    if (end->ends) return LATTICE_OK;
    g->piece = (lattice_piece){ .session = s, .ids = &g->chosen, .n = 1, .generated = true };
    return LATTICE_OK;
}

/* The chosen token is one of the generation's. */
static void take_token(lattice_generator *g)
{
    const size_t n_top = g->options.top_logprobs;
    const lattice_token token = {
        .id = g->chosen,
        .logprob = g->options.logprobs ? g->logprobs[g->n] : 0,
        .top = n_top ? g->top + g->n * n_top : NULL,
        .n_top = n_top,
    };
    g->ids[g->n++] = g->chosen;
    if (g->options.on_token && !g->options.on_token(g->options.user, &token)) finish(g, LATTICE_FINISH_CANCELLED);
}

/* The run has appended g->piece. */
static lattice_status take_piece(lattice_generator *g, lattice_error *err)
{
    if (!g->piece.generated) {
        g->appended += g->piece.n;
        return LATTICE_OK;
    }
    take_token(g);
    if (g->stream && !g->done) {
        LT_TRY(lt_stream_push_id(g->stream, g->chosen, &g->text, err));
        if (g->text.failed) return lt_no_memory(err, g->text.len, "text");
        take_text(g, false);
    }
    if (!g->done && g->options.max_tokens > 0 && g->n >= g->options.max_tokens) finish(g, LATTICE_FINISH_LENGTH);
    return LATTICE_OK;
}

/* Pieces of prompts, into what is left of the budget. One that could not be cut where it should is left for another run, unless
 * nothing else is in this one. */
static void choose_prompts(lattice_generator *const *list, size_t n, size_t budget, bool alone, const ending *endings)
{
    for (size_t i = 0; i < n && budget > 0; i++) {
        lattice_generator *g = list[i];
        const size_t rest = g->n_prompt - g->appended;
        if (g->done || endings[i].ends || rest == 0) continue;
        size_t length = lt_piece_length(g->session->n, rest, budget);
        if (length < rest && (g->session->n + length) % LT_BLOCK_ROWS != 0 && !alone) continue;
        g->piece =
            (lattice_piece){ .session = g->session, .ids = g->prompt + g->appended, .n = length, .no_logits = length < rest };
        budget -= length;
        alone = false;
    }
}

static lattice_status choose_all(lattice_generator *const *list, size_t n, size_t budget, ending *endings, lattice_error *err)
{
    size_t n_tokens = 0;
    for (size_t i = 0; i < n; i++) {
        lattice_generator *g = list[i];
        g->piece.n = 0;
        endings[i].ends = false;
        if (g->done) continue;
        if (__atomic_load_n(&g->session->cancel, __ATOMIC_RELAXED)) {
            endings[i] = (ending){ true, LATTICE_FINISH_CANCELLED };
        } else if (g->appended == g->n_prompt && n_tokens < budget) {
            LT_TRY(choose(g, &endings[i], err));
            n_tokens += g->piece.n;
        }
    }
    choose_prompts(list, n, budget - n_tokens, n_tokens == 0, endings);
    return LATTICE_OK;
}

/* The likeliest tokens that the next choices of all need; 0: one of them needs all logits. */
static size_t wanted_top(lattice_generator *const *list, size_t n)
{
    size_t most = 0;
    for (size_t i = 0; i < n; i++) {
        const lattice_generator *g = list[i];
        if (g->done || g->piece.n == 0 || g->piece.no_logits) continue;
        const size_t top = g->options.logprobs ? 0 : lt_sampling_top(&g->options.sampling);
        if (top == 0) return 0;
        if (top > most) most = top;
    }
    return most;
}

static lattice_status run_all(lattice_generator *const *list, size_t n, lattice_piece *pieces, lattice_error *err)
{
    size_t n_pieces = 0;
    lattice_session *only = NULL;
    for (size_t i = 0; i < n; i++) {
        if (list[i]->done || list[i]->piece.n == 0) continue;
        only = list[i]->session;
        pieces[n_pieces++] = list[i]->piece;
    }
    if (n_pieces == 0) return LATTICE_OK;
    return lt_sessions_run(pieces, n_pieces, wanted_top(list, n), n_pieces == 1 ? &only->cancel : NULL, err);
}

/* After the run: everything is reported, whatever fails for one of them. */
static lattice_status report_all(lattice_generator *const *list, size_t n, const ending *endings, lattice_error *err)
{
    lattice_status result = LATTICE_OK;
    for (size_t i = 0; i < n; i++) {
        lattice_generator *g = list[i];
        if (g->done) continue;
        lattice_status status = LATTICE_OK;
        if (endings[i].ends) {
            if (endings[i].how == LATTICE_FINISH_END) take_token(g);
            if (endings[i].how == LATTICE_FINISH_CANCELLED) lt_session_take_cancel(g->session);
            if (!g->done) finish(g, endings[i].how);
        } else if (g->piece.n > 0) {
            status = take_piece(g, result == LATTICE_OK ? err : NULL);
        }
        if (status == LATTICE_OK && g->done) status = end_text(g, result == LATTICE_OK ? err : NULL);
        if (status != LATTICE_OK) {
            finish(g, LATTICE_FINISH_CANCELLED);
            cut_text(g, g->given);
            if (result == LATTICE_OK) result = status;
        }
        show_result(g);
    }
    return result;
}

static lattice_status advance(lattice_generator *const *list, size_t n, size_t budget, lattice_piece *pieces, ending *endings,
                              lattice_error *err)
{
    LT_TRY(choose_all(list, n, budget, endings, err));
    lattice_status status = run_all(list, n, pieces, err);
    if (status == LATTICE_ERR_CANCELLED) { /* the only one that had a piece; it may have been chosen before the others end */
        for (size_t i = 0; i < n; i++)
            if (!list[i]->done && list[i]->piece.n > 0) endings[i] = (ending){ true, LATTICE_FINISH_CANCELLED };
    } else if (status != LATTICE_OK) {
        return status;
    }
    return report_all(list, n, endings, err);
}

lattice_status lattice_generators_advance(lattice_generator *const *generators, size_t n, size_t max_tokens, lattice_error *err)
{
    if (n == 0) return LATTICE_OK;
    const lattice_model *m = generators[0]->session->model;
    for (size_t i = 1; i < n; i++) {
        if (generators[i]->session->model != m)
            return lt_fail(err, LATTICE_ERR_INVALID_ARGUMENT, "generation %zu is of another model than the first", i);
    }
    if (max_tokens > m->batch_tokens || n > m->max_seqs)
        return lt_fail(err, LATTICE_ERR_INVALID_ARGUMENT,
                       "a run of %zu tokens for %zu generations is more than the %zu for %zu "
                       "admitted",
                       max_tokens, n, m->batch_tokens, m->max_seqs);
    lattice_piece *pieces = lt_alloc_array(m->mem, n, sizeof *pieces);
    ending *endings = lt_alloc_array(m->mem, n, sizeof *endings);
    lattice_status status = pieces && endings ? LATTICE_OK : lt_no_memory(err, n * sizeof *pieces, "a step");
    if (status == LATTICE_OK) status = advance(generators, n, max_tokens ? max_tokens : m->batch_tokens, pieces, endings, err);
    lt_free(m->mem, pieces);
    lt_free(m->mem, endings);
    return status;
}

/* ------------------------------------------------------------------ at one go */

lattice_status lattice_generate(lattice_session *session, const lattice_generate_options *options, lattice_generation *out,
                                lattice_error *err)
{
    lattice_generator *g;
    *out = (lattice_generation){ .owner = session };
    LT_TRY(lattice_generator_create(session, NULL, 0, options, &g, err));
    lattice_status status = LATTICE_OK;
    while (status == LATTICE_OK && !g->done) status = lattice_generators_advance(&g, 1, 0, err);
    if (status == LATTICE_OK) {
        *out = g->result;
        g->ids = NULL;
        g->logprobs = NULL;
        g->top = NULL;
        lt_buf_init(&g->text, g->mem);
    }
    lattice_generator_free(g);
    return status;
}

void lattice_generation_free(lattice_generation *generation)
{
    if (!generation || !generation->owner) return;
    const lattice_allocator *mem = generation->owner->mem;
    lt_free(mem, generation->ids);
    lt_free(mem, generation->text);
    lt_free(mem, generation->logprobs);
    lt_free(mem, generation->top);
    *generation = (lattice_generation){ 0 };
}
