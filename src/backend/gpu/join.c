/* Operations that may be launched as one. The plan is searched once, when it is compiled; a run joins where its batch allows it.
 */
#include "backend/gpu/gpu.h"

/* Of delta_step, whose threads keep S and taps in registers: dk and dv, taps. */
enum { MAX_DELTA = 128, MAX_TAPS = 4 };

static size_t count_readers(const lt_plan *plan, int value)
{
    size_t n = value == plan->hidden;
    for (size_t i = 0; i < plan->n_ops; i++) {
        for (int k = 0; k < 4; k++) n += plan->ops[i].in[k].value == value;
    }
    return n;
}

static bool same_operand(const lt_operand *a, const lt_operand *b)
{
    return a->value == b->value && a->column == b->column && a->head_stride == b->head_stride;
}

/* An RMS norm whose only reader is the product behind it. */
static bool joins_norm(const lt_plan *plan, const lt_op *op)
{
    const lt_op *next = op + 1;
    return op->code == LT_OP_ADD_NORM && op->in[1].value == LT_NONE && op->out[0] != LT_NONE && op->out[1] == LT_NONE &&
           op->weight[1] == LT_NONE && next->code == LT_OP_LINEAR && next->in[0].value == op->out[0] && next->in[0].column == 0 &&
           plan->weights[next->weight[0]].cols == plan->values[op->out[0]].width && count_readers(plan, op->out[0]) == 1;
}

static bool joins_delta(const lt_plan *plan, const lt_op *op)
{
    const lt_op *delta = op + 1, *norm = op + 2;
    if (op->code != LT_OP_CONV || delta->code != LT_OP_GATED_DELTA || norm->code != LT_OP_GATED_NORM) return false;
    bool reads = count_readers(plan, op->out[0]) == 3 && count_readers(plan, delta->out[0]) == 1;
    for (int k = 0; k < 3; k++) reads = reads && delta->in[k].value == op->out[0];
    return reads && delta->in[3].value == op->in[0].value && norm->in[0].value == delta->out[0] && norm->in[0].column == 0 &&
           norm->in[0].head_stride == delta->value_dim && norm->in[1].value == op->in[0].value &&
           norm->n_heads == delta->n_heads && norm->head_dim == delta->value_dim && delta->value_dim <= MAX_DELTA &&
           delta->head_dim <= MAX_DELTA && plan->weights[op->weight[0]].cols <= MAX_TAPS;
}

static bool joins_attention(const lt_plan *plan, const lt_op *op, size_t readers)
{
    const lt_op *attention = op + 1;
    return op->code == LT_OP_QK_NORM_ROPE && attention->code == LT_OP_ATTENTION && attention->causal &&
           same_operand(&op->in[0], &attention->in[0]) && same_operand(&op->in[1], &attention->in[1]) &&
           op->in[1].value == op->in[0].value && attention->in[2].value == op->in[0].value &&
           attention->out[0] == op->in[0].value && count_readers(plan, op->in[0].value) == 5 + readers;
}

static lt_gpu_join find(const lt_program *p, size_t i)
{
    const lt_plan *plan = p->plan;
    const lt_op *op = &plan->ops[i];
    size_t left = plan->n_body - i;
    if (left >= 2 && joins_norm(plan, op)) return LT_GPU_JOIN_NORM;
    if (!p->shape.decodes) return LT_GPU_ALONE;
    if (left >= 3 && joins_delta(plan, op)) return LT_GPU_JOIN_DELTA;
    if (left >= 3 && joins_attention(plan, op, 2) && op[2].code == LT_OP_GATE && same_operand(&op[2].in[0], &op[1].in[0]) &&
        op[2].in[1].value == op->in[0].value)
        return LT_GPU_JOIN_GATED;
    if (left >= 2 && joins_attention(plan, op, 1)) return LT_GPU_JOIN_ATTENTION;
    return LT_GPU_ALONE;
}

lattice_status lt_gpu_find_joins(lt_program *p, lattice_error *err)
{
    const lt_plan *plan = p->plan;
    p->joins = lt_alloc_zero(&p->runtime->mem, (plan->n_ops + 1) * sizeof *p->joins);
    if (!p->joins) return lt_no_memory(err, plan->n_ops * sizeof *p->joins, "a compiled plan");
    for (size_t i = 0; i < plan->n_body; i++) p->joins[i] = find(p, i);
    return LATTICE_OK;
}
