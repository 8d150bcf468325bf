/* A GPU that is refused, does not start, fails in the middle or is given too much leaves a model that works on the CPU (INV-4).
 * The device is the emulated one, which fails on request. */
#include <math.h>

#include "engine/session.h"
#include "gpu_checks.h"

#include "gpu/emulator.h"
#include "model_copy.h"

#define BERT FIXTURE("bert-cls")
#define DECODER FIXTURE("qwen3.5-text")

typedef struct subject {
    lattice_runtime *runtime;
    char warnings[2048];
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

static void begin(subject *s)
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
    unsetenv("LATTICE_NO_GPU");
}

static void end(subject *s)
{
    lattice_runtime_free(s->runtime);
    lt_emulated_reset();
}

static lattice_model *open_on(subject *s, const char *folder, const char *device)
{
    return gpu_open(s->runtime, folder, device, LATTICE_COMPUTE_F32);
}

static const uint32_t short_ids[] = { 3, 17, 9, 4 };
static const uint32_t long_ids[] = { 3, 17, 9, 4, 8, 22, 31, 7, 5, 12, 40 };

static void embed(lattice_model *m, float *out)
{
    lattice_error err;
    lattice_ids inputs[2] = { { short_ids, 4 }, { long_ids, 11 } };
    assert_ok_err(lattice_embed_ids(m, inputs, 2, NULL, out, NULL, &err), &err);
}

/* The model gives what one on the CPU alone gives, bit for bit. */
static void assert_same_as_cpu(subject *s, lattice_model *m, const char *folder)
{
    lattice_model *cpu = open_on(s, folder, "cpu");
    size_t dim = lattice_embed_dim(m, NULL);
    float *x = calloc(2 * dim, sizeof *x), *wanted = calloc(2 * dim, sizeof *wanted);
    embed(m, x);
    embed(cpu, wanted);
    assert_memory_equal(x, wanted, 2 * dim * sizeof *x);
    free(x);
    free(wanted);
    lattice_model_close(cpu);
}

static void LATTICE_NO_GPU_leaves_the_cpu_with_a_warning(void **state)
{
    (void)state;
    static const struct {
        const char *value;
        bool gpu;
    } cases[] = { { NULL, true }, { "", true }, { "0", true }, { "1", false }, { "yes", false } };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        subject s;
        begin(&s);
        if (cases[i].value) setenv("LATTICE_NO_GPU", cases[i].value, 1);
        lattice_model *m = open_on(&s, BERT, i % 2 ? "emulated" : "auto");
        assert_string_equal(m->backend->name, cases[i].gpu ? "emulated" : "cpu");
        assert_int_equal(s.n_warnings, cases[i].gpu ? 0 : 1);
        if (!cases[i].gpu) {
            assert_non_null(strstr(s.warnings, "LATTICE_NO_GPU"));
            assert_same_as_cpu(&s, m, BERT);
            assert_int_equal(lt_emulated_launches, 0);
        }
        lattice_model_close(m);
        unsetenv("LATTICE_NO_GPU");
        end(&s);
    }
}

static void INV_4_a_device_that_does_not_start_leaves_the_cpu(void **state)
{
    (void)state;
    subject s;
    begin(&s);
    lt_emulated_open_status = LATTICE_ERR_DEVICE;
    lattice_model *m = open_on(&s, BERT, "auto");
    assert_string_equal(m->backend->name, "cpu");
    assert_int_equal(s.n_warnings, 1);
    assert_non_null(strstr(s.warnings, "does not start"));
    assert_same_as_cpu(&s, m, BERT);
    lattice_model_close(m);
    /* A machine without a device: no warning unless one was asked for. */
    lt_emulated_open_status = LATTICE_ERR_NOT_FOUND;
    lattice_model_close(open_on(&s, BERT, "auto"));
    assert_int_equal(s.n_warnings, 1);
    lattice_model_close(open_on(&s, BERT, "emulated"));
    assert_int_equal(s.n_warnings, 2);
    end(&s);
}

static void INV_2_a_head_dim_not_divisible_by_4_runs_on_the_cpu(void **state)
{
    (void)state;
    subject s;
    begin(&s);
    lt_test_folder folder = copy_model(BERT);
    char path[256];
    size_t size;
    char *text = lt_test_read_file(lt_test_path(&folder, "config.json", path), &size);
    char *heads = strstr(text, "\"num_attention_heads\": 4");
    assert_non_null(heads);
    heads[strlen("\"num_attention_heads\": ")] = '8'; /* of 48 numbers: head_dim 6 */
    lt_test_write_file(path, text, size);
    free(text);
    lattice_model *m = open_on(&s, folder.path, "auto");
    assert_string_equal(m->backend->name, "cpu");
    assert_int_equal(s.n_warnings, 1);
    assert_non_null(strstr(s.warnings, "head_dim 6 is not divisible by 4"));
    assert_same_as_cpu(&s, m, folder.path);
    lattice_model_close(m);
    lt_test_folder_remove(&folder);
    end(&s);
}

static void INV_4_a_failure_in_the_middle_is_repeated_on_the_cpu_and_stays_there(void **state)
{
    (void)state;
    static const long at[] = { 1, 7, 20 };
    for (size_t i = 0; i < sizeof at / sizeof *at; i++) {
        subject s;
        begin(&s);
        lattice_model *m = open_on(&s, BERT, "auto");
        assert_string_equal(m->backend->name, "emulated");
        lt_emulated_fail_at = at[i];
        assert_same_as_cpu(&s, m, BERT);
        assert_int_equal(lt_emulated_launches, at[i]);
        assert_int_equal(s.n_warnings, 1);
        assert_non_null(strstr(s.warnings, "injected fault"));
        assert_same_as_cpu(&s, m, BERT);
        assert_int_equal(lt_emulated_launches, at[i]); /* the device is not asked again */
        assert_int_equal(s.n_warnings, 1);
        lattice_model_close(m);
        end(&s);
    }
}

/* The hook that a profiler or a test has for one operation. */
static void INV_4_a_failing_operation_is_repeated_on_the_cpu(void **state)
{
    (void)state;
    subject s;
    begin(&s);
    lattice_error err;
    lattice_model *m = open_on(&s, BERT, "auto"), *cpu = open_on(&s, BERT, "cpu");
    test_batch *b = malloc(sizeof *b);
    batch_clear(b);
    batch_add(b, long_ids, NULL, 11);
    size_t floats = 11 * m->plan.values[m->plan.hidden].width;
    float *x = malloc(floats * sizeof *x), *wanted = malloc(floats * sizeof *wanted);
    lt_run_hooks hooks = { .fail_at_op = 5 };
    assert_ok_err(m->backend->run(m->program, &b->batch, LT_TAIL_TOKENS, x, &hooks, &err), &err);
    assert_ok_err(cpu->backend->run(cpu->program, &b->batch, LT_TAIL_TOKENS, wanted, NULL, &err), &err);
    assert_memory_equal(x, wanted, floats * sizeof *x);
    assert_int_equal(s.n_warnings, 1);
    free(x);
    free(wanted);
    free(b);
    lattice_model_close(m);
    lattice_model_close(cpu);
    end(&s);
}

/* A conversation whose device fails goes on from its ids: the tokens are the reference's. */
static void a_conversation_moves_to_the_cpu_with_its_state(void **state)
{
    (void)state;
    subject s;
    begin(&s);
    lattice_error err;
    golden *g = golden_read(DECODER);
    const golden_case *c = NULL;
    for (size_t i = 0; i < g->n_cases; i++) {
        if (g->cases[i].greedy_min_margin >= 1e-3 && g->cases[i].n < 40) c = &g->cases[i];
    }
    assert_non_null(c);
    lattice_model *m = open_on(&s, DECODER, "auto");
    assert_string_equal(m->backend->name, "emulated");
    lattice_session *session;
    assert_ok_err(lattice_session_create(m, NULL, &session, &err), &err);
    assert_ok_err(lattice_session_prefill(session, c->ids, c->n, &err), &err);
    lt_emulated_fail_at = lt_emulated_launches * 3 / 2 + lt_emulated_launches * 2; /* in the midst of the third token after it */
    lattice_generate_options o = { .sampling = { .top_p = 1, .repetition_penalty = 1 }, .ignore_end = true, .max_tokens = 12 };
    lattice_generation generation;
    assert_ok_err(lattice_generate(session, &o, &generation, &err), &err);
    assert_int_equal(generation.n, 12);
    assert_memory_equal(generation.ids, c->greedy, 12 * sizeof(uint32_t));
    assert_int_equal(lt_emulated_launches, lt_emulated_fail_at); /* it did fail */
    assert_int_equal(s.n_warnings, 1);
    lattice_generation_free(&generation);
    lattice_session_free(session);
    lattice_model_close(m);
    golden_free(g);
    end(&s);
}

/* Logits that stay on the device are there whenever they are asked for: behind other sessions' runs, behind one that fails, in a
 * fork. What is chosen of the likeliest tokens alone is what all logits give. */
static void logits_are_brought_when_they_are_needed(void **state)
{
    (void)state;
    subject s;
    begin(&s);
    lattice_error err;
    golden *g = golden_read(DECODER);
    lattice_model *m = open_on(&s, DECODER, "auto"), *cpu = open_on(&s, DECODER, "cpu");
    const size_t width = m->config.vocab_size;
    lattice_session *a, *b, *other, *reference;
    assert_ok_err(lattice_session_create(m, NULL, &a, &err), &err);
    assert_ok_err(lattice_session_create(m, NULL, &b, &err), &err);
    assert_ok_err(lattice_session_create(cpu, NULL, &reference, &err), &err);
    assert_ok_err(lattice_session_prefill(reference, g->cases[0].ids, g->cases[0].n, &err), &err);
    assert_ok_err(lattice_session_prefill(a, g->cases[0].ids, g->cases[0].n, &err), &err);
    assert_true(a->top.n > 0);
    assert_ok_err(lattice_session_prefill(b, g->cases[1].ids, g->cases[1].n, &err), &err);
    const float *logits = lattice_session_logits(a), *expected = lattice_session_logits(reference);
    for (size_t i = 0; i < width; i++) assert_true(fabsf(logits[i] - expected[i]) < 1e-3f);
    lattice_session_cancel(b);
    assert_int_equal(lattice_session_step(b, 1, &err), LATTICE_ERR_CANCELLED);
    assert_ok_err(lattice_session_fork(b, &other, &err), &err);
    assert_memory_equal(lattice_session_logits(b), lattice_session_logits(other), width * sizeof(float));
    lattice_session_free(other);
    for (int top = 0; top < 2; top++) {
        lattice_generation by_top, by_all;
        lattice_generate_options o = {
            .sampling = { .temperature = 0.9, .top_p = 0.95, .top_k = 20, .repetition_penalty = 1, .seed = 7 },
            .ignore_end = true,
            .max_tokens = 8
        };
        if (top == 1) o.sampling.temperature = 0;
        lattice_session *whole;
        assert_ok_err(lattice_session_fork(a, &other, &err), &err);
        assert_ok_err(lattice_session_fork(a, &whole, &err), &err);
        assert_ok_err(lattice_generate(other, &o, &by_top, &err), &err);
        o.logprobs = true;
        assert_ok_err(lattice_generate(whole, &o, &by_all, &err), &err);
        assert_int_equal(by_top.n, 8);
        assert_memory_equal(by_top.ids, by_all.ids, 8 * sizeof(uint32_t));
        lattice_generation_free(&by_top);
        lattice_generation_free(&by_all);
        lattice_session_free(other);
        lattice_session_free(whole);
    }
    lattice_session_free(a);
    lattice_session_free(b);
    lattice_session_free(reference);
    lattice_model_close(m);
    lattice_model_close(cpu);
    golden_free(g);
    end(&s);
}

/* What is saved on the device is loaded on it, and goes on with the same tokens. */
static void a_conversation_is_saved_and_loaded(void **state)
{
    (void)state;
    subject s;
    begin(&s);
    lattice_error err;
    golden *g = golden_read(DECODER);
    const golden_case *c = NULL;
    for (size_t i = 0; i < g->n_cases; i++) {
        if (g->cases[i].greedy_min_margin >= 1e-3 && g->cases[i].n < 40 && g->cases[i].n > 3) c = &g->cases[i];
    }
    assert_non_null(c);
    lattice_model *m = open_on(&s, DECODER, "auto");
    lattice_session *session, *loaded;
    lt_test_folder folder = lt_test_folder_create();
    char path[256];
    lt_test_path(&folder, "snapshot", path);
    assert_ok_err(lattice_session_create(m, NULL, &session, &err), &err);
    assert_ok_err(lattice_session_prefill(session, c->ids, c->n, &err), &err);
    assert_ok_err(lattice_session_save(session, path, &err), &err);
    lattice_session_free(session);
    assert_ok_err(lattice_session_load(m, path, NULL, &loaded, &err), &err);
    lattice_generate_options o = { .sampling = { .top_p = 1, .repetition_penalty = 1 }, .ignore_end = true, .max_tokens = 6 };
    lattice_generation generation;
    assert_ok_err(lattice_generate(loaded, &o, &generation, &err), &err);
    assert_int_equal(generation.n, 6);
    assert_memory_equal(generation.ids, c->greedy, 6 * sizeof(uint32_t));
    assert_int_equal(s.n_warnings, 0);
    lattice_generation_free(&generation);
    lattice_session_free(loaded);
    lattice_model_close(m);
    lt_test_folder_remove(&folder);
    golden_free(g);
    end(&s);
}

static void too_little_device_memory_leaves_the_cpu(void **state)
{
    (void)state;
    subject s;
    begin(&s);
    lt_emulated_memory = 1000; /* not even the weights fit */
    lattice_model *m = open_on(&s, BERT, "auto");
    assert_string_equal(m->backend->name, "cpu");
    assert_non_null(strstr(s.warnings, "no memory"));
    assert_same_as_cpu(&s, m, BERT);
    lattice_model_close(m);
    end(&s);
}

static void a_sequence_over_gpu_max_seq_len_runs_on_the_cpu(void **state)
{
    (void)state;
    subject s;
    begin(&s);
    lattice_error err;
    lt_test_folder folder = copy_model(BERT);
    write_text(&folder, "inference_config.json", "{\"gpu_max_seq_len\": 8}");
    lattice_model *m = open_on(&s, folder.path, "auto");
    assert_string_equal(m->backend->name, "emulated");
    float x[GOLDEN_FLOATS];
    lattice_ids inputs[2] = { { short_ids, 4 }, { long_ids, 11 } };
    assert_ok_err(lattice_embed_ids(m, &inputs[0], 1, NULL, x, NULL, &err), &err);
    long launches = lt_emulated_launches;
    assert_true(launches > 0);
    assert_int_equal(s.n_warnings, 0);
    for (int i = 0; i < 2; i++) {
        assert_ok_err(lattice_embed_ids(m, &inputs[1], 1, NULL, x, NULL, &err), &err);
        assert_int_equal(lt_emulated_launches, launches);
        assert_int_equal(s.n_warnings, 1); /* once */
    }
    assert_non_null(strstr(s.warnings, "gpu_max_seq_len 8"));
    assert_ok_err(lattice_embed_ids(m, &inputs[0], 1, NULL, x, NULL, &err), &err);
    assert_true(lt_emulated_launches > launches); /* short ones go on as before */
    lattice_model_close(m);
    lt_test_folder_remove(&folder);
    end(&s);
}

static void an_unknown_device_is_an_error(void **state)
{
    (void)state;
    subject s;
    begin(&s);
    static const char *const names[] = { "gpu", "cuda:", "cuda:x", "cuda1", "cuda:-1", "" };
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        lattice_error err;
        lattice_model *m;
        lattice_model_options o = lattice_model_options_default();
        o.device = names[i];
        assert_int_equal(lattice_model_open(s.runtime, BERT, &o, &m, &err), LATTICE_ERR_INVALID_ARGUMENT);
        assert_non_null(strstr(err.message, "unknown device"));
    }
    end(&s);
}

/* Whatever allocation fails, on the host: an error without a leak, or the CPU. */
static void every_allocation_may_fail(void **state)
{
    (void)state;
    if (!lt_emulator_works()) skip();
    lattice_error err;
    for (long n = 1, step = 1;; n += step, step = n / 8 + 1) { /* compiling takes long: ever larger steps */
        lt_test_allocator a = lt_test_allocator_failing_at(n);
        lattice_allocator mem = lt_test_allocator_hooks(&a);
        lattice_runtime_options o = lattice_runtime_options_default();
        o.n_threads = 1;
        o.allocator = &mem;
        lattice_runtime *runtime;
        lattice_status status = lattice_runtime_create(&o, &runtime, &err);
        bool refused = true;
        if (status == LATTICE_OK) {
            runtime->gpu_driver = &lt_gpu_emulated;
            lattice_model *m;
            lattice_model_options options = lattice_model_options_default();
            options.compute = LATTICE_COMPUTE_F32;
            status = lattice_model_open(runtime, BERT, &options, &m, &err);
            if (status == LATTICE_OK) {
                float x[GOLDEN_FLOATS];
                lattice_ids input = { short_ids, 4 };
                status = lattice_embed_ids(m, &input, 1, NULL, x, NULL, &err);
                lattice_model_close(m);
            }
            refused = atomic_load(&a.requests) >= n;
            lattice_runtime_free(runtime);
        }
        assert_int_equal(lt_test_allocator_live(&a), 0);
        if (!refused) break;
        if (status != LATTICE_OK) assert_int_equal(status, LATTICE_ERR_NO_MEMORY);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(LATTICE_NO_GPU_leaves_the_cpu_with_a_warning),
        cmocka_unit_test(INV_4_a_device_that_does_not_start_leaves_the_cpu),
        cmocka_unit_test(INV_2_a_head_dim_not_divisible_by_4_runs_on_the_cpu),
        cmocka_unit_test(INV_4_a_failure_in_the_middle_is_repeated_on_the_cpu_and_stays_there),
        cmocka_unit_test(INV_4_a_failing_operation_is_repeated_on_the_cpu),
        cmocka_unit_test(a_conversation_moves_to_the_cpu_with_its_state),
        cmocka_unit_test(a_conversation_is_saved_and_loaded),
        cmocka_unit_test(logits_are_brought_when_they_are_needed),
        cmocka_unit_test(too_little_device_memory_leaves_the_cpu),
        cmocka_unit_test(a_sequence_over_gpu_max_seq_len_runs_on_the_cpu),
        cmocka_unit_test(an_unknown_device_is_an_error),
        cmocka_unit_test(every_allocation_may_fail),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
