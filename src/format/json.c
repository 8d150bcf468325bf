/* The JSON reader.
 *
 * One pass over the text. Strings are scanned sixteen bytes at a time for the few bytes that matter: quote, backslash, control
 * characters and the first byte of anything that is not ASCII.
 *
 * Duplicate keys: all keys of all objects open now lie on one stack, in the order they were read, and in one hash table
 * (open addressing, linear probing) of indices into it. An object owns the top of the stack; when it ends its keys are taken
 * off. Removing the youngest key first needs no tombstones: nothing younger can have probed past its slot. */
#include "format/json.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>

#if defined(__SSE2__)
#include <emmintrin.h>
#elif defined(__ARM_NEON)
#include <arm_neon.h>
#endif

#include "base/clock.h"
#include "base/hash.h"
#include "base/utf8.h"
#include "format/decimal.h"

/* ------------------------------------------------------------------ errors */

static lattice_status fail_at(lt_json *json, size_t pos, const char *format, ...) __attribute__((format(printf, 3, 4)));

static lattice_status vfail_at(lt_json *json, size_t pos, const char *format, va_list args)
{
    lattice_error *err = json->err;
    if (!err) return LATTICE_ERR_FORMAT;
    size_t line = 1, column = 1;
    for (size_t i = 0; i < pos; i++) {
        if (json->text[i] == '\n') {
            line++;
            column = 1;
        } else if ((json->text[i] & 0xC0) != 0x80) {
            column++;
        }
    }
    char message[sizeof err->message];
    lt_format_line(message, sizeof message, format, args);
    return lt_fail(err, LATTICE_ERR_FORMAT, "%s:%zu:%zu: %s", json->name, line, column, message);
}

static lattice_status fail_at(lt_json *json, size_t pos, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    lattice_status status = vfail_at(json, pos, format, args);
    va_end(args);
    return status;
}

lattice_status lt_json_fail(lt_json *json, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    lattice_status status = vfail_at(json, json->token, format, args);
    va_end(args);
    return status;
}

/* Something other than `expected` stands at pos. */
static lattice_status fail_found(lt_json *json, size_t pos, const char *expected)
{
    if (pos >= json->size) return fail_at(json, json->size, "expected %s, the text ends", expected);
    uint8_t byte = json->text[pos];
    if (byte > 0x20 && byte < 0x7F) return fail_at(json, pos, "expected %s, found '%c'", expected, byte);
    return fail_at(json, pos, "expected %s, found byte 0x%02X", expected, byte);
}

/* ------------------------------------------------------------------ keys */

typedef struct key_entry {
    size_t at, len; /* in the text, or in `decoded` */
    uint32_t hash;
    bool is_decoded; /* the key had escapes */
} key_entry;

struct lt_json_keys {
    lattice_allocator mem;
    key_entry *stack;
    size_t n, capacity;
    /* The table: a byte of the hash for each slot (0: free) and the index into the stack. The bytes of a vocabulary fit into the
     * second-level cache, and a slot's index is read only where the byte matches. */
    uint8_t *tags;
    uint32_t *slots; /* one block with tags */
    size_t n_slots;  /* a power of two, at least twice n; 0 at first */
    lt_buf decoded;
    uint64_t seed; /* differs from run to run: nobody can prepare keys that collide */
};

enum { FIRST_SLOTS = 64 };

static const char *key_bytes(const lt_json *json, const key_entry *key)
{
    return key->is_decoded ? json->keys->decoded.data + key->at : (const char *)json->text + key->at;
}

static inline uint8_t tag_of(uint32_t hash)
{
    return (uint8_t)(hash >> 24 | 1);
}

static void put_slot(struct lt_json_keys *keys, size_t index)
{
    uint32_t hash = keys->stack[index].hash;
    size_t slot = hash & (keys->n_slots - 1);
    while (keys->tags[slot]) slot = (slot + 1) & (keys->n_slots - 1);
    keys->tags[slot] = tag_of(hash);
    keys->slots[slot] = (uint32_t)index;
}

/* Makes room for one key more. */
static bool grow_keys(lt_json *json)
{
    struct lt_json_keys *keys = json->keys;
    if (keys->n >= UINT32_MAX / 4 || !LT_GROW(&keys->mem, keys->stack, keys->capacity, keys->n + 1)) return false;
    if (keys->n_slots >= 2 * (keys->n + 1)) return true;
    size_t n_slots = keys->n_slots ? keys->n_slots * 2 : FIRST_SLOTS;
    uint32_t *slots = lt_alloc_array(&keys->mem, n_slots, sizeof *slots + 1);
    if (!slots) return false;
    lt_free(&keys->mem, keys->slots);
    keys->slots = slots;
    keys->tags = (uint8_t *)(slots + n_slots);
    keys->n_slots = n_slots;
    memset(keys->tags, 0, n_slots);
    for (size_t i = 0; i < keys->n; i++) put_slot(keys, i);
    return true;
}

/* Adds the key `s` of the innermost object; it was decoded into json->strings, or lies in the text. */
static lattice_status add_key(lt_json *json, lt_str s, bool is_decoded)
{
    const lattice_allocator *mem = json->strings.mem;
    if (!json->keys) {
        struct lt_json_keys *made = lt_alloc_zero(mem, sizeof *made);
        if (!made) return lt_no_memory(json->err, sizeof *made, "JSON keys");
        made->mem = *mem;
        double now = lt_clock_seconds();
        made->seed = lt_hash64(&now, sizeof now, (uint64_t)(uintptr_t)made);
        lt_buf_init(&made->decoded, &made->mem);
        json->keys = made;
    }
    struct lt_json_keys *keys = json->keys;
    if (!grow_keys(json)) return lt_no_memory(json->err, keys->n * sizeof *keys->stack, "JSON keys");

    size_t begin = json->levels[json->depth - 1].keys_begin;
    uint32_t hash = (uint32_t)lt_hash64(s.data, s.len, keys->seed + (uint64_t)json->depth);
    size_t mask = keys->n_slots - 1, slot = hash & mask;
    uint8_t tag = tag_of(hash);
    for (; keys->tags[slot]; slot = (slot + 1) & mask) {
        if (keys->tags[slot] != tag) continue;
        size_t index = keys->slots[slot];
        const key_entry *other = &keys->stack[index];
        if (other->hash == hash && index >= begin && other->len == s.len && memcmp(key_bytes(json, other), s.data, s.len) == 0) {
            return fail_at(json, json->token, "duplicate key '%.*s'", LT_STR_ARG(s));
        }
    }
    key_entry entry = { .len = s.len, .hash = hash, .is_decoded = is_decoded };
    if (is_decoded) {
        entry.at = keys->decoded.len;
        lt_buf_append(&keys->decoded, s.data, s.len);
        if (keys->decoded.failed) {
            keys->decoded.failed = false;
            return lt_no_memory(json->err, s.len, "a JSON key");
        }
    } else {
        entry.at = (size_t)((const uint8_t *)s.data - json->text);
    }
    keys->tags[slot] = tag;
    keys->slots[slot] = (uint32_t)keys->n;
    keys->stack[keys->n++] = entry;
    return LATTICE_OK;
}

/* Takes the keys of an object that has ended off the stack. */
static void drop_keys(lt_json *json, size_t begin)
{
    struct lt_json_keys *keys = json->keys;
    if (!keys || keys->n == begin) return;
    bool rebuild = keys->n - begin > keys->n_slots / 16; /* then clearing in one sweep is faster than looking for each slot */
    size_t mask = keys->n_slots - 1;
    while (keys->n > begin) {
        const key_entry *key = &keys->stack[--keys->n];
        if (key->is_decoded) keys->decoded.len = key->at;
        if (rebuild) continue;
        size_t slot = key->hash & mask;
        while (!keys->tags[slot] || keys->slots[slot] != keys->n) slot = (slot + 1) & mask;
        keys->tags[slot] = 0;
    }
    if (rebuild) {
        memset(keys->tags, 0, keys->n_slots);
        for (size_t i = 0; i < keys->n; i++) put_slot(keys, i);
    }
}

/* ------------------------------------------------------------------ open, close, peek */

void lt_json_open(lt_json *json, const lattice_allocator *mem, const char *name, const void *text, size_t size,
                  lattice_error *err)
{
    json->name = name;
    json->text = text ? text : (const void *)"";
    json->size = text ? size : 0;
    json->pos = 0;
    json->err = err;
    lt_buf_init(&json->strings, mem);
    json->token = 0;
    json->value_due = true;
    json->depth = 0;
    json->keys = NULL;
}

void lt_json_close(lt_json *json)
{
    lt_buf_free(&json->strings);
    if (json->keys) {
        lattice_allocator mem = json->keys->mem;
        lt_buf_free(&json->keys->decoded);
        lt_free(&mem, json->keys->stack);
        lt_free(&mem, json->keys->slots);
        lt_free(&mem, json->keys);
    }
    json->keys = NULL;
    json->depth = 0;
    json->pos = json->size = 0;
    json->value_due = false;
}

static inline bool is_space(uint8_t byte)
{
    return byte == ' ' || byte == '\n' || byte == '\t' || byte == '\r';
}

static inline void skip_space(lt_json *json)
{
    const uint8_t *s = json->text;
    size_t i = json->pos, n = json->size;
    /* One space at most, mostly; longer runs are indentation. */
    if (i < n && is_space(s[i])) i++;
    if (i < n && is_space(s[i])) {
#if defined(__SSE2__)
        const __m128i space = _mm_set1_epi8(' '), newline = _mm_set1_epi8('\n');
        for (; n - i >= 16; i += 16) {
            __m128i v = _mm_loadu_si128((const __m128i *)(const void *)(s + i));
            __m128i same = _mm_or_si128(_mm_cmpeq_epi8(v, space), _mm_cmpeq_epi8(v, newline));
            unsigned mask = ~(unsigned)_mm_movemask_epi8(same) & 0xFFFF;
            if (mask) {
                i += (size_t)__builtin_ctz(mask);
                break;
            }
        }
#endif
        while (i < n && is_space(s[i])) i++;
    }
    json->pos = i;
}

static lt_json_type type_of(uint8_t byte)
{
    switch (byte) {
    case 'n': return LT_JSON_NULL;
    case 't':
    case 'f': return LT_JSON_BOOL;
    case '"': return LT_JSON_STRING;
    case '[': return LT_JSON_ARRAY;
    case '{': return LT_JSON_OBJECT;
    default: return byte == '-' || (byte >= '0' && byte <= '9') ? LT_JSON_NUMBER : LT_JSON_INVALID;
    }
}

lt_json_type lt_json_peek(lt_json *json)
{
    skip_space(json);
    if (json->pos == json->size) return json->depth == 0 ? LT_JSON_END : LT_JSON_INVALID;
    return json->value_due ? type_of(json->text[json->pos]) : LT_JSON_INVALID;
}

/* Makes sure that a value of `type` starts at pos, and notes where. */
static lattice_status expect(lt_json *json, lt_json_type type)
{
    static const char *const names[] = { "null", "true or false", "a number", "a string", "an array", "an object" };
    skip_space(json);
    if (!json->value_due) return fail_at(json, json->pos, "no value is due here");
    json->token = json->pos;
    if (json->pos == json->size) return fail_found(json, json->pos, names[type]);
    lt_json_type found = type_of(json->text[json->pos]);
    if (found == type) return LATTICE_OK;
    if (found == LT_JSON_INVALID) return fail_found(json, json->pos, names[type]);
    return fail_at(json, json->pos, "expected %s, found %s", names[type], names[found]);
}

/* ------------------------------------------------------------------ strings */

/* Offset of the first byte from i on that is a quote, a backslash, a control character or not ASCII; n when there is none. */
static inline size_t scan_plain(const uint8_t *s, size_t i, size_t n)
{
#if defined(__SSE2__)
    const __m128i quote = _mm_set1_epi8('"'), backslash = _mm_set1_epi8('\\'), control = _mm_set1_epi8(0x1F);
    for (; n - i >= 16; i += 16) {
        __m128i v = _mm_loadu_si128((const __m128i *)(const void *)(s + i));
        __m128i special = _mm_or_si128(_mm_cmpeq_epi8(v, quote), _mm_cmpeq_epi8(v, backslash));
        special = _mm_or_si128(special, _mm_cmpeq_epi8(_mm_min_epu8(v, control), v));
        unsigned mask = (unsigned)_mm_movemask_epi8(_mm_or_si128(special, v)); /* v's own sign bit: not ASCII */
        if (mask) return i + (size_t)__builtin_ctz(mask);
    }
#elif defined(__ARM_NEON)
    const uint8x16_t quote = vdupq_n_u8('"'), backslash = vdupq_n_u8('\\'), space = vdupq_n_u8(0x20), high = vdupq_n_u8(0x80);
    for (; n - i >= 16; i += 16) {
        uint8x16_t v = vld1q_u8(s + i);
        uint8x16_t special = vorrq_u8(vceqq_u8(v, quote), vceqq_u8(v, backslash));
        special = vorrq_u8(special, vorrq_u8(vcltq_u8(v, space), vcgeq_u8(v, high)));
        /* Four bits a byte of the comparison, in order. */
        uint8x8_t nibbles = vshrn_n_u16(vreinterpretq_u16_u8(special), 4);
        uint64_t mask = vget_lane_u64(vreinterpret_u64_u8(nibbles), 0);
        if (mask) return i + (size_t)__builtin_ctzll(mask) / 4;
    }
#endif
    while (i < n && s[i] >= 0x20 && s[i] < 0x80 && s[i] != '"' && s[i] != '\\') i++;
    return i;
}

/* From i on, the offset of the next quote or backslash; what lies before it is checked. */
static inline lattice_status scan_text(lt_json *json, size_t i, size_t *end)
{
    const uint8_t *s = json->text;
    size_t n = json->size;
    for (;;) {
        i = scan_plain(s, i, n);
        while (i < n && s[i] >= 0x80) {
            size_t length = lt_utf8_sequence(s + i, n - i);
            if (length == 0) return fail_at(json, i, "invalid UTF-8 in a string");
            i += length;
        }
        if (i == n) return fail_at(json, n, "the text ends inside a string");
        if (s[i] == '"' || s[i] == '\\') {
            *end = i;
            return LATTICE_OK;
        }
        if (s[i] < 0x20) return fail_at(json, i, "control character 0x%02X in a string", s[i]);
    }
}

/* Four hexadecimal digits at i; false when they are not there. */
static bool hex4(const lt_json *json, size_t i, uint32_t *out)
{
    if (json->size - i < 4) return false;
    uint32_t value = 0;
    for (size_t k = i; k < i + 4; k++) {
        uint8_t c = json->text[k], letter = c | 0x20;
        if (c >= '0' && c <= '9') {
            value = value << 4 | (uint32_t)(c - '0');
        } else if (letter >= 'a' && letter <= 'f') {
            value = value << 4 | (uint32_t)(letter - 'a' + 10);
        } else {
            return false;
        }
    }
    *out = value;
    return true;
}

/* Decodes the escape whose backslash is at *pos into json->strings and moves *pos behind it. */
static lattice_status read_escape(lt_json *json, size_t *pos)
{
    size_t i = *pos + 1;
    if (i == json->size) return fail_at(json, i, "the text ends inside a string");
    char plain = 0;
    switch (json->text[i]) {
    case '"': plain = '"'; break;
    case '\\': plain = '\\'; break;
    case '/': plain = '/'; break;
    case 'b': plain = '\b'; break;
    case 'f': plain = '\f'; break;
    case 'n': plain = '\n'; break;
    case 'r': plain = '\r'; break;
    case 't': plain = '\t'; break;
    case 'u': break;
    default: return fail_at(json, *pos, "unknown escape in a string");
    }
    i++;
    if (plain) {
        lt_buf_byte(&json->strings, plain);
        *pos = i;
        return LATTICE_OK;
    }
    uint32_t code, low;
    if (!hex4(json, i, &code)) return fail_at(json, *pos, "\\u needs four hexadecimal digits");
    i += 4;
    if (code >= 0xD800 && code < 0xDC00 && json->size - i >= 6 && json->text[i] == '\\' && json->text[i + 1] == 'u' &&
        hex4(json, i + 2, &low) && low >= 0xDC00 && low < 0xE000) {
        code = 0x10000 + ((code - 0xD800) << 10) + (low - 0xDC00);
        i += 6;
    } else if (code >= 0xD800 && code < 0xE000) {
        code = LT_REPLACEMENT; /* a lone surrogate */
    }
    uint8_t utf8[4];
    lt_buf_append(&json->strings, utf8, lt_utf8_encode(code, utf8));
    *pos = i;
    return LATTICE_OK;
}

/* Reads the string whose quote is at pos; pos moves behind it on success only. */
static lattice_status read_string(lt_json *json, lt_str *out, bool *is_decoded)
{
    size_t begin = json->pos + 1, end = begin;
    LT_TRY(scan_text(json, begin, &end));
    *is_decoded = json->text[end] == '\\';
    if (!*is_decoded) {
        *out = (lt_str){ (const char *)json->text + begin, end - begin };
        json->pos = end + 1;
        return LATTICE_OK;
    }
    lt_buf_clear(&json->strings);
    for (;;) {
        lt_buf_append(&json->strings, json->text + begin, end - begin);
        if (json->text[end] == '"') break;
        LT_TRY(read_escape(json, &end));
        begin = end;
        LT_TRY(scan_text(json, begin, &end));
    }
    if (json->strings.failed) return lt_no_memory(json->err, end - json->pos, "a JSON string");
    *out = lt_buf_str(&json->strings);
    json->pos = end + 1;
    return LATTICE_OK;
}

lattice_status lt_json_string(lt_json *json, lt_str *out)
{
    bool is_decoded;
    LT_TRY(expect(json, LT_JSON_STRING));
    LT_TRY(read_string(json, out, &is_decoded));
    json->value_due = false;
    return LATTICE_OK;
}

/* ------------------------------------------------------------------ containers */

static lattice_status begin_container(lt_json *json, lt_json_type type)
{
    LT_TRY(expect(json, type));
    if (json->depth == LT_JSON_MAX_DEPTH) return fail_at(json, json->pos, "nested deeper than %d levels", LT_JSON_MAX_DEPTH);
    json->levels[json->depth++] = (struct lt_json_level){
        .is_object = type == LT_JSON_OBJECT,
        .first = 1,
        .keys_begin = json->keys ? json->keys->n : 0,
    };
    json->pos++;
    json->value_due = false;
    return LATTICE_OK;
}

lattice_status lt_json_begin_object(lt_json *json)
{
    return begin_container(json, LT_JSON_OBJECT);
}

lattice_status lt_json_begin_array(lt_json *json)
{
    return begin_container(json, LT_JSON_ARRAY);
}

/* Moves past the comma before the next item of the innermost container, or past its closing bracket (*more false). */
static inline lattice_status next_item(lt_json *json, bool is_object, bool *more)
{
    *more = false;
    skip_space(json);
    if (json->depth == 0 || json->levels[json->depth - 1].is_object != is_object) {
        return fail_at(json, json->pos, "not inside an %s", is_object ? "object" : "array");
    }
    if (json->value_due) return fail_at(json, json->pos, "the value before was not read");
    struct lt_json_level *level = &json->levels[json->depth - 1];
    uint8_t byte = json->pos < json->size ? json->text[json->pos] : 0;
    if (byte == (is_object ? '}' : ']')) {
        json->pos++;
        if (is_object) drop_keys(json, level->keys_begin);
        json->depth--;
        return LATTICE_OK;
    }
    if (!level->first) {
        if (byte != ',') return fail_found(json, json->pos, is_object ? "',' or '}'" : "',' or ']'");
        json->pos++;
        skip_space(json);
    }
    *more = true;
    return LATTICE_OK;
}

lattice_status lt_json_next_member(lt_json *json, lt_str *key, bool *more)
{
    bool is_decoded;
    *key = (lt_str){ "", 0 };
    LT_TRY(next_item(json, true, more));
    if (!*more) return LATTICE_OK;
    *more = false; /* until all went well */
    struct lt_json_level *level = &json->levels[json->depth - 1];
    json->token = json->pos;
    if (json->pos == json->size || json->text[json->pos] != '"') {
        return fail_found(json, json->pos, level->first ? "a key or '}'" : "a key");
    }
    LT_TRY(read_string(json, key, &is_decoded));
    LT_TRY(add_key(json, *key, is_decoded));
    skip_space(json);
    if (json->pos == json->size || json->text[json->pos] != ':') return fail_found(json, json->pos, "':'");
    json->pos++;
    level->first = 0;
    json->value_due = true;
    *more = true;
    return LATTICE_OK;
}

lattice_status lt_json_next_element(lt_json *json, bool *more)
{
    LT_TRY(next_item(json, false, more));
    if (!*more) return LATTICE_OK;
    json->levels[json->depth - 1].first = 0;
    json->value_due = true;
    return LATTICE_OK;
}

/* ------------------------------------------------------------------ scalars */

static lattice_status read_word(lt_json *json, const char *word)
{
    size_t len = strlen(word);
    if (json->size - json->pos < len || memcmp(json->text + json->pos, word, len) != 0) {
        return fail_at(json, json->pos, "expected '%s'", word);
    }
    json->pos += len;
    json->value_due = false;
    return LATTICE_OK;
}

lattice_status lt_json_bool(lt_json *json, bool *out)
{
    LT_TRY(expect(json, LT_JSON_BOOL));
    bool value = json->text[json->pos] == 't';
    LT_TRY(read_word(json, value ? "true" : "false"));
    *out = value;
    return LATTICE_OK;
}

lattice_status lt_json_null(lt_json *json)
{
    LT_TRY(expect(json, LT_JSON_NULL));
    return read_word(json, "null");
}

/* Scans the number at pos without consuming it. */
static lattice_status scan_number(lt_json *json, lt_decimal *number)
{
    LT_TRY(expect(json, LT_JSON_NUMBER));
    size_t bad, at = json->pos;
    if (lt_decimal_scan(json->text + at, json->size - at, number, &bad) > 0) return LATTICE_OK;
    if (at + bad < json->size && json->text[at + bad] >= '0' && json->text[at + bad] <= '9') {
        return fail_at(json, at + bad, "a number must not start with 0");
    }
    return fail_found(json, at + bad, "a digit");
}

static lattice_status consume_number(lt_json *json, const lt_decimal *number)
{
    json->pos += number->text.len;
    json->value_due = false;
    return LATTICE_OK;
}

lattice_status lt_json_double(lt_json *json, double *out)
{
    lt_decimal number;
    double value;
    LT_TRY(scan_number(json, &number));
    if (!lt_decimal_to_double(&number, json->strings.mem, &value)) return lt_no_memory(json->err, number.text.len, "a number");
    if (!isfinite(value)) return lt_json_fail(json, "%.*s is out of a double's range", LT_STR_ARG(number.text));
    *out = value;
    return consume_number(json, &number);
}

lattice_status lt_json_float(lt_json *json, float *out)
{
    lt_decimal number;
    float value;
    LT_TRY(scan_number(json, &number));
    if (!lt_decimal_to_float(&number, json->strings.mem, &value)) return lt_no_memory(json->err, number.text.len, "a number");
    if (!isfinite(value)) return lt_json_fail(json, "%.*s is out of a float's range", LT_STR_ARG(number.text));
    *out = value;
    return consume_number(json, &number);
}

/* An integer in [-max_negative, max]. */
static lattice_status read_integer(lt_json *json, uint64_t max_negative, uint64_t max, lt_decimal *number, uint64_t *magnitude)
{
    LT_TRY(scan_number(json, number));
    if (!lt_decimal_to_integer(number, magnitude) || *magnitude > (number->negative ? max_negative : max)) {
        if (max_negative == 0) {
            return lt_json_fail(json, "%.*s is not an integer from 0 to %llu", LT_STR_ARG(number->text), (unsigned long long)max);
        }
        return lt_json_fail(json, "%.*s is not a 64-bit integer", LT_STR_ARG(number->text));
    }
    return consume_number(json, number);
}

lattice_status lt_json_int64(lt_json *json, int64_t *out)
{
    lt_decimal number;
    uint64_t magnitude;
    LT_TRY(read_integer(json, (uint64_t)INT64_MAX + 1, INT64_MAX, &number, &magnitude));
    if (!number.negative) {
        *out = (int64_t)magnitude;
    } else {
        *out = magnitude == (uint64_t)INT64_MAX + 1 ? INT64_MIN : -(int64_t)magnitude;
    }
    return LATTICE_OK;
}

lattice_status lt_json_uint32(lt_json *json, uint32_t *out)
{
    lt_decimal number;
    uint64_t magnitude;
    LT_TRY(read_integer(json, 0, UINT32_MAX, &number, &magnitude));
    *out = (uint32_t)magnitude;
    return LATTICE_OK;
}

lattice_status lt_json_size(lt_json *json, size_t *out)
{
    lt_decimal number;
    uint64_t magnitude;
    LT_TRY(read_integer(json, 0, SIZE_MAX, &number, &magnitude));
    *out = (size_t)magnitude;
    return LATTICE_OK;
}

/* ------------------------------------------------------------------ whole values */

/* Reads a scalar, or begins a container. */
static lattice_status skip_start(lt_json *json)
{
    lt_str s;
    bool b;
    lt_decimal number;
    switch (lt_json_peek(json)) {
    case LT_JSON_NULL: return lt_json_null(json);
    case LT_JSON_BOOL: return lt_json_bool(json, &b);
    case LT_JSON_STRING: return lt_json_string(json, &s);
    case LT_JSON_ARRAY: return lt_json_begin_array(json);
    case LT_JSON_OBJECT: return lt_json_begin_object(json);
    case LT_JSON_NUMBER: LT_TRY(scan_number(json, &number)); return consume_number(json, &number);
    case LT_JSON_END:
    case LT_JSON_INVALID: break;
    }
    json->token = json->pos;
    if (!json->value_due) return fail_at(json, json->pos, "no value is due here");
    return fail_found(json, json->pos, "a value");
}

lattice_status lt_json_skip(lt_json *json)
{
    int outside = json->depth;
    LT_TRY(skip_start(json));
    while (json->depth > outside) {
        lt_str key;
        bool more;
        if (json->levels[json->depth - 1].is_object) {
            LT_TRY(lt_json_next_member(json, &key, &more));
        } else {
            LT_TRY(lt_json_next_element(json, &more));
        }
        if (more) LT_TRY(skip_start(json));
    }
    return LATTICE_OK;
}

lattice_status lt_json_raw(lt_json *json, lt_str *out)
{
    skip_space(json);
    size_t begin = json->pos;
    LT_TRY(lt_json_skip(json));
    *out = (lt_str){ (const char *)json->text + begin, json->pos - begin };
    return LATTICE_OK;
}

lattice_status lt_json_end(lt_json *json)
{
    skip_space(json);
    if (json->depth > 0 || json->value_due) return fail_at(json, json->pos, "the value has not been read to its end");
    if (json->pos < json->size) return fail_found(json, json->pos, "the end of the text");
    return LATTICE_OK;
}
