/* Rewriting text with its alignment. While input and output run in step the alignment is implied and costs nothing; the first
 * insertion or removal writes it out for what came before. */
#include "text/aligned.h"

#include "base/utf8.h"

void lt_work_init(lt_work *work, const lattice_allocator *mem)
{
    *work = (lt_work){ .mem = mem };
}

void lt_work_free(lt_work *work)
{
    if (!work->mem) return;
    lt_free(work->mem, work->data);
    lt_free(work->mem, work->align);
    *work = (lt_work){ .mem = work->mem };
}

void lt_work_trim(lt_work *work)
{
    const size_t kept = (size_t)4 << 20; /* bytes of text */
    if (work->capacity > kept || work->align_capacity > kept) lt_work_free(work);
}

lt_rewrite lt_rewrite_begin(const lt_view *in, lt_work *out, bool track)
{
    lt_rewrite r = { .in = in, .out = out, .track = track, .stored = false };
    out->n = 0;
    if (track && in->align) r.stored = true;
    return r;
}

bool lt_rewrite_room(lt_rewrite *r, size_t n)
{
    lt_work *out = r->out;
    size_t need;
    if (!lt_add(out->n, n, &need)) r->failed = true;
    if (!r->failed && need > out->capacity && !LT_GROW(out->mem, out->data, out->capacity, need)) r->failed = true;
    if (!r->failed && r->stored && need > out->align_capacity && !LT_GROW(out->mem, out->align, out->align_capacity, need))
        r->failed = true;
    return !r->failed;
}

/* Writes the implied alignment of in[start, end) to align. */
static void imply(const lt_view *in, size_t start, size_t end, lt_align *align)
{
    for (size_t i = start; i < end;) {
        size_t size = 1;
        if (in->data[i] >= 0x80) lt_utf8_at(in->data, i, &size);
        for (size_t k = 0; k < size; k++) *align++ = (lt_align){ (uint32_t)(in->origin + i), (uint32_t)(in->origin + i + size) };
        i += size;
    }
}

void lt_rewrite_store(lt_rewrite *r)
{
    if (!r->track || r->stored) return;
    r->stored = true;
    if (lt_rewrite_room(r, 0) &&
        (r->out->n == 0 || r->out->align || LT_GROW(r->out->mem, r->out->align, r->out->align_capacity, r->out->n)))
        imply(r->in, 0, r->out->n, r->out->align);
}

/* The alignment of one byte of the input. */
static lt_align align_at(const lt_view *in, size_t i)
{
    if (in->align) return in->align[i];
    return lt_view_range(in, i, i + 1);
}

/* Range of a character inserted before everything: the beginning of the piece, empty. */
static lt_align align_begin(const lt_view *in)
{
    uint32_t start = (uint32_t)(in->align ? (in->n ? in->align[0].start : 0) : in->origin);
    return (lt_align){ start, start };
}

void lt_rewrite_put(lt_rewrite *r, uint32_t c, long change)
{
    const lt_view *in = r->in;
    size_t size = 0, read = 0;
    if (change <= 0) {
        for (long k = change; k <= 0 && r->at + read < in->n; k++) {
            lt_utf8_at(in->data, r->at + read, &size);
            read += size;
        }
    }
    uint8_t bytes[4];
    size_t n = lt_utf8_encode(c, bytes);
    if (r->track && !r->stored && (n != read || change != 0)) lt_rewrite_store(r);
    if (!lt_rewrite_room(r, n)) return;
    if (r->stored) {
        lt_align align;
        if (change > 0) {
            align = r->at == 0 ? align_begin(in) : align_at(in, r->at - 1);
        } else {
            align = r->at < in->n ? align_at(in, r->at) : align_begin(in);
        }
        for (size_t k = 0; k < n; k++) r->out->align[r->out->n + k] = align;
    }
    memcpy(r->out->data + r->out->n, bytes, n);
    r->out->n += n;
    r->at += read;
}

void lt_rewrite_copy(lt_rewrite *r, size_t n)
{
    if (n == 0 || !lt_rewrite_room(r, n)) return;
    if (r->stored) {
        if (r->in->align) {
            memcpy(r->out->align + r->out->n, r->in->align + r->at, n * sizeof(lt_align));
        } else {
            imply(r->in, r->at, r->at + n, r->out->align + r->out->n);
        }
    }
    memcpy(r->out->data + r->out->n, r->in->data + r->at, n);
    r->out->n += n;
    r->at += n;
}

void lt_rewrite_skip(lt_rewrite *r, size_t n)
{
    if (n == 0) return;
    lt_rewrite_store(r);
    r->at += n;
}

lattice_status lt_rewrite_end(lt_rewrite *r, lt_view *view, lattice_error *err)
{
    if (r->failed) return lt_no_memory(err, r->out->n, "a normalised text");
    *view = (lt_view){ r->out->data ? r->out->data : (const uint8_t *)"", r->out->n, r->stored ? r->out->align : NULL,
                       r->in->origin };
    if (r->stored && !view->align) { /* an empty text */
        static const lt_align none;
        view->align = &none;
    }
    return LATTICE_OK;
}
