/* Several sessions side by side, forks, generators and probabilities: what each gets is what it gets alone. */
#include "session_fixture.h"

#include <pthread.h>
#include <stdatomic.h>

#include "base/utf8.h"

static lattice_session *new_session(subject *s)
{
    lattice_error err;
    lattice_session *session;
    assert_ok_err(lattice_session_create(s->model, NULL, &session, &err), &err);
    return session;
}

static size_t vocabulary(const subject *s)
{
    lattice_model_info info;
    lattice_model_get_info(s->model, &info);
    return info.vocab_size;
}

/* A long sequence of ids. */
enum { LONG = 300 };
static void make_ids(const subject *s, uint32_t ids[LONG], uint32_t seed)
{
    const uint32_t width = (uint32_t)vocabulary(s);
    for (size_t i = 0; i < LONG; i++) {
        seed = seed * 1664525u + 1013904223u;
        ids[i] = (seed >> 8) % width;
    }
}

static void same_logits(const subject *s, const lattice_session *a, const lattice_session *b)
{
    const float *x = lattice_session_logits(a), *y = lattice_session_logits(b);
    assert_non_null(x);
    assert_non_null(y);
    assert_memory_equal(x, y, vocabulary(s) * sizeof *x);
}

/* ------------------------------------------------------------------ one run of several sessions */

/* Prompts, parts of prompts and single tokens in one run: the bits of each alone. */
static void a_run_of_sessions_gives_each_what_it_gets_alone(void **state)
{
    (void)state;
    static const char *const folders[] = { TEXT, VISION, FIXTURE("qwen3-reranker") };
    static const size_t past[] = { 0, 64, 5, 130, 0, 128 }, more[] = { 100, 70, 1, 1, 1, 9 };
    enum { N = 6 };
    for (size_t f = 0; f < 3; f++) {
        lattice_error err;
        subject s;
        uint32_t ids[N][LONG];
        lattice_piece pieces[N];
        lattice_session *together[N], *alone[N];
        open_subject(&s, folders[f]);
        for (size_t i = 0; i < N; i++) {
            make_ids(&s, ids[i], (uint32_t)i);
            together[i] = new_session(&s);
            alone[i] = new_session(&s);
            for (size_t k = 0; past[i] > 0 && k < 2; k++)
                assert_ok_err(lattice_session_prefill(k ? together[i] : alone[i], ids[i], past[i], &err), &err);
            pieces[i] = (lattice_piece){ .session = together[i], .ids = ids[i] + past[i], .n = more[i] };
        }
        assert_ok_err(lattice_sessions_append(pieces, N, &err), &err);
        for (size_t i = 0; i < N; i++) {
            size_t n;
            assert_ok_err(lattice_session_prefill(alone[i], ids[i] + past[i], more[i], &err), &err);
            same_logits(&s, together[i], alone[i]);
            const uint32_t *held = lattice_session_ids(together[i], &n);
            assert_int_equal(n, past[i] + more[i]);
            assert_memory_equal(held, ids[i], n * sizeof *held);
            lattice_session_free(together[i]);
            lattice_session_free(alone[i]);
        }
        close_subject(&s);
    }
}

/* Any cut of a prompt: the same bits at multiples of 64, else the same to rounding. */
static void prompts_may_be_cut_anywhere(void **state)
{
    (void)state;
    lattice_error err;
    subject s;
    uint32_t ids[LONG];
    open_subject(&s, TEXT);
    make_ids(&s, ids, 7);
    lattice_session *whole = new_session(&s), *parts = new_session(&s);
    assert_ok_err(lattice_session_prefill(whole, ids, LONG, &err), &err);
    const float *wanted = lattice_session_logits(whole);
    for (size_t cut = 1; cut < LONG; cut += cut % 64 == 63 ? 1 : 21) {
        lattice_piece piece = { .session = parts, .ids = ids, .n = cut, .no_logits = true };
        lattice_session_reset(parts);
        assert_ok_err(lattice_sessions_append(&piece, 1, &err), &err);
        assert_null(lattice_session_logits(parts));
        piece = (lattice_piece){ .session = parts, .ids = ids + cut, .n = LONG - cut };
        assert_ok_err(lattice_sessions_append(&piece, 1, &err), &err);
        if (cut % 64 == 0) same_logits(&s, whole, parts);
        assert_near(lattice_session_logits(parts), wanted, vocabulary(&s), 1e-4f * largest(wanted, vocabulary(&s)), "a cut");
    }
    lattice_session_free(whole);
    lattice_session_free(parts);
    close_subject(&s);
}

static void a_run_that_is_refused_changes_none_of_its_sessions(void **state)
{
    (void)state;
    lattice_error err = { 0 };
    subject s, other;
    uint32_t ids[LONG], outside = 1807, id;
    open_with(&s, TEXT, 0, 128);
    open_subject(&other, VISION);
    make_ids(&s, ids, 3);
    lattice_session *a = new_session(&s), *b = new_session(&s);
    lattice_piece pieces[2] = { { .session = a, .ids = ids, .n = 60 }, { .session = b, .ids = ids, .n = 60 } };
    const lattice_piece wrong[] = {
        { .session = b, .ids = ids, .n = 0 },
        { .session = b, .ids = &outside, .n = 1 },
        { .session = b, .ids = ids, .n = 69 },
        { .session = a, .ids = ids, .n = 1 },
        { .session = other.session, .ids = ids, .n = 1 },
    };
    static const char *const messages[] = { "no tokens", "1807", "129 tokens of 2 sessions", "state of another",
                                            "another model" };
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        size_t n;
        lattice_piece run[2] = { pieces[0], wrong[i] };
        assert_int_equal(lattice_sessions_append(run, 2, &err), LATTICE_ERR_INVALID_ARGUMENT);
        if (!strstr(err.message, messages[i])) fail_msg("'%s' does not say '%s'", err.message, messages[i]);
        lattice_session_ids(a, &n);
        assert_int_equal(n, 0);
        assert_null(lattice_session_logits(a));
    }
    assert_ok_err(lattice_sessions_append(pieces, 2, &err), &err);
    same_logits(&s, a, b);
    assert_ok_err(lattice_sessions_append(NULL, 0, &err), &err);
    pieces[0].no_logits = true;
    assert_ok_err(lattice_sessions_append(pieces, 1, &err), &err);
    const lattice_sampling sampling = { .top_p = 1, .repetition_penalty = 1 };
    assert_int_equal(lattice_session_sample(a, &sampling, &id, &err), LATTICE_ERR_INVALID_ARGUMENT);
    assert_non_null(strstr(err.message, "not asked for"));
    lattice_session_free(a);
    lattice_session_free(b);
    close_subject(&other);
    close_subject(&s);
}

/* A prompt of several runs that is cancelled, or finds no room, is taken back as a whole. */
static void a_long_prompt_that_fails_is_taken_back(void **state)
{
    (void)state;
    lattice_error err;
    subject s;
    uint32_t ids[LONG];
    size_t n;
    open_with(&s, TEXT, 200, 64);
    make_ids(&s, ids, 9);
    assert_ok_err(lattice_session_prefill(s.session, ids, 150, &err), &err);
    float *before = malloc(vocabulary(&s) * sizeof *before);
    memcpy(before, lattice_session_logits(s.session), vocabulary(&s) * sizeof *before);
    assert_int_equal(lattice_session_prefill(s.session, ids, 51, &err), LATTICE_ERR_TOO_LONG);
    lattice_session_cancel(s.session);
    assert_int_equal(lattice_session_prefill(s.session, ids, 50, &err), LATTICE_ERR_CANCELLED);
    lattice_session_ids(s.session, &n);
    assert_int_equal(n, 150);
    assert_memory_equal(before, lattice_session_logits(s.session), vocabulary(&s) * sizeof *before);
    free(before);
    close_subject(&s);
}

/* ------------------------------------------------------------------ forks */

static void forks_go_on_as_the_session_would(void **state)
{
    (void)state;
    static const char *const folders[] = { TEXT, FIXTURE("qwen3-reranker") };
    for (size_t f = 0; f < 2; f++) {
        lattice_error err;
        subject s;
        uint32_t ids[LONG];
        size_t n;
        open_subject(&s, folders[f]);
        make_ids(&s, ids, 5);
        lattice_session *fork, *empty, *alone = new_session(&s);
        assert_ok_err(lattice_session_fork(s.session, &empty, &err), &err);
        lattice_session_ids(empty, &n);
        assert_int_equal(n, 0);
        assert_ok_err(lattice_session_prefill(empty, ids, 1, &err), &err);
        assert_ok_err(lattice_session_prefill(s.session, ids, 100, &err), &err);
        assert_ok_err(lattice_session_fork(s.session, &fork, &err), &err);
        same_logits(&s, fork, s.session);
        assert_ok_err(lattice_session_prefill(fork, ids + 100, 50, &err), &err);
        assert_ok_err(lattice_session_prefill(s.session, ids + 200, 50, &err), &err);
        assert_ok_err(lattice_session_prefill(alone, ids, 100, &err), &err);
        assert_ok_err(lattice_session_prefill(alone, ids + 100, 50, &err), &err);
        same_logits(&s, fork, alone);
        lattice_session_free(s.session); /* the fork needs nobody */
        s.session = NULL;
        assert_ok_err(lattice_session_step(fork, ids[150], &err), &err);
        assert_ok_err(lattice_session_step(alone, ids[150], &err), &err);
        same_logits(&s, fork, alone);
        lattice_session_free(fork);
        lattice_session_free(alone);
        lattice_session_free(empty);
        close_subject(&s);
    }
}

/* ------------------------------------------------------------------ generators */

/* Prompts of different lengths, one behind the other: every text is what it is alone. */
static void generators_side_by_side_write_what_each_writes_alone(void **state)
{
    (void)state;
    enum { N = 5, TOKENS = 12 };
    static const size_t budgets[] = { 0, 70, 3 };
    for (size_t b = 0; b < 3; b++) {
        lattice_error err;
        subject s;
        lattice_generator *list[N];
        lattice_session *sessions[N];
        open_with(&s, TEXT, 0, 700);
        for (size_t i = 0; i < N; i++) {
            const golden_case *c = &s.golden->cases[i];
            lattice_generate_options o = greedy(TOKENS + i);
            sessions[i] = new_session(&s);
            assert_ok_err(lattice_generator_create(sessions[i], c->ids, c->n, &o, &list[i], &err), &err);
            assert_int_equal(lattice_generator_pending(list[i]), c->n);
        }
        size_t steps = 0;
        for (bool more = true; more; steps++) {
            more = false;
            assert_true(steps < 2000);
            assert_ok_err(lattice_generators_advance(list, N, budgets[b], &err), &err);
            for (size_t i = 0; i < N; i++) more |= !lattice_generator_done(list[i]);
        }
        for (size_t i = 0; i < N; i++) {
            const golden_case *c = &s.golden->cases[i];
            const lattice_generation *g = lattice_generator_result(list[i]);
            assert_int_equal(g->finish, LATTICE_FINISH_LENGTH);
            assert_int_equal(g->n, TOKENS + i);
            lattice_generate_options o = greedy(TOKENS + i);
            start(&s, c);
            lattice_generation alone = generate(&s, &o);
            assert_memory_equal(g->ids, alone.ids, g->n * sizeof *g->ids);
            assert_string_equal(g->text, alone.text);
            if (budgets[b] == 0) same_logits(&s, sessions[i], s.session);
            lattice_generation_free(&alone);
            lattice_generator_free(list[i]);
            lattice_session_free(sessions[i]);
        }
        close_subject(&s);
    }
}

typedef struct seen {
    size_t tokens, texts, stop_after;
    float logprob;
} seen;

static bool see_token(void *user, const lattice_token *token)
{
    seen *s = user;
    assert_true(token->n_top == 0 || token->top[0].logprob >= token->logprob);
    s->logprob = token->logprob;
    return ++s->tokens != s->stop_after;
}

static bool see_text(void *user, const char *text, size_t length)
{
    seen *s = user;
    assert_true(length > 0 && text[0] != '\0');
    s->texts++;
    return true;
}

/* A cancelled generation ends without a token more; the others do not notice. */
static void one_cancelled_generation_does_not_stop_the_others(void **state)
{
    (void)state;
    lattice_error err;
    subject s;
    open_subject(&s, TEXT);
    seen seen_of[3] = { 0 };
    lattice_session *sessions[3] = { s.session, new_session(&s), new_session(&s) };
    lattice_generator *list[3];
    seen_of[2].stop_after = 2;
    for (size_t i = 0; i < 3; i++) {
        lattice_generate_options o = greedy(6);
        o.on_token = see_token;
        o.on_text = see_text;
        o.user = &seen_of[i];
        assert_ok_err(lattice_generator_create(sessions[i], s.first->ids, s.first->n, &o, &list[i], &err), &err);
    }
    assert_ok_err(lattice_generators_advance(list, 3, 0, &err), &err); /* the prompts */
    assert_ok_err(lattice_generators_advance(list, 3, 0, &err), &err);
    lattice_session_cancel(sessions[1]);
    for (size_t i = 0; i < 6; i++) assert_ok_err(lattice_generators_advance(list, 3, 0, &err), &err);
    static const lattice_finish finish[] = { LATTICE_FINISH_LENGTH, LATTICE_FINISH_CANCELLED, LATTICE_FINISH_CANCELLED };
    static const size_t tokens[] = { 6, 1, 2 };
    for (size_t i = 0; i < 3; i++) {
        const lattice_generation *g = lattice_generator_result(list[i]);
        assert_true(lattice_generator_done(list[i]));
        assert_int_equal(g->finish, finish[i]);
        assert_int_equal(g->n, tokens[i]);
        assert_int_equal(seen_of[i].tokens, tokens[i]);
        assert_memory_equal(g->ids, s.first->greedy, g->n * sizeof *g->ids);
        lattice_generator_free(list[i]);
    }
    /* A prompt that is cancelled before it begins; and the session can be used again. */
    lattice_generate_options o = greedy(2);
    lattice_session_reset(sessions[1]);
    assert_ok_err(lattice_generator_create(sessions[1], s.first->ids, s.first->n, &o, &list[1], &err), &err);
    lattice_session_cancel(sessions[1]);
    assert_ok_err(lattice_generators_advance(&list[1], 1, 0, &err), &err);
    assert_int_equal(lattice_generator_result(list[1])->finish, LATTICE_FINISH_CANCELLED);
    lattice_generator_free(list[1]);
    assert_ok_err(lattice_session_prefill(sessions[1], s.first->ids, s.first->n, &err), &err);
    lattice_session_free(sessions[1]);
    lattice_session_free(sessions[2]);
    close_subject(&s);
}

static void generators_refuse_what_sessions_refuse(void **state)
{
    (void)state;
    lattice_error err;
    subject s, other;
    uint32_t outside = 1807;
    lattice_generator *g, *h;
    open_with(&s, TEXT, 16, 0);
    open_subject(&other, VISION);
    lattice_generate_options o = greedy(2);
    assert_int_equal(lattice_generator_create(s.session, NULL, 0, &o, &g, &err), LATTICE_ERR_INVALID_ARGUMENT);
    assert_null(g);
    assert_int_equal(lattice_generator_create(s.session, &outside, 1, &o, &g, &err), LATTICE_ERR_INVALID_ARGUMENT);
    assert_int_equal(lattice_generator_create(s.session, s.golden->cases[5].ids, 17, &o, &g, &err), LATTICE_ERR_TOO_LONG);
    o.top_logprobs = 1808;
    assert_int_equal(lattice_generator_create(s.session, s.first->ids, 1, &o, &g, &err), LATTICE_ERR_INVALID_ARGUMENT);
    o.top_logprobs = 0;
    assert_ok_err(lattice_generator_create(s.session, s.first->ids, 1, &o, &g, &err), &err);
    assert_ok_err(lattice_generator_create(other.session, s.first->ids, 1, &o, &h, &err), &err);
    lattice_generator *both[2] = { g, h };
    assert_int_equal(lattice_generators_advance(both, 2, 0, &err), LATTICE_ERR_INVALID_ARGUMENT);
    assert_int_equal(lattice_generators_advance(both, 1, 1 << 20, &err), LATTICE_ERR_INVALID_ARGUMENT);
    assert_int_equal(lattice_generator_pending(g), 1);
    lattice_generator_free(g);
    lattice_generator_free(h);
    lattice_generator_free(NULL);
    close_subject(&other);
    close_subject(&s);
}

typedef struct watched {
    lattice_session *session;
    atomic_size_t tokens, at_cancel;
} watched;

static bool count_token(void *user, const lattice_token *token)
{
    watched *w = user;
    (void)token;
    atomic_fetch_add(&w->tokens, 1);
    return true;
}

static void *cancel_after_three(void *user)
{
    watched *w = user;
    while (atomic_load(&w->tokens) < 3) sched_yield();
    lattice_session_cancel(w->session);
    atomic_store(&w->at_cancel, atomic_load(&w->tokens));
    return NULL;
}

static void another_thread_cancels_within_a_token(void **state)
{
    (void)state;
    subject s;
    pthread_t thread;
    open_subject(&s, TEXT);
    start(&s, s.first);
    watched w = { .session = s.session };
    lattice_generate_options o = greedy(0);
    o.on_token = count_token;
    o.user = &w;
    assert_int_equal(pthread_create(&thread, NULL, cancel_after_three, &w), 0);
    lattice_generation g = generate(&s, &o);
    pthread_join(thread, NULL);
    assert_int_equal(g.finish, LATTICE_FINISH_CANCELLED);
    assert_in_range(g.n, 3, atomic_load(&w.at_cancel) + 1);
    lattice_generation_free(&g);
    close_subject(&s);
}

static bool see_whole_characters(void *user, const char *text, size_t length)
{
    size_t *total = user;
    for (size_t i = 0, n; i < length; i += n) {
        n = (unsigned char)text[i] < 0x80 ? 1 : lt_utf8_sequence((const uint8_t *)text + i, length - i);
        assert_true(n > 0);
    }
    *total += length;
    return true;
}

/* Random tokens of a byte-level vocabulary are full of torn characters. */
static void streamed_text_has_whole_characters_only(void **state)
{
    (void)state;
    subject s;
    size_t torn = 0;
    open_subject(&s, TEXT);
    for (uint64_t seed = 0; seed < 8; seed++) {
        size_t total = 0;
        lattice_generate_options o = greedy(60);
        o.sampling.temperature = 50;
        o.sampling.seed = seed;
        o.on_text = see_whole_characters;
        o.user = &total;
        start(&s, s.first);
        lattice_generation g = generate(&s, &o);
        assert_int_equal(total, g.length);
        for (size_t i = 0; i + 2 < g.length; i++) torn += memcmp(g.text + i, "\xef\xbf\xbd", 3) == 0;
        lattice_generation_free(&g);
    }
    assert_true(torn > 0);
    close_subject(&s);
}

/* ------------------------------------------------------------------ probabilities */

static void logprobs_are_those_of_the_softmax(void **state)
{
    (void)state;
    lattice_error err;
    subject s;
    open_subject(&s, TEXT);
    start(&s, s.first);
    const size_t width = vocabulary(&s);
    const float *logits = lattice_session_logits(s.session);
    double total = 0;
    for (size_t i = 0; i < width; i++) total += exp((double)logits[i]);
    lattice_logprob top[20];
    for (uint32_t id = 0; id < width; id += 97) {
        float logprob;
        assert_ok_err(lattice_session_logprobs(s.session, id, &logprob, NULL, 0, &err), &err);
        assert_true(fabs((double)logprob - ((double)logits[id] - log(total))) < 1e-5);
    }
    assert_ok_err(lattice_session_logprobs(s.session, 0, NULL, top, 20, &err), &err);
    for (size_t k = 0; k < 20; k++) {
        size_t larger = 0;
        for (size_t i = 0; i < width; i++) larger += logits[i] > logits[top[k].id];
        assert_int_equal(larger, k);
        assert_true(fabs((double)top[k].logprob - ((double)logits[top[k].id] - log(total))) < 1e-5);
    }
    lattice_logprob *all = malloc(width * sizeof *all);
    assert_ok_err(lattice_session_logprobs(s.session, 0, NULL, all, width, &err), &err);
    for (size_t k = 1; k < width; k++) assert_true(all[k - 1].logprob >= all[k].logprob);
    free(all);
    assert_int_equal(lattice_session_logprobs(s.session, (uint32_t)width, NULL, top, 1, &err), LATTICE_ERR_INVALID_ARGUMENT);
    assert_int_equal(lattice_session_logprobs(s.session, 0, NULL, top, width + 1, &err), LATTICE_ERR_INVALID_ARGUMENT);
    lattice_session_reset(s.session);
    assert_int_equal(lattice_session_logprobs(s.session, 0, NULL, top, 1, &err), LATTICE_ERR_INVALID_ARGUMENT);
    close_subject(&s);
}

static void generations_report_the_logprob_of_every_token_and_its_rivals(void **state)
{
    (void)state;
    lattice_error err;
    subject s;
    open_subject(&s, TEXT);
    start(&s, s.first);
    seen seen_here = { 0 };
    lattice_generate_options o = greedy(8);
    o.top_logprobs = 3;
    o.on_token = see_token;
    o.user = &seen_here;
    lattice_generation g = generate(&s, &o);
    assert_int_equal(g.n_top, 3);
    assert_int_equal(seen_here.tokens, 8);
    start(&s, s.first);
    for (size_t i = 0; i < g.n; i++) {
        float logprob;
        lattice_logprob top[3];
        assert_ok_err(lattice_session_logprobs(s.session, g.ids[i], &logprob, top, 3, &err), &err);
        assert_true(logprob == g.logprobs[i] && logprob < 0);
        assert_memory_equal(top, g.top + 3 * i, sizeof top);
        assert_int_equal(top[0].id, g.ids[i]); /* greedy */
        assert_ok_err(lattice_session_step(s.session, g.ids[i], &err), &err);
    }
    assert_true(seen_here.logprob == g.logprobs[7]);
    lattice_generation_free(&g);
    o = greedy(2);
    start(&s, s.first);
    g = generate(&s, &o);
    assert_null(g.logprobs);
    assert_null(g.top);
    lattice_generation_free(&g);
    close_subject(&s);
}

/* ------------------------------------------------------------------ memory */

static lattice_status everything(lattice_model *model, const golden_case *c, lattice_error *err)
{
    lattice_session *a = NULL, *b = NULL;
    lattice_generator *list[2] = { NULL, NULL };
    const lattice_text stop = { "zzzzzz", 6 };
    lattice_generate_options o = greedy(2);
    o.stop = &stop;
    o.n_stop = 1;
    o.top_logprobs = 2;
    o.sampling.repetition_penalty = 1.1;
    lattice_status status = lattice_session_create(model, NULL, &a, err);
    if (status == LATTICE_OK) status = lattice_session_prefill(a, c->ids, c->n, err);
    if (status == LATTICE_OK) status = lattice_session_fork(a, &b, err);
    if (status == LATTICE_OK) status = lattice_generator_create(a, NULL, 0, &o, &list[0], err);
    if (status == LATTICE_OK) status = lattice_generator_create(b, c->ids, c->n, &o, &list[1], err);
    for (size_t i = 0; status == LATTICE_OK && i < 5; i++) status = lattice_generators_advance(list, 2, 0, err);
    lattice_generator_free(list[0]);
    lattice_generator_free(list[1]);
    lattice_session_free(a);
    lattice_session_free(b);
    return status;
}

static void without_memory_runs_fail_and_nothing_leaks(void **state)
{
    (void)state;
    fail_every_request(everything, true);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_run_of_sessions_gives_each_what_it_gets_alone),
        cmocka_unit_test(prompts_may_be_cut_anywhere),
        cmocka_unit_test(a_run_that_is_refused_changes_none_of_its_sessions),
        cmocka_unit_test(a_long_prompt_that_fails_is_taken_back),
        cmocka_unit_test(forks_go_on_as_the_session_would),
        cmocka_unit_test(generators_side_by_side_write_what_each_writes_alone),
        cmocka_unit_test(one_cancelled_generation_does_not_stop_the_others),
        cmocka_unit_test(generators_refuse_what_sessions_refuse),
        cmocka_unit_test(another_thread_cancels_within_a_token),
        cmocka_unit_test(streamed_text_has_whole_characters_only),
        cmocka_unit_test(logprobs_are_those_of_the_softmax),
        cmocka_unit_test(generations_report_the_logprob_of_every_token_and_its_rivals),
        cmocka_unit_test(without_memory_runs_fail_and_nothing_leaks),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
