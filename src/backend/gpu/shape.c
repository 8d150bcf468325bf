/* Admissible shapes. */
#include "backend/gpu/shape.h"

#include <stdio.h>

/* Past these the tiles of fused_attention would need more than 32 KiB of threadgroup memory, or a simdgroup its registers. */
enum { MAX_HEAD_DIM = 1024, MAX_DELTA_DK = 512 };

static bool refuse(char reason[LT_GPU_REASON], const char *format, size_t a, size_t b)
{
    snprintf(reason, LT_GPU_REASON, format, a, b);
    return false;
}

bool lt_gpu_shape_admits(const lt_gpu_shape *s, char reason[LT_GPU_REASON])
{
    reason[0] = '\0';
    if (s->head_dim == 0) return refuse(reason, "head_dim is %zu", s->head_dim, 0);
    if (s->head_dim % 4) return refuse(reason, "head_dim %zu is not divisible by 4", s->head_dim, 0);
    if (s->head_dim > MAX_HEAD_DIM) return refuse(reason, "head_dim %zu is over %zu", s->head_dim, MAX_HEAD_DIM);
    if (s->n_heads == 0 || s->n_kv_heads == 0)
        return refuse(reason, "there are %zu query heads and %zu key/value heads", s->n_heads, s->n_kv_heads);
    if (s->n_heads % s->n_kv_heads)
        return refuse(reason, "%zu query heads do not divide into %zu key/value heads", s->n_heads, s->n_kv_heads);
    if (s->rotary_dim % 2 || s->rotary_dim > s->head_dim)
        return refuse(reason, "%zu rotary dimensions are not pairs within a head of %zu", s->rotary_dim, s->head_dim);
    if (s->delta_dk > MAX_DELTA_DK) return refuse(reason, "linear_key_head_dim %zu is over %zu", s->delta_dk, MAX_DELTA_DK);
    return true;
}

void lt_gpu_attention_tile(const lt_gpu_shape *s, size_t *queries, size_t *heads)
{
    size_t groups = s->n_heads / s->n_kv_heads, per_lane = (s->head_dim + 31) / 32;
    *queries = s->head_dim <= 256 ? 8 : s->head_dim <= 512 ? 4 : 2;
    *heads = groups * per_lane <= 64 && groups <= 8 ? groups : groups % 4 == 0 && per_lane <= 16 ? 4 : 1;
}

/* Sets *field, or compares it. */
static bool agree(size_t *field, size_t value)
{
    if (*field == 0) *field = value;
    return *field == value;
}

lattice_status lt_gpu_shape_of(const lt_plan *plan, lt_gpu_shape *s, lattice_error *err)
{
    *s = (lt_gpu_shape){ .decodes = plan->tails[LT_TAIL_LOGITS].present };
    for (size_t i = 0; i < plan->n_ops; i++) {
        const lt_op *op = &plan->ops[i];
        bool same = true;
        if (op->code == LT_OP_ATTENTION || op->code == LT_OP_QK_NORM_ROPE) {
            same = agree(&s->n_heads, op->n_heads) && agree(&s->n_kv_heads, op->n_kv_heads) && agree(&s->head_dim, op->head_dim);
            if (op->code == LT_OP_QK_NORM_ROPE) same = same && agree(&s->rotary_dim, op->rotary_dim);
        }
        if (op->code == LT_OP_GATED_DELTA) same = agree(&s->delta_dk, op->head_dim);
        if (!same)
            return lt_fail(err, LATTICE_ERR_UNSUPPORTED, "op %zu (%s): its heads differ from those of other layers", i,
                           lt_op_name(op->code));
    }
    return LATTICE_OK;
}
