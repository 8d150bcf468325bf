/* Qwen3 through plan and CPU backend, against the fixtures' golden values: every instruction set that this machine has, several
 * numbers of threads; and what its checkpoints may get wrong. */
#include "model_fixture.h"

/* ------------------------------------------------------------------ golden values */

static void small_heads_hidden_states(void **state)
{
    (void)state;
    on_every_set(FIXTURE("qwen3-embedding"), check_trace);
}

/* head_dim 80, biases, three shards to a joined operand, bfloat16, the older spelling of the configuration. */
static void biased_sharded_bf16_hidden_states(void **state)
{
    (void)state;
    on_every_set(FIXTURE("qwen3-embedding-hd80-sharded-bf16"), check_trace);
}

static void embeddings_equal_the_reference(void **state)
{
    (void)state;
    on_every_set(FIXTURE("qwen3-embedding"), check_embeddings);
    on_every_set(FIXTURE("qwen3-embedding-hd80-sharded-bf16"), check_embeddings);
}

/* The row of a sequence's last token is the one selected. */
static void batch_add_last(test_batch *b, const golden_case *c)
{
    batch_add(b, c->ids, NULL, c->n);
    b->out_rows[b->batch.n_out - 1] = b->batch.n_tokens - 1;
}

/* Logits of the whole vocabulary at the last position: |Δ| <= 5e-5 · max|logit|. */
static void check_last_logits(opened *m, const golden *g, test_batch *b)
{
    lattice_error err;
    size_t vocabulary = m->config.vocab_size;
    assert_int_equal(lt_tail_width(&m->plan, LT_TAIL_LOGITS, 0), vocabulary);
    float *out = malloc(g->n_cases * vocabulary * sizeof(float));
    batch_clear(b);
    for (size_t i = 0; i < g->n_cases; i++) batch_add_last(b, &g->cases[i]);
    assert_ok_err(m->backend->run(m->program, &b->batch, LT_TAIL_LOGITS, out, NULL, &err), &err);
    for (size_t i = 0; i < g->n_cases; i++) {
        const golden_case *c = &g->cases[i];
        assert_int_equal(c->n_values, vocabulary);
        assert_near(out + i * vocabulary, c->values, vocabulary, 5e-5f * largest(c->values, vocabulary), c->text);
    }
    free(out);
}

static void last_logits_equal_the_reference(void **state)
{
    (void)state;
    on_every_set(FIXTURE("qwen3-reranker"), check_last_logits);
}

/* The scores are those two of all logits, bit for bit: |Δ| <= 5e-5 · max|logit|, the largest known from the cases. */
static void check_scores(opened *m, const golden *g, test_batch *b)
{
    lattice_error err;
    size_t vocabulary = m->config.vocab_size;
    float scores[16 * 2], *logits = malloc(g->n_pairs * vocabulary * sizeof(float));
    assert_int_equal(lt_tail_width(&m->plan, LT_TAIL_SCORES, 0), 2);
    batch_clear(b);
    for (size_t i = 0; i < g->n_pairs; i++) batch_add_last(b, &g->pairs[i]);
    assert_ok_err(m->backend->run(m->program, &b->batch, LT_TAIL_SCORES, scores, NULL, &err), &err);
    assert_ok_err(m->backend->run(m->program, &b->batch, LT_TAIL_LOGITS, logits, NULL, &err), &err);
    for (size_t i = 0; i < g->n_pairs; i++) {
        const float *row = logits + i * vocabulary;
        assert_int_equal(g->pairs[i].n_values, 2);
        assert_near(scores + i * 2, g->pairs[i].values, 2, 5e-5f * largest(row, vocabulary), "no and yes");
        for (int k = 0; k < 2; k++) assert_memory_equal(&scores[2 * i + (size_t)k], &row[g->no_yes[k]], sizeof(float));
    }
    free(logits);
}

static void scores_are_the_logits_of_no_and_yes(void **state)
{
    (void)state;
    on_every_set(FIXTURE("qwen3-reranker"), check_scores);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(small_heads_hidden_states),           cmocka_unit_test(biased_sharded_bf16_hidden_states),
        cmocka_unit_test(embeddings_equal_the_reference),      cmocka_unit_test(last_logits_equal_the_reference),
        cmocka_unit_test(scores_are_the_logits_of_no_and_yes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
