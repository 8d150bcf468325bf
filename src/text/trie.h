/* A compact trie as a double array: the child of node s by byte b is at base[s] ^ b, and is one when its check is s.
 *
 * Twelve bytes a node; a step is one xor, one load and one comparison. Children of a node share a block of 256 slots, because
 * the exclusive or only changes the low byte. */
#ifndef LT_TEXT_TRIE_H
#define LT_TEXT_TRIE_H

#include "base/bytes.h"

#define LT_TRIE_NO_VALUE UINT32_MAX
#define LT_TRIE_ROOT 0u

typedef struct lt_trie {
    const lattice_allocator *mem;
    struct lt_trie_node {
        uint32_t base, check, value; /* check: the parent; UINT32_MAX: free. value LT_TRIE_NO_VALUE: no key ends here */
    } * nodes;
    size_t n, capacity; /* n: a multiple of 256 */
} lt_trie;

typedef struct lt_trie_key {
    const uint8_t *data;
    uint32_t length, value;
    uint64_t prefix; /* filled by lt_trie_build: the first eight bytes, which decide most comparisons */
} lt_trie_key;

/* Builds the trie of n distinct keys, which are put in order here; empty keys are left out. */
lattice_status lt_trie_build(lt_trie *trie, const lattice_allocator *mem, lt_trie_key *keys, size_t n, lattice_error *err);
void lt_trie_free(lt_trie *trie);

/* Goes from *node by `byte`; false: no such child. */
static inline bool lt_trie_step(const lt_trie *trie, uint32_t *node, uint8_t byte)
{
    uint32_t next = trie->nodes[*node].base ^ byte;
    if (trie->nodes[next].check != *node) return false;
    *node = next;
    return true;
}

#endif
