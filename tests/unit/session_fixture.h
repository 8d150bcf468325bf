/* Helpers of the tests of sessions: a generator's fixture, opened, with a session and its golden values. */
#ifndef LT_TESTS_SESSION_FIXTURE_H
#define LT_TESTS_SESSION_FIXTURE_H

#include "model_fixture.h"

#include "engine/model.h"

#define TEXT FIXTURE("qwen3.5-text")
#define VISION FIXTURE("qwen3.5-vl-layout-bf16")

typedef struct subject {
    lattice_runtime *runtime;
    lattice_model *model;
    lattice_session *session;
    golden *golden;
    const golden_case *first; /* "The quick brown fox" */
} subject;

static inline void open_with(subject *s, const char *folder, size_t max_length, size_t batch_tokens)
{
    lattice_error err;
    lattice_model_options options = lattice_model_options_default();
    options.compute = LATTICE_COMPUTE_F32;
    if (batch_tokens) options.batch_tokens = batch_tokens;
    lattice_session_options session = { .max_length = max_length };
    *s = (subject){ .golden = golden_read(folder) };
    s->first = &s->golden->cases[0];
    assert_ok_err(lattice_runtime_create(NULL, &s->runtime, &err), &err);
    assert_ok_err(lattice_model_open(s->runtime, folder, &options, &s->model, &err), &err);
    assert_ok_err(lattice_session_create(s->model, &session, &s->session, &err), &err);
}

static inline void open_subject(subject *s, const char *folder)
{
    open_with(s, folder, 0, 0);
}

static inline void close_subject(subject *s)
{
    lattice_session_free(s->session);
    lattice_model_close(s->model);
    lattice_runtime_free(s->runtime);
    golden_free(s->golden);
}

static inline void start(subject *s, const golden_case *c)
{
    lattice_error err;
    lattice_session_reset(s->session);
    assert_ok_err(lattice_session_prefill(s->session, c->ids, c->n, &err), &err);
}

static inline lattice_generation generate(subject *s, const lattice_generate_options *o)
{
    lattice_error err;
    lattice_generation g;
    assert_ok_err(lattice_generate(s->session, o, &g, &err), &err);
    assert_int_equal(g.text[g.length], 0);
    return g;
}

static inline lattice_generate_options greedy(size_t n)
{
    return (lattice_generate_options){ .sampling = { .top_p = 1, .repetition_penalty = 1 }, .max_tokens = n, .ignore_end = true };
}

/* `work` with the n-th request for memory failing, for every n that there is: an error, nothing lost, and the model goes on. What
 * a model keeps from its first run on is memory of its own: `anew` opens it for each n, so that those requests fail too. */
static inline void fail_every_request(lattice_status (*work)(lattice_model *, const golden_case *, lattice_error *), bool anew)
{
    lattice_error err;
    lattice_runtime *runtime;
    lattice_model *model;
    golden *g = golden_read(TEXT);
    lt_test_allocator a = lt_test_allocator_failing_at(0);
    lattice_allocator hooks = lt_test_allocator_hooks(&a);
    lattice_runtime_options options = lattice_runtime_options_default();
    lattice_model_options model_options = lattice_model_options_default();
    options.allocator = &hooks;
    options.n_threads = 1;
    model_options.batch_tokens = 8; /* several pieces */
    assert_ok(lattice_runtime_create(&options, &runtime, NULL));
    assert_ok_err(lattice_model_open(runtime, TEXT, &model_options, &model, &err), &err);
    assert_ok_err(work(model, &g->cases[0], &err), &err);
    long live = lt_test_allocator_live(&a);
    bool done = false;
    for (long n = 1; !done; n++) {
        assert_true(n < 2000);
        if (anew) {
            lattice_model_close(model);
            assert_ok_err(lattice_model_open(runtime, TEXT, &model_options, &model, &err), &err);
            live = lt_test_allocator_live(&a);
        }
        a.requests = 0;
        a.fail_at = n;
        lattice_status status = work(model, &g->cases[0], &err);
        a.fail_at = 0;
        done = status == LATTICE_OK;
        if (!done) assert_int_equal(status, LATTICE_ERR_NO_MEMORY);
        if (anew)
            assert_true(lt_test_allocator_live(&a) >= live);
        else
            assert_int_equal(lt_test_allocator_live(&a), live);
        if (anew && n % 8 == 0) assert_ok_err(work(model, &g->cases[0], &err), &err);
    }
    lattice_model_close(model);
    lattice_runtime_free(runtime);
    assert_int_equal(lt_test_allocator_live(&a), 0);
    golden_free(g);
}

#endif
