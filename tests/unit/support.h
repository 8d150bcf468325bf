/* Helpers of the unit tests: cmocka with its prerequisites, an allocator that counts and fails, files and temporary folders. */
#ifndef LT_TESTS_SUPPORT_H
#define LT_TESTS_SUPPORT_H

#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <ftw.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "lattice.h"

/* How often to repeat: `full`, or `light` where each step takes ten to fifty times as long, under sanitizers and emulation
 * (LT_TEST_LIGHT, from tests/CMakeLists.txt). For loops that repeat one path over more random cases, threads or texts; never to
 * leave a path out, so whatever a sanitizer can see is seen. A constant expression. */
#define LT_ROUNDS(full, light) (LT_TEST_LIGHT ? (light) : (full))

/* "FIXTURES/name" as a string literal: FIXTURE("bert-cls/config.json"). */
#define FIXTURE(name) LT_FIXTURES "/" name

/* Asserts LATTICE_OK and shows the message otherwise. */
#define assert_ok(expr)                                                                                                          \
    do {                                                                                                                         \
        lattice_status assert_ok_ = (expr);                                                                                      \
        if (assert_ok_ != LATTICE_OK) fail_msg("%s: %s", #expr, lattice_status_text(assert_ok_));                                \
    } while (0)

/* As assert_ok, with the error's message. */
#define assert_ok_err(expr, err)                                                                                                 \
    do {                                                                                                                         \
        lattice_status assert_ok_ = (expr);                                                                                      \
        if (assert_ok_ != LATTICE_OK) fail_msg("%s: %s: %s", #expr, lattice_status_text(assert_ok_), (err)->message);            \
    } while (0)

/* ------------------------------------------------------------------ allocator */

/* Counts what is asked for and what is alive, and returns NULL for request number fail_at (counted from 1) and all later ones;
 * 0: never. Safe from several threads. Use:
 *
 *     for (long n = 1;; n++) {
 *         lt_test_allocator a = lt_test_allocator_failing_at(n);
 *         lattice_allocator mem = lt_test_allocator_hooks(&a);
 *         status = ...;
 *         assert_int_equal(lt_test_allocator_live(&a), 0);
 *         if (status == LATTICE_OK) break;   // (what succeeded must be released before the check)
 *         assert_int_equal(status, LATTICE_ERR_NO_MEMORY);
 *     }
 */
typedef struct lt_test_allocator {
    atomic_long requests, live;
    long fail_at;
} lt_test_allocator;

static inline lt_test_allocator lt_test_allocator_failing_at(long n)
{
    return (lt_test_allocator){ .fail_at = n };
}

static inline bool lt_test_allocator_refuses(lt_test_allocator *a)
{
    long request = atomic_fetch_add(&a->requests, 1) + 1;
    return a->fail_at > 0 && request >= a->fail_at;
}

static inline void *lt_test_allocate(void *user, size_t size)
{
    lt_test_allocator *a = user;
    if (lt_test_allocator_refuses(a)) return NULL;
    void *ptr = malloc(size);
    if (ptr) atomic_fetch_add(&a->live, 1);
    return ptr;
}

static inline void *lt_test_resize(void *user, void *ptr, size_t size)
{
    lt_test_allocator *a = user;
    if (lt_test_allocator_refuses(a)) return NULL;
    void *grown = realloc(ptr, size);
    if (grown && !ptr) atomic_fetch_add(&a->live, 1);
    return grown;
}

static inline void lt_test_release(void *user, void *ptr)
{
    lt_test_allocator *a = user;
    if (ptr) atomic_fetch_sub(&a->live, 1);
    free(ptr);
}

static inline lattice_allocator lt_test_allocator_hooks(lt_test_allocator *a)
{
    return (lattice_allocator){ a, lt_test_allocate, lt_test_resize, lt_test_release };
}

/* Blocks not released. */
static inline long lt_test_allocator_live(lt_test_allocator *a)
{
    return atomic_load(&a->live);
}

/* ------------------------------------------------------------------ files */

/* The whole file, NUL-terminated, malloc'd; the test fails when it cannot be read. size may be NULL. */
static inline char *lt_test_read_file(const char *path, size_t *size)
{
    FILE *f = fopen(path, "rb");
    if (!f) fail_msg("%s: cannot be opened", path);
    size_t len = 0, capacity = 1 << 16;
    char *data = malloc(capacity);
    for (size_t got; (got = fread(data + len, 1, capacity - len - 1, f)) > 0;) {
        len += got;
        if (capacity - len < 2) data = realloc(data, capacity *= 2);
    }
    fclose(f);
    data[len] = '\0';
    if (size) *size = len;
    return data;
}

static inline void lt_test_write_file(const char *path, const void *data, size_t size)
{
    FILE *f = fopen(path, "wb");
    if (!f) fail_msg("%s: cannot be created", path);
    bool whole = fwrite(data, 1, size, f) == size;
    if (fclose(f) != 0 || !whole) fail_msg("%s: cannot be written", path);
}

typedef struct lt_test_folder {
    char path[64];
} lt_test_folder;

/* An empty folder under /tmp. */
static inline lt_test_folder lt_test_folder_create(void)
{
    lt_test_folder folder = { "/tmp/lattice-test-XXXXXX" };
    if (!mkdtemp(folder.path)) fail_msg("%s: cannot be created", folder.path);
    return folder;
}

/* "folder/name" in out[256]. */
static inline const char *lt_test_path(const lt_test_folder *folder, const char *name, char out[256])
{
    snprintf(out, 256, "%s/%s", folder->path, name);
    return out;
}

static inline int lt_test_remove_entry(const char *path, const struct stat *info, int kind, struct FTW *place)
{
    (void)info, (void)kind, (void)place;
    return remove(path);
}

static inline void lt_test_folder_remove(lt_test_folder *folder)
{
    nftw(folder->path, lt_test_remove_entry, 16, FTW_DEPTH | FTW_PHYS);
}

#endif
