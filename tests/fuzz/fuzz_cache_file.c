/* The embedding cache's LMDB file as it is looked over before LMDB reads it: whatever the bytes, nothing outside of them is. */
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/memory.h"
#include "engine/cache_check.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    enum { TRANSACTION = 16 + 128 }; /* in the first page: its header, then the head */
    static int fd = -1;
    if (fd < 0) fd = memfd_create("fuzz", 0);
    if (fd < 0 || ftruncate(fd, 0) != 0 || pwrite(fd, data, size, 0) != (ssize_t)size) return 0;
    char path[64];
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    const char *why;
    lt_cache_verdict verdict = lt_cache_check_head(path, &why);
    if (verdict != LT_CACHE_SOUND || size < TRANSACTION + 8) return 0;
    uint64_t transaction;
    memcpy(&transaction, data + TRANSACTION, sizeof transaction);
    lt_cache_census census;
    for (uint64_t next = 0; next < 2; next++)
        lt_cache_check_all(&lt_malloc_allocator, path, transaction + next, &verdict, &why, &census);
    return 0;
}
