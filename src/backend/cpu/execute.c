/* Runs a compiled plan: one parallel region for the whole forward pass, a barrier between groups, no allocation.
 *
 * A group of ROW operations goes through the cache tile of rows by tile of rows: a thread takes a tile through all operations of
 * the group, and what lives only inside the group stays in its own memory. Few rows are split by columns instead, operation by
 * operation, so that each thread reads only its part of every matrix. The kernels sum every output in an order that depends on
 * neither, so the choice never changes a bit. Attention is cut into (sequence, head, tile of queries), pooling into (sequence,
 * columns); threads take these from a counter. */
#include "backend/cpu/cpu.h"

#include <math.h>

#include "base/clock.h"

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
    bool pack, profile;
    atomic_size_t stop; /* no group from this one on is run */
} run;

/* Where the local values of a group are: `rows` rows of each, the first of them row `row0` of the batch. */
typedef struct frame {
    float *memory;
    size_t rows, row0;
    int thread;
} frame;

/* Rows [begin, end) and, for products, panels [panel_begin, panel_end). */
typedef struct part {
    size_t begin, end, panel_begin, panel_end;
} part;

typedef struct view {
    float *data; /* of the first row of the part */
    size_t ld;
} view;

static view view_of(const run *r, const frame *f, int value, size_t row)
{
    const lt_cpu_place *place = &r->program->places[value];
    if (place->is_local) return (view){ f->memory + place->offset * f->rows + (row - f->row0) * place->ld, place->ld };
    size_t ld = r->program->ld[value];
    return (view){ r->program->base[value] + row * ld, ld };
}

static float *thread_memory(const run *r, int thread)
{
    return (float *)r->program->memory.base + (size_t)thread * r->program->thread_floats;
}

static float *attention_scratch(const run *r, int thread)
{
    return thread_memory(r, thread) + r->program->tile_floats;
}
static float *panel_scratch(const run *r, int thread)
{
    return attention_scratch(r, thread) + r->program->attention_floats;
}
static float *rounded_scratch(const run *r, int thread)
{
    return panel_scratch(r, thread) + r->program->panel_floats;
}
static float *gather_scratch(const run *r, int thread)
{
    return rounded_scratch(r, thread) + r->program->rounded_floats;
}

/* Takes the next `n` of `total` items; false: none is left. */
static bool take(atomic_size_t *counter, size_t n, size_t total, size_t *begin, size_t *end)
{
    *begin = atomic_fetch_add_explicit(counter, n, memory_order_relaxed);
    if (*begin >= total) return false;
    *end = total - *begin < n ? total : *begin + n;
    return true;
}

/* ------------------------------------------------------------------ row operations on a part */

static void embed(const run *r, const lt_op *op, const frame *f, part p)
{
    const lt_batch *batch = r->batch;
    const lt_cpu_weight *tables[3] = { 0 };
    for (int i = 0; i < 3; i++) {
        if (op->weight[i] != LT_NONE) tables[i] = &r->program->weights.list[op->weight[i]];
    }
    view out = view_of(r, f, op->out[0], p.begin);
    for (size_t row = p.begin; row < p.end; row++, out.data += out.ld) {
        size_t index[3] = {
            batch->ids[row],
            batch->positions[row] + op->position_offset,
            batch->type_ids && !op->type_zero ? batch->type_ids[row] : 0,
        };
        for (int i = 0; i < 3; i++) {
            if (tables[i]) lt_cpu_read_row(tables[i], r->kernels, index[i], i > 0, out.data);
        }
    }
}

static void add_norm(const run *r, const lt_op *op, const frame *f, part p)
{
    view x = view_of(r, f, op->in[0].value, p.begin);
    lt_norm args = { .x = x.data + op->in[0].column, .ldx = x.ld, .m = p.end - p.begin, .eps = op->eps };
    if (op->in[1].value != LT_NONE) {
        view residual = view_of(r, f, op->in[1].value, p.begin);
        args.residual = residual.data + op->in[1].column;
        args.ldr = residual.ld;
    }
    if (op->out[1] != LT_NONE) {
        view sum = view_of(r, f, op->out[1], p.begin);
        args.n = r->plan->values[op->out[1]].width;
        args.sum = sum.data;
        args.lds = sum.ld;
    }
    if (op->out[0] != LT_NONE) {
        view y = view_of(r, f, op->out[0], p.begin);
        args.n = r->plan->values[op->out[0]].width;
        args.y = y.data;
        args.ldy = y.ld;
        args.gain = r->program->weights.list[op->weight[0]].vector;
        if (op->weight[1] != LT_NONE) args.bias = r->program->weights.list[op->weight[1]].vector;
    }
    r->kernels->norm(&args);
}

static void qk_norm_rope(const run *r, const lt_op *op, const frame *f, part p)
{
    view x = view_of(r, f, op->out[0], p.begin);
    for (int i = 0; i < 2; i++) {
        lt_norm_rope args = {
            .x = x.data + op->in[i].column,
            .ldx = x.ld,
            .head_stride = op->in[i].head_stride,
            .m = p.end - p.begin,
            .n_heads = i == 0 ? op->n_heads : op->n_kv_heads,
            .head_dim = op->head_dim,
            .rotary_dim = op->rotary_dim,
            .gain = r->program->weights.list[op->weight[i]].vector,
            .eps = op->eps,
            .cos = lt_cpu_cosines(r->program),
            .sin = lt_cpu_sines(r->program),
            .positions = r->batch->positions + p.begin,
        };
        r->kernels->norm_rope(&args);
    }
}

/* Panel `index` of a weight that is packed when touched, for columns [panel_begin, panel_begin + 1): few rows are multiplied from
 * the stored rows as they are. What the next panel is packed from is fetched during the product, else packing would wait for
 * memory most of its time. */
static void touch_panel(const run *r, const lt_cpu_weight *w, const frame *f, size_t index, lt_linear *args)
{
    args->w = args->m <= LT_FEW_ROWS ? lt_cpu_panel_rows(w, r->kernels, index) : NULL;
    if (args->w) {
        args->dtype = w->source->dtype;
        args->ldw = w->source->cols;
        r->kernels->linear_few(args);
        return;
    }
    float *panel = panel_scratch(r, f->thread);
    lt_cpu_pack_panel(w, r->kernels, index, panel, gather_scratch(r, f->thread));
    args->panels = panel;
    if (index + 1 < w->n_panels) args->next = lt_cpu_panel_bytes(w, r->kernels, index + 1, &args->next_size);
    r->kernels->linear(args);
}

/* Columns of panels [panel_begin, panel_end) of a product whose W is gate over up: a panel of the gate writes y, the same panel
 * of up multiplies it, while it is in the nearest cache. */
static void gated_linear(const run *r, const lt_op *op, const frame *f, part p, lt_linear *args)
{
    const lt_cpu_weight *w = &r->program->weights.list[op->weight[0]];
    const float *residual = args->residual;
    args->n = w->source->rows / 2;
    for (size_t i = p.panel_begin; i < p.panel_end; i++) {
        args->panel_begin = i;
        args->panel_end = i + 1;
        for (size_t up = 0; up < 2; up++) {
            args->activation = up ? LT_ACT_NONE : op->activation;
            args->gate = up ? args->y : NULL;
            args->ldg = args->ldy;
            args->residual = up ? residual : NULL;
            if (w->panels) {
                args->panels = w->panels + (2 * i + up) * lt_cpu_panel_floats(r->kernels, args->k);
                r->kernels->linear(args);
            } else {
                touch_panel(r, w, f, 2 * i + up, args);
            }
        }
    }
}

static void linear(const run *r, const lt_op *op, const frame *f, part p)
{
    const lt_cpu_weight *w = &r->program->weights.list[op->weight[0]];
    size_t k = w->source->cols;
    view x = view_of(r, f, op->in[0].value, p.begin), y = view_of(r, f, op->out[0], p.begin);
    lt_linear args = {
        .x = x.data + op->in[0].column,
        .ldx = x.ld,
        .m = p.end - p.begin,
        .k = k,
        .n = w->source->rows,
        .activation = op->activation,
        .y = y.data,
        .ldy = y.ld,
    };
    if (op->weight[1] != LT_NONE) args.bias = r->program->weights.list[op->weight[1]].vector;
    if (op->in[1].value != LT_NONE) {
        view residual = view_of(r, f, op->in[1].value, p.begin);
        args.residual = residual.data + op->in[1].column;
        args.ldr = residual.ld;
    }
    if (w->is_bytes) {
        lt_cpu_q8_linear(w, r->program->q8, &args, rounded_scratch(r, f->thread), p.panel_begin, p.panel_end);
        return;
    }
    if (r->kernels->round_rows) {
        float *rounded = rounded_scratch(r, f->thread);
        size_t ld = lt_cpu_leading(lt_panel_rows(r->kernels, k));
        r->kernels->round_rows(args.x, args.ldx, args.m, k, rounded, ld);
        args.x = rounded;
        args.ldx = ld;
    }
    if (w->is_glu) {
        gated_linear(r, op, f, p, &args);
        return;
    }
    if (w->panels) {
        args.panels = w->panels + p.panel_begin * lt_cpu_panel_floats(r->kernels, k);
        args.panel_begin = p.panel_begin;
        args.panel_end = p.panel_end;
        r->kernels->linear(&args);
        return;
    }
    for (size_t i = p.panel_begin; i < p.panel_end; i++) {
        args.panel_begin = i;
        args.panel_end = i + 1;
        touch_panel(r, w, f, i, &args);
    }
}

static void gated_norm(const run *r, const lt_op *op, const frame *f, part p)
{
    view x = view_of(r, f, op->in[0].value, p.begin), z = view_of(r, f, op->in[1].value, p.begin);
    view y = view_of(r, f, op->out[0], p.begin);
    lt_gated_norm args = {
        .x = x.data + op->in[0].column,
        .ldx = x.ld,
        .z = z.data + op->in[1].column,
        .ldz = z.ld,
        .m = p.end - p.begin,
        .n_heads = op->n_heads,
        .head_dim = op->head_dim,
        .gain = r->program->weights.list[op->weight[0]].vector,
        .eps = op->eps,
        .y = y.data,
        .ldy = y.ld,
    };
    r->kernels->gated_norm(&args);
}

static void gate(const run *r, const lt_op *op, const frame *f, part p)
{
    view x = view_of(r, f, op->in[0].value, p.begin), z = view_of(r, f, op->in[1].value, p.begin);
    view y = view_of(r, f, op->out[0], p.begin);
    for (size_t row = p.begin; row < p.end; row++, x.data += x.ld, z.data += z.ld, y.data += y.ld) {
        for (size_t head = 0; head < op->n_heads; head++) {
            r->kernels->gate(x.data + op->in[0].column + head * op->in[0].head_stride,
                             z.data + op->in[1].column + head * op->in[1].head_stride, op->head_dim,
                             y.data + head * op->head_dim);
        }
    }
}

static void select_rows(const run *r, const lt_op *op, const frame *f, part p)
{
    size_t width = r->plan->values[op->out[0]].width;
    view out = view_of(r, f, op->out[0], p.begin);
    for (size_t row = p.begin; row < p.end; row++, out.data += out.ld) {
        view in = view_of(r, f, op->in[0].value, r->batch->out_rows[row]);
        memcpy(out.data, in.data + op->in[0].column, width * sizeof(float));
    }
}

/* Copies columns [begin, end) of what the op has just written into the trace. */
static void trace(const run *r, const lt_op *op, const frame *f, part p, size_t begin, size_t end)
{
    size_t width = r->plan->values[op->out[0]].width;
    float *to = r->batch->trace + (size_t)(op->trace - 1) * r->batch->n_tokens * width;
    view from = view_of(r, f, op->out[0], p.begin);
    for (size_t row = p.begin; row < p.end; row++, from.data += from.ld) {
        memcpy(to + row * width + begin, from.data + begin, (end - begin) * sizeof(float));
    }
}

static size_t panels_of(const run *r, const lt_op *op)
{
    if (op->code != LT_OP_LINEAR) return 0;
    return lt_cpu_result_panels(&r->program->weights.list[op->weight[0]]);
}

static void row_op(const run *r, const lt_op *op, const frame *f, part p)
{
    if (p.begin >= p.end) return;
    switch (op->code) {
    case LT_OP_EMBED: embed(r, op, f, p); break;
    case LT_OP_ADD_NORM: add_norm(r, op, f, p); break;
    case LT_OP_LINEAR: linear(r, op, f, p); break;
    case LT_OP_QK_NORM_ROPE: qk_norm_rope(r, op, f, p); break;
    case LT_OP_SELECT: select_rows(r, op, f, p); break;
    case LT_OP_GATED_NORM: gated_norm(r, op, f, p); break;
    case LT_OP_GATE: gate(r, op, f, p); break;
    case LT_OP_ATTENTION:
    case LT_OP_CONV:
    case LT_OP_GATED_DELTA:
    case LT_OP_POOL:
    case LT_OP_COUNT: break;
    }
    if (op->trace > 0 && r->batch->trace) {
        size_t begin = 0, end = r->plan->values[op->out[0]].width;
        if (op->code == LT_OP_LINEAR) {
            const lt_cpu_weight *w = &r->program->weights.list[op->weight[0]];
            begin = lt_cpu_panel_column(w, r->kernels, p.panel_begin);
            end = lt_cpu_panel_column(w, r->kernels, p.panel_end);
        }
        trace(r, op, f, p, begin, end);
    }
}

static void timed_row_op(const run *r, size_t index, const frame *f, part p)
{
    if (!r->profile) {
        row_op(r, &r->plan->ops[index], f, p);
        return;
    }
    double start = lt_clock_seconds();
    row_op(r, &r->plan->ops[index], f, p);
    r->program->seconds[(size_t)f->thread * r->plan->n_ops + index] += lt_clock_seconds() - start;
}

/* ------------------------------------------------------------------ groups of row operations */

/* Rows of a tile: as many tiles as threads or a multiple of it, all alike, none over `most`. */
static size_t balanced_tile(const run *r, size_t rows, size_t most, size_t n_threads)
{
    size_t tiles = lt_round_up(lt_ceil_div(rows, most), n_threads);
    size_t size = lt_ceil_div(rows, tiles), mr = r->kernels->mr;
    /* Whole micro-tiles waste nothing, where that does not take a thread's share away. */
    size_t whole = lt_round_up(size, mr);
    return tiles > 2 * n_threads && whole <= most ? whole : size;
}

static void run_tiles(run *r, const lt_cpu_group *group, atomic_size_t *counter, int thread, size_t n_threads)
{
    size_t rows = r->rows[group->rows], tile = balanced_tile(r, rows, group->tile_rows, n_threads), begin, end;
    frame f = { .memory = thread_memory(r, thread), .rows = group->tile_rows, .thread = thread };
    while (take(counter, tile, rows, &begin, &end)) {
        f.row0 = begin;
        for (size_t i = group->first_op; i < group->first_op + group->n_ops; i++) {
            timed_row_op(r, i, &f, (part){ begin, end, 0, panels_of(r, &r->plan->ops[i]) });
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
    if (begin < end) timed_row_op(r, index, f, (part){ 0, f->rows, begin, end });
    while (take(counter, chunk, open, &begin, &end)) timed_row_op(r, index, f, (part){ 0, f->rows, fixed + begin, fixed + end });
}

static void run_columns(run *r, const lt_cpu_group *group, int thread, size_t n_threads)
{
    size_t rows = r->rows[group->rows], me = (size_t)thread;
    frame f = { .memory = r->column_memory, .rows = rows, .thread = thread };
    for (size_t i = group->first_op; i < group->first_op + group->n_ops; i++) {
        const lt_op *op = &r->plan->ops[i];
        size_t panels = panels_of(r, op);
        if (panels == 0) {
            timed_row_op(r, i, &f, (part){ rows * me / n_threads, rows * (me + 1) / n_threads, 0, 0 });
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
                timed_row_op(r, i, &f, (part){ first, last, panel, last_panel });
                item += last_panel - panel;
            }
        }
        if (i + 1 < group->first_op + group->n_ops) lt_pool_barrier(r->program->runtime->pool);
    }
}

/* ------------------------------------------------------------------ attention */

static size_t query_tiles(const run *r, size_t length)
{
    return lt_ceil_div(length, r->kernels->query_tile);
}

/* x as values of the states' type: n of them, and a zero behind an odd number of bfloat16. */
static const void *narrow(const run *r, const float *x, size_t n, float *scratch)
{
    switch (r->program->row_type) {
    case LT_F16: r->kernels->to_half(x, n, (uint16_t *)(void *)scratch); return scratch;
    case LT_BF16: r->kernels->round_rows(x, n, 1, n, scratch, n); return scratch;
    default: return x;
    }
}

/* Key number `slot` of a block, step by step. */
static void put_key(lt_dtype type, const void *key, size_t d, size_t slot, unsigned char *to)
{
    if (type == LT_F16) {
        const uint16_t *from = key;
        uint16_t *at = (uint16_t *)(void *)to + slot;
        for (size_t p = 0; p < d; p++) at[p * LT_BLOCK_ROWS] = from[p];
    } else {
        const uint32_t *from = key; /* floats or pairs */
        uint32_t *at = (uint32_t *)(void *)to + slot;
        for (size_t p = 0; p < (type == LT_BF16 ? (d + 1) / 2 : d); p++) at[p * LT_BLOCK_ROWS] = from[p];
    }
}

/* Copies the K and V rows of this thread's share of the batch into the states. */
static void append_rows(const run *r, const lt_op *op, size_t block_offset, size_t thread, size_t n_threads)
{
    const lt_batch *batch = r->batch;
    const lt_dtype type = r->program->row_type;
    const size_t d = op->head_dim, keys = lt_cpu_key_bytes(r->program, op), values = lt_cpu_value_bytes(r->program, op);
    size_t begin = batch->n_tokens * thread / n_threads, end = batch->n_tokens * (thread + 1) / n_threads, seq = 0;
    float *scratch = attention_scratch(r, (int)thread);
    frame none = { 0 };
    for (size_t row = begin; row < end; row++) {
        while (batch->seq_starts[seq + 1] <= row) seq++;
        const size_t at = batch->past_lens[seq] + (row - batch->seq_starts[seq]), slot = at % LT_BLOCK_ROWS;
        unsigned char *to = batch->states[seq]->blocks[at / LT_BLOCK_ROWS] + block_offset;
        const float *k = view_of(r, &none, op->in[1].value, row).data + op->in[1].column;
        const float *v = view_of(r, &none, op->in[2].value, row).data + op->in[2].column;
        for (size_t head = 0; head < op->n_kv_heads; head++, to += keys)
            put_key(type, narrow(r, k + head * op->in[1].head_stride, d, scratch), d, slot, to);
        to += slot * (values / LT_BLOCK_ROWS);
        for (size_t head = 0; head < op->n_kv_heads; head++, to += values)
            memcpy(to, narrow(r, v + head * op->in[2].head_stride, d, scratch), values / LT_BLOCK_ROWS);
    }
}

/* Query heads that one item of a single query takes together: those of a key/value head, if that leaves an item for every
 * thread. No result depends on it. */
static size_t heads_together(const run *r, const lt_op *op, size_t n_threads)
{
    const size_t group = op->n_heads / op->n_kv_heads;
    size_t n = group < r->kernels->query_tile ? group : r->kernels->query_tile;
    while (n > 1 && (group % n != 0 || op->n_kv_heads * r->batch->n_seqs * (group / n) < n_threads)) n--;
    return n;
}

/* One head's tile of queries of one sequence; of a single query that goes on from a state, `together` heads from this one on. */
static void attend(const run *r, const lt_op *op, size_t block_offset, size_t seq, size_t head, size_t tile, size_t together,
                   float *scratch)
{
    size_t start = r->batch->seq_starts[seq], length = r->batch->seq_starts[seq + 1] - start;
    size_t past = r->batch->states ? r->batch->past_lens[seq] : 0;
    size_t size = lt_ceil_div(length, query_tiles(r, length));
    size_t first = tile * size, n = length - first < size ? length - first : size;
    size_t kv_head = head / (op->n_heads / op->n_kv_heads);
    const lt_operand *in = op->in;
    frame none = { 0 }; /* all its values lie in the workspace: groups of attention hold nothing else */
    view q = view_of(r, &none, in[0].value, start + first), out = view_of(r, &none, op->out[0], start + first);
    lt_attention args = {
        .q = q.data + in[0].column + head * in[0].head_stride,
        .ldq = q.ld,
        .out = op->out[0] == in[0].value ? out.data + in[0].column + head * in[0].head_stride : out.data + head * op->head_dim,
        .ldo = out.ld,
        .n_queries = n,
        .n_keys = past + length,
        .head_dim = op->head_dim,
        .scale = op->scale,
        .causal = op->causal,
        .first_position = past + first,
        .n_heads = together,
        .head_stride = in[0].head_stride,
        .out_stride = op->out[0] == in[0].value ? in[0].head_stride : op->head_dim,
        .scratch = scratch,
    };
    if (r->batch->states) {
        const size_t keys = lt_cpu_key_bytes(r->program, op), values = lt_cpu_value_bytes(r->program, op);
        args.blocks = (const unsigned char *const *)r->batch->states[seq]->blocks;
        args.k_offset = block_offset + kv_head * keys;
        args.v_offset = block_offset + op->n_kv_heads * keys + kv_head * values;
        args.row_type = r->program->row_type;
    } else {
        view k = view_of(r, &none, in[1].value, start), v = view_of(r, &none, in[2].value, start);
        args.k = k.data + in[1].column + kv_head * in[1].head_stride;
        args.v = v.data + in[2].column + kv_head * in[2].head_stride;
        args.ldk = k.ld;
        args.ldv = v.ld;
    }
    r->kernels->attention(&args);
}

static void run_attention(run *r, const lt_op *op, atomic_size_t *counter, int thread, size_t n_threads)
{
    const size_t *first_tile = r->program->first_query_tile, block_offset = r->program->block_offset[op - r->plan->ops];
    if (r->batch->states) {
        append_rows(r, op, block_offset, (size_t)thread, n_threads);
        lt_pool_barrier(r->program->runtime->pool);
    }
    size_t total = first_tile[r->batch->n_seqs] * op->n_heads;
    size_t chunk = total / (n_threads * 16) + 1, begin, end;
    if (chunk > op->n_heads) chunk = op->n_heads;
    const size_t most = r->batch->states ? heads_together(r, op, n_threads) : 1;
    size_t seq = 0; /* items come in ascending order, so the search goes on from the last one */
    while (take(counter, chunk, total, &begin, &end)) {
        for (size_t item = begin; item < end; item++) {
            while (first_tile[seq + 1] * op->n_heads <= item) seq++;
            size_t tiles = first_tile[seq + 1] - first_tile[seq], local = item - first_tile[seq] * op->n_heads;
            size_t head = local / tiles, tile = local % tiles;
            size_t together = r->batch->seq_starts[seq + 1] - r->batch->seq_starts[seq] == 1 ? most : 1;
            if (head % together != 0) continue;
            if (op->causal) tile = tiles - 1 - tile; /* the most keys first */
            attend(r, op, block_offset, seq, head, tile, together, attention_scratch(r, thread));
        }
    }
}

/* ------------------------------------------------------------------ recurrent operations */

/* Columns [column, column + n) of one sequence, and the inputs that its next rows need. */
static void convolve(const run *r, const lt_op *op, size_t offset, size_t seq, size_t column, size_t n)
{
    const lt_cpu_weight *w = &r->program->weights.list[op->weight[0]];
    size_t start = r->batch->seq_starts[seq], length = r->batch->seq_starts[seq + 1] - start;
    size_t width = w->source->rows, past = w->source->cols - 1;
    const lt_state *state = r->batch->states ? r->batch->states[seq] : NULL;
    frame none = { 0 };
    view x = view_of(r, &none, op->in[0].value, start), y = view_of(r, &none, op->out[0], start);
    lt_conv args = {
        .x = x.data + op->in[0].column + column,
        .history = r->program->zeros + column,
        .ldx = x.ld,
        .weight = w->vector + column,
        .ldw = width,
        .m = length,
        .n = n,
        .taps = past + 1,
        .y = y.data + column,
        .ldy = y.ld,
    };
    if (state && state->memory) {
        args.history = state->memory + offset + column;
        args.ldh = width;
    }
    r->kernels->conv(&args);
    for (size_t i = 0; state && i < past; i++) {
        const float *from = length + i < past ? args.history + (length + i) * args.ldh : args.x + (length + i - past) * args.ldx;
        memcpy(state->next + offset + i * width + column, from, n * sizeof(float));
    }
}

static void run_conv(run *r, const lt_op *op, atomic_size_t *counter, size_t n_threads)
{
    size_t width = r->plan->values[op->out[0]].width, offset = r->program->block_offset[op - r->plan->ops];
    size_t pieces = r->batch->n_seqs >= 4 * n_threads ? 1 : n_threads;
    size_t piece = lt_round_up(lt_ceil_div(width, pieces), 16), begin, end;
    while (take(counter, 1, r->batch->n_seqs * pieces, &begin, &end)) {
        size_t column = begin % pieces * piece;
        if (column < width) convolve(r, op, offset, begin / pieces, column, width - column < piece ? width - column : piece);
    }
}

/* One value head of one sequence. Without a state, S is kept nowhere. */
static void delta_head(const run *r, const lt_op *op, size_t offset, size_t seq, size_t head, float *scratch)
{
    size_t start = r->batch->seq_starts[seq], dk = op->head_dim, dv = op->value_dim;
    size_t key_head = head / (op->n_heads / op->n_kv_heads);
    const lt_state *state = r->batch->states ? r->batch->states[seq] : NULL;
    const float *log_rates = r->program->weights.list[op->weight[0]].vector;
    frame none = { 0 };
    view x = view_of(r, &none, op->in[0].value, start), gates = view_of(r, &none, op->in[3].value, start);
    view o = view_of(r, &none, op->out[0], start);
    lt_delta args = {
        .q = x.data + op->in[0].column + key_head * op->in[0].head_stride,
        .k = x.data + op->in[1].column + key_head * op->in[1].head_stride,
        .v = x.data + op->in[2].column + head * op->in[2].head_stride,
        .ld = x.ld,
        .b = gates.data + op->in[3].column + head,
        .a = gates.data + op->in[3].column + op->n_heads + head,
        .ldg = gates.ld,
        .rate = expf(log_rates[head]),
        .dt_bias = r->program->weights.list[op->weight[1]].vector[head],
        .m = r->batch->seq_starts[seq + 1] - start,
        .dk = dk,
        .dv = dv,
        .first_position = r->batch->states ? r->batch->past_lens[seq] : 0,
        .next = scratch + lt_round_up(r->kernels->delta_scratch(dk), 16),
        .o = o.data + head * dv,
        .ldo = o.ld,
        .scratch = scratch,
    };
    if (state) {
        args.state = state->memory ? state->memory + offset + head * dk * dv : NULL;
        args.next = state->next + offset + head * dk * dv;
    }
    r->kernels->delta(&args);
}

static void run_delta(run *r, const lt_op *op, atomic_size_t *counter, int thread)
{
    size_t offset = r->program->block_offset[op - r->plan->ops], begin, end;
    while (take(counter, 1, r->batch->n_seqs * op->n_heads, &begin, &end))
        delta_head(r, op, offset, begin / op->n_heads, begin % op->n_heads, attention_scratch(r, thread));
}

/* ------------------------------------------------------------------ pooling */

/* Columns [column, column + n) of one sequence, every pooling asked for, in the order of their bits. The first token that counts
 * is `skip`, but for cls, which is the first of all, and for the weights of weightedmean, which count from the sequence's start.
 */
static void pool_columns(const run *r, const lt_op *op, size_t seq, size_t column, size_t n)
{
    size_t start = r->batch->seq_starts[seq], length = r->batch->seq_starts[seq + 1] - start;
    size_t skip = r->batch->pool_skip ? r->batch->pool_skip[seq] : 0, width = r->plan->values[op->out[0]].width;
    if (skip >= length) skip = length - 1;
    unsigned pooling = r->pooling ? r->pooling : op->pooling;
    width /= (size_t)__builtin_popcount(op->pooling);
    frame none = { 0 };
    view in = view_of(r, &none, op->in[0].value, start);
    const float *cls = in.data + op->in[0].column + column, *x = cls + skip * in.ld;
    size_t m = length - skip;
    float *out = r->out + seq * width * (size_t)__builtin_popcount(pooling) + column;
    for (unsigned bit = 1; bit <= LATTICE_POOLING_LASTTOKEN; bit <<= 1) {
        if (!(pooling & bit)) continue;
        switch (bit) {
        case LATTICE_POOLING_CLS: memcpy(out, cls, n * sizeof(float)); break;
        case LATTICE_POOLING_LASTTOKEN: memcpy(out, x + (m - 1) * in.ld, n * sizeof(float)); break;
        case LATTICE_POOLING_MAX: r->kernels->pool_max(x, in.ld, m, n, out); break;
        case LATTICE_POOLING_MEAN: r->kernels->pool_sum(x, in.ld, m, n, (float)(1.0 / (double)m), out); break;
        case LATTICE_POOLING_MEAN_SQRT_LEN:
            r->kernels->pool_sum(x, in.ld, m, n, (float)(1.0 / __builtin_sqrt((double)m)), out);
            break;
        default: {
            double weights = ((double)skip + 1 + (double)length) * (double)m / 2; /* Σ i, i = skip + 1 … length */
            r->kernels->pool_weighted(x, in.ld, m, n, skip, (float)(1.0 / weights), out);
        }
        }
        out += width;
    }
}

static void run_pool(run *r, const lt_op *op, atomic_size_t *counter, size_t n_threads)
{
    size_t width = r->plan->values[op->out[0]].width / (size_t)__builtin_popcount(op->pooling);
    /* Few sequences: cut the columns too, in whole cache lines. */
    size_t pieces = r->batch->n_seqs >= 4 * n_threads ? 1 : n_threads;
    size_t piece = lt_round_up(lt_ceil_div(width, pieces), 16), begin, end;
    while (take(counter, 1, r->batch->n_seqs * pieces, &begin, &end)) {
        size_t column = begin % pieces * piece;
        if (column < width) pool_columns(r, op, begin / pieces, column, width - column < piece ? width - column : piece);
    }
}

/* ------------------------------------------------------------------ the region */

static void run_seq_op(run *r, size_t index, atomic_size_t *counter, int thread, size_t n_threads)
{
    const lt_op *op = &r->plan->ops[index];
    double start = r->profile ? lt_clock_seconds() : 0;
    switch (op->code) {
    case LT_OP_ATTENTION: run_attention(r, op, counter, thread, n_threads); break;
    case LT_OP_CONV: run_conv(r, op, counter, n_threads); break;
    case LT_OP_GATED_DELTA: run_delta(r, op, counter, thread); break;
    default: run_pool(r, op, counter, n_threads);
    }
    if (r->profile) r->program->seconds[(size_t)thread * r->plan->n_ops + index] += lt_clock_seconds() - start;
}

static void region(void *arg, int thread, int threads)
{
    run *r = arg;
    lt_program *p = r->program;
    size_t n_threads = (size_t)threads;
    if (r->pack) {
        lt_cpu_weights_pack(&p->weights, r->kernels, &p->counters[p->n_groups].next, gather_scratch(r, thread));
        lt_pool_barrier(p->runtime->pool);
    }
    for (size_t i = 0; i < r->n_groups; i++) {
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
        p->first_query_tile[s + 1] = p->first_query_tile[s] + query_tiles(r, batch->seq_starts[s + 1] - batch->seq_starts[s]);
    }
    for (size_t i = 0; i <= p->n_groups + p->plan->n_ops; i++) atomic_init(&p->counters[i].next, 0);
    atomic_init(&r->stop, SIZE_MAX);
    r->fail_group = SIZE_MAX;
    r->pack = !p->packed && p->weights.n_items > 0;
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
    if (r->pack) {
        p->packed = true;
        lt_cpu_weights_forget(&p->weights);
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
