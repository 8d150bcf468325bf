/* Prefill and decoding speed of a language model, from token ids: bench_decode FOLDER [DEVICE [PROMPT_TOKENS [STEPS
 * [SESSIONS]]]].
 *
 * Prints milliseconds and tokens a second of a prefill, of decoding one token after the other, and the bytes of weights that a
 * token must read over its time; then of SESSIONS of the same length decoding together. Weights may be random: nothing is said
 * about the text. */
#include <stdio.h>
#include <stdlib.h>

#include "base/clock.h"
#include "lattice.h"

static void print_log(void *user, lattice_log_level level, const char *message)
{
    (void)user;
    (void)level;
    fprintf(stderr, "%s\n", message);
}

static void check(lattice_status status, const lattice_error *err)
{
    if (status == LATTICE_OK) return;
    fprintf(stderr, "bench_decode: %s\n", err->message);
    exit(1);
}

/* The vocabulary spread by a linear congruence (Knuth's constants). */
static void fill(uint32_t *ids, size_t n, size_t vocabulary)
{
    uint64_t state = 1;
    for (size_t i = 0; i < n; i++) {
        state = state * 6364136223846793005u + 1442695040888963407u;
        ids[i] = (uint32_t)((state >> 33) % vocabulary);
    }
}

/* Seconds of a step of n sessions behind the prompt; without logits, the step itself. */
static double decode_together(lattice_model *model, const uint32_t *ids, size_t n_prompt, size_t steps, size_t n, bool logits)
{
    lattice_error err;
    lattice_session **sessions = malloc(n * sizeof(lattice_session *));
    lattice_piece *pieces = malloc(n * sizeof *pieces);
    uint32_t *next = malloc(n * sizeof *next);
    lattice_session_options options = { .max_length = n_prompt + steps + 1 };
    for (size_t i = 0; i < n; i++) {
        check(lattice_session_create(model, &options, &sessions[i], &err), &err);
        check(lattice_session_prefill(sessions[i], ids, n_prompt, &err), &err);
    }
    double start = 0;
    for (size_t step = 0; step < steps; step++) {
        if (step == 4) start = lt_clock_seconds(); /* those before allocate and record */
        for (size_t i = 0; i < n; i++) {
            next[i] = ids[(step + i) % n_prompt];
            pieces[i] =
                (lattice_piece){ .session = sessions[i], .ids = &next[i], .n = 1, .generated = true, .no_logits = !logits };
        }
        check(lattice_sessions_append(pieces, n, &err), &err);
    }
    double seconds = (lt_clock_seconds() - start) / (double)(steps - 4);
    for (size_t i = 0; i < n; i++) lattice_session_free(sessions[i]);
    free(sessions);
    free(pieces);
    free(next);
    return seconds;
}

int main(int argc, char **argv)
{
    lattice_error err;
    lattice_runtime *runtime;
    lattice_model *model;
    lattice_session *session;
    if (argc < 2) {
        fprintf(stderr, "usage: bench_decode FOLDER [DEVICE [PROMPT_TOKENS [STEPS [SESSIONS]]]]\n");
        return 2;
    }
    size_t n_prompt = argc > 3 ? (size_t)atol(argv[3]) : 512, steps = argc > 4 ? (size_t)atol(argv[4]) : 128;
    lattice_runtime_options runtime_options = lattice_runtime_options_default();
    runtime_options.log = print_log;
    check(lattice_runtime_create(&runtime_options, &runtime, &err), &err);
    lattice_model_options options = lattice_model_options_default();
    options.device = argc > 2 ? argv[2] : "auto";
    options.tokenizer_optional = true;
    double start = lt_clock_seconds();
    check(lattice_model_open(runtime, argv[1], &options, &model, &err), &err);
    double opened = lt_clock_seconds() - start;
    lattice_model_info info;
    lattice_model_get_info(model, &info);
    lattice_session_options session_options = { .max_length = n_prompt + steps + 1 };
    check(lattice_session_create(model, &session_options, &session, &err), &err);
    uint32_t *ids = malloc((n_prompt + steps) * sizeof *ids);
    fill(ids, n_prompt + steps, info.vocab_size);
    double prefill = 0;
    for (int i = 0; i < 3; i++) { /* the first one allocates */
        lattice_session_reset(session);
        start = lt_clock_seconds();
        check(lattice_session_prefill(session, ids, n_prompt, &err), &err);
        prefill = lt_clock_seconds() - start;
    }
    for (size_t i = 0; i < 4; i++) check(lattice_session_step(session, ids[i], &err), &err);
    start = lt_clock_seconds();
    for (size_t i = 4; i < steps; i++) check(lattice_session_step(session, ids[i], &err), &err);
    double token = (lt_clock_seconds() - start) / (double)(steps - 4);
    printf("%s on %s, %s: opened in %.0f ms\n", info.family, info.device, info.compute, opened * 1e3);
    printf("prefill of %zu tokens: %.2f ms, %.0f tokens/s, %.1f TFLOP/s\n", n_prompt, prefill * 1e3, (double)n_prompt / prefill,
           2e-12 * (double)info.n_parameters * (double)n_prompt / prefill);
    printf("decode after them: %.3f ms a token, %.0f tokens/s, %.0f GB/s of weights\n", token * 1e3, 1 / token,
           1e-9 * (double)info.weight_bytes / token);
    const float *logits_of_last = lattice_session_logits(session);
    size_t likeliest = 0;
    for (size_t i = 1; i < info.vocab_size; i++) likeliest = logits_of_last[i] > logits_of_last[likeliest] ? i : likeliest;
    printf("then token %zu is likeliest, of logit %.6f\n", likeliest, (double)logits_of_last[likeliest]);
    size_t n = argc > 5 ? (size_t)atol(argv[5]) : 0;
    lattice_session_free(session);
    for (int logits = 0; logits < 2 && n > 0; logits++) {
        double together = decode_together(model, ids, n_prompt, steps, n, logits);
        printf("%zu sessions together, %s logits: %.3f ms a step, %.0f tokens/s\n", n, logits ? "with" : "without",
               together * 1e3, (double)n / together);
    }
    free(ids);
    lattice_model_close(model);
    lattice_runtime_free(runtime);
    return 0;
}
