/* The vocabulary table; see vocab.h. */
#include "text/vocab.h"

#include "text/word_hash.h"

void lt_vocab_init(lt_vocab *vocab, const lattice_allocator *mem)
{
    *vocab = (lt_vocab){ .mem = mem };
}

void lt_vocab_free(lt_vocab *vocab)
{
    if (vocab->mem == NULL) return;
    lt_free(vocab->mem, vocab->bytes);
    lt_free(vocab->mem, vocab->entries);
    lt_free(vocab->mem, vocab->slots);
    *vocab = (lt_vocab){ .mem = vocab->mem };
}

uint32_t lt_vocab_hash(const void *spelling, size_t length)
{
    uint64_t h = lt_word_hash(spelling, length);
    return (uint32_t)(h ^ h >> 32);
}

static inline bool same(const lt_vocab *vocab, uint32_t id, const void *spelling, size_t length)
{
    const struct lt_vocab_entry *entry = &vocab->entries[id];
    if (entry->length != length) return false;
    if (length == 0) return true;
    const uint8_t *known = vocab->bytes + entry->start;
    if (length > LT_WORD_KEY_MAX) return memcmp(known, spelling, length) == 0;
    lt_word_key a = lt_word_key_of(known, length), b = lt_word_key_of(spelling, length);
    return a.low == b.low && a.high == b.high;
}

static inline struct lt_vocab_slot *find_slot(const lt_vocab *vocab, uint32_t hash, const void *spelling, size_t length)
{
    for (uint32_t i = hash;; i++) {
        struct lt_vocab_slot *slot = &vocab->slots[i & vocab->mask];
        if (slot->id == LT_VOCAB_NO_ID || (slot->hash == hash && same(vocab, slot->id, spelling, length))) return slot;
    }
}

lattice_status lt_vocab_add(lt_vocab *vocab, const char *name, lt_str spelling, uint32_t id, lattice_error *err)
{
    if (id > LT_VOCAB_MAX_ID)
        return lt_fail(err, LATTICE_ERR_FORMAT, "%s: token '%.*s' has id %u, over the limit of %u", name, LT_STR_ARG(spelling),
                       id, LT_VOCAB_MAX_ID);
    lt_str old = lt_vocab_token(vocab, id);
    if (old.data != NULL)
        return lt_fail(err, LATTICE_ERR_FORMAT, "%s: tokens '%.*s' and '%.*s' have the same id %u", name, LT_STR_ARG(old),
                       LT_STR_ARG(spelling), id);
    if (spelling.len > UINT32_MAX - 1 - vocab->n_bytes)
        return lt_fail(err, LATTICE_ERR_FORMAT, "%s: the vocabulary's spellings exceed 4 GB", name);
    if (!LT_GROW(vocab->mem, vocab->bytes, vocab->bytes_capacity, vocab->n_bytes + spelling.len + 1))
        return lt_no_memory(err, spelling.len, "the vocabulary");
    if (id >= vocab->size) {
        if (!LT_GROW(vocab->mem, vocab->entries, vocab->entries_capacity, (size_t)id + 1))
            return lt_no_memory(err, (size_t)id * sizeof *vocab->entries, "the vocabulary");
        memset(vocab->entries + vocab->size, 0xff, ((size_t)id + 1 - vocab->size) * sizeof *vocab->entries);
        vocab->size = (size_t)id + 1;
    }
    vocab->entries[id] = (struct lt_vocab_entry){ (uint32_t)vocab->n_bytes, (uint32_t)spelling.len };
    if (spelling.len > 0) memcpy(vocab->bytes + vocab->n_bytes, spelling.data, spelling.len);
    vocab->n_bytes += spelling.len;
    if (spelling.len > vocab->longest) vocab->longest = (uint32_t)spelling.len;
    vocab->n++;
    return LATTICE_OK;
}

static void shrink(lt_vocab *vocab)
{
    if (vocab->n_bytes > 0) {
        void *bytes = lt_resize_array(vocab->mem, vocab->bytes, vocab->n_bytes, 1);
        if (bytes != NULL) {
            vocab->bytes = bytes;
            vocab->bytes_capacity = vocab->n_bytes;
        }
    }
    if (vocab->size > 0) {
        void *entries = lt_resize_array(vocab->mem, vocab->entries, vocab->size, sizeof *vocab->entries);
        if (entries != NULL) {
            vocab->entries = entries;
            vocab->entries_capacity = vocab->size;
        }
    }
}

/* Ids are hashed in order, which reads the spellings in order; the slot of each is asked for AHEAD ids before it is filled, so
 * that the misses of a table larger than the cache overlap. */
#define AHEAD 16

lattice_status lt_vocab_index(lt_vocab *vocab, const char *name, lt_vocab_twice twice, lattice_error *err)
{
    shrink(vocab);
    size_t n_slots = 16; /* filled to 5/8 at most */
    while (n_slots / 8 * 5 <= vocab->n) n_slots *= 2;
    vocab->slots = lt_alloc_array(vocab->mem, n_slots, sizeof *vocab->slots);
    if (vocab->slots == NULL) return lt_no_memory(err, n_slots * sizeof *vocab->slots, "the vocabulary");
    memset(vocab->slots, 0xff, n_slots * sizeof *vocab->slots);
    vocab->mask = (uint32_t)(n_slots - 1);
    uint32_t hashes[AHEAD];
    for (size_t i = 0; i < vocab->size + AHEAD; i++) {
        if (i >= AHEAD) {
            uint32_t id = (uint32_t)(i - AHEAD);
            lt_str spelling = lt_vocab_token(vocab, id);
            if (spelling.data != NULL) {
                struct lt_vocab_slot *slot = find_slot(vocab, hashes[i % AHEAD], spelling.data, spelling.len);
                if (slot->id != LT_VOCAB_NO_ID) {
                    if (twice == LT_VOCAB_TWICE_REFUSED)
                        return lt_fail(err, LATTICE_ERR_FORMAT, "%s: token '%.*s' has the ids %u and %u", name,
                                       LT_STR_ARG(spelling), slot->id, id);
                    vocab->n--;
                }
                *slot = (struct lt_vocab_slot){ hashes[i % AHEAD], id };
            }
        }
        lt_str next = lt_vocab_token(vocab, i < vocab->size ? (uint32_t)i : LT_VOCAB_NO_ID);
        if (next.data == NULL) continue;
        hashes[i % AHEAD] = lt_vocab_hash(next.data, next.len);
        lt_vocab_fetch_slot(vocab, hashes[i % AHEAD]);
    }
    return LATTICE_OK;
}

uint32_t lt_vocab_find_hashed(const lt_vocab *vocab, uint32_t hash, const void *spelling, size_t length)
{
    return find_slot(vocab, hash, spelling, length)->id;
}

uint32_t lt_vocab_find(const lt_vocab *vocab, const void *spelling, size_t length)
{
    if (vocab->mask == 0 || length > vocab->longest) return LT_VOCAB_NO_ID;
    return find_slot(vocab, lt_vocab_hash(spelling, length), spelling, length)->id;
}
