/* SentencePiece's precompiled character map: a double-array trie from character sequences to replacements. */
#ifndef LT_TEXT_CHARSMAP_H
#define LT_TEXT_CHARSMAP_H

#include "text/aligned.h"

typedef struct lt_charsmap {
    const uint32_t *units; /* of the trie, as stored */
    size_t n_units;
    const char *strings; /* replacements, each ended by a NUL */
    size_t n_strings;
    uint8_t ascii[128]; /* 1: this character has a replacement */
} lt_charsmap;

/* Decodes and checks the base64 of a `precompiled_charsmap`; everything is kept in the arena. */
lattice_status lt_charsmap_read(lt_arena *arena, lt_str base64, const char *where, lt_charsmap *map, lattice_error *err);

/* Applies the map to *view through `out`, grapheme cluster by grapheme cluster as Hugging Face tokenizers does. */
lattice_status lt_charsmap_apply(const lt_charsmap *map, lt_view *view, lt_work *out, bool track, lattice_error *err);

#endif
