/* The growing byte string. Every append goes through lt_buf_reserve, the one place that can fail. */
#include "base/bytes.h"

#include <stdarg.h>
#include <stdio.h>

void lt_buf_init(lt_buf *buf, const lattice_allocator *mem)
{
    *buf = (lt_buf){ .mem = mem };
}

void lt_buf_free(lt_buf *buf)
{
    if (buf->data) lt_free(buf->mem, buf->data);
    *buf = (lt_buf){ .mem = buf->mem };
}

void lt_buf_clear(lt_buf *buf)
{
    buf->len = 0;
    buf->failed = false;
    if (buf->data) buf->data[0] = '\0';
}

bool lt_buf_reserve(lt_buf *buf, size_t extra)
{
    if (buf->failed) return false;
    /* One byte more for the NUL; len < capacity once there is data. */
    if (buf->data && extra < buf->capacity - buf->len) return true;
    size_t wanted;
    bool fits = lt_add(buf->len, extra, &wanted) && lt_add(wanted, 1, &wanted);
    if (!fits || !LT_GROW(buf->mem, buf->data, buf->capacity, wanted)) {
        buf->failed = true;
        return false;
    }
    buf->data[buf->len] = '\0';
    return true;
}

void lt_buf_append(lt_buf *buf, const void *data, size_t len)
{
    if (!lt_buf_reserve(buf, len)) return;
    if (len) memcpy(buf->data + buf->len, data, len);
    buf->len += len;
    buf->data[buf->len] = '\0';
}

void lt_buf_append_z(lt_buf *buf, const char *z)
{
    lt_buf_append(buf, z, strlen(z));
}

void lt_buf_byte(lt_buf *buf, char byte)
{
    if (!lt_buf_reserve(buf, 1)) return;
    buf->data[buf->len++] = byte;
    buf->data[buf->len] = '\0';
}

void lt_buf_printf(lt_buf *buf, const char *format, ...)
{
    if (!lt_buf_reserve(buf, 64)) return;
    va_list args;
    va_start(args, format);
    int wanted = vsnprintf(buf->data + buf->len, buf->capacity - buf->len, format, args);
    va_end(args);
    if (wanted >= 0 && (size_t)wanted >= buf->capacity - buf->len) {
        buf->data[buf->len] = '\0'; /* what was cut off must not show when growing fails */
        if (!lt_buf_reserve(buf, (size_t)wanted)) return;
        va_start(args, format);
        wanted = vsnprintf(buf->data + buf->len, buf->capacity - buf->len, format, args);
        va_end(args);
    }
    if (wanted < 0) {
        buf->data[buf->len] = '\0';
        buf->failed = true;
        return;
    }
    buf->len += (size_t)wanted;
}
