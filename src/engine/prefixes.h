/* Beginnings of conversations that were computed already: a conversation's next turn goes on from there.
 *
 * A prefix is a session that nobody uses, kept where a turn ended and found by its token ids. Recurrent layers cannot be rewound,
 * so there is no reusing half of one: the longest whole prefix counts. The least recently used go first when memory is short. */
#ifndef LT_ENGINE_PREFIXES_H
#define LT_ENGINE_PREFIXES_H

#include "base/memory.h"

typedef struct lt_prefixes lt_prefixes;

/* max_bytes: of keys, values and recurrent states; blocks that prefixes share are counted for each. */
lattice_status lt_prefixes_create(const lattice_allocator *mem, size_t max_bytes, lt_prefixes **prefixes, lattice_error *err);
/* Before the models are closed. */
void lt_prefixes_free(lt_prefixes *prefixes);

/* A session of the model that holds the longest prefix kept of ids[0..n), at most n - 1 tokens: *n_found; a new, empty one where
 * there is none. From any thread, as below. */
lattice_status lt_prefixes_find(lt_prefixes *prefixes, lattice_model *model, const uint32_t *ids, size_t n,
                                lattice_session **session, size_t *n_found, lattice_error *err);
/* Keeps the session's tokens up to here; the session goes its own way. Without memory nothing is kept. */
void lt_prefixes_keep(lt_prefixes *prefixes, const lattice_session *session);

typedef struct lt_prefixes_stats {
    size_t n, bytes;
    uint64_t hits, misses, tokens; /* tokens: that were found instead of computed */
} lt_prefixes_stats;

void lt_prefixes_get_stats(lt_prefixes *prefixes, lt_prefixes_stats *stats);

#endif
