/* A forward pass as a recorded program.
 *
 * When a model is opened its family records operations over named values whose row count is symbolic; a backend compiles the
 * plan once and runs it for each batch. The body is common; a tail, chosen per run, turns the last hidden states into what the
 * caller wants. Values are float32 matrices: one row a token, a sequence, or a selected output row.
 *
 *     int x   = lt_plan_value(plan, LT_ROWS_TOKENS, 384, "x");
 *     int qkv = lt_plan_value(plan, LT_ROWS_TOKENS, 1152, "qkv");
 *     lt_plan_op(plan, (lt_op){ .code = LT_OP_LINEAR, .in = { lt_all(x) }, .out = { qkv, LT_NONE }, .weight = { w_qkv, b_qkv, … }
 * });
 */
#ifndef LT_BACKEND_PLAN_H
#define LT_BACKEND_PLAN_H

#include "base/memory.h"
#include "format/checkpoint.h"
#include "format/config.h"

#define LT_NONE (-1)

/* X(name, domain, what it computes). Domain ROW: each output row depends on the same row of the inputs only, so that a run of
 * such operations goes through the cache tile of rows by tile of rows. SEQ: sees whole sequences. */
#define LT_OP_LIST(X)                                                                                                            \
    X(EMBED, ROW, "embed") /* out0 = word[id] + position[pos + offset] + type[type_id];  w0 word, w1 position, w2 type */        \
    X(ADD_NORM, ROW,                                                                                                             \
      "add_norm")            /* out0 = norm(in0 + in1), out1 = in0 + in1 (either may be none);  w0 gain, w1 bias (layer norm) */ \
    X(LINEAR, ROW, "linear") /* out0 = act(in0 W^T + b) + in1;  w0 W [out, in], w1 b [out] or none, in1 residual or none;        \
                                glu: W is gate over up [2 out, in], no b: out0 = act(in0 gate^T) * (in0 up^T) + in1 */           \
    X(QK_NORM_ROPE, ROW, "qk_norm_rope") /* in place, per head: in0 = rope(rms(in0) w0), in1 = rope(rms(in1) w1);  in0 q and     \
                                            in1 k are views of out0, w0 and w1 gains [head_dim] */                               \
    X(ATTENTION, SEQ, "attention")       /* out0 = softmax(scale in0 in1^T) in2 per sequence and head: q, k, v views;            \
                                            out0 of in0's value: in the place of q */                                            \
    X(CONV, SEQ, "conv") /* out0 = silu(causal depthwise convolution of in0);  w0 [width, taps], the last tap for the row        \
                            itself */                                                                                            \
    X(GATED_DELTA, SEQ, "gated_delta") /* out0 = gated delta rule per sequence and value head: in0 q, in1 k, in2 v are views of  \
                                          one value, in3 b then a, n_heads each;  w0 A_log, w1 dt_bias [n_heads] */                                                           \
    X(GATED_NORM, ROW, "gated_norm")   /* per head: out0 = rms(in0) w0 * silu(in1);  w0 [head_dim] */                            \
    X(GATE, ROW, "gate")               /* per head: out0 = in0 * sigmoid(in1);  in0 and in1 are views, out0 is dense */          \
    X(SELECT, ROW, "select")           /* out0[i] = in0[out_rows[i]];  TOKENS -> OUT */                                          \
    X(POOL, SEQ, "pool")               /* out0 = poolings of each sequence's rows, concatenated;  TOKENS -> SEQS */

typedef enum lt_opcode {
#define X(name, domain, text) LT_OP_##name,
    LT_OP_LIST(X)
#undef X
        LT_OP_COUNT
} lt_opcode;

typedef enum lt_domain { LT_DOMAIN_ROW, LT_DOMAIN_SEQ } lt_domain;

const char *lt_op_name(lt_opcode code);
lt_domain lt_op_domain(lt_opcode code);

typedef enum lt_rows { LT_ROWS_TOKENS, LT_ROWS_SEQS, LT_ROWS_OUT } lt_rows;

typedef struct lt_value {
    lt_rows rows;
    size_t width;     /* floats a row */
    const char *name; /* literal */
} lt_value;

/* What an operation reads: the columns of a value from `column` on; for attention, head h starts at column + h * head_stride. */
typedef struct lt_operand {
    int value; /* LT_NONE: not used */
    size_t column;
    size_t head_stride;
} lt_operand;

#define LT_NO_OPERAND ((lt_operand){ .value = LT_NONE })
static inline lt_operand lt_all(int value)
{
    return (lt_operand){ .value = value };
}

/* A weight is a list of row segments, each a tensor of the catalogue or some of its rows: joined operands (q‖k‖v) need no copy,
 * segments may lie in different shards, and two rows of an output matrix are a weight of their own. A vector (bias, gain) has
 * cols 1. */
typedef struct lt_segment {
    lt_checkpoint *checkpoint;
    const lt_tensor *tensor;
    size_t first_row, n_rows; /* both 0: all rows */
} lt_segment;

static inline size_t lt_segment_rows(const lt_segment *segment, size_t cols)
{
    return segment->n_rows ? segment->n_rows : segment->tensor->n_elements / cols;
}

#define LT_MAX_SEGMENTS 4

typedef struct lt_weight {
    size_t rows, cols;
    int n_segments;
    lt_segment segments[LT_MAX_SEGMENTS];
    lt_dtype dtype; /* of all segments */
    bool plus_one;  /* a gain that is stored as its difference from 1 */
} lt_weight;

typedef struct lt_op {
    lt_opcode code;
    lt_operand in[4];
    int out[2];    /* values */
    int weight[4]; /* weights */
    lt_activation activation;
    float eps;
    float scale; /* attention */
    bool glu;    /* linear */
    bool int8;   /* linear: its family bears weights and inputs in int8 by rows (format/int8.h), where that is asked for */
    size_t n_heads, n_kv_heads, head_dim;
    size_t value_dim;     /* gated_delta: n_heads value heads of value_dim, n_kv_heads key heads of head_dim */
    size_t rotary_dim;    /* qk_norm_rope: the first dimensions of a head, rotated in pairs (i, i + rotary_dim / 2) */
    double rope_theta;    /* by the angle position * rope_theta^(-2 i / rotary_dim) */
    size_t max_positions; /* qk_norm_rope: positions are below */
    bool causal;
    size_t position_offset; /* embed */
    bool type_zero;         /* embed: row 0 of the type table, whatever the batch's type_ids say */
    unsigned pooling;       /* pool: lattice_pooling bits when the batch gives none */
    int trace;              /* > 0: out0 is hidden state number trace - 1 of the trace */
} lt_op;

/* An op with every operand, output and weight set to none. */
lt_op lt_op_new(lt_opcode code);

typedef enum lt_tail_kind {
    LT_TAIL_TOKENS, /* [n_tokens, hidden]: token vectors */
    LT_TAIL_POOLED, /* [n_seqs, hidden * poolings] */
    LT_TAIL_SCORES, /* [n_out, n_labels]: classifier logits at the selected rows; of a language model those of a few tokens */
    LT_TAIL_LOGITS, /* [n_out, vocabulary] at the selected rows */
    LT_TAIL_COUNT
} lt_tail_kind;

typedef struct lt_tail {
    bool present;
    int first_op, n_ops; /* ops of the plan; the last one's out0 is the result. n_ops 0: the body's last hidden states */
    int result;          /* value */
} lt_tail;

typedef struct lt_plan {
    lt_arena arena;
    lt_value *values;
    size_t n_values, values_capacity;
    lt_weight *weights;
    size_t n_weights, weights_capacity;
    lt_op *ops;
    size_t n_ops, ops_capacity;
    size_t n_body; /* ops [0, n_body) are the body */
    int hidden;    /* the body's last hidden states */
    lt_tail tails[LT_TAIL_COUNT];
    size_t n_trace; /* hidden states of a trace (layers + 1) */
    bool failed;    /* memory ran out while recording */
} lt_plan;

void lt_plan_init(lt_plan *plan, const lattice_allocator *mem);
void lt_plan_free(lt_plan *plan);
/* The recorders return an index, or LT_NONE after memory ran out (plan->failed). */
int lt_plan_value(lt_plan *plan, lt_rows rows, size_t width, const char *name);
int lt_plan_weight(lt_plan *plan, const lt_weight *weight);
int lt_plan_op(lt_plan *plan, lt_op op);
/* Ends the body at the ops recorded so far; `hidden` is its result. */
void lt_plan_end_body(lt_plan *plan, int hidden);
/* Declares the ops recorded since the body's or the last tail's end as the tail `kind` with the result `value`. */
void lt_plan_end_tail(lt_plan *plan, lt_tail_kind kind, int value);
/* Checks shapes and references of every op: an inconsistency is LATTICE_ERR_INTERNAL naming the op. */
lattice_status lt_plan_check(const lt_plan *plan, lattice_error *err);
/* One line an op, for `inspect --plan`. */
void lt_plan_print(const lt_plan *plan, lt_buf *out);

/* Floating-point operations of an op for a batch (attention: sum over sequences), for profiling. */
struct lt_batch;
double lt_op_flop(const lt_plan *plan, const lt_op *op, const struct lt_batch *batch);
/* Bytes that an op must at least move for a batch: its weights as stored and its operands and outputs once each. */
double lt_op_bytes(const lt_plan *plan, const lt_op *op, const struct lt_batch *batch);

/* A packed batch: all tokens in a row, nothing padded. */
/* A token and its logit. */
typedef struct lt_candidate {
    float logit;
    uint32_t id;
} lt_candidate;

enum { LT_TOP_MOST = 32 };

/* The likeliest tokens of a row of logits: the largest first, equal ones by id. */
typedef struct lt_top {
    size_t n;    /* 0: they were not looked for, and the row is there itself */
    bool finite; /* all of the row */
    lt_candidate list[LT_TOP_MOST];
} lt_top;

typedef struct lt_batch {
    size_t n_tokens, n_seqs, n_out;
    const uint32_t *ids;       /* [n_tokens] */
    const uint32_t *positions; /* [n_tokens] within its sequence, from 0, or from the rows of its state */
    const uint32_t *type_ids;  /* [n_tokens], or NULL: all 0 */
    const size_t *seq_starts;  /* [n_seqs + 1] */
    const size_t *out_rows;    /* [n_out] token rows to select */
    /* Both or neither: the state that each sequence goes on from, and its rows; positions go on from there. Neither: keys and
     * values come from the batch itself and are not kept. */
    const size_t *past_lens;        /* [n_seqs] */
    struct lt_state *const *states; /* [n_seqs] */
    unsigned pooling;               /* 0: the plan's */
    const size_t *pool_skip;        /* [n_seqs] first tokens that pooling leaves out, or NULL */
    /* For logits: the n_top (up to LT_TOP_MOST) likeliest tokens of each row of the result are enough. A backend that has `fetch`
     * may write them to tops[n_out], whose n are 0 before, and keep the rows to itself. NULL: they are not. */
    lt_top *tops;
    size_t n_top;
    float *trace; /* [plan->n_trace][n_tokens][hidden] to fill, or NULL */
} lt_batch;

/* Everything that kernels index with: that the sequences tile the batch, that ids, positions and rows lie inside their tables,
 * that the plan has this tail and the batch is within the limits. */
lattice_status lt_batch_check(const lt_plan *plan, const lt_batch *batch, lt_tail_kind tail, size_t max_tokens, size_t max_seqs,
                              lattice_error *err);

/* Floats a result row of this tail has for this batch. */
size_t lt_tail_width(const lt_plan *plan, lt_tail_kind kind, unsigned pooling);

#endif
