/* Decoders: a chain of steps from a list of spellings to a list of spellings, joined at the end; see decoder.h.
 *
 * Each step does what Hugging Face tokenizers' decoder of that name does to a list; a Sequence is its members one after the
 * other. A list is one buffer and the ends of its items, and two of them take turns. ByteLevel alone, the usual case for BPE,
 * goes straight to bytes. */
#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include "base/utf8.h"
#include "text/byte_alphabet.h"
#include "text/decoder.h"

typedef enum step_kind {
    STEP_BYTE_LEVEL,
    STEP_WORDPIECE,
    STEP_METASPACE,
    STEP_BPE,
    STEP_REPLACE,
    STEP_BYTE_FALLBACK,
    STEP_FUSE,
    STEP_STRIP,
    STEP_CTC,
} step_kind;

typedef struct step {
    step_kind kind;
    lt_str
        text; /* WordPiece's prefix, Metaspace's replacement, BPE's suffix, Replace's string, Strip's character, CTC's padding */
    lt_str content; /* Replace's replacement, CTC's word delimiter */
    bool cleanup, drop_first;
    size_t start, stop;
    pcre2_code *regex; /* Replace */
} step;

struct lt_decoder {
    const lattice_allocator *mem;
    lt_arena strings;
    step *steps;
    size_t n, capacity;
    bool joined_by_spaces; /* no decoder at all */
    pcre2_general_context *pcre2;
};

/* ------------------------------------------------------------------ reading */

typedef struct fields {
    lt_str type, text, content, pattern, decoders;
    lt_str replacement, prepend_scheme, prefix, suffix, pad_token, word_delimiter;
    bool has_start, has_stop, has_cleanup, has_prefix_space, has_trim_offsets;
    size_t start, stop;
    bool cleanup, prefix_space, trim_offsets;
} fields;

static lattice_status copy(lt_decoder *decoder, lt_json *json, lt_str *out)
{
    lt_str s;
    LT_TRY(lt_json_string(json, &s));
    const char *data = lt_arena_copy(&decoder->strings, s.data, s.len);
    if (data == NULL) return lt_no_memory(json->err, s.len, "a decoder");
    *out = (lt_str){ data, s.len };
    return LATTICE_OK;
}

static lattice_status read_bool(lt_json *json, bool *there, bool *out)
{
    *there = true;
    return lt_json_bool(json, out);
}

static lattice_status read_size(lt_json *json, bool *there, size_t *out)
{
    *there = true;
    return lt_json_size(json, out);
}

static lattice_status read_field(lt_decoder *decoder, lt_json *json, lt_str key, fields *f)
{
    const struct {
        const char *name;
        lt_str *out;
    } strings[] = {
        { "type", &f->type },
        { "prefix", &f->prefix },
        { "suffix", &f->suffix },
        { "replacement", &f->replacement },
        { "prepend_scheme", &f->prepend_scheme },
        { "content", &f->content },
        { "pad_token", &f->pad_token },
        { "word_delimiter_token", &f->word_delimiter },
    };
    for (size_t i = 0; i < sizeof strings / sizeof *strings; i++) {
        if (lt_str_is(key, strings[i].name)) return copy(decoder, json, strings[i].out);
    }
    if (lt_str_is(key, "pattern")) return lt_json_raw(json, &f->pattern);
    if (lt_str_is(key, "decoders")) return lt_json_raw(json, &f->decoders);
    if (lt_str_is(key, "start")) return read_size(json, &f->has_start, &f->start);
    if (lt_str_is(key, "stop")) return read_size(json, &f->has_stop, &f->stop);
    if (lt_str_is(key, "cleanup")) return read_bool(json, &f->has_cleanup, &f->cleanup);
    if (lt_str_is(key, "trim_offsets")) return read_bool(json, &f->has_trim_offsets, &f->trim_offsets);
    if (lt_str_is(key, "add_prefix_space") && lt_json_peek(json) != LT_JSON_NULL)
        return read_bool(json, &f->has_prefix_space, &f->prefix_space);
    return lt_json_skip(json);
}

static lattice_status read_fields(lt_decoder *decoder, lt_json *json, fields *f)
{
    if (lt_json_peek(json) != LT_JSON_OBJECT) return lt_json_fail(json, "a decoder is not an object");
    LT_TRY(lt_json_begin_object(json));
    for (;;) {
        lt_str key;
        bool more;
        LT_TRY(lt_json_next_member(json, &key, &more));
        if (!more) break;
        LT_TRY(read_field(decoder, json, key, f));
    }
    return f->type.data != NULL ? LATTICE_OK : lt_json_fail(json, "a decoder has no 'type'");
}

static lattice_status need(lt_json *json, const fields *f, bool there, const char *field)
{
    return there ? LATTICE_OK : lt_json_fail(json, "decoder %.*s has no '%s'", LT_STR_ARG(f->type), field);
}

static lattice_status add_step(lt_decoder *decoder, step s, lattice_error *err)
{
    if (!LT_GROW(decoder->mem, decoder->steps, decoder->capacity, decoder->n + 1))
        return lt_no_memory(err, sizeof s, "a decoder");
    decoder->steps[decoder->n++] = s;
    return LATTICE_OK;
}

static bool one_character(lt_str s)
{
    uint32_t code;
    return s.len > 0 && lt_utf8_decode((const uint8_t *)s.data, s.len, &code) == s.len;
}

static lattice_status read_metaspace(lt_decoder *decoder, lt_json *json, const fields *f)
{
    LT_TRY(need(json, f, f->replacement.data != NULL, "replacement"));
    if (!one_character(f->replacement)) return lt_json_fail(json, "Metaspace's replacement is not one character");
    bool never = lt_str_is(f->prepend_scheme, "never");
    if (f->prepend_scheme.data != NULL && !never && !lt_str_is(f->prepend_scheme, "always") &&
        !lt_str_is(f->prepend_scheme, "first"))
        return lt_json_fail(json, "Metaspace's prepend_scheme is '%.*s'", LT_STR_ARG(f->prepend_scheme));
    if (f->has_prefix_space && !f->prefix_space && !never)
        return lt_json_fail(json, "Metaspace's add_prefix_space contradicts its prepend_scheme");
    return add_step(decoder, (step){ .kind = STEP_METASPACE, .text = f->replacement, .drop_first = !never }, json->err);
}

static void *pcre2_allocate(size_t size, void *mem)
{
    return lt_alloc(mem, size);
}
static void pcre2_release(void *ptr, void *mem)
{
    lt_free(mem, ptr);
}

/* PCRE2 takes the allocator as a plain pointer; it is only read. */
static pcre2_general_context *pcre2_context(const lattice_allocator *mem)
{
    union {
        const lattice_allocator *read;
        void *given;
    } user = { mem };
    return pcre2_general_context_create(pcre2_allocate, pcre2_release, user.given);
}

static lattice_status compile(lt_decoder *decoder, lt_json *json, lt_str pattern, pcre2_code **regex)
{
    if (decoder->pcre2 == NULL) decoder->pcre2 = pcre2_context(decoder->mem);
    pcre2_compile_context *context = decoder->pcre2 != NULL ? pcre2_compile_context_create(decoder->pcre2) : NULL;
    if (context == NULL) return lt_no_memory(json->err, pattern.len, "a decoder");
    int code;
    PCRE2_SIZE at;
    *regex = pcre2_compile((PCRE2_SPTR)pattern.data, pattern.len, PCRE2_UTF | PCRE2_UCP, &code, &at, context);
    pcre2_compile_context_free(context);
    if (*regex != NULL) return LATTICE_OK;
    if (code == PCRE2_ERROR_HEAP_FAILED) return lt_no_memory(json->err, pattern.len, "a decoder");
    char message[128];
    pcre2_get_error_message(code, (PCRE2_UCHAR *)message, sizeof message);
    return lt_json_fail(json, "expression '%.*s' of a Replace decoder, at byte %zu: %s", LT_STR_ARG(pattern), (size_t)at,
                        message);
}

/* {"String": "…"} or {"Regex": "…"} */
static lattice_status read_pattern(lt_decoder *decoder, lt_json *json, step *s, lt_str *regex)
{
    lt_str key;
    bool more;
    if (lt_json_peek(json) != LT_JSON_OBJECT) return lt_json_fail(json, "the pattern of a Replace decoder is not an object");
    LT_TRY(lt_json_begin_object(json));
    LT_TRY(lt_json_next_member(json, &key, &more));
    bool is_regex = more && lt_str_is(key, "Regex");
    if (!is_regex && !(more && lt_str_is(key, "String")))
        return lt_json_fail(json, "the pattern of a Replace decoder is neither a String nor a Regex");
    return copy(decoder, json, is_regex ? regex : &s->text);
}

static lattice_status read_replace(lt_decoder *decoder, lt_json *json, const fields *f)
{
    LT_TRY(need(json, f, f->pattern.data != NULL, "pattern"));
    LT_TRY(need(json, f, f->content.data != NULL, "content"));
    step s = { .kind = STEP_REPLACE, .content = f->content };
    lt_str regex = { NULL, 0 };
    lt_json inner;
    lt_json_open(&inner, decoder->mem, json->name, json->text, json->size, json->err);
    inner.pos = (size_t)((const uint8_t *)f->pattern.data - json->text);
    lattice_status status = read_pattern(decoder, &inner, &s, &regex);
    lt_json_close(&inner);
    LT_TRY(status);
    /* First the place, then the expression, so that one of them always owns it. */
    LT_TRY(add_step(decoder, s, json->err));
    return regex.data != NULL ? compile(decoder, json, regex, &decoder->steps[decoder->n - 1].regex) : LATTICE_OK;
}

static lattice_status read_decoder(lt_decoder *decoder, lt_json *json);

static lattice_status read_list(lt_decoder *decoder, lt_json *json)
{
    LT_TRY(lt_json_begin_array(json));
    for (;;) {
        bool more;
        LT_TRY(lt_json_next_element(json, &more));
        if (!more) return LATTICE_OK;
        LT_TRY(read_decoder(decoder, json));
    }
}

/* Nesting is bounded by the JSON reader's depth. */
static lattice_status read_sequence(lt_decoder *decoder, lt_json *json, const fields *f)
{
    LT_TRY(need(json, f, f->decoders.data != NULL, "decoders"));
    lt_json inner;
    lt_json_open(&inner, decoder->mem, json->name, json->text, json->size, json->err);
    inner.pos = (size_t)((const uint8_t *)f->decoders.data - json->text);
    lattice_status status = read_list(decoder, &inner);
    lt_json_close(&inner);
    return status;
}

static lattice_status read_decoder(lt_decoder *decoder, lt_json *json)
{
    fields f = { 0 };
    LT_TRY(read_fields(decoder, json, &f));
    if (lt_str_is(f.type, "Sequence")) return read_sequence(decoder, json, &f);
    if (lt_str_is(f.type, "Metaspace")) return read_metaspace(decoder, json, &f);
    if (lt_str_is(f.type, "Replace")) return read_replace(decoder, json, &f);
    if (lt_str_is(f.type, "Fuse")) return add_step(decoder, (step){ .kind = STEP_FUSE }, json->err);
    if (lt_str_is(f.type, "ByteFallback")) return add_step(decoder, (step){ .kind = STEP_BYTE_FALLBACK }, json->err);
    if (lt_str_is(f.type, "ByteLevel")) {
        LT_TRY(need(json, &f, f.has_prefix_space, "add_prefix_space"));
        LT_TRY(need(json, &f, f.has_trim_offsets, "trim_offsets"));
        return add_step(decoder, (step){ .kind = STEP_BYTE_LEVEL }, json->err);
    }
    if (lt_str_is(f.type, "WordPiece")) {
        LT_TRY(need(json, &f, f.prefix.data != NULL, "prefix"));
        LT_TRY(need(json, &f, f.has_cleanup, "cleanup"));
        return add_step(decoder, (step){ .kind = STEP_WORDPIECE, .text = f.prefix, .cleanup = f.cleanup }, json->err);
    }
    if (lt_str_is(f.type, "BPEDecoder")) {
        LT_TRY(need(json, &f, f.suffix.data != NULL, "suffix"));
        return add_step(decoder, (step){ .kind = STEP_BPE, .text = f.suffix }, json->err);
    }
    if (lt_str_is(f.type, "Strip")) {
        LT_TRY(need(json, &f, f.content.data != NULL, "content"));
        LT_TRY(need(json, &f, f.has_start, "start"));
        LT_TRY(need(json, &f, f.has_stop, "stop"));
        if (!one_character(f.content)) return lt_json_fail(json, "the content of a Strip decoder is not one character");
        return add_step(decoder, (step){ .kind = STEP_STRIP, .text = f.content, .start = f.start, .stop = f.stop }, json->err);
    }
    if (lt_str_is(f.type, "CTC")) {
        LT_TRY(need(json, &f, f.pad_token.data != NULL, "pad_token"));
        LT_TRY(need(json, &f, f.word_delimiter.data != NULL, "word_delimiter_token"));
        LT_TRY(need(json, &f, f.has_cleanup, "cleanup"));
        return add_step(decoder,
                        (step){ .kind = STEP_CTC, .text = f.pad_token, .content = f.word_delimiter, .cleanup = f.cleanup },
                        json->err);
    }
    return lt_fail(json->err, LATTICE_ERR_UNSUPPORTED, "%s: decoder '%.*s' is not supported", json->name, LT_STR_ARG(f.type));
}

static lattice_status create(const lattice_allocator *mem, lt_decoder **out, lattice_error *err)
{
    lt_decoder *decoder = lt_alloc_zero(mem, sizeof *decoder);
    if (decoder == NULL) return lt_no_memory(err, sizeof *decoder, "a decoder");
    decoder->mem = mem;
    lt_arena_init(&decoder->strings, mem);
    *out = decoder;
    return LATTICE_OK;
}

lattice_status lt_decoder_read(const lattice_allocator *mem, lt_json *json, lt_decoder **out, lattice_error *err)
{
    lt_decoder *decoder = NULL;
    LT_TRY(create(mem, &decoder, err));
    decoder->joined_by_spaces = lt_json_peek(json) == LT_JSON_NULL;
    lattice_status status = decoder->joined_by_spaces ? lt_json_null(json) : read_decoder(decoder, json);
    if (status != LATTICE_OK) {
        lt_decoder_free(decoder);
        return status;
    }
    *out = decoder;
    return LATTICE_OK;
}

lattice_status lt_decoder_wordpiece(const lattice_allocator *mem, lt_decoder **out, lattice_error *err)
{
    lt_decoder *decoder = NULL;
    LT_TRY(create(mem, &decoder, err));
    lattice_status status = add_step(decoder, (step){ .kind = STEP_WORDPIECE, .text = LT_STR("##"), .cleanup = true }, err);
    if (status != LATTICE_OK) {
        lt_decoder_free(decoder);
        return status;
    }
    *out = decoder;
    return LATTICE_OK;
}

void lt_decoder_free(lt_decoder *decoder)
{
    if (decoder == NULL) return;
    for (size_t i = 0; i < decoder->n; i++) pcre2_code_free(decoder->steps[i].regex);
    pcre2_general_context_free(decoder->pcre2);
    lt_arena_free(&decoder->strings);
    lt_free(decoder->mem, decoder->steps);
    lt_free(decoder->mem, decoder);
}

/* ------------------------------------------------------------------ lists */

/* What a step reads: the caller's tokens, or what the step before wrote. */
typedef struct list {
    const lt_str *tokens; /* NULL: bytes and ends */
    lt_buf bytes;
    size_t *ends;
    size_t n, capacity;
    bool failed;
} list;

static lt_str item(const list *l, size_t i)
{
    if (l->tokens != NULL) return l->tokens[i];
    size_t start = i == 0 ? 0 : l->ends[i - 1];
    return (lt_str){ l->bytes.data + start, l->ends[i] - start };
}

/* Ends the item whose bytes were appended. */
static void end_item(list *l)
{
    if (!LT_GROW(l->bytes.mem, l->ends, l->capacity, l->n + 1)) {
        l->failed = true;
        return;
    }
    l->ends[l->n++] = l->bytes.len;
}

static void append(lt_buf *out, lt_str s)
{
    lt_buf_append(out, s.data, s.len);
}

static const char *find(lt_str s, size_t from, lt_str pattern)
{
    return s.len - from < pattern.len ? NULL : memmem(s.data + from, s.len - from, pattern.data, pattern.len);
}

/* Every occurrence, left to right, none overlapping. An empty pattern is found before each character and at the end. */
static void replace(lt_str s, lt_str pattern, lt_str content, lt_buf *out)
{
    size_t at = 0;
    if (pattern.len == 0) {
        append(out, content);
        while (at < s.len) {
            uint32_t code;
            size_t n = lt_utf8_decode((const uint8_t *)s.data + at, s.len - at, &code);
            lt_buf_append(out, s.data + at, n);
            append(out, content);
            at += n;
        }
        return;
    }
    for (const char *found; at < s.len && (found = find(s, at, pattern)) != NULL;) {
        lt_buf_append(out, s.data + at, (size_t)(found - s.data) - at);
        append(out, content);
        at = (size_t)(found - s.data) + pattern.len;
    }
    lt_buf_append(out, s.data + at, s.len - at);
}

/* ------------------------------------------------------------------ steps */

void lt_decoder_bytes(lt_str token, lt_buf *out)
{
    size_t before = out->len;
    if (!lt_buf_reserve(out, token.len)) return;
    for (size_t i = 0; i < token.len;) {
        uint32_t code;
        i += lt_utf8_decode((const uint8_t *)token.data + i, token.len - i, &code);
        int byte = lt_char_to_byte(code);
        if (byte < 0) { /* a character outside the alphabet: the spelling is the text (added tokens) */
            out->len = before;
            lt_buf_append(out, token.data, token.len);
            return;
        }
        out->data[out->len++] = (char)byte;
    }
    out->data[out->len] = '\0';
}

static void byte_level(const list *in, lt_buf *raw, lt_buf *out)
{
    for (size_t i = 0; i < in->n; i++) lt_decoder_bytes(item(in, i), raw);
    lt_utf8_append_repaired(out, (const uint8_t *)raw->data, raw->len);
}

/* Undoes the spaces that splitting put around punctuation and in contractions, in this order. */
static void clean_up(lt_str s, lt_buf *out, lt_buf scratch[2])
{
    static const char *const rules[][2] = { { " .", "." },   { " ?", "?" },     { " !", "!" },    { " ,", "," },
                                            { " ' ", "'" },  { " n't", "n't" }, { " 'm", "'m" },  { " do not", " don't" },
                                            { " 's", "'s" }, { " 've", "'ve" }, { " 're", "'re" } };
    if (memchr(s.data, ' ', s.len) == NULL) {
        append(out, s);
        return;
    }
    for (size_t i = 0; i < sizeof rules / sizeof *rules; i++) {
        lt_buf *next = &scratch[i & 1];
        lt_buf_clear(next);
        replace(s, lt_str_of(rules[i][0]), lt_str_of(rules[i][1]), next);
        if (next->failed) {
            out->failed = true;
            return;
        }
        s = lt_buf_str(next);
    }
    append(out, s);
}

static void wordpiece(const step *s, const list *in, list *out, lt_buf scratch[3])
{
    for (size_t i = 0; i < in->n; i++) {
        lt_str token = item(in, i);
        lt_buf *text = s->cleanup ? &scratch[2] : &out->bytes;
        if (s->cleanup) lt_buf_clear(text);
        if (i > 0 && token.len >= s->text.len && (s->text.len == 0 || memcmp(token.data, s->text.data, s->text.len) == 0)) {
            token.data += s->text.len;
            token.len -= s->text.len;
        } else if (i > 0) {
            lt_buf_byte(text, ' ');
        }
        append(text, token);
        if (text->failed) out->failed = true;
        if (s->cleanup && !text->failed && text->len > 0) clean_up(lt_buf_str(text), &out->bytes, scratch);
        end_item(out);
    }
}

static void metaspace(const step *s, const list *in, list *out)
{
    for (size_t i = 0; i < in->n; i++) {
        replace(item(in, i), s->text, i == 0 && s->drop_first ? LT_STR("") : LT_STR(" "), &out->bytes);
        end_item(out);
    }
}

static void bpe(const step *s, const list *in, list *out)
{
    for (size_t i = 0; i < in->n; i++) {
        replace(item(in, i), s->text, i + 1 == in->n ? LT_STR("") : LT_STR(" "), &out->bytes);
        end_item(out);
    }
}

/* An empty match right behind the last one does not count, as in Rust's iterators. */
static lattice_status replace_matches(const lt_decoder *decoder, const step *s, lt_str token, pcre2_match_data *data, lt_buf *out,
                                      lattice_error *err)
{
    (void)decoder;
    size_t at = 0, copied = 0, last_end = SIZE_MAX;
    while (at <= token.len) {
        int rc = pcre2_match(s->regex, (PCRE2_SPTR)token.data, token.len, at, 0, data, NULL);
        if (rc == PCRE2_ERROR_NOMATCH) break;
        if (rc == PCRE2_ERROR_NOMEMORY) return lt_no_memory(err, token.len, "decoding");
        if (rc < 0) {
            char message[128];
            pcre2_get_error_message(rc, (PCRE2_UCHAR *)message, sizeof message);
            return lt_fail(err, LATTICE_ERR_FORMAT, "the expression of a Replace decoder: %s", message);
        }
        const PCRE2_SIZE *range = pcre2_get_ovector_pointer(data);
        size_t start = range[0], end = range[1];
        if (start > end) return lt_fail(err, LATTICE_ERR_FORMAT, "the expression of a Replace decoder matches backwards");
        if (start == end && end == last_end) {
            uint32_t code;
            if (at >= token.len) break;
            at += lt_utf8_decode((const uint8_t *)token.data + at, token.len - at, &code);
            last_end = SIZE_MAX;
            continue;
        }
        lt_buf_append(out, token.data + copied, start - copied);
        append(out, s->content);
        at = copied = last_end = end;
    }
    lt_buf_append(out, token.data + copied, token.len - copied);
    return LATTICE_OK;
}

static lattice_status replace_all(const lt_decoder *decoder, const step *s, const list *in, list *out, lattice_error *err)
{
    pcre2_match_data *data = NULL;
    lattice_status status = LATTICE_OK;
    if (s->regex != NULL) {
        data = pcre2_match_data_create_from_pattern(s->regex, decoder->pcre2);
        if (data == NULL) return lt_no_memory(err, 0, "decoding");
    }
    for (size_t i = 0; i < in->n && status == LATTICE_OK; i++) {
        if (s->regex == NULL) {
            replace(item(in, i), s->text, s->content, &out->bytes);
        } else {
            status = replace_matches(decoder, s, item(in, i), data, &out->bytes, err);
        }
        end_item(out);
    }
    pcre2_match_data_free(data);
    return status;
}

static int hex_digit(char c)
{
    if (c >= '0' && c <= '9') return c - '0';
    if (c >= 'a' && c <= 'f') return c - 'a' + 10;
    return c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1;
}

/* The byte of "<0xE4>", or -1. A plus sign counts as a digit's sign, as in the original. */
static int byte_token(lt_str s)
{
    if (s.len != 6 || memcmp(s.data, "<0x", 3) != 0 || s.data[5] != '>') return -1;
    int high = s.data[3] == '+' ? 0 : hex_digit(s.data[3]), low = hex_digit(s.data[4]);
    return high < 0 || low < 0 ? -1 : high * 16 + low;
}

/* A run of byte tokens is the text of its bytes if they are valid, else one U+FFFD for each. */
static void end_run(lt_buf *run, list *out)
{
    if (run->len == 0) return;
    if (lt_utf8_valid_prefix((const uint8_t *)run->data, run->len) == run->len) {
        lt_buf_append(&out->bytes, run->data, run->len);
        end_item(out);
    } else {
        for (size_t i = 0; i < run->len; i++) {
            append(&out->bytes, LT_STR("\xEF\xBF\xBD"));
            end_item(out);
        }
    }
    lt_buf_clear(run);
}

static void byte_fallback(const list *in, list *out, lt_buf *run)
{
    lt_buf_clear(run);
    for (size_t i = 0; i < in->n; i++) {
        lt_str token = item(in, i);
        int byte = byte_token(token);
        if (byte >= 0) {
            lt_buf_byte(run, (char)byte);
            continue;
        }
        if (run->failed) break;
        end_run(run, out);
        append(&out->bytes, token);
        end_item(out);
    }
    if (run->failed)
        out->failed = true;
    else
        end_run(run, out);
}

static void fuse(const list *in, list *out)
{
    for (size_t i = 0; i < in->n; i++) append(&out->bytes, item(in, i));
    end_item(out);
}

static void strip(const step *s, const list *in, list *out)
{
    const size_t n = s->text.len;
    for (size_t i = 0; i < in->n; i++) {
        lt_str token = item(in, i);
        for (size_t k = 0; k < s->start && token.len >= n && memcmp(token.data, s->text.data, n) == 0; k++) {
            token.data += n;
            token.len -= n;
        }
        for (size_t k = 0; k < s->stop && token.len >= n && memcmp(token.data + token.len - n, s->text.data, n) == 0; k++)
            token.len -= n;
        append(&out->bytes, token);
        end_item(out);
    }
}

static void ctc(const step *s, const list *in, list *out, lt_buf scratch[4])
{
    for (size_t i = 0; i < in->n; i++) {
        lt_str token = item(in, i);
        if (i > 0 && lt_str_eq(token, item(in, i - 1))) continue;
        size_t before = out->bytes.len;
        lt_buf *text = s->cleanup ? &scratch[2] : &out->bytes;
        if (s->cleanup) lt_buf_clear(text);
        /* An empty padding token would replace nothing by nothing. */
        if (s->text.len > 0)
            replace(token, s->text, LT_STR(""), text);
        else
            append(text, token);
        if (text->failed) out->failed = true;
        if (s->cleanup && !text->failed && text->len > 0) {
            lt_buf_clear(&scratch[3]);
            clean_up(lt_buf_str(text), &scratch[3], scratch);
            if (scratch[3].failed)
                out->failed = true;
            else
                replace(lt_buf_str(&scratch[3]), s->content, LT_STR(" "), &out->bytes);
        }
        if (out->bytes.len > before) end_item(out);
    }
}

static lattice_status run_step(const lt_decoder *decoder, const step *s, const list *in, list *out, lt_buf scratch[4],
                               lattice_error *err)
{
    switch (s->kind) {
    case STEP_BYTE_LEVEL:
        lt_buf_clear(&scratch[0]);
        byte_level(in, &scratch[0], &out->bytes);
        if (scratch[0].failed) out->failed = true;
        end_item(out);
        break;
    case STEP_WORDPIECE: wordpiece(s, in, out, scratch); break;
    case STEP_METASPACE: metaspace(s, in, out); break;
    case STEP_BPE: bpe(s, in, out); break;
    case STEP_REPLACE: LT_TRY(replace_all(decoder, s, in, out, err)); break;
    case STEP_BYTE_FALLBACK: byte_fallback(in, out, &scratch[0]); break;
    case STEP_FUSE: fuse(in, out); break;
    case STEP_STRIP: strip(s, in, out); break;
    case STEP_CTC: ctc(s, in, out, scratch); break;
    }
    return out->failed || out->bytes.failed ? lt_no_memory(err, out->bytes.len, "decoding") : LATTICE_OK;
}

/* ------------------------------------------------------------------ the chain */

bool lt_decoder_is_bytes(const lt_decoder *decoder)
{
    return decoder->n == 1 && decoder->steps[0].kind == STEP_BYTE_LEVEL;
}

lattice_status lt_decoder_decode(const lt_decoder *decoder, const lt_str *tokens, size_t n, lt_buf *out, lattice_error *err)
{
    list lists[2] = { { .tokens = tokens, .n = n }, { .tokens = NULL } };
    lt_buf scratch[4];
    lattice_status status = LATTICE_OK;
    for (size_t i = 0; i < 2; i++) lt_buf_init(&lists[i].bytes, decoder->mem);
    for (size_t i = 0; i < 4; i++) lt_buf_init(&scratch[i], decoder->mem);

    const list *in = &lists[0];
    for (size_t i = 0; i < decoder->n && n > 0; i++) {
        list *next = in == &lists[0] ? &lists[1] : &lists[0];
        next->tokens = NULL;
        next->n = 0;
        lt_buf_clear(&next->bytes);
        lt_buf_reserve(&next->bytes, 1); /* items of no bytes still have an address */
        LT_GO(run_step(decoder, &decoder->steps[i], in, next, scratch, err));
        in = next;
    }
    for (size_t i = 0; i < in->n; i++) {
        if (i > 0 && decoder->joined_by_spaces) lt_buf_byte(out, ' ');
        append(out, item(in, i));
    }
    if (out->failed) status = lt_no_memory(err, out->len, "decoding");
done:
    for (size_t i = 0; i < 2; i++) {
        lt_buf_free(&lists[i].bytes);
        lt_free(decoder->mem, lists[i].ends);
    }
    for (size_t i = 0; i < 4; i++) lt_buf_free(&scratch[i]);
    return status;
}
