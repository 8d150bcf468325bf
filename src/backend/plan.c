/* Recording, checking and printing of plans.
 *
 * A plan is single-assignment but for q and k, which may be rotated, and q replaced, in place: every value is written by one
 * operation and read by later ones. lt_plan_check proves that, and
 * that every shape fits, so that a backend can trust whatever it compiles. */
#include "backend/plan.h"

#include <stdio.h>

const char *lt_op_name(lt_opcode code)
{
    static const char *const names[] = {
#define X(name, domain, text) text,
        LT_OP_LIST(X)
#undef X
    };
    return code >= 0 && code < LT_OP_COUNT ? names[code] : "unknown";
}

lt_domain lt_op_domain(lt_opcode code)
{
    static const lt_domain domains[] = {
#define X(name, domain, text) LT_DOMAIN_##domain,
        LT_OP_LIST(X)
#undef X
    };
    return code >= 0 && code < LT_OP_COUNT ? domains[code] : LT_DOMAIN_SEQ;
}

/* ------------------------------------------------------------------ recording */

void lt_plan_init(lt_plan *plan, const lattice_allocator *mem)
{
    *plan = (lt_plan){ .hidden = LT_NONE };
    lt_arena_init(&plan->arena, mem);
    for (int kind = 0; kind < LT_TAIL_COUNT; kind++) plan->tails[kind].result = LT_NONE;
}

void lt_plan_free(lt_plan *plan)
{
    if (!plan->arena.mem) return;
    lt_free(plan->arena.mem, plan->values);
    lt_free(plan->arena.mem, plan->weights);
    lt_free(plan->arena.mem, plan->ops);
    lt_arena_free(&plan->arena);
    *plan = (lt_plan){ .hidden = LT_NONE };
}

int lt_plan_value(lt_plan *plan, lt_rows rows, size_t width, const char *name)
{
    if (plan->failed || !LT_GROW(plan->arena.mem, plan->values, plan->values_capacity, plan->n_values + 1)) {
        plan->failed = true;
        return LT_NONE;
    }
    plan->values[plan->n_values] = (lt_value){ .rows = rows, .width = width, .name = name };
    return (int)plan->n_values++;
}

int lt_plan_weight(lt_plan *plan, const lt_weight *weight)
{
    if (plan->failed || !LT_GROW(plan->arena.mem, plan->weights, plan->weights_capacity, plan->n_weights + 1)) {
        plan->failed = true;
        return LT_NONE;
    }
    plan->weights[plan->n_weights] = *weight;
    return (int)plan->n_weights++;
}

lt_op lt_op_new(lt_opcode code)
{
    return (lt_op){
        .code = code,
        .in = { LT_NO_OPERAND, LT_NO_OPERAND, LT_NO_OPERAND, LT_NO_OPERAND },
        .out = { LT_NONE, LT_NONE },
        .weight = { LT_NONE, LT_NONE, LT_NONE, LT_NONE },
    };
}

int lt_plan_op(lt_plan *plan, lt_op op)
{
    if (plan->failed || !LT_GROW(plan->arena.mem, plan->ops, plan->ops_capacity, plan->n_ops + 1)) {
        plan->failed = true;
        return LT_NONE;
    }
    plan->ops[plan->n_ops] = op;
    return (int)plan->n_ops++;
}

void lt_plan_end_body(lt_plan *plan, int hidden)
{
    plan->n_body = plan->n_ops;
    plan->hidden = hidden;
}

void lt_plan_end_tail(lt_plan *plan, lt_tail_kind kind, int value)
{
    size_t first = plan->n_body;
    for (int other = 0; other < LT_TAIL_COUNT; other++) {
        const lt_tail *tail = &plan->tails[other];
        if (!tail->present) continue;
        size_t end = (size_t)tail->first_op + (size_t)tail->n_ops;
        if (end > first) first = end;
    }
    plan->tails[kind] = (lt_tail){
        .present = true,
        .first_op = (int)first,
        .n_ops = (int)(plan->n_ops - first),
        .result = value,
    };
}

/* ------------------------------------------------------------------ checking */

typedef struct check {
    const lt_plan *plan;
    const int *writer; /* [n_values] op that wrote the value so far, or LT_NONE */
    const lt_op *op;
    size_t index;
    lattice_error *err;
} check;

static lattice_status wrong(const check *c, const char *what)
{
    return lt_fail(c->err, LATTICE_ERR_INTERNAL, "plan: op %zu (%s): %s", c->index, lt_op_name(c->op->code), what);
}

/* The operand `i` must have been written before, be of `rows`, and hold `width` columns from its first on. */
static lattice_status check_in(const check *c, int i, lt_rows rows, size_t width)
{
    const lt_operand *in = &c->op->in[i];
    if (in->value < 0 || (size_t)in->value >= c->plan->n_values) return wrong(c, "an operand is missing or no value");
    if (c->writer[in->value] == LT_NONE) return wrong(c, "an operand is read before it is written");
    const lt_value *value = &c->plan->values[in->value];
    if (value->rows != rows) return wrong(c, "an operand has rows of another class");
    if (in->column > value->width || value->width - in->column < width) return wrong(c, "an operand is too narrow");
    return LATTICE_OK;
}

static lattice_status check_weight(const check *c, int i, size_t rows, size_t cols)
{
    int w = c->op->weight[i];
    if (w < 0 || (size_t)w >= c->plan->n_weights) return wrong(c, "a weight is missing or unknown");
    if (c->plan->weights[w].rows != rows || c->plan->weights[w].cols != cols) return wrong(c, "a weight has another shape");
    return LATTICE_OK;
}

static lattice_status check_attention(const check *c, size_t width)
{
    const lt_op *op = c->op;
    size_t heads[3] = { op->n_heads, op->n_kv_heads, op->n_kv_heads };
    if (op->n_heads == 0 || op->n_kv_heads == 0 || op->head_dim == 0 || op->n_heads % op->n_kv_heads != 0) {
        return wrong(c, "heads do not divide into groups");
    }
    size_t total;
    if (!lt_mul(op->n_heads, op->head_dim, &total) || (total != width && op->out[0] != op->in[0].value)) {
        return wrong(c, "the output is not as wide as the heads");
    }
    for (int i = 0; i < 3; i++) {
        size_t span;
        if (!lt_mul(heads[i] - 1, op->in[i].head_stride, &span) || !lt_add(span, op->head_dim, &span)) {
            return wrong(c, "the head stride is too large");
        }
        LT_TRY(check_in(c, i, LT_ROWS_TOKENS, span));
    }
    return LATTICE_OK;
}

/* q and k are views of the one value that is read and written. */
static lattice_status check_rope(const check *c)
{
    const lt_op *op = c->op;
    if (op->n_heads == 0 || op->n_kv_heads == 0 || op->head_dim == 0) return wrong(c, "no heads");
    if (op->rotary_dim == 0 || op->rotary_dim % 2 != 0 || op->rotary_dim > op->head_dim) {
        return wrong(c, "the rotary dimensions are not pairs within a head");
    }
    if (!(op->rope_theta >= 1) || op->max_positions == 0) return wrong(c, "no rotary angles");
    for (int i = 0; i < 2; i++) {
        size_t span, heads = i == 0 ? op->n_heads : op->n_kv_heads;
        if (op->in[i].value != op->out[0]) return wrong(c, "it works in place");
        if (!lt_mul(heads - 1, op->in[i].head_stride, &span) || !lt_add(span, op->head_dim, &span)) {
            return wrong(c, "the head stride is too large");
        }
        LT_TRY(check_in(c, i, LT_ROWS_TOKENS, span));
        LT_TRY(check_weight(c, i, op->head_dim, 1));
    }
    return LATTICE_OK;
}

/* A view of n_heads heads of head_dim columns. */
static lattice_status check_heads(const check *c, int i, size_t n_heads, size_t head_dim)
{
    const lt_op *op = c->op;
    size_t span;
    if (n_heads == 0 || head_dim == 0) return wrong(c, "no heads");
    if (!lt_mul(n_heads - 1, op->in[i].head_stride, &span) || !lt_add(span, head_dim, &span)) {
        return wrong(c, "the head stride is too large");
    }
    return check_in(c, i, LT_ROWS_TOKENS, span);
}

static lattice_status check_conv(const check *c, const lt_value *out)
{
    int w = c->op->weight[0];
    if (w < 0 || (size_t)w >= c->plan->n_weights) return wrong(c, "the taps are missing");
    if (out->rows != LT_ROWS_TOKENS) return wrong(c, "it gives rows of tokens");
    LT_TRY(check_weight(c, 0, out->width, c->plan->weights[w].cols));
    return check_in(c, 0, LT_ROWS_TOKENS, out->width);
}

static lattice_status check_delta(const check *c, const lt_value *out)
{
    const lt_op *op = c->op;
    size_t width, gates;
    if (op->n_heads == 0 || op->n_kv_heads == 0 || op->n_heads % op->n_kv_heads != 0) {
        return wrong(c, "heads do not divide into groups");
    }
    if (op->in[0].value != op->in[1].value || op->in[0].value != op->in[2].value) return wrong(c, "q, k and v are of one value");
    LT_TRY(check_heads(c, 0, op->n_kv_heads, op->head_dim));
    LT_TRY(check_heads(c, 1, op->n_kv_heads, op->head_dim));
    LT_TRY(check_heads(c, 2, op->n_heads, op->value_dim));
    if (!lt_mul(op->n_heads, op->value_dim, &width) || !lt_mul(op->n_heads, 2, &gates)) return wrong(c, "too many heads");
    if (out->rows != LT_ROWS_TOKENS || out->width != width) return wrong(c, "the output is not as wide as the heads");
    LT_TRY(check_in(c, 3, LT_ROWS_TOKENS, gates));
    LT_TRY(check_weight(c, 0, op->n_heads, 1));
    return check_weight(c, 1, op->n_heads, 1);
}

static lattice_status check_gate(const check *c, const lt_value *out)
{
    const lt_op *op = c->op;
    size_t width;
    if (!lt_mul(op->n_heads, op->head_dim, &width) || out->width != width || out->rows != LT_ROWS_TOKENS) {
        return wrong(c, "the output is not as wide as the heads");
    }
    if (op->code == LT_OP_GATED_NORM) LT_TRY(check_weight(c, 0, op->head_dim, 1));
    LT_TRY(check_heads(c, 0, op->n_heads, op->head_dim));
    return check_heads(c, 1, op->n_heads, op->head_dim);
}

static lattice_status check_embed(const check *c, const lt_value *out)
{
    if (out->rows != LT_ROWS_TOKENS) return wrong(c, "embeddings are rows of tokens");
    for (int i = 0; i < 3; i++) {
        int w = c->op->weight[i];
        if (w == LT_NONE && i > 0) continue;
        if (w < 0 || (size_t)w >= c->plan->n_weights) return wrong(c, "a table is missing");
        const lt_weight *table = &c->plan->weights[w];
        if (table->cols != out->width || table->n_segments != 1) return wrong(c, "a table has another width");
        if (i == 1 && c->op->position_offset >= table->rows) return wrong(c, "the position offset is past the table");
    }
    return LATTICE_OK;
}

static lattice_status check_shapes(const check *c)
{
    const lt_op *op = c->op;
    int primary = op->out[0] != LT_NONE ? op->out[0] : op->out[1];
    if (primary < 0 || (size_t)primary >= c->plan->n_values) return wrong(c, "the output is missing");
    const lt_value *out = &c->plan->values[primary];
    size_t width = out->width;
    if (op->code != LT_OP_ADD_NORM && (op->out[0] == LT_NONE || op->out[1] != LT_NONE)) {
        return wrong(c, "this operation has one output");
    }
    switch (op->code) {
    case LT_OP_EMBED: return check_embed(c, out);
    case LT_OP_ADD_NORM:
        LT_TRY(check_in(c, 0, out->rows, width));
        if (op->in[1].value != LT_NONE) LT_TRY(check_in(c, 1, out->rows, width));
        if (op->out[0] != LT_NONE) {
            LT_TRY(check_weight(c, 0, width, 1));
            if (op->weight[1] != LT_NONE) LT_TRY(check_weight(c, 1, width, 1));
        }
        if (op->out[0] != LT_NONE && op->out[1] != LT_NONE) {
            if ((size_t)op->out[1] >= c->plan->n_values) return wrong(c, "the second output is no value");
            const lt_value *sum = &c->plan->values[op->out[1]];
            if (sum->rows != out->rows || sum->width != width) return wrong(c, "the two outputs differ in shape");
        }
        return LATTICE_OK;
    case LT_OP_LINEAR: {
        int w = op->weight[0];
        if (w < 0 || (size_t)w >= c->plan->n_weights) return wrong(c, "the matrix is missing");
        size_t outputs = width;
        if (op->glu && (!lt_mul(width, 2, &outputs) || op->weight[1] != LT_NONE)) return wrong(c, "a gated product has no bias");
        LT_TRY(check_weight(c, 0, outputs, c->plan->weights[w].cols));
        LT_TRY(check_in(c, 0, out->rows, c->plan->weights[w].cols));
        if (op->weight[1] != LT_NONE) LT_TRY(check_weight(c, 1, width, 1));
        if (op->in[1].value != LT_NONE) LT_TRY(check_in(c, 1, out->rows, width));
        return LATTICE_OK;
    }
    case LT_OP_ATTENTION:
        if (out->rows != LT_ROWS_TOKENS) return wrong(c, "attention gives rows of tokens");
        return check_attention(c, width);
    case LT_OP_QK_NORM_ROPE: return check_rope(c);
    case LT_OP_CONV: return check_conv(c, out);
    case LT_OP_GATED_DELTA: return check_delta(c, out);
    case LT_OP_GATED_NORM:
    case LT_OP_GATE: return check_gate(c, out);
    case LT_OP_SELECT:
        if (out->rows != LT_ROWS_OUT) return wrong(c, "selected rows are output rows");
        return check_in(c, 0, LT_ROWS_TOKENS, width);
    case LT_OP_POOL: {
        size_t poolings = (size_t)__builtin_popcount(op->pooling);
        if (op->pooling == 0 || op->pooling >= 64) return wrong(c, "no pooling, or an unknown one");
        if (out->rows != LT_ROWS_SEQS || width % poolings != 0) return wrong(c, "the output does not hold the poolings");
        return check_in(c, 0, LT_ROWS_TOKENS, width / poolings);
    }
    case LT_OP_COUNT: break;
    }
    return wrong(c, "unknown operation");
}

static lattice_status check_range(check *c, int *writer, size_t begin, size_t end)
{
    const lt_plan *plan = c->plan;
    for (size_t i = begin; i < end; i++) {
        const lt_op *op = &plan->ops[i];
        c->op = op;
        c->index = i;
        LT_TRY(check_shapes(c));
        for (int k = 0; k < 2; k++) {
            int out = op->out[k];
            if (out == LT_NONE) continue;
            if (out < 0 || (size_t)out >= plan->n_values) return wrong(c, "an output is no value");
            bool in_place = (op->code == LT_OP_QK_NORM_ROPE || op->code == LT_OP_ATTENTION) && out == op->in[0].value;
            if (writer[out] != LT_NONE && !in_place) return wrong(c, "an output was written before");
            writer[out] = (int)i;
        }
        if (op->trace < 0 || (size_t)op->trace > plan->n_trace) return wrong(c, "the trace has no such place");
        if (op->trace > 0) {
            if (op->out[0] == LT_NONE) return wrong(c, "a traced operation needs its first output");
            const lt_value *traced = &plan->values[op->out[0]];
            if (traced->rows != LT_ROWS_TOKENS || traced->width != plan->values[plan->hidden].width) {
                return wrong(c, "a traced value is not shaped as the hidden states");
            }
        }
    }
    return LATTICE_OK;
}

static lattice_status check_segments(const lt_plan *plan, lattice_error *err)
{
    for (size_t i = 0; i < plan->n_weights; i++) {
        const lt_weight *w = &plan->weights[i];
        bool right = w->n_segments >= 1 && w->n_segments <= LT_MAX_SEGMENTS && w->rows > 0 && w->cols > 0;
        size_t elements = 0, wanted;
        for (int s = 0; right && s < w->n_segments; s++) {
            const lt_tensor *tensor = w->segments[s].tensor;
            const lt_segment *segment = &w->segments[s];
            right = tensor && segment->checkpoint && tensor->dtype == w->dtype && tensor->n_elements % w->cols == 0;
            if (!right) break;
            size_t stored = tensor->n_elements / w->cols, rows = lt_segment_rows(segment, w->cols);
            right = segment->first_row <= stored && rows <= stored - segment->first_row &&
                    lt_add(elements, rows * w->cols, &elements);
        }
        if (!right || !lt_mul(w->rows, w->cols, &wanted) || wanted != elements) {
            return lt_fail(err, LATTICE_ERR_INTERNAL, "plan: weight %zu: its segments do not make up its shape", i);
        }
    }
    return LATTICE_OK;
}

static lattice_status check_all(const lt_plan *plan, int *writer, lattice_error *err)
{
    check c = { .plan = plan, .writer = writer, .err = err };
    for (size_t i = 0; i < plan->n_values; i++) {
        writer[i] = LT_NONE;
        if (plan->values[i].width == 0 || plan->values[i].width > SIZE_MAX / 1024) {
            return lt_fail(err, LATTICE_ERR_INTERNAL, "plan: value %zu (%s): impossible width", i, plan->values[i].name);
        }
    }
    LT_TRY(check_segments(plan, err));
    LT_TRY(check_range(&c, writer, 0, plan->n_body));
    if (writer[plan->hidden] == LT_NONE) return lt_fail(err, LATTICE_ERR_INTERNAL, "plan: the hidden states are never written");
    size_t covered = plan->n_body;
    for (int kind = 0; kind < LT_TAIL_COUNT; kind++) {
        const lt_tail *tail = &plan->tails[kind];
        if (!tail->present) continue;
        size_t first = (size_t)tail->first_op, end = first + (size_t)tail->n_ops;
        if (tail->first_op < 0 || tail->n_ops < 0 || end > plan->n_ops || (tail->n_ops > 0 && first < plan->n_body)) {
            return lt_fail(err, LATTICE_ERR_INTERNAL, "plan: tail %d: its ops are outside the plan", kind);
        }
        /* A tail reads the body's values and its own: what another tail wrote does not exist in its run. */
        LT_TRY(check_range(&c, writer, first, end));
        int last = tail->n_ops > 0 ? (int)end - 1 : LT_NONE;
        bool right = tail->result >= 0 && (size_t)tail->result < plan->n_values &&
                     (last == LT_NONE ? tail->result == plan->hidden : writer[tail->result] == last);
        if (!right) return lt_fail(err, LATTICE_ERR_INTERNAL, "plan: tail %d: its result is not its last output", kind);
        for (size_t i = first; i < end; i++) {
            if (plan->ops[i].code == LT_OP_POOL && (int)i != last) {
                return lt_fail(err, LATTICE_ERR_INTERNAL, "plan: op %zu (pool): pooling must end its tail", i);
            }
            for (int in = 0; in < 4; in++) {
                int v = plan->ops[i].in[in].value;
                if (v != LT_NONE && writer[v] >= (int)plan->n_body && (writer[v] < (int)first || writer[v] >= (int)end)) {
                    return lt_fail(err, LATTICE_ERR_INTERNAL, "plan: op %zu (%s): reads a value of another tail", i,
                                   lt_op_name(plan->ops[i].code));
                }
            }
        }
        covered += end - first;
    }
    if (covered != plan->n_ops) return lt_fail(err, LATTICE_ERR_INTERNAL, "plan: some ops belong to neither body nor tail");
    for (size_t i = 0; i < plan->n_body; i++) {
        if (plan->ops[i].code == LT_OP_POOL)
            return lt_fail(err, LATTICE_ERR_INTERNAL, "plan: op %zu (pool): pooling must end its tail", i);
    }
    return LATTICE_OK;
}

lattice_status lt_plan_check(const lt_plan *plan, lattice_error *err)
{
    if (plan->failed) return lt_fail(err, LATTICE_ERR_NO_MEMORY, "out of memory while recording the forward pass");
    if (plan->n_body == 0 || plan->n_body > plan->n_ops) return lt_fail(err, LATTICE_ERR_INTERNAL, "plan: no body");
    if (plan->hidden < 0 || (size_t)plan->hidden >= plan->n_values || plan->values[plan->hidden].rows != LT_ROWS_TOKENS) {
        return lt_fail(err, LATTICE_ERR_INTERNAL, "plan: no hidden states");
    }
    int *writer = lt_alloc_array(plan->arena.mem, plan->n_values, sizeof *writer);
    if (!writer) return lt_no_memory(err, plan->n_values * sizeof *writer, "checking a plan");
    lattice_status status = check_all(plan, writer, err);
    lt_free(plan->arena.mem, writer);
    return status;
}

/* ------------------------------------------------------------------ counting */

size_t lt_tail_width(const lt_plan *plan, lt_tail_kind kind, unsigned pooling)
{
    const lt_tail *tail = &plan->tails[kind];
    if (!tail->present) return 0;
    size_t width = plan->values[tail->result].width;
    const lt_op *last = tail->n_ops > 0 ? &plan->ops[tail->first_op + tail->n_ops - 1] : NULL;
    if (!last || last->code != LT_OP_POOL || pooling == 0) return width;
    return width / (size_t)__builtin_popcount(last->pooling) * (size_t)__builtin_popcount(pooling);
}

static double rows_of(lt_rows rows, const lt_batch *batch)
{
    return (double)(rows == LT_ROWS_TOKENS ? batch->n_tokens : rows == LT_ROWS_SEQS ? batch->n_seqs : batch->n_out);
}

double lt_op_flop(const lt_plan *plan, const lt_op *op, const lt_batch *batch)
{
    const lt_value *out = &plan->values[op->out[0] != LT_NONE ? op->out[0] : op->out[1]];
    double rows = rows_of(out->rows, batch), width = (double)out->width;
    switch (op->code) {
    case LT_OP_LINEAR:
        return 2 * rows * (double)plan->weights[op->weight[0]].rows * (double)plan->weights[op->weight[0]].cols;
    case LT_OP_QK_NORM_ROPE: return 8 * rows * (double)((op->n_heads + op->n_kv_heads) * op->head_dim);
    case LT_OP_ATTENTION: {
        double pairs = 0;
        for (size_t s = 0; s < batch->n_seqs; s++) {
            double n = (double)(batch->seq_starts[s + 1] - batch->seq_starts[s]);
            double past = batch->states ? (double)batch->past_lens[s] : 0;
            pairs += n * past + (op->causal ? n * (n + 1) / 2 : n * n);
        }
        return 4 * pairs * (double)op->n_heads * (double)op->head_dim;
    }
    case LT_OP_CONV: return 2 * rows * width * (double)plan->weights[op->weight[0]].cols;
    case LT_OP_GATED_DELTA: return 7 * rows * width * (double)op->head_dim;
    case LT_OP_GATED_NORM: return 10 * rows * width;
    case LT_OP_GATE: return 6 * rows * width;
    case LT_OP_EMBED: return 2 * rows * width;
    case LT_OP_ADD_NORM: return 8 * rows * width;
    case LT_OP_POOL: return (double)batch->n_tokens * width;
    case LT_OP_SELECT:
    case LT_OP_COUNT: break;
    }
    return 0;
}

double lt_op_bytes(const lt_plan *plan, const lt_op *op, const lt_batch *batch)
{
    double bytes = 0;
    if (op->code == LT_OP_QK_NORM_ROPE) {
        return 8 * (double)batch->n_tokens * (double)((op->n_heads + op->n_kv_heads) * op->head_dim + op->rotary_dim / 2);
    }
    for (int i = 0; i < 2; i++) {
        if (op->out[i] == LT_NONE) continue;
        const lt_value *out = &plan->values[op->out[i]];
        bytes += 4 * rows_of(out->rows, batch) * (double)out->width;
    }
    if (op->code == LT_OP_SELECT) return 2 * bytes;
    if (op->code == LT_OP_GATED_DELTA && batch->past_lens) /* S of every head before and after */
        bytes += 8 * (double)batch->n_seqs * (double)(op->n_heads * op->head_dim * op->value_dim);
    for (int i = 0; i < 4; i++) {
        if (op->in[i].value != LT_NONE && (i == 0 || op->code != LT_OP_ATTENTION)) {
            const lt_value *in = &plan->values[op->in[i].value];
            bytes += 4 * rows_of(in->rows, batch) * (double)(in->width - op->in[i].column);
        }
        if (op->weight[i] == LT_NONE) continue;
        const lt_weight *w = &plan->weights[op->weight[i]];
        double rows = op->code == LT_OP_EMBED ? (double)batch->n_tokens : (double)w->rows;
        double size = w->dtype == LT_Q8_0 ? 34.0 / 32 : w->dtype == LT_INT8_ROWS ? 1 : (double)lt_dtype_size(w->dtype);
        bytes += rows * (double)w->cols * size;
    }
    return bytes;
}

/* ------------------------------------------------------------------ printing */

static void print_value(const lt_plan *plan, int value, size_t column, lt_buf *out)
{
    static const char *const rows[] = { "tokens", "seqs", "out" };
    const lt_value *v = &plan->values[value];
    lt_buf_printf(out, "%%%d:%s[%s,%zu]", value, v->name, rows[v->rows], v->width);
    if (column > 0) lt_buf_printf(out, "+%zu", column);
}

static void print_op(const lt_plan *plan, size_t index, lt_buf *out)
{
    const lt_op *op = &plan->ops[index];
    lt_buf_printf(out, "%3zu  ", index);
    for (int i = 0, n = 0; i < 2; i++) {
        if (op->out[i] == LT_NONE) continue;
        if (n++ > 0) lt_buf_append_z(out, ", ");
        print_value(plan, op->out[i], 0, out);
    }
    lt_buf_printf(out, " = %s(", lt_op_name(op->code));
    int n = 0;
    for (int i = 0; i < 4; i++) {
        if (op->in[i].value == LT_NONE) continue;
        if (n++ > 0) lt_buf_append_z(out, ", ");
        print_value(plan, op->in[i].value, op->in[i].column, out);
    }
    for (int i = 0; i < 4; i++) {
        if (op->weight[i] == LT_NONE) continue;
        const lt_weight *w = &plan->weights[op->weight[i]];
        if (n++ > 0) lt_buf_append_z(out, ", ");
        for (int s = 0; s < w->n_segments; s++) {
            const lt_segment *segment = &w->segments[s];
            lt_buf_printf(out, "%s%.*s", s > 0 ? "|" : "", LT_STR_ARG(segment->tensor->name));
            if (segment->n_rows > 0) lt_buf_printf(out, "[%zu:%zu]", segment->first_row, segment->first_row + segment->n_rows);
        }
        lt_buf_printf(out, ":%s[%zu,%zu]", lt_dtype_name(w->dtype), w->rows, w->cols);
    }
    lt_buf_append_z(out, ")");
    static const char *const activations[] = { "", "gelu", "gelu_tanh", "relu", "silu", "tanh", "sigmoid" };
    if (op->activation != LT_ACT_NONE) lt_buf_printf(out, " act=%s", activations[op->activation]);
    if (op->glu) lt_buf_append_z(out, " glu");
    if (op->code == LT_OP_QK_NORM_ROPE) {
        lt_buf_printf(out, " heads=%zu/%zux%zu rotary=%zu theta=%g", op->n_heads, op->n_kv_heads, op->head_dim, op->rotary_dim,
                      op->rope_theta);
    }
    if (op->code == LT_OP_ATTENTION) {
        lt_buf_printf(out, " heads=%zu/%zux%zu%s", op->n_heads, op->n_kv_heads, op->head_dim, op->causal ? " causal" : "");
    }
    if (op->code == LT_OP_GATED_DELTA) {
        lt_buf_printf(out, " heads=%zu/%zux%zu values=%zu", op->n_heads, op->n_kv_heads, op->head_dim, op->value_dim);
    }
    if (op->code == LT_OP_GATED_NORM || op->code == LT_OP_GATE) lt_buf_printf(out, " heads=%zux%zu", op->n_heads, op->head_dim);
    if (op->code == LT_OP_GATED_NORM || op->code == LT_OP_ADD_NORM || op->code == LT_OP_QK_NORM_ROPE) lt_buf_printf(out, " eps=%g", (double)op->eps);
    if (op->position_offset > 0) lt_buf_printf(out, " position+%zu", op->position_offset);
    if (op->code == LT_OP_POOL) lt_buf_printf(out, " pooling=%u", op->pooling);
    if (op->trace > 0) lt_buf_printf(out, " trace=%d", op->trace - 1);
    lt_buf_append_z(out, "\n");
}

void lt_plan_print(const lt_plan *plan, lt_buf *out)
{
    static const char *const tails[] = { "tokens", "pooled", "scores", "logits" };
    lt_buf_append_z(out, "body:\n");
    for (size_t i = 0; i < plan->n_body; i++) print_op(plan, i, out);
    for (int kind = 0; kind < LT_TAIL_COUNT; kind++) {
        const lt_tail *tail = &plan->tails[kind];
        if (!tail->present) continue;
        lt_buf_printf(out, "tail %s:\n", tails[kind]);
        for (int i = 0; i < tail->n_ops; i++) print_op(plan, (size_t)(tail->first_op + i), out);
        lt_buf_printf(out, "     result ");
        print_value(plan, tail->result, 0, out);
        lt_buf_append_z(out, "\n");
    }
}
