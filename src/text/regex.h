/* Regular expressions of tokenizer.json by PCRE2, with its Unicode, its compiler to machine code where there is one, and limits
 * on what one search may cost. */
#ifndef LT_TEXT_REGEX_H
#define LT_TEXT_REGEX_H

#include "base/bytes.h"

typedef struct lt_regex lt_regex;
typedef struct lt_regex_scratch lt_regex_scratch; /* of one thread, for any expression */

/* An expression that does not compile is LATTICE_ERR_FORMAT naming `where` and the place in the expression. */
lattice_status lt_regex_compile(const lattice_allocator *mem, lt_str pattern, const char *where, lt_regex **regex,
                                lattice_error *err);
void lt_regex_free(lt_regex *regex);
lt_str lt_regex_pattern(const lt_regex *regex);

lattice_status lt_regex_scratch_create(const lattice_allocator *mem, lt_regex_scratch **scratch, lattice_error *err);
void lt_regex_scratch_free(lt_regex_scratch *scratch);

/* One pass over a text: successive matches, of which an empty one never follows at the end of the last. */
typedef struct lt_regex_matches {
    const lt_regex *regex;
    lt_regex_scratch *scratch;
    const uint8_t *text; /* valid UTF-8 */
    size_t n, at;
    size_t last_end; /* SIZE_MAX: none yet */
} lt_regex_matches;

lt_regex_matches lt_regex_begin(const lt_regex *regex, lt_regex_scratch *scratch, const uint8_t *text, size_t n);
/* *found false: there is no further match. A search that costs too much is LATTICE_ERR_INVALID_ARGUMENT. */
lattice_status lt_regex_next(lt_regex_matches *matches, bool *found, size_t *start, size_t *end, lattice_error *err);

#endif
