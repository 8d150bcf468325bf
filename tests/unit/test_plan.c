/* Plans: what the recorders keep, and that a plan which does not hold together is refused, naming the op. */
#include "support.h"

#include "backend/backend.h"
#include "backend/cpu/kernels.h"

/* Tensors of no file: lt_plan_check looks at types and shapes only. */
static lt_tensor matrix = { .dtype = LT_F32, .rank = 2, .shape = { 6, 4 }, .n_elements = 24, .name = { "w", 1 } };
static lt_tensor table = { .dtype = LT_F32, .rank = 2, .shape = { 10, 4 }, .n_elements = 40, .name = { "e", 1 } };
static lt_tensor gain = { .dtype = LT_F32, .rank = 1, .shape = { 4 }, .n_elements = 4, .name = { "g", 1 } };
static lt_tensor pair = { .dtype = LT_F32, .rank = 1, .shape = { 2 }, .n_elements = 2, .name = { "p", 1 } };
static char somewhere;
#define CHECKPOINT ((lt_checkpoint *)&somewhere)

static int add_weight(lt_plan *plan, const lt_tensor *tensor, size_t rows, size_t cols)
{
    lt_weight w = { .rows = rows,
                    .cols = cols,
                    .n_segments = 1,
                    .segments = { { .checkpoint = CHECKPOINT, .tensor = tensor } },
                    .dtype = tensor->dtype };
    return lt_plan_weight(plan, &w);
}

/* The ops of the small plan below, to be changed by a test before it is checked. */
enum { EMBED, NORM, QKV, ATTENTION, N_BODY, POOL = N_BODY, SELECT };
enum { E, X, Q, A, POOLED, SELECTED };

/* e = embed; x = norm(e); q = x Wᵀ [6]; a = attention over q, one head of 2; tails: pool x (hidden) and select. */
static void small_plan(lt_plan *plan, const lattice_allocator *mem)
{
    lt_plan_init(plan, mem);
    int w_table = add_weight(plan, &table, 10, 4), w_gain = add_weight(plan, &gain, 4, 1), w = add_weight(plan, &matrix, 6, 4);
    int e = lt_plan_value(plan, LT_ROWS_TOKENS, 4, "e"), x = lt_plan_value(plan, LT_ROWS_TOKENS, 4, "x");
    int q = lt_plan_value(plan, LT_ROWS_TOKENS, 6, "q"), a = lt_plan_value(plan, LT_ROWS_TOKENS, 2, "a");
    plan->n_trace = 1;
    lt_op op = lt_op_new(LT_OP_EMBED);
    op.weight[0] = w_table;
    op.out[0] = e;
    lt_plan_op(plan, op);
    op = lt_op_new(LT_OP_ADD_NORM);
    op.in[0] = lt_all(e);
    op.weight[0] = w_gain;
    op.out[0] = x;
    op.trace = 1;
    lt_plan_op(plan, op);
    op = lt_op_new(LT_OP_LINEAR);
    op.in[0] = lt_all(x);
    op.weight[0] = w;
    op.out[0] = q;
    lt_plan_op(plan, op);
    op = lt_op_new(LT_OP_ATTENTION);
    for (size_t i = 0; i < 3; i++) op.in[i] = (lt_operand){ .value = q, .column = 2 * i, .head_stride = 2 };
    op.n_heads = op.n_kv_heads = 1;
    op.head_dim = 2;
    op.out[0] = a;
    lt_plan_op(plan, op);
    lt_plan_end_body(plan, x);
    lt_plan_end_tail(plan, LT_TAIL_TOKENS, x);
    op = lt_op_new(LT_OP_POOL);
    op.in[0] = lt_all(x);
    op.pooling = LATTICE_POOLING_MEAN;
    op.out[0] = lt_plan_value(plan, LT_ROWS_SEQS, 4, "pooled");
    lt_plan_op(plan, op);
    lt_plan_end_tail(plan, LT_TAIL_POOLED, op.out[0]);
    op = lt_op_new(LT_OP_SELECT);
    op.in[0] = lt_all(x);
    op.out[0] = lt_plan_value(plan, LT_ROWS_OUT, 4, "selected");
    lt_plan_op(plan, op);
    lt_plan_end_tail(plan, LT_TAIL_SCORES, op.out[0]);
}

static void whole_plan_is_accepted(void **state)
{
    (void)state;
    lattice_error err;
    lt_plan plan;
    small_plan(&plan, &lt_malloc_allocator);
    assert_ok_err(lt_plan_check(&plan, &err), &err);
    assert_int_equal(plan.n_body, N_BODY);
    assert_int_equal(plan.tails[LT_TAIL_TOKENS].n_ops, 0);
    assert_int_equal(plan.tails[LT_TAIL_POOLED].first_op, POOL);
    assert_int_equal(plan.tails[LT_TAIL_SCORES].first_op, SELECT);
    assert_int_equal(plan.tails[LT_TAIL_SCORES].n_ops, 1);
    lt_plan_free(&plan);
}

static void tail_width_counts_the_poolings(void **state)
{
    (void)state;
    lt_plan plan;
    small_plan(&plan, &lt_malloc_allocator);
    assert_int_equal(lt_tail_width(&plan, LT_TAIL_POOLED, 0), 4);
    assert_int_equal(lt_tail_width(&plan, LT_TAIL_POOLED, LATTICE_POOLING_MAX), 4);
    assert_int_equal(lt_tail_width(&plan, LT_TAIL_POOLED, LATTICE_POOLING_MAX | LATTICE_POOLING_CLS | LATTICE_POOLING_LASTTOKEN),
                     12);
    assert_int_equal(lt_tail_width(&plan, LT_TAIL_TOKENS, 63), 4);
    plan.tails[LT_TAIL_SCORES].present = false;
    assert_int_equal(lt_tail_width(&plan, LT_TAIL_SCORES, 0), 0);
    lt_plan_free(&plan);
}

static void work_is_counted_from_shapes(void **state)
{
    (void)state;
    lt_plan plan;
    small_plan(&plan, &lt_malloc_allocator);
    size_t starts[3] = { 0, 3, 8 };
    lt_batch batch = { .n_tokens = 8, .n_seqs = 2, .n_out = 2, .seq_starts = starts };
    assert_true(lt_op_flop(&plan, &plan.ops[QKV], &batch) == 2 * 8 * 6 * 4);
    assert_true(lt_op_flop(&plan, &plan.ops[ATTENTION], &batch) == 4 * 2 * (9 + 25));
    plan.ops[ATTENTION].causal = true;
    assert_true(lt_op_flop(&plan, &plan.ops[ATTENTION], &batch) == 4 * 2 * (6 + 15));
    assert_true(lt_op_bytes(&plan, &plan.ops[QKV], &batch) == 4 * (8 * 6 + 8 * 4 + 6 * 4));
    assert_true(lt_op_bytes(&plan, &plan.ops[EMBED], &batch) == 4 * (8 * 4 + 8 * 4));
    lt_plan_free(&plan);
}

static void print_shows_one_line_an_op(void **state)
{
    (void)state;
    lt_plan plan;
    lt_buf text;
    small_plan(&plan, &lt_malloc_allocator);
    lt_buf_init(&text, &lt_malloc_allocator);
    lt_plan_print(&plan, &text);
    assert_false(text.failed);
    assert_non_null(strstr(text.data, "  2  %2:q[tokens,6] = linear(%1:x[tokens,4], w:F32[6,4])\n"));
    assert_non_null(strstr(text.data, "attention(%2:q[tokens,6], %2:q[tokens,6]+2, %2:q[tokens,6]+4) heads=1/1x2\n"));
    assert_non_null(strstr(text.data, "tail pooled:\n  4  %4:pooled[seqs,4] = pool(%1:x[tokens,4]) pooling=4\n"));
    lt_buf_free(&text);
    lt_plan_free(&plan);
}

/* e = embed; qkv = e Wᵀ [6], q and k rotated and attention in the place of q; x = act(e gateᵀ) ⊙ e upᵀ [3]; tail: rows 2 and 5 of
 * the table as an output matrix. */
enum { ROPE = 2, GLU = 4, D_BODY };

static void decoder_plan(lt_plan *plan)
{
    lt_plan_init(plan, &lt_malloc_allocator);
    int w_table = add_weight(plan, &table, 10, 4), w = add_weight(plan, &matrix, 6, 4), w_gain = add_weight(plan, &pair, 2, 1);
    int e = lt_plan_value(plan, LT_ROWS_TOKENS, 4, "e"), qkv = lt_plan_value(plan, LT_ROWS_TOKENS, 6, "qkv");
    lt_op op = lt_op_new(LT_OP_EMBED);
    op.weight[0] = w_table;
    op.out[0] = e;
    lt_plan_op(plan, op);
    op = lt_op_new(LT_OP_LINEAR);
    op.in[0] = lt_all(e);
    op.weight[0] = w;
    op.out[0] = qkv;
    lt_plan_op(plan, op);
    op = lt_op_new(LT_OP_QK_NORM_ROPE);
    op.in[0] = lt_all(qkv);
    op.in[1] = (lt_operand){ .value = qkv, .column = 2 };
    op.weight[0] = op.weight[1] = w_gain;
    op.out[0] = qkv;
    op.n_heads = op.n_kv_heads = 1;
    op.head_dim = op.rotary_dim = 2;
    op.rope_theta = 100;
    op.max_positions = 50;
    lt_plan_op(plan, op);
    op = lt_op_new(LT_OP_ATTENTION);
    for (size_t i = 0; i < 3; i++) op.in[i] = (lt_operand){ .value = qkv, .column = 2 * i, .head_stride = 2 };
    op.n_heads = op.n_kv_heads = 1;
    op.head_dim = 2;
    op.out[0] = qkv;
    lt_plan_op(plan, op);
    op = lt_op_new(LT_OP_LINEAR);
    op.in[0] = lt_all(e);
    op.weight[0] = w;
    op.glu = true;
    op.out[0] = lt_plan_value(plan, LT_ROWS_TOKENS, 3, "x");
    lt_plan_op(plan, op);
    lt_plan_end_body(plan, e);
    op = lt_op_new(LT_OP_SELECT);
    op.in[0] = lt_all(e);
    op.out[0] = lt_plan_value(plan, LT_ROWS_OUT, 4, "selected");
    lt_plan_op(plan, op);
    lt_weight rows = { .rows = 2,
                       .cols = 4,
                       .n_segments = 2,
                       .segments = { { CHECKPOINT, &table, 2, 1 }, { CHECKPOINT, &table, 5, 1 } },
                       .dtype = LT_F32 };
    lt_op score = lt_op_new(LT_OP_LINEAR);
    score.in[0] = lt_all(op.out[0]);
    score.weight[0] = lt_plan_weight(plan, &rows);
    score.out[0] = lt_plan_value(plan, LT_ROWS_OUT, 2, "scores");
    lt_plan_op(plan, score);
    lt_plan_end_tail(plan, LT_TAIL_SCORES, score.out[0]);
}

static void decoder_plan_is_accepted_counted_and_printed(void **state)
{
    (void)state;
    lattice_error err;
    lt_plan plan;
    lt_buf text;
    decoder_plan(&plan);
    assert_ok_err(lt_plan_check(&plan, &err), &err);
    size_t starts[2] = { 0, 8 };
    lt_batch batch = { .n_tokens = 8, .n_seqs = 1, .n_out = 1, .seq_starts = starts };
    assert_true(lt_op_flop(&plan, &plan.ops[GLU], &batch) == 2 * 8 * 6 * 4);
    assert_true(lt_op_flop(&plan, &plan.ops[ROPE], &batch) == 8 * 8 * 4);
    assert_true(lt_op_bytes(&plan, &plan.ops[ROPE], &batch) == 8 * 8 * 5);
    lt_buf_init(&text, &lt_malloc_allocator);
    lt_plan_print(&plan, &text);
    assert_non_null(strstr(text.data, "= qk_norm_rope(%1:qkv[tokens,6], %1:qkv[tokens,6]+2, p:F32[2,1], p:F32[2,1]) "
                                      "heads=1/1x2 rotary=2 theta=100 eps=0\n"));
    assert_non_null(strstr(text.data, "%2:x[tokens,3] = linear(%0:e[tokens,4], w:F32[6,4]) glu\n"));
    assert_non_null(strstr(text.data, "e[2:3]|e[5:6]:F32[2,4]"));
    lt_buf_free(&text);
    lt_plan_free(&plan);
}

static void odd_rotary(lt_plan *p)
{
    p->ops[ROPE].rotary_dim = 1;
}
static void rotary_past_the_head(lt_plan *p)
{
    p->ops[ROPE].rotary_dim = 4;
}
static void no_angles(lt_plan *p)
{
    p->ops[ROPE].rope_theta = 0;
}
static void no_positions(lt_plan *p)
{
    p->ops[ROPE].max_positions = 0;
}
static void rope_without_heads(lt_plan *p)
{
    p->ops[ROPE].n_kv_heads = 0;
}
static void rope_head_past_the_columns(lt_plan *p)
{
    p->ops[ROPE].in[1].column = 5;
}
static void rope_of_another_value(lt_plan *p)
{
    p->ops[ROPE].in[1].value = 0;
}
static void rope_out_of_place(lt_plan *p)
{
    p->ops[ROPE].out[0] = lt_plan_value(p, LT_ROWS_TOKENS, 6, "elsewhere");
}
static void rope_without_gain(lt_plan *p)
{
    p->ops[ROPE].weight[1] = LT_NONE;
}
static void attention_in_place_of_another(lt_plan *p)
{
    p->ops[ROPE + 1].out[0] = 0;
}
static void gated_bias(lt_plan *p)
{
    p->ops[GLU].weight[1] = 2;
}
static void gate_and_up_of_odd_rows(lt_plan *p)
{
    p->values[p->ops[GLU].out[0]].width = 6;
}
static void rows_past_the_tensor(lt_plan *p)
{
    p->weights[3].segments[1].first_row = 10;
}
static void more_rows_than_the_tensor(lt_plan *p)
{
    p->weights[3].segments[1].n_rows = SIZE_MAX;
}

static void inconsistent_decoder_plans_are_refused(void **state)
{
    (void)state;
    static const struct {
        void (*change)(lt_plan *);
        const char *names;
    } cases[] = {
        { odd_rotary, "op 2 (qk_norm_rope)" },
        { rotary_past_the_head, "op 2 (qk_norm_rope)" },
        { no_angles, "op 2 (qk_norm_rope)" },
        { no_positions, "op 2 (qk_norm_rope)" },
        { rope_without_heads, "op 2 (qk_norm_rope)" },
        { rope_head_past_the_columns, "op 2 (qk_norm_rope)" },
        { rope_of_another_value, "op 2 (qk_norm_rope)" },
        { rope_out_of_place, "op 2 (qk_norm_rope)" },
        { rope_without_gain, "op 2 (qk_norm_rope)" },
        { attention_in_place_of_another, "op 3 (attention)" },
        { gated_bias, "op 4 (linear)" },
        { gate_and_up_of_odd_rows, "op 4 (linear)" },
        { rows_past_the_tensor, "weight 3" },
        { more_rows_than_the_tensor, "weight 3" },
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        lattice_error err;
        lt_plan plan;
        decoder_plan(&plan);
        cases[i].change(&plan);
        assert_int_equal(lt_plan_check(&plan, &err), LATTICE_ERR_INTERNAL);
        if (!strstr(err.message, cases[i].names)) fail_msg("case %zu: '%s' does not name '%s'", i, err.message, cases[i].names);
        lt_plan_free(&plan);
    }
}

/* ------------------------------------------------------------------ refusals */

static void embed_after_use(lt_plan *p)
{
    p->ops[NORM].in[0] = lt_all(Q);
}
static void written_twice(lt_plan *p)
{
    p->ops[QKV].out[0] = X;
}
static void no_input(lt_plan *p)
{
    p->ops[QKV].in[0] = LT_NO_OPERAND;
}
static void unknown_value(lt_plan *p)
{
    p->ops[QKV].in[0].value = 99;
}
static void column_past_the_end(lt_plan *p)
{
    p->ops[QKV].in[0].column = 1;
}
static void huge_column(lt_plan *p)
{
    p->ops[QKV].in[0].column = SIZE_MAX;
}
static void output_of_another_width(lt_plan *p)
{
    p->values[Q].width = 5;
}
static void bias_of_another_length(lt_plan *p)
{
    p->ops[QKV].weight[1] = 1;
}
static void residual_of_another_width(lt_plan *p)
{
    p->ops[QKV].in[1] = lt_all(E);
}
static void no_matrix(lt_plan *p)
{
    p->ops[QKV].weight[0] = LT_NONE;
}
static void unknown_matrix(lt_plan *p)
{
    p->ops[QKV].weight[0] = 3;
}
static void gain_of_another_length(lt_plan *p)
{
    p->ops[NORM].weight[0] = 2;
}
static void no_table(lt_plan *p)
{
    p->ops[EMBED].weight[0] = LT_NONE;
}
static void offset_past_the_table(lt_plan *p)
{
    p->ops[EMBED].weight[1] = 0;
    p->ops[EMBED].position_offset = 10;
}
static void heads_that_do_not_divide(lt_plan *p)
{
    p->ops[ATTENTION].n_kv_heads = 2;
}
static void no_heads(lt_plan *p)
{
    p->ops[ATTENTION].n_heads = p->ops[ATTENTION].n_kv_heads = 0;
}
static void head_past_the_columns(lt_plan *p)
{
    p->ops[ATTENTION].in[2].column = 5;
}
static void huge_head_stride(lt_plan *p)
{
    p->ops[ATTENTION].n_heads = 2;
    p->ops[ATTENTION].head_dim = 1;
    p->ops[ATTENTION].in[0].head_stride = SIZE_MAX;
}
static void two_outputs(lt_plan *p)
{
    p->ops[QKV].out[1] = A;
}
static void trace_past_the_end(lt_plan *p)
{
    p->ops[NORM].trace = 2;
}
static void trace_of_another_width(lt_plan *p)
{
    p->ops[QKV].trace = 1;
}
static void no_pooling(lt_plan *p)
{
    p->ops[POOL].pooling = 0;
}
static void pooling_of_another_width(lt_plan *p)
{
    p->ops[POOL].pooling = LATTICE_POOLING_MEAN | LATTICE_POOLING_CLS | LATTICE_POOLING_MAX;
}
static void select_into_tokens(lt_plan *p)
{
    p->values[SELECTED].rows = LT_ROWS_TOKENS;
}
static void tail_reads_another_tail(lt_plan *p)
{
    p->values[POOLED].rows = LT_ROWS_TOKENS;
    p->ops[POOL].code = LT_OP_ADD_NORM;
    p->ops[POOL].weight[0] = 1;
    p->ops[SELECT].in[0] = lt_all(POOLED);
}
static void result_is_not_the_last_output(lt_plan *p)
{
    p->tails[LT_TAIL_SCORES].result = X;
}
static void tail_outside_the_plan(lt_plan *p)
{
    p->tails[LT_TAIL_SCORES].n_ops = 9;
}
static void op_of_no_tail(lt_plan *p)
{
    p->tails[LT_TAIL_SCORES].present = false;
}
static void body_without_hidden(lt_plan *p)
{
    p->hidden = POOLED;
}
static void hidden_never_written(lt_plan *p)
{
    p->hidden = lt_plan_value(p, LT_ROWS_TOKENS, 4, "never");
}
static void segments_too_short(lt_plan *p)
{
    p->weights[2].rows = 7;
}
static void segments_of_two_types(lt_plan *p)
{
    p->weights[2].dtype = LT_F16;
}
static void too_many_segments(lt_plan *p)
{
    p->weights[2].n_segments = LT_MAX_SEGMENTS + 1;
}
static void value_without_columns(lt_plan *p)
{
    p->values[E].width = 0;
}
static void value_of_impossible_width(lt_plan *p)
{
    p->values[E].width = SIZE_MAX / 4;
}
static void unknown_opcode(lt_plan *p)
{
    p->ops[QKV].code = LT_OP_COUNT;
}

static void inconsistent_plans_are_refused(void **state)
{
    (void)state;
    static const struct {
        void (*change)(lt_plan *);
        const char *names; /* what the message names */
    } cases[] = {
        { embed_after_use, "op 1 (add_norm)" },
        { written_twice, "op 2 (linear)" },
        { no_input, "op 2 (linear)" },
        { unknown_value, "op 2 (linear)" },
        { column_past_the_end, "op 2 (linear)" },
        { huge_column, "op 2 (linear)" },
        { output_of_another_width, "op 2 (linear)" },
        { bias_of_another_length, "op 2 (linear)" },
        { residual_of_another_width, "op 2 (linear)" },
        { no_matrix, "op 2 (linear)" },
        { unknown_matrix, "op 2 (linear)" },
        { gain_of_another_length, "op 1 (add_norm)" },
        { no_table, "op 0 (embed)" },
        { offset_past_the_table, "op 0 (embed)" },
        { heads_that_do_not_divide, "op 3 (attention)" },
        { no_heads, "op 3 (attention)" },
        { head_past_the_columns, "op 3 (attention)" },
        { huge_head_stride, "op 3 (attention)" },
        { two_outputs, "op 2 (linear)" },
        { trace_past_the_end, "op 1 (add_norm)" },
        { trace_of_another_width, "op 2 (linear)" },
        { no_pooling, "op 4 (pool)" },
        { pooling_of_another_width, "op 4 (pool)" },
        { select_into_tokens, "op 5 (select)" },
        { tail_reads_another_tail, "op 5 (select)" },
        { result_is_not_the_last_output, "tail 2" },
        { tail_outside_the_plan, "tail 2" },
        { op_of_no_tail, "neither body nor tail" },
        { body_without_hidden, "hidden states" },
        { hidden_never_written, "hidden states" },
        { segments_too_short, "weight 2" },
        { segments_of_two_types, "weight 2" },
        { too_many_segments, "weight 2" },
        { value_without_columns, "value 0 (e)" },
        { value_of_impossible_width, "value 0 (e)" },
        { unknown_opcode, "op 2 (unknown)" },
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        lattice_error err = { 0 };
        lt_plan plan;
        small_plan(&plan, &lt_malloc_allocator);
        cases[i].change(&plan);
        lattice_status status = lt_plan_check(&plan, &err);
        if (status != LATTICE_ERR_INTERNAL) fail_msg("case %zu (%s) is accepted", i, cases[i].names);
        if (!strstr(err.message, cases[i].names)) fail_msg("case %zu: '%s' does not name '%s'", i, err.message, cases[i].names);
        lt_plan_free(&plan);
    }
}

static void recording_without_memory_is_no_memory(void **state)
{
    (void)state;
    for (long n = 1;; n++) {
        lattice_error err;
        lt_test_allocator a = lt_test_allocator_failing_at(n);
        lattice_allocator mem = lt_test_allocator_hooks(&a);
        lt_plan plan;
        small_plan(&plan, &mem);
        lattice_status status = lt_plan_check(&plan, &err);
        lt_plan_free(&plan);
        assert_int_equal(lt_test_allocator_live(&a), 0);
        if (status == LATTICE_OK) break;
        assert_int_equal(status, LATTICE_ERR_NO_MEMORY);
    }
}

/* A device that lacks something refuses at open, never half-way. */
static void backend_refuses_what_it_cannot_run(void **state)
{
    (void)state;
    lattice_error err;
    lattice_runtime *runtime;
    lt_backend *backend;
    lt_program *program;
    lt_plan plan;
    assert_ok(lattice_runtime_create(NULL, &runtime, NULL));
    assert_ok_err(lt_cpu_backend_create(runtime, "scalar", LATTICE_COMPUTE_AUTO, &backend, &err), &err);
    assert_string_equal(backend->isa, "scalar");
    small_plan(&plan, &runtime->mem);
    lt_compile_options none = { 0 }, room = { .max_tokens = 8, .max_seqs = 8 };
    assert_int_equal(backend->compile(backend, &plan, &none, &program, &err), LATTICE_ERR_INVALID_ARGUMENT);
    matrix.dtype = LT_I8;
    plan.weights[2].dtype = LT_I8;
    assert_int_equal(backend->compile(backend, &plan, &room, &program, &err), LATTICE_ERR_UNSUPPORTED);
    assert_non_null(strstr(err.message, "op 2 (linear)"));
    assert_null(program);
    matrix.dtype = LT_F32;
    lt_plan_free(&plan);
    backend->free(backend);
    assert_int_equal(lt_cpu_backend_create(runtime, "sse9", LATTICE_COMPUTE_F32, &backend, &err), LATTICE_ERR_UNSUPPORTED);
    assert_non_null(strstr(err.message, "sse9"));
    assert_non_null(strstr(err.message, "scalar"));
    size_t n_sets;
    const lt_kernels *const *sets = lt_kernels_available(&n_sets);
    for (size_t i = 0; i < n_sets; i++) {
        lattice_status status = lt_cpu_backend_create(runtime, sets[i]->isa, LATTICE_COMPUTE_BF16, &backend, &err);
        if (sets[i]->bf16) {
            assert_ok_err(status, &err);
            backend->free(backend);
            continue;
        }
        assert_int_equal(status, LATTICE_ERR_UNSUPPORTED);
        assert_non_null(strstr(err.message, "bf16 needs the instruction set"));
        for (size_t k = 0; k < n_sets; k++) assert_non_null(strstr(err.message, sets[k]->isa)); /* what there is */
    }
    lattice_runtime_free(runtime);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(whole_plan_is_accepted),
        cmocka_unit_test(tail_width_counts_the_poolings),
        cmocka_unit_test(work_is_counted_from_shapes),
        cmocka_unit_test(print_shows_one_line_an_op),
        cmocka_unit_test(decoder_plan_is_accepted_counted_and_printed),
        cmocka_unit_test(inconsistent_decoder_plans_are_refused),
        cmocka_unit_test(inconsistent_plans_are_refused),
        cmocka_unit_test(recording_without_memory_is_no_memory),
        cmocka_unit_test(backend_refuses_what_it_cannot_run),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
