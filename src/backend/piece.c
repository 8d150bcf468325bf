/* Cutting batches; see piece.h. */
#include "backend/piece.h"

void lt_piece_init(lt_piece *piece, const lattice_allocator *mem)
{
    *piece = (lt_piece){ .mem = mem };
}

void lt_piece_free(lt_piece *p)
{
    void *const all[] = { p->ids,       p->positions, p->types,  p->starts, p->out_rows, p->past_lens,
                          p->pool_skip, p->to,        p->states, p->rows,   p->begins };
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) lt_free(p->mem, all[i]);
    lt_piece_init(p, p->mem);
}

static bool reserve(lt_piece *p, size_t n_tokens, size_t n_seqs, size_t n_out)
{
    return LT_GROW(p->mem, p->ids, p->tokens_capacity[0], n_tokens) &&
           LT_GROW(p->mem, p->positions, p->tokens_capacity[1], n_tokens) &&
           LT_GROW(p->mem, p->types, p->tokens_capacity[2], n_tokens) &&
           LT_GROW(p->mem, p->starts, p->seqs_capacity[0], n_seqs + 1) &&
           LT_GROW(p->mem, p->past_lens, p->seqs_capacity[1], n_seqs) &&
           LT_GROW(p->mem, p->pool_skip, p->seqs_capacity[2], n_seqs) &&
           LT_GROW(p->mem, p->states, p->seqs_capacity[3], n_seqs) && LT_GROW(p->mem, p->begins, p->seqs_capacity[4], n_seqs) &&
           LT_GROW(p->mem, p->out_rows, p->out_capacity, n_out);
}

/* The sequence that token `row` belongs to. */
static size_t owner(const lt_batch *b, size_t row)
{
    size_t low = 0, high = b->n_seqs;
    while (high - low > 1) {
        size_t middle = low + (high - low) / 2;
        if (b->seq_starts[middle] <= row)
            low = middle;
        else
            high = middle;
    }
    return low;
}

/* Where the results belong: a row a token, a sequence or a selected row, as the tail has it. */
static bool find_rows(lt_piece *p, const lt_whole *whole, const lt_cut *cut)
{
    const lt_batch *b = whole->batch;
    lt_rows kind = whole->plan->values[whole->plan->tails[whole->tail].result].rows;
    p->n_rows = kind == LT_ROWS_TOKENS ? p->batch.n_tokens : kind == LT_ROWS_SEQS ? p->batch.n_seqs : p->batch.n_out;
    if (!LT_GROW(p->mem, p->to, p->to_capacity, p->n_rows)) return false;
    size_t n = 0;
    if (kind == LT_ROWS_OUT) {
        for (size_t i = 0; i < b->n_out; i++) {
            if (lt_cut_has(cut, whole, owner(b, b->out_rows[i]))) p->to[n++] = i;
        }
    } else {
        for (size_t s = cut->first; s < cut->end; s++) {
            if (!lt_cut_has(cut, whole, s)) continue;
            if (kind == LT_ROWS_SEQS) p->to[n++] = s;
            for (size_t t = b->seq_starts[s]; kind == LT_ROWS_TOKENS && t < b->seq_starts[s + 1]; t++) p->to[n++] = t;
        }
    }
    p->scattered = false;
    for (size_t i = 1; i < n; i++) p->scattered |= p->to[i] != p->to[i - 1] + 1;
    size_t floats;
    if (p->scattered && (!lt_mul(n, p->width, &floats) || !LT_GROW(p->mem, p->rows, p->rows_capacity, floats))) return false;
    p->out = p->scattered ? p->rows : whole->out + (n > 0 ? p->to[0] : 0) * p->width;
    return true;
}

static void copy_sequence(lt_piece *p, const lt_whole *whole, size_t s, size_t seq, size_t at)
{
    const lt_batch *b = whole->batch;
    size_t begin = b->seq_starts[s], n = b->seq_starts[s + 1] - begin;
    p->starts[seq] = at;
    memcpy(p->ids + at, b->ids + begin, n * sizeof *p->ids);
    memcpy(p->positions + at, b->positions + begin, n * sizeof *p->positions);
    if (b->type_ids) memcpy(p->types + at, b->type_ids + begin, n * sizeof *p->types);
    if (b->past_lens) p->past_lens[seq] = b->past_lens[s];
    if (b->pool_skip) p->pool_skip[seq] = b->pool_skip[s];
    if (whole->states) p->states[seq] = whole->states[s];
}

lattice_status lt_piece_fill(lt_piece *p, const lt_whole *whole, const lt_cut *cut, lattice_error *err)
{
    const lt_batch *b = whole->batch;
    size_t n_tokens = 0, n_seqs = 0, n_out = 0;
    for (size_t s = cut->first; s < cut->end; s++) {
        if (!lt_cut_has(cut, whole, s)) continue;
        n_tokens += lt_whole_tokens(whole, s);
        n_seqs++;
    }
    p->width = lt_tail_width(whole->plan, whole->tail, b->pooling);
    if (n_seqs == b->n_seqs) { /* nothing is left out */
        p->batch = *b;
        p->batch.states = whole->states;
        p->scattered = false;
        p->out = whole->out;
        return LATTICE_OK;
    }
    if (!reserve(p, n_tokens, cut->end - cut->first, b->n_out))
        return lt_no_memory(err, n_tokens * sizeof *p->ids, "a part of a batch");
    size_t at = 0, seq = 0;
    for (size_t s = cut->first; s < cut->end; s++) {
        if (!lt_cut_has(cut, whole, s)) continue;
        p->begins[s - cut->first] = at;
        copy_sequence(p, whole, s, seq++, at);
        at += lt_whole_tokens(whole, s);
    }
    p->starts[n_seqs] = at;
    for (size_t i = 0; i < b->n_out; i++) {
        size_t s = owner(b, b->out_rows[i]);
        if (!lt_cut_has(cut, whole, s)) continue;
        p->out_rows[n_out++] = p->begins[s - cut->first] + b->out_rows[i] - b->seq_starts[s];
    }
    p->batch = (lt_batch){
        .n_tokens = n_tokens,
        .n_seqs = n_seqs,
        .n_out = n_out,
        .ids = p->ids,
        .positions = p->positions,
        .type_ids = b->type_ids ? p->types : NULL,
        .seq_starts = p->starts,
        .out_rows = p->out_rows,
        .past_lens = b->past_lens ? p->past_lens : NULL,
        .states = whole->states ? p->states : NULL,
        .pooling = b->pooling,
        .pool_skip = b->pool_skip ? p->pool_skip : NULL,
    };
    return find_rows(p, whole, cut) ? LATTICE_OK : lt_no_memory(err, n_seqs * p->width * sizeof(float), "a part of a batch");
}

void lt_piece_deliver(const lt_piece *p, const lt_whole *whole)
{
    for (size_t i = 0; p->scattered && i < p->n_rows; i++)
        memcpy(whole->out + p->to[i] * p->width, p->rows + i * p->width, p->width * sizeof(float));
}
