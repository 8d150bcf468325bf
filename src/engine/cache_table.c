/* The embedding cache's memory. See cache_table.h. */
#include "engine/cache_table.h"

#include <pthread.h>
#include <sched.h>
#include <string.h>

/* Shards: so many that threads seldom meet, so few that each holds enough entries for SIEVE to choose from. */
enum { MIN_SHARDS = 4, MAX_SHARDS = 256, SHARD_ENTRIES = 128, MIN_SLOTS = 16 };
/* The slots of an entry, in a table that is between three eighths and three quarters full. */
enum { ENTRY_SLOTS = 32 };
/* Places that readers count themselves in; threads share one when their numbers meet. */
enum { STRIPES = 32, STRIPE_SHIFT = 64 - 5 };
/* Readers stay for well under a microsecond, unless their thread is put off: trying again is cheaper than sleeping at first. */
enum { TRIES = 1000 };

typedef struct slot {
    uint64_t tag;          /* hash.low */
    lt_cache_entry *entry; /* NULL: empty */
} slot;

typedef struct shard {
    /* Read by readers; before they count themselves, only to ask for the line early. */
    _Alignas(128) slot *_Atomic slots; /* [mask + 1], linear probing from hash.low & mask */
    atomic_size_t mask;
    atomic_bool changing;
    /* Of who changes the shard. */
    _Alignas(64) pthread_mutex_t lock;
    size_t n, bytes;
    lt_cache_entry *newest, *oldest, *hand;
    uint64_t evictions;
} shard;

/* One place of readers. For each shard, one word: how many of them are in it (low bits), and above what they found there, so that
 * counting a hit is part of leaving. */
enum { READERS_BITS = 16 };
static const uint64_t readers_mask = ((uint64_t)1 << READERS_BITS) - 1;
typedef struct stripe {
    _Alignas(128) atomic_uint_fast64_t readers[MAX_SHARDS];
    atomic_ullong misses;
} stripe;

struct lt_cache_table {
    const lattice_allocator *mem;
    lt_slab_pool *pool;
    void *block; /* of stripes and shards */
    stripe *stripes;
    shard *shards;
    size_t n_shards;
    int shard_shift;
    size_t max_entries, max_bytes;
    lattice_cache_policy policy;
    atomic_size_t entries, bytes; /* over all shards; raised before an entry goes in */
};

/* ------------------------------------------------------------------ entries */

size_t lt_cache_entry_bytes(size_t n_ids, size_t dim)
{
    return lt_slab_size(sizeof(lt_cache_entry) + (n_ids + dim) * 4) + ENTRY_SLOTS;
}

lt_cache_entry *lt_cache_entry_new(lt_slab_pool *pool, const lt_cache_key *key, const float *vector, size_t dim)
{
    if (key->n > UINT32_MAX / 8 || dim > UINT32_MAX / 8) return NULL;
    lt_cache_entry *e = lt_slab_alloc(pool, sizeof *e + (key->n + dim) * 4);
    if (!e) return NULL;
    *e = (lt_cache_entry){ .hash = key->hash, .space = key->space, .n_ids = (uint32_t)key->n, .dim = (uint32_t)dim };
    atomic_init(&e->references, 1);
    memcpy(e->data, vector, dim * sizeof *vector);
    memcpy(lt_cache_entry_ids(e), key->ids, key->n * sizeof *key->ids);
    return e;
}

void lt_cache_entry_release(lt_slab_pool *pool, lt_cache_entry *e)
{
    if (atomic_fetch_sub(&e->references, 1) == 1) lt_slab_release(pool, e, sizeof *e + ((size_t)e->n_ids + e->dim) * 4);
}

static bool entry_is(lt_cache_entry *e, const lt_cache_key *key)
{
    return lt_hash128_eq(e->hash, key->hash) && lt_hash128_eq(e->space, key->space) && e->n_ids == key->n &&
           memcmp(lt_cache_entry_ids(e), key->ids, key->n * sizeof *key->ids) == 0;
}

/* ------------------------------------------------------------------ the table */

lattice_status lt_cache_table_create(const lattice_allocator *mem, lt_slab_pool *pool, size_t max_entries, size_t max_bytes,
                                     lattice_cache_policy policy, lt_cache_table **table, lattice_error *err)
{
    *table = NULL;
    size_t expected = max_bytes ? max_bytes / 2048 : MAX_SHARDS * SHARD_ENTRIES, n_shards = MIN_SHARDS;
    if (max_entries && (!max_bytes || max_entries < expected)) expected = max_entries;
    while (n_shards < MAX_SHARDS && n_shards * SHARD_ENTRIES < expected) n_shards *= 2;
    lt_cache_table *t = lt_alloc_zero(mem, sizeof *t);
    size_t bytes = STRIPES * sizeof(stripe) + n_shards * sizeof(shard) + _Alignof(stripe);
    void *block = lt_alloc_zero(mem, bytes);
    if (!t || !block) {
        lt_free(mem, t);
        lt_free(mem, block);
        return lt_no_memory(err, bytes, "an embedding cache");
    }
    t->mem = mem;
    t->pool = pool;
    t->block = block;
    t->stripes = lt_align_up(block, _Alignof(stripe));
    t->shards = (shard *)(void *)(t->stripes + STRIPES);
    t->max_entries = max_entries;
    t->max_bytes = max_bytes;
    t->policy = policy;
    t->shard_shift = 64 - __builtin_ctzll(n_shards);
    for (; t->n_shards < n_shards; t->n_shards++) {
        if (pthread_mutex_init(&t->shards[t->n_shards].lock, NULL) == 0) continue;
        lt_cache_table_free(t);
        return lt_no_memory(err, sizeof(shard), "a lock");
    }
    *table = t;
    return LATTICE_OK;
}

void lt_cache_table_free(lt_cache_table *t)
{
    if (!t) return;
    lt_cache_table_clear(t);
    for (size_t i = 0; i < t->n_shards; i++) pthread_mutex_destroy(&t->shards[i].lock);
    lt_free(t->mem, t->block);
    lt_free(t->mem, t);
}

static shard *shard_of(lt_cache_table *t, lt_hash128 hash)
{
    return &t->shards[hash.high >> t->shard_shift];
}

/* The calling thread's place. Its address serves as the thread's number and is all that is used of it. */
static stripe *my_stripe(const lt_cache_table *t)
{
    static _Thread_local char here;
    return &t->stripes[(uintptr_t)&here * 0x9e3779b97f4a7c15u >> STRIPE_SHIFT];
}

/* Either the reader sees that the shard is changing, or who changes it sees the reader: both write first and then look, in one
 * order for all threads (seq_cst). */
static void enter(shard *s, atomic_uint_fast64_t *readers)
{
    for (;;) {
        atomic_fetch_add(readers, 1);
        if (!atomic_load(&s->changing)) return;
        atomic_fetch_sub(readers, 1);
        for (int i = 0; atomic_load_explicit(&s->changing, memory_order_relaxed); i++)
            if (i > TRIES) sched_yield();
    }
}

static void leave(atomic_uint_fast64_t *readers, bool found)
{
    atomic_fetch_add_explicit(readers, ((uint64_t)found << READERS_BITS) - 1, memory_order_release);
}

/* Keeps others from changing the shard. */
static void shard_lock(shard *s)
{
    pthread_mutex_lock(&s->lock);
}

static void shard_unlock(shard *s)
{
    pthread_mutex_unlock(&s->lock);
}

/* Between these the shard may be changed. */
static void begin_change(lt_cache_table *t, shard *s)
{
    pthread_mutex_lock(&s->lock);
    atomic_store(&s->changing, true);
    size_t number = (size_t)(s - t->shards);
    for (size_t i = 0; i < STRIPES; i++)
        for (int tries = 0; atomic_load(&t->stripes[i].readers[number]) & readers_mask; tries++)
            if (tries > TRIES) sched_yield();
}

static void end_change(shard *s)
{
    atomic_store_explicit(&s->changing, false, memory_order_release);
    pthread_mutex_unlock(&s->lock);
}

static slot *slots_of(const shard *s)
{
    return atomic_load_explicit(&s->slots, memory_order_relaxed);
}

static size_t mask_of(const shard *s)
{
    return atomic_load_explicit(&s->mask, memory_order_relaxed);
}

static lt_cache_entry *shard_find(const shard *s, const lt_cache_key *key, size_t dim)
{
    const slot *slots = slots_of(s);
    size_t mask = mask_of(s);
    if (!slots) return NULL;
    for (size_t i = key->hash.low & mask;; i = (i + 1) & mask) {
        lt_cache_entry *e = slots[i].entry;
        if (!e) return NULL;
        if (slots[i].tag != key->hash.low) continue;
        /* It is the one but for a wonder: ask for all of it at once, rather than line by line as comparing and copying go on. */
        const char *bytes = (const char *)e;
        for (size_t at = 0; at < sizeof *e + (dim + key->n) * 4; at += 64) __builtin_prefetch(bytes + at);
        if (entry_is(e, key)) return e;
    }
}

bool lt_cache_table_find(lt_cache_table *t, const lt_cache_key *key, bool probe, float *out, size_t dim)
{
    shard *s = shard_of(t, key->hash);
    stripe *mine = my_stripe(t);
    atomic_uint_fast64_t *readers = &mine->readers[s - t->shards];
    __builtin_prefetch(slots_of(s) + (key->hash.low & mask_of(s))); /* wherever that is by now: nothing is read */
    enter(s, readers);
    lt_cache_entry *e = shard_find(s, key, dim);
    bool found = e && e->dim == dim;
    if (found) {
        memcpy(out, e->data, dim * sizeof *out);
        /* Written only once: the line stays clean where an entry is only read. */
        if (!atomic_load_explicit(&e->found, memory_order_relaxed)) atomic_store_explicit(&e->found, true, memory_order_relaxed);
    }
    leave(readers, found);
    if (!found && !probe) atomic_fetch_add_explicit(&mine->misses, 1, memory_order_relaxed);
    return found;
}

/* ------------------------------------------------------------------ slots */

static void put_slot(slot *slots, size_t mask, lt_cache_entry *e)
{
    size_t i = e->hash.low & mask;
    while (slots[i].entry) i = (i + 1) & mask;
    slots[i] = (slot){ e->hash.low, e };
}

static void set_slots(shard *s, slot *slots, size_t mask)
{
    atomic_store_explicit(&s->slots, slots, memory_order_relaxed);
    atomic_store_explicit(&s->mask, mask, memory_order_relaxed);
}

/* Room for one more at three quarters full at most; false: no memory. */
static bool grow_slots(lt_slab_pool *pool, shard *s)
{
    slot *old = slots_of(s);
    size_t size = old ? mask_of(s) + 1 : 0;
    if (size && (s->n + 1) * 4 <= size * 3) return true;
    size_t larger = size ? size * 2 : MIN_SLOTS;
    slot *slots = lt_slab_alloc(pool, larger * sizeof *slots);
    if (!slots) return false;
    memset(slots, 0, larger * sizeof *slots);
    for (size_t i = 0; i < size; i++)
        if (old[i].entry) put_slot(slots, larger - 1, old[i].entry);
    if (size) lt_slab_release(pool, old, size * sizeof *slots);
    set_slots(s, slots, larger - 1);
    return true;
}

/* Empties e's slot and moves those behind it up, so that no probe ends early (Knuth 6.4, algorithm R). */
static void remove_slot(shard *s, const lt_cache_entry *e)
{
    slot *slots = slots_of(s);
    size_t mask = mask_of(s), hole = e->hash.low & mask;
    while (slots[hole].entry != e) hole = (hole + 1) & mask;
    for (size_t i = (hole + 1) & mask; slots[i].entry; i = (i + 1) & mask) {
        size_t home = slots[i].tag & mask;
        /* An entry may move up only as far as its own home: when that lies in (hole, i], cyclically, it stays. */
        if (((i - home) & mask) < ((i - hole) & mask)) continue;
        slots[hole] = slots[i];
        hole = i;
    }
    slots[hole] = (slot){ 0 };
}

/* ------------------------------------------------------------------ adding and evicting */

static void shard_remove(lt_cache_table *t, shard *s, lt_cache_entry *e)
{
    size_t bytes = lt_cache_entry_bytes(e->n_ids, e->dim);
    remove_slot(s, e);
    if (s->hand == e) s->hand = e->newer;
    if (e->newer)
        e->newer->older = e->older;
    else
        s->newest = e->older;
    if (e->older)
        e->older->newer = e->newer;
    else
        s->oldest = e->newer;
    s->n--;
    s->bytes -= bytes;
    atomic_fetch_sub(&t->entries, 1);
    atomic_fetch_sub(&t->bytes, bytes);
    lt_cache_entry_release(t->pool, e);
}

/* Evicts one entry of the shard; false: it has none. */
static bool shard_evict(lt_cache_table *t, shard *s)
{
    begin_change(t, s);
    lt_cache_entry *e = s->hand ? s->hand : s->oldest;
    while (e && atomic_load_explicit(&e->found, memory_order_relaxed)) {
        atomic_store_explicit(&e->found, false, memory_order_relaxed);
        e = e->newer ? e->newer : s->oldest;
    }
    if (e) {
        s->hand = e;
        s->evictions++;
        shard_remove(t, s, e);
    }
    end_change(s);
    return e != NULL;
}

static void shard_clear(lt_cache_table *t, shard *s, bool evict)
{
    begin_change(t, s);
    if (evict) s->evictions += s->n;
    for (lt_cache_entry *e = s->oldest; e;) {
        lt_cache_entry *newer = e->newer;
        lt_cache_entry_release(t->pool, e);
        e = newer;
    }
    atomic_fetch_sub(&t->entries, s->n);
    atomic_fetch_sub(&t->bytes, s->bytes);
    slot *slots = slots_of(s);
    if (slots) lt_slab_release(t->pool, slots, (mask_of(s) + 1) * sizeof *slots);
    set_slots(s, NULL, 0);
    s->n = s->bytes = 0;
    s->newest = s->oldest = s->hand = NULL;
    end_change(s);
}

void lt_cache_table_clear(lt_cache_table *t)
{
    for (size_t i = 0; i < t->n_shards; i++) shard_clear(t, &t->shards[i], false);
}

static bool over_budget(lt_cache_table *t)
{
    return (t->max_entries && atomic_load(&t->entries) > t->max_entries) ||
           (t->max_bytes && atomic_load(&t->bytes) > t->max_bytes);
}

/* Evicts until the counts, which hold the newcomer already, are within the budget: from the newcomer's shard while it has
 * entries, else from the next. */
static void make_room(lt_cache_table *t, shard *first)
{
    if (over_budget(t) && t->policy == LATTICE_CACHE_FLUSH) {
        for (size_t i = 0; i < t->n_shards; i++) shard_clear(t, &t->shards[i], true);
        return;
    }
    size_t at = (size_t)(first - t->shards);
    for (size_t empty = 0; empty < t->n_shards && over_budget(t);)
        if (!shard_evict(t, &t->shards[at])) {
            at = (at + 1) % t->n_shards;
            empty++;
        }
}

static bool add(lt_cache_table *t, lt_cache_entry *e, bool replace)
{
    size_t bytes = lt_cache_entry_bytes(e->n_ids, e->dim);
    if (t->max_bytes && bytes > t->max_bytes) return false;
    shard *s = shard_of(t, e->hash);
    lt_cache_key key = { e->space, e->hash, lt_cache_entry_ids(e), e->n_ids };
    atomic_fetch_add(&t->entries, 1);
    atomic_fetch_add(&t->bytes, bytes);
    make_room(t, s);

    begin_change(t, s);
    lt_cache_entry *known = shard_find(s, &key, 0);
    if (known && replace) {
        shard_remove(t, s, known);
        known = NULL;
    }
    bool added = !known && grow_slots(t->pool, s);
    if (added) {
        put_slot(slots_of(s), mask_of(s), e);
        e->newer = NULL;
        e->older = s->newest;
        if (s->newest)
            s->newest->newer = e;
        else
            s->oldest = e;
        s->newest = e;
        s->n++;
        s->bytes += bytes;
        atomic_fetch_add(&e->references, 1);
    }
    end_change(s);
    if (!added) {
        atomic_fetch_sub(&t->entries, 1);
        atomic_fetch_sub(&t->bytes, bytes);
    }
    return known || added;
}

bool lt_cache_table_add(lt_cache_table *t, lt_cache_entry *e)
{
    return add(t, e, false);
}

bool lt_cache_table_replace(lt_cache_table *t, lt_cache_entry *e)
{
    return add(t, e, true);
}

/* ------------------------------------------------------------------ looking around */

lattice_status lt_cache_table_each(lt_cache_table *t, lattice_status (*fn)(void *arg, lt_cache_entry *entry, lattice_error *err),
                                   void *arg, lattice_error *err)
{
    for (size_t i = 0; i < t->n_shards; i++) {
        shard *s = &t->shards[i];
        lattice_status status = LATTICE_OK;
        shard_lock(s);
        for (lt_cache_entry *e = s->oldest; e && status == LATTICE_OK; e = e->newer) status = fn(arg, e, err);
        shard_unlock(s);
        if (status != LATTICE_OK) return status;
    }
    return LATTICE_OK;
}

void lt_cache_table_get_stats(lt_cache_table *t, lt_cache_table_stats *stats)
{
    *stats = (lt_cache_table_stats){ 0 };
    for (size_t i = 0; i < STRIPES; i++) {
        for (size_t k = 0; k < t->n_shards; k++) stats->hits += atomic_load(&t->stripes[i].readers[k]) >> READERS_BITS;
        stats->misses += atomic_load(&t->stripes[i].misses);
    }
    for (size_t i = 0; i < t->n_shards; i++) {
        shard *s = &t->shards[i];
        shard_lock(s);
        stats->entries += s->n;
        stats->bytes += s->bytes;
        stats->evictions += s->evictions;
        shard_unlock(s);
    }
}
