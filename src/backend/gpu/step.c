/* Runs of one token a sequence, decoding: what kernels/step.k makes one launch of. */
#include "backend/gpu/run.h"

/* Splits of a sequence's keys: groups that keep a large device at work, and what step_combine may read. */
enum { BUSY_GROUPS = 256, MAX_SPLITS = 128, UNIT = 32 /* keys: as in kernels/step.k */ };

bool lt_gpu_is_step(const lt_batch *batch)
{
    for (size_t s = 0; s < batch->n_seqs; s++) {
        if (batch->seq_starts[s + 1] - batch->seq_starts[s] != 1) return false;
    }
    return batch->n_seqs > 0;
}

/* A group's heads, as kernels/attention.k decides them. */
static size_t group_heads(const run *r)
{
    size_t queries, heads;
    lt_gpu_attention_tile(&r->p->shape, &queries, &heads);
    return heads;
}

/* A power of two, so that recordings serve many lengths. */
size_t lt_gpu_splits(const run *r)
{
    const lt_batch *b = r->batch;
    size_t most = 0, splits = 1;
    if (!b->states || !r->p->shape.decodes || r->p->block_numbers == 0 || !lt_gpu_is_step(b)) return 0;
    for (size_t s = 0; s < b->n_seqs; s++) {
        if (b->past_lens[s] > most) most = b->past_lens[s];
    }
    size_t groups = b->n_seqs * r->p->shape.n_heads / group_heads(r);
    while (splits < most / UNIT + 1 && splits * groups < BUSY_GROUPS && splits < MAX_SPLITS) splits *= 2;
    return splits;
}

size_t lt_gpu_partial_bytes(const run *r)
{
    const lt_gpu_shape *s = &r->p->shape;
    return r->batch->n_seqs * s->n_heads * r->splits * (s->head_dim + 4) * sizeof(float);
}

static lattice_status delta_step(const run *r, const lt_op *op)
{
    const lt_program *p = r->p;
    const lt_op *delta = op + 1, *norm = op + 2;
    const lt_weight *taps = &r->plan->weights[op->weight[0]];
    view x = value_view(r, op->in[0].value), y = value_view(r, norm->out[0]);
    lt_gpu_ref memory = { p->memories.memory ? p->memories.memory : p->workspace, 0 };
    delta_step_args a = {
        .n_heads = u32(delta->n_heads),
        .n_key_heads = u32(delta->n_kv_heads),
        .dv = u32(delta->value_dim),
        .taps = u32(taps->cols),
        .width = u32(taps->rows),
        .ld_x = u32(x.ld),
        .ld_y = u32(y.ld),
        .x_type = x.type,
        .y_type = y.type,
        .q_column = u32(delta->in[0].column),
        .k_column = u32(delta->in[1].column),
        .v_column = u32(delta->in[2].column),
        .q_stride = u32(delta->in[0].head_stride),
        .k_stride = u32(delta->in[1].head_stride),
        .v_stride = u32(delta->in[2].head_stride),
        .conv_column = u32(op->in[0].column),
        .gates_column = u32(delta->in[3].column),
        .z_column = u32(norm->in[1].column),
        .z_stride = u32(norm->in[1].head_stride),
        .memory_size = u32(p->memory_floats),
        .conv_offset = u32(p->state_offset[op - r->plan->ops]),
        .offset = u32(p->state_offset[delta - r->plan->ops]),
        .eps = norm->eps,
    };
    return LAUNCH(delta_step, a, r->rows[LT_ROWS_SEQS] * delta->n_heads, 1, 4 * lt_gpu_round(delta->value_dim, 32), x.ref,
                  weight_ref(r, op->weight[0]), weight_ref(r, delta->weight[0]), weight_ref(r, delta->weight[1]),
                  weight_ref(r, norm->weight[0]), table(r, r->at.recurrent_seqs), memory, y.ref);
}

static lattice_status step_attention(const run *r, const lt_op *op, const lt_op *gate)
{
    const lt_program *p = r->p;
    const lt_op *attention = op + 1;
    view x = value_view(r, op->in[0].value), q = operand_view(r, &op->in[0]);
    size_t half = op->rotary_dim / 2, seqs = r->rows[LT_ROWS_SEQS];
    lt_gpu_ref partial = scratch(r, r->partial_offset);
    step_args a = {
        .n_heads = u32(op->n_heads),
        .ld = u32(x.ld),
        .q_stride = u32(op->in[0].head_stride),
        .k_stride = u32(op->in[1].head_stride),
        .v_stride = u32(attention->in[2].head_stride),
        .q_column = u32(op->in[0].column),
        .k_column = u32(op->in[1].column),
        .v_column = u32(attention->in[2].column),
        .type = x.type,
        .block_size = u32(p->block_numbers),
        .offset = u32(p->state_offset[attention - r->plan->ops]),
        .v_offset = u32(op->n_kv_heads * LT_BLOCK_ROWS * op->head_dim),
        .sines = u32(op->max_positions * half),
        .splits = u32(r->splits),
        .eps = op->eps,
        .scale = attention->scale,
    };
    size_t threads = op->head_dim <= 256 ? 256 : 128;
    LT_TRY(LAUNCH(step_attention, a, seqs * op->n_heads / group_heads(r), r->splits, threads, x.ref, weight_ref(r, op->weight[0]),
                  weight_ref(r, op->weight[1]), ((lt_gpu_ref){ p->rotary, 0 }), table(r, r->at.attention_seqs),
                  table(r, r->at.blocks), ((lt_gpu_ref){ p->blocks.memory, 0 }), partial));
    view z = gate ? operand_view(r, &gate->in[1]) : q, y = gate ? value_view(r, gate->out[0]) : q;
    combine_args c = {
        .n_heads = a.n_heads,
        .splits = a.splits,
        .ld_z = u32(z.ld),
        .ld_y = u32(y.ld),
        .z_stride = gate ? u32(gate->in[1].head_stride) : 0,
        .y_stride = gate ? u32(gate->head_dim) : a.q_stride,
        .z_type = z.type,
        .y_type = y.type,
        .has_gate = gate != NULL,
    };
    return LAUNCH(step_combine, c, seqs * op->n_heads, lt_gpu_ceil(op->head_dim, THREADS), THREADS, partial, z.ref, y.ref);
}

lattice_status lt_gpu_step(const run *r, const lt_op *op, lt_gpu_join join, size_t *n)
{
    *n = 0;
    if (join == LT_GPU_JOIN_DELTA && r->is_step) {
        *n = lt_gpu_join_span(join);
        return delta_step(r, op);
    }
    if ((join == LT_GPU_JOIN_ATTENTION || join == LT_GPU_JOIN_GATED) && r->splits > 0) {
        *n = lt_gpu_join_span(join);
        return step_attention(r, op, join == LT_GPU_JOIN_GATED ? op + 2 : NULL);
    }
    return LATTICE_OK;
}
