/* The growing arrays of an encoding, and its spans in code points. */
#include "base/utf8.h"
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

/* ------------------------------------------------------------------ code points */

/* A place in a text, in bytes and in code points. */
typedef struct place {
    size_t byte, code_point;
} place;

static size_t count(lt_str text, size_t start, size_t end)
{
    size_t n = 0;
    for (uint32_t code; start < end; n++)
        start +=
            (uint8_t)text.data[start] < 0x80 ? 1 : lt_utf8_decode((const uint8_t *)text.data + start, text.len - start, &code);
    return n;
}

/* Moves the place, from one border of characters to another in either direction: neighbouring spans are near each other. */
static uint32_t move(place *p, lt_str text, size_t byte)
{
    if (byte >= p->byte) {
        p->code_point += count(text, p->byte, byte);
    } else {
        p->code_point -= count(text, byte, p->byte);
    }
    p->byte = byte;
    return (uint32_t)p->code_point;
}

void lt_tokens_count_code_points(lt_tokens *tokens, lt_str first, const lt_str *second)
{
    place places[2][2] = { { { 0, 0 } } }; /* of each text, where the last span began and ended */
    for (size_t i = 0; i < tokens->n; i++) {
        if (tokens->sequence[i] > 1) continue;
        bool is_second = tokens->sequence[i] == 1;
        lt_str text = is_second && second ? *second : first;
        struct lt_span *span = &tokens->spans[i];
        span->start = move(&places[is_second][0], text, span->start);
        span->end = move(&places[is_second][1], text, span->end);
    }
}
