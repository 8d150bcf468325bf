/* Vectors of 4096 inputs of mixed lengths, from token ids: bench_mixed FOLDER [DEVICE [BATCH_TOKENS]].
 *
 * Lengths are log-normal, exp(N(4.6, 0.9)) between 4 and 2048 tokens, as in bench/peers_gpu.py; the engine sorts and packs them.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/clock.h"
#include "lattice.h"

enum { N = 4096, RUNS = 5 };

static void print_log(void *user, lattice_log_level level, const char *message)
{
    (void)user;
    (void)level;
    fprintf(stderr, "%s\n", message);
}

static void check(lattice_status status, const lattice_error *err)
{
    if (status == LATTICE_OK) return;
    fprintf(stderr, "bench_mixed: %s\n", err->message);
    exit(1);
}

static double uniform(uint64_t *state)
{
    *state = *state * 6364136223846793005u + 1442695040888963407u;
    return ((double)(*state >> 33) + 0.5) / 2147483648.0;
}

/* Box and Muller's method. */
static double normal(uint64_t *state)
{
    double radius = sqrt(-2 * log(uniform(state)));
    return radius * cos(6.283185307179586 * uniform(state));
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

int main(int argc, char **argv)
{
    lattice_error err;
    lattice_runtime *runtime;
    lattice_model *model;
    if (argc < 2) {
        fprintf(stderr, "usage: bench_mixed FOLDER [DEVICE [BATCH_TOKENS]]\n");
        return 2;
    }
    lattice_runtime_options runtime_options = lattice_runtime_options_default();
    runtime_options.log = print_log;
    check(lattice_runtime_create(&runtime_options, &runtime, &err), &err);
    lattice_model_options options = lattice_model_options_default();
    options.device = argc > 2 ? argv[2] : "auto";
    options.batch_tokens = argc > 3 ? (size_t)atol(argv[3]) : 32768;
    options.tokenizer_optional = true;
    check(lattice_model_open(runtime, argv[1], &options, &model, &err), &err);
    lattice_model_info info;
    lattice_model_get_info(model, &info);
    static lattice_ids inputs[N];
    uint64_t state = 1, tokens = 0;
    for (size_t i = 0; i < N; i++) {
        double length = exp(4.6 + 0.9 * normal(&state));
        size_t n = length < 4 ? 4 : length > 2048 ? 2048 : (size_t)length;
        uint32_t *ids = malloc(n * sizeof *ids);
        for (size_t t = 0; t < n; t++) ids[t] = (uint32_t)(uniform(&state) * (double)info.vocab_size);
        inputs[i] = (lattice_ids){ ids, n };
        tokens += n;
    }
    float *out = malloc(N * info.embedding_dim * sizeof *out);
    double seconds[RUNS];
    for (int run = -1; run < RUNS; run++) { /* the first one allocates */
        double start = lt_clock_seconds();
        check(lattice_embed_ids(model, inputs, N, NULL, out, NULL, &err), &err);
        if (run >= 0) seconds[run] = lt_clock_seconds() - start;
    }
    qsort(seconds, RUNS, sizeof *seconds, by_value);
    printf("%s on %s, %s: %d inputs, %llu tokens: %.1f ms, %.0f tokens/s\n", info.family, info.device, info.compute, N,
           (unsigned long long)tokens, seconds[RUNS / 2] * 1e3, (double)tokens / seconds[RUNS / 2]);
    for (size_t i = 0; i < N; i++) free((void *)(uintptr_t)inputs[i].ids);
    free(out);
    lattice_model_close(model);
    lattice_runtime_free(runtime);
    return 0;
}
