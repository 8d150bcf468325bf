/* Qwen3.5 through plan and CPU backend, against the fixtures' golden values: every instruction set that this machine has, several
 * numbers of threads; its states; and what its checkpoints may get wrong. */
#include "model_fixture.h"

#define TEXT FIXTURE("qwen3.5-text")
#define VISION FIXTURE("qwen3.5-vl-layout-bf16")

/* ------------------------------------------------------------------ golden values */

static void hidden_states_of_every_layer_equal_the_reference(void **state)
{
    (void)state;
    on_every_set(TEXT, check_trace);
}

/* Another prefix, a vision tower to pass over, five shards, an output matrix of its own, full_attention_interval. */
static void multimodal_checkpoints_hold_the_same_layers(void **state)
{
    (void)state;
    on_every_set(VISION, check_trace);
}

/* Logits at the last position, of all cases in one batch: |Δ| <= 5e-5 · max|logit|. */
static void check_last_logits(opened *m, const golden *g, test_batch *b)
{
    lattice_error err;
    size_t vocabulary = m->config.vocab_size;
    float *out = malloc(g->n_cases * vocabulary * sizeof(float));
    batch_clear(b);
    for (size_t i = 0; i < g->n_cases; i++) {
        batch_add(b, g->cases[i].ids, NULL, g->cases[i].n);
        b->out_rows[i] = b->batch.n_tokens - 1;
    }
    assert_ok_err(m->backend->run(m->program, &b->batch, LT_TAIL_LOGITS, out, NULL, &err), &err);
    for (size_t i = 0; i < g->n_cases; i++) {
        const golden_case *c = &g->cases[i];
        assert_int_equal(c->n_values, vocabulary);
        assert_near(out + i * vocabulary, c->values, vocabulary, 5e-5f * largest(c->values, vocabulary), c->text);
    }
    free(out);
}

static void last_logits_equal_the_reference(void **state)
{
    (void)state;
    on_every_set(TEXT, check_last_logits);
    on_every_set(VISION, check_last_logits);
}

/* ------------------------------------------------------------------ states */

enum { LONG = 300 };

typedef struct subject {
    opened model;
    const lt_state_ops *states;
    uint32_t ids[LONG];
    float *whole; /* [LONG][hidden] in one run without a state */
    float *rows;  /* [LONG][hidden] */
    test_batch batch;
    size_t past[BATCH_SEQS];
    lt_state *list[BATCH_SEQS];
} subject;

static void add_piece(subject *s, lt_state *state, const uint32_t *ids, size_t n)
{
    lattice_error err;
    size_t seq = s->batch.batch.n_seqs, begin = s->batch.batch.n_tokens;
    batch_add(&s->batch, ids, NULL, n);
    assert_ok_err(s->states->reserve(state, n, &err), &err);
    s->past[seq] = s->states->length(state);
    for (size_t i = 0; i < n; i++) s->batch.positions[begin + i] = (uint32_t)(s->past[seq] + i);
    s->list[seq] = state;
}

static void begin_batch(subject *s)
{
    batch_clear(&s->batch);
    s->batch.batch.past_lens = s->past;
    s->batch.batch.states = s->list;
}

static lattice_status run_batch(subject *s, float *out, const lt_run_hooks *hooks)
{
    lattice_error err = { 0 };
    lattice_status status = s->model.backend->run(s->model.program, &s->batch.batch, LT_TAIL_TOKENS, out, hooks, &err);
    if (status != LATTICE_OK && !hooks) fail_msg("%s", err.message);
    return status;
}

/* Rows [begin, end) of the long sequence as the continuation of the state, committed; their hidden states into s->rows. */
static void extend(subject *s, lt_state *state, size_t begin, size_t end)
{
    begin_batch(s);
    add_piece(s, state, s->ids + begin, end - begin);
    run_batch(s, s->rows + begin * s->model.hidden, NULL);
    s->states->commit(state);
}

static lt_state *new_state(subject *s)
{
    lattice_error err;
    lt_state *state;
    assert_ok_err(s->states->create(s->model.program, &state, &err), &err);
    return state;
}

static void same_bits(const subject *s, size_t begin, size_t end, const char *what)
{
    size_t h = s->model.hidden;
    if (memcmp(s->rows + begin * h, s->whole + begin * h, (end - begin) * h * sizeof(float)) != 0)
        fail_msg("%s: rows %zu to %zu differ in some bit", what, begin, end);
}

static void on_every_machine(void (*check)(subject *))
{
    size_t n;
    const lt_kernels *const *sets = lt_kernels_available(&n);
    static subject s;
    for (size_t i = 0; i < n; i++) {
        for (int threads = 1; threads <= 3; threads += 2) {
            memset(&s, 0, sizeof s);
            model_open(&s.model, TEXT, sets[i]->isa, threads, &ROOM);
            s.states = s.model.backend->states;
            for (size_t k = 0; k < LONG; k++) s.ids[k] = (uint32_t)((k * 2654435761u >> 7) % s.model.config.vocab_size);
            s.whole = malloc(LONG * s.model.hidden * sizeof(float));
            s.rows = malloc(LONG * s.model.hidden * sizeof(float));
            batch_clear(&s.batch);
            batch_add(&s.batch, s.ids, NULL, LONG);
            run_batch(&s, s.whole, NULL);
            check(&s);
            free(s.whole);
            free(s.rows);
            model_close(&s.model);
        }
    }
}

static void check_pieces(subject *s)
{
    size_t h = s->model.hidden;
    lt_state *state = new_state(s);
    extend(s, state, 0, 64);
    extend(s, state, 64, 256);
    extend(s, state, 256, LONG);
    same_bits(s, 0, LONG, "cut at multiples of 64");
    assert_int_equal(s->states->length(state), LONG);
    s->states->free(state);

    state = new_state(s);
    static const size_t cuts[] = { 0, 1, 2, 3, 50, 64, 65, 70, 199, LONG };
    for (size_t i = 0; i + 1 < sizeof cuts / sizeof *cuts; i++) extend(s, state, cuts[i], cuts[i + 1]);
    assert_near(s->rows, s->whole, LONG * h, 1e-4f * largest(s->whole, LONG * h), "cut anywhere");
    s->states->free(state);

    state = new_state(s);
    for (size_t i = 0; i < 80; i++) extend(s, state, i, i + 1);
    assert_near(s->rows, s->whole, 80 * h, 1e-4f * largest(s->whole, LONG * h), "token by token");
    s->states->free(state);
}

static void pieces_give_what_one_run_gives(void **state)
{
    (void)state;
    on_every_machine(check_pieces);
}

/* Several sequences at different places in one batch give the bits that each gives alone. */
static void check_batched_states(subject *s)
{
    enum { N = 3 };
    static const size_t past[N] = { 0, 5, 64 }, added[N] = { 70, 1, 9 };
    size_t h = s->model.hidden, row = 0;
    float *alone = malloc(80 * h * sizeof(float)), *together = malloc(80 * h * sizeof(float));
    lt_state *single[N], *shared[N];
    for (size_t i = 0; i < N; i++) {
        single[i] = new_state(s);
        shared[i] = new_state(s);
        if (past[i] > 0) extend(s, single[i], 0, past[i]);
        if (past[i] > 0) extend(s, shared[i], 0, past[i]);
        begin_batch(s);
        add_piece(s, single[i], s->ids + past[i], added[i]);
        run_batch(s, alone + row * h, NULL);
        row += added[i];
    }
    begin_batch(s);
    for (size_t i = 0; i < N; i++) add_piece(s, shared[i], s->ids + past[i], added[i]);
    run_batch(s, together, NULL);
    assert_memory_equal(together, alone, row * h * sizeof(float));
    for (size_t i = 0; i < N; i++) s->states->free(single[i]);
    for (size_t i = 0; i < N; i++) s->states->free(shared[i]);
    free(alone);
    free(together);
}

static void sequences_in_a_batch_do_not_touch_each_other(void **state)
{
    (void)state;
    on_every_machine(check_batched_states);
}

/* A fork goes on by itself; a discarded, failed or cancelled run leaves no trace. */
static void check_transactions(subject *s)
{
    lattice_error err;
    const bool cancel = true;
    const lt_run_hooks fault = { .fail_at_op = (int)s->model.plan.n_body - 1 }, cancelled = { .cancel = &cancel };
    lt_state *state = new_state(s), *fork;
    extend(s, state, 0, 64);
    assert_ok_err(s->states->fork(state, &fork, &err), &err);
    begin_batch(s);
    add_piece(s, state, s->ids + 10, 30);
    run_batch(s, s->rows, NULL);
    s->states->discard(state);
    begin_batch(s);
    add_piece(s, state, s->ids + 20, 10);
    assert_int_equal(run_batch(s, s->rows, &fault), LATTICE_ERR_DEVICE);
    assert_int_equal(run_batch(s, s->rows, &cancelled), LATTICE_ERR_CANCELLED);
    s->states->commit(state); /* nothing waits */
    assert_int_equal(s->states->length(state), 64);
    extend(s, state, 64, 128);
    extend(s, state, 128, LONG);
    same_bits(s, 64, LONG, "after runs that did not count");
    extend(s, fork, 64, LONG);
    same_bits(s, 64, LONG, "a fork");
    s->states->free(state);
    s->states->free(fork);
}

static void runs_that_do_not_count_leave_states_as_they_were(void **state)
{
    (void)state;
    on_every_machine(check_transactions);
}

static void check_rewind(subject *s)
{
    lattice_error err;
    lt_state *state = new_state(s);
    extend(s, state, 0, 100);
    assert_int_equal(s->states->truncate(state, 64, &err), LATTICE_ERR_UNSUPPORTED);
    assert_int_equal(s->states->length(state), 100);
    assert_ok_err(s->states->truncate(state, 100, &err), &err);
    assert_int_equal(s->states->truncate(state, 101, &err), LATTICE_ERR_INVALID_ARGUMENT);
    assert_ok_err(s->states->truncate(state, 0, &err), &err);
    extend(s, state, 0, LONG);
    same_bits(s, 0, LONG, "emptied");
    s->states->free(state);
}

static void states_can_be_emptied_but_not_rewound(void **state)
{
    (void)state;
    on_every_machine(check_rewind);
}

/* ------------------------------------------------------------------ checkpoints that do not fit */

static void another_kernel(lt_config *c)
{
    c->conv_kernel = 5;
}
static void more_value_heads(lt_config *c)
{
    c->linear_value_heads *= 2;
}
static void wider_values(lt_config *c)
{
    c->linear_value_dim = 16;
}
static void ungated(lt_config *c)
{
    c->attn_output_gate = false;
}
static void full_first(lt_config *c)
{
    c->layer_types[0] = LT_LAYER_FULL_ATTENTION;
}
static void untied(lt_config *c)
{
    c->tie_word_embeddings = false;
}
static void endless_heads(lt_config *c)
{
    c->linear_key_heads = c->linear_value_heads = SIZE_MAX / 16;
}
static void biased(lt_config *c)
{
    c->attention_bias = true;
}

static void config_and_tensors_that_disagree_are_named(void **state)
{
    (void)state;
    static const struct {
        void (*change)(lt_config *);
        lattice_status status;
        const char *names[2];
    } cases[] = {
        { another_kernel, LATTICE_ERR_FORMAT, { "layers.0.linear_attn.conv1d.weight", "[192, 1, 5]" } },
        { more_value_heads, LATTICE_ERR_FORMAT, { "layers.0.linear_attn.in_proj_qkv.weight", "[320, 64]" } },
        { wider_values, LATTICE_ERR_FORMAT, { "layers.0.linear_attn.in_proj_qkv.weight", "[128, 64]" } },
        { ungated, LATTICE_ERR_FORMAT, { "layers.3.self_attn.q_proj.weight", "[128, 64]" } },
        { full_first, LATTICE_ERR_FORMAT, { "layers.0.self_attn.q_proj.weight", "missing" } },
        { untied, LATTICE_ERR_FORMAT, { "lm_head.weight", "missing" } },
        { endless_heads, LATTICE_ERR_FORMAT, { "too large" } },
        { biased, LATTICE_ERR_UNSUPPORTED, { "attention_bias" } },
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        lattice_error err;
        lattice_runtime *runtime;
        lt_config config;
        lt_checkpoint *checkpoint;
        lt_plan plan;
        assert_ok(lattice_runtime_create(NULL, &runtime, NULL));
        lt_plan_init(&plan, &runtime->mem);
        assert_ok_err(lt_config_read(&runtime->mem, TEXT, &config, &err), &err);
        assert_ok_err(lt_checkpoint_open(&runtime->mem, TEXT, true, &checkpoint, &err), &err);
        cases[i].change(&config);
        assert_int_equal(lt_family_qwen35.record(runtime, &config, NULL, checkpoint, NULL, 0, &plan, &err), cases[i].status);
        for (size_t k = 0; k < 2 && cases[i].names[k]; k++) {
            if (!strstr(err.message, cases[i].names[k])) fail_msg("'%s' does not say '%s'", err.message, cases[i].names[k]);
        }
        lt_plan_free(&plan);
        lt_checkpoint_close(checkpoint);
        lt_config_free(&config);
        lattice_runtime_free(runtime);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(hidden_states_of_every_layer_equal_the_reference),
        cmocka_unit_test(multimodal_checkpoints_hold_the_same_layers),
        cmocka_unit_test(last_logits_equal_the_reference),
        cmocka_unit_test(pieces_give_what_one_run_gives),
        cmocka_unit_test(sequences_in_a_batch_do_not_touch_each_other),
        cmocka_unit_test(runs_that_do_not_count_leave_states_as_they_were),
        cmocka_unit_test(states_can_be_emptied_but_not_rewound),
        cmocka_unit_test(config_and_tensors_that_disagree_are_named),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
