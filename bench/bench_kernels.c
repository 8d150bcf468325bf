/* Times every kernel of every instruction set that runs here at the shapes of real models, on one thread; products also in
 * bfloat16.
 *
 *   build/bench_kernels [--isa NAME] [--only TEXT] [--reps N]
 *
 * Each figure is the best of N short repetitions, taken in turns with the measurement of the machine's peak (multiply-adds in
 * registers, or reading), so that both saw the same clock and the same neighbours. `noise` is how much longer the median took. */
#include "backend/cpu/kernels.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static float *floats(size_t n, float scale)
{
    float *p = aligned_alloc(64, (n * sizeof(float) + 63) / 64 * 64);
    if (!p) {
        fprintf(stderr, "bench_kernels: out of memory\n");
        exit(1);
    }
    uint32_t seed = 1;
    for (size_t i = 0; i < n; i++) {
        seed = seed * 1664525u + 1013904223u;
        p[i] = (float)(int32_t)seed * 0x1p-31f * scale;
    }
    return p;
}

/* n operands as the set's products take them: floats, or pairs of bfloat16. */
static float *operands(const lt_kernels *set, size_t n, float scale)
{
    float *x = floats(set->round_rows ? 2 * n : n, scale);
    if (set->round_rows) set->round_rows(x, 2 * n, 1, 2 * n, x, n);
    return x;
}

static size_t repetitions = 31;
static const char *only = "";
static float *big; /* read to measure bandwidth: more than a core's own caches */
enum { BIG = 16 << 20 };

typedef struct work {
    const lt_kernels *set;
    void (*run)(const struct work *w, size_t round);
    double flop, bytes; /* of a round */
    lt_linear linear;
    size_t weights; /* copies of the panels to go through, a round each */
    lt_attention attention;
    size_t length;
    lt_norm norm;
    float *x, *y;
    size_t n;
    lt_activation activation;
    const void *w;
    lt_dtype dtype;
} work;

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Against multiply-adds when flop > 0, else against reading. */
static void measure(const char *name, const work *w)
{
    if (!strstr(name, only)) return;
    double start = now();
    size_t rounds = 0;
    do w->run(w, rounds++);
    while (now() - start < 4e-4);
    double *seconds = malloc(repetitions * sizeof *seconds), peak = 0;
    if (!seconds) exit(1);
    size_t round = 0;
    for (size_t r = 0; r < repetitions; r++) {
        start = now();
        double done;
        if (w->flop > 0) {
            done = w->set->peak_flop(200000);
        } else {
            big[0] = w->set->peak_read(big + r % 8 * (BIG / 8), BIG / 8) * 0.0f;
            done = BIG / 8 * sizeof(float);
        }
        peak = fmax(peak, done / (now() - start));
        start = now();
        for (size_t i = 0; i < rounds; i++) w->run(w, round++);
        seconds[r] = (now() - start) / (double)rounds;
    }
    qsort(seconds, repetitions, sizeof *seconds, by_value);
    double rate = (w->flop > 0 ? w->flop : w->bytes) / seconds[0];
    printf("%-10s %-4s %-34s %10.2f us %8.1f %s %5.0f%% of %6.1f   noise %3.0f%%\n", w->set->isa,
           w->set->compute == LATTICE_COMPUTE_BF16 ? "bf16" : "f32", name, seconds[0] * 1e6, rate * 1e-9,
           w->flop > 0 ? "GFLOP/s" : "GB/s   ", 100 * rate / peak, peak * 1e-9,
           100 * (seconds[repetitions / 2] / seconds[0] - 1));
    fflush(stdout);
    free(seconds);
}

static void run_linear(const work *w, size_t round)
{
    lt_linear a = w->linear;
    size_t size = (a.n + w->set->nr - 1) / w->set->nr * w->set->nr * lt_panel_rows(w->set, a.k);
    a.panels += round % w->weights * size;
    w->set->linear(&a);
}

static void bench_linear(const lt_kernels *set)
{
    static const struct {
        size_t k, n;
    } shapes[] = { { 384, 1152 }, { 384, 384 },  { 384, 1536 },  { 1536, 384 },  { 768, 2304 },  { 768, 768 },
                   { 768, 3072 }, { 3072, 768 }, { 1024, 3072 }, { 1024, 1024 }, { 1024, 4096 }, { 4096, 1024 } };
    for (size_t s = 0; s < sizeof shapes / sizeof *shapes; s++) {
        const size_t ms[] = { set->tile_rows, 32, 8, 1 };
        for (size_t i = 0; i < 4; i++) {
            const size_t k = shapes[s].k, n = shapes[s].n, m = ms[i], steps = lt_panel_rows(set, k);
            const size_t size = (n + set->nr - 1) / set->nr * set->nr * steps;
            const bool few = m < 32;
            work w = { .set = set, .run = run_linear, .weights = few ? ((size_t)64 << 20) / 4 / size + 1 : 1 };
            float *x = operands(set, m * steps, 1), *panels = operands(set, size * w.weights, 0.1f), *bias = floats(n, 1),
                  *y = floats(m * n, 1);
            if (few)
                w.bytes = (double)size * 4;
            else
                w.flop = 2.0 * (double)m * (double)k * (double)n;
            w.linear = (lt_linear){ .x = x,
                                    .ldx = steps,
                                    .m = m,
                                    .k = k,
                                    .n = n,
                                    .panels = panels,
                                    .panel_end = (n + set->nr - 1) / set->nr,
                                    .bias = bias,
                                    .y = y,
                                    .ldy = n };
            char name[64];
            snprintf(name, sizeof name, "linear m=%zu k=%zu n=%zu%s", m, k, n, few ? " from memory" : "");
            measure(name, &w);
            if (i == 0 && n == 4 * k) {
                w.linear.activation = LT_ACT_GELU;
                snprintf(name, sizeof name, "linear+gelu m=%zu k=%zu n=%zu", m, k, n);
                measure(name, &w);
            }
            if (i == 0 && k == 4 * n) {
                w.linear.residual = y, w.linear.ldr = n;
                snprintf(name, sizeof name, "linear+residual m=%zu k=%zu n=%zu", m, k, n);
                measure(name, &w);
            }
            free(x), free(panels), free(bias), free(y);
        }
    }
}

static void run_attention(const work *w, size_t round)
{
    (void)round;
    for (size_t i = 0; i < w->length; i += w->set->query_tile) {
        lt_attention a = w->attention;
        a.q += i * a.ldq, a.out += i * a.ldo;
        a.n_queries = w->length - i < w->set->query_tile ? w->length - i : w->set->query_tile;
        w->set->attention(&a);
    }
}

/* 12 heads, as they lie in a joined projection. */
static void bench_attention(const lt_kernels *set)
{
    const size_t dims[] = { 32, 64, 128 }, lengths[] = { 8, 32, 128, 512 };
    for (size_t d = 0; d < 3; d++) {
        for (size_t l = 0; l < 4; l++) {
            const size_t dim = dims[d], length = lengths[l], ld = 3 * 12 * dim;
            float *qkv = floats(length * ld, 1), *out = floats(length * 12 * dim, 1),
                  *scratch = floats(set->attention_scratch(dim), 1);
            work w = { .set = set, .run = run_attention, .flop = 4.0 * (double)(length * length * dim), .length = length };
            w.attention = (lt_attention){ .q = qkv,
                                          .k = qkv + 12 * dim,
                                          .v = qkv + 24 * dim,
                                          .ldq = ld,
                                          .ldk = ld,
                                          .ldv = ld,
                                          .out = out,
                                          .ldo = 12 * dim,
                                          .n_keys = length,
                                          .head_dim = dim,
                                          .scale = 1 / sqrtf((float)dim),
                                          .scratch = scratch };
            char name[64];
            snprintf(name, sizeof name, "attention head_dim=%zu T=%zu", dim, length);
            measure(name, &w);
            free(qkv), free(out), free(scratch);
        }
    }
}

static void run_norm(const work *w, size_t round)
{
    (void)round;
    w->set->norm(&w->norm);
}

static void run_activate(const work *w, size_t round)
{
    (void)round;
    memcpy(w->y, w->x, w->n * sizeof(float));
    w->set->activate(w->y, w->n, w->activation);
}

static void run_pack(const work *w, size_t round)
{
    (void)round;
    for (size_t r = 0; r < w->n; r += w->set->nr) {
        const char *from = (const char *)w->w + r * 384 * (w->dtype == LT_F32 ? 4 : 2);
        w->set->pack_panel(from, w->dtype, 384, w->set->nr, 384, w->y + r * lt_panel_rows(w->set, 384));
    }
}

static void run_round(const work *w, size_t round)
{
    (void)round;
    w->set->round_rows(w->x, 384, w->n / 384, 384, w->y, 192);
}

static void run_convert(const work *w, size_t round)
{
    (void)round;
    w->set->convert(w->y, w->w, w->dtype, w->n);
}

static void run_finite(const work *w, size_t round)
{
    (void)round;
    if (!w->set->all_finite(w->x, w->n)) exit(2);
}

static void run_pool(const work *w, size_t round)
{
    (void)round;
    w->set->pool_sum(w->x, 384, w->n / 384, 384, 1, w->y);
}

/* What operands are read and packed from, by bytes read. */
static void bench_packing(const lt_kernels *set)
{
    enum { N = 96 * 384 };
    float *x = floats(N, 3), *y = floats(N, 1), *stored = floats(N, 1);
    memset(stored, 0x3c, N * 4);
    work w = { .set = set, .x = x, .y = y, .n = N, .w = stored };
    const lt_dtype dtypes[] = { LT_F32, LT_F16, LT_BF16 };
    const char *names[] = { "f32", "f16", "bf16" };
    for (size_t i = 0; i < 3; i++) {
        char name[64];
        w.dtype = dtypes[i], w.bytes = N * (i ? 2 : 4);
        w.run = run_convert, w.n = N;
        snprintf(name, sizeof name, "convert %s", names[i]);
        measure(name, &w);
        w.run = run_pack, w.n = 96;
        snprintf(name, sizeof name, "pack_panel %s 96x384", names[i]);
        measure(name, &w);
    }
    if (set->round_rows) {
        w.run = run_round, w.n = N, w.bytes = N * 4;
        measure("round_rows 96x384", &w);
    }
    free(x), free(y), free(stored);
}

/* By bytes read, in the core's own caches. */
static void bench_rest(const lt_kernels *set)
{
    enum { N = 96 * 384 };
    static const struct {
        const char *name;
        lt_activation activation;
    } activations[] = {
        { "gelu", LT_ACT_GELU }, { "gelu_tanh", LT_ACT_GELU_TANH }, { "silu", LT_ACT_SILU }, { "tanh", LT_ACT_TANH }
    };
    float *x = floats(N, 3), *y = floats(N, 1), *residual = floats(N, 1), *gain = floats(384, 1), *bias = floats(384, 1);
    work w = { .set = set, .x = x, .y = y, .n = N, .bytes = N * 4 };
    for (size_t i = 0; i < 4; i++) {
        w.run = run_activate, w.activation = activations[i].activation;
        measure(activations[i].name, &w);
    }
    w.run = run_norm, w.bytes = N * 8;
    w.norm = (lt_norm){ .x = x,
                        .residual = residual,
                        .ldx = 384,
                        .ldr = 384,
                        .m = 96,
                        .n = 384,
                        .gain = gain,
                        .bias = bias,
                        .eps = 1e-12f,
                        .y = y,
                        .ldy = 384 };
    measure("add+layer norm 96x384", &w);
    w.run = run_finite, w.bytes = N * 4;
    measure("all_finite", &w);
    w.run = run_pool;
    measure("pool_sum 96x384", &w);
    free(x), free(y), free(residual), free(gain), free(bias);
}

int main(int argc, char **argv)
{
    const char *isa = NULL;
    for (int i = 1; i + 1 < argc; i += 2) {
        if (!strcmp(argv[i], "--isa"))
            isa = argv[i + 1];
        else if (!strcmp(argv[i], "--only"))
            only = argv[i + 1];
        else if (!strcmp(argv[i], "--reps"))
            repetitions = (size_t)strtoul(argv[i + 1], NULL, 10) | 1;
    }
    if (argc % 2 == 0 || (isa && !lt_kernels_find(isa))) {
        fprintf(stderr, "usage: bench_kernels [--isa NAME] [--only TEXT] [--reps N]\n");
        return 2;
    }
    big = floats(BIG, 0);
    size_t n;
    const lt_kernels *const *sets = lt_kernels_available(&n);
    for (size_t i = 0; i < n; i++) {
        if (isa && lt_kernels_find(isa) != sets[i]) continue;
        bench_linear(sets[i]);
        bench_attention(sets[i]);
        bench_rest(sets[i]);
        bench_packing(sets[i]);
        if (!sets[i]->bf16) continue;
        bench_linear(sets[i]->bf16);
        bench_attention(sets[i]->bf16);
        bench_packing(sets[i]->bf16);
    }
    free(big);
    return 0;
}
