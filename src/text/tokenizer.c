/* The pipeline from text to tokens and back.
 *
 * A text is walked once: added tokens are cut out; each piece between them is normalised, searched for the added tokens that
 * match normalised text, pre-tokenised, and every span goes to the model at once. Nothing is kept of a piece but its tokens.
 *
 * Where the parts of the tokenizer allow it (`local`), a long text is taken section by section, cut before a space behind a
 * letter or digit: neither side of such a place depends on the other. So a text of any length is normalised in little memory, and
 * is not read on when it has given more than `max_length` tokens. */
#include "text/tokenizer.h"

#include "base/utf8.h"
#include "text/tokenizer_parts.h"

struct lt_scratch {
    const lattice_allocator *mem;
    lt_regex_scratch *regex;
    lt_normalizer_scratch normalizer;
    lt_pretokenizer_scratch pre;
    lt_subword_scratch *model;
    lt_pieces pieces;
    lt_work repaired;
    lt_tokens first, second;
};

/* ------------------------------------------------------------------ life */

static lattice_status create(const lattice_allocator *mem, lt_tokenizer **tokenizer, lattice_error *err)
{
    *tokenizer = lt_alloc_zero(mem, sizeof **tokenizer);
    if (!*tokenizer) return lt_no_memory(err, sizeof **tokenizer, "a tokenizer");
    (*tokenizer)->mem = mem;
    return lt_added_create(mem, &(*tokenizer)->added, err);
}

/* Closes a tokenizer that could not be loaded. */
static lattice_status finish(lattice_status status, lt_tokenizer **tokenizer)
{
    if (status == LATTICE_OK) return status;
    lt_tokenizer_close(*tokenizer);
    *tokenizer = NULL;
    return status;
}

lattice_status lt_tokenizer_open(const lattice_allocator *mem, const char *folder, lt_tokenizer **tokenizer, lattice_error *err)
{
    lattice_status status = create(mem, tokenizer, err);
    if (status == LATTICE_OK) status = lt_tokenizer_load(*tokenizer, folder, err);
    return finish(status, tokenizer);
}

lattice_status lt_tokenizer_parse(const lattice_allocator *mem, const char *name, lt_str json, lt_tokenizer **tokenizer,
                                  lattice_error *err)
{
    lattice_status status = create(mem, tokenizer, err);
    if (status == LATTICE_OK) status = lt_tokenizer_load_json(*tokenizer, name, json.data, json.len, err);
    return finish(status, tokenizer);
}

lattice_status lt_tokenizer_parse_vocab(const lattice_allocator *mem, const char *name, lt_str vocab, const lt_str *config,
                                        lt_tokenizer **tokenizer, lattice_error *err)
{
    lattice_status status = create(mem, tokenizer, err);
    if (status == LATTICE_OK)
        status = lt_tokenizer_load_vocab(*tokenizer, name, vocab.data, vocab.len, "tokenizer_config.json",
                                         config ? config->data : NULL, config ? config->len : 0, err);
    return finish(status, tokenizer);
}

void lt_tokenizer_close(lt_tokenizer *t)
{
    if (!t) return;
    lt_added_free(t->added);
    lt_normalizer_free(t->normalizer);
    lt_pretokenizer_free(t->pre);
    lt_subword_free(t->model);
    lt_post_free(t->post);
    lt_decoder_free(t->decoder);
    lt_free(t->mem, t);
}

lattice_status lt_scratch_create(const lt_tokenizer *t, lt_scratch **scratch, lattice_error *err)
{
    *scratch = NULL;
    lt_scratch *s = lt_alloc_zero(t->mem, sizeof *s);
    if (!s) return lt_no_memory(err, sizeof *s, "a tokenizer's scratch");
    s->mem = t->mem;
    s->pieces.mem = t->mem;
    lt_work_init(&s->repaired, t->mem);
    lt_tokens_init(&s->first, t->mem);
    lt_tokens_init(&s->second, t->mem);
    lt_normalizer_scratch_init(&s->normalizer, t->mem, NULL);
    lattice_status status = LATTICE_OK;
    LT_GO(lt_regex_scratch_create(t->mem, &s->regex, err));
    s->normalizer.regex = s->regex;
    LT_GO(lt_pretokenizer_scratch_init(&s->pre, t->mem, t->pre, s->regex, err));
    LT_GO(lt_subword_scratch_create(t->model, &s->model, err));
    *scratch = s;
    return LATTICE_OK;
done:
    lt_scratch_free(s);
    return status;
}

void lt_scratch_free(lt_scratch *s)
{
    if (!s) return;
    lt_normalizer_scratch_free(&s->normalizer);
    lt_pretokenizer_scratch_free(&s->pre);
    lt_subword_scratch_free(s->model);
    lt_regex_scratch_free(s->regex);
    lt_work_free(&s->repaired);
    lt_tokens_free(&s->first);
    lt_tokens_free(&s->second);
    lt_free(s->mem, s->pieces.data);
    lt_free(s->mem, s);
}

/* ------------------------------------------------------------------ encoding */

typedef struct encoder {
    const lt_tokenizer *t;
    lt_scratch *s;
    lt_tokens *out;
    size_t limit;   /* tokens after which nothing more is wanted; 0: none */
    size_t section; /* bytes */
    bool literal, track;
} encoder;

#define SECTION_BYTES ((size_t)1 << 20)

/* What ends a walk that has given enough; it never leaves this file. */
#define ENOUGH LATTICE_ERR_CANCELLED

static inline bool has_enough(const encoder *e)
{
    return e->limit != 0 && e->out->n > e->limit;
}

static inline bool push(encoder *e, uint32_t id, struct lt_span span)
{
    lt_tokens *out = e->out;
    if (out->n == out->capacity && !lt_tokens_reserve(out, out->n + 1)) return false;
    out->ids[out->n] = id;
    out->type_ids[out->n] = 0;
    out->spans[out->n] = span;
    out->special[out->n] = 0;
    out->sequence[out->n] = 0;
    out->n++;
    return true;
}

static struct lt_span span_of(const encoder *e, const lt_view *view, size_t start, size_t end)
{
    if (!e->track || start >= end) return (struct lt_span){ 0, 0 };
    lt_align range = lt_view_range(view, start, end);
    return (struct lt_span){ range.start, range.end };
}

/* What is being done with the pieces of a span; a giant word's come in several parts. */
typedef struct span_encoder {
    encoder *e;
    const lt_view *span;
    size_t first; /* tokens before the span */
} span_encoder;

static lattice_status take_pieces(void *arg, const lt_piece *data, size_t n, lattice_error *err)
{
    const span_encoder *s = arg;
    encoder *e = s->e;
    if (!data) e->out->n = s->first;
    for (size_t i = 0; i < n && !has_enough(e); i++) {
        if (!push(e, data[i].id, span_of(e, s->span, data[i].start, data[i].end))) return lt_no_memory(err, e->out->n, "tokens");
    }
    return LATTICE_OK;
}

static lattice_status encode_span(void *arg, const lt_view *span, lattice_error *err)
{
    encoder *e = arg;
    lt_pieces *pieces = &e->s->pieces;
    span_encoder s = { e, span, e->out->n };
    pieces->n = 0;
    pieces->take = take_pieces;
    pieces->owner = &s;
    LT_TRY(lt_subword_encode(e->t->model, e->s->model, span->data, span->n, pieces, err));
    LT_TRY(take_pieces(&s, pieces->data, pieces->n, err));
    return has_enough(e) ? ENOUGH : LATTICE_OK;
}

/* A piece between added tokens of the raw text. */
static lattice_status encode_piece(encoder *e, lt_view view, lattice_error *err)
{
    if (view.n == 0) return LATTICE_OK;
    LT_TRY(lt_normalize(e->t->normalizer, &e->s->normalizer, &view, e->track, err));
    lt_added_matches m = lt_added_begin(e->t->added, true, e->literal, view.data, view.n);
    for (;;) {
        size_t before, start, end;
        const lt_added_token *token = lt_added_next(&m, &before, &start, &end);
        if (!token) start = view.n;
        if (before < start) {
            lt_view text = lt_view_slice(&view, before, start);
            LT_TRY(lt_pretokenize(e->t->pre, &e->s->pre, &text, e->track, encode_span, e, err));
        }
        if (!token) return LATTICE_OK;
        if (!push(e, token->id, span_of(e, &view, start, end))) return lt_no_memory(err, e->out->n, "tokens");
        if (has_enough(e)) return ENOUGH;
    }
}

static lattice_status encode_view(encoder *e, const lt_view *view, lattice_error *err)
{
    lt_added_matches m = lt_added_begin(e->t->added, false, e->literal, view->data, view->n);
    for (;;) {
        size_t before, start, end;
        const lt_added_token *token = lt_added_next(&m, &before, &start, &end);
        if (!token) start = view->n;
        if (before < start) LT_TRY(encode_piece(e, lt_view_slice(view, before, start), err));
        if (!token) return LATTICE_OK;
        if (!push(e, token->id, span_of(e, view, start, end))) return lt_no_memory(err, e->out->n, "tokens");
        if (has_enough(e)) return ENOUGH;
    }
}

/* Makes *view valid UTF-8: each invalid subpart becomes one U+FFFD with its range. */
static lattice_status repair(lt_work *out, bool track, lt_view *view, lattice_error *err)
{
    lt_view in = *view;
    out->n = 0;
    for (size_t i = 0; i < in.n;) {
        uint32_t c;
        size_t size = lt_utf8_decode(in.data + i, in.n - i, &c);
        if (!LT_GROW(out->mem, out->data, out->capacity, out->n + 4) ||
            (track && !LT_GROW(out->mem, out->align, out->align_capacity, out->n + 4)))
            return lt_no_memory(err, in.n, "a text");
        size_t n = lt_utf8_encode(c, out->data + out->n);
        lt_align range = { (uint32_t)(in.origin + i), (uint32_t)(in.origin + i + size) };
        for (size_t k = 0; track && k < n; k++) out->align[out->n + k] = range;
        out->n += n;
        i += size;
    }
    *view = (lt_view){ out->data, out->n, track ? out->align : NULL, in.origin };
    return LATTICE_OK;
}

static lattice_status encode_section(encoder *e, lt_view view, lattice_error *err)
{
    if (lt_utf8_valid_prefix(view.data, view.n) < view.n) LT_TRY(repair(&e->s->repaired, e->track, &view, err));
    lattice_status status = encode_view(e, &view, err);
    return status == ENOUGH ? LATTICE_OK : status;
}

/* The memory of a giant section is not kept: it may be several times its size. */
static void trim(lt_scratch *s)
{
    lt_work_trim(&s->repaired);
    lt_normalizer_scratch_trim(&s->normalizer);
    lt_pretokenizer_scratch_trim(&s->pre);
}

/* The first place from `from` on where a text may be cut: before a space between an ASCII letter or digit and another ASCII
 * character (a mark behind the space would belong to it). */
static size_t find_cut(lt_str text, size_t from)
{
    for (size_t i = from; i + 1 < text.len; i++) {
        uint8_t before = (uint8_t)text.data[i - 1];
        if (text.data[i] != ' ' || (uint8_t)text.data[i + 1] >= 0x80) continue;
        if ((uint8_t)(before - '0') < 10 || (uint8_t)((before | 32) - 'a') < 26) return i;
    }
    return text.len;
}

/* Whether something may be removed before the first character that stays. Hugging Face's offsets leave that out up to the text's
 * end, so a text whose spans are wanted is then not cut. */
static bool may_lose_its_beginning(lt_str text)
{
    return text.len > 0 && ((uint8_t)text.data[0] <= ' ' || (uint8_t)text.data[0] >= 0x7f);
}

/* Encodes text into e->out; of tokens beyond `limit` (0: none) only the first is sure to be there. */
static lattice_status encode_text(encoder *e, lt_str text, size_t limit, lattice_error *err)
{
    if (text.len > UINT32_MAX / 4) return lt_fail(err, LATTICE_ERR_TOO_LONG, "a text of %zu bytes", text.len);
    e->limit = limit;
    e->out->n = 0;
    size_t section = e->section;
    if (limit != 0 && limit < section / 16) section = 16 * limit;
    const bool may_cut = e->t->local && !(e->track && may_lose_its_beginning(text));
    for (size_t from = 0, cut; from < text.len && !has_enough(e); from = cut) {
        cut = may_cut && text.len - from > section ? find_cut(text, from + section) : text.len;
        LT_TRY(encode_section(e, (lt_view){ (const uint8_t *)text.data + from, cut - from, NULL, from }, err));
        trim(e->s);
    }
    return LATTICE_OK;
}

/* Encodes both texts of a pair as far as truncation can see: the shorter one whole, the other until it is surely longer. */
static lattice_status encode_pair(encoder *e, lt_str text, lt_str pair, const lt_encode_options *options, lattice_error *err)
{
    lt_scratch *s = e->s;
    bool swapped = text.len > pair.len;
    lt_tokens *shorter = swapped ? &s->second : &s->first, *longer = swapped ? &s->first : &s->second;
    e->out = shorter;
    LT_TRY(encode_text(e, swapped ? pair : text, 0, err));
    size_t limit = options->truncate_left || options->max_length == 0 ? 0 : options->max_length;
    if (limit != 0 && shorter->n > limit) limit = shorter->n;
    e->out = longer;
    return encode_text(e, swapped ? text : pair, limit, err);
}

lattice_status lt_tokenizer_encode(const lt_tokenizer *t, lt_scratch *s, lt_str text, const lt_str *pair,
                                   const lt_encode_options *options, lt_tokens *tokens, lattice_error *err)
{
    const size_t section = options->section > 0 ? options->section : SECTION_BYTES;
    encoder e = { t, s, &s->first, 0, section, options->literal, !options->no_spans };
    tokens->n = 0;
    tokens->truncated = false;
    if (pair) {
        LT_TRY(encode_pair(&e, text, *pair, options, err));
    } else {
        LT_TRY(encode_text(&e, text, options->truncate_left ? 0 : options->max_length, err));
    }
    return lt_post_apply(t->post, &s->first, pair ? &s->second : NULL, text, pair ? *pair : (lt_str){ NULL, 0 }, options, tokens,
                         err);
}

/* ------------------------------------------------------------------ decoding and questions */

lt_str lt_tokenizer_token(const lt_tokenizer *t, uint32_t id)
{
    const lt_added_token *added = lt_added_by_id(t->added, id);
    return added ? added->content : lt_subword_token(t->model, id);
}

lattice_status lt_tokenizer_decode(const lt_tokenizer *t, const uint32_t *ids, size_t n, bool skip_special, lt_buf *out,
                                   lattice_error *err)
{
    lt_str *tokens = lt_alloc_array(t->mem, n ? n : 1, sizeof *tokens);
    if (!tokens) return lt_no_memory(err, n * sizeof *tokens, "tokens");
    size_t kept = 0;
    for (size_t i = 0; i < n; i++) {
        lt_str token = lt_tokenizer_token(t, ids[i]);
        if (!token.data) continue;
        if (skip_special) {
            const lt_added_token *added = lt_added_by_content(t->added, token);
            if (added && added->special) continue;
        }
        tokens[kept++] = token;
    }
    lattice_status status = lt_decoder_decode(t->decoder, tokens, kept, out, err);
    lt_free(t->mem, tokens);
    return status;
}

bool lt_tokenizer_find(const lt_tokenizer *t, lt_str token, uint32_t *id)
{
    const lt_added_token *added = lt_added_by_content(t->added, token);
    if (!added) return lt_subword_find(t->model, token, id);
    *id = added->id;
    return true;
}

size_t lt_tokenizer_size(const lt_tokenizer *t)
{
    size_t model = lt_subword_size(t->model), added = lt_added_size(t->added);
    return model > added ? model : added;
}

const char *lt_tokenizer_kind(const lt_tokenizer *t)
{
    return lt_subword_kind(t->model);
}

size_t lt_tokenizer_added(const lt_tokenizer *t, bool pair)
{
    return lt_post_added(t->post, pair);
}
