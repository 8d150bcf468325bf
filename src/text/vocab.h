/* The vocabulary table: spelling ↔ id.
 *
 * All spellings lie in one block of bytes; an array over the ids says where each begins and how long it is (holes allowed), and
 * an open-addressing table of (32-bit hash, id), eight bytes a slot, finds the id of a spelling: a probe touches one cache line
 * of the table and, when the hash agrees, the spelling itself. Nothing is allocated per entry. */
#ifndef LT_TEXT_VOCAB_H
#define LT_TEXT_VOCAB_H

#include "base/bytes.h"

#define LT_VOCAB_NO_ID UINT32_MAX
#define LT_VOCAB_MAX_ID ((UINT32_C(1) << 24) - 1) /* bounds the array that a sparse file can ask for */

typedef struct lt_vocab {
    const lattice_allocator *mem;
    uint8_t *bytes;
    size_t n_bytes, bytes_capacity;
    struct lt_vocab_entry {
        uint32_t start, length; /* start LT_VOCAB_NO_ID: no such id */
    } * entries;
    size_t size, entries_capacity; /* size: largest id + 1 */
    struct lt_vocab_slot {
        uint32_t hash, id; /* id LT_VOCAB_NO_ID: empty */
    } * slots;
    uint32_t mask;    /* slots - 1; 0: none yet */
    uint32_t n;       /* spellings in the table; before: added */
    uint32_t longest; /* bytes of the longest spelling */
} lt_vocab;

void lt_vocab_init(lt_vocab *vocab, const lattice_allocator *mem);
void lt_vocab_free(lt_vocab *vocab);

/* Adds one token. `name` (the file) begins the messages: an id over LT_VOCAB_MAX_ID, an id with two spellings. */
lattice_status lt_vocab_add(lt_vocab *vocab, const char *name, lt_str spelling, uint32_t id, lattice_error *err);

/* What two tokens of one spelling mean: an error in an object, while in lists (Unigram, vocab.txt) the later id is the one found,
 * as Hugging Face does it. */
typedef enum lt_vocab_twice { LT_VOCAB_TWICE_REFUSED, LT_VOCAB_TWICE_LATER_WINS } lt_vocab_twice;

/* Builds the table once everything is added, and gives back what growing left over. */
lattice_status lt_vocab_index(lt_vocab *vocab, const char *name, lt_vocab_twice twice, lattice_error *err);

/* LT_VOCAB_NO_ID: not a token. */
uint32_t lt_vocab_find(const lt_vocab *vocab, const void *spelling, size_t length);

/* The same in steps, once there is an index, for many look-ups whose misses should overlap: the hash; a hint to fetch the slot;
 * once it is there, to fetch what it points to; the look-up itself. */
uint32_t lt_vocab_hash(const void *spelling, size_t length);
static inline void lt_vocab_fetch_slot(const lt_vocab *vocab, uint32_t hash)
{
    __builtin_prefetch(&vocab->slots[hash & vocab->mask]);
}
static inline void lt_vocab_fetch_entry(const lt_vocab *vocab, uint32_t hash)
{
    uint32_t id = vocab->slots[hash & vocab->mask].id;
    if (id != LT_VOCAB_NO_ID) __builtin_prefetch(&vocab->entries[id]);
}
static inline void lt_vocab_fetch_spelling(const lt_vocab *vocab, uint32_t hash)
{
    uint32_t id = vocab->slots[hash & vocab->mask].id;
    if (id != LT_VOCAB_NO_ID) __builtin_prefetch(vocab->bytes + vocab->entries[id].start);
}
uint32_t lt_vocab_find_hashed(const lt_vocab *vocab, uint32_t hash, const void *spelling, size_t length);

static inline lt_str lt_vocab_token(const lt_vocab *vocab, uint32_t id)
{
    if (id >= vocab->size || vocab->entries[id].start == LT_VOCAB_NO_ID) return (lt_str){ NULL, 0 };
    return (lt_str){ (const char *)vocab->bytes + vocab->entries[id].start, vocab->entries[id].length };
}

#endif
