/* Byte strings with a length: borrowed (lt_str) and growing (lt_buf). NUL is a character, never an end. */
#ifndef LT_BASE_BYTES_H
#define LT_BASE_BYTES_H

#include <string.h>

#include "base/memory.h"

typedef struct lt_str {
    const char *data;
    size_t len;
} lt_str;

#define LT_STR(literal) ((lt_str){ (literal), sizeof(literal) - 1 })

static inline lt_str lt_str_of(const char *z) { return (lt_str){ z, strlen(z) }; }
static inline bool lt_str_eq(lt_str a, lt_str b) { return a.len == b.len && (a.len == 0 || memcmp(a.data, b.data, a.len) == 0); }
static inline bool lt_str_is(lt_str a, const char *z) { return lt_str_eq(a, lt_str_of(z)); }
static inline bool lt_str_starts(lt_str s, const char *prefix)
{
    size_t n = strlen(prefix);
    return s.len >= n && memcmp(s.data, prefix, n) == 0;
}
static inline bool lt_str_ends(lt_str s, const char *suffix)
{
    size_t n = strlen(suffix);
    return s.len >= n && memcmp(s.data + s.len - n, suffix, n) == 0;
}
/* For "%.*s". */
#define LT_STR_ARG(s) (int)((s).len > 200 ? 200 : (s).len), (s).data

/* A growing byte string. A failed append sets `failed` and leaves the contents as they were, so that a writer checks once at
 * the end. data is NUL-terminated whenever it is not NULL. */
typedef struct lt_buf {
    const lattice_allocator *mem;
    char *data;
    size_t len, capacity;
    bool failed;
} lt_buf;

void lt_buf_init(lt_buf *buf, const lattice_allocator *mem);
void lt_buf_free(lt_buf *buf);
void lt_buf_clear(lt_buf *buf); /* keeps the memory */
bool lt_buf_reserve(lt_buf *buf, size_t extra);
void lt_buf_append(lt_buf *buf, const void *data, size_t len);
void lt_buf_append_z(lt_buf *buf, const char *z);
void lt_buf_byte(lt_buf *buf, char byte);
void lt_buf_printf(lt_buf *buf, const char *format, ...) __attribute__((format(printf, 2, 3)));
static inline lt_str lt_buf_str(const lt_buf *buf) { return (lt_str){ buf->data, buf->len }; }

#endif
