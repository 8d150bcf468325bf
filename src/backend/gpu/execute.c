/* Runs a compiled plan on a device: one upload of the batch's tables, a launch or two an operation, one download.
 *
 * The workspace holds values class by class (rows of tokens, of sequences, of outputs), then scratch of products and of the delta
 * rule, then the dense result. Device memory is taken when it is allocated, so the workspace grows to the largest batch seen, and
 * a run of a size seen before allocates nothing. */
#include "backend/gpu/run.h"

#include <math.h>

#include "base/clock.h"

/* ------------------------------------------------------------------ launching */

lattice_status lt_gpu_launch_kernel(const run *r, lt_gpu_kernel kernel, const lt_gpu_ref *buffers, int n_buffers,
                                    const void *args, size_t args_size, size_t x, size_t y, size_t threads)
{
    if (x == 0 || y == 0) return LATTICE_OK;
    lt_gpu_launch l = { .kernel = r->p->kernels[kernel],
                        .n_buffers = n_buffers,
                        .args = args,
                        .args_size = args_size,
                        .grid = { x, y },
                        .threads = threads,
                        .early = r->is_step && r->batch->n_tokens <= LT_GPU_EARLY_ROWS };
    for (int i = 0; i < n_buffers; i++) l.buffers[i] = buffers[i];
    if (r->device->specialise) r->device->specialise(r->device, (int)kernel, &r->p->shape, r->p->own, &l);
    return r->device->launch(r->device, &l, r->err);
}

lattice_status lt_gpu_convert_rows(const run *r, view x, const lt_gpu_ref *index, view y, size_t rows, size_t width)
{
    convert_args a = { .rows = u32(rows),
                       .width = u32(width),
                       .ld_x = u32(x.ld),
                       .ld_y = u32(y.ld),
                       .x_type = x.type,
                       .y_type = y.type,
                       .has_index = index != NULL };
    return LAUNCH(convert_rows, a, rows, lt_gpu_ceil(width, THREADS), THREADS, x.ref, index ? *index : x.ref, y.ref);
}

static lattice_status embed(const run *r, const lt_op *op)
{
    view y = value_view(r, op->out[0]);
    const lt_gpu_weight *w = r->p->weights;
    bool has_position = op->weight[1] != LT_NONE, has_type = op->weight[2] != LT_NONE;
    embed_args a = {
        .width = u32(r->plan->values[op->out[0]].width),
        .ld = u32(y.ld),
        .position_offset = u32(op->position_offset),
        .has_position = has_position,
        .has_type = has_type,
        .typed = r->batch->type_ids && !op->type_zero,
        .word_type = w[op->weight[0]].type,
        .position_type = has_position ? w[op->weight[1]].type : 0,
        .type_type = has_type ? w[op->weight[2]].type : 0,
        .out_type = y.type,
        .word_rows = u32(r->plan->weights[op->weight[0]].rows),
        .position_rows = has_position ? u32(r->plan->weights[op->weight[1]].rows) : 0,
        .type_rows = has_type ? u32(r->plan->weights[op->weight[2]].rows) : 0,
    };
    return LAUNCH(embed, a, r->rows[LT_ROWS_TOKENS], lt_gpu_ceil(a.width, THREADS), THREADS, weight_ref(r, op->weight[0]),
                  weight_ref(r, op->weight[1]), weight_ref(r, op->weight[2]), table(r, r->at.ids), table(r, r->at.positions),
                  table(r, r->at.types), y.ref);
}

static lattice_status add_norm(const run *r, const lt_op *op)
{
    view x = operand_view(r, &op->in[0]), residual = x, y = x, sum = x;
    bool has_residual = op->in[1].value != LT_NONE, has_y = op->out[0] != LT_NONE, has_sum = op->out[1] != LT_NONE;
    if (has_residual) residual = operand_view(r, &op->in[1]);
    if (has_y) y = value_view(r, op->out[0]);
    if (has_sum) sum = value_view(r, op->out[1]);
    const lt_value *out = &r->plan->values[has_y ? op->out[0] : op->out[1]];
    size_t rows = r->rows[out->rows];
    norm_args a = {
        .rows = u32(rows),
        .width = u32(out->width),
        .ld_x = u32(x.ld),
        .ld_residual = u32(residual.ld),
        .ld_y = u32(y.ld),
        .ld_sum = u32(sum.ld),
        .x_type = x.type,
        .residual_type = residual.type,
        .y_type = y.type,
        .sum_type = sum.type,
        .has_residual = has_residual,
        .has_y = has_y,
        .has_sum = has_sum,
        .has_bias = has_y && op->weight[1] != LT_NONE,
        .eps = op->eps,
    };
    return LAUNCH(add_norm, a, lt_gpu_ceil(rows, THREADS / 32), 1, THREADS, x.ref, residual.ref, weight_ref(r, op->weight[0]),
                  weight_ref(r, op->weight[1]), y.ref, sum.ref);
}

/* ------------------------------------------------------------------ attention */

static lattice_status qk_norm_rope(const run *r, const lt_op *op)
{
    view q = operand_view(r, &op->in[0]), k = operand_view(r, &op->in[1]);
    size_t half = op->rotary_dim / 2, sines = op->max_positions * half * sizeof(float);
    rope_args a = { .n_heads = u32(op->n_heads),
                    .n_kv_heads = u32(op->n_kv_heads),
                    .ld = u32(q.ld),
                    .q_stride = u32(op->in[0].head_stride),
                    .k_stride = u32(op->in[1].head_stride),
                    .type = q.type,
                    .eps = op->eps };
    return LAUNCH(fused_qk_norm_rope, a, r->rows[LT_ROWS_TOKENS] * (op->n_heads + op->n_kv_heads), 1, lt_gpu_round(half, 32),
                  q.ref, k.ref, weight_ref(r, op->weight[0]), weight_ref(r, op->weight[1]), ((lt_gpu_ref){ r->p->rotary, 0 }),
                  ((lt_gpu_ref){ r->p->rotary, sines }), table(r, r->at.positions));
}

static lattice_status append_rows(const run *r, const lt_op *op, size_t offset, view k, view v)
{
    append_args a = {
        .n_kv_heads = u32(op->n_kv_heads),
        .head_dim = u32(op->head_dim),
        .ld_k = u32(k.ld),
        .ld_v = u32(v.ld),
        .k_stride = u32(op->in[1].head_stride),
        .v_stride = u32(op->in[2].head_stride),
        .type = k.type,
        .block_size = u32(r->p->block_numbers),
        .offset = u32(offset),
        .kv_type = r->p->kv_type,
    };
    return LAUNCH(append_rows, a, r->rows[LT_ROWS_TOKENS], 1, THREADS, k.ref, v.ref, table(r, r->at.slots),
                  ((lt_gpu_ref){ r->p->blocks.memory, 0 }));
}

static lattice_status attention(const run *r, const lt_op *op)
{
    lt_program *p = r->p;
    view q = operand_view(r, &op->in[0]), k = operand_view(r, &op->in[1]), v = operand_view(r, &op->in[2]);
    bool in_place = op->out[0] == op->in[0].value, paged = r->batch->states != NULL;
    view o = in_place ? q : value_view(r, op->out[0]);
    size_t offset = p->state_offset[op - r->plan->ops];
    attention_args a = {
        .n_heads = u32(op->n_heads),
        .ld_q = u32(q.ld),
        .ld_k = u32(k.ld),
        .ld_v = u32(v.ld),
        .ld_o = u32(o.ld),
        .q_stride = u32(op->in[0].head_stride),
        .k_stride = u32(op->in[1].head_stride),
        .v_stride = u32(op->in[2].head_stride),
        .o_stride = u32(in_place ? op->in[0].head_stride : op->head_dim),
        .q_type = q.type,
        .kv_type = paged ? p->kv_type : k.type,
        .o_type = o.type,
        .causal = op->causal,
        .paged = paged,
        .block_size = u32(p->block_numbers),
        .v_offset = paged ? u32(op->n_kv_heads * LT_BLOCK_ROWS * op->head_dim) : 0,
        .scale = op->scale,
    };
    if (paged) {
        LT_TRY(append_rows(r, op, offset, k, v));
        k.ref = v.ref = (lt_gpu_ref){ p->blocks.memory, offset * lt_gpu_type_size(p->kv_type) };
    }
    lt_gpu_launch l = {
        .kernel = p->attention_kernel,
        .buffers = { q.ref, k.ref, v.ref, o.ref, table(r, r->at.attention_seqs), table(r, r->at.tiles), table(r, r->at.blocks) },
        .n_buffers = 7,
        .args = &a,
        .args_size = sizeof a,
        .grid = { r->at.n_tiles, op->n_heads / p->attention.heads },
        .threads = p->attention.threads,
        .shared_bytes = p->attention.shared_bytes,
    };
    return r->device->launch(r->device, &l, r->err);
}

/* ------------------------------------------------------------------ recurrent operations */

static lattice_status convolve(const run *r, const lt_op *op)
{
    lt_program *p = r->p;
    view x = operand_view(r, &op->in[0]), y = value_view(r, op->out[0]);
    const lt_weight *source = &r->plan->weights[op->weight[0]];
    lt_gpu_ref memory = { p->memories.memory ? p->memories.memory : p->workspace, 0 };
    conv_args a = {
        .width = u32(source->rows),
        .taps = u32(source->cols),
        .ld_x = u32(x.ld),
        .ld_y = u32(y.ld),
        .x_type = x.type,
        .y_type = y.type,
        .memory_size = u32(p->memory_floats),
        .offset = u32(p->state_offset[op - r->plan->ops]),
    };
    size_t blocks = lt_gpu_ceil(source->rows, THREADS);
    return LAUNCH(conv, a, r->rows[LT_ROWS_TOKENS], blocks, THREADS, x.ref, weight_ref(r, op->weight[0]),
                  table(r, r->at.recurrent_seqs), table(r, r->at.token_seq), memory, y.ref);
}

static lattice_status gated_delta(const run *r, const lt_op *op)
{
    lt_program *p = r->p;
    view q = operand_view(r, &op->in[0]), k = operand_view(r, &op->in[1]), v = operand_view(r, &op->in[2]);
    view gates_in = operand_view(r, &op->in[3]), o = value_view(r, op->out[0]);
    size_t tokens = r->rows[LT_ROWS_TOKENS], units_floats = lt_gpu_round(2 * op->n_kv_heads * op->head_dim, 4) * tokens;
    lt_gpu_ref units = scratch(r, r->delta_offset), gates = lt_gpu_at(units, units_floats * sizeof(float));
    lt_gpu_ref memory = { p->memories.memory ? p->memories.memory : p->workspace, 0 };
    delta_args a = {
        .tokens = u32(tokens),
        .n_heads = u32(op->n_heads),
        .n_key_heads = u32(op->n_kv_heads),
        .dv = u32(op->value_dim),
        .ld_x = u32(q.ld),
        .ld_gates = u32(gates_in.ld),
        .ld_o = u32(o.ld),
        .q_stride = u32(op->in[0].head_stride),
        .k_stride = u32(op->in[1].head_stride),
        .v_stride = u32(op->in[2].head_stride),
        .x_type = q.type,
        .gates_type = gates_in.type,
        .o_type = o.type,
        .memory_size = u32(p->memory_floats),
        .offset = u32(p->state_offset[op - r->plan->ops]),
        .stateful = r->batch->states != NULL,
    };
    LT_TRY(LAUNCH(delta_units, a, lt_gpu_ceil(tokens * op->n_kv_heads, THREADS / 32), 1, THREADS, q.ref, k.ref, gates_in.ref,
                  weight_ref(r, op->weight[0]), weight_ref(r, op->weight[1]), units, gates));
    return LAUNCH(gated_delta, a, r->rows[LT_ROWS_SEQS] * op->n_heads, lt_gpu_ceil(op->value_dim, THREADS / 32 * 4), THREADS,
                  units, gates, v.ref, table(r, r->at.recurrent_seqs), memory, o.ref);
}

/* ------------------------------------------------------------------ gates, selection, pooling */

static gate_args gate_arguments(const run *r, const lt_op *op, view x, view z, view y)
{
    return (gate_args){
        .rows = u32(r->rows[LT_ROWS_TOKENS]),
        .n_heads = u32(op->n_heads),
        .head_dim = u32(op->head_dim),
        .ld_x = u32(x.ld),
        .ld_z = u32(z.ld),
        .ld_y = u32(y.ld),
        .x_stride = u32(op->in[0].head_stride),
        .z_stride = u32(op->in[1].head_stride),
        .x_type = x.type,
        .z_type = z.type,
        .y_type = y.type,
        .eps = op->eps,
    };
}

static lattice_status gate(const run *r, const lt_op *op)
{
    view x = operand_view(r, &op->in[0]), z = operand_view(r, &op->in[1]), y = value_view(r, op->out[0]);
    gate_args a = gate_arguments(r, op, x, z, y);
    return LAUNCH(gate_rows, a, a.rows, lt_gpu_ceil(op->n_heads * op->head_dim, THREADS), THREADS, x.ref, z.ref, y.ref);
}

static lattice_status gated_norm(const run *r, const lt_op *op)
{
    view x = operand_view(r, &op->in[0]), z = operand_view(r, &op->in[1]), y = value_view(r, op->out[0]);
    gate_args a = gate_arguments(r, op, x, z, y);
    return LAUNCH(gated_norm, a, lt_gpu_ceil(r->rows[LT_ROWS_TOKENS] * op->n_heads, THREADS / 32), 1, THREADS, x.ref, z.ref,
                  weight_ref(r, op->weight[0]), y.ref);
}

static lattice_status select_rows(const run *r, const lt_op *op)
{
    view x = operand_view(r, &op->in[0]), y = value_view(r, op->out[0]);
    lt_gpu_ref index = table(r, r->at.out_rows);
    return lt_gpu_convert_rows(r, x, &index, y, r->rows[LT_ROWS_OUT], r->plan->values[op->out[0]].width);
}

/* Straight into the dense result: pooling ends its tail. */
static lattice_status pool(const run *r, const lt_op *op)
{
    view x = operand_view(r, &op->in[0]);
    unsigned pooling = r->batch->pooling ? r->batch->pooling : op->pooling;
    size_t width = r->plan->values[op->out[0]].width / (size_t)__builtin_popcount(op->pooling);
    pool_args a = { .width = u32(width), .ld = u32(x.ld), .type = x.type, .pooling = pooling, .out_width = u32(r->result_width) };
    return LAUNCH(pool, a, r->rows[LT_ROWS_SEQS], lt_gpu_ceil(width, THREADS), THREADS, x.ref, table(r, r->at.pool_seqs),
                  scratch(r, r->result_offset));
}

static lattice_status run_op(const run *r, const lt_op *op)
{
    switch (op->code) {
    case LT_OP_EMBED: return embed(r, op);
    case LT_OP_ADD_NORM: return add_norm(r, op);
    case LT_OP_LINEAR: return lt_gpu_linear(r, op);
    case LT_OP_QK_NORM_ROPE: return qk_norm_rope(r, op);
    case LT_OP_ATTENTION: return attention(r, op);
    case LT_OP_CONV: return convolve(r, op);
    case LT_OP_GATED_DELTA: return gated_delta(r, op);
    case LT_OP_GATED_NORM: return gated_norm(r, op);
    case LT_OP_GATE: return gate(r, op);
    case LT_OP_SELECT: return select_rows(r, op);
    case LT_OP_POOL: return pool(r, op);
    case LT_OP_COUNT: break;
    }
    return lt_fail(r->err, LATTICE_ERR_INTERNAL, "gpu: unknown operation");
}

/* Rows of a value as dense float32, downloaded. Debugging aid: takes memory of its own. */
static lattice_status download_trace(const run *r, const lt_op *op)
{
    size_t rows = r->rows[LT_ROWS_TOKENS], width = r->plan->values[op->out[0]].width, size = rows * width * sizeof(float);
    void *memory;
    LT_TRY(r->device->allocate(r->device, size, &memory, r->err));
    view dense = { { memory, 0 }, width, LT_GPU_F32 };
    lattice_status status = lt_gpu_convert_rows(r, value_view(r, op->out[0]), NULL, dense, rows, width);
    if (status == LATTICE_OK)
        status =
            r->device->download(r->device, r->batch->trace + (size_t)(op->trace - 1) * rows * width, dense.ref, size, r->err);
    r->device->release(r->device, memory);
    return status;
}

/* ------------------------------------------------------------------ before and after */

/* Blocks are last: where the others lie does not depend on how long the sequences are, so that a recording serves on. */
static void place_tables(run *r)
{
    const lt_batch *b = r->batch;
    batch_tables *t = &r->at;
    size_t tile = r->p->attention.queries, at = 0;
    for (size_t s = 0; s < b->n_seqs; s++) {
        size_t length = b->seq_starts[s + 1] - b->seq_starts[s];
        t->n_tiles += lt_gpu_ceil(length, tile);
        if (b->states) t->n_blocks += lt_gpu_ceil(b->past_lens[s] + length, LT_BLOCK_ROWS);
    }
    const size_t sizes[] = { b->n_tokens,   b->n_tokens, b->n_tokens,   4 * b->n_seqs, 2 * t->n_tiles, b->n_tokens,
                             3 * b->n_seqs, b->n_out,    4 * b->n_seqs, b->n_tokens,   t->n_blocks };
    size_t *const places[] = { &t->ids,       &t->positions, &t->types,          &t->attention_seqs, &t->tiles, &t->slots,
                               &t->pool_seqs, &t->out_rows,  &t->recurrent_seqs, &t->token_seq,      &t->blocks };
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        *places[i] = at;
        at += lt_gpu_round(sizes[i], 4);
    }
    t->end = at;
}

static void fill_sequence(const run *r, size_t s, uint32_t *words, size_t *tile, size_t *block)
{
    const lt_batch *b = r->batch;
    const batch_tables *t = &r->at;
    const lt_state *state = b->states ? b->states[s] : NULL;
    size_t start = b->seq_starts[s], length = b->seq_starts[s + 1] - start, past = state ? b->past_lens[s] : 0;
    size_t skip = b->pool_skip ? b->pool_skip[s] : 0;
    uint32_t *seq = words + t->attention_seqs + 4 * s, *pooled = words + t->pool_seqs + 3 * s;
    uint32_t *recurrent = words + t->recurrent_seqs + 4 * s;
    seq[0] = recurrent[0] = pooled[0] = u32(start);
    seq[1] = recurrent[1] = pooled[1] = u32(length);
    seq[2] = u32(past);
    seq[3] = u32(*block);
    pooled[2] = u32(skip < length ? skip : length - 1);
    recurrent[2] = state ? state->memory : LT_GPU_NO_SLOT;
    recurrent[3] = state ? state->next : LT_GPU_NO_SLOT;
    for (size_t first = 0; first < length; first += r->p->attention.queries, (*tile)++) {
        words[t->tiles + 2 * *tile] = u32(s);
        words[t->tiles + 2 * *tile + 1] = u32(first);
    }
    for (size_t i = 0; i < length; i++) {
        words[t->token_seq + start + i] = u32(s);
        size_t at = past + i;
        bool kept = state && r->p->block_numbers > 0;
        words[t->slots + start + i] = kept ? state->blocks[at / LT_BLOCK_ROWS] * LT_BLOCK_ROWS + u32(at % LT_BLOCK_ROWS) : 0;
    }
    if (!state) return;
    for (size_t i = 0; i < lt_gpu_ceil(past + length, LT_BLOCK_ROWS); i++, (*block)++)
        words[t->blocks + *block] = r->p->block_numbers > 0 ? state->blocks[i] : 0;
}

static lattice_status upload_tables(run *r)
{
    lt_program *p = r->p;
    const lt_batch *b = r->batch;
    place_tables(r);
    if (!LT_GROW(&p->runtime->mem, p->staging, p->staging_capacity, r->at.end))
        return lt_no_memory(r->err, r->at.end * WORD, "a batch's tables");
    if (p->tables_bytes < r->at.end * WORD) {
        p->device->release(p->device, p->tables);
        p->tables = NULL;
        p->tables_bytes = 0;
        LT_TRY(p->device->allocate(p->device, r->at.end * WORD * 2, &p->tables, r->err));
        p->tables_bytes = r->at.end * WORD * 2;
    }
    uint32_t *words = p->staging;
    memcpy(words + r->at.ids, b->ids, b->n_tokens * WORD);
    memcpy(words + r->at.positions, b->positions, b->n_tokens * WORD);
    if (b->type_ids)
        memcpy(words + r->at.types, b->type_ids, b->n_tokens * WORD);
    else
        memset(words + r->at.types, 0, b->n_tokens * WORD);
    for (size_t i = 0; i < b->n_out; i++) words[r->at.out_rows + i] = u32(b->out_rows[i]);
    size_t tile = 0, block = 0;
    for (size_t s = 0; s < b->n_seqs; s++) fill_sequence(r, s, words, &tile, &block);
    return p->device->upload(p->device, (lt_gpu_ref){ p->tables, 0 }, words, r->at.end * WORD, r->err);
}

/* Extends the rotary tables to the largest position of the batch: angles in double precision, as on the CPU. */
static lattice_status fill_rotary(run *r)
{
    enum { CHUNK = 1024 };
    lt_program *p = r->p;
    const lt_op *op = p->rotary_op;
    if (!op) return LATTICE_OK;
    size_t end = p->rotary_filled, half = op->rotary_dim / 2;
    for (size_t t = 0; t < r->batch->n_tokens; t++) {
        if (r->batch->positions[t] >= end) end = (size_t)r->batch->positions[t] + 1;
    }
    if (end == p->rotary_filled) return LATTICE_OK;
    end = lt_gpu_round(end, CHUNK);
    if (end > op->max_positions) end = op->max_positions;
    for (size_t first = p->rotary_filled; first < end; first += CHUNK) {
        size_t n = end - first < CHUNK ? end - first : CHUNK;
        for (int sine = 0; sine < 2; sine++) {
            for (size_t i = 0; i < half; i++) {
                double step = pow(op->rope_theta, -2.0 * (double)i / (double)op->rotary_dim);
                for (size_t row = 0; row < n; row++) {
                    double angle = (double)(first + row) * step;
                    p->rotary_staging[row * half + i] = (float)(sine ? sin(angle) : cos(angle));
                }
            }
            size_t offset = ((sine ? op->max_positions : 0) + first) * half * sizeof(float);
            LT_TRY(p->device->upload(p->device, (lt_gpu_ref){ p->rotary, offset }, p->rotary_staging, n * half * sizeof(float),
                                     r->err));
        }
    }
    p->rotary_filled = end;
    return LATTICE_OK;
}

static bool add_region(size_t *end, size_t rows, size_t row_bytes, size_t *offset)
{
    size_t size;
    *offset = *end;
    return lt_mul(rows, row_bytes, &size) && lt_add(size, 255, &size) && lt_add(*end, size / 256 * 256, end);
}

static lattice_status place_workspace(run *r, size_t result_rows)
{
    lt_program *p = r->p;
    size_t end = 0, most = r->rows[LT_ROWS_TOKENS] > r->rows[LT_ROWS_OUT] ? r->rows[LT_ROWS_TOKENS] : r->rows[LT_ROWS_OUT];
    bool fits = true;
    r->is_step = lt_gpu_is_step(r->batch);
    r->splits = lt_gpu_splits(r);
    for (int c = 0; c < 3; c++) fits = fits && add_region(&end, r->rows[c], p->row_bytes[c], &r->class_offset[c]);
    fits = fits && add_region(&end, most, p->device->multiply ? p->glu_bytes : 0, &r->glu_offset);
    fits = fits && add_region(&end, r->rows[LT_ROWS_TOKENS], p->delta_floats * sizeof(float), &r->delta_offset);
    fits = fits && add_region(&end, 1, lt_gpu_partial_bytes(r), &r->partial_offset);
    fits = fits && add_region(&end, 1, p->device->multiply ? p->scratch_weight_bytes : 0, &r->weight_offset);
    fits = fits && add_region(&end, result_rows, r->result_width * sizeof(float), &r->result_offset);
    for (int i = 0; i < 2; i++) fits = fits && add_region(&end, 1, lt_gpu_top_bytes(r), &r->top_offset[i]);
    if (!fits) return lt_no_memory(r->err, SIZE_MAX, "the workspace");
    if (end <= p->workspace_bytes) return LATTICE_OK;
    p->device->release(p->device, p->workspace);
    p->workspace = NULL;
    p->workspace_bytes = 0;
    LT_TRY(p->device->allocate(p->device, end, &p->workspace, r->err));
    p->workspace_bytes = end;
    return LATTICE_OK;
}

/* An operation and those behind it that are joined with it; *n is how many they are, or 0. */
static lattice_status run_joined(const run *r, const lt_op *op, lt_gpu_join join, size_t *n)
{
    bool done;
    if (join != LT_GPU_JOIN_NORM) return lt_gpu_step(r, op, join, n);
    LT_TRY(lt_gpu_few_rows(r, op, op + 1, &done));
    *n = done ? 2 : 0;
    return LATTICE_OK;
}

static lattice_status run_range(const run *r, size_t begin, size_t end, const lt_run_hooks *hooks)
{
    for (size_t i = begin; i < end; i++) {
        const lt_op *op = &r->plan->ops[i];
        if (hooks && hooks->cancel && __atomic_load_n(hooks->cancel, __ATOMIC_RELAXED))
            return lt_fail(r->err, LATTICE_ERR_CANCELLED, "cancelled");
        if (hooks && hooks->fail_at_op > 0 && (size_t)hooks->fail_at_op - 1 == i)
            return lt_fail(r->err, LATTICE_ERR_DEVICE, "%s: op %zu (%s) failed: injected fault", r->device->driver, i,
                           lt_op_name(op->code));
        bool hooked = hooks && (hooks->profile || hooks->fail_at_op > 0);
        size_t joined = 0;
        if (r->p->joins[i] != LT_GPU_ALONE && !hooked && !r->batch->trace) LT_TRY(run_joined(r, op, r->p->joins[i], &joined));
        if (joined > 0) {
            i += joined - 1;
            continue;
        }
        double start = hooks && hooks->profile ? lt_clock_seconds() : 0;
        LT_TRY(run_op(r, op));
        if (hooks && hooks->profile) {
            LT_TRY(r->device->finish(r->device, r->err));
            hooks->profile[i].seconds += lt_clock_seconds() - start;
            hooks->profile[i].flop += lt_op_flop(r->plan, op, r->batch);
            hooks->profile[i].bytes += lt_op_bytes(r->plan, op, r->batch);
        }
        if (op->trace > 0 && r->batch->trace) LT_TRY(download_trace(r, op));
    }
    return LATTICE_OK;
}

/* ------------------------------------------------------------------ recordings */

enum { RECORDED_TOKENS = 256 };

static void make_key(const run *r, lt_tail_kind kind, size_t key[LT_GPU_KEY])
{
    const lt_program *p = r->p;
    const lt_batch *b = r->batch;
    const size_t all[LT_GPU_KEY] = { (size_t)kind + 1,
                                     b->n_tokens,
                                     b->n_seqs,
                                     b->n_out,
                                     b->pooling,
                                     b->type_ids != NULL,
                                     b->states != NULL,
                                     r->at.n_tiles,
                                     r->splits,
                                     r->n_top,
                                     (size_t)(uintptr_t)p->workspace,
                                     (size_t)(uintptr_t)p->tables,
                                     (size_t)(uintptr_t)p->blocks.memory,
                                     (size_t)(uintptr_t)p->memories.memory };
    memcpy(key, all, sizeof all);
}

static lattice_status run_both(const run *r, lt_tail_kind kind, size_t first, size_t end, const lt_run_hooks *hooks)
{
    LT_TRY(run_range(r, 0, r->plan->n_body, hooks));
    LT_TRY(run_range(r, first, end, hooks));
    return r->n_top > 0 ? lt_gpu_top(r, r->plan->tails[kind].result) : LATTICE_OK;
}

static lattice_status record(const run *r, lt_tail_kind kind, size_t first, size_t end, const size_t key[LT_GPU_KEY])
{
    lt_program *p = r->p;
    lt_gpu_device *d = r->device;
    lt_gpu_recording *slot = &p->recordings[p->next_recording];
    if (slot->recording) d->recording_free(d, slot->recording);
    slot->recording = NULL;
    LT_TRY(d->record_begin(d, r->err));
    p->is_recording = true;
    lattice_status status = run_both(r, kind, first, end, NULL);
    p->is_recording = false;
    if (status != LATTICE_OK) {
        d->record_end(d, NULL, NULL);
        return status;
    }
    LT_TRY(d->record_end(d, &slot->recording, r->err));
    memcpy(slot->key, key, sizeof slot->key);
    p->next_recording = (p->next_recording + 1) % LT_GPU_RECORDINGS;
    return d->replay(d, slot->recording, r->err);
}

/* Body and tail: replayed, recorded, or launch by launch. */
static lattice_status run_ops(const run *r, lt_tail_kind kind, size_t first, size_t end, const lt_run_hooks *hooks)
{
    lt_program *p = r->p;
    bool hooked = hooks && (hooks->profile || hooks->fail_at_op > 0);
    if (!r->device->record_begin || hooked || r->batch->trace || r->batch->n_tokens > RECORDED_TOKENS)
        return run_both(r, kind, first, end, hooks);
    if (hooks && hooks->cancel && __atomic_load_n(hooks->cancel, __ATOMIC_RELAXED))
        return lt_fail(r->err, LATTICE_ERR_CANCELLED, "cancelled");
    size_t key[LT_GPU_KEY];
    make_key(r, kind, key);
    for (size_t i = 0; i < LT_GPU_RECORDINGS; i++) {
        if (p->recordings[i].recording && memcmp(p->recordings[i].key, key, sizeof key) == 0)
            return r->device->replay(r->device, p->recordings[i].recording, r->err);
    }
    bool again = memcmp(p->last_key, key, sizeof key) == 0;
    memcpy(p->last_key, key, sizeof key);
    return again ? record(r, kind, first, end, key) : run_both(r, kind, first, end, hooks);
}

static lattice_status download_result(const run *r, int result, bool pooled, float *out)
{
    size_t rows = r->rows[r->plan->values[result].rows], width = r->result_width;
    lt_gpu_ref from = scratch(r, r->result_offset);
    if (rows == 0) return r->device->finish(r->device, r->err);
    if (!pooled) {
        view v = value_view(r, result);
        if (v.type == LT_GPU_F32 && (v.ld == width || rows == 1))
            from = v.ref;
        else
            LT_TRY(lt_gpu_convert_rows(r, v, NULL, (view){ from, width, LT_GPU_F32 }, rows, width));
    }
    return r->device->download(r->device, out, from, rows * width * sizeof(float), r->err);
}

static lattice_status run_locked(run *r, lt_tail_kind kind, float *out, const lt_run_hooks *hooks)
{
    const lt_tail *tail = &r->plan->tails[kind];
    size_t first = (size_t)tail->first_op, end = first + (size_t)tail->n_ops;
    bool pooled = tail->n_ops > 0 && r->plan->ops[end - 1].code == LT_OP_POOL;
    r->rows[LT_ROWS_TOKENS] = r->batch->n_tokens;
    r->rows[LT_ROWS_SEQS] = r->batch->n_seqs;
    r->rows[LT_ROWS_OUT] = r->batch->n_out;
    r->result_width = lt_tail_width(r->plan, kind, r->batch->pooling);
    r->n_top = lt_gpu_top_wanted(r, kind);
    LT_TRY(lt_gpu_top_keep(r->p, r->err));
    LT_TRY(place_workspace(r, r->rows[r->plan->values[tail->result].rows]));
    LT_TRY(upload_tables(r));
    LT_TRY(fill_rotary(r));
    LT_TRY(run_ops(r, kind, first, end, hooks));
    return r->n_top > 0 ? lt_gpu_top_download(r, tail->result) : download_result(r, tail->result, pooled, out);
}

lattice_status lt_gpu_run(lt_program *p, const lt_batch *batch, lt_tail_kind tail, float *out, const lt_run_hooks *hooks,
                          lattice_error *err)
{
    LT_TRY(lt_batch_check(p->plan, batch, tail, p->max_tokens, p->max_seqs, err));
    run r = { .p = p, .plan = p->plan, .batch = batch, .device = p->device, .err = err };
    pthread_mutex_lock(&p->lock);
    lattice_status status = lt_gpu_states_enter(p, batch, err);
    if (status == LATTICE_OK) {
        status = run_locked(&r, tail, out, hooks);
        lt_states_leave(batch, status == LATTICE_OK);
    }
    pthread_mutex_unlock(&p->lock);
    return status;
}
