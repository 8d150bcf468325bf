/* Post-processors and truncation; see post.h.
 *
 * Every processor comes down to the same three things, applied in this order: spans trimmed (by each ByteLevel or
 * RobertaProcessing that asks for it), and one template for a single text and one for a pair. BertProcessing and
 * RobertaProcessing are templates with fixed pieces; a Sequence may hold one processor that adds tokens. */
#include "text/post.h"

#include "base/utf8.h"

typedef enum piece_kind { PIECE_FIRST, PIECE_SECOND, PIECE_SPECIAL } piece_kind;

typedef struct piece {
    piece_kind kind;
    uint32_t type_id;
    size_t begin, n; /* special: ids[begin .. begin + n) */
    lt_str name;     /* special: while reading */
} piece;

typedef struct template
{
    piece *pieces;
    size_t n, capacity;
    size_t added; /* special tokens */
}
template;

struct lt_post {
    const lattice_allocator *mem;
    template single, pair;
    uint32_t *ids; /* of special tokens */
    size_t n_ids, ids_capacity;
    bool has_template;
    bool keep_types; /* the template applies to type ids only if special tokens are added (BertProcessing) */
    struct trim {
        bool add_prefix_space;
    } * trims;
    size_t n_trims, trims_capacity;
    lt_str (*spelling)(const void *owner, uint32_t id);
    const void *owner;
};

/* ------------------------------------------------------------------ building */

static lattice_status add_piece(lt_post *post, template *t, piece p, lattice_error *err)
{
    if (!LT_GROW(post->mem, t->pieces, t->capacity, t->n + 1)) return lt_no_memory(err, sizeof p, "a post-processor");
    t->pieces[t->n++] = p;
    if (p.kind == PIECE_SPECIAL) t->added += p.n;
    return LATTICE_OK;
}

static lattice_status add_id(lt_post *post, uint32_t id, lattice_error *err)
{
    if (!LT_GROW(post->mem, post->ids, post->ids_capacity, post->n_ids + 1))
        return lt_no_memory(err, sizeof id, "a post-processor");
    post->ids[post->n_ids++] = id;
    return LATTICE_OK;
}

static lattice_status add_trim(lt_post *post, bool add_prefix_space, lattice_error *err)
{
    if (!LT_GROW(post->mem, post->trims, post->trims_capacity, post->n_trims + 1))
        return lt_no_memory(err, sizeof *post->trims, "a post-processor");
    post->trims[post->n_trims++].add_prefix_space = add_prefix_space;
    return LATTICE_OK;
}

/* cls A sep, and cls A sep [sep] B sep. */
static lattice_status add_cls_sep(lt_post *post, uint32_t cls, uint32_t sep, bool double_sep, uint32_t second_type,
                                  lattice_error *err)
{
    size_t at = post->n_ids;
    LT_TRY(add_id(post, cls, err));
    LT_TRY(add_id(post, sep, err));
    const piece first = { PIECE_SPECIAL, 0, at, 1, { NULL, 0 } }, last = { PIECE_SPECIAL, 0, at + 1, 1, { NULL, 0 } };
    const piece a = { PIECE_FIRST, 0, 0, 0, { NULL, 0 } }, b = { PIECE_SECOND, second_type, 0, 0, { NULL, 0 } };
    piece end = last;
    end.type_id = second_type;
    const piece single[] = { first, a, last }, pair[] = { first, a, last, b, end };
    for (size_t i = 0; i < 3; i++) LT_TRY(add_piece(post, &post->single, single[i], err));
    for (size_t i = 0; i < 5; i++) {
        LT_TRY(add_piece(post, &post->pair, pair[i], err));
        if (i == 2 && double_sep) LT_TRY(add_piece(post, &post->pair, last, err));
    }
    post->has_template = true;
    return LATTICE_OK;
}

/* ------------------------------------------------------------------ reading */

/* The members of a processor, as far as any kind has them; big ones are kept as text until `type` is known. */
typedef struct fields {
    lt_str type, single, pair, special_tokens, sep, cls, processors;
    bool trim_offsets, has_trim_offsets, add_prefix_space, has_add_prefix_space;
} fields;

static lattice_status read_fields(lt_json *json, lt_arena *arena, fields *f)
{
    if (lt_json_peek(json) != LT_JSON_OBJECT) return lt_json_fail(json, "a post-processor is not an object");
    LT_TRY(lt_json_begin_object(json));
    for (;;) {
        lt_str key;
        bool more;
        LT_TRY(lt_json_next_member(json, &key, &more));
        if (!more) break;
        if (lt_str_is(key, "type")) {
            lt_str type;
            LT_TRY(lt_json_string(json, &type));
            f->type = (lt_str){ lt_arena_copy(arena, type.data, type.len), type.len };
            if (f->type.data == NULL) return lt_no_memory(json->err, type.len, "a post-processor");
        } else if (lt_str_is(key, "trim_offsets")) {
            f->has_trim_offsets = true;
            LT_TRY(lt_json_bool(json, &f->trim_offsets));
        } else if (lt_str_is(key, "add_prefix_space")) {
            f->has_add_prefix_space = true;
            LT_TRY(lt_json_bool(json, &f->add_prefix_space));
        } else {
            lt_str *raw = lt_str_is(key, "single")           ? &f->single
                          : lt_str_is(key, "pair")           ? &f->pair
                          : lt_str_is(key, "special_tokens") ? &f->special_tokens
                          : lt_str_is(key, "sep")            ? &f->sep
                          : lt_str_is(key, "cls")            ? &f->cls
                          : lt_str_is(key, "processors")     ? &f->processors
                                                             : NULL;
            LT_TRY(raw != NULL ? lt_json_raw(json, raw) : lt_json_skip(json));
        }
    }
    if (f->type.data == NULL) return lt_json_fail(json, "a post-processor has no 'type'");
    return LATTICE_OK;
}

static lattice_status need(lt_json *json, const fields *f, bool there, const char *field)
{
    return there ? LATTICE_OK : lt_json_fail(json, "post-processor %.*s has no '%s'", LT_STR_ARG(f->type), field);
}

/* ["[CLS]", 101] */
static lattice_status read_token_pair(lt_json *json, uint32_t *id)
{
    lt_str token;
    bool more;
    LT_TRY(lt_json_begin_array(json));
    for (size_t i = 0; i < 3; i++) {
        LT_TRY(lt_json_next_element(json, &more));
        if (more != (i < 2)) return lt_json_fail(json, "a post-processor's token is not a pair of spelling and id");
        if (i == 0) LT_TRY(lt_json_string(json, &token));
        if (i == 1) LT_TRY(lt_json_uint32(json, id));
    }
    return LATTICE_OK;
}

typedef lattice_status (*read_fn)(lt_json *json, void *arg);

/* Reads a member kept as text, in its place in the whole, so that messages give the right line. */
static lattice_status read_raw(lt_post *post, const lt_json *outer, lt_str raw, read_fn read, void *arg)
{
    lt_json json;
    lt_json_open(&json, post->mem, outer->name, outer->text, outer->size, outer->err);
    json.pos = (size_t)((const uint8_t *)raw.data - outer->text);
    lattice_status status = read(&json, arg);
    lt_json_close(&json);
    return status;
}

static lattice_status read_token_pair_raw(lt_json *json, void *id)
{
    return read_token_pair(json, id);
}

static lattice_status read_cls_sep(lt_post *post, lt_json *json, const fields *f, bool roberta)
{
    uint32_t cls, sep;
    LT_TRY(need(json, f, f->cls.data != NULL, "cls"));
    LT_TRY(need(json, f, f->sep.data != NULL, "sep"));
    if (roberta) {
        LT_TRY(need(json, f, f->has_trim_offsets, "trim_offsets"));
        LT_TRY(need(json, f, f->has_add_prefix_space, "add_prefix_space"));
        if (f->trim_offsets) LT_TRY(add_trim(post, f->add_prefix_space, json->err));
    }
    LT_TRY(read_raw(post, json, f->cls, read_token_pair_raw, &cls));
    LT_TRY(read_raw(post, json, f->sep, read_token_pair_raw, &sep));
    post->keep_types = !roberta;
    return add_cls_sep(post, cls, sep, roberta, roberta ? 0 : 1, json->err);
}

typedef struct reading {
    lt_post *post;
    template *template;
    lt_arena *arena;
} reading;

/* {"Sequence": {"id": "A", "type_id": 0}} or {"SpecialToken": {"id": "[CLS]", "type_id": 0}} */
static lattice_status read_piece(lt_json *json, reading *r, piece *p)
{
    lt_str key, id;
    bool more, has_id = false, has_type = false;
    if (lt_json_peek(json) != LT_JSON_OBJECT) return lt_json_fail(json, "a template's piece is not an object");
    LT_TRY(lt_json_begin_object(json));
    LT_TRY(lt_json_next_member(json, &key, &more));
    bool special = more && lt_str_is(key, "SpecialToken");
    if (!special && !(more && lt_str_is(key, "Sequence")))
        return lt_json_fail(json, "a template's piece is neither a Sequence nor a SpecialToken");
    *p = (piece){ .kind = special ? PIECE_SPECIAL : PIECE_FIRST };
    LT_TRY(lt_json_begin_object(json));
    for (;;) {
        LT_TRY(lt_json_next_member(json, &key, &more));
        if (!more) break;
        if (lt_str_is(key, "id")) {
            has_id = true;
            LT_TRY(lt_json_string(json, &id));
            if (special) {
                p->name = (lt_str){ lt_arena_copy(r->arena, id.data, id.len), id.len };
                if (p->name.data == NULL) return lt_no_memory(json->err, id.len, "a post-processor");
            } else if (lt_str_is(id, "B")) {
                p->kind = PIECE_SECOND;
            } else if (!lt_str_is(id, "A")) {
                return lt_json_fail(json, "a template's sequence is '%.*s', not A or B", LT_STR_ARG(id));
            }
        } else if (lt_str_is(key, "type_id")) {
            has_type = true;
            LT_TRY(lt_json_uint32(json, &p->type_id));
        } else {
            LT_TRY(lt_json_skip(json));
        }
    }
    if (!has_id || !has_type) return lt_json_fail(json, "a template's piece has no '%s'", has_id ? "type_id" : "id");
    LT_TRY(lt_json_next_member(json, &key, &more));
    return more ? lt_json_fail(json, "a template's piece has more than one member") : LATTICE_OK;
}

static lattice_status read_pieces(lt_json *json, void *arg)
{
    reading *r = arg;
    LT_TRY(lt_json_begin_array(json));
    for (;;) {
        bool more;
        piece p;
        LT_TRY(lt_json_next_element(json, &more));
        if (!more) return LATTICE_OK;
        LT_TRY(read_piece(json, r, &p));
        LT_TRY(add_piece(r->post, r->template, p, json->err));
    }
}

/* Gives the ids to the pieces that name the token. */
static lattice_status read_special_token(lt_json *json, lt_post *post, lt_str name)
{
    size_t begin = post->n_ids;
    bool more, has_ids = false;
    LT_TRY(lt_json_begin_object(json));
    for (;;) {
        lt_str key;
        LT_TRY(lt_json_next_member(json, &key, &more));
        if (!more) break;
        if (!lt_str_is(key, "ids")) {
            LT_TRY(lt_json_skip(json));
            continue;
        }
        has_ids = true;
        LT_TRY(lt_json_begin_array(json));
        for (;;) {
            uint32_t id;
            LT_TRY(lt_json_next_element(json, &more));
            if (!more) break;
            LT_TRY(lt_json_uint32(json, &id));
            LT_TRY(add_id(post, id, json->err));
        }
    }
    if (!has_ids) return lt_json_fail(json, "special token '%.*s' has no 'ids'", LT_STR_ARG(name));
    template *templates[] = { &post->single, &post->pair };
    for (size_t i = 0; i < 2; i++) {
        template *t = templates[i];
        for (size_t k = 0; k < t->n; k++) {
            piece *p = &t->pieces[k];
            if (p->kind != PIECE_SPECIAL || p->name.data == NULL || !lt_str_eq(p->name, name)) continue;
            p->begin = begin;
            p->n = post->n_ids - begin;
            p->name.data = NULL; /* known */
            t->added += p->n;
        }
    }
    return LATTICE_OK;
}

static lattice_status read_special_tokens(lt_json *json, void *arg)
{
    reading *r = arg;
    LT_TRY(lt_json_begin_object(json));
    for (;;) {
        lt_str key;
        bool more;
        LT_TRY(lt_json_next_member(json, &key, &more));
        if (!more) return LATTICE_OK;
        const char *name = lt_arena_copy(r->arena, key.data, key.len);
        if (name == NULL) return lt_no_memory(json->err, key.len, "a post-processor");
        LT_TRY(read_special_token(json, r->post, (lt_str){ name, key.len }));
    }
}

static lattice_status check_template(lt_json *json, const template *t, const char *which, bool pair)
{
    for (size_t i = 0; i < t->n; i++) {
        const piece *p = &t->pieces[i];
        if (p->kind == PIECE_SPECIAL && p->name.data != NULL)
            return lt_json_fail(json, "the template for %s uses '%.*s', which is not among its special_tokens", which,
                                LT_STR_ARG(p->name));
        if (p->kind == PIECE_SECOND && !pair) return lt_json_fail(json, "the template for a single text uses sequence B");
    }
    return LATTICE_OK;
}

static lattice_status read_template(lt_post *post, lt_json *json, const fields *f, lt_arena *arena)
{
    reading single = { post, &post->single, arena }, pair = { post, &post->pair, arena };
    LT_TRY(need(json, f, f->single.data != NULL, "single"));
    LT_TRY(need(json, f, f->pair.data != NULL, "pair"));
    LT_TRY(need(json, f, f->special_tokens.data != NULL, "special_tokens"));
    post->has_template = true;
    LT_TRY(read_raw(post, json, f->single, read_pieces, &single));
    LT_TRY(read_raw(post, json, f->pair, read_pieces, &pair));
    LT_TRY(read_raw(post, json, f->special_tokens, read_special_tokens, &single));
    LT_TRY(check_template(json, &post->single, "a single text", false));
    return check_template(json, &post->pair, "a pair", true);
}

static lattice_status read_processor(lt_post *post, lt_json *json, lt_arena *arena);

static lattice_status read_processors(lt_json *json, void *arg)
{
    reading *r = arg;
    LT_TRY(lt_json_begin_array(json));
    for (;;) {
        bool more;
        LT_TRY(lt_json_next_element(json, &more));
        if (!more) return LATTICE_OK;
        LT_TRY(read_processor(r->post, json, r->arena));
    }
}

/* Nesting is bounded by the JSON reader's depth; each level opens a reader of its own. */
static lattice_status read_processor(lt_post *post, lt_json *json, lt_arena *arena)
{
    fields f = { 0 };
    LT_TRY(read_fields(json, arena, &f));
    bool is_template = lt_str_is(f.type, "TemplateProcessing"), bert = lt_str_is(f.type, "BertProcessing");
    bool roberta = lt_str_is(f.type, "RobertaProcessing");
    if ((is_template || bert || roberta) && post->has_template)
        return lt_fail(json->err, LATTICE_ERR_UNSUPPORTED,
                       "%s: post-processor %.*s after another one that adds tokens is not supported", json->name,
                       LT_STR_ARG(f.type));
    if (is_template) return read_template(post, json, &f, arena);
    if (bert || roberta) return read_cls_sep(post, json, &f, roberta);
    if (lt_str_is(f.type, "ByteLevel")) {
        LT_TRY(need(json, &f, f.has_add_prefix_space, "add_prefix_space"));
        LT_TRY(need(json, &f, f.has_trim_offsets, "trim_offsets"));
        return f.trim_offsets ? add_trim(post, f.add_prefix_space, json->err) : LATTICE_OK;
    }
    if (lt_str_is(f.type, "Sequence")) {
        reading r = { post, NULL, arena };
        LT_TRY(need(json, &f, f.processors.data != NULL, "processors"));
        return read_raw(post, json, f.processors, read_processors, &r);
    }
    return lt_fail(json->err, LATTICE_ERR_UNSUPPORTED, "%s: post-processor '%.*s' is not supported", json->name,
                   LT_STR_ARG(f.type));
}

static lattice_status create(const lattice_allocator *mem, lt_post **post, lattice_error *err)
{
    *post = lt_alloc_zero(mem, sizeof **post);
    if (*post == NULL) return lt_no_memory(err, sizeof **post, "a post-processor");
    (*post)->mem = mem;
    return LATTICE_OK;
}

lattice_status lt_post_read(const lattice_allocator *mem, lt_json *json, lt_post **out, lattice_error *err)
{
    lt_post *post = NULL;
    LT_TRY(create(mem, &post, err));
    lt_arena arena;
    lt_arena_init(&arena, mem);
    lattice_status status = lt_json_peek(json) == LT_JSON_NULL ? lt_json_null(json) : read_processor(post, json, &arena);
    lt_arena_free(&arena);
    if (status != LATTICE_OK) {
        lt_post_free(post);
        return status;
    }
    *out = post;
    return LATTICE_OK;
}

lattice_status lt_post_bert(const lattice_allocator *mem, uint32_t cls, uint32_t sep, lt_post **out, lattice_error *err)
{
    lt_post *post = NULL;
    LT_TRY(create(mem, &post, err));
    lattice_status status = add_cls_sep(post, cls, sep, false, 1, err);
    if (status != LATTICE_OK) {
        lt_post_free(post);
        return status;
    }
    *out = post;
    return LATTICE_OK;
}

void lt_post_free(lt_post *post)
{
    if (post == NULL) return;
    lt_free(post->mem, post->single.pieces);
    lt_free(post->mem, post->pair.pieces);
    lt_free(post->mem, post->ids);
    lt_free(post->mem, post->trims);
    lt_free(post->mem, post);
}

void lt_post_set_spelling(lt_post *post, lt_str (*spelling)(const void *owner, uint32_t id), const void *owner)
{
    post->spelling = spelling;
    post->owner = owner;
}

size_t lt_post_added(const lt_post *post, bool pair)
{
    return pair ? post->pair.added : post->single.added;
}

/* ------------------------------------------------------------------ truncation */

typedef struct cut {
    size_t begin, n;
} cut;

/* Lengths of a pair whose sum is at most `room`: the shorter side stays whole while it fits in half of the room, else each side
 * has half and the odd token goes to the longer one, on a tie to the second. */
static void longest_first(size_t room, size_t *first, size_t *second)
{
    bool swap = *first > *second;
    size_t shorter = swap ? *second : *first, longer;
    longer = shorter > room ? shorter : room - shorter > shorter ? room - shorter : shorter;
    if (shorter > room - (longer < room ? longer : room)) {
        shorter = room / 2;
        longer = shorter + room % 2;
    }
    *first = swap ? longer : shorter;
    *second = swap ? shorter : longer;
}

static bool truncate(const lt_tokens *first, const lt_tokens *second, size_t room, bool left, cut *a, cut *b)
{
    *a = (cut){ 0, first->n };
    *b = (cut){ 0, second != NULL ? second->n : 0 };
    size_t total;
    if (lt_add(a->n, b->n, &total) && total <= room) return false;
    size_t n_first = a->n, n_second = b->n;
    if (second == NULL) {
        n_first = room;
    } else {
        longest_first(room, &n_first, &n_second);
    }
    if (n_first < a->n) *a = (cut){ left ? a->n - n_first : 0, n_first };
    if (n_second < b->n) *b = (cut){ left ? b->n - n_second : 0, n_second };
    return true;
}

/* ------------------------------------------------------------------ trimming */

static bool is_white(uint32_t code)
{
    return (code >= 0x09 && code <= 0x0D) || code == 0x20 || code == 0x85 || code == 0xA0 || code == 0x1680 ||
           (code >= 0x2000 && code <= 0x200A) || code == 0x2028 || code == 0x2029 || code == 0x202F || code == 0x205F ||
           code == 0x3000;
}

#define BYTE_LEVEL_SPACE 0x120u /* the space in GPT-2's alphabet */

/* White characters at both ends of a spelling (a wholly white one counts at both). */
static void count_white(lt_str s, size_t *leading, size_t *trailing)
{
    *leading = *trailing = 0;
    if (s.len == 0 || ((uint8_t)(s.data[0] - 0x21) < 0x5E && (uint8_t)(s.data[s.len - 1] - 0x21) < 0x5E)) return;
    bool only = true;
    for (size_t i = 0; i < s.len;) {
        uint32_t code;
        i += lt_utf8_decode((const uint8_t *)s.data + i, s.len - i, &code);
        bool white = code == BYTE_LEVEL_SPACE || is_white(code);
        only = only && white;
        *leading += only;
        *trailing = white ? *trailing + 1 : 0;
    }
}

static size_t forward(lt_str text, size_t at, size_t end, size_t n)
{
    uint32_t code;
    for (; n > 0 && at < end; n--) at += lt_utf8_decode((const uint8_t *)text.data + at, end - at, &code);
    return at < end ? at : end;
}

/* n characters before `at`; *whole false: there are fewer. */
static size_t backward(lt_str text, size_t at, size_t n, bool *whole)
{
    for (; n > 0 && at > 0; n--) {
        at--;
        for (size_t i = 0; i < 3 && at > 0 && ((uint8_t)text.data[at] & 0xC0) == 0x80; i++) at--;
    }
    *whole = n == 0;
    return at;
}

static void trim_span(const lt_post *post, lt_str text, uint32_t id, bool first, bool add_prefix_space, struct lt_span *span)
{
    if (span->end > text.len || span->start > span->end) return;
    lt_str spelling = { NULL, 0 };
    if (post->spelling != NULL) spelling = post->spelling(post->owner, id);
    if (spelling.data == NULL) spelling = (lt_str){ text.data + span->start, span->end - span->start };
    size_t leading, trailing;
    bool whole;
    count_white(spelling, &leading, &trailing);
    if (leading > 0) {
        /* One space before the first token is the prefix that was added, not one to take away. */
        bool added = (first || span->start == 0) && add_prefix_space && leading == 1;
        if (!added) span->start = (uint32_t)forward(text, span->start, span->end, leading);
    }
    if (trailing == 0) return;
    size_t end = backward(text, span->end, trailing, &whole);
    if (whole) span->end = end > span->start ? (uint32_t)end : span->start;
}

/* ------------------------------------------------------------------ putting together */

#define GIANT 65536 /* tokens */

static void fill(lt_tokens *out, size_t n, uint32_t type_id, uint8_t sequence)
{
    for (size_t i = 0; i < n; i++) out->type_ids[out->n + i] = type_id;
    memset(out->sequence + out->n, sequence, n);
}

static void put_tokens(const lt_post *post, const lt_tokens *from, cut part, lt_str text, uint32_t type_id, uint8_t sequence,
                       const lt_encode_options *options, lt_tokens *out)
{
    if (part.n == 0) return;
    struct lt_span *spans = out->spans + out->n;
    memmove(out->ids + out->n, from->ids + part.begin, part.n * sizeof *out->ids);
    memmove(spans, from->spans + part.begin, part.n * sizeof *spans);
    memmove(out->special + out->n, from->special + part.begin, part.n);
    fill(out, part.n, type_id, sequence);
    for (size_t t = 0; t < post->n_trims && !options->no_spans; t++) {
        for (size_t i = 0; i < part.n; i++)
            trim_span(post, text, out->ids[out->n + i], i == 0, post->trims[t].add_prefix_space, &spans[i]);
    }
    out->n += part.n;
}

static void put_special(const lt_post *post, const piece *p, lt_tokens *out)
{
    if (p->n == 0) return;
    memcpy(out->ids + out->n, post->ids + p->begin, p->n * sizeof *out->ids);
    memset(out->spans + out->n, 0, p->n * sizeof *out->spans);
    memset(out->special + out->n, 1, p->n);
    fill(out, p->n, p->type_id, 255);
    out->n += p->n;
}

/* A giant text's tokens change hands instead of being copied: `out` gets what `first` holds. */
static bool changes_hands(const lt_tokens *first, const lt_tokens *second, const lt_tokens *out, const piece *pieces,
                          size_t n_pieces)
{
    size_t uses = 0;
    for (size_t i = 0; i < n_pieces; i++) uses += pieces[i].kind != PIECE_SPECIAL;
    return first->n >= GIANT && second == NULL && uses == 1 && first->mem == out->mem;
}

/* Moves the part up by the tokens that go before it. */
static void make_way(lt_tokens *out, const piece *pieces, bool add_special, cut *part)
{
    size_t lead = 0;
    for (size_t i = 0; add_special && pieces[i].kind == PIECE_SPECIAL; i++) lead += pieces[i].n;
    memmove(out->ids + lead, out->ids + part->begin, part->n * sizeof *out->ids);
    memmove(out->spans + lead, out->spans + part->begin, part->n * sizeof *out->spans);
    memmove(out->special + lead, out->special + part->begin, part->n);
    part->begin = lead;
}

lattice_status lt_post_apply(const lt_post *post, lt_tokens *first, const lt_tokens *second, lt_str text_a, lt_str text_b,
                             const lt_encode_options *options, lt_tokens *out, lattice_error *err)
{
    static const piece plain[] = { { PIECE_FIRST, 0, 0, 0, { NULL, 0 } }, { PIECE_SECOND, 1, 0, 0, { NULL, 0 } } };
    const template *t = second != NULL ? &post->pair : &post->single;
    bool use_template = post->has_template && (options->add_special || !post->keep_types);
    const piece *pieces = use_template ? t->pieces : plain;
    size_t n_pieces = use_template ? t->n : second != NULL ? 2 : 1;
    size_t added = options->add_special ? t->added : 0;
    if (options->max_length != 0 && options->max_length < added)
        return lt_fail(err, LATTICE_ERR_INVALID_ARGUMENT, "max_length %zu leaves no room for the %zu special tokens",
                       options->max_length, added);
    cut a, b;
    size_t room = options->max_length == 0 ? SIZE_MAX : options->max_length - added;
    bool truncated = truncate(first, second, room, options->truncate_left, &a, &b);

    size_t total = added;
    for (size_t i = 0; i < n_pieces; i++) {
        if (pieces[i].kind != PIECE_SPECIAL && !lt_add(total, pieces[i].kind == PIECE_FIRST ? a.n : b.n, &total))
            return lt_no_memory(err, SIZE_MAX, "tokens");
    }
    const lt_tokens *from = first;
    bool giant = changes_hands(first, second, out, pieces, n_pieces);
    if (giant) {
        lt_tokens unused = *out;
        *out = *first;
        *first = unused;
        first->n = 0;
        from = out;
    }
    if (!lt_tokens_reserve(out, total)) return lt_no_memory(err, total * sizeof *out->spans, "tokens");
    if (giant) make_way(out, pieces, options->add_special, &a);
    out->n = 0;
    out->truncated = truncated;
    for (size_t i = 0; i < n_pieces; i++) {
        const piece *p = &pieces[i];
        switch (p->kind) {
        case PIECE_FIRST: put_tokens(post, from, a, text_a, p->type_id, 0, options, out); break;
        case PIECE_SECOND: put_tokens(post, second, b, text_b, p->type_id, 1, options, out); break;
        case PIECE_SPECIAL:
            if (options->add_special) put_special(post, p, out);
            break;
        }
    }
    return LATTICE_OK;
}
