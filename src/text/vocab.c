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

static uint32_t hash_of(const void *spelling, size_t length)
{
    uint64_t h = lt_word_hash(spelling, length);
    return (uint32_t)(h ^ h >> 32);
}

static bool same(const lt_vocab *vocab, uint32_t id, const void *spelling, size_t length)
{
    const struct lt_vocab_entry *entry = &vocab->entries[id];
    return entry->length == length && (length == 0 || memcmp(vocab->bytes + entry->start, spelling, length) == 0);
}

static struct lt_vocab_slot *find_slot(const lt_vocab *vocab, uint32_t hash, const void *spelling, size_t length)
{
    for (uint32_t i = hash;; i++) {
        struct lt_vocab_slot *slot = &vocab->slots[i & vocab->mask];
        if (slot->id == LT_VOCAB_NO_ID || (slot->hash == hash && same(vocab, slot->id, spelling, length))) return slot;
    }
}

/* Slots grow by four and are filled to 5/8 at most; the stored hashes make a move cheap. */
static bool grow_slots(lt_vocab *vocab)
{
    size_t count = vocab->mask == 0 ? 1024 : ((size_t)vocab->mask + 1) * ((size_t)vocab->mask < (1u << 17) ? 4 : 2);
    struct lt_vocab_slot *slots = lt_alloc_array(vocab->mem, count, sizeof *slots);
    if (slots == NULL) return false;
    memset(slots, 0xff, count * sizeof *slots);
    uint32_t mask = (uint32_t)(count - 1);
    for (size_t i = 0; vocab->mask != 0 && i <= vocab->mask; i++) {
        if (vocab->slots[i].id == LT_VOCAB_NO_ID) continue;
        uint32_t at = vocab->slots[i].hash & mask;
        while (slots[at].id != LT_VOCAB_NO_ID) at = (at + 1) & mask;
        slots[at] = vocab->slots[i];
    }
    lt_free(vocab->mem, vocab->slots);
    vocab->slots = slots;
    vocab->mask = mask;
    return true;
}

lattice_status lt_vocab_add(lt_vocab *vocab, const char *name, lt_str spelling, uint32_t id, lt_vocab_twice twice,
                            lattice_error *err)
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
    if (vocab->mask == 0 || vocab->n >= (vocab->mask + 1) / 8 * 5) {
        if (!grow_slots(vocab)) return lt_no_memory(err, vocab->n * sizeof *vocab->slots, "the vocabulary");
    }
    if (!LT_GROW(vocab->mem, vocab->bytes, vocab->bytes_capacity, vocab->n_bytes + spelling.len + 1))
        return lt_no_memory(err, spelling.len, "the vocabulary");
    if (id >= vocab->size) {
        if (!LT_GROW(vocab->mem, vocab->entries, vocab->entries_capacity, (size_t)id + 1))
            return lt_no_memory(err, (size_t)id * sizeof *vocab->entries, "the vocabulary");
        memset(vocab->entries + vocab->size, 0xff, ((size_t)id + 1 - vocab->size) * sizeof *vocab->entries);
        vocab->size = (size_t)id + 1;
    }
    uint32_t hash = hash_of(spelling.data, spelling.len);
    struct lt_vocab_slot *slot = find_slot(vocab, hash, spelling.data, spelling.len);
    if (slot->id != LT_VOCAB_NO_ID) {
        if (twice == LT_VOCAB_TWICE_REFUSED)
            return lt_fail(err, LATTICE_ERR_FORMAT, "%s: token '%.*s' has the ids %u and %u", name, LT_STR_ARG(spelling),
                           slot->id, id);
        vocab->entries[id] = vocab->entries[slot->id];
        slot->id = id;
        return LATTICE_OK;
    }
    vocab->entries[id] = (struct lt_vocab_entry){ (uint32_t)vocab->n_bytes, (uint32_t)spelling.len };
    if (spelling.len > 0) memcpy(vocab->bytes + vocab->n_bytes, spelling.data, spelling.len);
    vocab->n_bytes += spelling.len;
    if (spelling.len > vocab->longest) vocab->longest = (uint32_t)spelling.len;
    *slot = (struct lt_vocab_slot){ hash, id };
    vocab->n++;
    return LATTICE_OK;
}

void lt_vocab_finish(lt_vocab *vocab)
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

uint32_t lt_vocab_find(const lt_vocab *vocab, const void *spelling, size_t length)
{
    if (vocab->mask == 0 || length > vocab->longest) return LT_VOCAB_NO_ID;
    return find_slot(vocab, hash_of(spelling, length), spelling, length)->id;
}
