/* A normaliser or pre-tokenizer as tokenizer.json writes it: an object with a type and some of a known set of members, in any
 * order. It is read into one struct first, because the type may come last; what is absent keeps Hugging Face's default. */
#ifndef LT_TEXT_COMPONENT_H
#define LT_TEXT_COMPONENT_H

#include "format/json.h"

typedef enum lt_maybe { LT_ABSENT = -1, LT_FALSE = 0, LT_TRUE = 1 } lt_maybe;

static inline bool lt_maybe_or(lt_maybe value, bool otherwise)
{
    return value == LT_ABSENT ? otherwise : value == LT_TRUE;
}

typedef struct lt_component {
    lt_str type; /* data NULL: absent */
    lt_maybe clean_text, handle_chinese_chars, strip_accents, lowercase, left, right;
    lt_maybe add_prefix_space, trim_offsets, use_regex, split, individual_digits, invert;
    bool has_pattern, pattern_is_regex;
    lt_str pattern, content, prepend, replacement, prepend_scheme, behavior, charsmap, delimiter; /* data NULL: absent */
    struct lt_component *children;                                                                /* of a Sequence, in order */
    struct lt_component *next;
    bool has_children;
} lt_component;

/* Reads the object at `json`; strings are copied into the arena. `list` names the member that holds the parts of a Sequence.
 * An unknown member is skipped. Sequences nest at most 16 deep. */
lattice_status lt_component_read(lt_arena *arena, lt_json *json, const char *list, lt_component **component);

#endif
