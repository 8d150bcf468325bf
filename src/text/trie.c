/* Building the double array: the keys are sorted, then each node's children are put where all of them find free slots.
 *
 * Nodes with one child (most of them) take the first free slot of the oldest open block; the others search the open blocks for a
 * base under which all their labels are free. At most OPEN_BLOCKS blocks are open, so building stays linear; what an older
 * block still has free is given up. Nodes wait on an explicit stack: keys may be as long as they like. */
#include "text/trie.h"

#define OPEN_BLOCKS 24
#define FREE UINT32_MAX
#define NO_PARENT (UINT32_MAX - 1)

typedef struct pending {
    uint32_t node, begin, end, depth; /* keys[begin..end) share their first `depth` bytes, which lead to node */
} pending;

typedef struct builder {
    lt_trie *trie;
    const lt_trie_key *keys;
    pending *stack;
    size_t n_stack, stack_capacity;
    struct block {
        uint32_t first; /* slot */
        uint32_t n_free;
        uint64_t free[4]; /* bit: free */
    } open[OPEN_BLOCKS];
    size_t n_open;
} builder;

static int compare(const lt_trie_key *a, const lt_trie_key *b)
{
    if (a->prefix != b->prefix) return a->prefix < b->prefix ? -1 : 1;
    uint32_t n = a->length < b->length ? a->length : b->length;
    int order = memcmp(a->data, b->data, n);
    return order != 0 ? order : (a->length > b->length) - (a->length < b->length);
}

/* Bottom-up merge sort; `other` has room for n keys. Returns the array that holds the result. */
static lt_trie_key *sort(lt_trie_key *keys, lt_trie_key *other, size_t n)
{
    for (size_t width = 1; width < n; width *= 2) {
        for (size_t begin = 0; begin < n; begin += 2 * width) {
            size_t middle = begin + width < n ? begin + width : n, end = begin + 2 * width < n ? begin + 2 * width : n;
            size_t i = begin, j = middle, k = begin;
            while (i < middle && j < end) other[k++] = compare(&keys[j], &keys[i]) < 0 ? keys[j++] : keys[i++];
            while (i < middle) other[k++] = keys[i++];
            while (j < end) other[k++] = keys[j++];
        }
        lt_trie_key *sorted = other;
        other = keys;
        keys = sorted;
    }
    return keys;
}

static bool add_block(builder *b)
{
    lt_trie *trie = b->trie;
    if (trie->n > UINT32_MAX / 2 || !LT_GROW(trie->mem, trie->nodes, trie->capacity, trie->n + 256)) return false;
    for (size_t i = 0; i < 256; i++) trie->nodes[trie->n + i] = (struct lt_trie_node){ 0, FREE, LT_TRIE_NO_VALUE };
    if (b->n_open == OPEN_BLOCKS) {
        memmove(b->open, b->open + 1, (OPEN_BLOCKS - 1) * sizeof *b->open);
        b->n_open--;
    }
    b->open[b->n_open++] = (struct block){ (uint32_t)trie->n, 256, { UINT64_MAX, UINT64_MAX, UINT64_MAX, UINT64_MAX } };
    trie->n += 256;
    return true;
}

static inline bool is_free(const struct block *block, uint32_t slot)
{
    return block->free[slot >> 6] >> (slot & 63) & 1;
}

/* The low byte of a base under which all labels are free in the block, or -1. */
static int fit(const struct block *block, const uint8_t *labels, size_t n)
{
    for (uint32_t word = 0; word < 4; word++) {
        for (uint64_t rest = block->free[word]; rest != 0; rest &= rest - 1) {
            uint32_t base = (word * 64 + (uint32_t)__builtin_ctzll(rest)) ^ labels[0];
            size_t i = 1;
            while (i < n && is_free(block, base ^ labels[i])) i++;
            if (i == n) return (int)base;
        }
    }
    return -1;
}

/* Finds a base for the labels, takes their slots and returns it; false without memory. */
static bool place(builder *b, const uint8_t *labels, size_t n, uint32_t *base)
{
    size_t at = 0;
    int low = -1;
    for (; at < b->n_open; at++) {
        if (b->open[at].n_free >= n && (low = fit(&b->open[at], labels, n)) >= 0) break;
    }
    if (low < 0) {
        if (!add_block(b)) return false;
        at = b->n_open - 1;
        low = 0;
    }
    struct block *block = &b->open[at];
    for (size_t i = 0; i < n; i++) {
        uint32_t slot = (uint32_t)low ^ labels[i];
        block->free[slot >> 6] &= ~(UINT64_C(1) << (slot & 63));
    }
    block->n_free -= (uint32_t)n;
    *base = block->first + (uint32_t)low;
    if (block->n_free == 0) {
        memmove(block, block + 1, (b->n_open - at - 1) * sizeof *block);
        b->n_open--;
    }
    return true;
}

/* Gives the node its value and its children, which are put on the stack. */
static bool expand(builder *b, pending node)
{
    struct lt_trie_node *nodes = b->trie->nodes;
    uint32_t i = node.begin;
    if (i < node.end && b->keys[i].length == node.depth) {
        if (node.depth > 0) nodes[node.node].value = b->keys[i].value;
        while (i < node.end && b->keys[i].length == node.depth) i++;
    }
    if (i == node.end) return true;
    uint8_t labels[256];
    size_t n = 0, first = b->n_stack;
    if (!LT_GROW(b->trie->mem, b->stack, b->stack_capacity, b->n_stack + 256)) return false;
    while (i < node.end) {
        uint8_t label = b->keys[i].data[node.depth];
        uint32_t begin = i;
        while (i < node.end && b->keys[i].data[node.depth] == label) i++;
        labels[n++] = label;
        b->stack[b->n_stack++] = (pending){ 0, begin, i, node.depth + 1 };
    }
    uint32_t base;
    if (!place(b, labels, n, &base)) return false;
    nodes = b->trie->nodes;
    nodes[node.node].base = base;
    for (size_t k = 0; k < n; k++) {
        nodes[base ^ labels[k]].check = node.node;
        b->stack[first + k].node = base ^ labels[k];
    }
    return true;
}

static uint64_t prefix_of(const lt_trie_key *key)
{
    uint64_t prefix = 0;
    for (uint32_t i = 0; i < 8; i++) prefix = prefix << 8 | (i < key->length ? key->data[i] : 0);
    return prefix;
}

lattice_status lt_trie_build(lt_trie *trie, const lattice_allocator *mem, lt_trie_key *keys, size_t n, lattice_error *err)
{
    *trie = (lt_trie){ .mem = mem };
    builder b = { .trie = trie };
    lattice_status status = LATTICE_OK;
    lt_trie_key *other = lt_alloc_array(mem, n > 0 ? n : 1, sizeof *other);
    bool done = other != NULL && n < UINT32_MAX && add_block(&b);
    if (done) {
        for (size_t i = 0; i < n; i++) keys[i].prefix = prefix_of(&keys[i]);
        b.keys = sort(keys, other, n);
        trie->nodes[LT_TRIE_ROOT].check = NO_PARENT;
        b.open[0].free[0] &= ~UINT64_C(1);
        b.open[0].n_free--;
        done = expand(&b, (pending){ LT_TRIE_ROOT, 0, (uint32_t)n, 0 });
    }
    while (done && b.n_stack > 0) done = expand(&b, b.stack[--b.n_stack]);
    if (!done) {
        lt_trie_free(trie);
        status = lt_no_memory(err, n * sizeof *keys, "the vocabulary's trie");
    } else {
        void *nodes = lt_resize_array(mem, trie->nodes, trie->n, sizeof *trie->nodes);
        if (nodes != NULL) {
            trie->nodes = nodes;
            trie->capacity = trie->n;
        }
    }
    lt_free(mem, b.stack);
    lt_free(mem, other);
    return status;
}

void lt_trie_free(lt_trie *trie)
{
    if (trie->mem == NULL) return;
    lt_free(trie->mem, trie->nodes);
    *trie = (lt_trie){ .mem = trie->mem };
}
