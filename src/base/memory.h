/* Memory: the runtime's allocator, arenas, and reserved address space.
 *
 * Every allocation of the library goes through a lattice_allocator, so that a user can count, limit or fail it. */
#ifndef LT_BASE_MEMORY_H
#define LT_BASE_MEMORY_H

#include "base/status.h"

/* malloc, realloc, free. */
extern const lattice_allocator lt_malloc_allocator;

/* NULL when there is no memory. lt_alloc_array checks n * size for overflow; lt_resize_array grows or shrinks. */
void *lt_alloc(const lattice_allocator *mem, size_t size);
void *lt_alloc_zero(const lattice_allocator *mem, size_t size);
void *lt_alloc_array(const lattice_allocator *mem, size_t n, size_t size);
void *lt_resize_array(const lattice_allocator *mem, void *ptr, size_t n, size_t size);
void lt_free(const lattice_allocator *mem, void *ptr);

/* a*b or a+b into *out; false on overflow. */
static inline bool lt_mul(size_t a, size_t b, size_t *out) { return !__builtin_mul_overflow(a, b, out); }
static inline bool lt_add(size_t a, size_t b, size_t *out) { return !__builtin_add_overflow(a, b, out); }

/* Makes room for `n` elements in a growing array: *capacity at least doubles when it is too small. false: no memory, the old
 * array is kept. Use through LT_GROW. */
bool lt_grow(const lattice_allocator *mem, void **data, size_t *capacity, size_t n, size_t element_size);
#define LT_GROW(mem, data, capacity, n) lt_grow((mem), (void **)&(data), &(capacity), (n), sizeof *(data))

/* The first place from ptr on whose address is a multiple of `align`, a power of two. */
static inline void *lt_align_up(void *ptr, size_t align) { return (char *)ptr + (-(uintptr_t)ptr & (align - 1)); }

/* What the system calls a huge page, and a wish that whole ones hold [ptr, ptr + size): translating addresses costs less then.
 * Where it is not granted only speed changes. */
#define LT_HUGE_PAGE ((size_t)2 << 20)
void lt_wish_huge_pages(void *ptr, size_t size);

/* Bump allocation with one release for all: configuration, names, plans. Blocks are aligned to 16 bytes. */
typedef struct lt_arena {
    const lattice_allocator *mem;
    struct lt_arena_block *blocks; /* newest first */
} lt_arena;

void lt_arena_init(lt_arena *arena, const lattice_allocator *mem);
void lt_arena_free(lt_arena *arena);
void *lt_arena_alloc(lt_arena *arena, size_t size); /* zeroed; NULL when there is no memory */
void *lt_arena_array(lt_arena *arena, size_t n, size_t size);
char *lt_arena_copy(lt_arena *arena, const char *data, size_t length); /* with a NUL behind */

/* Reserved address space (INV-8): pages cost nothing until touched. Aligned to the page size; large reservations ask for huge
 * pages. Failing to reserve is LATTICE_ERR_NO_MEMORY. */
typedef struct lt_reserve {
    void *base;
    size_t size;
} lt_reserve;

lattice_status lt_reserve_create(size_t size, lt_reserve *out, lattice_error *err);
void lt_reserve_free(lt_reserve *reserve);
/* Gives the pages in [offset, offset + size) back; they read as zero afterwards. */
void lt_reserve_discard(lt_reserve *reserve, size_t offset, size_t size);
/* Bytes of it that are in memory now, for reports; 0 where the system does not say. */
size_t lt_reserve_resident(const lt_reserve *reserve);

#endif
