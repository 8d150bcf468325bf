/* Looks an LMDB file over before LMDB does.
 *
 * LMDB trusts its pages: a wrong offset in one is a wrong address in the process. So the pages that a transaction sees, those of
 * the records and those of the list of free pages, are walked once with every offset, size and page number checked, each page
 * reached once only, and every record's checksum compared. The layout is that of LMDB 0.9 on a 64-bit machine. */
#ifndef LT_ENGINE_CACHE_CHECK_H
#define LT_ENGINE_CACHE_CHECK_H

#include "base/bytes.h"

typedef enum lt_cache_verdict {
    LT_CACHE_SOUND,
    LT_CACHE_ABSENT,  /* no file, or an empty one */
    LT_CACHE_DAMAGED, /* was a cache */
    LT_CACHE_FOREIGN, /* something else */
} lt_cache_verdict;

/* The first two pages, on which opening depends. *why is a constant text. Does not need LMDB to be open. */
lt_cache_verdict lt_cache_check_head(const char *path, const char **why);

typedef struct lt_cache_census {
    uint64_t records, imported;
    bool has_format; /* the record that names the format is there */
} lt_cache_census;

/* Everything that transaction number `transaction` sees, which must be kept open meanwhile. false: no memory to look. */
bool lt_cache_check_all(const lattice_allocator *mem, const char *path, uint64_t transaction, lt_cache_verdict *verdict,
                        const char **why, lt_cache_census *census);

#endif
