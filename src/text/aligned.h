/* Text on its way through the pipeline, and where each of its bytes came from.
 *
 * A view is a piece of valid UTF-8 with the byte range of the input behind each of its bytes. As long as nothing was inserted
 * or removed, the ranges are implied (`align` NULL: byte i comes from the character at origin + i); after that they are stored,
 * one a byte. Stages that change text write into an lt_work through an lt_rewrite, which follows the rules of Hugging Face
 * tokenizers for what a new character is aligned to:
 *   change  0: it replaces the next character, and takes its range;
 *   change  1: it is inserted, and takes the range of the byte before the next character;
 *   change -k: it replaces the next character, and k further ones after it are removed. */
#ifndef LT_TEXT_ALIGNED_H
#define LT_TEXT_ALIGNED_H

#include "base/bytes.h"
#include "text/unicode.h"

typedef struct lt_align {
    uint32_t start, end; /* bytes of the input */
} lt_align;

typedef struct lt_view {
    const uint8_t *data;
    size_t n;
    const lt_align *align; /* [n], or NULL: implied */
    size_t origin;         /* where data[0] stands in the input, if implied */
} lt_view;

/* Input range of the bytes [start, end) of a view, start < end. */
static inline lt_align lt_view_range(const lt_view *v, size_t start, size_t end)
{
    if (v->align) return (lt_align){ v->align[start].start, v->align[end - 1].end };
    while (start > 0 && (v->data[start] & 0xC0) == 0x80) start--;
    while (end < v->n && (v->data[end] & 0xC0) == 0x80) end++;
    return (lt_align){ (uint32_t)(v->origin + start), (uint32_t)(v->origin + end) };
}

static inline lt_view lt_view_slice(const lt_view *v, size_t start, size_t end)
{
    return (lt_view){ v->data + start, end - start, v->align ? v->align + start : NULL, v->origin + start };
}

/* A growing text with alignment; memory is kept between uses. */
typedef struct lt_work {
    const lattice_allocator *mem;
    uint8_t *data;
    size_t n, capacity;
    lt_align *align;
    size_t align_capacity;
} lt_work;

void lt_work_init(lt_work *work, const lattice_allocator *mem);
void lt_work_free(lt_work *work);
/* Gives the memory of a giant text back; what the work holds is gone then. */
void lt_work_trim(lt_work *work);

/* A rewriting of `in` into `out` (cleared first). Without `track` no alignment is kept. */
typedef struct lt_rewrite {
    const lt_view *in;
    lt_work *out;
    size_t at;   /* next byte of in */
    bool track;  /* alignment is wanted */
    bool stored; /* alignment is being stored: not implied any more */
    bool failed; /* out of memory */
} lt_rewrite;

lt_rewrite lt_rewrite_begin(const lt_view *in, lt_work *out, bool track);
/* Stores the alignment from here on; what was written so far must be as long as what was read. */
void lt_rewrite_store(lt_rewrite *r);
/* Makes room for n bytes. */
bool lt_rewrite_room(lt_rewrite *r, size_t n);
/* Writes one character, by the rules above. */
void lt_rewrite_put(lt_rewrite *r, uint32_t c, long change);
/* Copies the next n bytes (whole characters) as they are; skips the next n bytes. */
void lt_rewrite_copy(lt_rewrite *r, size_t n);
void lt_rewrite_skip(lt_rewrite *r, size_t n);
/* The text written. */
lattice_status lt_rewrite_end(lt_rewrite *r, lt_view *view, lattice_error *err);

#endif
