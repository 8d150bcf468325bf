/* Packing: which texts go into which batch.
 *
 * Texts of a window are ordered by length, longest first, and taken in that order while they fit the token budget, so that the
 * texts of a batch have similar lengths and a batch is nearly always full. Nothing is padded. */
#ifndef LT_ENGINE_BATCH_H
#define LT_ENGINE_BATCH_H

#include "backend/plan.h"

/* Tokenised texts of a window, one after the other. */
typedef struct lt_window {
    const lattice_allocator *mem;
    size_t first; /* number of the first text in the caller's list */
    size_t n;
    size_t *starts; /* [n + 1] */
    size_t starts_capacity;
    uint32_t *ids, *types; /* [starts[n]] */
    size_t ids_capacity, types_capacity;
    uint64_t n_truncated;
} lt_window;

void lt_window_init(lt_window *window, const lattice_allocator *mem);
void lt_window_free(lt_window *window);
void lt_window_clear(lt_window *window, size_t first);
/* Appends a text; false: no memory. types NULL: all 0. */
bool lt_window_add(lt_window *window, const uint32_t *ids, const uint32_t *types, size_t n);
static inline size_t lt_window_length(const lt_window *window, size_t i)
{
    return window->starts[i + 1] - window->starts[i];
}

/* A batch under construction and the texts in it. */
typedef struct lt_packer {
    const lattice_allocator *mem;
    uint64_t *order; /* [window n] length and text, packed for sorting */
    size_t order_capacity;
    size_t next, n; /* of `order` */
    uint32_t *ids, *types, *positions;
    size_t ids_capacity, types_capacity, positions_capacity;
    size_t *seq_starts, *pool_skip, *members; /* members: text of the window each sequence is */
    size_t seq_starts_capacity, pool_skip_capacity, members_capacity;
    lt_batch batch;
} lt_packer;

void lt_packer_init(lt_packer *packer, const lattice_allocator *mem);
void lt_packer_free(lt_packer *packer);
/* Orders the window's texts. Windows hold fewer than 2^24 texts of fewer than 2^40 tokens. false: no memory. */
bool lt_packer_begin(lt_packer *packer, const lt_window *window);
/* Fills packer->batch with the next texts, at least one, within budget and max_seqs; `skip` tokens of each are left out of
 * pooling. *more false: all texts have been taken. false: no memory. */
bool lt_packer_next(lt_packer *packer, const lt_window *window, size_t budget, size_t max_seqs, size_t skip, bool *more);

#endif
