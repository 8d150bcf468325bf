/* Normalisers: what tokenizer.json does to a text before it is cut into words. */
#ifndef LT_TEXT_NORMALIZER_H
#define LT_TEXT_NORMALIZER_H

#include "text/component.h"
#include "text/normal_forms.h"
#include "text/regex.h"

typedef struct lt_normalizer lt_normalizer; /* immutable */

/* Working memory of one thread. */
typedef struct lt_normalizer_scratch {
    lt_work works[2];
    int current; /* the one that holds the text being worked on; -1: neither does */
    lt_form_scratch form;
    lt_regex_scratch *regex; /* borrowed */
} lt_normalizer_scratch;

void lt_normalizer_scratch_init(lt_normalizer_scratch *scratch, const lattice_allocator *mem, lt_regex_scratch *regex);
void lt_normalizer_scratch_trim(lt_normalizer_scratch *scratch); /* after a giant text */
void lt_normalizer_scratch_free(lt_normalizer_scratch *scratch);

/* Reads the value at `json`, an object or null (*normalizer NULL). */
lattice_status lt_normalizer_read(const lattice_allocator *mem, lt_json *json, lt_normalizer **normalizer, lattice_error *err);
/* BertNormalizer as a vocab.txt checkpoint asks for it. */
lattice_status lt_normalizer_bert(const lattice_allocator *mem, bool chinese, lt_maybe strip_accents, bool lowercase,
                                  lt_normalizer **normalizer, lattice_error *err);
void lt_normalizer_free(lt_normalizer *normalizer);

/* Whether a text cut before a space that stands between an ASCII letter or digit and another ASCII character normalises piece by
 * piece as it does whole, that space to a space or, *marks, to U+2581. */
bool lt_normalizer_is_local(const lt_normalizer *normalizer, bool *marks);

/* Normalises *view in place or into the scratch, where it stays until the next call. NULL does nothing. */
lattice_status lt_normalize(const lt_normalizer *normalizer, lt_normalizer_scratch *scratch, lt_view *view, bool track,
                            lattice_error *err);

#endif
