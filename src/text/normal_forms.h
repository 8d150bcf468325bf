/* NFC, NFD, NFKC, NFKD with alignment. */
#ifndef LT_TEXT_NORMAL_FORMS_H
#define LT_TEXT_NORMAL_FORMS_H

#include "text/aligned.h"

typedef enum lt_form { LT_NFC, LT_NFD, LT_NFKC, LT_NFKD } lt_form;

/* Working memory: the characters of one segment. */
typedef struct lt_form_char {
    uint32_t c;
    uint8_t ccc;
    long change;
} lt_form_char;

typedef struct lt_form_scratch {
    const lattice_allocator *mem;
    lt_form_char *chars, *sorted, *held;
    size_t chars_capacity, sorted_capacity, held_capacity;
} lt_form_scratch;

void lt_form_scratch_free(lt_form_scratch *scratch);

/* Normalises *view through `out`; a text already in the form is left where it is. */
lattice_status lt_normal_form(lt_form form, lt_form_scratch *scratch, lt_view *view, lt_work *out, bool track,
                              lattice_error *err);

#endif
