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

#endif
