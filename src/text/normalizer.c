/* Normalisers. Each rewrites the text into the scratch buffer that does not hold it, or leaves it where it is if nothing changes;
 * texts that are in the wanted form already, nearly all of them, cost one scan.
 *
 * BertNormalizer is one pass instead of the four it is defined as. That is exact as long as no combining mark survives the
 * stripping of accents, since only then does the order of marks matter; texts with such marks (a few dozen code points) take the
 * four passes. */
#include "text/normalizer.h"

#include "base/utf8.h"
#include "text/byte_alphabet.h"
#include "text/charsmap.h"

typedef enum lt_normalizer_kind {
    BERT,
    FORM,
    LOWERCASE,
    STRIP_ACCENTS,
    STRIP,
    REPLACE_STRING,
    REPLACE_REGEX,
    PREPEND,
    PRECOMPILED,
    NMT,
    BYTE_LEVEL,
} lt_normalizer_kind;

typedef struct lt_normalizer_step {
    lt_normalizer_kind kind;
    lt_form form;
    bool clean, chinese, accents, lower; /* BERT */
    bool left, right;                    /* STRIP */
    lt_str pattern, content;             /* REPLACE_*, PREPEND (content) */
    lt_regex *regex;
    lt_charsmap map;
    struct lt_normalizer_step *next;
} lt_normalizer_step;

struct lt_normalizer {
    const lattice_allocator *mem;
    lt_arena arena;
    lt_normalizer_step *first, **last;
};

void lt_normalizer_scratch_init(lt_normalizer_scratch *s, const lattice_allocator *mem, lt_regex_scratch *regex)
{
    *s = (lt_normalizer_scratch){ .current = -1, .form.mem = mem, .regex = regex };
    for (int i = 0; i < 2; i++) lt_work_init(&s->works[i], mem);
}

void lt_normalizer_scratch_trim(lt_normalizer_scratch *s)
{
    for (int i = 0; i < 2; i++) lt_work_trim(&s->works[i]);
}

void lt_normalizer_scratch_free(lt_normalizer_scratch *s)
{
    for (int i = 0; i < 2; i++) lt_work_free(&s->works[i]);
    lt_form_scratch_free(&s->form);
}

/* ------------------------------------------------------------------ reading */

static lt_normalizer *create(const lattice_allocator *mem)
{
    lt_normalizer *n = lt_alloc_zero(mem, sizeof *n);
    if (!n) return NULL;
    n->mem = mem;
    lt_arena_init(&n->arena, mem);
    n->last = &n->first;
    return n;
}

void lt_normalizer_free(lt_normalizer *n)
{
    if (!n) return;
    for (lt_normalizer_step *s = n->first; s; s = s->next) lt_regex_free(s->regex);
    lt_arena_free(&n->arena);
    lt_free(n->mem, n);
}

static lt_normalizer_step *append(lt_normalizer *n, lt_normalizer_kind kind)
{
    lt_normalizer_step *s = lt_arena_alloc(&n->arena, sizeof *s);
    if (!s) return NULL;
    s->kind = kind;
    *n->last = s;
    n->last = &s->next;
    return s;
}

static bool simple_kind(lt_str type, lt_normalizer_kind *kind, lt_form *form)
{
    static const struct {
        const char *name;
        lt_normalizer_kind kind;
        lt_form form;
    } names[] = {
        { "BertNormalizer", BERT, LT_NFC },
        { "NFC", FORM, LT_NFC },
        { "NFD", FORM, LT_NFD },
        { "NFKC", FORM, LT_NFKC },
        { "NFKD", FORM, LT_NFKD },
        { "Lowercase", LOWERCASE, LT_NFC },
        { "StripAccents", STRIP_ACCENTS, LT_NFC },
        { "Strip", STRIP, LT_NFC },
        { "Replace", REPLACE_STRING, LT_NFC },
        { "Prepend", PREPEND, LT_NFC },
        { "Precompiled", PRECOMPILED, LT_NFC },
        { "Nmt", NMT, LT_NFC },
        { "ByteLevel", BYTE_LEVEL, LT_NFC },
    };
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        if (!lt_str_is(type, names[i].name)) continue;
        *kind = names[i].kind;
        *form = names[i].form;
        return true;
    }
    return false;
}

/* The replacement without its bytes as they would be matched: an empty string is an expression that matches everywhere. */
static lattice_status build_replace(lt_normalizer *n, const lt_component *c, lt_normalizer_step *s, const char *where,
                                    lattice_error *err)
{
    if (!c->has_pattern || !c->content.data)
        return lt_fail(err, LATTICE_ERR_FORMAT, "%s: normalizer Replace needs a pattern and a content", where);
    s->pattern = c->pattern;
    s->content = c->content;
    if (!c->pattern_is_regex && c->pattern.len > 0) return LATTICE_OK;
    s->kind = REPLACE_REGEX;
    return lt_regex_compile(n->mem, c->pattern, where, &s->regex, err);
}

static lattice_status build(lt_normalizer *n, const lt_component *c, const char *where, lattice_error *err)
{
    if (lt_str_is(c->type, "Sequence")) {
        if (!c->has_children) return lt_fail(err, LATTICE_ERR_FORMAT, "%s: a normalizer Sequence without 'normalizers'", where);
        for (const lt_component *child = c->children; child; child = child->next) LT_TRY(build(n, child, where, err));
        return LATTICE_OK;
    }
    lt_normalizer_kind kind;
    lt_form form;
    if (!simple_kind(c->type, &kind, &form))
        return lt_fail(err, LATTICE_ERR_UNSUPPORTED, "%s: normalizer '%.*s' is not supported", where, LT_STR_ARG(c->type));
    if (kind == PRECOMPILED && !c->charsmap.data)
        return lt_fail(err, LATTICE_ERR_FORMAT, "%s: normalizer Precompiled without precompiled_charsmap", where);
    if (kind == PREPEND && !c->prepend.data)
        return lt_fail(err, LATTICE_ERR_FORMAT, "%s: normalizer Prepend without 'prepend'", where);
    lt_normalizer_step *s = append(n, kind);
    if (!s) return lt_no_memory(err, sizeof *s, "a normalizer");
    s->form = form;
    s->clean = lt_maybe_or(c->clean_text, true);
    s->chinese = lt_maybe_or(c->handle_chinese_chars, true);
    s->lower = lt_maybe_or(c->lowercase, true);
    s->accents = lt_maybe_or(c->strip_accents, s->lower);
    s->left = lt_maybe_or(c->left, true);
    s->right = lt_maybe_or(c->right, true);
    if (kind == PREPEND) s->content = c->prepend;
    if (kind == REPLACE_STRING) return build_replace(n, c, s, where, err);
    if (kind == PRECOMPILED) return lt_charsmap_read(&n->arena, c->charsmap, where, &s->map, err);
    return LATTICE_OK;
}

lattice_status lt_normalizer_read(const lattice_allocator *mem, lt_json *json, lt_normalizer **normalizer, lattice_error *err)
{
    *normalizer = NULL;
    if (lt_json_peek(json) == LT_JSON_NULL) return lt_json_null(json);
    lt_normalizer *n = create(mem);
    if (!n) return lt_no_memory(err, sizeof *n, "a normalizer");
    lt_component *component;
    lattice_status status = lt_component_read(&n->arena, json, "normalizers", &component);
    if (status == LATTICE_OK) status = build(n, component, json->name, err);
    if (status != LATTICE_OK) {
        lt_normalizer_free(n);
        return status;
    }
    *normalizer = n;
    return LATTICE_OK;
}

lattice_status lt_normalizer_bert(const lattice_allocator *mem, bool chinese, lt_maybe strip_accents, bool lowercase,
                                  lt_normalizer **normalizer, lattice_error *err)
{
    lt_normalizer *n = create(mem);
    lt_normalizer_step *s = n ? append(n, BERT) : NULL;
    if (!s) {
        lt_normalizer_free(n);
        return lt_no_memory(err, sizeof *s, "a normalizer");
    }
    s->clean = true;
    s->chinese = chinese;
    s->lower = lowercase;
    s->accents = lt_maybe_or(strip_accents, lowercase);
    *normalizer = n;
    return LATTICE_OK;
}

/* The map changes a space or an ASCII letter or digit. */
static bool maps_borders(const lt_charsmap *map)
{
    for (unsigned c = ' '; c <= 'z'; c++) {
        bool border = c == ' ' || c - '0' < 10 || (c | 32) - 'a' < 26;
        if (border && map->ascii[c]) return true;
    }
    return false;
}

bool lt_normalizer_is_local(const lt_normalizer *normalizer, bool *marks)
{
    *marks = false;
    for (const lt_normalizer_step *s = normalizer ? normalizer->first : NULL; s; s = s->next) {
        switch (s->kind) {
        case REPLACE_STRING:
        case REPLACE_REGEX:
            if (!lt_str_is(s->pattern, s->kind == REPLACE_STRING ? " " : " {2,}")) return false;
            if (lt_str_is(s->content, "\xE2\x96\x81")) {
                *marks = true;
            } else if (!lt_str_is(s->content, " ")) {
                return false;
            }
            break;
        case PRECOMPILED:
            if (maps_borders(&s->map)) return false;
            break;
        case STRIP:
            if (s->left) return false;
            break;
        case PREPEND:
        case BYTE_LEVEL: return false;
        default: break;
        }
    }
    return true;
}

/* ------------------------------------------------------------------ one step each */

static lattice_status lowercase(lt_view *view, lt_work *out, bool track, lattice_error *err)
{
    lt_view in = *view;
    lt_rewrite r = lt_rewrite_begin(&in, out, track);
    while (r.at < in.n) {
        size_t i = r.at, size;
        if (!lt_rewrite_room(&r, in.n - i)) break;
        if (!r.stored) { /* ASCII in step */
            while (i < in.n && in.data[i] < 0x80) {
                uint8_t c = in.data[i++];
                out->data[out->n++] = (uint8_t)(c + ((uint8_t)(c - 'A') < 26 ? 32 : 0));
            }
            r.at = i;
            if (i == in.n) break;
        }
        uint32_t lower[3], c = lt_utf8_at(in.data, i, &size);
        size_t k = lt_unicode_lower(c, lower);
        for (size_t j = 0; j < k; j++) lt_rewrite_put(&r, lower[j], j > 0);
    }
    return lt_rewrite_end(&r, view, err);
}

/* Drops the characters with any of the flags. */
static lattice_status filter(uint32_t flags, lt_view *view, lt_work *out, bool track, lattice_error *err)
{
    lt_view in = *view;
    lt_rewrite r = lt_rewrite_begin(&in, out, track);
    for (size_t i = 0, size; i < in.n; i += size) {
        uint32_t c = lt_utf8_at(in.data, i, &size);
        if (lt_unicode(c) & flags) {
            lt_rewrite_copy(&r, i - r.at);
            lt_rewrite_skip(&r, size);
        }
    }
    lt_rewrite_copy(&r, in.n - r.at);
    return lt_rewrite_end(&r, view, err);
}

static bool nmt_dropped(uint32_t c)
{
    return (c >= 0x01 && c <= 0x08) || c == 0x0B || (c >= 0x0E && c <= 0x1F) || c == 0x7F || c == 0x8F || c == 0x9F;
}

static bool nmt_space(uint32_t c)
{
    return c == 0x09 || c == 0x0A || c == 0x0C || c == 0x0D || c == 0x1680 || (c >= 0x200B && c <= 0x200F) || c == 0x2028 ||
           c == 0x2029 || c == 0x2581 || c == 0xFEFF || c == 0xFFFD;
}

static lattice_status nmt(lt_view *view, lt_work *out, bool track, lattice_error *err)
{
    lt_view in = *view;
    lt_rewrite r = lt_rewrite_begin(&in, out, track);
    for (size_t i = 0, size; i < in.n; i += size) {
        uint32_t c = lt_utf8_at(in.data, i, &size);
        if (!nmt_dropped(c) && !nmt_space(c)) continue;
        lt_rewrite_copy(&r, i - r.at);
        if (nmt_dropped(c)) {
            lt_rewrite_skip(&r, size);
        } else {
            lt_rewrite_put(&r, ' ', 0);
        }
    }
    lt_rewrite_copy(&r, in.n - r.at);
    return lt_rewrite_end(&r, view, err);
}

static void strip(const lt_normalizer_step *s, lt_view *view)
{
    size_t start = 0, end = view->n, size;
    while (s->left && start < end && (lt_unicode(lt_utf8_at(view->data, start, &size)) & LT_U_WHITE)) start += size;
    while (s->right && end > start) {
        size_t last = lt_utf8_before(view->data, end);
        if (!(lt_unicode(lt_utf8_at(view->data, last, &size)) & LT_U_WHITE)) break;
        end = last;
    }
    *view = lt_view_slice(view, start, end);
}

/* Puts `text` in place of the next n bytes; it is aligned to their last one. */
static void put_replacement(lt_rewrite *r, size_t n, lt_str text)
{
    lt_rewrite_skip(r, n);
    lt_rewrite_store(r);
    for (size_t i = 0, size; i < text.len; i += size) lt_rewrite_put(r, lt_utf8_at((const uint8_t *)text.data, i, &size), 1);
}

static lattice_status replace_string(const lt_normalizer_step *s, lt_view *view, lt_work *out, bool track, lattice_error *err)
{
    const uint8_t *hit = memmem(view->data, view->n, s->pattern.data, s->pattern.len);
    if (!hit) return LATTICE_OK;
    lt_view in = *view;
    lt_rewrite r = lt_rewrite_begin(&in, out, track);
    while (hit) {
        lt_rewrite_copy(&r, (size_t)(hit - in.data) - r.at);
        put_replacement(&r, s->pattern.len, s->content);
        hit = memmem(in.data + r.at, in.n - r.at, s->pattern.data, s->pattern.len);
    }
    lt_rewrite_copy(&r, in.n - r.at);
    return lt_rewrite_end(&r, view, err);
}

static lattice_status replace_regex(const lt_normalizer_step *s, lt_regex_scratch *regex, lt_view *view, lt_work *out, bool track,
                                    lattice_error *err)
{
    if (view->n == 0) return LATTICE_OK;
    lt_view in = *view;
    lt_rewrite r = lt_rewrite_begin(&in, out, track);
    lt_regex_matches m = lt_regex_begin(s->regex, regex, in.data, in.n);
    for (;;) {
        bool found;
        size_t start, end;
        LT_TRY(lt_regex_next(&m, &found, &start, &end, err));
        if (!found) break;
        lt_rewrite_copy(&r, start - r.at);
        put_replacement(&r, end - start, s->content);
    }
    if (r.at == 0 && out->n == 0 && !r.failed) return LATTICE_OK; /* nothing matched */
    lt_rewrite_copy(&r, in.n - r.at);
    return lt_rewrite_end(&r, view, err);
}

static lattice_status prepend(lt_str text, lt_view *view, lt_work *out, bool track, lattice_error *err)
{
    if (view->n == 0 || text.len == 0) return LATTICE_OK;
    lt_view in = *view;
    lt_rewrite r = lt_rewrite_begin(&in, out, track);
    size_t size, first;
    uint32_t c = lt_utf8_at(in.data, 0, &first);
    for (size_t i = 0; i < text.len; i += size) lt_rewrite_put(&r, lt_utf8_at((const uint8_t *)text.data, i, &size), i > 0);
    lt_rewrite_put(&r, c, 1);
    lt_rewrite_copy(&r, in.n - r.at);
    return lt_rewrite_end(&r, view, err);
}

static lattice_status byte_level(lt_view *view, lt_work *out, bool track, lattice_error *err)
{
    lt_view in = *view;
    lt_rewrite r = lt_rewrite_begin(&in, out, track);
    for (size_t i = 0, size; i < in.n; i += size) {
        lt_utf8_at(in.data, i, &size);
        for (size_t k = 0; k < size; k++) lt_rewrite_put(&r, lt_byte_to_char(in.data[i + k]), k > 0);
    }
    return lt_rewrite_end(&r, view, err);
}

/* ------------------------------------------------------------------ BertNormalizer */

enum { DROPPED = 0xFF };

/* What becomes of an ASCII byte. */
static uint8_t bert_ascii(const lt_normalizer_step *s, uint8_t c)
{
    if (s->clean) {
        if (c == '\t' || c == '\n' || c == '\r') return ' ';
        if (c < 0x20 || c == 0x7F) return DROPPED;
    }
    return s->lower && c >= 'A' && c <= 'Z' ? (uint8_t)(c + 32) : c;
}

/* A mark that is reordered by NFD and survives the stripping of accents. */
static bool bert_awkward(uint32_t c, uint32_t flags)
{
    if (!(flags & LT_U_NFD_SLOW)) return false;
    const lt_unicode_record *m = lt_unicode_mapping(c);
    for (size_t k = 0; k < m->n_nfd; k++) {
        uint32_t part = lt_unicode_pool[m->nfd + k];
        if (lt_unicode_ccc(part) != 0 && !(lt_unicode(part) & LT_U_NONSPACING)) return true;
    }
    return m->ccc != 0 && !(flags & LT_U_NONSPACING);
}

/* Writes what becomes of the non-ASCII character c; its first character takes its place, the others are inserted. */
static void bert_character(const lt_normalizer_step *s, lt_rewrite *r, uint32_t c, uint32_t flags, size_t size)
{
    if (s->clean && (flags & LT_U_CONTROL)) {
        lt_rewrite_skip(r, size);
        return;
    }
    if (s->clean && (flags & LT_U_WHITE)) {
        lt_rewrite_put(r, ' ', 0);
        return;
    }
    uint32_t parts[LT_DECOMPOSED_MAX] = { c };
    size_t n = s->accents && (flags & LT_U_NFD_SLOW) ? lt_unicode_decompose(c, false, parts) : 1;
    bool spaced = s->chinese && (flags & LT_U_CHINESE);
    long change = 0;
    if (spaced) {
        lt_rewrite_put(r, ' ', 0);
        change = 1;
    }
    for (size_t i = 0; i < n; i++) {
        if (s->accents && (lt_unicode(parts[i]) & LT_U_NONSPACING)) continue;
        uint32_t lower[3] = { parts[i] };
        size_t k = s->lower ? lt_unicode_lower(parts[i], lower) : 1;
        for (size_t j = 0; j < k; j++) {
            lt_rewrite_put(r, lower[j], change);
            change = 1;
        }
    }
    if (spaced) lt_rewrite_put(r, ' ', 1);
    if (change == 0) lt_rewrite_skip(r, size);
}

/* The four passes one after the other; `works` holds the text in works[*current]. */
static lattice_status bert_exact(const lt_normalizer_step *s, lt_normalizer_scratch *scratch, lt_view *view, bool track,
                                 lattice_error *err)
{
    lt_normalizer_step part = { .kind = BERT, .clean = s->clean, .chinese = s->chinese };
    lt_work *out = &scratch->works[scratch->current == 0 ? 1 : 0];
    lt_view in = *view;
    lt_rewrite r = lt_rewrite_begin(&in, out, track);
    while (r.at < in.n) {
        size_t size;
        uint32_t c = lt_utf8_at(in.data, r.at, &size);
        bert_character(&part, &r, c, lt_unicode(c), size);
    }
    LT_TRY(lt_rewrite_end(&r, view, err));
    scratch->current = out == &scratch->works[0] ? 0 : 1;

    out = &scratch->works[1 - scratch->current];
    LT_TRY(lt_normal_form(LT_NFD, &scratch->form, view, out, track, err));
    if (view->data == out->data) scratch->current = 1 - scratch->current;
    out = &scratch->works[1 - scratch->current];
    LT_TRY(filter(LT_U_NONSPACING, view, out, track, err));
    scratch->current = 1 - scratch->current;
    if (!s->lower) return LATTICE_OK;
    LT_TRY(lowercase(view, &scratch->works[1 - scratch->current], track, err));
    scratch->current = 1 - scratch->current;
    return LATTICE_OK;
}

static lattice_status bert(const lt_normalizer_step *s, lt_normalizer_scratch *scratch, lt_view *view, bool track,
                           lattice_error *err)
{
    lt_work *out = &scratch->works[scratch->current == 0 ? 1 : 0];
    lt_view in = *view;
    lt_rewrite r = lt_rewrite_begin(&in, out, track);
    uint8_t ascii[128];
    for (uint8_t c = 0; c < 128; c++) ascii[c] = bert_ascii(s, c);
    while (r.at < in.n) {
        if (in.data[r.at] < 0x80) {
            size_t i = r.at, n = out->n;
            if (!lt_rewrite_room(&r, in.n - i)) break;
            if (!r.stored) {
                while (i < in.n && in.data[i] < 0x80 && ascii[in.data[i]] != DROPPED) out->data[n++] = ascii[in.data[i++]];
            } else if (in.align) {
                for (; i < in.n && in.data[i] < 0x80 && ascii[in.data[i]] != DROPPED; i++) {
                    out->align[n] = in.align[i];
                    out->data[n++] = ascii[in.data[i]];
                }
            } else {
                for (; i < in.n && in.data[i] < 0x80 && ascii[in.data[i]] != DROPPED; i++) {
                    out->align[n] = (lt_align){ (uint32_t)(in.origin + i), (uint32_t)(in.origin + i + 1) };
                    out->data[n++] = ascii[in.data[i]];
                }
            }
            out->n = n;
            r.at = i;
            if (i < in.n && in.data[i] < 0x80) lt_rewrite_skip(&r, 1);
            continue;
        }
        size_t size;
        uint32_t c = lt_utf8_at(in.data, r.at, &size), flags = lt_unicode(c);
        if (s->accents && bert_awkward(c, flags)) return bert_exact(s, scratch, view, track, err);
        const uint32_t touched = LT_U_CONTROL | LT_U_WHITE | LT_U_CHINESE | LT_U_NONSPACING | LT_U_LOWER | LT_U_NFD_SLOW;
        if (flags & touched) {
            bert_character(s, &r, c, flags, size);
        } else {
            lt_rewrite_copy(&r, size);
        }
    }
    LT_TRY(lt_rewrite_end(&r, view, err));
    scratch->current = out == &scratch->works[0] ? 0 : 1;
    return LATTICE_OK;
}

/* ------------------------------------------------------------------ all steps */

static lattice_status step(const lt_normalizer_step *s, lt_normalizer_scratch *scratch, lt_view *view, bool track,
                           lattice_error *err)
{
    if (s->kind == BERT) return bert(s, scratch, view, track, err);
    if (s->kind == STRIP) {
        strip(s, view);
        return LATTICE_OK;
    }
    lt_work *out = &scratch->works[scratch->current == 0 ? 1 : 0];
    switch (s->kind) {
    case FORM: LT_TRY(lt_normal_form(s->form, &scratch->form, view, out, track, err)); break;
    case LOWERCASE: LT_TRY(lowercase(view, out, track, err)); break;
    case STRIP_ACCENTS: LT_TRY(filter(LT_U_COMBINING, view, out, track, err)); break;
    case REPLACE_STRING: LT_TRY(replace_string(s, view, out, track, err)); break;
    case REPLACE_REGEX: LT_TRY(replace_regex(s, scratch->regex, view, out, track, err)); break;
    case PREPEND: LT_TRY(prepend(s->content, view, out, track, err)); break;
    case PRECOMPILED: LT_TRY(lt_charsmap_apply(&s->map, view, out, track, err)); break;
    case NMT: LT_TRY(nmt(view, out, track, err)); break;
    case BYTE_LEVEL: LT_TRY(byte_level(view, out, track, err)); break;
    case BERT:
    case STRIP: break;
    }
    if (view->data == out->data) scratch->current = out == &scratch->works[0] ? 0 : 1;
    return LATTICE_OK;
}

lattice_status lt_normalize(const lt_normalizer *normalizer, lt_normalizer_scratch *scratch, lt_view *view, bool track,
                            lattice_error *err)
{
    if (!normalizer) return LATTICE_OK;
    scratch->current = -1;
    for (const lt_normalizer_step *s = normalizer->first; s; s = s->next) {
        if (view->n > 0) LT_TRY(step(s, scratch, view, track, err));
    }
    return LATTICE_OK;
}
