/* Pre-tokenizers. The steps of a sequence are chained: each cuts the piece it is given and hands every part to the next step at
 * once, so that a text of any length needs room for its current piece only, and the model sees a span while it is in the cache.
 *
 * A step that cuts does so at matches: of an expression, a string or a class of characters. The text is a list of matches and of
 * gaps between them, and the behaviour says what becomes of it. */
#include "text/pretokenizer.h"

#include "base/utf8.h"
#include "text/byte_alphabet.h"
#include "text/split_patterns.h"

typedef enum behavior { REMOVED, ISOLATED, MERGED_WITH_PREVIOUS, MERGED_WITH_NEXT, CONTIGUOUS } behavior;

typedef enum step_kind {
    BERT,       /* words between white space, punctuation apart */
    WHITESPACE, /* runs of word characters, runs of others */
    CHARACTERS, /* matches are the characters with the flags */
    STRING,     /* matches are a string */
    EXPRESSION, /* matches of a regular expression */
    KNOWN,      /* matches of a known expression, which leave no gaps */
    BYTE_LEVEL,
    METASPACE,
} step_kind;

typedef enum prepend_scheme { ALWAYS, FIRST, NEVER } prepend_scheme;

typedef struct lt_pre_step {
    step_kind kind;
    behavior behavior;
    bool invert;
    uint32_t flags;            /* CHARACTERS */
    lt_str string;             /* STRING; METASPACE: the replacement */
    lt_regex *regex;           /* EXPRESSION */
    lt_split_matcher matcher;  /* KNOWN; BYTE_LEVEL with use_regex */
    bool prefix_space, expand; /* BYTE_LEVEL; expand: write the alphabet of GPT-2 */
    prepend_scheme scheme;     /* METASPACE */
    bool split;
    size_t work; /* its text in the scratch */
    struct lt_pre_step *next;
} lt_pre_step;

struct lt_pretokenizer {
    const lattice_allocator *mem;
    lt_arena arena;
    lt_pre_step *first, **last, *final;
    size_t n_works;
};

/* ------------------------------------------------------------------ reading */

static lt_pretokenizer *create(const lattice_allocator *mem)
{
    lt_pretokenizer *p = lt_alloc_zero(mem, sizeof *p);
    if (!p) return NULL;
    p->mem = mem;
    lt_arena_init(&p->arena, mem);
    p->last = &p->first;
    return p;
}

void lt_pretokenizer_free(lt_pretokenizer *p)
{
    if (!p) return;
    for (lt_pre_step *s = p->first; s; s = s->next) lt_regex_free(s->regex);
    lt_arena_free(&p->arena);
    lt_free(p->mem, p);
}

static lt_pre_step *append(lt_pretokenizer *p, step_kind kind)
{
    lt_pre_step *s = lt_arena_alloc(&p->arena, sizeof *s);
    if (!s) return NULL;
    s->kind = kind;
    s->behavior = ISOLATED;
    s->work = SIZE_MAX;
    *p->last = p->final = s;
    p->last = &s->next;
    return s;
}

static lattice_status read_behavior(const lt_component *c, const char *where, behavior *out, lattice_error *err)
{
    static const char *const names[] = { "Removed", "Isolated", "MergedWithPrevious", "MergedWithNext", "Contiguous" };
    if (!c->behavior.data) return LATTICE_OK;
    for (int k = 0; k < 5; k++) {
        if (lt_str_is(c->behavior, names[k])) {
            *out = (behavior)k;
            return LATTICE_OK;
        }
    }
    return lt_fail(err, LATTICE_ERR_FORMAT, "%s: pre-tokenizer %.*s has the unknown behavior '%.*s'", where, LT_STR_ARG(c->type),
                   LT_STR_ARG(c->behavior));
}

static lattice_status build_split(lt_pretokenizer *p, const lt_component *c, lt_pre_step *s, const char *where,
                                  lattice_error *err)
{
    if (!c->has_pattern) return lt_fail(err, LATTICE_ERR_FORMAT, "%s: pre-tokenizer Split without a pattern", where);
    if (!c->behavior.data) return lt_fail(err, LATTICE_ERR_FORMAT, "%s: pre-tokenizer Split without a behavior", where);
    s->invert = lt_maybe_or(c->invert, false);
    LT_TRY(read_behavior(c, where, &s->behavior, err));
    s->string = c->pattern;
    s->matcher = c->pattern_is_regex ? lt_split_matcher_for(c->pattern) : NULL;
    if (s->matcher) {
        s->kind = KNOWN;
        return LATTICE_OK;
    }
    if (!c->pattern_is_regex && c->pattern.len > 0) return LATTICE_OK;
    s->kind = EXPRESSION;
    return lt_regex_compile(p->mem, c->pattern, where, &s->regex, err);
}

static lattice_status build_metaspace(const lt_component *c, lt_pre_step *s, const char *where, lattice_error *err)
{
    if (!c->replacement.data) return lt_fail(err, LATTICE_ERR_FORMAT, "%s: pre-tokenizer Metaspace without a replacement", where);
    size_t size = 0;
    if (c->replacement.len > 0) lt_utf8_at((const uint8_t *)c->replacement.data, 0, &size);
    if (size == 0 || size != c->replacement.len)
        return lt_fail(err, LATTICE_ERR_FORMAT, "%s: the replacement of Metaspace must be one character", where);
    s->string = c->replacement;
    s->split = lt_maybe_or(c->split, true);
    s->scheme = c->add_prefix_space == LT_FALSE ? NEVER : ALWAYS;
    if (!c->prepend_scheme.data) return LATTICE_OK;
    static const char *const names[] = { "always", "first", "never" };
    for (int k = 0; k < 3; k++) {
        if (!lt_str_is(c->prepend_scheme, names[k])) continue;
        s->scheme = (prepend_scheme)k;
        return LATTICE_OK;
    }
    return lt_fail(err, LATTICE_ERR_FORMAT, "%s: Metaspace has the unknown prepend_scheme '%.*s'", where,
                   LT_STR_ARG(c->prepend_scheme));
}

static bool kind_of(lt_str type, step_kind *kind)
{
    static const struct {
        const char *name;
        step_kind kind;
    } names[] = {
        { "BertPreTokenizer", BERT },     { "Whitespace", WHITESPACE }, { "WhitespaceSplit", CHARACTERS },
        { "Punctuation", CHARACTERS },    { "Digits", CHARACTERS },     { "Split", STRING },
        { "CharDelimiterSplit", STRING }, { "ByteLevel", BYTE_LEVEL },  { "Metaspace", METASPACE },
    };
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        if (!lt_str_is(type, names[i].name)) continue;
        *kind = names[i].kind;
        return true;
    }
    return false;
}

static lattice_status build(lt_pretokenizer *p, const lt_component *c, const char *where, lattice_error *err)
{
    if (lt_str_is(c->type, "Sequence")) {
        if (!c->has_children)
            return lt_fail(err, LATTICE_ERR_FORMAT, "%s: a pre-tokenizer Sequence without 'pretokenizers'", where);
        for (const lt_component *child = c->children; child; child = child->next) LT_TRY(build(p, child, where, err));
        return LATTICE_OK;
    }
    step_kind kind;
    if (!kind_of(c->type, &kind))
        return lt_fail(err, LATTICE_ERR_UNSUPPORTED, "%s: pre-tokenizer '%.*s' is not supported", where, LT_STR_ARG(c->type));
    lt_pre_step *s = append(p, kind);
    if (!s) return lt_no_memory(err, sizeof *s, "a pre-tokenizer");
    switch (kind) {
    case CHARACTERS:
        if (lt_str_is(c->type, "WhitespaceSplit")) {
            s->flags = LT_U_WHITE;
            s->behavior = REMOVED;
        } else if (lt_str_is(c->type, "Punctuation")) {
            s->flags = LT_U_PUNCTUATION;
            return read_behavior(c, where, &s->behavior, err);
        } else {
            s->flags = LT_U_NUMERIC;
            s->behavior = lt_maybe_or(c->individual_digits, false) ? ISOLATED : CONTIGUOUS;
        }
        return LATTICE_OK;
    case STRING:
        if (lt_str_is(c->type, "Split")) return build_split(p, c, s, where, err);
        if (c->delimiter.len == 0) return lt_fail(err, LATTICE_ERR_FORMAT, "%s: CharDelimiterSplit without a delimiter", where);
        s->string = c->delimiter;
        s->behavior = REMOVED;
        return LATTICE_OK;
    case BYTE_LEVEL:
        s->work = p->n_works; /* the alphabet; one more with the space put before */
        p->n_works += 2;
        s->expand = true;
        s->prefix_space = lt_maybe_or(c->add_prefix_space, true);
        s->matcher = lt_maybe_or(c->use_regex, true) ? lt_split_gpt2 : NULL;
        return LATTICE_OK;
    case METASPACE: s->work = p->n_works++; return build_metaspace(c, s, where, err);
    default: return LATTICE_OK;
    }
}

lattice_status lt_pretokenizer_read(const lattice_allocator *mem, lt_json *json, lt_pretokenizer **pre, lattice_error *err)
{
    *pre = NULL;
    if (lt_json_peek(json) == LT_JSON_NULL) return lt_json_null(json);
    lt_pretokenizer *p = create(mem);
    if (!p) return lt_no_memory(err, sizeof *p, "a pre-tokenizer");
    lt_component *component;
    lattice_status status = lt_component_read(&p->arena, json, "pretokenizers", &component);
    if (status == LATTICE_OK) status = build(p, component, json->name, err);
    if (status != LATTICE_OK) {
        lt_pretokenizer_free(p);
        return status;
    }
    *pre = p;
    return LATTICE_OK;
}

lattice_status lt_pretokenizer_bert(const lattice_allocator *mem, lt_pretokenizer **pre, lattice_error *err)
{
    lt_pretokenizer *p = create(mem);
    if (!p || !append(p, BERT)) {
        lt_pretokenizer_free(p);
        return lt_no_memory(err, sizeof *p, "a pre-tokenizer");
    }
    *pre = p;
    return LATTICE_OK;
}

bool lt_pretokenizer_ends_byte_level(const lt_pretokenizer *p)
{
    return p && p->final && p->final->kind == BYTE_LEVEL;
}

void lt_pretokenizer_keep_bytes(lt_pretokenizer *p)
{
    p->final->expand = false;
}

bool lt_pretokenizer_is_local(const lt_pretokenizer *p, bool marks)
{
    if (!p || !p->first) return false; /* the model sees the whole text at once */
    if (marks && (p->first->kind != METASPACE || !lt_str_is(p->first->string, "\xE2\x96\x81"))) return false;
    bool cuts = false; /* some step has cut before the space by now */
    for (const lt_pre_step *s = p->first; s; s = s->next) {
        switch (s->kind) {
        case BERT:
        case WHITESPACE: cuts = true; break;
        case CHARACTERS: cuts = cuts || (s->flags & LT_U_WHITE); break;
        case KNOWN:
            if (s->behavior != ISOLATED) return false;
            cuts = true;
            break;
        case BYTE_LEVEL: /* writes spaces in another way */
            if (!s->matcher && !cuts) return false;
            cuts = true;
            break;
        case METASPACE:
            if (!s->split) return false;
            cuts = true;
            break;
        case STRING:
        case EXPRESSION: return false;
        }
    }
    return cuts;
}

/* ------------------------------------------------------------------ scratch */

lattice_status lt_pretokenizer_scratch_init(lt_pretokenizer_scratch *s, const lattice_allocator *mem, const lt_pretokenizer *pre,
                                            lt_regex_scratch *regex, lattice_error *err)
{
    *s = (lt_pretokenizer_scratch){ .mem = mem, .regex = regex };
    if (!pre || pre->n_works == 0) return LATTICE_OK;
    s->works = lt_alloc_array(mem, pre->n_works, sizeof *s->works);
    if (!s->works) return lt_no_memory(err, pre->n_works * sizeof *s->works, "a pre-tokenizer");
    s->n_works = pre->n_works;
    for (size_t i = 0; i < s->n_works; i++) lt_work_init(&s->works[i], mem);
    return LATTICE_OK;
}

void lt_pretokenizer_scratch_trim(lt_pretokenizer_scratch *s)
{
    for (size_t i = 0; i < s->n_works; i++) lt_work_trim(&s->works[i]);
}

void lt_pretokenizer_scratch_free(lt_pretokenizer_scratch *s)
{
    for (size_t i = 0; i < s->n_works; i++) lt_work_free(&s->works[i]);
    if (s->mem) lt_free(s->mem, s->works);
    s->works = NULL;
    s->n_works = 0;
}

/* ------------------------------------------------------------------ cutting */

typedef struct run {
    lt_pretokenizer_scratch *scratch;
    bool track;
    lt_span_fn fn;
    void *arg;
    lattice_error *err;
} run;

static lattice_status run_step(const run *r, const lt_pre_step *s, const lt_view *view);

/* Hands the piece [start, end) of view to the step after s. */
static inline lattice_status hand_on(const run *r, const lt_pre_step *s, const lt_view *view, size_t start, size_t end)
{
    if (start == end) return LATTICE_OK;
    lt_view piece = lt_view_slice(view, start, end);
    return s->next ? run_step(r, s->next, &piece) : r->fn(r->arg, &piece, r->err);
}

/* Takes matches and gaps in order and makes pieces of them. */
typedef struct cutter {
    const run *r;
    const lt_pre_step *s;
    const lt_view *view;
    bool held, previous; /* a piece that may still grow; whether the last item was a match */
    size_t start, end;   /* of that piece */
} cutter;

static lattice_status cut_flush(cutter *c)
{
    if (!c->held) return LATTICE_OK;
    c->held = false;
    return hand_on(c->r, c->s, c->view, c->start, c->end);
}

static lattice_status cut_item(cutter *c, size_t start, size_t end, bool match)
{
    if (c->s->invert) match = !match;
    bool joins = false;
    switch (c->s->behavior) {
    case REMOVED: return match ? LATTICE_OK : hand_on(c->r, c->s, c->view, start, end);
    case ISOLATED: return hand_on(c->r, c->s, c->view, start, end);
    case MERGED_WITH_PREVIOUS: joins = match && !c->previous; break;
    case MERGED_WITH_NEXT: joins = !match && c->previous; break;
    case CONTIGUOUS: joins = match == c->previous; break;
    }
    c->previous = match;
    if (joins && c->held) {
        c->end = end;
        return LATTICE_OK;
    }
    LT_TRY(cut_flush(c));
    c->held = true;
    c->start = start;
    c->end = end;
    return LATTICE_OK;
}

static lattice_status cut_characters(const run *r, const lt_pre_step *s, const lt_view *view)
{
    cutter c = { r, s, view, false, false, 0, 0 };
    size_t gap = 0;
    for (size_t i = 0, size; i < view->n; i += size) {
        if (!(lt_unicode(lt_utf8_at(view->data, i, &size)) & s->flags)) continue;
        if (gap < i) LT_TRY(cut_item(&c, gap, i, false));
        LT_TRY(cut_item(&c, i, i + size, true));
        gap = i + size;
    }
    if (gap < view->n) LT_TRY(cut_item(&c, gap, view->n, false));
    return cut_flush(&c);
}

static lattice_status cut_string(const run *r, const lt_pre_step *s, const lt_view *view)
{
    cutter c = { r, s, view, false, false, 0, 0 };
    size_t gap = 0;
    for (;;) {
        const uint8_t *hit = memmem(view->data + gap, view->n - gap, s->string.data, s->string.len);
        if (!hit) break;
        size_t i = (size_t)(hit - view->data);
        if (gap < i) LT_TRY(cut_item(&c, gap, i, false));
        LT_TRY(cut_item(&c, i, i + s->string.len, true));
        gap = i + s->string.len;
    }
    if (gap < view->n) LT_TRY(cut_item(&c, gap, view->n, false));
    return cut_flush(&c);
}

static lattice_status cut_expression(const run *r, const lt_pre_step *s, const lt_view *view)
{
    cutter c = { r, s, view, false, false, 0, 0 };
    size_t gap = 0;
    lt_regex_matches m = lt_regex_begin(s->regex, r->scratch->regex, view->data, view->n);
    for (;;) {
        bool found;
        size_t start, end;
        LT_TRY(lt_regex_next(&m, &found, &start, &end, r->err));
        if (!found) break;
        if (gap < start) LT_TRY(cut_item(&c, gap, start, false));
        LT_TRY(cut_item(&c, start, end, true));
        gap = end;
    }
    if (gap < view->n) LT_TRY(cut_item(&c, gap, view->n, false));
    return cut_flush(&c);
}

static lattice_status cut_known(const run *r, const lt_pre_step *s, const lt_view *view)
{
    if (s->behavior == ISOLATED) {
        for (size_t i = 0, end; i < view->n; i = end) {
            end = s->matcher(view->data, i, view->n);
            LT_TRY(hand_on(r, s, view, i, end));
        }
        return LATTICE_OK;
    }
    cutter c = { r, s, view, false, false, 0, 0 };
    for (size_t i = 0, end; i < view->n; i = end) {
        end = s->matcher(view->data, i, view->n);
        LT_TRY(cut_item(&c, i, end, true));
    }
    return cut_flush(&c);
}

static lattice_status cut_bert(const run *r, const lt_pre_step *s, const lt_view *view)
{
    size_t word = 0;
    for (size_t i = 0, size; i < view->n; i += size) {
        uint32_t flags = lt_unicode(lt_utf8_at(view->data, i, &size));
        if (!(flags & (LT_U_WHITE | LT_U_PUNCTUATION))) continue;
        LT_TRY(hand_on(r, s, view, word, i));
        word = i + size;
        if (!(flags & LT_U_WHITE)) LT_TRY(hand_on(r, s, view, i, word));
    }
    return hand_on(r, s, view, word, view->n);
}

static lattice_status cut_whitespace(const run *r, const lt_pre_step *s, const lt_view *view)
{
    size_t start = 0;
    int last = 0; /* 0: white space, 1: word characters, 2: others */
    for (size_t i = 0, size; i < view->n; i += size) {
        uint32_t flags = lt_unicode(lt_utf8_at(view->data, i, &size));
        int kind = flags & LT_U_WORD ? 1 : flags & LT_U_WHITE ? 0 : 2;
        if (kind == last) continue;
        if (last != 0) LT_TRY(hand_on(r, s, view, start, i));
        last = kind;
        start = i;
    }
    return last != 0 ? hand_on(r, s, view, start, view->n) : LATTICE_OK;
}

/* Puts `text` before everything; it is aligned to the first character. */
static lattice_status put_before(const run *r, lt_work *out, lt_str text, lt_view *view)
{
    lt_view in = *view;
    lt_rewrite w = lt_rewrite_begin(&in, out, r->track);
    size_t size, unused;
    uint32_t first = lt_utf8_at(in.data, 0, &size);
    lt_rewrite_put(&w, lt_utf8_at((const uint8_t *)text.data, 0, &unused), 0);
    lt_rewrite_put(&w, first, 1);
    lt_rewrite_copy(&w, in.n - w.at);
    return lt_rewrite_end(&w, view, r->err);
}

/* Writes every byte as its character of the alphabet, and hands the piece on. */
static lattice_status byte_level_piece(const run *r, const lt_pre_step *s, const lt_view *piece)
{
    if (!s->expand) return s->next ? run_step(r, s->next, piece) : r->fn(r->arg, piece, r->err);
    lt_work *out = &r->scratch->works[s->work];
    lt_view view = *piece;
    lt_rewrite w = lt_rewrite_begin(piece, out, r->track);
    for (size_t i = 0, size; i < piece->n; i += size) {
        lt_utf8_at(piece->data, i, &size);
        for (size_t k = 0; k < size; k++) lt_rewrite_put(&w, lt_byte_to_char(piece->data[i + k]), k > 0);
    }
    LT_TRY(lt_rewrite_end(&w, &view, r->err));
    return s->next ? run_step(r, s->next, &view) : r->fn(r->arg, &view, r->err);
}

static lattice_status byte_level(const run *r, const lt_pre_step *s, const lt_view *view)
{
    lt_view text = *view;
    if (s->prefix_space && view->data[0] != ' ') LT_TRY(put_before(r, &r->scratch->works[s->work + 1], LT_STR(" "), &text));
    if (!s->matcher) return byte_level_piece(r, s, &text);
    for (size_t i = 0, end; i < text.n; i = end) {
        end = s->matcher(text.data, i, text.n);
        lt_view piece = lt_view_slice(&text, i, end);
        LT_TRY(byte_level_piece(r, s, &piece));
    }
    return LATTICE_OK;
}

static lattice_status metaspace(const run *r, const lt_pre_step *s, const lt_view *view)
{
    lt_work *out = &r->scratch->works[s->work];
    lt_view text = *view;
    const uint8_t *mark = (const uint8_t *)s->string.data;
    size_t size, length = s->string.len;
    uint32_t c = lt_utf8_at(mark, 0, &size), first;
    lt_rewrite w = lt_rewrite_begin(view, out, r->track);
    bool begins = view->data[0] == ' ' || (view->n >= length && memcmp(view->data, mark, length) == 0);
    bool at_start = (view->align ? view->align[0].start : view->origin) == 0;
    if (!begins && (s->scheme == ALWAYS || (s->scheme == FIRST && at_start))) {
        first = lt_utf8_at(view->data, 0, &size);
        lt_rewrite_put(&w, c, 0);
        lt_rewrite_put(&w, first, 1);
    }
    while (w.at < view->n) {
        const uint8_t *space = memchr(view->data + w.at, ' ', view->n - w.at);
        lt_rewrite_copy(&w, space ? (size_t)(space - view->data) - w.at : view->n - w.at);
        if (space) lt_rewrite_put(&w, c, 0);
        if (w.failed) break;
    }
    LT_TRY(lt_rewrite_end(&w, &text, r->err));
    if (!s->split) return hand_on(r, s, &text, 0, text.n);
    size_t start = 0;
    while (start < text.n) {
        const uint8_t *next = memmem(text.data + start + 1, text.n - start - 1, mark, length);
        size_t end = next ? (size_t)(next - text.data) : text.n;
        LT_TRY(hand_on(r, s, &text, start, end));
        start = end;
    }
    return LATTICE_OK;
}

static lattice_status run_step(const run *r, const lt_pre_step *s, const lt_view *view)
{
    switch (s->kind) {
    case BERT: return cut_bert(r, s, view);
    case WHITESPACE: return cut_whitespace(r, s, view);
    case CHARACTERS: return cut_characters(r, s, view);
    case STRING: return cut_string(r, s, view);
    case EXPRESSION: return cut_expression(r, s, view);
    case KNOWN: return cut_known(r, s, view);
    case BYTE_LEVEL: return byte_level(r, s, view);
    case METASPACE: return metaspace(r, s, view);
    }
    return LATTICE_OK;
}

lattice_status lt_pretokenize(const lt_pretokenizer *pre, lt_pretokenizer_scratch *scratch, const lt_view *view, bool track,
                              lt_span_fn fn, void *arg, lattice_error *err)
{
    if (view->n == 0) return LATTICE_OK;
    if (!pre || !pre->first) return fn(arg, view, err);
    run r = { scratch, track, fn, arg, err };
    return run_step(&r, pre->first, view);
}
