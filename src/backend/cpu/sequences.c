/* Operations that look at whole sequences: attention in (sequence, head, tile of queries), the convolution and the delta rule
 * with what they remember, pooling in (sequence, columns). */
#include "backend/cpu/run.h"

#include <math.h>

/* ------------------------------------------------------------------ attention */

size_t lt_cpu_query_tiles(const run *r, size_t length)
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
static void attend(const run *r, const lt_op *op, const frame *f, size_t block_offset, size_t seq, size_t head, size_t tile,
                   size_t together, float *scratch)
{
    size_t start = r->batch->seq_starts[seq], length = r->batch->seq_starts[seq + 1] - start;
    size_t past = r->batch->states ? r->batch->past_lens[seq] : 0;
    size_t size = lt_ceil_div(length, lt_cpu_query_tiles(r, length));
    size_t first = tile * size, n = length - first < size ? length - first : size;
    size_t kv_head = head / (op->n_heads / op->n_kv_heads);
    const lt_operand *in = op->in;
    view q = view_of(r, f, in[0].value, start + first), out = view_of(r, f, op->out[0], start + first);
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
        view k = view_of(r, f, in[1].value, start), v = view_of(r, f, in[2].value, start);
        args.k = k.data + in[1].column + kv_head * in[1].head_stride;
        args.v = v.data + in[2].column + kv_head * in[2].head_stride;
        args.ldk = k.ld;
        args.ldv = v.ld;
    }
    r->program->attention->attention(&args);
}

void lt_cpu_attend_piece(const run *r, const lt_op *op, const frame *f, size_t begin, size_t end)
{
    const size_t *first_tile = r->program->first_query_tile;
    for (size_t seq = begin; seq < end; seq++) {
        const size_t tiles = first_tile[seq + 1] - first_tile[seq];
        for (size_t head = 0; head < op->n_heads; head++) {
            for (size_t tile = 0; tile < tiles; tile++) attend(r, op, f, 0, seq, head, tile, 1, attention_scratch(r, f->thread));
        }
    }
}

static void run_attention(const run *r, const lt_op *op, atomic_size_t *counter, int thread, size_t n_threads)
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
    const frame none = { 0 }; /* all its values lie in the workspace: groups of attention hold nothing else */
    size_t seq = 0;           /* items come in ascending order, so the search goes on from the last one */
    while (take(counter, chunk, total, &begin, &end)) {
        for (size_t item = begin; item < end; item++) {
            while (first_tile[seq + 1] * op->n_heads <= item) seq++;
            size_t tiles = first_tile[seq + 1] - first_tile[seq], local = item - first_tile[seq] * op->n_heads;
            size_t head = local / tiles, tile = local % tiles;
            size_t together = r->batch->seq_starts[seq + 1] - r->batch->seq_starts[seq] == 1 ? most : 1;
            if (head % together != 0) continue;
            if (op->causal) tile = tiles - 1 - tile; /* the most keys first */
            attend(r, op, &none, block_offset, seq, head, tile, together, attention_scratch(r, thread));
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

static void run_conv(const run *r, const lt_op *op, atomic_size_t *counter, size_t n_threads)
{
    size_t width = r->plan->values[op->out[0]].width, offset = r->program->block_offset[op - r->plan->ops];
    size_t pieces = r->batch->n_seqs >= 4 * n_threads ? 1 : n_threads;
    size_t piece = lt_round_up(lt_ceil_div(width, pieces), 16), begin, end;
    while (take(counter, 1, r->batch->n_seqs * pieces, &begin, &end)) {
        size_t column = begin % pieces * piece;
        if (column < width) convolve(r, op, offset, begin / pieces, column, width - column < piece ? width - column : piece);
    }
}

/* S of value head `item` over all sequences; NULL: zeros. */
static const float *delta_state(const run *r, const lt_op *op, size_t offset, size_t item)
{
    const lt_state *state = r->batch->states ? r->batch->states[item / op->n_heads] : NULL;
    return state && state->memory ? state->memory + offset + item % op->n_heads * op->head_dim * op->value_dim : NULL;
}

/* Value head `item` over all sequences; the thread's next item is the one behind it, if it is not the last. Without a state, S is
 * kept nowhere. */
static void delta_head(const run *r, const lt_op *op, size_t offset, size_t item, bool last, float *scratch)
{
    size_t seq = item / op->n_heads, head = item % op->n_heads;
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
        args.state = delta_state(r, op, offset, item);
        args.next = state->next + offset + head * dk * dv;
        if (!last) args.ahead = delta_state(r, op, offset, item + 1);
    }
    r->kernels->delta(&args);
}

/* Of single tokens, which are a matter of memory, each thread takes heads that lie side by side. */
static void run_delta(const run *r, const lt_op *op, atomic_size_t *counter, int thread, size_t n_threads)
{
    const size_t offset = r->program->block_offset[op - r->plan->ops], heads = op->n_heads, n_seqs = r->batch->n_seqs;
    const size_t chunk = r->batch->n_tokens == n_seqs ? lt_ceil_div(heads, n_threads) : 1;
    size_t begin, end;
    while (take(counter, chunk, n_seqs * heads, &begin, &end)) {
        for (size_t i = begin; i < end; i++) delta_head(r, op, offset, i, i + 1 == end, attention_scratch(r, thread));
    }
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

static void run_pool(const run *r, const lt_op *op, atomic_size_t *counter, size_t n_threads)
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

void lt_cpu_seq_op(const run *r, const lt_op *op, atomic_size_t *counter, int thread, size_t n_threads)
{
    switch (op->code) {
    case LT_OP_ATTENTION: run_attention(r, op, counter, thread, n_threads); break;
    case LT_OP_CONV: run_conv(r, op, counter, n_threads); break;
    case LT_OP_GATED_DELTA: run_delta(r, op, counter, thread, n_threads); break;
    default: run_pool(r, op, counter, n_threads);
    }
}
