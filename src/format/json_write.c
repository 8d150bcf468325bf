/* The JSON writer: appends to a lt_buf and puts the commas. */
#include <math.h>

#include "base/utf8.h"
#include "format/decimal.h"
#include "format/json.h"

/* Before a value or a key. */
static void separate(lt_json_writer *w)
{
    if (w->comma) lt_buf_byte(w->out, ',');
    w->comma = true;
}

void lt_json_write_begin(lt_json_writer *w, char bracket)
{
    separate(w);
    lt_buf_byte(w->out, bracket);
    w->comma = false;
}

void lt_json_write_end(lt_json_writer *w, char bracket)
{
    lt_buf_byte(w->out, bracket);
    w->comma = true;
}

static void write_escape(lt_buf *out, uint8_t byte)
{
    static const char hex[] = "0123456789abcdef";
    char escape[6] = { '\\', (char)byte, '0', '0', hex[byte >> 4], hex[byte & 15] };
    size_t len = 2;
    switch (byte) {
    case '"':
    case '\\': break;
    case '\b': escape[1] = 'b'; break;
    case '\f': escape[1] = 'f'; break;
    case '\n': escape[1] = 'n'; break;
    case '\r': escape[1] = 'r'; break;
    case '\t': escape[1] = 't'; break;
    default: escape[1] = 'u'; len = 6;
    }
    lt_buf_append(out, escape, len);
}

static void write_quoted(lt_buf *out, lt_str s)
{
    const uint8_t *bytes = (const uint8_t *)s.data;
    lt_buf_byte(out, '"');
    size_t begin = 0, i = 0;
    while (i < s.len) {
        uint8_t byte = bytes[i];
        size_t taken = 1;
        if (byte >= 0x80) {
            taken = lt_utf8_sequence(bytes + i, s.len - i);
        } else if (byte < 0x20 || byte == '"' || byte == '\\') {
            taken = 0;
        }
        if (taken) {
            i += taken;
            continue;
        }
        lt_buf_append(out, bytes + begin, i - begin);
        if (byte < 0x80) {
            write_escape(out, byte);
            i++;
        } else {
            uint32_t code;
            i += lt_utf8_decode(bytes + i, s.len - i, &code);
            lt_buf_append(out, "\xEF\xBF\xBD", 3);
        }
        begin = i;
    }
    lt_buf_append(out, bytes + begin, s.len - begin);
    lt_buf_byte(out, '"');
}

void lt_json_write_key_str(lt_json_writer *w, lt_str key)
{
    separate(w);
    write_quoted(w->out, key);
    lt_buf_byte(w->out, ':');
    w->comma = false;
}

void lt_json_write_key(lt_json_writer *w, const char *key)
{
    lt_json_write_key_str(w, lt_str_of(key));
}

void lt_json_write_str(lt_json_writer *w, lt_str s)
{
    separate(w);
    write_quoted(w->out, s);
}

void lt_json_write_z(lt_json_writer *w, const char *z)
{
    lt_json_write_str(w, lt_str_of(z));
}

void lt_json_write_bool(lt_json_writer *w, bool value)
{
    separate(w);
    lt_buf_append_z(w->out, value ? "true" : "false");
}

void lt_json_write_null(lt_json_writer *w)
{
    separate(w);
    lt_buf_append_z(w->out, "null");
}

void lt_json_write_int(lt_json_writer *w, int64_t value)
{
    separate(w);
    lt_buf_printf(w->out, "%lld", (long long)value);
}

void lt_json_write_uint(lt_json_writer *w, uint64_t value)
{
    separate(w);
    lt_buf_printf(w->out, "%llu", (unsigned long long)value);
}

void lt_json_write_double(lt_json_writer *w, double value)
{
    if (!isfinite(value)) {
        w->out->failed = true;
        return;
    }
    char text[32];
    separate(w);
    lt_buf_append(w->out, text, lt_format_double(value, text));
}

void lt_json_write_float(lt_json_writer *w, float value)
{
    if (!isfinite(value)) {
        w->out->failed = true;
        return;
    }
    char text[16];
    separate(w);
    lt_buf_append(w->out, text, lt_format_float(value, text));
}

void lt_json_write_floats(lt_json_writer *w, const float *values, size_t n)
{
    enum { LARGEST_ITEM = 17 }; /* a number and its comma */
    size_t room;
    separate(w);
    if (!lt_mul(n, LARGEST_ITEM, &room) || !lt_add(room, 2, &room)) w->out->failed = true;
    if (!lt_buf_reserve(w->out, room)) return;
    /* There is room for all: no check a number. */
    char *to = w->out->data + w->out->len;
    *to++ = '[';
    for (size_t i = 0; i < n; i++) {
        if (!isfinite(values[i])) {
            w->out->data[w->out->len] = '\0';
            w->out->failed = true;
            return;
        }
        if (i > 0) *to++ = ',';
        to += lt_format_float(values[i], to);
    }
    *to++ = ']';
    *to = '\0';
    w->out->len = (size_t)(to - w->out->data);
}
