/* The growing arrays of an encoding. */
#include "text/tokenizer.h"

void lt_tokens_init(lt_tokens *tokens, const lattice_allocator *mem)
{
    *tokens = (lt_tokens){ .mem = mem };
}

void lt_tokens_free(lt_tokens *tokens)
{
    if (!tokens->mem) return;
    lt_free(tokens->mem, tokens->ids);
    lt_free(tokens->mem, tokens->type_ids);
    lt_free(tokens->mem, tokens->spans);
    lt_free(tokens->mem, tokens->special);
    lt_free(tokens->mem, tokens->sequence);
    *tokens = (lt_tokens){ .mem = tokens->mem };
}

/* Resizes one of the arrays; each grows by itself, so that a failure leaves all of them valid at the old capacity. */
static bool resize(const lattice_allocator *mem, void *array, size_t n, size_t size)
{
    void *old, *grown;
    memcpy(&old, array, sizeof old);
    grown = lt_resize_array(mem, old, n, size);
    if (!grown) return false;
    memcpy(array, &grown, sizeof grown);
    return true;
}

bool lt_tokens_reserve(lt_tokens *tokens, size_t n)
{
    if (n <= tokens->capacity) return true;
    size_t capacity = tokens->capacity < 64 ? 64 : tokens->capacity;
    while (capacity < n) {
        if (!lt_add(capacity, capacity / 2, &capacity)) return false;
    }
    if (!resize(tokens->mem, &tokens->ids, capacity, sizeof *tokens->ids)) return false;
    if (!resize(tokens->mem, &tokens->type_ids, capacity, sizeof *tokens->type_ids)) return false;
    if (!resize(tokens->mem, &tokens->spans, capacity, sizeof *tokens->spans)) return false;
    if (!resize(tokens->mem, &tokens->special, capacity, sizeof *tokens->special)) return false;
    if (!resize(tokens->mem, &tokens->sequence, capacity, sizeof *tokens->sequence)) return false;
    tokens->capacity = capacity;
    return true;
}
