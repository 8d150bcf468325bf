/* Reading the `model` object, and the way of a word: cache, alphabet, kind; see model.h and subword.h.
 *
 * The object is read once, straight into the tables. Its members may come in any order: merges that stand before what they
 * need are passed over and read afterwards. */
#include "text/subword.h"
#include "base/utf8.h"
#include "text/byte_alphabet.h"

#include <math.h>

static const char *const type_names[] = { "WordPiece", "BPE", "Unigram" };

typedef struct reading {
    lt_subword *model;
    lt_json *json;
    lt_str merges; /* the text of the list; data NULL: none */
    bool merges_read, merges_wait;
    bool has_vocab, is_list;
    bool has_unk_id, has_unk_token, has_prefix, has_max_chars;
    size_t unk_id;
} reading;

static lattice_status copy_string(lt_subword *model, lt_json *json, lt_str *out)
{
    lt_str s;
    if (lt_json_peek(json) == LT_JSON_NULL) {
        *out = (lt_str){ NULL, 0 };
        return lt_json_null(json);
    }
    LT_TRY(lt_json_string(json, &s));
    const char *copy = lt_arena_copy(&model->strings, s.data, s.len);
    if (copy == NULL) return lt_no_memory(json->err, s.len, "a tokenizer");
    *out = (lt_str){ copy, s.len };
    return LATTICE_OK;
}

static lattice_status read_type(reading *r)
{
    lt_str type;
    LT_TRY(lt_json_string(r->json, &type));
    for (size_t i = 0; i < sizeof type_names / sizeof *type_names; i++) {
        if (!lt_str_is(type, type_names[i])) continue;
        r->model->type = (lt_subword_type)i;
        return LATTICE_OK;
    }
    return lt_fail(r->json->err, LATTICE_ERR_UNSUPPORTED, "%s: model type '%.*s' is not supported", r->json->name,
                   LT_STR_ARG(type));
}

static lattice_status read_vocab_object(reading *r)
{
    LT_TRY(lt_json_begin_object(r->json));
    for (;;) {
        lt_str spelling;
        bool more;
        uint32_t id;
        LT_TRY(lt_json_next_member(r->json, &spelling, &more));
        if (!more) return LATTICE_OK;
        LT_TRY(lt_json_uint32(r->json, &id));
        LT_TRY(lt_vocab_add(&r->model->vocab, r->json->name, spelling, id, r->json->err));
    }
}

/* [["spelling", score], …]: the place in the list is the id. */
static lattice_status read_vocab_list(reading *r)
{
    lt_subword *model = r->model;
    lt_unigram *u = &model->unigram;
    lt_json *json = r->json;
    LT_TRY(lt_json_begin_array(json));
    for (uint32_t id = 0;; id++) {
        bool more;
        lt_str spelling;
        double score;
        LT_TRY(lt_json_next_element(json, &more));
        if (!more) return LATTICE_OK;
        LT_TRY(lt_json_begin_array(json));
        LT_TRY(lt_json_next_element(json, &more));
        if (!more) return lt_json_fail(json, "token %u of the vocabulary is not a pair of spelling and score", id);
        LT_TRY(lt_json_string(json, &spelling));
        LT_TRY(lt_vocab_add(&model->vocab, json->name, spelling, id, json->err));
        LT_TRY(lt_json_next_element(json, &more));
        if (!more) return lt_json_fail(json, "token %u of the vocabulary has no score", id);
        LT_TRY(lt_json_double(json, &score));
        if (!isfinite(score)) return lt_json_fail(json, "the score of token %u is not finite", id);
        if (!LT_GROW(model->mem, u->scores, u->capacity, u->n_scores + 1))
            return lt_no_memory(json->err, u->n_scores * sizeof *u->scores, "a tokenizer");
        u->scores[u->n_scores++] = score;
        LT_TRY(lt_json_next_element(json, &more));
        if (more) return lt_json_fail(json, "token %u of the vocabulary is not a pair of spelling and score", id);
    }
}

static lattice_status read_vocab(reading *r)
{
    r->has_vocab = true;
    switch (lt_json_peek(r->json)) {
    case LT_JSON_OBJECT:
        LT_TRY(read_vocab_object(r));
        return lt_vocab_index(&r->model->vocab, r->json->name, LT_VOCAB_TWICE_REFUSED, r->json->err);
    case LT_JSON_ARRAY:
        r->is_list = true;
        LT_TRY(read_vocab_list(r));
        return lt_vocab_index(&r->model->vocab, r->json->name, LT_VOCAB_TWICE_LATER_WINS, r->json->err);
    default: return lt_json_fail(r->json, "the model's vocab is neither an object nor a list");
    }
}

/* Merges need the vocabulary, and to be wanted; else their text is kept for later. They also need the continuing prefix, but most
 * files without one have no such member at all: where it has not come yet there is taken to be none, and if that fails or proves
 * wrong the list is read again at the end. */
static lattice_status read_merges(reading *r)
{
    if (r->model->type != LT_BPE || !r->has_vocab || r->is_list) return lt_json_raw(r->json, &r->merges);
    if (lt_json_peek(r->json) != LT_JSON_ARRAY) return lt_json_fail(r->json, "the model's merges are not a list");
    size_t begin = r->json->pos;
    LT_TRY(lt_bpe_read_merges(r->model, r->json, r->has_prefix ? NULL : &r->merges_wait, r->json->err));
    r->merges = (lt_str){ (const char *)r->json->text + begin, r->json->pos - begin };
    r->merges_read = !r->merges_wait;
    return LATTICE_OK;
}

static lattice_status read_merges_again(reading *r)
{
    lt_json json;
    lt_json_open(&json, r->model->mem, r->json->name, r->json->text, r->json->size, r->json->err);
    json.pos = (size_t)((const uint8_t *)r->merges.data - r->json->text);
    lattice_status status = lt_json_peek(&json) == LT_JSON_ARRAY ? lt_bpe_read_merges(r->model, &json, NULL, r->json->err)
                                                                 : lt_json_fail(&json, "the model's merges are not a list");
    lt_json_close(&json);
    return status;
}

static lattice_status read_flag(lt_json *json, bool *out)
{
    *out = false;
    return lt_json_peek(json) == LT_JSON_NULL ? lt_json_null(json) : lt_json_bool(json, out);
}

static lattice_status read_dropout(lt_json *json)
{
    double dropout;
    if (lt_json_peek(json) == LT_JSON_NULL) return lt_json_null(json);
    LT_TRY(lt_json_double(json, &dropout));
    if (dropout == 0.0) return LATTICE_OK;
    return lt_fail(json->err, LATTICE_ERR_UNSUPPORTED, "%s: BPE with dropout %g is not supported", json->name, dropout);
}

static lattice_status read_member(reading *r, lt_str key)
{
    lt_subword *model = r->model;
    lt_json *json = r->json;
    if (lt_str_is(key, "type")) return read_type(r);
    if (lt_str_is(key, "vocab")) return read_vocab(r);
    if (lt_str_is(key, "merges")) return read_merges(r);
    if (lt_str_is(key, "dropout")) return read_dropout(json);
    if (lt_str_is(key, "fuse_unk")) return read_flag(json, &model->bpe.fuse_unk);
    if (lt_str_is(key, "ignore_merges")) return read_flag(json, &model->bpe.ignore_merges);
    if (lt_str_is(key, "end_of_word_suffix")) return copy_string(model, json, &model->suffix);
    if (lt_str_is(key, "byte_fallback")) {
        LT_TRY(read_flag(json, &model->bpe.byte_fallback));
        model->unigram.byte_fallback = model->bpe.byte_fallback;
        return LATTICE_OK;
    }
    if (lt_str_is(key, "unk_token")) {
        r->has_unk_token = true;
        return copy_string(model, json, &model->unk_token);
    }
    if (lt_str_is(key, "continuing_subword_prefix")) {
        r->has_prefix = true;
        LT_TRY(copy_string(model, json, &model->prefix));
        if (model->prefix.len > 0) r->merges_read = false; /* it decides what a merge makes */
        return LATTICE_OK;
    }
    if (lt_str_is(key, "max_input_chars_per_word")) {
        r->has_max_chars = true;
        return lt_json_size(json, &model->wordpiece.max_chars);
    }
    if (lt_str_is(key, "unk_id")) {
        r->has_unk_id = lt_json_peek(json) != LT_JSON_NULL;
        return r->has_unk_id ? lt_json_size(json, &r->unk_id) : lt_json_null(json);
    }
    return lt_json_skip(json);
}

static lattice_status missing(reading *r, const char *field)
{
    return lt_json_fail(r->json, "the %s model has no '%s'", type_names[r->model->type], field);
}

static void find_unk_token(lt_subword *model)
{
    model->unk_id = model->unk_token.data == NULL ? LT_VOCAB_NO_ID
                                                  : lt_vocab_find(&model->vocab, model->unk_token.data, model->unk_token.len);
}

static lattice_status check(reading *r)
{
    lt_subword *model = r->model;
    if (!r->has_vocab) return lt_json_fail(r->json, "the model has no 'vocab'");
    if (model->type == LT_SUBWORD_UNKNOWN) model->type = r->is_list ? LT_UNIGRAM : r->merges.data != NULL ? LT_BPE : LT_WORDPIECE;
    if (r->is_list != (model->type == LT_UNIGRAM))
        return lt_json_fail(r->json, "the vocab of a %s model is %s", type_names[model->type],
                            r->is_list ? "a list, not an object" : "an object, not a list");
    switch (model->type) {
    case LT_WORDPIECE:
        if (model->unk_token.data == NULL) return missing(r, "unk_token");
        if (model->prefix.data == NULL) return missing(r, "continuing_subword_prefix");
        if (!r->has_max_chars) return missing(r, "max_input_chars_per_word");
        break;
    case LT_BPE:
        if (r->merges.data == NULL) return missing(r, "merges");
        if (!r->merges_read) LT_TRY(read_merges_again(r));
        break;
    default:
        if (!r->has_unk_id) return LATTICE_OK;
        if (r->unk_id >= model->unigram.n_scores)
            return lt_json_fail(r->json, "unk_id %zu is outside the vocabulary of %zu tokens", r->unk_id,
                                model->unigram.n_scores);
        model->unk_id = (uint32_t)r->unk_id;
        return LATTICE_OK;
    }
    find_unk_token(model);
    return LATTICE_OK;
}

static lattice_status read_object(reading *r)
{
    if (lt_json_peek(r->json) != LT_JSON_OBJECT) return lt_json_fail(r->json, "the model is not an object");
    LT_TRY(lt_json_begin_object(r->json));
    for (;;) {
        lt_str key;
        bool more;
        LT_TRY(lt_json_next_member(r->json, &key, &more));
        if (!more) break;
        LT_TRY(read_member(r, key));
    }
    return check(r);
}

static lattice_status create(const lattice_allocator *mem, const char *name, lt_subword **out, lattice_error *err)
{
    lt_subword *model = lt_alloc_zero(mem, sizeof *model);
    if (model == NULL) return lt_no_memory(err, sizeof *model, "a tokenizer");
    model->mem = mem;
    model->type = LT_SUBWORD_UNKNOWN;
    model->unk_id = LT_VOCAB_NO_ID;
    lt_vocab_init(&model->vocab, mem);
    lt_arena_init(&model->strings, mem);
    model->name = lt_arena_copy(&model->strings, name, strlen(name));
    if (model->name == NULL) {
        lt_subword_free(model);
        return lt_no_memory(err, strlen(name), "a tokenizer");
    }
    *out = model;
    return LATTICE_OK;
}

lattice_status lt_subword_read(const lattice_allocator *mem, lt_json *json, lt_subword **model, lattice_error *err)
{
    reading r = { .json = json };
    LT_TRY(create(mem, json->name, &r.model, err));
    lattice_status status = read_object(&r);
    if (status != LATTICE_OK) {
        lt_subword_free(r.model);
        return status;
    }
    *model = r.model;
    return LATTICE_OK;
}

/* A line ends at LF, CR or CR LF, as text files do where these files are written. */
static lattice_status read_lines(lt_subword *model, const uint8_t *text, size_t size, lattice_error *err)
{
    size_t valid = lt_utf8_valid_prefix(text, size);
    if (valid != size) return lt_fail(err, LATTICE_ERR_FORMAT, "%s: invalid UTF-8 at byte %zu", model->name, valid);
    uint32_t id = 0;
    for (size_t begin = 0; begin < size; id++) {
        size_t end = begin;
        while (end < size && text[end] != '\n' && text[end] != '\r') end++;
        LT_TRY(lt_vocab_add(&model->vocab, model->name, (lt_str){ (const char *)text + begin, end - begin }, id, err));
        begin = end + 1 < size && text[end] == '\r' && text[end + 1] == '\n' ? end + 2 : end + 1;
    }
    return LATTICE_OK;
}

lattice_status lt_subword_read_vocab_txt(const lattice_allocator *mem, const char *path, const void *text, size_t size,
                                         lt_subword **out, lattice_error *err)
{
    lt_subword *model = NULL;
    LT_TRY(create(mem, path, &model, err));
    model->type = LT_WORDPIECE;
    model->wordpiece.max_chars = 100;
    model->prefix = LT_STR("##");
    model->unk_token = LT_STR("[UNK]");
    lattice_status status = read_lines(model, text, size, err);
    if (status == LATTICE_OK) status = lt_vocab_index(&model->vocab, path, LT_VOCAB_TWICE_LATER_WINS, err);
    if (status != LATTICE_OK) {
        lt_subword_free(model);
        return status;
    }
    find_unk_token(model);
    *out = model;
    return LATTICE_OK;
}

lattice_status lt_subword_prepare(lt_subword *model, bool byte_level, lattice_error *err)
{
    model->byte_level = byte_level;
    switch (model->type) {
    case LT_WORDPIECE: return lt_wordpiece_prepare(model, err);
    case LT_BPE: return lt_bpe_prepare(model, err);
    default: return lt_unigram_prepare(model, err);
    }
}

void lt_subword_free(lt_subword *model)
{
    if (model == NULL) return;
    const lattice_allocator *mem = model->mem;
    lt_vocab_free(&model->vocab);
    lt_free(mem, model->bpe.merges);
    lt_free(mem, model->unigram.scores);
    lt_trie_free(&model->unigram.trie);
    lt_arena_free(&model->strings);
    lt_free(mem, model);
}

const char *lt_subword_kind(const lt_subword *model)
{
    return type_names[model->type];
}

bool lt_subword_falls_back_to_bytes(const lt_subword *model)
{
    return model->type == LT_BPE && model->bpe.byte_fallback;
}

size_t lt_subword_size(const lt_subword *model)
{
    return model->vocab.size;
}

lt_str lt_subword_token(const lt_subword *model, uint32_t id)
{
    return lt_vocab_token(&model->vocab, id);
}

bool lt_subword_find(const lt_subword *model, lt_str spelling, uint32_t *id)
{
    uint32_t found = lt_vocab_find(&model->vocab, spelling.data, spelling.len);
    if (found == LT_VOCAB_NO_ID) return false;
    *id = found;
    return true;
}

void lt_subword_find_byte_tokens(const lt_subword *model, uint32_t tokens[256])
{
    static const char digits[] = "0123456789ABCDEF";
    for (uint32_t byte = 0; byte < 256; byte++) {
        char spelling[6] = { '<', '0', 'x', digits[byte >> 4], digits[byte & 15], '>' };
        tokens[byte] = lt_vocab_find(&model->vocab, spelling, sizeof spelling);
    }
}

lattice_status lt_subword_no_unknown(const lt_subword *model, lattice_error *err)
{
    if (model->unk_token.data == NULL)
        return lt_fail(err, LATTICE_ERR_FORMAT, "%s: the text has an unknown character, and the %s model no unk_id", model->name,
                       type_names[model->type]);
    return lt_fail(err, LATTICE_ERR_FORMAT, "%s: the text has an unknown word, and unk_token '%.*s' is not in the vocabulary",
                   model->name, LT_STR_ARG(model->unk_token));
}

/* ------------------------------------------------------------------ encoding */

lattice_status lt_subword_scratch_create(const lt_subword *model, lt_subword_scratch **out, lattice_error *err)
{
    lt_subword_scratch *scratch = lt_alloc_zero(model->mem, sizeof *scratch);
    if (scratch == NULL) return lt_no_memory(err, sizeof *scratch, "a tokenizer's scratch");
    scratch->mem = model->mem;
    scratch->pieces.mem = model->mem;
    scratch->window = LT_BPE_WINDOW;
    lt_buf_init(&scratch->text, model->mem);
    lattice_status status = lt_word_cache_create(&scratch->cache, model->mem, err);
    if (status != LATTICE_OK) {
        lt_subword_scratch_free(scratch);
        return status;
    }
    *out = scratch;
    return LATTICE_OK;
}

void lt_subword_scratch_free(lt_subword_scratch *scratch)
{
    if (scratch == NULL) return;
    lt_word_cache_free(&scratch->cache);
    lt_buf_free(&scratch->text);
    lt_free(scratch->mem, scratch->units);
    lt_free(scratch->mem, scratch->symbols);
    lt_free(scratch->mem, scratch->tail);
    lt_free(scratch->mem, scratch->pairs);
    lt_free(scratch->mem, scratch->first_pairs);
    lt_free(scratch->mem, scratch->heap);
    lt_free(scratch->mem, scratch->nodes);
    lt_free(scratch->mem, scratch->pieces.data);
    lt_free(scratch->mem, scratch);
}

static lattice_status encode_kind(const lt_subword *model, lt_subword_scratch *scratch, const uint8_t *word, size_t size,
                                  lt_pieces *out, lattice_error *err)
{
    switch (model->type) {
    case LT_WORDPIECE: return lt_wordpiece_encode(model, scratch, word, size, out, err);
    case LT_BPE: return lt_bpe_encode(model, scratch, word, size, out, err);
    default: return lt_unigram_encode(model, scratch, word, size, out, err);
    }
}

/* WordPiece and Unigram behind a byte-level pre-tokenizer (no published model does it): the word is put into GPT-2's alphabet,
 * and the ranges are put back to bytes. */
static lattice_status encode_translated(const lt_subword *model, lt_subword_scratch *scratch, const uint8_t *word, size_t size,
                                        lt_pieces *out, lattice_error *err)
{
    lt_buf text;
    lt_buf_init(&text, scratch->mem);
    for (size_t i = 0; i < size; i++) {
        uint8_t unit[4];
        lt_buf_append(&text, unit, lt_utf8_encode(lt_byte_to_char(word[i]), unit));
    }
    lt_pieces pieces = { .mem = scratch->mem };
    lattice_status status = text.failed ? lt_no_memory(err, size, "a word")
                                        : encode_kind(model, scratch, (const uint8_t *)text.data, text.len, &pieces, err);
    for (size_t i = 0, byte = 0, at = 0; status == LATTICE_OK && i < pieces.n; i++) {
        const lt_piece *piece = &pieces.data[i];
        if (piece->start < at) byte = at = 0; /* the ranges of byte tokens repeat */
        for (; at < piece->start; at += lt_utf8_size((uint8_t)text.data[at])) byte++;
        uint32_t start = (uint32_t)byte;
        for (; at < piece->end; at += lt_utf8_size((uint8_t)text.data[at])) byte++;
        if (!lt_pieces_add(out, piece->id, start, byte)) status = lt_no_memory(err, sizeof *piece, "tokens");
    }
    lt_free(scratch->mem, pieces.data);
    lt_buf_free(&text);
    return status;
}

/* A giant word's tables are not kept: a scratch lives as long as its thread. */
static void trim(lt_subword_scratch *scratch)
{
    const lattice_allocator *mem = scratch->mem;
    const size_t keep = 65536;
    if (scratch->symbols_capacity > keep) {
        lt_free(mem, scratch->units);
        lt_free(mem, scratch->symbols);
        scratch->units = NULL;
        scratch->symbols = NULL;
        scratch->units_capacity = scratch->symbols_capacity = 0;
    }
    if (scratch->pairs_capacity > keep) {
        lt_free(mem, scratch->pairs);
        lt_free(mem, scratch->first_pairs);
        lt_free(mem, scratch->heap);
        scratch->pairs = NULL;
        scratch->first_pairs = scratch->heap = NULL;
        scratch->pairs_capacity = scratch->first_pairs_capacity = scratch->heap_capacity = 0;
    }
    if (scratch->nodes_capacity > keep) {
        lt_free(mem, scratch->nodes);
        scratch->nodes = NULL;
        scratch->nodes_capacity = 0;
    }
    if (scratch->pieces.capacity > keep) {
        lt_free(mem, scratch->pieces.data);
        scratch->pieces = (lt_pieces){ .mem = mem };
    }
}

lattice_status lt_subword_encode(const lt_subword *model, lt_subword_scratch *scratch, const uint8_t *span, size_t size,
                                 lt_pieces *out, lattice_error *err)
{
    bool found;
    if (!lt_word_cache_get(&scratch->cache, span, size, out, &found)) return lt_no_memory(err, sizeof(lt_piece), "tokens");
    if (found) return LATTICE_OK;
    if (size >= UINT32_MAX) return lt_fail(err, LATTICE_ERR_TOO_LONG, "a word of %zu bytes", size);
    size_t first = out->n;
    out->taken = false;
    bool translated = model->byte_level && model->type != LT_BPE;
    LT_TRY((translated ? encode_translated : encode_kind)(model, scratch, span, size, out, err));
    const lt_piece *pieces = out->n > first ? out->data + first : NULL; /* a word of units without tokens gives none */
    lt_word_cache_put(&scratch->cache, span, size, pieces, out->n - first);
    if (size > 65536) trim(scratch);
    return LATTICE_OK;
}
