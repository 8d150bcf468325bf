/* The subword models: WordPiece, BPE, Unigram behind one interface, over one vocabulary table.
 *
 * A model is read in two steps, because what surrounds it in tokenizer.json may come later: lt_subword_read takes the `model`
 * object as it stands, lt_subword_prepare builds the look-up tables once the pre-tokenizer is known. */
#ifndef LT_TEXT_MODEL_H
#define LT_TEXT_MODEL_H

#include "format/json.h"

/* A token of a span: bytes [start, end) of the span. Byte fallback gives several tokens with the range of their character. */
typedef struct lt_piece {
    uint32_t id;
    uint32_t start, end;
} lt_piece;

/* Receives the pieces of a giant word while it is being encoded, in order; data NULL: what it got of this word is void, the word
 * starts again. */
typedef lattice_status (*lt_take_pieces)(void *owner, const lt_piece *data, size_t n, lattice_error *err);

typedef struct lt_pieces {
    const lattice_allocator *mem;
    lt_piece *data;
    size_t n, capacity;
    lt_take_pieces take; /* NULL: all pieces of a word stay here. Else n must be 0 before a word, and the last ones stay here */
    void *owner;
    bool taken; /* some pieces of the word were handed over */
} lt_pieces;

typedef struct lt_subword lt_subword;                 /* immutable after prepare */
typedef struct lt_subword_scratch lt_subword_scratch; /* of one thread */

/* Reads the value at `json`: the `model` object of tokenizer.json. `type` may stand anywhere in it, or be absent (old files: a
 * vocab that is an array is Unigram, merges mean BPE, else WordPiece). */
lattice_status lt_subword_read(const lattice_allocator *mem, lt_json *json, lt_subword **model, lattice_error *err);
/* WordPiece from vocab.txt: one token a line, the id is the line's number from 0. */
lattice_status lt_subword_read_vocab_txt(const lattice_allocator *mem, const char *path, const void *text, size_t size,
                                         lt_subword **model, lattice_error *err);
/* byte_level: spans are raw bytes and the stored spellings use the byte-to-character alphabet of GPT-2, which is undone here once
 * instead of being applied to every text. */
lattice_status lt_subword_prepare(lt_subword *model, bool byte_level, lattice_error *err);
void lt_subword_free(lt_subword *model);

const char *lt_subword_kind(const lt_subword *model); /* "WordPiece", "BPE", "Unigram" */
size_t lt_subword_size(const lt_subword *model);      /* largest id + 1 */
/* A BPE that falls back to bytes: what a byte-level pre-tokenizer spells is then visible in the tokens. Before prepare. */
bool lt_subword_falls_back_to_bytes(const lt_subword *model);
lt_str lt_subword_token(const lt_subword *model, uint32_t id); /* stored spelling; data NULL: no such id */
bool lt_subword_find(const lt_subword *model, lt_str spelling, uint32_t *id); /* by stored spelling */

lattice_status lt_subword_scratch_create(const lt_subword *model, lt_subword_scratch **scratch, lattice_error *err);
void lt_subword_scratch_free(lt_subword_scratch *scratch);

/* Appends the tokens of one pre-tokenised span of valid UTF-8 (raw bytes when byte_level), size > 0. Safe from several threads
 * with a scratch each. */
lattice_status lt_subword_encode(const lt_subword *model, lt_subword_scratch *scratch, const uint8_t *span, size_t size,
                                 lt_pieces *out, lattice_error *err);

#endif
