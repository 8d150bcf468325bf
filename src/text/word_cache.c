/* The cache of frequent words; see word_cache.h. */
#include "text/word_cache.h"

#define SHORT_SETS 16384 /* 1 MB: what a core's second-level cache holds beside the model's tables */
#define LONG_SETS 2048   /* 512 kB */

_Static_assert(sizeof(lt_word_short) == 32, "two short words share a cache line");
_Static_assert(sizeof(lt_word_long) == 128, "a long word is two cache lines");

lattice_status lt_word_cache_create(lt_word_cache *cache, const lattice_allocator *mem, lattice_error *err)
{
    *cache = (lt_word_cache){ .mem = mem };
    size_t n_short = 2 * SHORT_SETS * sizeof(lt_word_short), n_long = 2 * LONG_SETS * sizeof(lt_word_long);
    cache->short_words = lt_alloc_zero(mem, n_short);
    cache->long_words = lt_alloc_zero(mem, n_long);
    if (cache->short_words != NULL && cache->long_words != NULL) return LATTICE_OK;
    lt_word_cache_free(cache);
    return lt_no_memory(err, n_short + n_long, "the cache of words");
}

void lt_word_cache_free(lt_word_cache *cache)
{
    if (cache->mem == NULL) return;
    lt_free(cache->mem, cache->short_words);
    lt_free(cache->mem, cache->long_words);
    *cache = (lt_word_cache){ .mem = cache->mem };
}

static inline bool make_room(lt_pieces *out, size_t n)
{
    return out->n + n <= out->capacity || LT_GROW(out->mem, out->data, out->capacity, out->n + n);
}

static inline bool short_is(const lt_word_short *entry, lt_word_key key, size_t size)
{
    return entry->key.low == key.low && entry->key.high == key.high && entry->size == size;
}

static bool emit_short(const lt_word_short *entry, lt_pieces *out)
{
    if (!make_room(out, 3)) return false;
    lt_piece *piece = out->data + out->n;
    uint32_t n = entry->n, size = entry->size;
    piece[0] = (lt_piece){ entry->ids[0], 0, n == 1 ? size : entry->ends[0] };
    if (n > 1) {
        piece[1] = (lt_piece){ entry->ids[1], entry->ends[0], n == 2 ? size : entry->ends[1] };
        if (n > 2) piece[2] = (lt_piece){ entry->ids[2], entry->ends[1], size };
    }
    out->n += n;
    return true;
}

static bool emit_long(const lt_word_long *entry, lt_pieces *out)
{
    if (!make_room(out, entry->n)) return false;
    uint32_t start = 0;
    for (size_t i = 0; i < entry->n; i++) {
        out->data[out->n++] = (lt_piece){ entry->ids[i], start, entry->ends[i] };
        start = entry->ends[i];
    }
    return true;
}

/* A hit in the second way moves to the front, so that the one replaced is the least recently used. */
static bool get_short(lt_word_cache *cache, lt_word_key key, uint64_t hash, size_t size, lt_pieces *out, bool *found)
{
    lt_word_short *set = cache->short_words + (hash & (SHORT_SETS - 1)) * 2;
    if (!short_is(&set[0], key, size)) {
        if (!short_is(&set[1], key, size)) {
            *found = false;
            return true;
        }
        lt_word_short first = set[0];
        set[0] = set[1];
        set[1] = first;
    }
    *found = true;
    return emit_short(&set[0], out);
}

static inline bool long_is(const lt_word_long *entry, uint32_t hash, const uint8_t *word, size_t size)
{
    return entry->hash == hash && entry->size == size && memcmp(entry->word, word, size) == 0;
}

static bool get_long(lt_word_cache *cache, const uint8_t *word, uint64_t hash, size_t size, lt_pieces *out, bool *found)
{
    lt_word_long *set = cache->long_words + (hash & (LONG_SETS - 1)) * 2;
    uint32_t tag = (uint32_t)(hash >> 32);
    if (!long_is(&set[0], tag, word, size)) {
        if (!long_is(&set[1], tag, word, size)) {
            *found = false;
            return true;
        }
        lt_word_long first = set[0];
        set[0] = set[1];
        set[1] = first;
    }
    *found = true;
    return emit_long(&set[0], out);
}

bool lt_word_cache_get(lt_word_cache *cache, const uint8_t *word, size_t size, lt_pieces *out, bool *found)
{
    *found = false;
    if (size > LT_WORD_CACHE_LONGEST || size == 0) return true;
    if (size <= LT_WORD_KEY_MAX) {
        lt_word_key key = lt_word_key_of(word, size);
        uint64_t hash = lt_word_key_hash(key, size);
        if (!get_short(cache, key, hash, size, out, found) || *found) return *found;
        return get_long(cache, word, hash, size, out, found);
    }
    return get_long(cache, word, lt_word_hash(word, size), size, out, found);
}

void lt_word_cache_put(lt_word_cache *cache, const uint8_t *word, size_t size, const lt_piece *pieces, size_t n)
{
    if (size == 0 || size > LT_WORD_CACHE_LONGEST || n == 0 || n > 14) return;
    uint32_t end = 0;
    for (size_t i = 0; i < n; i++) {
        if (pieces[i].start != end) return;
        end = pieces[i].end;
    }
    if (end != size) return;
    uint64_t hash = lt_word_hash(word, size);
    if (size <= LT_WORD_KEY_MAX && n <= 3) {
        lt_word_short *set = cache->short_words + (hash & (SHORT_SETS - 1)) * 2;
        set[1] = set[0];
        set[0] = (lt_word_short){ .key = lt_word_key_of(word, size), .size = (uint8_t)size, .n = (uint8_t)n };
        for (size_t i = 0; i < n; i++) {
            set[0].ids[i] = pieces[i].id;
            if (i < 2) set[0].ends[i] = (uint8_t)pieces[i].end;
        }
        return;
    }
    lt_word_long *set = cache->long_words + (hash & (LONG_SETS - 1)) * 2;
    set[1] = set[0];
    set[0] = (lt_word_long){ .size = (uint8_t)size, .n = (uint8_t)n, .hash = (uint32_t)(hash >> 32) };
    memcpy(set[0].word, word, size);
    for (size_t i = 0; i < n; i++) {
        set[0].ids[i] = pieces[i].id;
        set[0].ends[i] = (uint8_t)pieces[i].end;
    }
}
