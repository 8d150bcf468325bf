/* One run of a plan on the CPU: what the files that run its operations share. */
#ifndef LT_BACKEND_CPU_RUN_H
#define LT_BACKEND_CPU_RUN_H

#include "backend/cpu/cpu.h"

typedef struct run {
    lt_program *program;
    const lt_plan *plan;
    const lt_kernels *kernels;
    const lt_batch *batch;
    float *out;
    unsigned pooling;       /* of the batch, 0: the op's */
    size_t rows[3];         /* by lt_rows */
    float *column_memory;   /* shared local values of a column split */
    lt_cpu_range ranges[2]; /* groups of the body and of the tail */
    size_t n_groups;
    size_t fail_group; /* fault injection: SIZE_MAX for none */
    const bool *cancel;
    size_t items; /* of packed weights that it finds or makes; others are packed when touched */
    bool profile;
    size_t n_pieces;    /* that the batch is cut into (program->pieces); 0: it is run group by group */
    atomic_size_t stop; /* no group from this one on is run */
} run;

/* Where the local values of a group are: `rows` rows of each, the first of them row `row0` of the batch. Of a piece all other
 * values but the body's result are the thread's own, too: `piece_rows` rows from row `piece_row0` on. */
typedef struct frame {
    float *memory;
    size_t rows, row0;
    int thread;
    float *piece; /* NULL: they lie in the workspace */
    size_t piece_rows, piece_row0;
} frame;

/* Rows [begin, end) and, for products, panels [panel_begin, panel_end). */
typedef struct part {
    size_t begin, end, panel_begin, panel_end;
    bool rounded; /* the thread's scratch holds these rows already as the product takes them: rounded, or quantised */
} part;

typedef struct view {
    float *data; /* of the first row of the part */
    size_t ld;
} view;

static inline view view_of(const run *r, const frame *f, int value, size_t row)
{
    const lt_cpu_place *place = &r->program->places[value];
    if (place->is_local) return (view){ f->memory + place->offset * f->rows + (row - f->row0) * place->ld, place->ld };
    if (f->piece && value != r->plan->hidden)
        return (view){ f->piece + place->offset * f->piece_rows + (row - f->piece_row0) * place->ld, place->ld };
    size_t ld = r->program->ld[value];
    return (view){ r->program->base[value] + row * ld, ld };
}

static inline float *thread_memory(const run *r, int thread)
{
    return (float *)r->program->memory.base + (size_t)thread * r->program->thread_floats;
}

static inline float *attention_scratch(const run *r, int thread)
{
    return thread_memory(r, thread) + r->program->tile_floats;
}
static inline float *panel_scratch(const run *r, int thread)
{
    return attention_scratch(r, thread) + r->program->attention_floats;
}
static inline float *rounded_scratch(const run *r, int thread)
{
    return panel_scratch(r, thread) + r->program->panel_floats;
}
static inline float *gather_scratch(const run *r, int thread)
{
    return rounded_scratch(r, thread) + r->program->rounded_floats;
}
static inline float *piece_memory(const run *r, int thread)
{
    return gather_scratch(r, thread) + r->program->gather_floats;
}

/* Takes the next `n` of `total` items; false: none is left. */
static inline bool take(atomic_size_t *counter, size_t n, size_t total, size_t *begin, size_t *end)
{
    *begin = atomic_fetch_add_explicit(counter, n, memory_order_relaxed);
    if (*begin >= total) return false;
    *end = total - *begin < n ? total : *begin + n;
    return true;
}

/* rows.c: a ROW operation on a part; panels that its product has, 0 of any other operation. */
void lt_cpu_row_op(const run *r, const lt_op *op, const frame *f, part p);
size_t lt_cpu_panels_of(const run *r, const lt_op *op);

/* sequences.c: a SEQ operation, of which each thread takes items from the counter; tiles of queries that a sequence is cut into.
 */
void lt_cpu_seq_op(const run *r, const lt_op *op, atomic_size_t *counter, int thread, size_t n_threads);
size_t lt_cpu_query_tiles(const run *r, size_t length);
/* Attention of the sequences [begin, end) of a piece, without states. */
void lt_cpu_attend_piece(const run *r, const lt_op *op, const frame *f, size_t begin, size_t end);

#endif
