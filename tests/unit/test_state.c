/* States of sequences on the CPU: pieces, forks and restored states give what one run gives; failures leave them as they were. */
#include "model_fixture.h"

#include "backend/cpu/cpu.h"

enum { LONG = 300, MAX_TOKENS = 1024 };
static const lt_compile_options limits = { .max_tokens = MAX_TOKENS, .max_seqs = 16 };

/* What K and V rows are kept as. */
typedef enum row_kind { FLOATS, HALVES, BFLOATS } row_kind;

/* A model, the ids of a long sequence, and its hidden states in one run: without a state where that has the same bits. */
typedef struct subject {
    opened model;
    row_kind rows;
    const lt_state_ops *states;
    uint32_t ids[LONG];
    float *whole; /* [LONG][hidden] */
    test_batch batch;
    size_t past[16];
    lt_state *list[16];
} subject;

static void run_tokens(subject *s, float *out, const lt_run_hooks *hooks, lattice_status wanted)
{
    lattice_error err = { 0 };
    lattice_status status = s->model.backend->run(s->model.program, &s->batch.batch, LT_TAIL_TOKENS, out, hooks, &err);
    if (status != wanted) fail_msg("%s: %s", lattice_status_text(status), err.message);
}

static void begin_batch(subject *s, bool with_states)
{
    batch_clear(&s->batch);
    if (!with_states) return;
    s->batch.batch.past_lens = s->past;
    s->batch.batch.states = s->list;
}

/* Adds n ids to the batch, as the continuation of the state; NULL: without one. Reserves. */
static void add_piece(subject *s, lt_state *state, const uint32_t *ids, size_t n)
{
    lattice_error err;
    size_t seq = s->batch.batch.n_seqs, begin = s->batch.batch.n_tokens, past = state ? s->states->length(state) : 0;
    batch_add(&s->batch, ids, NULL, n);
    if (!state) return;
    assert_ok_err(s->states->reserve(state, n, &err), &err);
    for (size_t i = 0; i < n; i++) s->batch.positions[begin + i] = (uint32_t)(past + i);
    s->past[seq] = past;
    s->list[seq] = state;
}

/* Runs n ids as the continuation of the state and commits; out[n][hidden]. */
static void extend(subject *s, lt_state *state, const uint32_t *ids, size_t n, float *out)
{
    begin_batch(s, true);
    add_piece(s, state, ids, n);
    run_tokens(s, out, NULL, LATTICE_OK);
    s->states->commit(state);
}

static lt_state *new_state(subject *s)
{
    lattice_error err;
    lt_state *state;
    assert_ok_err(s->states->create(s->model.program, &state, &err), &err);
    assert_int_equal(s->states->length(state), 0);
    return state;
}

/* Hidden states of ids in one run. */
static void run_whole(subject *s, const uint32_t *ids, size_t n, float *out)
{
    lt_state *state = s->rows == HALVES ? new_state(s) : NULL;
    begin_batch(s, state != NULL);
    add_piece(s, state, ids, n);
    run_tokens(s, out, NULL, LATTICE_OK);
    s->states->free(state);
}

static void open_with(subject *s, const char *folder, const char *isa, int n_threads, row_kind kind)
{
    lt_compile_options options = limits;
    options.half_rows = kind == HALVES;
    memset(s, 0, sizeof *s);
    s->rows = kind;
    model_open_as(&s->model, folder, isa, kind == BFLOATS ? LATTICE_COMPUTE_BF16 : LATTICE_COMPUTE_F32, n_threads, &options, NULL,
                  0);
    s->states = s->model.backend->states;
    uint32_t seed = 1;
    for (size_t i = 0; i < LONG; i++) {
        seed = seed * 1664525u + 1013904223u;
        s->ids[i] = (seed >> 8) % (uint32_t)s->model.config.vocab_size;
    }
    s->whole = malloc(LONG * s->model.hidden * sizeof(float));
    run_whole(s, s->ids, LONG, s->whole);
}

static void open_subject(subject *s, const char *folder, const char *isa, int n_threads)
{
    open_with(s, folder, isa, n_threads, FLOATS);
}

static void close_subject(subject *s)
{
    free(s->whole);
    model_close(&s->model);
}

static void same_rows(const subject *s, const float *rows, const float *wanted, size_t n, const char *what)
{
    if (memcmp(rows, wanted, n * s->model.hidden * sizeof(float)) != 0) fail_msg("%s: rows differ in some bit", what);
}

/* Of what is cut elsewhere: sums in another order may round a value of 16 bits to its neighbour. */
static float tolerance(const subject *s)
{
    return s->rows == FLOATS ? 1e-4f : s->rows == HALVES ? 1e-3f : 3e-2f;
}

static float *row(const subject *s, float *rows, size_t i)
{
    return rows + i * s->model.hidden;
}

/* On every instruction set and with every kind of rows that it keeps, with one thread and with three; light, with three. */
static void on_every_machine(void (*check)(subject *))
{
    size_t n;
    const lt_kernels *const *sets = lt_kernels_available(&n);
    static subject s;
    for (size_t i = 0; i < n; i++) {
        for (row_kind kind = LT_ROUNDS(FLOATS, HALVES); kind <= (sets[i]->bf16 ? BFLOATS : HALVES); kind++) {
            for (int threads = LT_ROUNDS(1, 3); threads <= 3; threads += 2) {
                open_with(&s, FIXTURE("qwen3-reranker"), sets[i]->isa, threads, kind);
                check(&s);
                close_subject(&s);
            }
        }
    }
}

static void with_subject(void (*check)(subject *))
{
    static subject s;
    open_subject(&s, FIXTURE("qwen3-reranker"), "auto", 2);
    check(&s);
    close_subject(&s);
}

/* ------------------------------------------------------------------ pieces */

static void check_pieces(subject *s)
{
    static const size_t cuts[][6] = {
        { LONG },    { 64, LONG },          { 64, 128, 192, 256, LONG }, { 192, LONG }, { 256, LONG - 1, LONG },
        { 1, LONG }, { 63, 65, 200, LONG },
    };
    float *out = malloc(LONG * s->model.hidden * sizeof(float));
    for (size_t c = 0; c < sizeof cuts / sizeof *cuts; c++) {
        lt_state *state = new_state(s);
        bool aligned = true;
        for (size_t begin = 0, i = 0; begin < LONG; begin = cuts[c][i++]) {
            extend(s, state, s->ids + begin, cuts[c][i] - begin, row(s, out, begin));
            assert_int_equal(s->states->length(state), cuts[c][i]);
            if (begin % 64) aligned = false;
        }
        if (aligned) same_rows(s, out, s->whole, LONG, "pieces cut at multiples of 64");
        assert_near(out, s->whole, LONG * s->model.hidden, tolerance(s), "pieces");
        s->states->free(state);
    }
    free(out);
}

static void prefill_in_pieces_equals_one_run(void **state)
{
    (void)state;
    on_every_machine(check_pieces);
}

static void token_by_token_equals_one_run(void **state)
{
    (void)state;
    static subject s;
    open_subject(&s, FIXTURE("qwen3-embedding-hd80-sharded-bf16"), "auto", 2);
    float *out = malloc(LONG * s.model.hidden * sizeof(float));
    lt_state *sequence = new_state(&s);
    for (size_t i = 0; i < 150; i++) extend(&s, sequence, s.ids + i, 1, row(&s, out, i));
    assert_near(out, s.whole, 150 * s.model.hidden, 1e-4f, "tokens");
    s.states->free(sequence);
    free(out);
    close_subject(&s);
}

/* Prefill of one sequence, decoding of another, and one between, in one batch. */
static void check_mixed_batch(subject *s)
{
    lt_state *a = new_state(s), *b = new_state(s), *c = new_state(s);
    float *out = malloc(LONG * 2 * s->model.hidden * sizeof(float));
    extend(s, b, s->ids, 192, out);
    extend(s, c, s->ids, 64, out);
    begin_batch(s, true);
    add_piece(s, a, s->ids, 100);
    add_piece(s, b, s->ids + 192, 1);
    add_piece(s, c, s->ids + 64, 130);
    run_tokens(s, out, NULL, LATTICE_OK);
    same_rows(s, out, s->whole, 100, "a beginning");
    same_rows(s, row(s, out, 100), row(s, s->whole, 192), 1, "one token more");
    same_rows(s, row(s, out, 101), row(s, s->whole, 64), 130, "a continuation");
    s->states->commit(a), s->states->commit(b), s->states->commit(c);
    assert_int_equal(s->states->length(a), 100);
    assert_int_equal(s->states->length(b), 193);
    assert_int_equal(s->states->length(c), 194);
    s->states->free(a), s->states->free(b), s->states->free(c);
    free(out);
}

static void sequences_of_any_past_share_a_batch(void **state)
{
    (void)state;
    on_every_machine(check_mixed_batch);
}

/* ------------------------------------------------------------------ forks */

static void check_forks(subject *s)
{
    lattice_error err;
    lt_state *prefix = new_state(s), *forks[2];
    float *out = malloc(LONG * s->model.hidden * sizeof(float)), *other = malloc(LONG * s->model.hidden * sizeof(float));
    extend(s, prefix, s->ids, 128, out);
    for (int i = 0; i < 2; i++) {
        assert_ok_err(s->states->fork(prefix, &forks[i], &err), &err);
        assert_int_equal(s->states->length(forks[i]), 128);
        for (size_t b = 0; b < 2; b++) assert_ptr_equal(forks[i]->blocks[b], prefix->blocks[b]); /* by reference */
    }
    uint32_t different[100];
    for (size_t i = 0; i < 100; i++) different[i] = s->ids[LONG - 1 - i];
    begin_batch(s, true);
    add_piece(s, forks[0], s->ids + 128, LONG - 128);
    add_piece(s, forks[1], different, 100);
    run_tokens(s, out, NULL, LATTICE_OK);
    same_rows(s, out, row(s, s->whole, 128), LONG - 128, "a fork");
    s->states->commit(forks[0]), s->states->commit(forks[1]);
    assert_int_equal(s->states->length(prefix), 128);

    uint32_t ids[228];
    memcpy(ids, s->ids, 128 * sizeof *ids);
    memcpy(ids + 128, different, 100 * sizeof *ids);
    run_whole(s, ids, 228, other);
    same_rows(s, row(s, out, LONG - 128), row(s, other, 128), 100, "the other fork");

    /* The blocks live as long as one of their states. */
    s->states->free(prefix), s->states->free(forks[1]);
    assert_ok_err(s->states->truncate(forks[0], 128, &err), &err);
    extend(s, forks[0], different, 100, out);
    same_rows(s, out, row(s, other, 128), 100, "a fork without its origin");
    s->states->free(forks[0]);
    free(out), free(other);
}

static void forks_share_blocks_and_go_their_own_way(void **state)
{
    (void)state;
    on_every_machine(check_forks);
}

/* The last block of a fork in the middle of a block is shared until one of the two writes. */
static void check_shared_partial_block(subject *s)
{
    lattice_error err;
    lt_state *a = new_state(s), *b;
    float *out = malloc(LONG * s->model.hidden * sizeof(float)), *alone = malloc(LONG * s->model.hidden * sizeof(float));
    extend(s, a, s->ids, 100, out);
    assert_ok_err(s->states->fork(a, &b, &err), &err);
    assert_ptr_equal(a->blocks[1], b->blocks[1]);
    extend(s, b, s->ids + 200, 20, out); /* other tokens behind the same hundred */
    assert_ptr_equal(a->blocks[0], b->blocks[0]);
    assert_ptr_not_equal(a->blocks[1], b->blocks[1]);
    extend(s, a, s->ids + 100, 100, alone);
    same_rows(s, alone, row(s, s->whole, 100), 100, "the origin after its fork has written");

    uint32_t ids[120];
    memcpy(ids, s->ids, 100 * sizeof *ids);
    memcpy(ids + 100, s->ids + 200, 20 * sizeof *ids);
    run_whole(s, ids, 120, alone);
    same_rows(s, out, row(s, alone, 100), 20, "the fork");
    s->states->free(a), s->states->free(b);
    free(out), free(alone);
}

static void a_shared_block_is_copied_before_it_is_written(void **state)
{
    (void)state;
    on_every_machine(check_shared_partial_block);
}

/* ------------------------------------------------------------------ transactions */

static void check_failures(subject *s)
{
    lattice_error err = { 0 };
    lt_state *state = new_state(s);
    float *out = malloc(LONG * s->model.hidden * sizeof(float));
    extend(s, state, s->ids, 64, out);
    begin_batch(s, true);
    add_piece(s, state, s->ids + 64, 100);
    for (size_t op = 0; op < s->model.plan.n_body; op++) {
        lt_run_hooks hooks = { .fail_at_op = (int)op + 1 };
        run_tokens(s, out, &hooks, LATTICE_ERR_DEVICE);
        assert_int_equal(s->states->length(state), 64);
    }
    bool cancel = true;
    lt_run_hooks hooks = { .cancel = &cancel };
    run_tokens(s, out, &hooks, LATTICE_ERR_CANCELLED);
    assert_int_equal(s->states->length(state), 64);
    run_tokens(s, out, NULL, LATTICE_OK); /* again, as if nothing had happened */
    same_rows(s, out, row(s, s->whole, 64), 100, "a run after failures");
    assert_int_equal(s->states->length(state), 64); /* not committed yet */

    /* Not committed, not discarded: another run would be a mistake. */
    run_tokens(s, out, NULL, LATTICE_ERR_INVALID_ARGUMENT);
    s->states->discard(state);
    begin_batch(s, true);
    add_piece(s, state, s->ids + 200, 50); /* other tokens */
    run_tokens(s, out, NULL, LATTICE_OK);
    s->states->discard(state);
    extend(s, state, s->ids + 64, 100, out);
    same_rows(s, out, row(s, s->whole, 64), 100, "a run after a discarded one");
    assert_int_equal(s->states->length(state), 164);
    s->states->commit(state); /* nothing is pending */
    assert_int_equal(s->states->length(state), 164);

    assert_ok_err(s->states->truncate(state, 128, &err), &err);
    assert_int_equal(s->states->length(state), 128);
    assert_int_equal(s->states->truncate(state, 129, &err), LATTICE_ERR_INVALID_ARGUMENT);
    extend(s, state, s->ids + 128, 100, out);
    same_rows(s, out, row(s, s->whole, 128), 100, "a run after a cut");
    assert_ok_err(s->states->truncate(state, 0, &err), &err);
    extend(s, state, s->ids, 64, out);
    same_rows(s, out, s->whole, 64, "a run from the start");
    s->states->free(state);
    free(out);
}

static void a_failed_run_leaves_its_states_as_they_were(void **state)
{
    (void)state;
    with_subject(check_failures);
}

static void expect_refusal(subject *s, float *out, const char *message)
{
    lattice_error err = { 0 };
    lattice_status status = s->model.backend->run(s->model.program, &s->batch.batch, LT_TAIL_TOKENS, out, NULL, &err);
    assert_int_equal(status, LATTICE_ERR_INVALID_ARGUMENT);
    if (!strstr(err.message, message)) fail_msg("\"%s\" does not say \"%s\"", err.message, message);
}

static void check_refusals(subject *s)
{
    lattice_error err;
    lt_state *a = new_state(s), *b = new_state(s);
    float *out = malloc(LONG * s->model.hidden * sizeof(float));
    begin_batch(s, true);
    add_piece(s, a, s->ids, 60);
    add_piece(s, b, s->ids, 60);
    s->list[1] = a;
    expect_refusal(s, out, "sequence 1 has the state of another one");
    s->list[1] = NULL;
    expect_refusal(s, out, "sequence 1 has no state");
    s->list[1] = b;
    s->past[1] = 1;
    expect_refusal(s, out, "sequence 1 has 0 rows behind it, not 1");
    s->past[1] = 0;
    s->batch.positions[60 + 7]++;
    expect_refusal(s, out, "sequence 1: its positions");
    s->batch.positions[60 + 7]--;
    s->batch.batch.past_lens = NULL;
    expect_refusal(s, out, "states without their lengths");
    s->batch.batch.past_lens = s->past;
    run_tokens(s, out, NULL, LATTICE_OK); /* a was not left taken by the refusals */
    s->states->commit(a), s->states->commit(b);

    begin_batch(s, true);
    add_piece(s, a, s->ids, 4); /* fills the block */
    s->batch.batch.n_tokens = 5, s->batch.starts[1] = 5, s->batch.ids[4] = 1, s->batch.positions[4] = 64;
    expect_refusal(s, out, "sequence 0: no room was reserved for 5 rows");
    lt_state *fork;
    s->batch.batch.n_tokens = 4, s->batch.starts[1] = 4;
    assert_ok_err(s->states->fork(a, &fork, &err), &err);
    expect_refusal(s, out, "no room was reserved"); /* the block is shared now */
    s->states->free(fork);
    run_tokens(s, out, NULL, LATTICE_OK);

    static subject other;
    open_subject(&other, FIXTURE("qwen3-embedding"), "auto", 1);
    lt_state *foreign = new_state(&other);
    begin_batch(s, true);
    add_piece(s, b, s->ids, 1);
    s->list[0] = foreign;
    s->past[0] = 0, s->batch.positions[0] = 0;
    expect_refusal(s, out, "one of another model");
    other.states->free(foreign);
    close_subject(&other);
    s->states->free(a), s->states->free(b);
    free(out);
}

static void states_that_do_not_fit_the_batch_are_refused(void **state)
{
    (void)state;
    with_subject(check_refusals);
}

static void a_model_that_sees_the_future_has_no_state(void **state)
{
    (void)state;
    lattice_error err;
    lt_state *s;
    opened m;
    model_open(&m, FIXTURE("bert-cls"), "auto", 1, &limits);
    assert_int_equal(m.backend->states->create(m.program, &s, &err), LATTICE_ERR_UNSUPPORTED);
    assert_null(s);
    m.backend->states->free(NULL);
    model_close(&m);
}

/* ------------------------------------------------------------------ memory */

/* Rows of about so many sheets of blocks, which are allocations of their own. */
static size_t rows_of_sheets(const subject *s, size_t n)
{
    return n * ((size_t)8 << 20) / s->states->bytes(s->model.program, 1) * LT_BLOCK_ROWS;
}

/* A reservation that finds no memory leaves everything as it was and can be repeated; a run allocates nothing. */
static void check_memory(subject *s)
{
    lattice_error err = { 0 };
    lattice_allocator usual = s->model.runtime->mem;
    float *out = malloc(LONG * s->model.hidden * sizeof(float));
    for (long n = 1;; n++) {
        lt_test_allocator counter = lt_test_allocator_failing_at(n), plenty = { 0 };
        s->model.runtime->mem = lt_test_allocator_hooks(&counter);
        lt_state *a = NULL, *b = NULL;
        lattice_status status = s->states->create(s->model.program, &a, &err);
        if (status == LATTICE_OK) status = s->states->reserve(a, rows_of_sheets(s, 3), &err);
        if (status == LATTICE_OK) {
            begin_batch(s, true);
            batch_add(&s->batch, s->ids, NULL, 100);
            s->past[0] = 0, s->list[0] = a;
            long before = atomic_load(&counter.requests);
            run_tokens(s, out, NULL, LATTICE_OK);
            assert_int_equal(atomic_load(&counter.requests), before);
            s->states->commit(a);
            status = s->states->fork(a, &b, &err);
            if (status != LATTICE_OK) assert_null(b);
        }
        if (status == LATTICE_OK) {
            status = s->states->reserve(b, rows_of_sheets(s, 2), &err); /* a copy of the shared block, and more */
            assert_int_equal(s->states->length(b), 100);
        }
        if (status == LATTICE_ERR_NO_MEMORY && a) { /* what was there before still works */
            s->model.runtime->mem.user = &plenty;
            if (s->states->length(a) == 100) {
                extend(s, a, s->ids + 100, 100, row(s, out, 100));
                assert_near(out, s->whole, 200 * s->model.hidden, 1e-4f, "after failing");
            }
            assert_ok_err(s->states->truncate(a, 0, &err), &err);
        }
        s->states->free(a), s->states->free(b);
        if (status == LATTICE_OK) {
            assert_int_equal(lt_test_allocator_live(&counter), 0);
            assert_in_range(n, 8, 30);
            break;
        }
        assert_int_equal(status, LATTICE_ERR_NO_MEMORY);
    }
    s->model.runtime->mem = usual;
    free(out);
}

static void failed_allocations_leave_states_as_they_were(void **state)
{
    (void)state;
    with_subject(check_memory);
}

/* Every failing request ends without a block left. */
static void check_leaks(subject *s)
{
    lattice_error err = { 0 };
    lattice_allocator usual = s->model.runtime->mem;
    lattice_status status;
    long n = 0;
    do {
        lt_test_allocator counter = lt_test_allocator_failing_at(++n);
        s->model.runtime->mem = lt_test_allocator_hooks(&counter);
        lt_state *a = NULL, *b = NULL;
        status = s->states->create(s->model.program, &a, &err);
        if (status == LATTICE_OK) {
            status = s->states->reserve(a, rows_of_sheets(s, 3), &err);
            if (status != LATTICE_OK) assert_int_equal(a->n_blocks, 0);
        }
        if (status == LATTICE_OK) {
            a->head.length = 150; /* as a run and its commit leave it */
            status = s->states->fork(a, &b, &err);
        }
        if (status == LATTICE_OK) {
            const size_t before = b->n_blocks;
            status = s->states->reserve(b, rows_of_sheets(s, 2), &err);
            if (status != LATTICE_OK) assert_int_equal(b->n_blocks, before);
        }
        if (status == LATTICE_OK)
            status = s->states->reserve(b, SIZE_MAX / 2, &err) == LATTICE_ERR_NO_MEMORY ? LATTICE_OK : LATTICE_ERR_INTERNAL;
        s->states->free(a), s->states->free(b);
        assert_int_equal(lt_test_allocator_live(&counter), 0);
        assert_true(status == LATTICE_OK || status == LATTICE_ERR_NO_MEMORY);
    } while (status != LATTICE_OK);
    assert_in_range(n, 10, 30);
    s->model.runtime->mem = usual;
}

static void every_failed_allocation_is_released(void **state)
{
    (void)state;
    with_subject(check_leaks);
}

/* Blocks of several states lie in sheets together, apart from one another; a sheet goes back with the last block in it. */
static void check_sheets(subject *s)
{
    lattice_error err;
    const lattice_allocator usual = s->model.runtime->mem;
    const size_t block = s->states->bytes(s->model.program, 1), n = rows_of_sheets(s, 3) / LT_BLOCK_ROWS;
    lt_test_allocator counter = lt_test_allocator_failing_at(0);
    s->model.runtime->mem = lt_test_allocator_hooks(&counter);
    lt_state *states[3];
    for (size_t i = 0; i < 3; i++) {
        states[i] = new_state(s);
        assert_ok_err(s->states->reserve(states[i], n * LT_BLOCK_ROWS, &err), &err);
        for (size_t j = 0; j < n; j++) memset(states[i]->blocks[j], (int)(i + 1 + 3 * (j % 80)), block);
    }
    const long all = lt_test_allocator_live(&counter);
    assert_in_range(all, 9, 30); /* states, their tables, and at least nine sheets for hundreds of blocks */
    s->states->free(states[1]);
    assert_in_range(lt_test_allocator_live(&counter), 6, all - 4); /* itself, its table, and the sheets that were its alone */
    states[1] = new_state(s);
    assert_ok_err(s->states->reserve(states[1], n * LT_BLOCK_ROWS, &err), &err);
    assert_in_range(lt_test_allocator_live(&counter), all - 1, all); /* what was left of shared sheets is used again */
    for (size_t i = 0; i < 3; i += 2) {
        for (size_t j = 0; j < n; j++) {
            const unsigned char *at = states[i]->blocks[j];
            assert_int_equal((uintptr_t)at % 64, 0);
            for (size_t k = 0; k < block; k++)
                if (at[k] != i + 1 + 3 * (j % 80)) fail_msg("state %zu, block %zu, byte %zu", i, j, k);
        }
    }
    for (size_t i = 0; i < 3; i++) s->states->free(states[i]);
    assert_int_equal(lt_test_allocator_live(&counter), 0);
    s->model.runtime->mem = usual;
}

static void blocks_share_sheets(void **state)
{
    (void)state;
    with_subject(check_sheets);
}

static void check_bytes(subject *s)
{
    const lt_config *c = &s->model.config;
    size_t block = c->n_layers * 2 * 64 * c->n_kv_heads * c->head_dim * (s->rows == FLOATS ? 4 : 2);
    assert_int_equal(s->states->bytes(s->model.program, 0), 0);
    assert_int_equal(s->states->bytes(s->model.program, 1), block);
    assert_int_equal(s->states->bytes(s->model.program, 64), block);
    assert_int_equal(s->states->bytes(s->model.program, 65), 2 * block);
    assert_int_equal(s->states->bytes(s->model.program, SIZE_MAX), SIZE_MAX);
}

static void rows_take_what_keys_and_values_take(void **state)
{
    (void)state;
    on_every_machine(check_bytes);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(prefill_in_pieces_equals_one_run),
        cmocka_unit_test(token_by_token_equals_one_run),
        cmocka_unit_test(sequences_of_any_past_share_a_batch),
        cmocka_unit_test(forks_share_blocks_and_go_their_own_way),
        cmocka_unit_test(a_shared_block_is_copied_before_it_is_written),
        cmocka_unit_test(a_failed_run_leaves_its_states_as_they_were),
        cmocka_unit_test(states_that_do_not_fit_the_batch_are_refused),
        cmocka_unit_test(a_model_that_sees_the_future_has_no_state),
        cmocka_unit_test(failed_allocations_leave_states_as_they_were),
        cmocka_unit_test(every_failed_allocation_is_released),
        cmocka_unit_test(blocks_share_sheets),
        cmocka_unit_test(rows_take_what_keys_and_values_take),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
