/* Oniguruma's expressions in PCRE2's words. */
#ifndef LT_TEXT_REGEX_TRANSLATE_H
#define LT_TEXT_REGEX_TRANSLATE_H

#include "base/bytes.h"

/* Appends to *out what PCRE2 must be given to match as Hugging Face tokenizers' engine, Oniguruma in its Ruby syntax, does with
 * `pattern`: general categories, \w, \d and \s with that engine's Unicode, \h as a hexadecimal digit, (?m) as "dot matches all".
 * What has no counterpart (set operations in classes, {n,m}+) is LATTICE_ERR_UNSUPPORTED naming `where`. `memory` is a
 * pcre2_general_context for what is asked of PCRE2 itself. */
lattice_status lt_regex_translate(const lattice_allocator *mem, void *memory, lt_str pattern, const char *where, lt_buf *out,
                                  lattice_error *err);

#endif
