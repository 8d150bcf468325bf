/* Looks an LMDB file over before LMDB does. See cache_check.h. */
#include "engine/cache_check.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "engine/cache_disk.h"

/* LMDB 0.9, data version 1. A page: its number u64, padding u16, flags u16, then either the ends of its offsets and of its free
 * room, u16 each, or of an overflow page the number of pages u32; then offsets of nodes, u16 each. A node: data size u32, flags
 * u16, key size u16, key, data; in a branch page size and flags are 48 bits of page number. */
enum { PAGE_HEADER = 16, NODE_HEADER = 8, MAX_DEPTH = 32, N_META = 2 };
enum { PAGE_BRANCH = 1, PAGE_LEAF = 2, PAGE_OVERFLOW = 4, PAGE_META = 8 };
enum { NODE_BIG = 1 };
enum {
    META_MAGIC = 0,
    META_VERSION = 4,
    META_FREE = 24,
    META_MAIN = 72,
    META_LAST = 120,
    META_TRANSACTION = 128,
    META_BYTES = 136
};
enum { DB_PAGE_SIZE = 0, DB_FLAGS = 4, DB_DEPTH = 6, DB_ROOT = 40 };
/* Of the list of free pages: integer keys, and LMDB's note that the file is no folder. */
enum { FREE_FLAGS = 0x08, NO_FOLDER = 0x4000 };
static const uint32_t magic = 0xbeefc0de;
static const uint64_t no_page = UINT64_MAX;

static uint16_t u16_at(const uint8_t *p)
{
    uint16_t v;
    memcpy(&v, p, sizeof v);
    return v;
}

static uint32_t u32_at(const uint8_t *p)
{
    uint32_t v;
    memcpy(&v, p, sizeof v);
    return v;
}

static uint64_t u64_at(const uint8_t *p)
{
    uint64_t v;
    memcpy(&v, p, sizeof v);
    return v;
}

/* ------------------------------------------------------------------ the first pages */

/* What was allocated last may never have been written, so a file may end before its last page, but not by much of its size. */
static bool plausible_last_page(uint64_t last, uint64_t n_pages)
{
    return last >= N_META - 1 && last / 2 <= n_pages + (1 << 16);
}

static const char *check_meta(const uint8_t *page, uint64_t number, size_t page_size, uint64_t n_pages)
{
    const uint8_t *meta = page + PAGE_HEADER;
    if (u64_at(page) != number || !(u16_at(page + 10) & PAGE_META)) return "its head is not one";
    if (u32_at(meta + META_MAGIC) != magic) return "its head is not one";
    if (u32_at(meta + META_VERSION) != 1) return "it is of another version of LMDB";
    if (u32_at(meta + META_FREE + DB_PAGE_SIZE) != page_size) return "its pages are of another size";
    if ((u16_at(meta + META_FREE + DB_FLAGS) & ~NO_FOLDER) != FREE_FLAGS || u16_at(meta + META_MAIN + DB_FLAGS) != 0 ||
        !plausible_last_page(u64_at(meta + META_LAST), n_pages))
        return "its head is wrong";
    return NULL;
}

/* Whether what lies at PATH has ever been a cache: by its head, or by the lock that LMDB leaves beside it. Nothing else may be
 * renamed for being unreadable. */
static bool was_cache(const char *path, const uint8_t *head, size_t size)
{
    if (size >= PAGE_HEADER + 4 && u32_at(head + PAGE_HEADER) == magic) return true;
    char lock[4096];
    size_t length = strlen(path);
    if (length + 6 > sizeof lock) return false;
    memcpy(lock, path, length);
    memcpy(lock + length, "-lock", 6);
    return access(lock, F_OK) == 0;
}

lt_cache_verdict lt_cache_check_head(const char *path, const char **why)
{
    uint8_t head[2][1 << 16];
    size_t page_size = (size_t)sysconf(_SC_PAGESIZE);
    *why = NULL;
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) return LT_CACHE_ABSENT; /* or not to be opened, which LMDB will find out */
    struct stat info;
    bool is_file = fstat(fd, &info) == 0 && S_ISREG(info.st_mode);
    ssize_t got = 0;
    for (size_t i = 0; is_file && i < N_META && page_size <= sizeof head[0]; i++) {
        ssize_t more = pread(fd, head[i], page_size, (off_t)(i * page_size));
        if (more > 0) got += more;
    }
    close(fd);
    if (!is_file) {
        *why = "it is no file";
        return LT_CACHE_FOREIGN;
    }
    if (got == 0) return LT_CACHE_ABSENT;
    if ((size_t)got < N_META * page_size) *why = "it is cut short";
    for (size_t i = 0; i < N_META && !*why; i++) *why = check_meta(head[i], i, page_size, (uint64_t)info.st_size / page_size);
    if (!*why) return LT_CACHE_SOUND;
    return was_cache(path, head[0], (size_t)got) ? LT_CACHE_DAMAGED : LT_CACHE_FOREIGN;
}

/* ------------------------------------------------------------------ all pages */

typedef struct walk {
    const uint8_t *file;
    size_t page_size;
    uint64_t n_pages;   /* in the file */
    uint64_t last_page; /* that the transaction knows */
    uint8_t *seen;      /* a bit a page */
    bool free_list;     /* walking the list of free pages */
    const char *why;    /* what is wrong with the pages */
    uint64_t strange;   /* records that are none of the format's */
    lt_cache_census census;
} walk;

static bool fault(walk *w, const char *why)
{
    w->why = why;
    return false;
}

static bool take_page(walk *w, uint64_t number)
{
    if (number < N_META || number > w->last_page) return fault(w, "a page number is out of range");
    uint8_t bit = (uint8_t)(1u << (number & 7));
    if (w->seen[number >> 3] & bit) return fault(w, "a page is used twice");
    w->seen[number >> 3] |= bit;
    return true;
}

/* Page `number`, which must be in the file, taken. */
static const uint8_t *page_at(walk *w, uint64_t number)
{
    if (!take_page(w, number)) return NULL;
    if (number >= w->n_pages) return fault(w, "it is cut short"), NULL;
    const uint8_t *page = w->file + number * w->page_size;
    if (u64_at(page) != number) return fault(w, "a page has the number of another"), NULL;
    return page;
}

/* Data of `size` bytes on pages of its own from `number` on. */
static const uint8_t *overflow_at(walk *w, uint64_t number, size_t size)
{
    const uint8_t *page = page_at(w, number);
    if (!page) return NULL;
    uint64_t n = u32_at(page + 12), needed = (PAGE_HEADER - 1 + size) / w->page_size + 1;
    if (u16_at(page + 10) != PAGE_OVERFLOW || n < needed) return fault(w, "pages of a long record are wrong"), NULL;
    if (n > w->n_pages - number) return fault(w, "it is cut short"), NULL;
    for (uint64_t i = 1; i < n; i++)
        if (!take_page(w, number + i)) return NULL;
    return page + PAGE_HEADER;
}

/* The pages freed by one transaction: their count, then their numbers, descending. */
static bool check_free(walk *w, size_t key_size, const uint8_t *data, size_t size)
{
    if (key_size != 8 || size < 8 || u64_at(data) > size / 8 - 1) return fault(w, "the list of free pages is wrong");
    uint64_t n = u64_at(data), before = w->last_page + 1;
    for (uint64_t i = 1; i <= n; i++) {
        uint64_t number = u64_at(data + i * 8);
        if (number >= before) return fault(w, "the list of free pages is wrong");
        if (!take_page(w, number)) return false;
        before = number;
    }
    return true;
}

static void check_record(walk *w, const uint8_t *key, size_t key_size, const uint8_t *data, size_t size)
{
    lt_cache_record record;
    if (!lt_cache_record_read(key, key_size, data, size, &record))
        w->strange++;
    else if (key[0] == 'v')
        w->census.records++;
    else if (key[0] == 'u')
        w->census.imported++;
    else
        w->census.has_format = true;
}

static bool check_leaf_node(walk *w, const uint8_t *node, size_t room)
{
    size_t size = u32_at(node), key_size = u16_at(node + 6), flags = u16_at(node + 4);
    size_t data_room = NODE_HEADER + key_size <= room ? room - NODE_HEADER - key_size : 0;
    if (data_room == 0 || (flags & ~(size_t)NODE_BIG)) return fault(w, "a node is wrong");
    const uint8_t *key = node + NODE_HEADER, *data = key + key_size;
    if (flags & NODE_BIG) {
        if (data_room < 8) return fault(w, "a node is wrong");
        data = overflow_at(w, u64_at(data), size);
        if (!data) return false;
    } else if (size > data_room) {
        return fault(w, "a node is wrong");
    }
    if (w->free_list) return check_free(w, key_size, data, size);
    check_record(w, key, key_size, data, size);
    return true;
}

static int compare_keys(const uint8_t *a, const uint8_t *b)
{
    size_t n = u16_at(a + 6), m = u16_at(b + 6);
    int order = memcmp(a + NODE_HEADER, b + NODE_HEADER, n < m ? n : m);
    return order ? order : (n > m) - (n < m);
}

static bool check_tree(walk *w, uint64_t number, unsigned depth)
{
    const uint8_t *page = page_at(w, number);
    if (!page) return false;
    size_t lower = u16_at(page + 12), upper = u16_at(page + 14);
    uint16_t flags = u16_at(page + 10);
    if (flags != (depth > 1 ? PAGE_BRANCH : PAGE_LEAF)) return fault(w, "a page is of the wrong kind");
    if (lower < PAGE_HEADER || (lower & 1) || lower > upper || upper > w->page_size) return fault(w, "a page's bounds are wrong");
    size_t n = (lower - PAGE_HEADER) / 2;
    if (n < (depth > 1 && !w->free_list ? 2 : 1)) return fault(w, "a page is empty");
    const uint8_t *before = NULL;
    for (size_t i = 0; i < n; i++) {
        size_t at = u16_at(page + PAGE_HEADER + 2 * i);
        if (at < upper || at + NODE_HEADER > w->page_size || (at & 1)) return fault(w, "a node is out of its page");
        const uint8_t *node = page + at;
        if (at + NODE_HEADER + u16_at(node + 6) > w->page_size) return fault(w, "a key is out of its page");
        if (depth > 1) {
            uint64_t child = u32_at(node) | (uint64_t)u16_at(node + 4) << 32;
            if (!check_tree(w, child, depth - 1)) return false;
        } else {
            if (!check_leaf_node(w, node, w->page_size - at)) return false;
            if (before && !w->free_list && compare_keys(before, node) >= 0) return fault(w, "keys are out of order");
            before = node;
        }
    }
    return true;
}

static bool check_db(walk *w, const uint8_t *db, bool free_list)
{
    uint64_t root = u64_at(db + DB_ROOT);
    unsigned depth = u16_at(db + DB_DEPTH);
    w->free_list = free_list;
    if (root == no_page) return true;
    if (depth < 1 || depth > MAX_DEPTH) return fault(w, "a tree's depth is wrong");
    return check_tree(w, root, depth);
}

static bool check_pages(walk *w, const uint8_t *meta)
{
    return check_db(w, meta + META_MAIN, false) && check_db(w, meta + META_FREE, true);
}

bool lt_cache_check_all(const lattice_allocator *mem, const char *path, uint64_t transaction, lt_cache_verdict *verdict,
                        const char **why, lt_cache_census *census)
{
    *verdict = LT_CACHE_DAMAGED;
    *why = "it cannot be read";
    *census = (lt_cache_census){ 0 };
    walk w = { .page_size = (size_t)sysconf(_SC_PAGESIZE) };
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    struct stat info;
    if (fd < 0) return true;
    void *file = MAP_FAILED;
    size_t size = 0;
    if (fstat(fd, &info) == 0 && info.st_size >= (off_t)(N_META * w.page_size)) {
        size = (size_t)info.st_size;
        file = mmap(NULL, size, PROT_READ, MAP_SHARED, fd, 0);
    }
    close(fd);
    if (file == MAP_FAILED) return true;
    madvise(file, size, MADV_SEQUENTIAL);
    w.file = file;
    w.n_pages = size / w.page_size;
    const uint8_t *meta = w.file + (transaction & 1) * w.page_size + PAGE_HEADER;
    w.last_page = u64_at(meta + META_LAST);
    bool done = true;
    if (u64_at(meta + META_TRANSACTION) != transaction || !plausible_last_page(w.last_page, w.n_pages)) {
        *why = "its head is wrong";
    } else {
        w.seen = lt_alloc_zero(mem, (size_t)(w.last_page / 8 + 1));
        done = w.seen != NULL;
        if (done && check_pages(&w, meta)) *verdict = w.strange ? LT_CACHE_DAMAGED : LT_CACHE_SOUND;
        *why = w.why ? w.why : w.strange ? "a record is damaged" : NULL;
        /* Pages of LMDB without one record of ours are another program's. */
        if (w.strange && !w.why && !w.census.has_format && !w.census.records && !w.census.imported) *verdict = LT_CACHE_FOREIGN;
        *census = w.census;
    }
    lt_free(mem, w.seen);
    munmap(file, size);
    return done;
}
