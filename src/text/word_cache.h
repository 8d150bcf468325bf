/* A bounded cache of words and their tokens, one for each thread: natural text is a few thousand words again and again.
 *
 * Two tables of two-way sets, most recent first. A short word (at most 16 bytes and 3 tokens) is one 32-byte entry whose key is
 * two numbers, so a set is one cache line and a hit compares three values; longer words (at most 48 bytes and 14 tokens) keep
 * their bytes in 128-byte entries. What fits neither is not kept. A hit is exact: the word itself is compared, not a hash. */
#ifndef LT_TEXT_WORD_CACHE_H
#define LT_TEXT_WORD_CACHE_H

#include "text/model.h"
#include "text/word_hash.h"

#define LT_WORD_CACHE_LONGEST 48

typedef struct lt_word_short {
    lt_word_key key;
    uint32_t ids[3];
    uint8_t ends[2]; /* of the first two tokens; the last one ends with the word */
    uint8_t size;    /* bytes of the word; 0: empty */
    uint8_t n;
} lt_word_short;

typedef struct lt_word_long {
    uint8_t word[LT_WORD_CACHE_LONGEST];
    uint32_t ids[14];
    uint8_t ends[14];
    uint8_t size;
    uint8_t n;
    uint32_t hash;
    uint32_t unused;
} lt_word_long;

typedef struct lt_word_cache {
    const lattice_allocator *mem;
    lt_word_short *short_words; /* [sets][2] */
    lt_word_long *long_words;   /* [sets][2] */
} lt_word_cache;

lattice_status lt_word_cache_create(lt_word_cache *cache, const lattice_allocator *mem, lattice_error *err);
void lt_word_cache_free(lt_word_cache *cache);

/* Appends the tokens of the word if it is known. *found false: unknown. Fails only without memory. */
bool lt_word_cache_get(lt_word_cache *cache, const uint8_t *word, size_t size, lt_pieces *out, bool *found);

/* Keeps the tokens of a word, if they fit: its pieces must follow each other from 0 to size. */
void lt_word_cache_put(lt_word_cache *cache, const uint8_t *word, size_t size, const lt_piece *pieces, size_t n);

#endif
