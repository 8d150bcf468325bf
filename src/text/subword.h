/* What the subword models share: one struct, the vocabulary, a scratch. Private to wordpiece.c, bpe.c, unigram.c, subword.c.
 *
 * subword.c reads the `model` object and answers what does not depend on the kind; each kind prepares its own tables and encodes
 * one word. Caching of words and, for models that know the GPT-2 alphabet only by its characters, its translation happen before
 * a kind is asked. */
#ifndef LT_TEXT_SUBWORD_H
#define LT_TEXT_SUBWORD_H

#include "text/model.h"
#include "text/trie.h"
#include "text/vocab.h"
#include "text/word_cache.h"

typedef enum lt_subword_type { LT_WORDPIECE, LT_BPE, LT_UNIGRAM, LT_SUBWORD_UNKNOWN } lt_subword_type;

/* Greedy longest match: the longest token, in bytes, that begins with a byte, at the start of a word and inside it (without the
 * prefix); it bounds the search. */
typedef struct lt_wordpiece {
    size_t max_chars;
    uint32_t longest_first[256], longest_next[256];
} lt_wordpiece;

/* A merge, keyed by the pair; left LT_VOCAB_NO_ID: an empty slot. */
typedef struct lt_merge {
    uint32_t left, right, rank, id;
} lt_merge;

typedef struct lt_bpe {
    lt_merge *merges; /* open addressing, n_slots a power of two or 0 */
    uint32_t shift;   /* 64 - log2(n_slots) */
    size_t n_slots, n_merges;
    bool fuse_unk, byte_fallback, ignore_merges;
    uint32_t byte_tokens[256]; /* ids of <0x00> … <0xFF> */
    uint32_t units[256];       /* id of a byte (byte-level), or of an ASCII character, where no prefix or suffix is in the way */
} lt_bpe;

typedef struct lt_unigram {
    double *scores; /* [vocab.size] */
    size_t n_scores, capacity;
    double unk_score;
    lt_trie trie;
    bool byte_fallback;
    uint32_t byte_tokens[256];
} lt_unigram;

struct lt_subword {
    const lattice_allocator *mem;
    char *name; /* of the file, for messages */
    lt_subword_type type;
    bool byte_level;
    lt_vocab vocab;
    lt_arena strings;
    lt_str unk_token, prefix, suffix; /* data NULL: none */
    uint32_t unk_id;                  /* LT_VOCAB_NO_ID: none, or not in the vocabulary */
    lt_wordpiece wordpiece;
    lt_bpe bpe;
    lt_unigram unigram;
};

typedef struct lt_unit {
    uint32_t id, length; /* bytes of the word it covers */
} lt_unit;

typedef struct lt_symbol {
    uint32_t id, length;     /* bytes of the word it covers */
    uint32_t previous, next; /* neighbours; UINT32_MAX: none */
} lt_symbol;

typedef struct lt_tail {
    uint32_t id, length, unit; /* a token, and the unit it begins with, counted from the border of two windows */
} lt_tail;

typedef struct lt_pair {
    uint32_t rank, id; /* of the symbol and the next one; rank UINT32_MAX: they do not merge */
} lt_pair;

typedef struct lt_viterbi_node {
    double score;
    uint32_t start, id;
} lt_viterbi_node;

struct lt_subword_scratch {
    const lattice_allocator *mem;
    lt_word_cache cache;
    lt_buf text;   /* a word in the GPT-2 alphabet; a unit with its prefix and suffix */
    size_t window; /* units of a word that are merged at once */
    lt_unit *units;
    size_t units_capacity;
    lt_symbol *symbols;
    size_t symbols_capacity;
    lt_tail *tail;
    size_t tail_capacity;
    lt_pair *pairs;
    size_t pairs_capacity;
    uint64_t *first_pairs, *heap; /* rank << 32 | place */
    size_t first_pairs_capacity, heap_capacity;
    lt_viterbi_node *nodes;
    size_t nodes_capacity;
    lt_pieces pieces;
    uint64_t steps; /* elementary steps of merging and searching so far: what tests of growth count */
};

lattice_status lt_wordpiece_prepare(lt_subword *model, lattice_error *err);
lattice_status lt_wordpiece_encode(const lt_subword *model, lt_subword_scratch *scratch, const uint8_t *word, size_t size,
                                   lt_pieces *out, lattice_error *err);

/* Reads the `merges` list; the vocabulary must be complete. Replaces what was read before. A merge that makes no token is an
 * error, or, where `unresolved` is given, sets it. */
lattice_status lt_bpe_read_merges(lt_subword *model, lt_json *json, bool *unresolved, lattice_error *err);
lattice_status lt_bpe_prepare(lt_subword *model, lattice_error *err);
lattice_status lt_bpe_encode(const lt_subword *model, lt_subword_scratch *scratch, const uint8_t *word, size_t size,
                             lt_pieces *out, lattice_error *err);

lattice_status lt_unigram_prepare(lt_subword *model, lattice_error *err);
lattice_status lt_unigram_encode(const lt_subword *model, lt_subword_scratch *scratch, const uint8_t *word, size_t size,
                                 lt_pieces *out, lattice_error *err);

/* One more piece; false without memory. */
static inline bool lt_pieces_add(lt_pieces *pieces, uint32_t id, size_t start, size_t end)
{
    if (pieces->n == pieces->capacity && !LT_GROW(pieces->mem, pieces->data, pieces->capacity, pieces->n + 1)) return false;
    pieces->data[pieces->n++] = (lt_piece){ id, (uint32_t)start, (uint32_t)end };
    return true;
}

#define LT_BPE_WINDOW 512 /* units; measured on words of a megabyte */
#define LT_PIECES_AT_ONCE 8192

/* Hands the pieces over if they are many and somebody takes them. */
static inline lattice_status lt_pieces_hand_over(lt_pieces *pieces, lattice_error *err)
{
    if (pieces->n < LT_PIECES_AT_ONCE || pieces->take == NULL) return LATTICE_OK;
    pieces->taken = true;
    LT_TRY(pieces->take(pieces->owner, pieces->data, pieces->n, err));
    pieces->n = 0;
    return LATTICE_OK;
}

/* Finds the tokens <0x00> … <0xFF>. */
void lt_subword_find_byte_tokens(const lt_subword *model, uint32_t tokens[256]);

/* The failure of a model that meets something unknown and has no token for it. */
lattice_status lt_subword_no_unknown(const lt_subword *model, lattice_error *err);

/* Bytes of the UTF-8 character that starts with `byte` (text is valid here). */
static inline size_t lt_utf8_size(uint8_t byte)
{
    return byte < 0x80 ? 1 : byte < 0xE0 ? 2 : byte < 0xF0 ? 3 : 4;
}

#endif
