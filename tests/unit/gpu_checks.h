/* What every GPU must pass: whole fixtures against the CPU's results and the golden values, whatever device runs them. */
#ifndef LT_TESTS_GPU_CHECKS_H
#define LT_TESTS_GPU_CHECKS_H

#include <ftw.h>
#include <unistd.h>

#include "model_fixture.h"

#include "backend/gpu/gpu.h"
#include "engine/model.h"

typedef struct gpu_subject {
    const lt_gpu_driver *driver; /* NULL: those of the build */
    const char *device;          /* "cuda" */
    size_t max_tokens;           /* of a batch */
    bool prints;
} gpu_subject;

typedef struct gpu_pair {
    lattice_runtime *runtime;
    lattice_model *gpu, *cpu;
    golden *golden;
    test_batch *batch;
    int warnings;
} gpu_pair;

static inline lattice_model *gpu_open(lattice_runtime *runtime, const char *folder, const char *device, lattice_compute compute)
{
    lattice_error err;
    lattice_model_options o = lattice_model_options_default();
    lattice_model *m;
    o.device = device;
    o.compute = compute;
    assert_ok_err(lattice_model_open(runtime, folder, &o, &m, &err), &err);
    return m;
}

/* A run that failed on the GPU is repeated on the CPU, with a warning: its results would say nothing here. */
static inline void gpu_print_log(void *user, lattice_log_level level, const char *message)
{
    if (level >= LATTICE_LOG_WARNING) ++*(int *)user;
    fprintf(stderr, "log %d: %s\n", (int)level, message);
}

/* from: the folder of the golden values. */
static inline void gpu_pair_open_as(gpu_pair *p, const gpu_subject *s, const char *folder, const char *from,
                                    lattice_compute compute)
{
    lattice_error err;
    lattice_runtime_options o = lattice_runtime_options_default();
    o.n_threads = 2;
    o.log = gpu_print_log;
    o.log_user = &p->warnings;
    *p = (gpu_pair){ .golden = golden_read(from), .batch = malloc(sizeof(test_batch)) };
    assert_ok_err(lattice_runtime_create(&o, &p->runtime, &err), &err);
    p->runtime->gpu_driver = s->driver;
    p->gpu = gpu_open(p->runtime, folder, s->device, compute);
    p->cpu = gpu_open(p->runtime, folder, "cpu", LATTICE_COMPUTE_F32);
    assert_string_equal(p->cpu->backend->name, "cpu");
    assert_string_not_equal(p->gpu->backend->name, "cpu"); /* else the log says why */
}

static inline void gpu_pair_open(gpu_pair *p, const gpu_subject *s, const char *folder, lattice_compute compute)
{
    gpu_pair_open_as(p, s, folder, folder, compute);
}

static inline void gpu_pair_close(gpu_pair *p)
{
    assert_int_equal(p->warnings, 0);
    lattice_model_close(p->gpu);
    lattice_model_close(p->cpu);
    lattice_runtime_free(p->runtime);
    golden_free(p->golden);
    free(p->batch);
}

/* As many of the golden cases as fit, the last row of each selected. */
static inline void gpu_fill(gpu_pair *p, size_t max_tokens)
{
    batch_clear(p->batch);
    for (size_t i = 0; i < p->golden->n_cases; i++) {
        const golden_case *c = &p->golden->cases[i];
        if (p->batch->batch.n_tokens + c->n > max_tokens) continue;
        batch_add(p->batch, c->ids, c->type_ids, c->n);
        p->batch->out_rows[p->batch->batch.n_out - 1] = p->batch->batch.n_tokens - 1;
    }
    assert_true(p->batch->batch.n_seqs >= 2);
}

typedef struct gpu_distance {
    double cosine, relative; /* the smallest of all rows; the largest difference over the largest value */
} gpu_distance;

static inline gpu_distance gpu_compare(const float *x, const float *wanted, size_t rows, size_t width)
{
    gpu_distance d = { 1, 0 };
    double most = 0;
    for (size_t i = 0; i < rows * width; i++) most = fmax(most, fabs((double)wanted[i]));
    for (size_t r = 0; r < rows; r++) {
        double xx = 0, yy = 0, xy = 0;
        for (size_t i = r * width; i < (r + 1) * width; i++) {
            xx += (double)x[i] * x[i];
            yy += (double)wanted[i] * wanted[i];
            xy += (double)x[i] * wanted[i];
            double difference = fabs((double)x[i] - wanted[i]) / most;
            if (!(difference <= d.relative)) d.relative = difference;
        }
        double cosine = xy / sqrt(xx * yy);
        if (!(cosine >= d.cosine)) d.cosine = cosine;
    }
    return d;
}

static inline void gpu_assert_close(const gpu_subject *s, const char *what, lattice_compute compute, gpu_distance d, size_t width)
{
    double least = compute == LATTICE_COMPUTE_BF16 ? 0.9995 : 0.99999, most = compute == LATTICE_COMPUTE_BF16 ? 0.05 : 1e-4;
    if (s->prints) printf("%-58s cosine %.7f  largest difference %.2e\n", what, d.cosine, d.relative);
    if (!(d.relative <= most) || (width >= 8 && !(d.cosine >= least)))
        fail_msg("%s: cosine %.7f, largest difference %.2e of the largest value", what, d.cosine, d.relative);
}

/* Every tail that the model has, the whole batch of golden cases at once. */
static inline void gpu_check_tails(gpu_pair *p, const gpu_subject *s, const char *folder)
{
    static const char *const names[] = { "tokens", "pooled", "scores", "logits" };
    lattice_error err;
    lattice_compute compute = p->gpu->backend->compute(p->gpu->program);
    gpu_fill(p, s->max_tokens);
    lt_batch *batch = &p->batch->batch;
    for (int kind = 0; kind < LT_TAIL_COUNT; kind++) {
        if (!p->gpu->plan.tails[kind].present) continue;
        for (int all = 0; all < (kind == LT_TAIL_POOLED ? 2 : 1); all++) {
            size_t skip[BATCH_SEQS];
            for (size_t i = 0; i < batch->n_seqs; i++) skip[i] = i % 3;
            batch->pooling = all ? 63 : 0;
            batch->pool_skip = all ? skip : NULL;
            size_t width = lt_tail_width(&p->gpu->plan, (lt_tail_kind)kind, batch->pooling);
            size_t rows = kind == LT_TAIL_TOKENS ? batch->n_tokens : kind == LT_TAIL_POOLED ? batch->n_seqs : batch->n_out;
            float *x = malloc(rows * width * sizeof *x), *wanted = malloc(rows * width * sizeof *wanted);
            for (size_t i = 0; i < rows * width; i++) x[i] = NAN;
            assert_ok_err(p->gpu->backend->run(p->gpu->program, batch, (lt_tail_kind)kind, x, NULL, &err), &err);
            assert_ok_err(p->cpu->backend->run(p->cpu->program, batch, (lt_tail_kind)kind, wanted, NULL, &err), &err);
            char what[160];
            snprintf(what, sizeof what, "%s %s %s%s", strrchr(folder, '/') + 1, compute == LATTICE_COMPUTE_BF16 ? "bf16" : "f32",
                     names[kind], all ? " (all poolings)" : "");
            gpu_assert_close(s, what, compute, gpu_compare(x, wanted, rows, width), width);
            free(x);
            free(wanted);
        }
        batch->pooling = 0;
        batch->pool_skip = NULL;
    }
}

/* Hidden states of every layer. */
static inline void gpu_check_trace(gpu_pair *p, const gpu_subject *s, const char *folder)
{
    lattice_error err;
    lattice_compute compute = p->gpu->backend->compute(p->gpu->program);
    size_t hidden = p->gpu->plan.values[p->gpu->plan.hidden].width, n = p->gpu->plan.n_trace;
    gpu_fill(p, s->max_tokens);
    lt_batch *batch = &p->batch->batch;
    size_t floats = batch->n_tokens * hidden;
    float *traces[2], *out = malloc(floats * sizeof *out);
    for (int i = 0; i < 2; i++) {
        lattice_model *m = i ? p->cpu : p->gpu;
        batch->trace = traces[i] = malloc(n * floats * sizeof(float));
        assert_ok_err(m->backend->run(m->program, batch, LT_TAIL_TOKENS, out, NULL, &err), &err);
    }
    for (size_t layer = 0; layer < n; layer++) {
        char what[160];
        snprintf(what, sizeof what, "%s hidden state %zu", strrchr(folder, '/') + 1, layer);
        gpu_distance d = gpu_compare(traces[0] + layer * floats, traces[1] + layer * floats, batch->n_tokens, hidden);
        gpu_assert_close(s, what, compute, d, hidden);
    }
    for (int i = 0; i < 2; i++) free(traces[i]);
    free(out);
}

/* The sequence in three pieces through a state, the last from a fork, against one run without states on the CPU. */
static inline void gpu_check_states(gpu_pair *p, const gpu_subject *s, const char *folder)
{
    lattice_error err;
    lattice_model *m = p->gpu;
    lattice_compute compute = m->backend->compute(m->program);
    const golden_case *c = &p->golden->cases[0];
    for (size_t i = 0; i < p->golden->n_cases; i++) {
        if (p->golden->cases[i].n > c->n && p->golden->cases[i].n <= s->max_tokens) c = &p->golden->cases[i];
    }
    const lt_state_ops *states = m->backend->states;
    lt_state *state, *fork = NULL;
    if (states->create(m->program, &state, &err) == LATTICE_ERR_UNSUPPORTED) return; /* not causal */
    size_t hidden = m->plan.values[m->plan.hidden].width, cuts[4] = { 0, c->n / 3, c->n / 3 + 1, c->n };
    float *x = malloc(c->n * hidden * sizeof *x), *wanted = malloc(c->n * hidden * sizeof *wanted);
    batch_clear(p->batch);
    batch_add(p->batch, c->ids, NULL, c->n);
    assert_ok_err(p->cpu->backend->run(p->cpu->program, &p->batch->batch, LT_TAIL_TOKENS, wanted, NULL, &err), &err);
    for (int piece = 0; piece < 3; piece++) {
        size_t past = cuts[piece], n = cuts[piece + 1] - past;
        if (n == 0) continue;
        if (piece == 2) {
            assert_ok_err(states->fork(state, &fork, &err), &err);
            states->free(state);
            state = fork;
        }
        batch_clear(p->batch);
        batch_add(p->batch, c->ids + past, NULL, n);
        for (size_t i = 0; i < n; i++) p->batch->positions[i] += (uint32_t)past;
        p->batch->batch.states = &state;
        p->batch->batch.past_lens = &past;
        assert_ok_err(states->reserve(state, n, &err), &err);
        assert_ok_err(m->backend->run(m->program, &p->batch->batch, LT_TAIL_TOKENS, x + past * hidden, NULL, &err), &err);
        states->commit(state);
        assert_int_equal(states->length(state), past + n);
    }
    states->free(state);
    char what[160];
    snprintf(what, sizeof what, "%s %zu tokens in pieces through a state", strrchr(folder, '/') + 1, c->n);
    gpu_assert_close(s, what, compute, gpu_compare(x, wanted, c->n, hidden), hidden);
    free(x);
    free(wanted);
}

/* The golden vectors themselves. */
static inline void gpu_check_golden_vectors(gpu_pair *p, const gpu_subject *s, const char *folder)
{
    lattice_error err;
    lattice_compute compute = p->gpu->backend->compute(p->gpu->program);
    size_t dim = lattice_embed_dim(p->gpu, NULL), n = 0, tokens = 0;
    float *wanted = malloc(GOLDEN_CASES * dim * sizeof *wanted), *x = malloc(GOLDEN_CASES * dim * sizeof *x);
    lattice_ids inputs[GOLDEN_CASES];
    for (size_t i = 0; i < p->golden->n_cases; i++) {
        const golden_case *c = &p->golden->cases[i];
        if (c->n_values != dim || tokens + c->n > s->max_tokens) continue;
        tokens += c->n;
        inputs[n] = (lattice_ids){ c->ids, c->n };
        memcpy(wanted + n++ * dim, c->values, dim * sizeof *wanted);
    }
    if (n > 0) {
        assert_ok_err(lattice_embed_ids(p->gpu, inputs, n, NULL, x, NULL, &err), &err);
        char what[160];
        snprintf(what, sizeof what, "%s %zu golden vectors", strrchr(folder, '/') + 1, n);
        gpu_assert_close(s, what, compute, gpu_compare(x, wanted, n, dim), dim);
    }
    free(wanted);
    free(x);
}

/* Greedy tokens, where the reference's margin exceeds what arithmetic in another order may change. */
static inline void gpu_check_greedy(gpu_pair *p, const gpu_subject *s, size_t most)
{
    lattice_error err;
    double margin = p->gpu->backend->compute(p->gpu->program) == LATTICE_COMPUTE_BF16 ? 0.5 : 1e-3;
    size_t checked = 0;
    for (size_t i = 0; i < p->golden->n_cases && checked < 3; i++) {
        const golden_case *c = &p->golden->cases[i];
        if (c->n_greedy == 0 || c->greedy_min_margin < margin || c->n > s->max_tokens) continue;
        lattice_session *session;
        assert_ok_err(lattice_session_create(p->gpu, NULL, &session, &err), &err);
        assert_ok_err(lattice_session_prefill(session, c->ids, c->n, &err), &err);
        lattice_generate_options o = { .sampling = { .top_p = 1, .repetition_penalty = 1 }, .ignore_end = true };
        o.max_tokens = c->n_greedy < most ? c->n_greedy : most;
        lattice_generation g;
        assert_ok_err(lattice_generate(session, &o, &g, &err), &err);
        assert_memory_equal(g.ids, c->greedy, g.n * sizeof *g.ids);
        lattice_generation_free(&g);
        lattice_session_free(session);
        checked++;
    }
}

static inline void gpu_check_fixture(const gpu_subject *s, const char *folder, lattice_compute compute, size_t greedy_tokens)
{
    gpu_pair p;
    gpu_pair_open(&p, s, folder, compute);
    gpu_check_tails(&p, s, folder);
    gpu_check_trace(&p, s, folder);
    gpu_check_states(&p, s, folder);
    gpu_check_golden_vectors(&p, s, folder);
    gpu_check_greedy(&p, s, greedy_tokens);
    gpu_pair_close(&p);
}

static inline int gpu_remove(const char *path, const struct stat *info, int kind, struct FTW *at)
{
    (void)info;
    (void)kind;
    (void)at;
    return remove(path);
}

/* The same of the fixture in Q8_0, against the CPU: golden values are those of the weights before. */
static inline void gpu_check_quantised(const gpu_subject *s, const char *folder, lattice_compute compute)
{
    char parent[] = "/tmp/lattice-gpu-XXXXXX", quantised[400];
    assert_non_null(mkdtemp(parent));
    snprintf(quantised, sizeof quantised, "%s/%s", parent, strrchr(folder, '/') + 1);
    lattice_runtime *runtime;
    lattice_error err;
    lattice_runtime_options o = lattice_runtime_options_default();
    assert_ok_err(lattice_runtime_create(&o, &runtime, &err), &err);
    assert_ok_err(lattice_quantize(runtime, folder, quantised, NULL, NULL, &err), &err);
    lattice_runtime_free(runtime);
    gpu_pair p;
    gpu_pair_open_as(&p, s, quantised, folder, compute);
    gpu_check_tails(&p, s, quantised);
    gpu_check_trace(&p, s, quantised);
    gpu_check_states(&p, s, quantised);
    gpu_pair_close(&p);
    assert_int_equal(nftw(parent, gpu_remove, 8, FTW_DEPTH | FTW_PHYS), 0);
}

#endif
