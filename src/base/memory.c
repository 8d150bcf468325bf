/* Allocation through the runtime's hooks, arenas, and reserved address space. */
#include "base/memory.h"

#include <stdalign.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

/* ------------------------------------------------------------------ allocator */

static void *malloc_allocate(void *user, size_t size)
{
    (void)user;
    return malloc(size);
}

static void *malloc_resize(void *user, void *ptr, size_t size)
{
    (void)user;
    return realloc(ptr, size);
}

static void malloc_release(void *user, void *ptr)
{
    (void)user;
    free(ptr);
}

const lattice_allocator lt_malloc_allocator = { NULL, malloc_allocate, malloc_resize, malloc_release };

/* A size of 0 is asked for as 1: NULL then always means that there is no memory. */
void *lt_alloc(const lattice_allocator *mem, size_t size)
{
    return mem->allocate(mem->user, size ? size : 1);
}

void *lt_alloc_zero(const lattice_allocator *mem, size_t size)
{
    void *ptr = lt_alloc(mem, size);
    if (ptr) memset(ptr, 0, size);
    return ptr;
}

void *lt_alloc_array(const lattice_allocator *mem, size_t n, size_t size)
{
    size_t bytes;
    return lt_mul(n, size, &bytes) ? lt_alloc(mem, bytes) : NULL;
}

void *lt_resize_array(const lattice_allocator *mem, void *ptr, size_t n, size_t size)
{
    size_t bytes;
    if (!lt_mul(n, size, &bytes)) return NULL;
    return mem->resize(mem->user, ptr, bytes ? bytes : 1);
}

void lt_free(const lattice_allocator *mem, void *ptr)
{
    if (ptr) mem->release(mem->user, ptr);
}

bool lt_grow(const lattice_allocator *mem, void **data, size_t *capacity, size_t n, size_t element_size)
{
    if (n <= *capacity) return true;
    size_t wanted, bytes;
    if (!lt_mul(*capacity, 2, &wanted) || wanted < n) wanted = n;
    if (wanted < 8) wanted = 8;
    if (!lt_mul(wanted, element_size, &bytes)) {
        wanted = n;
        if (!lt_mul(wanted, element_size, &bytes)) return false;
    }
    /* `data` is the address of a typed pointer: copied as bytes, so that no rule on aliasing is broken. */
    void *old;
    memcpy(&old, data, sizeof old);
    void *grown = lt_resize_array(mem, old, wanted, element_size);
    if (!grown) return false;
    memcpy(data, &grown, sizeof grown);
    *capacity = wanted;
    return true;
}

/* ------------------------------------------------------------------ arena */

enum { ARENA_ALIGN = 16, ARENA_FIRST = 4096, ARENA_LARGEST = 256 * 1024 };

struct lt_arena_block {
    alignas(ARENA_ALIGN) struct lt_arena_block *next;
    size_t used, capacity; /* bytes behind this header */
};

void lt_arena_init(lt_arena *arena, const lattice_allocator *mem)
{
    *arena = (lt_arena){ mem, NULL };
}

void lt_arena_free(lt_arena *arena)
{
    for (struct lt_arena_block *block = arena->blocks; block;) {
        struct lt_arena_block *next = block->next;
        lt_free(arena->mem, block);
        block = next;
    }
    arena->blocks = NULL;
}

static struct lt_arena_block *new_block(lt_arena *arena, size_t capacity)
{
    size_t bytes;
    if (!lt_add(capacity, sizeof(struct lt_arena_block), &bytes)) return NULL;
    struct lt_arena_block *block = lt_alloc(arena->mem, bytes);
    if (block) *block = (struct lt_arena_block){ NULL, 0, capacity };
    return block;
}

void *lt_arena_alloc(lt_arena *arena, size_t size)
{
    size_t rounded;
    if (!lt_add(size ? size : 1, ARENA_ALIGN - 1, &rounded)) return NULL;
    rounded -= rounded % ARENA_ALIGN;

    struct lt_arena_block *block = arena->blocks;
    if (!block || block->capacity - block->used < rounded) {
        size_t next_size = block ? block->capacity : ARENA_FIRST / 2;
        next_size = next_size >= ARENA_LARGEST / 2 ? ARENA_LARGEST : next_size * 2;
        /* A large request gets a block of its own behind the current one, whose rest stays in use. */
        bool own = block && rounded > next_size / 4;
        block = new_block(arena, own || rounded > next_size ? rounded : next_size);
        if (!block) return NULL;
        if (own) {
            block->next = arena->blocks->next;
            arena->blocks->next = block;
        } else {
            block->next = arena->blocks;
            arena->blocks = block;
        }
    }
    uint8_t *data = (uint8_t *)(block + 1) + block->used;
    block->used += rounded;
    return memset(data, 0, rounded);
}

void *lt_arena_array(lt_arena *arena, size_t n, size_t size)
{
    size_t bytes;
    return lt_mul(n, size, &bytes) ? lt_arena_alloc(arena, bytes) : NULL;
}

char *lt_arena_copy(lt_arena *arena, const char *data, size_t length)
{
    size_t bytes;
    if (!lt_add(length, 1, &bytes)) return NULL;
    char *copy = lt_arena_alloc(arena, bytes);
    if (copy && length) memcpy(copy, data, length);
    return copy;
}

/* ------------------------------------------------------------------ reserved address space */

static size_t page_size(void)
{
    return (size_t)sysconf(_SC_PAGESIZE);
}

void lt_wish_huge_pages(void *ptr, size_t size)
{
#ifdef MADV_HUGEPAGE
    const size_t page = page_size(), head = -(uintptr_t)ptr % page;
    if (size >= head + LT_HUGE_PAGE) madvise((char *)ptr + head, (size - head) / page * page, MADV_HUGEPAGE);
#else
    (void)ptr;
    (void)size;
#endif
}

lattice_status lt_reserve_create(size_t size, lt_reserve *out, lattice_error *err)
{
    *out = (lt_reserve){ NULL, 0 };
    if (size == 0) return LATTICE_OK;
    size_t page = page_size(), align = size >= LT_HUGE_PAGE ? LT_HUGE_PAGE : page;
    size_t rounded, mapped;
    if (!lt_add(size, page - 1, &rounded)) return lt_no_memory(err, size, "reserved memory");
    rounded -= rounded % page;
    if (!lt_add(rounded, align - page, &mapped)) return lt_no_memory(err, size, "reserved memory");

    void *map = mmap(NULL, mapped, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (map == MAP_FAILED) return lt_no_memory(err, size, "reserved memory");
    uint8_t *begin = map;
    size_t head = (size_t)((uint8_t *)lt_align_up(map, align) - begin);
    size_t tail = mapped - head - rounded;
    if (head) munmap(begin, head);
    if (tail) munmap(begin + head + rounded, tail);
    *out = (lt_reserve){ begin + head, rounded };
    lt_wish_huge_pages(out->base, out->size);
    return LATTICE_OK;
}

void lt_reserve_free(lt_reserve *reserve)
{
    if (reserve->base) munmap(reserve->base, reserve->size);
    *reserve = (lt_reserve){ NULL, 0 };
}

void lt_reserve_discard(lt_reserve *reserve, size_t offset, size_t size)
{
    if (offset >= reserve->size) return;
    if (size > reserve->size - offset) size = reserve->size - offset;
    if (size == 0) return;
    size_t page = page_size(), end = offset + size;
    size_t first = offset + (page - offset % page) % page, last = end - end % page;
    uint8_t *base = reserve->base;
    if (first >= last) { /* no whole page */
        memset(base + offset, 0, size);
        return;
    }
    memset(base + offset, 0, first - offset);
    memset(base + last, 0, end - last);
#ifdef __linux__
    /* Anonymous private pages come back as zero pages. */
    if (madvise(base + first, last - first, MADV_DONTNEED) == 0) return;
#else
    int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED;
    if (mmap(base + first, last - first, PROT_READ | PROT_WRITE, flags, -1, 0) != MAP_FAILED) return;
#endif
    memset(base + first, 0, last - first);
}

size_t lt_reserve_resident(const lt_reserve *reserve)
{
    size_t resident = 0;
#ifdef __linux__
    size_t page = page_size(), block = 4096 * page;
    uint8_t *base = reserve->base;
    for (size_t at = 0; at < reserve->size; at += block) {
        unsigned char pages[4096];
        size_t size = reserve->size - at < block ? reserve->size - at : block;
        if (mincore(base + at, size, pages) != 0) break;
        for (size_t i = 0; i < size / page; i++) resident += (pages[i] & 1) * page;
    }
#else
    (void)reserve;
#endif
    return resident;
}
