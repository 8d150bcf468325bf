/* Blocks for the embedding cache's entries, a kilobyte or two each and a million of them, and for its tables.
 *
 * Why not the allocator itself: entries spread over ordinary pages cost a walk through the page tables a hit (measured: 0.9 µs a
 * hit with a million entries against 0.4). So chunks are asked of the allocator, as large as all before together within limits,
 * and advised to be huge pages; a chunk is cut into slabs, a slab into blocks of one class of sizes. A slab without blocks in use
 * serves any class again. Chunks go back when the pool is freed. */
#ifndef LT_ENGINE_CACHE_SLAB_H
#define LT_ENGINE_CACHE_SLAB_H

#include "base/memory.h"

typedef struct lt_slab_pool lt_slab_pool;

lattice_status lt_slab_pool_create(const lattice_allocator *mem, lt_slab_pool **pool, lattice_error *err);
/* All blocks must have been released. */
void lt_slab_pool_free(lt_slab_pool *pool);

/* A block aligned to 16 bytes; NULL: no memory. From several threads. */
void *lt_slab_alloc(lt_slab_pool *pool, size_t size);
/* size as it was asked for. */
void lt_slab_release(lt_slab_pool *pool, void *block, size_t size);
/* Bytes that a block of this size takes. */
size_t lt_slab_size(size_t size);

#endif
