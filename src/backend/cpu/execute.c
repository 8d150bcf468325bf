/* Runs a compiled plan: one parallel region for the whole forward pass, a barrier between groups, no allocation.
 *
 * A group of ROW operations goes through the cache tile of rows by tile of rows: a thread takes a tile through all operations of
 * the group, and what lives only inside the group stays in its own memory. Few rows are split by columns instead, operation by
 * operation, so that each thread reads only its part of every matrix. The kernels sum every output in an order that depends on
 * neither, so the choice never changes a bit. Attention is cut into (sequence, head, tile of queries), pooling into (sequence,
 * columns); threads take these from a counter.
 *
 * Of many short sequences without states a thread takes a piece, a few of them, through the whole body instead: what attention
 * reads and writes stays near, too, and there is no barrier. */
#include "backend/cpu/run.h"

#include <math.h>

#include "base/clock.h"

/* The clock, where operations are timed. */
static double start_of(const run *r)
{
    return r->profile ? lt_clock_seconds() : 0;
}

/* A thread's time of operation `index` since start_of. */
static void add_time(const run *r, size_t index, int thread, double start)
{
    if (r->profile) r->program->seconds[(size_t)thread * r->plan->n_ops + index] += lt_clock_seconds() - start;
}

static void timed_row_op(const run *r, size_t index, const frame *f, part p)
{
    const double start = start_of(r);
    lt_cpu_row_op(r, &r->plan->ops[index], f, p);
    add_time(r, index, f->thread, start);
}

/* ------------------------------------------------------------------ groups of row operations */

/* `rows` rows in `n` tiles that are as alike as whole units allow. */
typedef struct tiling {
    size_t rows, n, unit;
} tiling;

/* As many tiles as threads or a multiple of it, none over `most` rows. A micro-tile that is padded should be whole, but of few
 * tiles that would take too much of a thread's share away. */
static tiling cut_tiles(const run *r, size_t rows, size_t most, size_t n_threads)
{
    const size_t n = lt_round_up(lt_ceil_div(rows, most), n_threads);
    return (tiling){ rows, n, r->kernels->pads && n > 2 * n_threads ? r->kernels->mr : 1 };
}

static size_t tile_begin(const tiling *t, size_t index)
{
    const size_t begin = lt_round_up(lt_ceil_div(t->rows * index, t->n), t->unit);
    return begin < t->rows ? begin : t->rows;
}

static void run_tiles(run *r, const lt_cpu_group *group, atomic_size_t *counter, int thread, size_t n_threads)
{
    const tiling tiles = cut_tiles(r, r->rows[group->rows], group->tile_rows, n_threads);
    frame f = { .memory = thread_memory(r, thread), .rows = group->tile_rows, .thread = thread };
    size_t tile, next;
    while (take(counter, 1, tiles.n, &tile, &next)) {
        f.row0 = tile_begin(&tiles, tile);
        for (size_t i = group->first_op; i < group->first_op + group->n_ops; i++) {
            timed_row_op(r, i, &f, (part){ f.row0, tile_begin(&tiles, next), 0, lt_cpu_panels_of(r, &r->plan->ops[i]), false });
        }
    }
}

/* In how many pieces of rows a product is cut besides its panels, so that the last round of work is not left to few threads. */
static size_t row_pieces(const run *r, size_t rows, size_t panels, size_t n_threads)
{
    size_t best = 1, best_cost = SIZE_MAX;
    for (size_t pieces = 1; pieces <= 4; pieces++) {
        size_t piece = lt_ceil_div(rows, pieces);
        if (pieces > 1 && piece < r->kernels->mr) break;
        size_t cost = lt_ceil_div(panels * pieces, n_threads) * piece;
        if (cost < best_cost) {
            best = pieces;
            best_cost = cost;
        }
    }
    return best;
}

/* Few rows are a matter of memory, which gives one thread more than another, now this one and now that: each has its share of the
 * panels, and the last eighth of all goes to who is done. */
static void run_panels(run *r, size_t index, const frame *f, size_t panels, size_t n_threads)
{
    const size_t me = (size_t)f->thread, open = panels / 8, fixed = panels - open;
    const size_t chunk = open / (4 * n_threads) < 4 ? 4 : open / (4 * n_threads);
    atomic_size_t *counter = &r->program->counters[r->program->n_groups + 1 + index].next;
    size_t begin = fixed * me / n_threads, end = fixed * (me + 1) / n_threads;
    bool rounded = begin < end;
    if (rounded) timed_row_op(r, index, f, (part){ .end = f->rows, .panel_begin = begin, .panel_end = end });
    for (; take(counter, chunk, open, &begin, &end); rounded = true) {
        timed_row_op(r, index, f,
                     (part){ .end = f->rows, .panel_begin = fixed + begin, .panel_end = fixed + end, .rounded = rounded });
    }
}

static void run_columns(run *r, const lt_cpu_group *group, int thread, size_t n_threads)
{
    size_t rows = r->rows[group->rows], me = (size_t)thread;
    frame f = { .memory = r->column_memory, .rows = rows, .thread = thread };
    for (size_t i = group->first_op; i < group->first_op + group->n_ops; i++) {
        const lt_op *op = &r->plan->ops[i];
        size_t panels = lt_cpu_panels_of(r, op);
        if (panels == 0) {
            timed_row_op(r, i, &f, (part){ rows * me / n_threads, rows * (me + 1) / n_threads, 0, 0, false });
        } else if (rows <= LT_FEW_ROWS && n_threads > 1) {
            run_panels(r, i, &f, panels, n_threads);
        } else {
            size_t pieces = row_pieces(r, rows, panels, n_threads), piece = lt_ceil_div(rows, pieces);
            size_t item = panels * pieces * me / n_threads, end = panels * pieces * (me + 1) / n_threads;
            while (item < end) { /* all panels of one piece of rows, then the next */
                size_t first = item / panels * piece, panel = item % panels;
                if (first > rows) first = rows; /* the last pieces may be empty */
                size_t last_panel = panels - panel < end - item ? panels : panel + (end - item);
                size_t last = rows - first < piece ? rows : first + piece;
                timed_row_op(r, i, &f, (part){ first, last, panel, last_panel, false });
                item += last_panel - panel;
            }
        }
        if (i + 1 < group->first_op + group->n_ops) lt_pool_barrier(r->program->runtime->pool);
    }
}

/* ------------------------------------------------------------------ pieces */

/* A group over sequences [first, last), which are the rows of the frame's piece. */
static void run_piece_group(const run *r, const lt_cpu_group *group, frame *f, size_t first, size_t last)
{
    if (group->domain == LT_DOMAIN_SEQ) {
        const double start = start_of(r);
        lt_cpu_attend_piece(r, &r->plan->ops[group->first_op], f, first, last);
        add_time(r, group->first_op, f->thread, start);
        return;
    }
    const tiling tiles = cut_tiles(r, f->piece_rows, group->tile_rows, 1);
    f->rows = group->tile_rows;
    for (size_t tile = 0; tile < tiles.n; tile++) {
        const size_t end = f->piece_row0 + tile_begin(&tiles, tile + 1);
        f->row0 = f->piece_row0 + tile_begin(&tiles, tile);
        for (size_t i = group->first_op; i < group->first_op + group->n_ops; i++)
            timed_row_op(r, i, f, (part){ f->row0, end, 0, lt_cpu_panels_of(r, &r->plan->ops[i]), false });
    }
}

static void run_pieces(run *r, int thread)
{
    lt_program *p = r->program;
    const size_t *starts = r->batch->seq_starts;
    size_t begin, end;
    while (take(&p->counters[p->body.first].next, 1, r->n_pieces, &begin, &end)) {
        if (r->cancel && __atomic_load_n(r->cancel, __ATOMIC_RELAXED)) {
            atomic_store(&r->stop, p->body.n);
            return;
        }
        const size_t first = p->pieces[begin], last = p->pieces[end];
        frame f = { .memory = thread_memory(r, thread),
                    .thread = thread,
                    .piece = piece_memory(r, thread),
                    .piece_rows = starts[last] - starts[first],
                    .piece_row0 = starts[first] };
        for (size_t i = p->body.first; i < p->body.first + p->body.n; i++) run_piece_group(r, &p->groups[i], &f, first, last);
    }
}

/* Cuts a batch into pieces of half of piece_rows or more, unless the last of so many would leave other threads waiting, or a
 * sequence is too long. */
static void cut_pieces(run *r)
{
    enum { PIECES_PER_THREAD = 4 };
    lt_program *p = r->program;
    const size_t *starts = r->batch->seq_starts, share = r->batch->n_tokens / ((size_t)p->n_threads * PIECES_PER_THREAD);
    if (r->batch->states || p->piece_limit == 0 || share < p->piece_rows / 2) return;
    size_t most = share < p->piece_rows ? share : p->piece_rows;
    for (size_t s = 0; s < r->batch->n_seqs; s++) {
        if (starts[s + 1] - starts[s] > most) most = starts[s + 1] - starts[s];
    }
    if (most > p->piece_limit || most > share) return;
    for (size_t s = 0, begin = 0; s < r->batch->n_seqs; s++) {
        if (s > 0 && starts[s + 1] - begin <= most) continue;
        begin = starts[s];
        p->pieces[r->n_pieces++] = s;
    }
    p->pieces[r->n_pieces] = r->batch->n_seqs;
}

/* ------------------------------------------------------------------ the region */

static void run_seq_op(run *r, size_t index, atomic_size_t *counter, int thread, size_t n_threads)
{
    const lt_op *op = &r->plan->ops[index];
    const double start = start_of(r);
    lt_cpu_seq_op(r, op, counter, thread, n_threads);
    add_time(r, index, thread, start);
}

static void region(void *arg, int thread, int threads)
{
    run *r = arg;
    lt_program *p = r->program;
    size_t n_threads = (size_t)threads;
    if (r->items > p->n_packed) {
        lt_cpu_weights_pack(&p->weights, r->kernels, p->n_packed, r->items, &p->counters[p->n_groups].next,
                            gather_scratch(r, thread));
        lt_pool_barrier(p->runtime->pool);
    }
    if (r->n_pieces > 0) {
        if (r->fail_group < p->body.first + p->body.n) return;
        run_pieces(r, thread);
        if (r->n_groups == p->body.n) return;
        lt_pool_barrier(p->runtime->pool);
        if (atomic_load(&r->stop) <= p->body.n) return;
    }
    for (size_t i = r->n_pieces > 0 ? p->body.n : 0; i < r->n_groups; i++) {
        size_t index = i < r->ranges[0].n ? r->ranges[0].first + i : r->ranges[1].first + (i - r->ranges[0].n);
        const lt_cpu_group *group = &p->groups[index];
        atomic_size_t *counter = &p->counters[index].next;
        if (index == r->fail_group) return;
        if (group->domain == LT_DOMAIN_SEQ) {
            run_seq_op(r, group->first_op, counter, thread, n_threads);
        } else if (r->rows[group->rows] <= group->column_rows) {
            run_columns(r, group, thread, n_threads);
        } else {
            run_tiles(r, group, counter, thread, n_threads);
        }
        if (i + 1 == r->n_groups) return;
        /* One thread looks at the flag before the barrier, so that all of them stop at the same group. */
        if (thread == 0 && r->cancel && __atomic_load_n(r->cancel, __ATOMIC_RELAXED)) atomic_store(&r->stop, i + 1);
        lt_pool_barrier(p->runtime->pool);
        if (atomic_load(&r->stop) <= i + 1) return;
    }
}

/* ------------------------------------------------------------------ before and after */

/* Extends the rotary tables to the largest position of the batch: angles position · θ^(−2i/rotary_dim) in double precision. */
static void fill_rotary(lt_program *p, const lt_batch *batch)
{
    const lt_op *op = p->rotary_op;
    if (!op) return;
    size_t end = p->rotary_filled, half = op->rotary_dim / 2;
    for (size_t t = 0; t < batch->n_tokens; t++) {
        if (batch->positions[t] >= end) end = (size_t)batch->positions[t] + 1;
    }
    for (size_t i = 0; i < half && end > p->rotary_filled; i++) {
        double step = pow(op->rope_theta, -2.0 * (double)i / (double)op->rotary_dim);
        for (size_t position = p->rotary_filled; position < end; position++) {
            lt_cpu_cosines(p)[position * half + i] = (float)cos((double)position * step);
            lt_cpu_sines(p)[position * half + i] = (float)sin((double)position * step);
        }
    }
    p->rotary_filled = end;
}

/* Gives every workspace value its place for a batch of this size; the result's place is the caller's array. */
static void place_rows(run *r, lt_tail_kind tail)
{
    lt_program *p = r->program;
    float *next = (float *)p->memory.base + (size_t)p->n_threads * p->thread_floats;
    float *memory[3];
    r->column_memory = next;
    next += p->column_floats;
    for (int rows = 0; rows < 3; rows++) {
        memory[rows] = next;
        next += p->width[rows] * r->rows[rows];
    }
    for (size_t v = 0; v < p->plan->n_values; v++) {
        lt_rows rows = p->plan->values[v].rows;
        p->base[v] = memory[rows] + p->places[v].offset * r->rows[rows];
        p->ld[v] = p->places[v].ld;
    }
    int result = p->plan->tails[tail].result;
    p->base[result] = r->out;
    p->ld[result] = p->plan->values[result].width;
}

/* How many items of the packed weights shall be there: some more than before, or what the first run needs. A step of decoding
 * takes a third longer while it packs so many. */
static size_t items_for(const lt_program *p, lt_tail_kind tail)
{
    const lt_cpu_weights *w = &p->weights;
    const size_t all = tail == LT_TAIL_LOGITS ? w->n_items : w->n_body_items, share = lt_ceil_div(w->n_items, 32);
    if (p->n_packed >= all) return p->n_packed;
    const size_t n = all - p->n_packed < share ? all : p->n_packed + share;
    return n > w->n_first_items ? n : w->n_first_items;
}

static void prepare(run *r, lt_tail_kind tail, const lt_run_hooks *hooks)
{
    lt_program *p = r->program;
    const lt_batch *batch = r->batch;
    r->ranges[0] = p->body;
    r->ranges[1] = p->tails[tail];
    r->n_groups = p->body.n + p->tails[tail].n;
    r->rows[LT_ROWS_TOKENS] = batch->n_tokens;
    r->rows[LT_ROWS_SEQS] = batch->n_seqs;
    r->rows[LT_ROWS_OUT] = batch->n_out;
    r->pooling = batch->pooling;
    place_rows(r, tail);
    fill_rotary(p, batch);
    p->first_query_tile[0] = 0;
    for (size_t s = 0; s < batch->n_seqs; s++) {
        p->first_query_tile[s + 1] =
            p->first_query_tile[s] + lt_cpu_query_tiles(r, batch->seq_starts[s + 1] - batch->seq_starts[s]);
    }
    cut_pieces(r);
    for (size_t i = 0; i <= p->n_groups + p->plan->n_ops; i++) atomic_init(&p->counters[i].next, 0);
    atomic_init(&r->stop, SIZE_MAX);
    r->fail_group = SIZE_MAX;
    r->items = items_for(p, tail);
    if (!hooks) return;
    r->cancel = hooks->cancel;
    r->profile = hooks->profile != NULL;
    if (r->profile) memset(p->seconds, 0, (size_t)p->n_threads * p->plan->n_ops * sizeof(double));
    for (size_t i = 0; hooks->fail_at_op > 0 && i < r->n_groups; i++) {
        size_t index = i < r->ranges[0].n ? r->ranges[0].first + i : r->ranges[1].first + (i - r->ranges[0].n);
        size_t op = (size_t)hooks->fail_at_op - 1, first = p->groups[index].first_op;
        if (op >= first && op - first < p->groups[index].n_ops) r->fail_group = index;
    }
}

static void add_profile(const run *r, lt_op_profile *profile)
{
    const lt_program *p = r->program;
    for (size_t g = 0; g < r->n_groups; g++) {
        size_t index = g < r->ranges[0].n ? r->ranges[0].first + g : r->ranges[1].first + (g - r->ranges[0].n);
        const lt_cpu_group *group = &p->groups[index];
        for (size_t i = group->first_op; i < group->first_op + group->n_ops; i++) {
            for (size_t t = 0; t < (size_t)p->n_threads; t++) profile[i].seconds += p->seconds[t * p->plan->n_ops + i];
            profile[i].flop += lt_op_flop(p->plan, &p->plan->ops[i], r->batch);
            profile[i].bytes += lt_op_bytes(p->plan, &p->plan->ops[i], r->batch);
        }
    }
}

static lattice_status run_locked(run *r, lt_tail_kind tail, const lt_run_hooks *hooks, lattice_error *err)
{
    lt_program *p = r->program;
    prepare(r, tail, hooks);
    if (r->cancel && __atomic_load_n(r->cancel, __ATOMIC_RELAXED)) return lt_fail(err, LATTICE_ERR_CANCELLED, "cancelled");
    lt_pool_run(p->runtime->pool, region, r);
    if (r->items > p->n_packed) {
        lt_cpu_weights_forget(&p->weights, p->n_packed, r->items);
        p->n_packed = r->items;
    }
    if (atomic_load(&r->stop) != SIZE_MAX) return lt_fail(err, LATTICE_ERR_CANCELLED, "cancelled");
    if (r->fail_group != SIZE_MAX) {
        return lt_fail(err, LATTICE_ERR_DEVICE, "cpu: op %d (%s) failed: injected fault", hooks->fail_at_op - 1,
                       lt_op_name(p->plan->ops[hooks->fail_at_op - 1].code));
    }
    if (r->profile) add_profile(r, hooks->profile);
    return LATTICE_OK;
}

lattice_status lt_cpu_run(lt_program *program, const lt_batch *batch, lt_tail_kind tail, float *out, const lt_run_hooks *hooks,
                          lattice_error *err)
{
    LT_TRY(lt_batch_check(program->plan, batch, tail, program->max_tokens, program->max_seqs, err));
    run r = { .program = program, .plan = program->plan, .kernels = program->kernels, .batch = batch, .out = out };
    pthread_mutex_lock(&program->lock);
    lattice_status status = lt_cpu_states_enter(program, batch, err);
    if (status == LATTICE_OK) {
        status = run_locked(&r, tail, hooks, err);
        lt_states_leave(batch, status == LATTICE_OK);
    }
    pthread_mutex_unlock(&program->lock);
    return status;
}
