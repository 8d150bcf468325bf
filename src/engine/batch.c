/* Packing. See batch.h. */
#include "engine/batch.h"

#include <string.h>

void lt_window_init(lt_window *window, const lattice_allocator *mem)
{
    memset(window, 0, sizeof *window);
    window->mem = mem;
}

void lt_window_free(lt_window *window)
{
    lt_free(window->mem, window->starts);
    lt_free(window->mem, window->ids);
    lt_free(window->mem, window->types);
    lt_window_init(window, window->mem);
}

void lt_window_clear(lt_window *window, size_t first)
{
    window->first = first;
    window->n = 0;
    window->n_truncated = 0;
}

bool lt_window_add(lt_window *window, const uint32_t *ids, const uint32_t *types, size_t n)
{
    size_t begin = window->n ? window->starts[window->n] : 0;
    if (!LT_GROW(window->mem, window->starts, window->starts_capacity, window->n + 2) ||
        !LT_GROW(window->mem, window->ids, window->ids_capacity, begin + n) ||
        !LT_GROW(window->mem, window->types, window->types_capacity, begin + n))
        return false;
    if (n) {
        memcpy(window->ids + begin, ids, n * sizeof *ids);
        if (types)
            memcpy(window->types + begin, types, n * sizeof *types);
        else
            memset(window->types + begin, 0, n * sizeof *types);
    }
    window->starts[window->n++] = begin;
    window->starts[window->n] = begin + n;
    return true;
}

void lt_packer_init(lt_packer *packer, const lattice_allocator *mem)
{
    memset(packer, 0, sizeof *packer);
    packer->mem = mem;
}

void lt_packer_free(lt_packer *packer)
{
    lt_free(packer->mem, packer->order);
    lt_free(packer->mem, packer->ids);
    lt_free(packer->mem, packer->types);
    lt_free(packer->mem, packer->positions);
    lt_free(packer->mem, packer->seq_starts);
    lt_free(packer->mem, packer->pool_skip);
    lt_free(packer->mem, packer->members);
    lt_packer_init(packer, packer->mem);
}

/* Shell sort, descending, with the gaps of Ciura (2001): in place, no recursion, no memory, and quick for a few thousand keys. */
static void sort_descending(uint64_t *keys, size_t n)
{
    static const size_t gaps[] = { 8861, 3938, 1750, 701, 301, 132, 57, 23, 10, 4, 1 };
    for (size_t g = 0; g < sizeof gaps / sizeof gaps[0]; g++) {
        size_t gap = gaps[g];
        for (size_t i = gap; i < n; i++) {
            uint64_t key = keys[i];
            size_t j = i;
            for (; j >= gap && keys[j - gap] < key; j -= gap) keys[j] = keys[j - gap];
            keys[j] = key;
        }
    }
}

enum { TEXT_BITS = 24 };
static const uint64_t text_mask = ((uint64_t)1 << TEXT_BITS) - 1;

bool lt_packer_begin(lt_packer *packer, const lt_window *window)
{
    if (!LT_GROW(packer->mem, packer->order, packer->order_capacity, window->n)) return false;
    /* Longest first, equal lengths in the caller's order. */
    for (size_t i = 0; i < window->n; i++)
        packer->order[i] = (uint64_t)lt_window_length(window, i) << TEXT_BITS | (text_mask - i);
    sort_descending(packer->order, window->n);
    packer->n = window->n;
    packer->next = 0;
    return true;
}

static size_t text_at(const lt_packer *packer, size_t i)
{
    return (size_t)(text_mask - (packer->order[i] & text_mask));
}

/* Texts from `next` on that fit together. */
static size_t count_fitting(const lt_packer *packer, size_t budget, size_t max_seqs, size_t *n_tokens)
{
    size_t n = 0;
    *n_tokens = 0;
    while (packer->next + n < packer->n && n < max_seqs) {
        size_t length = (size_t)(packer->order[packer->next + n] >> TEXT_BITS);
        if (n > 0 && *n_tokens + length > budget) break;
        *n_tokens += length;
        n++;
    }
    return n;
}

bool lt_packer_next(lt_packer *packer, const lt_window *window, size_t budget, size_t max_seqs, size_t skip, bool *more)
{
    *more = packer->next < packer->n;
    if (!*more) return true;
    size_t n_tokens, n_seqs = count_fitting(packer, budget, max_seqs, &n_tokens);
    if (!LT_GROW(packer->mem, packer->ids, packer->ids_capacity, n_tokens) ||
        !LT_GROW(packer->mem, packer->types, packer->types_capacity, n_tokens) ||
        !LT_GROW(packer->mem, packer->positions, packer->positions_capacity, n_tokens) ||
        !LT_GROW(packer->mem, packer->seq_starts, packer->seq_starts_capacity, n_seqs + 1) ||
        !LT_GROW(packer->mem, packer->pool_skip, packer->pool_skip_capacity, n_seqs) ||
        !LT_GROW(packer->mem, packer->members, packer->members_capacity, n_seqs))
        return false;
    size_t at = 0;
    for (size_t s = 0; s < n_seqs; s++) {
        size_t text = text_at(packer, packer->next + s), length = lt_window_length(window, text);
        packer->members[s] = text;
        packer->seq_starts[s] = at;
        packer->pool_skip[s] = skip;
        memcpy(packer->ids + at, window->ids + window->starts[text], length * sizeof *packer->ids);
        memcpy(packer->types + at, window->types + window->starts[text], length * sizeof *packer->types);
        for (size_t i = 0; i < length; i++) packer->positions[at + i] = (uint32_t)i;
        at += length;
    }
    packer->seq_starts[n_seqs] = at;
    packer->next += n_seqs;
    packer->batch = (lt_batch){ .n_tokens = n_tokens,
                                .n_seqs = n_seqs,
                                .ids = packer->ids,
                                .positions = packer->positions,
                                .type_ids = packer->types,
                                .seq_starts = packer->seq_starts,
                                .pool_skip = skip ? packer->pool_skip : NULL };
    return true;
}
