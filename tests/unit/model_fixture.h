/* Helpers of the model tests: a checkpoint opened down to a compiled program, golden.json, and batches built from ids. */
#ifndef LT_TESTS_MODEL_FIXTURE_H
#define LT_TESTS_MODEL_FIXTURE_H

#include "support.h"

#include <math.h>

#include "backend/backend.h"
#include "backend/cpu/kernels.h"
#include "format/json.h"
#include "model/family.h"

/* ------------------------------------------------------------------ a model */

typedef struct opened {
    lattice_runtime *runtime;
    lt_config config;
    lt_sentence sentence;
    lt_checkpoint *checkpoint;
    lt_plan plan;
    lt_backend *backend;
    lt_program *program;
    size_t hidden;
    const uint32_t *score_ids; /* of a reranker, set by model_open_reranker */
    size_t n_score_ids;
} opened;

static inline void model_close(opened *m)
{
    if (m->program) m->backend->program_free(m->program);
    if (m->backend) m->backend->free(m->backend);
    lt_plan_free(&m->plan);
    lt_sentence_free(&m->sentence);
    lt_checkpoint_close(m->checkpoint);
    lt_config_free(&m->config);
    lattice_runtime_free(m->runtime);
    *m = (opened){ 0 };
}

/* Opened in place: the program points at the plan. score_ids are borrowed. */
static inline void model_open_as(opened *m, const char *folder, const char *isa, lattice_compute compute, int n_threads,
                                 const lt_compile_options *options, const uint32_t *score_ids, size_t n_score_ids)
{
    *m = (opened){ .score_ids = score_ids, .n_score_ids = n_score_ids };
    lattice_error err;
    lattice_runtime_options runtime_options = lattice_runtime_options_default();
    runtime_options.n_threads = n_threads;
    assert_ok_err(lattice_runtime_create(&runtime_options, &m->runtime, &err), &err);
    const lattice_allocator *mem = &m->runtime->mem;
    assert_ok_err(lt_config_read(mem, folder, &m->config, &err), &err);
    assert_ok_err(lt_sentence_read(mem, folder, &m->config, true, &m->sentence, &err), &err);
    assert_ok_err(lt_checkpoint_open(mem, folder, true, &m->checkpoint, &err), &err);
    const lt_family *family = lt_family_find(&m->config);
    assert_non_null(family);
    lt_plan_init(&m->plan, mem);
    assert_ok_err(
        family->record(m->runtime, &m->config, &m->sentence, m->checkpoint, m->score_ids, m->n_score_ids, &m->plan, &err), &err);
    assert_ok_err(lt_cpu_backend_create(m->runtime, isa, compute, &m->backend, &err), &err);
    assert_ok_err(m->backend->compile(m->backend, &m->plan, options, &m->program, &err), &err);
    m->hidden = m->plan.values[m->plan.hidden].width;
}

static inline void model_open_reranker(opened *m, const char *folder, const char *isa, int n_threads,
                                       const lt_compile_options *options, const uint32_t *score_ids, size_t n_score_ids)
{
    model_open_as(m, folder, isa, LATTICE_COMPUTE_F32, n_threads, options, score_ids, n_score_ids);
}

static inline void model_open(opened *m, const char *folder, const char *isa, int n_threads, const lt_compile_options *options)
{
    model_open_reranker(m, folder, isa, n_threads, options, NULL, 0);
}

/* ------------------------------------------------------------------ golden.json */

enum { GOLDEN_TOKENS = 1024, GOLDEN_FLOATS = 2048, GOLDEN_CASES = 64 };

typedef struct golden_case {
    char text[64]; /* its beginning */
    uint32_t ids[GOLDEN_TOKENS], type_ids[GOLDEN_TOKENS];
    size_t n;
    float values[GOLDEN_FLOATS]; /* embedding or logits */
    size_t n_values;
    float cut[2][64]; /* the embedding's first cut_n values, normalised again */
    size_t cut_n[2], n_cuts;
    double mean_nll; /* of the ids after the first; NaN where there are none */
    uint32_t greedy[GOLDEN_TOKENS];
    size_t n_greedy;
    double greedy_min_margin; /* between the two largest logits, anywhere */
} golden_case;

typedef struct golden {
    golden_case cases[GOLDEN_CASES];
    size_t n_cases;
    golden_case prompted[8]; /* with a prompt before the text */
    size_t n_prompted;
    golden_case pairs[16]; /* of a reranker: logits of no and yes */
    size_t n_pairs;
    uint32_t no_yes[2];
    golden_case pooled;               /* the text of the pooling cases; no values */
    float poolings[6][GOLDEN_FLOATS]; /* in the order of the pooling bits */
    bool has_poolings;
    char trace_text[64];
    float *trace; /* [n_trace_floats] */
    size_t n_trace_floats, trace_capacity;
} golden;

static inline void golden_copy_text(lt_json *json, char out[64])
{
    lt_str s;
    assert_ok(lt_json_string(json, &s));
    size_t n = s.len < 63 ? s.len : 63;
    memcpy(out, s.data, n);
    out[n] = '\0';
}

static inline size_t golden_ids(lt_json *json, uint32_t *out)
{
    size_t n = 0;
    assert_ok(lt_json_begin_array(json));
    for (bool more; lt_json_next_element(json, &more) == LATTICE_OK && more; n++) {
        assert_true(n < GOLDEN_TOKENS);
        assert_ok(lt_json_uint32(json, &out[n]));
    }
    return n;
}

static inline size_t golden_floats(lt_json *json, float *out)
{
    size_t n = 0;
    assert_ok(lt_json_begin_array(json));
    for (bool more; lt_json_next_element(json, &more) == LATTICE_OK && more; n++) {
        assert_true(n < GOLDEN_FLOATS);
        assert_ok(lt_json_float(json, &out[n]));
    }
    return n;
}

static inline void golden_read_cuts(lt_json *json, golden_case *c)
{
    assert_ok(lt_json_begin_object(json));
    lt_str key;
    for (bool more; lt_json_next_member(json, &key, &more) == LATTICE_OK && more; c->n_cuts++) {
        assert_true(c->n_cuts < 2);
        c->cut_n[c->n_cuts] = golden_floats(json, c->cut[c->n_cuts]);
    }
}

static inline void golden_read_case(lt_json *json, golden_case *c)
{
    assert_ok(lt_json_begin_object(json));
    lt_str key;
    for (bool more; lt_json_next_member(json, &key, &more) == LATTICE_OK && more;) {
        if (lt_str_is(key, "text") || lt_str_is(key, "prompt")) {
            golden_copy_text(json, c->text);
        } else if (lt_str_is(key, "mean_nll")) {
            c->mean_nll = NAN;
            if (lt_json_peek(json) == LT_JSON_NULL)
                assert_ok(lt_json_skip(json));
            else
                assert_ok(lt_json_double(json, &c->mean_nll));
        } else if (lt_str_is(key, "greedy_min_margin")) {
            assert_ok(lt_json_double(json, &c->greedy_min_margin));
        } else if (lt_str_is(key, "greedy")) {
            c->n_greedy = golden_ids(json, c->greedy);
        } else if (lt_str_is(key, "ids")) {
            c->n = golden_ids(json, c->ids);
        } else if (lt_str_is(key, "type_ids")) {
            golden_ids(json, c->type_ids);
        } else if (lt_str_is(key, "embedding") || lt_str_is(key, "logits") || lt_str_is(key, "last_logits") ||
                   lt_str_is(key, "logits_no_yes")) {
            c->n_values = golden_floats(json, c->values);
        } else if (lt_str_is(key, "embedding_dims")) {
            golden_read_cuts(json, c);
        } else {
            assert_ok(lt_json_skip(json));
        }
    }
}

static inline size_t golden_read_cases(lt_json *json, golden_case *cases, size_t capacity)
{
    size_t n = 0;
    assert_ok(lt_json_begin_array(json));
    for (bool item; lt_json_next_element(json, &item) == LATTICE_OK && item;) {
        assert_true(n < capacity);
        golden_read_case(json, &cases[n++]);
    }
    return n;
}

static inline void golden_read_trace(lt_json *json, golden *g)
{
    assert_ok(lt_json_begin_object(json));
    lt_str key;
    for (bool more; lt_json_next_member(json, &key, &more) == LATTICE_OK && more;) {
        if (lt_str_is(key, "text") || lt_str_is(key, "prompt")) {
            golden_copy_text(json, g->trace_text);
        } else if (lt_str_is(key, "hidden_states")) {
            assert_ok(lt_json_begin_array(json));
            for (bool layer; lt_json_next_element(json, &layer) == LATTICE_OK && layer;) {
                assert_ok(lt_json_begin_array(json));
                for (bool value; lt_json_next_element(json, &value) == LATTICE_OK && value;) {
                    assert_true(LT_GROW(&lt_malloc_allocator, g->trace, g->trace_capacity, g->n_trace_floats + 1));
                    assert_ok(lt_json_float(json, &g->trace[g->n_trace_floats++]));
                }
            }
        } else {
            assert_ok(lt_json_skip(json));
        }
    }
}

static inline void golden_read_poolings(lt_json *json, golden *g)
{
    static const char *const names[6] = { "cls", "max", "mean", "mean_sqrt_len_tokens", "weightedmean", "lasttoken" };
    assert_ok(lt_json_begin_object(json));
    lt_str key;
    for (bool more; lt_json_next_member(json, &key, &more) == LATTICE_OK && more;) {
        if (lt_str_is(key, "ids")) {
            g->pooled.n = golden_ids(json, g->pooled.ids);
        } else if (lt_str_is(key, "not_normalized")) {
            g->has_poolings = true;
            assert_ok(lt_json_begin_object(json));
            for (bool pooling; lt_json_next_member(json, &key, &pooling) == LATTICE_OK && pooling;) {
                int i = 0;
                while (i < 6 && !lt_str_is(key, names[i])) i++;
                assert_true(i < 6);
                golden_floats(json, g->poolings[i]);
            }
        } else {
            assert_ok(lt_json_skip(json));
        }
    }
}

/* Allocated on the heap: it is large. Released by golden_free. */
static inline golden *golden_read(const char *folder)
{
    char path[512];
    snprintf(path, sizeof path, "%s/golden.json", folder);
    size_t size;
    char *text = lt_test_read_file(path, &size);
    golden *g = calloc(1, sizeof *g);
    lattice_error err = { 0 };
    lt_json *json = calloc(1, sizeof *json);
    lt_json_open(json, &lt_malloc_allocator, path, text, size, &err);
    assert_ok(lt_json_begin_object(json));
    lt_str key;
    for (bool more; lt_json_next_member(json, &key, &more) == LATTICE_OK && more;) {
        if (lt_str_is(key, "cases")) {
            g->n_cases = golden_read_cases(json, g->cases, GOLDEN_CASES);
        } else if (lt_str_is(key, "prompt_cases")) {
            g->n_prompted = golden_read_cases(json, g->prompted, 8);
        } else if (lt_str_is(key, "pairs")) {
            g->n_pairs = golden_read_cases(json, g->pairs, 16);
        } else if (lt_str_is(key, "no_id")) {
            assert_ok(lt_json_uint32(json, &g->no_yes[0]));
        } else if (lt_str_is(key, "yes_id")) {
            assert_ok(lt_json_uint32(json, &g->no_yes[1]));
        } else if (lt_str_is(key, "trace")) {
            golden_read_trace(json, g);
        } else if (lt_str_is(key, "pooling_cases")) {
            golden_read_poolings(json, g);
        } else {
            assert_ok(lt_json_skip(json));
        }
    }
    assert_ok_err(lt_json_end(json), &err);
    lt_json_close(json);
    free(json);
    free(text);
    return g;
}

static inline void golden_free(golden *g)
{
    free(g->trace);
    free(g);
}

/* ------------------------------------------------------------------ batches */

enum { BATCH_TOKENS = 4096, BATCH_SEQS = 128 };

/* A batch with room of its own; add sequences, then hand `batch` to run. */
typedef struct test_batch {
    lt_batch batch;
    uint32_t ids[BATCH_TOKENS], positions[BATCH_TOKENS], type_ids[BATCH_TOKENS];
    size_t starts[BATCH_SEQS + 1], out_rows[BATCH_SEQS];
} test_batch;

static inline void batch_clear(test_batch *b)
{
    b->batch = (lt_batch){
        .ids = b->ids, .positions = b->positions, .type_ids = b->type_ids, .seq_starts = b->starts, .out_rows = b->out_rows
    };
    b->starts[0] = 0;
}

/* type_ids NULL: zeros. The sequence's first row is selected as an output row. */
static inline void batch_add(test_batch *b, const uint32_t *ids, const uint32_t *type_ids, size_t n)
{
    lt_batch *batch = &b->batch;
    assert_true(batch->n_tokens + n <= BATCH_TOKENS && batch->n_seqs < BATCH_SEQS);
    b->out_rows[batch->n_out++] = batch->n_tokens;
    for (size_t i = 0; i < n; i++) {
        b->ids[batch->n_tokens] = ids[i];
        b->positions[batch->n_tokens] = (uint32_t)i;
        b->type_ids[batch->n_tokens] = type_ids ? type_ids[i] : 0;
        batch->n_tokens++;
    }
    b->starts[++batch->n_seqs] = batch->n_tokens;
}

/* ------------------------------------------------------------------ comparing */

static inline float largest(const float *x, size_t n)
{
    float most = 0;
    for (size_t i = 0; i < n; i++) most = fmaxf(most, fabsf(x[i]));
    return most;
}

/* |x - wanted| <= tolerance everywhere; a NaN fails. */
static inline void assert_near(const float *x, const float *wanted, size_t n, float tolerance, const char *what)
{
    for (size_t i = 0; i < n; i++) {
        if (!(fabsf(x[i] - wanted[i]) <= tolerance)) {
            fail_msg("%s: [%zu] is %.9g, expected %.9g within %g", what, i, (double)x[i], (double)wanted[i], (double)tolerance);
        }
    }
}

static inline void normalize(float *x, size_t n)
{
    double sum = 0;
    for (size_t i = 0; i < n; i++) sum += (double)x[i] * x[i];
    for (size_t i = 0; i < n; i++) x[i] = (float)(x[i] / sqrt(sum));
}

/* ------------------------------------------------------------------ checks that families share */

static const int thread_counts[3] = { 1, 2, 3 };
static const lt_compile_options ROOM = { .max_tokens = BATCH_TOKENS, .max_seqs = BATCH_SEQS };

typedef void (*model_check)(opened *m, const golden *g, test_batch *b);

/* Runs `check` on the fixture for all sets and threads; light, with another number of threads for each set. */
static inline void on_every_set(const char *folder, model_check check)
{
    size_t n_sets;
    const lt_kernels *const *sets = lt_kernels_available(&n_sets);
    golden *g = golden_read(folder);
    test_batch *b = malloc(sizeof *b);
    for (size_t s = 0; s < n_sets; s++) {
        for (size_t t = 0; t < LT_ROUNDS(3, 1); t++) {
            opened m;
            model_open_reranker(&m, folder, sets[s]->isa, thread_counts[(t + s + 1) % 3], &ROOM, g->no_yes,
                                g->n_pairs > 0 ? 2 : 0);
            check(&m, g, b);
            model_close(&m);
        }
    }
    free(b);
    golden_free(g);
}

/* The same in bfloat16, for the sets that multiply it; the scalar set emulates it everywhere. */
static inline void on_every_bf16_set(const char *folder, model_check check)
{
    size_t n_sets;
    const lt_kernels *const *sets = lt_kernels_available(&n_sets);
    golden *g = golden_read(folder);
    test_batch *b = malloc(sizeof *b);
    for (size_t s = 0; s < n_sets; s++) {
        if (!sets[s]->bf16) continue;
        opened m;
        model_open_as(&m, folder, sets[s]->isa, LATTICE_COMPUTE_BF16, thread_counts[s % 3], &ROOM, g->no_yes,
                      g->n_pairs > 0 ? 2 : 0);
        assert_int_equal(m.backend->compute(m.program), LATTICE_COMPUTE_BF16);
        check(&m, g, b);
        model_close(&m);
    }
    free(b);
    golden_free(g);
}

/* The whole message, but for the folder that it begins with. */
static inline void assert_says(const lattice_error *err, const char *message)
{
    size_t n = strlen(err->message), end = strlen(message);
    bool behind_a_folder = n > end && (err->message[n - end - 1] == '/' || message[0] == ':');
    if (n < end || strcmp(err->message + n - end, message) != 0 || (n > end && !behind_a_folder))
        fail_msg("'%s' is not '…%s'", err->message, message);
}

/* Records the forward pass of a folder's checkpoint, its configuration changed first; change may be NULL. */
static inline lattice_status record_folder(const char *folder, void (*change)(lt_config *), const uint32_t *ids, size_t n_ids,
                                           lattice_error *err)
{
    lattice_runtime *runtime;
    lt_config config;
    lt_checkpoint *checkpoint = NULL;
    lt_plan plan;
    assert_ok(lattice_runtime_create(NULL, &runtime, NULL));
    lt_plan_init(&plan, &runtime->mem);
    lattice_status status = lt_config_read(&runtime->mem, folder, &config, err);
    if (status == LATTICE_OK) {
        assert_ok_err(lt_checkpoint_open(&runtime->mem, folder, true, &checkpoint, err), err);
        if (change) change(&config);
        status = lt_family_find(&config)->record(runtime, &config, NULL, checkpoint, ids, n_ids, &plan, err);
    }
    lt_plan_free(&plan);
    lt_checkpoint_close(checkpoint);
    lt_config_free(&config);
    lattice_runtime_free(runtime);
    return status;
}

/* Recording and compiling with an allocator that fails at every request in turn: an error each time, and no leak. */
static inline void check_opening_without_memory(const char *folder, const uint32_t *ids, size_t n_ids)
{
    lattice_error err;
    lt_test_allocator counter = { 0 };
    lattice_allocator hooks = lt_test_allocator_hooks(&counter);
    lattice_runtime_options options = lattice_runtime_options_default();
    options.allocator = &hooks;
    options.n_threads = 2;
    lattice_runtime *runtime;
    lt_config config;
    lt_checkpoint *checkpoint;
    assert_ok(lattice_runtime_create(&options, &runtime, NULL));
    assert_ok_err(lt_config_read(&lt_malloc_allocator, folder, &config, &err), &err);
    assert_ok_err(lt_checkpoint_open(&lt_malloc_allocator, folder, true, &checkpoint, &err), &err);
    long live = lt_test_allocator_live(&counter);
    for (long n = 1;; n++) {
        lt_plan plan;
        lt_backend *backend = NULL;
        lt_program *program = NULL;
        counter.fail_at = atomic_load(&counter.requests) + n;
        lt_plan_init(&plan, &runtime->mem);
        lattice_status status = lt_family_find(&config)->record(runtime, &config, NULL, checkpoint, ids, n_ids, &plan, &err);
        if (status == LATTICE_OK) status = lt_cpu_backend_create(runtime, NULL, LATTICE_COMPUTE_AUTO, &backend, &err);
        if (status == LATTICE_OK) status = backend->compile(backend, &plan, &ROOM, &program, &err);
        if (program) backend->program_free(program);
        if (backend) backend->free(backend);
        lt_plan_free(&plan);
        counter.fail_at = 0;
        assert_int_equal(lt_test_allocator_live(&counter), live);
        if (status == LATTICE_OK) {
            assert_true(n > 20);
            break;
        }
        assert_int_equal(status, LATTICE_ERR_NO_MEMORY);
    }
    lt_checkpoint_close(checkpoint);
    lt_config_free(&config);
    lattice_runtime_free(runtime);
}

static inline const golden_case *find_case(const golden *g, const char *text)
{
    for (size_t i = 0; i < g->n_cases; i++) {
        if (strcmp(g->cases[i].text, text) == 0) return &g->cases[i];
    }
    fail_msg("no case '%s'", text);
    return NULL;
}

/* Hidden states of every layer, in the midst of a batch: |Δ| <= 1e-4 · max|h|. */
static inline void check_trace(opened *m, const golden *g, test_batch *b)
{
    lattice_error err;
    const golden_case *c = find_case(g, g->trace_text);
    batch_clear(b);
    batch_add(b, g->cases[0].ids, NULL, g->cases[0].n);
    size_t row = b->batch.n_tokens;
    batch_add(b, c->ids, NULL, c->n);
    batch_add(b, g->cases[2].ids, NULL, g->cases[2].n);
    size_t per_layer = b->batch.n_tokens * m->hidden;
    float *trace = malloc(m->plan.n_trace * per_layer * sizeof(float)), *out = malloc(per_layer * sizeof(float));
    b->batch.trace = trace;
    assert_ok_err(m->backend->run(m->program, &b->batch, LT_TAIL_TOKENS, out, NULL, &err), &err);
    assert_int_equal(g->n_trace_floats, m->plan.n_trace * c->n * m->hidden);
    for (size_t layer = 0; layer < m->plan.n_trace; layer++) {
        const float *wanted = g->trace + layer * c->n * m->hidden;
        char what[48];
        snprintf(what, sizeof what, "hidden state %zu", layer);
        assert_near(trace + layer * per_layer + row * m->hidden, wanted, c->n * m->hidden,
                    1e-4f * largest(wanted, c->n * m->hidden), what);
    }
    assert_memory_equal(trace + (m->plan.n_trace - 1) * per_layer, out, per_layer * sizeof(float));
    free(trace);
    free(out);
}

/* All cases, also those with prompts, in one batch, pooled as the checkpoint says and normalised; cut
 * and normalised again where the reference is: |Δ| <= 5e-6. */
static inline void check_embeddings(opened *m, const golden *g, test_batch *b)
{
    lattice_error err;
    batch_clear(b);
    for (size_t i = 0; i < g->n_cases; i++) batch_add(b, g->cases[i].ids, NULL, g->cases[i].n);
    for (size_t i = 0; i < g->n_prompted; i++) batch_add(b, g->prompted[i].ids, NULL, g->prompted[i].n);
    float *out = malloc((g->n_cases + g->n_prompted) * m->hidden * sizeof(float));
    assert_int_equal(lt_tail_width(&m->plan, LT_TAIL_POOLED, 0), m->hidden);
    assert_ok_err(m->backend->run(m->program, &b->batch, LT_TAIL_POOLED, out, NULL, &err), &err);
    for (size_t i = 0; i < g->n_cases + g->n_prompted; i++) {
        const golden_case *c = i < g->n_cases ? &g->cases[i] : &g->prompted[i - g->n_cases];
        float *x = out + i * m->hidden;
        assert_int_equal(c->n_values, m->hidden);
        normalize(x, m->hidden);
        assert_near(x, c->values, m->hidden, 5e-6f, c->text);
        for (size_t k = 0; k < c->n_cuts; k++) {
            float cut[GOLDEN_FLOATS];
            memcpy(cut, x, c->cut_n[k] * sizeof(float));
            normalize(cut, c->cut_n[k]);
            assert_near(cut, c->cut[k], c->cut_n[k], 5e-6f, c->text);
        }
    }
    free(out);
}

/* All cases in one batch, pooled as the checkpoint says: the cosine with the reference is 0.9998 at least. */
static inline void check_cosines(opened *m, const golden *g, test_batch *b)
{
    lattice_error err;
    batch_clear(b);
    for (size_t i = 0; i < g->n_cases; i++) batch_add(b, g->cases[i].ids, NULL, g->cases[i].n);
    float *out = malloc(g->n_cases * m->hidden * sizeof(float));
    assert_ok_err(m->backend->run(m->program, &b->batch, LT_TAIL_POOLED, out, NULL, &err), &err);
    for (size_t i = 0; i < g->n_cases; i++) {
        const float *x = out + i * m->hidden, *wanted = g->cases[i].values;
        double dot = 0, xx = 0, ww = 0;
        for (size_t j = 0; j < m->hidden; j++) {
            dot += (double)x[j] * (double)wanted[j];
            xx += (double)x[j] * (double)x[j];
            ww += (double)wanted[j] * (double)wanted[j];
        }
        double cosine = dot / sqrt(xx * ww);
        if (!(cosine >= 0.9998)) fail_msg("'%s': cosine %.6f", g->cases[i].text, cosine);
        /* Exactly 1 would be float32 after all. */
        assert_true(g->cases[i].n < 4 || cosine < 1 - 1e-10);
    }
    free(out);
}

#endif
