/* Status texts and error messages.
 *
 * A message may quote names from hostile files, so it is formatted into a scratch buffer first (the arguments may point into
 * the error itself, to put a prefix before it) and made into one clean line of UTF-8 before it is shown to anyone. */
#include "base/status.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/utf8.h"

const char *lattice_status_text(lattice_status status)
{
    switch (status) {
#define X(name, value, text)                                                                                                     \
    case LATTICE_##name: return text;
        LATTICE_STATUS_LIST(X)
#undef X
    }
    return "unknown status";
}

const char *lattice_version(void)
{
    return LATTICE_VERSION;
}

static bool is_control(uint32_t code)
{
    return code < 0x20 || (code >= 0x7F && code <= 0x9F) || code == 0x2028 || code == 0x2029;
}

size_t lt_format_line(char *out, size_t capacity, const char *format, va_list args)
{
    int wanted = vsnprintf(out, capacity, format, args);
    if (wanted < 0) {
        out[0] = '\0';
        return 0;
    }
    size_t len = (size_t)wanted;
    if (len >= capacity) {
        len = capacity - 1;
        len -= lt_utf8_incomplete_suffix((const uint8_t *)out, len);
    }
    size_t written = 0;
    for (size_t i = 0; i < len;) {
        uint32_t code;
        const uint8_t *at = (const uint8_t *)out + i;
        size_t n = lt_utf8_decode(at, len - i, &code);
        /* A real U+FFFD takes three bytes with this lead; an invalid subpart never starts so and decodes. */
        bool invalid = code == LT_REPLACEMENT && !(n == 3 && at[0] == 0xEF && at[1] == 0xBF && at[2] == 0xBD);
        if (invalid || is_control(code)) {
            out[written++] = '?';
        } else {
            memmove(out + written, out + i, n);
            written += n;
        }
        i += n;
    }
    out[written] = '\0';
    return written;
}

lattice_status lt_fail(lattice_error *err, lattice_status code, const char *format, ...)
{
    if (!err) return code;
    char line[sizeof err->message];
    va_list args;
    va_start(args, format);
    size_t len = lt_format_line(line, sizeof line, format, args);
    va_end(args);
    memcpy(err->message, line, len + 1);
    err->code = code;
    return code;
}

lattice_status lt_no_memory(lattice_error *err, size_t bytes, const char *what)
{
    return lt_fail(err, LATTICE_ERR_NO_MEMORY, "out of memory (%zu bytes for %s)", bytes, what);
}
