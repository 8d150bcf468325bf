/* Several GPUs share the work of one model: which computes what makes no difference, one that fails leaves its part to the
 * others, and one that is short of memory takes less. The devices are emulated. */
#include "gpu_checks.h"

#include "engine/session.h"
#include "gpu/emulator.h"

#define BERT FIXTURE("bert-cls")
#define DECODER FIXTURE("qwen3.5-text")
#define RERANKER FIXTURE("qwen3-reranker")

enum { N_TEXTS = 40, LENGTHS = 13, BATCH = 64 };

typedef struct subject {
    lattice_runtime *runtime;
    char warnings[4096];
    size_t n_warnings;
} subject;

static void note(void *user, lattice_log_level level, const char *message)
{
    subject *s = user;
    if (level != LATTICE_LOG_WARNING) return;
    s->n_warnings++;
    strncat(s->warnings, message, sizeof s->warnings - strlen(s->warnings) - 2);
    strcat(s->warnings, "\n");
}

static void begin(subject *s, int n_devices)
{
    if (!lt_emulator_works()) skip();
    lattice_error err;
    lattice_runtime_options o = lattice_runtime_options_default();
    *s = (subject){ 0 };
    o.n_threads = 2;
    o.log = note;
    o.log_user = s;
    assert_ok_err(lattice_runtime_create(&o, &s->runtime, &err), &err);
    s->runtime->gpu_driver = &lt_gpu_emulated;
    lt_emulated_reset();
    lt_emulated_devices = n_devices;
}

static void end(subject *s)
{
    lattice_runtime_free(s->runtime);
    lt_emulated_reset();
}

static lattice_model *open_on(subject *s, const char *folder, const char *device)
{
    lattice_error err;
    lattice_model_options o = lattice_model_options_default();
    lattice_model *m;
    o.device = device;
    o.compute = LATTICE_COMPUTE_F32;
    o.batch_tokens = BATCH;
    assert_ok_err(lattice_model_open(s->runtime, folder, &o, &m, &err), &err);
    return m;
}

/* Vectors of texts of 1 to 13 tokens. */
static float *embed(lattice_model *m, size_t n_texts)
{
    lattice_error err;
    static uint32_t ids[N_TEXTS][LENGTHS];
    lattice_ids inputs[N_TEXTS];
    for (size_t i = 0; i < n_texts; i++) {
        inputs[i] = (lattice_ids){ ids[i], i * 7 % LENGTHS + 1 };
        for (size_t t = 0; t < LENGTHS; t++) ids[i][t] = (uint32_t)((i * 31 + t * 17) % 90 + 1);
    }
    float *out = calloc(n_texts * lattice_embed_dim(m, NULL), sizeof *out);
    assert_ok_err(lattice_embed_ids(m, inputs, n_texts, NULL, out, NULL, &err), &err);
    return out;
}

/* Products are made by kernels that depend on the rows there are, and add in their order. */
static void assert_close(const float *x, const float *wanted, size_t n)
{
    float most = 0;
    for (size_t i = 0; i < n; i++) most = fmaxf(most, fabsf(wanted[i]));
    for (size_t i = 0; i < n; i++) assert_true(fabsf(x[i] - wanted[i]) <= 1e-5f * most);
}

static void assert_vectors(lattice_model *m, const float *wanted)
{
    float *x = embed(m, N_TEXTS);
    assert_close(x, wanted, N_TEXTS * lattice_embed_dim(m, NULL));
    free(x);
}

static void assert_same_vectors(lattice_model *m, const float *wanted)
{
    float *x = embed(m, N_TEXTS);
    assert_memory_equal(x, wanted, N_TEXTS * lattice_embed_dim(m, NULL) * sizeof *x);
    free(x);
}

/* The vectors of one device, and how many launches they took. */
static float *vectors_of_one(subject *s, const char *folder, const char *device)
{
    lattice_model *m = open_on(s, folder, device);
    float *x = embed(m, N_TEXTS);
    lattice_model_close(m);
    return x;
}

static void devices_share_the_work_and_give_what_one_gives(void **state)
{
    (void)state;
    static const char *const names[] = { "emulated:0,1,2", "emulated:all", "emulated:2,0" };
    subject s;
    begin(&s, 3);
    float *wanted = vectors_of_one(&s, BERT, "emulated:1");
    assert_int_equal(lt_emulated_launches, lt_emulated_launches_of[1]);
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        memset(lt_emulated_launches_of, 0, sizeof lt_emulated_launches_of);
        lattice_model *m = open_on(&s, BERT, names[i]);
        lattice_model_info info;
        lattice_model_get_info(m, &info);
        assert_string_equal(info.device, "emulated");
        assert_int_equal(info.n_devices, i < 2 ? 3 : 2);
        lt_emulated_meet = i < 2 ? 3 : 2;
        assert_vectors(m, wanted);
        for (int d = 0; d < 3; d++) assert_int_equal(lt_emulated_launches_of[d] > 0, i < 2 || d != 1);
        lattice_model_close(m);
    }
    assert_int_equal(s.n_warnings, 0);
    free(wanted);
    end(&s);
}

static void other_results_come_in_their_places(void **state)
{
    (void)state;
    subject s;
    begin(&s, 2);
    lattice_error err;
    lattice_model *m = open_on(&s, DECODER, "emulated:all"), *one = open_on(&s, DECODER, "emulated");
    test_batch *b = malloc(sizeof *b);
    batch_clear(b);
    uint32_t ids[70];
    for (uint32_t i = 0; i < 70; i++) ids[i] = i % 13 * 7 + 1;
    size_t lengths[] = { 60, 3, 41, 1, 17, 50, 59, 42 }; /* more than an eighth of what a batch holds, which is not shared */
    for (size_t i = 0; i < 8; i++) batch_add(b, ids + i, NULL, lengths[i]);
    static const lt_tail_kind kinds[] = { LT_TAIL_TOKENS, LT_TAIL_LOGITS };
    for (int reversed = 0; reversed < 2; reversed++) {
        for (size_t k = 0; k < 2; k++) {
            size_t rows = k == 0 ? b->batch.n_tokens : b->batch.n_out;
            size_t floats = rows * lt_tail_width(&m->plan, kinds[k], 0);
            float *x = malloc(floats * sizeof *x), *wanted = malloc(floats * sizeof *wanted);
            memset(lt_emulated_launches_of, 0, sizeof lt_emulated_launches_of);
            lt_emulated_meet = 2;
            assert_ok_err(m->backend->run(m->program, &b->batch, kinds[k], x, NULL, &err), &err);
            assert_true(lt_emulated_launches_of[0] > 0 && lt_emulated_launches_of[1] > 0);
            assert_ok_err(one->backend->run(one->program, &b->batch, kinds[k], wanted, NULL, &err), &err);
            assert_close(x, wanted, floats);
            free(x);
            free(wanted);
        }
        for (size_t i = 0; i < b->batch.n_out / 2; i++) { /* selected in another order than they come */
            size_t *rows = b->out_rows, other = b->batch.n_out - 1 - i, row = rows[i];
            rows[i] = rows[other];
            rows[other] = row;
        }
    }
    free(b);
    lattice_model_close(m);
    lattice_model_close(one);
    end(&s);
}

static void a_device_that_fails_leaves_its_part_to_the_others(void **state)
{
    (void)state;
    subject s;
    begin(&s, 2);
    float *wanted = vectors_of_one(&s, BERT, "emulated");
    lattice_model *m = open_on(&s, BERT, "emulated:all");
    lt_emulated_launches = 0;
    lt_emulated_fail_device = 1;
    lt_emulated_fail_at = 30;
    lt_emulated_meet = 2;
    assert_vectors(m, wanted);
    long launches = lt_emulated_launches_of[1];
    assert_int_equal(s.n_warnings, 1);
    assert_non_null(strstr(s.warnings, "GPU 2 of 2 failed"));
    assert_vectors(m, wanted);
    assert_int_equal(lt_emulated_launches_of[1], launches); /* it is not asked again */
    assert_int_equal(s.n_warnings, 1);
    lt_emulated_fail_device = -1; /* now the other, too */
    float *x = embed(m, N_TEXTS), *cpu = vectors_of_one(&s, BERT, "cpu");
    launches = lt_emulated_launches;
    size_t dim = lattice_embed_dim(m, NULL);
    assert_close(x, cpu, N_TEXTS * dim);
    assert_same_vectors(m, cpu);
    assert_int_equal(lt_emulated_launches, launches);
    assert_int_equal(s.n_warnings, 2);
    assert_non_null(strstr(s.warnings, "all further runs are on the CPU"));
    free(x);
    free(cpu);
    free(wanted);
    lattice_model_close(m);
    end(&s);
}

static void a_device_that_is_not_there_or_does_not_take_the_model_is_left_out(void **state)
{
    (void)state;
    subject s;
    begin(&s, 2);
    float *wanted = vectors_of_one(&s, BERT, "emulated");
    lattice_model *m = open_on(&s, BERT, "emulated:1,3");
    size_t at_open = lt_emulated_used_of[1];
    assert_int_equal(m->backend->n_devices, 1);
    assert_int_equal(s.n_warnings, 1);
    assert_non_null(strstr(s.warnings, "there is no device 3"));
    assert_vectors(m, wanted);
    lattice_model_close(m);
    m = open_on(&s, BERT, "emulated:5,3");
    assert_string_equal(m->backend->name, "cpu");
    lattice_model_close(m);
    /* A device whose memory others use. */
    lt_emulated_memory = lt_emulated_used_of[0] = at_open + ((size_t)8 << 20);
    m = open_on(&s, BERT, "emulated:all");
    assert_int_equal(m->backend->n_devices, 1);
    assert_non_null(strstr(s.warnings, "GPU 1 of 2 is not used"));
    assert_vectors(m, wanted);
    lattice_model_close(m);
    lt_emulated_used_of[0] = 0;
    free(wanted);
    static const char *const names[] = { "emulated:0,0",   "emulated:0,", "emulated:,1",
                                         "emulated:all,1", "emulated:al", "emulated:0;1" };
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        lattice_error err;
        lattice_model_options o = lattice_model_options_default();
        o.device = names[i];
        assert_int_equal(lattice_model_open(s.runtime, BERT, &o, &m, &err), LATTICE_ERR_INVALID_ARGUMENT);
        assert_non_null(strstr(err.message, "unknown device"));
    }
    end(&s);
}

/* The workspace of a whole batch does not fit, those of its parts do. */
static void a_batch_that_does_not_fit_is_halved(void **state)
{
    (void)state;
    for (int n = 1; n <= 2; n++) {
        subject s;
        begin(&s, n);
        lattice_model *m = open_on(&s, BERT, "emulated");
        size_t at_open = lt_emulated_used_of[0];
        float *wanted = embed(m, N_TEXTS);
        size_t whole = lt_emulated_used_of[0] - at_open; /* for batches of 64 tokens */
        lattice_model_close(m);
        m = open_on(&s, BERT, "emulated:all");
        assert_int_equal(lt_emulated_used_of[0], at_open);
        lt_emulated_memory = at_open + whole / 2;
        lt_emulated_meet = n;
        memset(lt_emulated_launches_of, 0, sizeof lt_emulated_launches_of);
        assert_vectors(m, wanted);
        assert_int_equal(s.n_warnings, 1);
        assert_non_null(strstr(s.warnings, "takes less at once"));
        for (int d = 0; d < n; d++) assert_true(lt_emulated_launches_of[d] > 0);
        long launches = lt_emulated_launches;
        assert_vectors(m, wanted);
        assert_true(lt_emulated_launches > launches); /* still on the GPU */
        assert_int_equal(s.n_warnings, 1);
        /* When not even a single text fits, the CPU computes it; when there is memory again, the GPU. */
        lattice_model_close(m);
        m = open_on(&s, BERT, "emulated:all");
        lt_emulated_memory = at_open;
        launches = lt_emulated_launches;
        float *cpu = vectors_of_one(&s, BERT, "cpu");
        assert_same_vectors(m, cpu);
        assert_int_equal(lt_emulated_launches, launches);
        assert_int_equal(s.n_warnings, 2);
        lt_emulated_memory = 0;
        assert_vectors(m, wanted);
        assert_true(lt_emulated_launches > launches);
        free(cpu);
        free(wanted);
        lattice_model_close(m);
        end(&s);
    }
}

enum { SESSIONS = 5, STEPS = 4 };

/* Greedy tokens of conversations that go on together. */
static void converse(lattice_model *m, uint32_t tokens[STEPS][SESSIONS], int fail_at_step)
{
    lattice_error err;
    lattice_session *sessions[SESSIONS];
    uint32_t ids[SESSIONS][LENGTHS];
    lattice_piece pieces[SESSIONS];
    for (size_t i = 0; i < SESSIONS; i++) {
        assert_ok_err(lattice_session_create(m, NULL, &sessions[i], &err), &err);
        for (size_t t = 0; t < LENGTHS; t++) ids[i][t] = (uint32_t)((i * 13 + t * 5) % 90 + 1);
        pieces[i] = (lattice_piece){ .session = sessions[i], .ids = ids[i], .n = LENGTHS - i };
    }
    for (int step = 0; step < STEPS; step++) {
        if (step == fail_at_step) lt_emulated_fail_at = lt_emulated_launches + 10;
        assert_ok_err(lattice_sessions_append(pieces, SESSIONS, &err), &err);
        for (size_t i = 0; i < SESSIONS; i++) {
            const float *logits = lattice_session_logits(sessions[i]);
            uint32_t best = 0;
            for (uint32_t v = 1; v < m->config.vocab_size; v++) best = logits[v] > logits[best] ? v : best;
            tokens[step][i] = ids[i][0] = best;
            pieces[i].n = 1;
        }
    }
    for (size_t i = 0; i < SESSIONS; i++) lattice_session_free(sessions[i]);
}

static void conversations_live_on_all_devices_and_leave_one_that_fails(void **state)
{
    (void)state;
    subject s;
    begin(&s, 2);
    uint32_t wanted[STEPS][SESSIONS], tokens[STEPS][SESSIONS];
    lattice_model *m = open_on(&s, DECODER, "emulated");
    converse(m, wanted, -1);
    lattice_model_close(m);
    for (int fail_at_step = -1; fail_at_step < 3; fail_at_step += 2) {
        m = open_on(&s, DECODER, "emulated:all");
        memset(lt_emulated_launches_of, 0, sizeof lt_emulated_launches_of);
        lt_emulated_fail_device = 0;
        lt_emulated_meet = 2;
        converse(m, tokens, fail_at_step);
        assert_memory_equal(tokens, wanted, sizeof wanted);
        assert_true(lt_emulated_launches_of[0] > 0 && lt_emulated_launches_of[1] > 0);
        assert_int_equal(s.n_warnings, fail_at_step < 0 ? 0 : 1);
        lattice_model_close(m);
    }
    assert_non_null(strstr(s.warnings, "GPU 1 of 2 failed; the others go on without it"));
    end(&s);
}

static void a_reranker_has_the_rows_that_documents_share_on_every_device(void **state)
{
    (void)state;
    subject s;
    begin(&s, 2);
    enum { N = 6 };
    lattice_error err;
    lattice_text documents[N], query = { "what is a lattice", 17 };
    static const char *const texts[N] = { "a", "a lattice is a grid", "bread", "points in a row", "an order with meets", "x" };
    for (size_t i = 0; i < N; i++) documents[i] = (lattice_text){ texts[i], strlen(texts[i]) };
    float scores[2][N];
    for (int i = 0; i < 2; i++) {
        lattice_model *m = open_on(&s, RERANKER, i ? "emulated:all" : "emulated");
        memset(lt_emulated_launches_of, 0, sizeof lt_emulated_launches_of);
        lt_emulated_meet = 0;
        assert_ok_err(lattice_rerank(m, query, documents, N, NULL, scores[i], NULL, NULL, &err), &err);
        assert_true(lt_emulated_launches_of[0] > 0 && (lt_emulated_launches_of[1] > 0) == (i == 1));
        lattice_model_close(m);
    }
    assert_close(scores[1], scores[0], N);
    assert_int_equal(s.n_warnings, 0);
    end(&s);
}

/* Whatever allocation fails once the model is open: an error without a leak, or the right vectors. */
static void every_allocation_of_a_run_may_fail(void **state)
{
    (void)state;
    if (!lt_emulator_works()) skip();
    lattice_error err;
    lt_emulated_reset();
    lt_emulated_devices = 2;
    lt_test_allocator a = lt_test_allocator_failing_at(0);
    lattice_allocator mem = lt_test_allocator_hooks(&a);
    lattice_runtime_options o = lattice_runtime_options_default();
    o.n_threads = 1;
    o.allocator = &mem;
    subject s = { 0 };
    assert_ok_err(lattice_runtime_create(&o, &s.runtime, &err), &err);
    s.runtime->gpu_driver = &lt_gpu_emulated;
    lattice_model *m = open_on(&s, BERT, "emulated:all");
    uint32_t ids[2][LENGTHS] = { { 3, 17, 9, 4 }, { 5, 8 } };
    lattice_ids inputs[24];
    for (size_t i = 0; i < 24; i++) inputs[i] = (lattice_ids){ ids[i % 2], LENGTHS };
    float x[GOLDEN_FLOATS];
    bool refused = true;
    for (long n = 1; refused; n++) {
        long before = atomic_load(&a.requests);
        a.fail_at = before + n;
        lattice_status status = lattice_embed_ids(m, inputs, 24, NULL, x, NULL, &err);
        if (status != LATTICE_OK) assert_int_equal(status, LATTICE_ERR_NO_MEMORY);
        refused = atomic_load(&a.requests) >= before + n;
    }
    a.fail_at = 0;
    lattice_model_close(m);
    lattice_runtime_free(s.runtime);
    assert_int_equal(lt_test_allocator_live(&a), 0);
    lt_emulated_reset();
}

int main(int argc, char **argv)
{
    if (argc > 1) cmocka_set_test_filter(argv[1]);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(devices_share_the_work_and_give_what_one_gives),
        cmocka_unit_test(other_results_come_in_their_places),
        cmocka_unit_test(a_device_that_fails_leaves_its_part_to_the_others),
        cmocka_unit_test(a_device_that_is_not_there_or_does_not_take_the_model_is_left_out),
        cmocka_unit_test(a_batch_that_does_not_fit_is_halved),
        cmocka_unit_test(conversations_live_on_all_devices_and_leave_one_that_fails),
        cmocka_unit_test(a_reranker_has_the_rows_that_documents_share_on_every_device),
        cmocka_unit_test(every_allocation_of_a_run_may_fail),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
