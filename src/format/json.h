/* JSON (RFC 8259): a strict pull reader and a writer.
 *
 * The reader walks a whole text in memory and allocates nothing per value: strings without escapes are slices of the text,
 * others are decoded into the reader's own buffer. Refused, with file, line and column: anything after the value, depth over
 * LT_JSON_MAX_DEPTH, NaN and Infinity, leading zeros, invalid UTF-8, control characters in strings, duplicate keys (found by a
 * hash set the reader keeps for the objects open now). Lone surrogates in escapes become U+FFFD; \u0000 is a character.
 *
 *     LT_TRY(lt_json_begin_object(&j));
 *     for (lt_str key; ;) {
 *         bool more;
 *         LT_TRY(lt_json_next_member(&j, &key, &more));
 *         if (!more) break;
 *         if (lt_str_is(key, "hidden_size")) LT_TRY(lt_json_size(&j, &config->hidden_size));
 *         else LT_TRY(lt_json_skip(&j));
 *     }
 *
 * The grammar is enforced whatever the order of the calls: a value can be read only where one is due, and a container can go on
 * only when it was read. A value of another type than asked for stays unread.
 */
#ifndef LT_FORMAT_JSON_H
#define LT_FORMAT_JSON_H

#include "base/bytes.h"

#define LT_JSON_MAX_DEPTH 128

typedef enum lt_json_type {
    LT_JSON_NULL,
    LT_JSON_BOOL,
    LT_JSON_NUMBER,
    LT_JSON_STRING,
    LT_JSON_ARRAY,
    LT_JSON_OBJECT,
    LT_JSON_END,     /* nothing but white space is left */
    LT_JSON_INVALID, /* no value starts here; reading it reports the error */
} lt_json_type;

typedef struct lt_json {
    const char *name; /* for messages: the file's path or "request"; borrowed */
    const uint8_t *text;
    size_t size, pos;
    lattice_error *err;
    lt_buf strings; /* decoded strings with escapes */
    /* Private to json.c: where the last value or key began (errors point there), whether a value is due now, the open
     * containers, and the keys seen in the open objects. */
    size_t token;
    bool value_due;
    int depth;
    struct lt_json_level {
        uint8_t is_object, first;
        size_t keys_begin;
    } levels[LT_JSON_MAX_DEPTH];
    struct lt_json_keys *keys;
} lt_json;

/* Borrows text and name. err may be NULL. Must be closed. */
void lt_json_open(lt_json *json, const lattice_allocator *mem, const char *name, const void *text, size_t size, lattice_error *err);
void lt_json_close(lt_json *json);

/* The type of the next value, without consuming it. */
lt_json_type lt_json_peek(lt_json *json);

lattice_status lt_json_begin_object(lt_json *json);
/* *more false: the object has ended and is consumed. Else *key is the next key and its value must be read or skipped. The key
 * is valid until the next string or key is read. */
lattice_status lt_json_next_member(lt_json *json, lt_str *key, bool *more);
lattice_status lt_json_begin_array(lt_json *json);
lattice_status lt_json_next_element(lt_json *json, bool *more);

/* Typed values; another type is LATTICE_ERR_FORMAT saying what was expected and found. */
lattice_status lt_json_string(lt_json *json, lt_str *out); /* valid until the next string or key is read */
lattice_status lt_json_bool(lt_json *json, bool *out);
lattice_status lt_json_null(lt_json *json);
lattice_status lt_json_double(lt_json *json, double *out);
lattice_status lt_json_float(lt_json *json, float *out);  /* correctly rounded from the decimal text */
lattice_status lt_json_int64(lt_json *json, int64_t *out);  /* an integer in range (1e3 and 5.0 are integers) */
lattice_status lt_json_uint32(lt_json *json, uint32_t *out);
lattice_status lt_json_size(lt_json *json, size_t *out);    /* an integer >= 0 */

/* Skips a value of any type, checking it; lt_json_raw also returns its text. */
lattice_status lt_json_skip(lt_json *json);
lattice_status lt_json_raw(lt_json *json, lt_str *out);
/* Nothing but white space may be left. */
lattice_status lt_json_end(lt_json *json);
/* Fills err with "NAME:LINE:COLUMN: message" and returns LATTICE_ERR_FORMAT. The place is where the value or key read last
 * begins; the column counts code points from 1. */
lattice_status lt_json_fail(lt_json *json, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* ------------------------------------------------------------------ writer */

/* Appends to a lt_buf; commas are put by the writer. NaN and infinite numbers set buf->failed: they are never written. */
typedef struct lt_json_writer {
    lt_buf *out;
    bool comma;
} lt_json_writer;

static inline lt_json_writer lt_json_writer_on(lt_buf *out) { return (lt_json_writer){ out, false }; }
void lt_json_write_begin(lt_json_writer *w, char bracket); /* '{' or '[' */
void lt_json_write_end(lt_json_writer *w, char bracket);   /* '}' or ']' */
void lt_json_write_key(lt_json_writer *w, const char *key);
void lt_json_write_key_str(lt_json_writer *w, lt_str key);
void lt_json_write_str(lt_json_writer *w, lt_str s); /* invalid UTF-8 becomes U+FFFD */
void lt_json_write_z(lt_json_writer *w, const char *z);
void lt_json_write_bool(lt_json_writer *w, bool value);
void lt_json_write_null(lt_json_writer *w);
void lt_json_write_int(lt_json_writer *w, int64_t value);
void lt_json_write_uint(lt_json_writer *w, uint64_t value);
void lt_json_write_double(lt_json_writer *w, double value);
void lt_json_write_float(lt_json_writer *w, float value); /* shortest digits that give the float back */
void lt_json_write_floats(lt_json_writer *w, const float *values, size_t n); /* an array */

/* The shortest decimal text of a finite float that reads back as it, at most 16 bytes, not terminated; returns its length. */
size_t lt_format_float(float value, char out[16]);

#endif
