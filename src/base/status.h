/* Errors inside the library: one path out of every function.
 *
 * LT_TRY returns the failing status to the caller; lt_fail fills the error and returns its code, so that a failure reads
 *     return lt_fail(err, LATTICE_ERR_FORMAT, "%s: tensor '%s' ends past the file", path, name);
 */
#ifndef LT_BASE_STATUS_H
#define LT_BASE_STATUS_H

#include <stdarg.h>

#include "lattice.h"

#define LT_TRY(expr)                                     \
    do {                                                 \
        lattice_status lt_try_ = (expr);                 \
        if (lt_try_ != LATTICE_OK) return lt_try_;       \
    } while (0)

/* As LT_TRY, in functions with a cleanup label: sets `status` and goes to `done`. */
#define LT_GO(expr)                                      \
    do {                                                 \
        status = (expr);                                 \
        if (status != LATTICE_OK) goto done;             \
    } while (0)

/* Fills *err (if not NULL) and returns `code`. The message is cut at a UTF-8 boundary; control characters and invalid UTF-8
 * (names come from hostile files) are shown as '?'. */
lattice_status lt_fail(lattice_error *err, lattice_status code, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/* Formats one clean line as lt_fail does into out[capacity], capacity > 0; returns its length without the NUL. */
size_t lt_format_line(char *out, size_t capacity, const char *format, va_list args) __attribute__((format(printf, 3, 0)));

/* lt_fail(err, LATTICE_ERR_NO_MEMORY, "out of memory (%zu bytes for %s)"). */
lattice_status lt_no_memory(lattice_error *err, size_t bytes, const char *what);

#endif
