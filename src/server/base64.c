/* Base64; see base64.h. */
#include "server/base64.h"

static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

void lt_base64_append(lt_buf *out, const void *data, size_t n)
{
    const uint8_t *from = data;
    if (n > SIZE_MAX / 2 || !lt_buf_reserve(out, (n + 2) / 3 * 4)) {
        out->failed = true;
        return;
    }
    char *to = out->data + out->len;
    for (; n >= 3; n -= 3, from += 3, to += 4) {
        uint32_t bits = (uint32_t)from[0] << 16 | (uint32_t)from[1] << 8 | from[2];
        to[0] = digits[bits >> 18];
        to[1] = digits[bits >> 12 & 63];
        to[2] = digits[bits >> 6 & 63];
        to[3] = digits[bits & 63];
    }
    if (n > 0) {
        uint32_t bits = (uint32_t)from[0] << 16 | (n > 1 ? (uint32_t)from[1] << 8 : 0);
        to[0] = digits[bits >> 18];
        to[1] = digits[bits >> 12 & 63];
        to[2] = n > 1 ? digits[bits >> 6 & 63] : '=';
        to[3] = '=';
        to += 4;
    }
    *to = '\0';
    out->len = (size_t)(to - out->data);
}

void lt_write_base64(lt_json_writer *w, const void *data, size_t n)
{
    lt_json_write_begin(w, '"'); /* quotes are brackets around what needs no escapes */
    lt_base64_append(w->out, data, n);
    lt_json_write_end(w, '"');
}
