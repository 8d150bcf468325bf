/* Text Embeddings Inference's API: embeddings, scores, classes and similarities. Its tokenizer routes are in tei_tokens.c. */
#include <math.h>
#include <strings.h>

#include "server/embedding.h"
#include "server/readers.h"
#include "server/scoring.h"

/* ------------------------------------------------------------------ options that several bodies have */

static lattice_status read_direction(lt_json *json, lt_inputs *inputs, bool *left)
{
    const char *name = *left ? "left" : "right";
    LT_TRY(lt_read_name(json, inputs, &name));
    *left = strcasecmp(name, "left") == 0;
    if (!*left && strcasecmp(name, "right") != 0)
        return lt_json_fail(json, "'truncation_direction' must be 'Left' or 'Right', not '%s'", name);
    return LATTICE_OK;
}

static lattice_status read_truncate(lt_json *json, lt_truncation *truncation)
{
    if (lt_json_peek(json) == LT_JSON_NULL) return lt_json_null(json);
    bool truncate;
    LT_TRY(lt_json_bool(json, &truncate));
    *truncation = truncate ? LT_TRUNCATE_YES : LT_TRUNCATE_NO;
    return LATTICE_OK;
}

/* One member of an embedding's body, but for the inputs. */
static lattice_status read_embed_option(lt_json *json, void *request, lt_str key)
{
    lt_embedding *e = request;
    if (lt_str_is(key, "model")) return lt_read_name(json, &e->inputs, &e->model_name);
    if (lt_str_is(key, "truncate")) return read_truncate(json, &e->truncation);
    if (lt_str_is(key, "truncation_direction")) return read_direction(json, &e->inputs, &e->options.truncate_left);
    if (lt_str_is(key, "prompt_name")) return lt_read_name(json, &e->inputs, &e->options.prompt_name);
    if (lt_str_is(key, "dimensions")) return lt_read_dimensions(json, &e->options.dim);
    if (lt_str_is(key, "normalize")) {
        if (lt_json_peek(json) == LT_JSON_NULL) return lt_json_null(json);
        bool normalize;
        LT_TRY(lt_json_bool(json, &normalize));
        e->normalize = normalize;
        e->options.no_normalize = !normalize;
        return LATTICE_OK;
    }
    return lt_json_skip(json);
}

/* ------------------------------------------------------------------ POST /embed, /, /embed_all */

static lattice_status read_embed_member(lt_json *json, void *request, lt_str key)
{
    lt_embedding *e = request;
    return lt_str_is(key, "inputs") ? lt_read_inputs(json, &e->inputs, true) : read_embed_option(json, e, key);
}

lattice_status lt_read_tei_embed(lt_json *json, void *request)
{
    LT_TRY(lt_read_members(json, read_embed_member, request));
    return lt_json_end(json);
}

static void write_vectors(lt_embedding *e)
{
    lt_json_writer w = lt_json_writer_on(&e->exchange->out);
    lt_json_write_begin(&w, '[');
    for (size_t i = 0; i < e->window.n; i++) lt_json_write_floats(&w, e->vectors + i * e->dim, e->dim);
    lt_json_write_end(&w, ']');
    lt_answer_json(e->exchange);
}

static void write_token_vectors(lt_embedding *e)
{
    lt_json_writer w = lt_json_writer_on(&e->exchange->out);
    lt_json_write_begin(&w, '[');
    for (size_t i = 0; i < e->window.n; i++) {
        lt_json_write_begin(&w, '[');
        for (size_t t = e->window.starts[i]; t < e->window.starts[i + 1]; t++)
            lt_json_write_floats(&w, e->vectors + t * e->dim, e->dim);
        lt_json_write_end(&w, ']');
    }
    lt_json_write_end(&w, ']');
    lt_answer_json(e->exchange);
}

static void embed(lt_exchange *ex, lattice_status (*reader)(lt_json *json, void *request), bool tokens,
                  void (*write)(lt_embedding *embedding))
{
    lt_embedding *e = lt_embedding_create(ex);
    if (e) {
        e->field = "inputs";
        e->tokens = tokens;
        e->write = write;
    }
    if (!e || !lt_read_body(ex, reader, e))
        lt_exchange_finish(ex);
    else
        lt_embedding_run(e);
}

void lt_tei_embed(lt_exchange *ex)
{
    embed(ex, lt_read_tei_embed, false, write_vectors);
}

void lt_tei_embed_all(lt_exchange *ex)
{
    embed(ex, lt_read_tei_embed, true, write_token_vectors);
}

/* ------------------------------------------------------------------ POST /similarity */

typedef struct similarity_inputs {
    lt_inputs *inputs;
    lt_str source;
} similarity_inputs;

static lattice_status read_sentences_member(lt_json *json, void *request, lt_str key)
{
    similarity_inputs *both = request;
    if (lt_str_is(key, "source_sentence")) return lt_read_string(json, both->inputs, &both->source);
    if (lt_str_is(key, "sentences")) return lt_read_inputs(json, both->inputs, false);
    return lt_json_skip(json);
}

static lattice_status read_similarity_inputs(lt_json *json, lt_embedding *e)
{
    similarity_inputs both = { .inputs = &e->inputs };
    LT_TRY(lt_read_members(json, read_sentences_member, &both));
    lt_str source = both.source;
    if (!source.data || e->inputs.n == 0)
        return lt_json_fail(json, "'inputs' needs 'source_sentence', and at least one text in 'sentences'");
    /* The source goes last. */
    if (!LT_GROW(e->inputs.arena.mem, e->inputs.texts, e->inputs.capacity, e->inputs.n + 1))
        return lt_no_memory(json->err, e->inputs.n, "a list of texts");
    e->inputs.texts[e->inputs.n++] = (lattice_text){ source.data, source.len };
    return LATTICE_OK;
}

static lattice_status read_parameters(lt_json *json, lt_embedding *e)
{
    if (lt_json_peek(json) == LT_JSON_NULL) return lt_json_null(json);
    return lt_read_members(json, read_embed_option, e);
}

static lattice_status read_similarity_member(lt_json *json, void *request, lt_str key)
{
    lt_embedding *e = request;
    if (lt_str_is(key, "inputs"))
        LT_TRY(read_similarity_inputs(json, e));
    else if (lt_str_is(key, "parameters"))
        LT_TRY(read_parameters(json, e));
    else if (lt_str_is(key, "model"))
        LT_TRY(lt_read_name(json, &e->inputs, &e->model_name));
    else
        LT_TRY(lt_json_skip(json));
    return LATTICE_OK;
}

lattice_status lt_read_tei_similarity(lt_json *json, void *request)
{
    LT_TRY(lt_read_members(json, read_similarity_member, request));
    return lt_json_end(json);
}

/* cos(a, b) = a·b / (|a| |b|), 0 where one of them is zero. */
static float cosine(const float *a, const float *b, size_t n)
{
    double dot = 0, aa = 0, bb = 0;
    for (size_t i = 0; i < n; i++) {
        dot += (double)a[i] * (double)b[i];
        aa += (double)a[i] * (double)a[i];
        bb += (double)b[i] * (double)b[i];
    }
    double norm = sqrt(aa) * sqrt(bb);
    return norm > 0 ? (float)(dot / norm) : 0;
}

static void write_similarities(lt_embedding *e)
{
    lt_json_writer w = lt_json_writer_on(&e->exchange->out);
    const float *source = e->vectors + (e->window.n - 1) * e->dim;
    lt_json_write_begin(&w, '[');
    for (size_t i = 0; i + 1 < e->window.n; i++) lt_json_write_float(&w, cosine(source, e->vectors + i * e->dim, e->dim));
    lt_json_write_end(&w, ']');
    lt_answer_json(e->exchange);
}

void lt_tei_similarity(lt_exchange *ex)
{
    embed(ex, lt_read_tei_similarity, false, write_similarities);
}

/* ------------------------------------------------------------------ POST /rerank */

static void write_ranks(lt_scoring *s)
{
    lt_json_writer w = lt_json_writer_on(&s->exchange->out);
    lt_json_write_begin(&w, '[');
    for (size_t k = 0; k < s->n; k++) {
        size_t i = s->order[k];
        lt_json_write_begin(&w, '{');
        lt_json_write_key(&w, "index");
        lt_json_write_uint(&w, i);
        lt_json_write_key(&w, "score");
        lt_json_write_float(&w, s->scores[i]);
        if (s->return_texts) {
            lt_json_write_key(&w, "text");
            lt_json_write_str(&w, (lt_str){ s->inputs.texts[i].data, s->inputs.texts[i].length });
        }
        lt_json_write_end(&w, '}');
    }
    lt_json_write_end(&w, ']');
    lt_answer_json(s->exchange);
}

lattice_status lt_read_tei_rerank_member(lt_json *json, lt_scoring *s, lt_str key)
{
    if (lt_str_is(key, "texts")) {
        s->write = write_ranks;
        if (lt_json_peek(json) == LT_JSON_STRING) {
            LT_TRY(lt_json_skip(json));
            return lt_json_fail(json, "'texts' must be a list");
        }
        return lt_read_inputs(json, &s->inputs, false);
    }
    if (lt_str_is(key, "raw_scores")) return lt_read_bool(json, &s->options.raw);
    if (lt_str_is(key, "return_text")) return lt_read_bool(json, &s->return_texts);
    if (lt_str_is(key, "truncation_direction")) return read_direction(json, &s->inputs, &s->options.truncate_left);
    return lt_json_skip(json); /* truncate: documents are always cut */
}

/* ------------------------------------------------------------------ POST /predict */

/* [text] or [text, text]. */
static lattice_status read_sequence(lt_json *json, lt_scoring *s)
{
    size_t before = s->inputs.n;
    LT_TRY(lt_json_begin_array(json));
    for (;;) {
        bool more;
        LT_TRY(lt_json_next_element(json, &more));
        if (!more) break;
        LT_TRY(lt_read_text(json, &s->inputs));
    }
    size_t n = s->inputs.n - before;
    if (n != 1 && n != 2) return lt_json_fail(json, "an item of 'inputs' must be a text, or a list of one or two texts");
    return lt_scoring_add_item(s, n == 2, json->err);
}

static lattice_status read_sequences(lt_json *json, lt_scoring *s)
{
    if (lt_json_peek(json) == LT_JSON_STRING) {
        s->inputs.single = true;
        LT_TRY(lt_read_text(json, &s->inputs));
        return lt_scoring_add_item(s, false, json->err);
    }
    LT_TRY(lt_json_begin_array(json));
    size_t n_plain = 0;
    for (size_t n = 0;; n++) {
        bool more;
        LT_TRY(lt_json_next_element(json, &more));
        if (!more) break;
        if (lt_json_peek(json) == LT_JSON_STRING && n_plain == n) {
            LT_TRY(lt_read_text(json, &s->inputs));
            n_plain++;
        } else if (n_plain == 0) {
            LT_TRY(read_sequence(json, s));
        } else {
            return lt_json_fail(json, "'inputs' is a text, a pair of texts, or a list of lists of one or two texts");
        }
    }
    if (n_plain == 0) return LATTICE_OK;
    if (n_plain > 2)
        return lt_json_fail(json, "%zu texts are no pair; a list of lists of one or two texts classifies many", n_plain);
    s->inputs.single = true;
    return lt_scoring_add_item(s, n_plain == 2, json->err);
}

static lattice_status read_predict_member(lt_json *json, void *request, lt_str key)
{
    lt_scoring *s = request;
    if (lt_str_is(key, "inputs"))
        LT_TRY(read_sequences(json, s));
    else if (lt_str_is(key, "raw_scores"))
        LT_TRY(lt_read_bool(json, &s->options.raw));
    else if (lt_str_is(key, "truncate"))
        LT_TRY(lt_read_bool(json, &s->options.truncate));
    else if (lt_str_is(key, "truncation_direction"))
        LT_TRY(read_direction(json, &s->inputs, &s->options.truncate_left));
    else if (lt_str_is(key, "model"))
        LT_TRY(lt_read_name(json, &s->inputs, &s->model_name));
    else
        LT_TRY(lt_json_skip(json));
    return LATTICE_OK;
}

lattice_status lt_read_tei_predict(lt_json *json, void *request)
{
    LT_TRY(lt_read_members(json, read_predict_member, request));
    return lt_json_end(json);
}

/* The labels of one row, likeliest first. */
static void write_classes(lt_json_writer *w, const lt_scoring *s, const float *scores)
{
    const lattice_model_info *info = &s->exchange->server->infos[s->model];
    lt_json_write_begin(w, '[');
    size_t last = SIZE_MAX;
    for (size_t k = 0; k < s->n_scores; k++) {
        size_t best = SIZE_MAX;
        for (size_t i = 0; i < s->n_scores; i++) { /* the next behind `last`, of equals in the order of labels */
            bool is_behind = last == SIZE_MAX || scores[i] < scores[last] || (scores[i] == scores[last] && i > last);
            if (is_behind && (best == SIZE_MAX || scores[i] > scores[best])) best = i;
        }
        last = best;
        lt_json_write_begin(w, '{');
        lt_json_write_key(w, "score");
        lt_json_write_float(w, scores[best]);
        lt_json_write_key(w, "label");
        lt_json_write_z(w, info->labels[best]);
        lt_json_write_end(w, '}');
    }
    lt_json_write_end(w, ']');
}

static void write_predictions(lt_scoring *s)
{
    lt_json_writer w = lt_json_writer_on(&s->exchange->out);
    if (!s->inputs.single) lt_json_write_begin(&w, '[');
    for (size_t i = 0; i < s->n; i++) write_classes(&w, s, s->scores + i * s->n_scores);
    if (!s->inputs.single) lt_json_write_end(&w, ']');
    lt_answer_json(s->exchange);
}

void lt_tei_predict(lt_exchange *ex)
{
    lt_scoring *s = lt_scoring_create(ex);
    if (s) {
        s->field = "inputs";
        s->classifies = true;
        s->options.truncate = ex->server->options.auto_truncate;
        s->write = write_predictions;
    }
    if (!s || !lt_read_body(ex, lt_read_tei_predict, s))
        lt_exchange_finish(ex);
    else
        lt_scoring_run(s);
}
