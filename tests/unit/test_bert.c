/* BERT, RoBERTa and XLM-RoBERTa through plan and CPU backend, against the fixtures' golden values: every instruction set that
 * this machine has, several numbers of threads. */
#include "model_fixture.h"

static void check_poolings(opened *m, const golden *g, test_batch *b)
{
    lattice_error err;
    assert_true(g->has_poolings);
    batch_clear(b);
    batch_add(b, g->cases[0].ids, NULL, g->cases[0].n);
    batch_add(b, g->pooled.ids, NULL, g->pooled.n);
    float out[2 * 6 * GOLDEN_FLOATS];
    size_t width = lt_tail_width(&m->plan, LT_TAIL_POOLED, 63);
    assert_int_equal(width, 6 * m->hidden);
    b->batch.pooling = 63;
    assert_ok_err(m->backend->run(m->program, &b->batch, LT_TAIL_POOLED, out, NULL, &err), &err);
    for (size_t i = 0; i < 6; i++) {
        const float *wanted = g->poolings[i];
        char what[48];
        snprintf(what, sizeof what, "pooling %zu, joined", i);
        assert_near(out + width + i * m->hidden, wanted, m->hidden, 1e-5f * largest(wanted, m->hidden), what);
    }
    for (unsigned i = 0; i < 6; i++) {
        b->batch.pooling = 1u << i;
        assert_ok_err(m->backend->run(m->program, &b->batch, LT_TAIL_POOLED, out, NULL, &err), &err);
        const float *wanted = g->poolings[i];
        char what[48];
        snprintf(what, sizeof what, "pooling %u, alone", i);
        assert_near(out + m->hidden, wanted, m->hidden, 1e-5f * largest(wanted, m->hidden), what);
    }
}

static void check_logits(opened *m, const golden *g, test_batch *b)
{
    lattice_error err;
    float out[GOLDEN_CASES * 8];
    size_t labels = lt_tail_width(&m->plan, LT_TAIL_SCORES, 0);
    batch_clear(b);
    for (size_t i = 0; i < g->n_cases; i++) batch_add(b, g->cases[i].ids, g->cases[i].type_ids, g->cases[i].n);
    assert_ok_err(m->backend->run(m->program, &b->batch, LT_TAIL_SCORES, out, NULL, &err), &err);
    for (size_t i = 0; i < g->n_cases; i++) {
        const golden_case *c = &g->cases[i];
        assert_int_equal(c->n_values, labels);
        assert_near(out + i * labels, c->values, labels, 5e-5f * largest(c->values, labels), "logits");
    }
}

static void bert_cls_hidden_states(void **state)
{
    (void)state;
    on_every_set(FIXTURE("bert-cls"), check_trace);
}

static void bert_f16_gelu_new_hidden_states(void **state)
{
    (void)state;
    on_every_set(FIXTURE("bert-mean-f16"), check_trace);
}

static void roberta_relu_hidden_states(void **state)
{
    (void)state;
    on_every_set(FIXTURE("roberta-max"), check_trace);
}

static void xlmr_hidden_states(void **state)
{
    (void)state;
    on_every_set(FIXTURE("xlmr-mean"), check_trace);
}

static void embeddings_equal_the_reference(void **state)
{
    (void)state;
    on_every_set(FIXTURE("bert-cls"), check_embeddings);
    on_every_set(FIXTURE("bert-mean-f16"), check_embeddings);
    on_every_set(FIXTURE("roberta-max"), check_embeddings);
    on_every_set(FIXTURE("xlmr-mean"), check_embeddings);
}

static void embeddings_in_bf16_are_close_to_the_reference(void **state)
{
    (void)state;
    on_every_bf16_set(FIXTURE("bert-cls"), check_cosines);
    on_every_bf16_set(FIXTURE("bert-mean-f16"), check_cosines);
    on_every_bf16_set(FIXTURE("roberta-max"), check_cosines);
    on_every_bf16_set(FIXTURE("xlmr-mean"), check_cosines);
}

static void six_poolings_alone_and_joined(void **state)
{
    (void)state;
    on_every_set(FIXTURE("bert-cls"), check_poolings);
}

static void classifier_logits(void **state)
{
    (void)state;
    on_every_set(FIXTURE("cross-encoder-1"), check_logits);
    on_every_set(FIXTURE("cross-encoder-3"), check_logits);
    on_every_set(FIXTURE("xlmr-cross-encoder"), check_logits);
}

/* Leaving out a prompt's tokens, as Sentence-Transformers does with include_prompt false: its mask drops them from sums and
 * maxima, the weights of weightedmean still count from the text's start, and cls stays the first token of all. */
static void pooling_leaves_out_the_prompt(void **state)
{
    (void)state;
    lattice_error err;
    golden *g = golden_read(FIXTURE("bert-cls"));
    opened m;
    model_open(&m, FIXTURE("bert-cls"), NULL, 2, &ROOM);
    test_batch *b = malloc(sizeof *b);
    size_t h = m.hidden, n = g->pooled.n, skip[2] = { 0, 5 };
    float *tokens = malloc(2 * n * h * sizeof(float)), *out = malloc(2 * 6 * h * sizeof(float));
    batch_clear(b);
    batch_add(b, g->pooled.ids, NULL, n);
    batch_add(b, g->pooled.ids, NULL, n);
    assert_ok_err(m.backend->run(m.program, &b->batch, LT_TAIL_TOKENS, tokens, NULL, &err), &err);
    b->batch.pooling = 63;
    b->batch.pool_skip = skip;
    assert_ok_err(m.backend->run(m.program, &b->batch, LT_TAIL_POOLED, out, NULL, &err), &err);
    for (size_t s = 0; s < 2; s++) {
        const float *got = out + s * 6 * h;
        for (size_t j = 0; j < h; j++) {
            double sum = 0, weighted = 0, weights = 0, most = -INFINITY;
            for (size_t i = skip[s]; i < n; i++) {
                double v = tokens[i * h + j];
                sum += v;
                weighted += (double)(i + 1) * v;
                weights += (double)(i + 1);
                if (v > most) most = v;
            }
            double kept = (double)(n - skip[s]);
            double wanted[6] = { tokens[j], most, sum / kept, sum / sqrt(kept), weighted / weights, tokens[(n - 1) * h + j] };
            for (size_t p = 0; p < 6; p++) assert_true(fabs(got[p * h + j] - wanted[p]) <= 1e-5);
        }
    }
    free(tokens);
    free(out);
    free(b);
    golden_free(g);
    model_close(&m);
}

/* ------------------------------------------------------------------ checkpoints that do not fit */

static void one_layer_more(lt_config *config)
{
    config->n_layers++;
}
static void wider_intermediate(lt_config *config)
{
    config->intermediate_size++;
}
static void want_classifier(lt_config *config)
{
    config->head = LT_HEAD_CLASSIFIER;
    config->n_labels = 2;
}
static void one_label_more(lt_config *config)
{
    config->n_labels++;
}
static void other_heads(lt_config *config)
{
    config->n_heads = 5;
}

static void missing_tensor_is_an_error_naming_it(void **state)
{
    (void)state;
    lattice_error err;
    assert_int_equal(record_folder(FIXTURE("bert-cls"), one_layer_more, NULL, 0, &err), LATTICE_ERR_FORMAT);
    assert_non_null(strstr(err.message, "encoder.layer.3.attention.self.query.weight"));
    assert_non_null(strstr(err.message, "missing"));
    assert_int_equal(record_folder(FIXTURE("bert-cls"), want_classifier, NULL, 0, &err), LATTICE_ERR_FORMAT);
    assert_non_null(strstr(err.message, "classifier.weight"));
}

static void wrong_shape_is_an_error_naming_both(void **state)
{
    (void)state;
    lattice_error err;
    assert_int_equal(record_folder(FIXTURE("bert-cls"), wider_intermediate, NULL, 0, &err), LATTICE_ERR_FORMAT);
    assert_non_null(strstr(err.message, "encoder.layer.0.intermediate.dense.weight"));
    assert_non_null(strstr(err.message, "[96, 48]"));
    assert_non_null(strstr(err.message, "[97, 48]"));
    assert_int_equal(record_folder(FIXTURE("bert-cls"), other_heads, NULL, 0, &err), LATTICE_ERR_FORMAT);
    assert_non_null(strstr(err.message, "hidden_size"));
}

static void another_number_of_labels_is_an_error_naming_the_classifier(void **state)
{
    (void)state;
    lattice_error err;
    assert_int_equal(record_folder(FIXTURE("cross-encoder-3"), one_label_more, NULL, 0, &err), LATTICE_ERR_FORMAT);
    assert_says(&err, "model.safetensors: tensor 'classifier.weight' has shape [3, 48], expected [4, 48]");
    assert_int_equal(record_folder(FIXTURE("xlmr-cross-encoder"), one_label_more, NULL, 0, &err), LATTICE_ERR_FORMAT);
    assert_says(&err, "model.safetensors: tensor 'classifier.out_proj.weight' has shape [1, 48], expected [2, 48]");
}

typedef struct log_seen {
    int n;
    char last[256];
} log_seen;

static void keep_log(void *user, lattice_log_level level, const char *message)
{
    (void)level;
    log_seen *seen = user;
    seen->n++;
    snprintf(seen->last, sizeof seen->last, "%s", message);
}

/* The classifier of a cross-encoder opened as a plain encoder is a tensor that nobody asked for. */
static void unknown_tensor_is_a_warning_naming_it(void **state)
{
    (void)state;
    lattice_error err;
    log_seen seen = { 0 };
    lattice_runtime *runtime;
    lattice_runtime_options options = lattice_runtime_options_default();
    options.log = keep_log;
    options.log_user = &seen;
    lt_config config;
    lt_checkpoint *checkpoint;
    lt_plan plan;
    assert_ok(lattice_runtime_create(&options, &runtime, NULL));
    assert_ok_err(lt_config_read(&runtime->mem, FIXTURE("xlmr-cross-encoder"), &config, &err), &err);
    assert_ok_err(lt_checkpoint_open(&runtime->mem, FIXTURE("xlmr-cross-encoder"), true, &checkpoint, &err), &err);
    config.head = LT_HEAD_NONE;
    lt_plan_init(&plan, &runtime->mem);
    assert_ok_err(lt_family_find(&config)->record(runtime, &config, NULL, checkpoint, NULL, 0, &plan, &err), &err);
    assert_int_equal(seen.n, 4);
    assert_non_null(strstr(seen.last, "classifier.out_proj.weight"));
    lt_plan_free(&plan);

    seen.n = 0;
    config.head = LT_HEAD_CLASSIFIER;
    lt_plan_init(&plan, &runtime->mem);
    assert_ok_err(lt_family_find(&config)->record(runtime, &config, NULL, checkpoint, NULL, 0, &plan, &err), &err);
    assert_int_equal(seen.n, 0);
    lt_plan_free(&plan);
    lt_checkpoint_close(checkpoint);
    lt_config_free(&config);
    lattice_runtime_free(runtime);
}

/* ------------------------------------------------------------------ the backend's own promises */

static void batch_outside_the_tables_or_the_room_is_refused(void **state)
{
    (void)state;
    lattice_error err;
    lt_compile_options small = { .max_tokens = 16, .max_seqs = 2 };
    opened m;
    model_open(&m, FIXTURE("roberta-max"), NULL, 1, &small);
    test_batch *b = malloc(sizeof *b);
    float out[16 * 64];
    uint32_t ids[17] = { 0, 5, 6, 2 };
    batch_clear(b);
    batch_add(b, ids, NULL, 4);
    assert_ok_err(m.backend->run(m.program, &b->batch, LT_TAIL_TOKENS, out, NULL, &err), &err);

    assert_int_equal(m.backend->run(m.program, &b->batch, LT_TAIL_SCORES, out, NULL, &err), LATTICE_ERR_INVALID_ARGUMENT);
    b->ids[1] = 1500; /* vocab_size */
    assert_int_equal(m.backend->run(m.program, &b->batch, LT_TAIL_TOKENS, out, NULL, &err), LATTICE_ERR_INVALID_ARGUMENT);
    assert_non_null(strstr(err.message, "1500"));
    b->ids[1] = 5;
    b->positions[3] = 128; /* 130 stored positions begin at 2 */
    assert_int_equal(m.backend->run(m.program, &b->batch, LT_TAIL_TOKENS, out, NULL, &err), LATTICE_ERR_TOO_LONG);
    b->positions[3] = 127;
    assert_ok_err(m.backend->run(m.program, &b->batch, LT_TAIL_TOKENS, out, NULL, &err), &err);
    b->out_rows[0] = 4;
    assert_int_equal(m.backend->run(m.program, &b->batch, LT_TAIL_TOKENS, out, NULL, &err), LATTICE_ERR_INVALID_ARGUMENT);

    batch_clear(b);
    batch_add(b, ids, NULL, 17);
    assert_int_equal(m.backend->run(m.program, &b->batch, LT_TAIL_TOKENS, out, NULL, &err), LATTICE_ERR_INVALID_ARGUMENT);
    batch_clear(b);
    for (int i = 0; i < 3; i++) batch_add(b, ids, NULL, 4);
    assert_int_equal(m.backend->run(m.program, &b->batch, LT_TAIL_TOKENS, out, NULL, &err), LATTICE_ERR_INVALID_ARGUMENT);
    batch_clear(b);
    batch_add(b, ids, NULL, 4);
    batch_add(b, ids, NULL, 0);
    assert_int_equal(m.backend->run(m.program, &b->batch, LT_TAIL_TOKENS, out, NULL, &err), LATTICE_ERR_INVALID_ARGUMENT);
    batch_clear(b);
    assert_int_equal(m.backend->run(m.program, &b->batch, LT_TAIL_TOKENS, out, NULL, &err), LATTICE_ERR_INVALID_ARGUMENT);
    free(b);
    model_close(&m);
}

/* The fixture's text `copies` times, two threads. */
static void check_injected_faults(lattice_compute compute, size_t copies)
{
    lattice_error err;
    golden *g = golden_read(FIXTURE("bert-cls"));
    test_batch *b = malloc(sizeof *b);
    batch_clear(b);
    for (size_t i = 0; i < copies; i++) batch_add(b, g->pooled.ids, NULL, g->pooled.n);
    float out[BATCH_SEQS * 64], again[BATCH_SEQS * 64];
    opened m;
    model_open_as(&m, FIXTURE("bert-cls"), NULL, compute, 2, &ROOM, NULL, 0);
    assert_ok_err(m.backend->run(m.program, &b->batch, LT_TAIL_POOLED, out, NULL, &err), &err);
    const lt_tail *pooled = &m.plan.tails[LT_TAIL_POOLED];
    for (int op = 0; op < (int)m.plan.n_body; op++) {
        lt_run_hooks hooks = { .fail_at_op = op + 1 };
        assert_int_equal(m.backend->run(m.program, &b->batch, LT_TAIL_POOLED, again, &hooks, &err), LATTICE_ERR_DEVICE);
        assert_non_null(strstr(err.message, lt_op_name(m.plan.ops[op].code)));
    }
    lt_run_hooks last = { .fail_at_op = pooled->first_op + 1 };
    assert_int_equal(m.backend->run(m.program, &b->batch, LT_TAIL_POOLED, again, &last, &err), LATTICE_ERR_DEVICE);
    assert_ok_err(m.backend->run(m.program, &b->batch, LT_TAIL_POOLED, again, NULL, &err), &err);
    assert_memory_equal(out, again, copies * m.hidden * sizeof(float));
    model_close(&m);

    /* In the very first run, which also packs the weights. */
    model_open_as(&m, FIXTURE("bert-cls"), NULL, compute, 2, &ROOM, NULL, 0);
    lt_run_hooks first = { .fail_at_op = 1 };
    assert_int_equal(m.backend->run(m.program, &b->batch, LT_TAIL_POOLED, again, &first, &err), LATTICE_ERR_DEVICE);
    assert_ok_err(m.backend->run(m.program, &b->batch, LT_TAIL_POOLED, again, NULL, &err), &err);
    assert_memory_equal(out, again, copies * m.hidden * sizeof(float));
    model_close(&m);
    free(b);
    golden_free(g);
}

static void injected_fault_leaves_the_program_usable(void **state)
{
    (void)state;
    check_injected_faults(LATTICE_COMPUTE_F32, 1);
    check_injected_faults(LATTICE_COMPUTE_INT8, 40); /* in pieces of whole sequences */
}

static void cancelled_run_says_so(void **state)
{
    (void)state;
    lattice_error err;
    bool cancel = true;
    lt_run_hooks hooks = { .cancel = &cancel };
    opened m;
    model_open(&m, FIXTURE("bert-cls"), NULL, 2, &ROOM);
    test_batch *b = malloc(sizeof *b);
    uint32_t ids[4] = { 2, 7, 8, 3 };
    float out[64];
    batch_clear(b);
    batch_add(b, ids, NULL, 4);
    assert_int_equal(m.backend->run(m.program, &b->batch, LT_TAIL_POOLED, out, &hooks, &err), LATTICE_ERR_CANCELLED);
    cancel = false;
    assert_ok_err(m.backend->run(m.program, &b->batch, LT_TAIL_POOLED, out, &hooks, &err), &err);
    free(b);
    model_close(&m);
}

static void profile_counts_time_and_work_of_the_ops_that_ran(void **state)
{
    (void)state;
    lattice_error err;
    opened m;
    model_open(&m, FIXTURE("cross-encoder-1"), NULL, 2, &ROOM);
    test_batch *b = malloc(sizeof *b);
    golden *g = golden_read(FIXTURE("cross-encoder-1"));
    float out[8];
    batch_clear(b);
    batch_add(b, g->cases[0].ids, g->cases[0].type_ids, g->cases[0].n);
    lt_op_profile *profile = calloc(m.plan.n_ops, sizeof *profile);
    lt_run_hooks hooks = { .profile = profile };
    assert_ok_err(m.backend->run(m.program, &b->batch, LT_TAIL_SCORES, out, &hooks, &err), &err);
    double t = (double)g->cases[0].n, flop = 0;
    for (size_t i = 0; i < m.plan.n_ops; i++) {
        bool ran = i < m.plan.n_body || m.plan.ops[i].code != LT_OP_POOL;
        assert_true(ran ? profile[i].seconds > 0 : profile[i].seconds == 0);
        assert_true(ran ? profile[i].bytes > 0 : profile[i].bytes == 0);
        if (m.plan.ops[i].code == LT_OP_LINEAR || m.plan.ops[i].code == LT_OP_ATTENTION) flop += profile[i].flop;
    }
    /* 3 layers of 48 and 96, 4 heads; the pooler and one label on one row. */
    double wanted = 3 * (2 * t * (4 * 48 * 48 + 2 * 48 * 96) + 4 * t * t * 48) + 2 * (48 * 48 + 48);
    assert_true(fabs(flop - wanted) < 0.5);
    free(profile);
    golden_free(g);
    free(b);
    model_close(&m);
}

static void opening_without_memory_fails_without_a_leak(void **state)
{
    (void)state;
    check_opening_without_memory(FIXTURE("cross-encoder-1"), NULL, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(bert_cls_hidden_states),
        cmocka_unit_test(bert_f16_gelu_new_hidden_states),
        cmocka_unit_test(roberta_relu_hidden_states),
        cmocka_unit_test(xlmr_hidden_states),
        cmocka_unit_test(embeddings_equal_the_reference),
        cmocka_unit_test(embeddings_in_bf16_are_close_to_the_reference),
        cmocka_unit_test(six_poolings_alone_and_joined),
        cmocka_unit_test(classifier_logits),
        cmocka_unit_test(pooling_leaves_out_the_prompt),
        cmocka_unit_test(missing_tensor_is_an_error_naming_it),
        cmocka_unit_test(wrong_shape_is_an_error_naming_both),
        cmocka_unit_test(another_number_of_labels_is_an_error_naming_the_classifier),
        cmocka_unit_test(unknown_tensor_is_a_warning_naming_it),
        cmocka_unit_test(batch_outside_the_tables_or_the_room_is_refused),
        cmocka_unit_test(injected_fault_leaves_the_program_usable),
        cmocka_unit_test(cancelled_run_says_so),
        cmocka_unit_test(profile_counts_time_and_work_of_the_ops_that_ran),
        cmocka_unit_test(opening_without_memory_fails_without_a_leak),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
