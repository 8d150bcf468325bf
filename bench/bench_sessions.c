/* Decoding behind a short and a long past, and of several sessions at once: bench_sessions FOLDER [THREADS [SNAPSHOT]].
 *
 * One token each, in turns: a session of 100 tokens, one of 4000, and four of 100 in one run; the best time of each, so that what
 * else the machine does counts little. With SNAPSHOT the long session is loaded from that file, or saved there the first time. */
#include <stdio.h>
#include <stdlib.h>

#include "base/clock.h"
#include "lattice.h"

enum { SHORT = 100, LONG = 4000, ROUNDS = 3, STEPS = 8, MANY = 4 };

static void check(lattice_status status, const lattice_error *err)
{
    if (status == LATTICE_OK) return;
    fprintf(stderr, "bench_sessions: %s\n", err->message);
    exit(1);
}

/* Appends a token to each of n sessions, several times; the least seconds of a run, or `least`. */
static double decode(lattice_session *const *sessions, size_t n, double least)
{
    lattice_error err;
    lattice_piece pieces[MANY];
    uint32_t ids[MANY];
    for (uint32_t step = 0; step < STEPS; step++) {
        for (size_t i = 0; i < n; i++) {
            ids[i] = 100 + 7 * step + (uint32_t)i;
            pieces[i] = (lattice_piece){ .session = sessions[i], .ids = &ids[i], .n = 1, .generated = true };
        }
        const double start = lt_clock_seconds();
        check(lattice_sessions_append(pieces, n, &err), &err);
        const double spent = lt_clock_seconds() - start;
        if (spent < least) least = spent;
    }
    return least;
}

static lattice_session *make(lattice_model *model, size_t n, const uint32_t *ids)
{
    lattice_error err;
    lattice_session *session;
    check(lattice_session_create(model, NULL, &session, &err), &err);
    check(lattice_session_prefill(session, ids, n, &err), &err);
    return session;
}

static lattice_session *make_long(lattice_model *model, const uint32_t *ids, const char *snapshot)
{
    lattice_error err;
    lattice_session *session;
    if (snapshot && lattice_session_load(model, snapshot, NULL, &session, &err) == LATTICE_OK) return session;
    session = make(model, LONG, ids);
    if (snapshot) check(lattice_session_save(session, snapshot, &err), &err);
    return session;
}

int main(int argc, char **argv)
{
    lattice_error err;
    lattice_runtime *runtime;
    lattice_model *model;
    lattice_model_info info;
    lattice_runtime_options options = lattice_runtime_options_default();
    lattice_model_options model_options = lattice_model_options_default();
    if (argc < 2) {
        fprintf(stderr, "usage: bench_sessions FOLDER [THREADS [SNAPSHOT]]\n");
        return 2;
    }
    if (argc > 2) options.n_threads = atoi(argv[2]);
    model_options.device = "cpu";
    model_options.tokenizer_optional = true;
    check(lattice_runtime_create(&options, &runtime, &err), &err);
    check(lattice_model_open(runtime, argv[1], &model_options, &model, &err), &err);
    lattice_model_get_info(model, &info);
    static uint32_t ids[LONG];
    for (size_t i = 0; i < LONG; i++) ids[i] = (uint32_t)((i * 7919 + 13) % info.vocab_size);
    lattice_session *near = make(model, SHORT, ids), *far = make_long(model, ids, argc > 3 ? argv[3] : NULL), *many[MANY];
    for (size_t i = 0; i < MANY; i++) check(lattice_session_fork(near, &many[i], &err), &err);
    double at_short = 1e9, at_long = 1e9, together = 1e9;
    for (int round = 0; round < ROUNDS; round++) {
        at_short = decode(&near, 1, at_short);
        at_long = decode(&far, 1, at_long);
        together = decode(many, MANY, together);
    }
    printf("behind %d tokens %.2f ms, behind %d %.2f ms: %.3f of the speed; %d sessions in %.2f ms: %.2f times one's tokens/s\n",
           SHORT, at_short * 1e3, LONG, at_long * 1e3, at_short / at_long, MANY, together * 1e3, MANY * at_short / together);
    for (size_t i = 0; i < MANY; i++) lattice_session_free(many[i]);
    lattice_session_free(near);
    lattice_session_free(far);
    lattice_model_close(model);
    lattice_runtime_free(runtime);
    return 0;
}
