/* Blocks for the embedding cache's entries. See cache_slab.h.
 *
 * Slabs lie at multiples of their size, so that a block's slab is found by its address. A slab begins with its header. */
#include "engine/cache_slab.h"

#include <pthread.h>
#include <stdint.h>
#include <string.h>

enum { SLAB_BYTES = 1 << 18, MIN_CHUNK = 4 * SLAB_BYTES, MAX_CHUNK = 64 << 20 };
/* Classes: multiples of 64 up to 1 KiB, then eight to each doubling. Larger blocks are the allocator's. */
enum { FINE = 64, FINE_LIMIT = 1024, N_FINE = FINE_LIMIT / FINE, LARGEST = 128 << 10, N_CLASSES = N_FINE + 7 * 8 };
/* What the allocator is thought to add to a block of its own. */
enum { ALLOCATOR_OVERHEAD = 32 };

typedef struct slab slab;
struct slab {
    slab *next, *previous;         /* of its class with free blocks, or (next only) of those of no class */
    void *free;                    /* list of released blocks */
    size_t used, carved, capacity; /* blocks: in use, ever handed out, that fit */
    size_t block_size;
    int class_number;
    _Alignas(64) unsigned char blocks[];
};

typedef struct chunk {
    struct chunk *next;
    void *block;
} chunk;

struct lt_slab_pool {
    const lattice_allocator *mem;
    pthread_mutex_t lock;
    slab *partial[N_CLASSES]; /* slabs with room */
    slab *idle;               /* of no class */
    char *fresh, *fresh_end;  /* of the newest chunk, not cut yet */
    chunk *chunks;
    size_t chunk_bytes; /* all so far */
};

static int class_of(size_t size)
{
    if (size <= FINE_LIMIT) return (int)((size + FINE - 1) / FINE) - 1;
    int log = 63 - __builtin_clzll(size - 1); /* 2^log < size <= 2^(log+1) */
    size_t step = (size_t)1 << (log - 3);
    return N_FINE + (log - 10) * 8 + (int)((size - ((size_t)1 << log) + step - 1) / step) - 1;
}

static size_t class_size(int number)
{
    if (number < N_FINE) return (size_t)(number + 1) * FINE;
    size_t base = (size_t)1 << (10 + (number - N_FINE) / 8);
    return base + base / 8 * (size_t)((number - N_FINE) % 8 + 1);
}

size_t lt_slab_size(size_t size)
{
    return size > LARGEST ? size + ALLOCATOR_OVERHEAD : class_size(class_of(size ? size : 1));
}

lattice_status lt_slab_pool_create(const lattice_allocator *mem, lt_slab_pool **pool, lattice_error *err)
{
    *pool = lt_alloc_zero(mem, sizeof **pool);
    if (!*pool) return lt_no_memory(err, sizeof **pool, "an embedding cache");
    (*pool)->mem = mem;
    if (pthread_mutex_init(&(*pool)->lock, NULL) == 0) return LATTICE_OK;
    lt_free(mem, *pool);
    *pool = NULL;
    return lt_no_memory(err, sizeof **pool, "a lock");
}

void lt_slab_pool_free(lt_slab_pool *pool)
{
    if (!pool) return;
    for (chunk *c = pool->chunks; c;) {
        chunk *next = c->next;
        lt_free(pool->mem, c->block);
        lt_free(pool->mem, c);
        c = next;
    }
    pthread_mutex_destroy(&pool->lock);
    lt_free(pool->mem, pool);
}

static bool add_chunk(lt_slab_pool *pool)
{
    size_t bytes = pool->chunk_bytes < MIN_CHUNK ? MIN_CHUNK : pool->chunk_bytes > MAX_CHUNK ? MAX_CHUNK : pool->chunk_bytes;
    size_t align = bytes >= 2 * LT_HUGE_PAGE ? LT_HUGE_PAGE : SLAB_BYTES;
    chunk *c = lt_alloc(pool->mem, sizeof *c);
    void *block = c ? lt_alloc(pool->mem, bytes + align) : NULL;
    if (!block) {
        lt_free(pool->mem, c);
        return false;
    }
    *c = (chunk){ pool->chunks, block };
    pool->chunks = c;
    pool->chunk_bytes += bytes;
    pool->fresh = lt_align_up(block, align);
    pool->fresh_end = pool->fresh + bytes;
    lt_wish_huge_pages(pool->fresh, bytes);
    return true;
}

static void link_slab(lt_slab_pool *pool, slab *s)
{
    slab **list = &pool->partial[s->class_number];
    s->previous = NULL;
    s->next = *list;
    if (s->next) s->next->previous = s;
    *list = s;
}

static void unlink_slab(lt_slab_pool *pool, slab *s)
{
    if (s->next) s->next->previous = s->previous;
    if (s->previous)
        s->previous->next = s->next;
    else
        pool->partial[s->class_number] = s->next;
}

static slab *add_slab(lt_slab_pool *pool, int class_number)
{
    slab *s = pool->idle;
    if (s) {
        pool->idle = s->next;
    } else {
        if (pool->fresh == pool->fresh_end && !add_chunk(pool)) return NULL;
        s = (slab *)(void *)pool->fresh;
        pool->fresh += SLAB_BYTES;
    }
    size_t size = class_size(class_number);
    *s = (slab){ .block_size = size, .capacity = (SLAB_BYTES - sizeof *s) / size, .class_number = class_number };
    link_slab(pool, s);
    return s;
}

void *lt_slab_alloc(lt_slab_pool *pool, size_t size)
{
    if (size > LARGEST) return lt_alloc(pool->mem, size);
    int class_number = class_of(size ? size : 1);
    pthread_mutex_lock(&pool->lock);
    slab *s = pool->partial[class_number];
    if (!s) s = add_slab(pool, class_number);
    void *block = NULL;
    if (s) {
        block = s->free;
        if (block)
            memcpy(&s->free, block, sizeof s->free);
        else
            block = s->blocks + s->carved++ * s->block_size;
        if (++s->used == s->capacity) unlink_slab(pool, s);
    }
    pthread_mutex_unlock(&pool->lock);
    return block;
}

void lt_slab_release(lt_slab_pool *pool, void *block, size_t size)
{
    if (size > LARGEST) {
        lt_free(pool->mem, block);
        return;
    }
    char *at = block;
    slab *s = (slab *)(void *)(at - ((uintptr_t)at & (SLAB_BYTES - 1)));
    pthread_mutex_lock(&pool->lock);
    if (s->used == s->capacity) link_slab(pool, s);
    memcpy(block, &s->free, sizeof s->free);
    s->free = block;
    if (--s->used == 0) {
        unlink_slab(pool, s);
        s->next = pool->idle;
        pool->idle = s;
    }
    pthread_mutex_unlock(&pool->lock);
}
