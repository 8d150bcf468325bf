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

static void embeddings_prompts_and_cuts_equal_the_reference(void **state)
{
    (void)state;
    on_every_set(FIXTURE("qwen3-embedding"), check_embeddings);
    on_every_set(FIXTURE("qwen3-embedding-hd80-sharded-bf16"), check_embeddings);
}

static void embeddings_in_bf16_are_close_to_the_reference(void **state)
{
    (void)state;
    on_every_bf16_set(FIXTURE("qwen3-embedding"), check_cosines);
    on_every_bf16_set(FIXTURE("qwen3-embedding-hd80-sharded-bf16"), check_cosines);
}

/* Weights in float32 stay so; those in bfloat16 are multiplied in it where the set prefers that. */
static void auto_takes_bf16_for_its_weights_where_the_set_prefers_it(void **state)
{
    (void)state;
    size_t n;
    const lt_kernels *const *sets = lt_kernels_available(&n);
    for (size_t i = 0; i < n; i++) {
        const bool preferred = sets[i]->bf16 && sets[i]->bf16->preferred;
        opened m;
        assert_int_equal(preferred, strcmp(sets[i]->isa, "avx512amx") == 0);
        model_open_as(&m, FIXTURE("qwen3-embedding-hd80-sharded-bf16"), sets[i]->isa, LATTICE_COMPUTE_AUTO, 1, &ROOM, NULL, 0);
        assert_int_equal(m.backend->compute(m.program), preferred ? LATTICE_COMPUTE_BF16 : LATTICE_COMPUTE_F32);
        model_close(&m);
        model_open_as(&m, FIXTURE("qwen3-embedding"), sets[i]->isa, LATTICE_COMPUTE_AUTO, 1, &ROOM, NULL, 0);
        assert_int_equal(m.backend->compute(m.program), LATTICE_COMPUTE_F32);
        model_close(&m);
    }
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

/* ------------------------------------------------------------------ the contract */

/* Texts of equal length in one batch: each vector has the bits of its single run, in any place, beside any neighbour. */
static void check_equal_lengths(opened *m, const golden *g, test_batch *b)
{
    enum { LENGTH = 29 };
    (void)g;
    lattice_error err;
    uint32_t texts[2][LENGTH]; /* A and C, which differ in their first token */
    for (uint32_t i = 0; i < LENGTH; i++) texts[0][i] = texts[1][i] = 100 + 31 * i % 1000;
    texts[1][0] = 77;
    size_t h = m->hidden;
    float *single = malloc(2 * LENGTH * h * sizeof(float)), *out = malloc(2 * LENGTH * h * sizeof(float));
    for (size_t t = 0; t < 2; t++) {
        batch_clear(b);
        batch_add(b, texts[t], NULL, LENGTH);
        assert_ok_err(m->backend->run(m->program, &b->batch, LT_TAIL_TOKENS, single + t * LENGTH * h, NULL, &err), &err);
    }
    assert_memory_not_equal(single, single + LENGTH * h, LENGTH * h * sizeof(float));
    static const size_t batches[4][2] = { { 0, 0 }, { 0, 1 }, { 1, 0 }, { 1, 1 } };
    for (size_t k = 0; k < 4; k++) {
        batch_clear(b);
        for (size_t s = 0; s < 2; s++) batch_add(b, texts[batches[k][s]], NULL, LENGTH);
        assert_ok_err(m->backend->run(m->program, &b->batch, LT_TAIL_TOKENS, out, NULL, &err), &err);
        for (size_t s = 0; s < 2; s++) {
            assert_memory_equal(out + s * LENGTH * h, single + batches[k][s] * LENGTH * h, LENGTH * h * sizeof(float));
        }
    }
    /* A token's state does not depend on what follows it: the prefix of A alone has the same bits. */
    batch_clear(b);
    batch_add(b, texts[0], NULL, LENGTH - 10);
    assert_ok_err(m->backend->run(m->program, &b->batch, LT_TAIL_TOKENS, out, NULL, &err), &err);
    assert_memory_equal(out, single, (LENGTH - 10) * h * sizeof(float));
    free(single);
    free(out);
}

static void equal_length_batches_keep_the_causal_mask(void **state)
{
    (void)state;
    on_every_set(FIXTURE("qwen3-embedding"), check_equal_lengths);
    on_every_set(FIXTURE("qwen3-embedding-hd80-sharded-bf16"), check_equal_lengths);
}

/* The joined operand has q_dim + 2 kv_dim rows: q, k and v, one below the other, here from several shards. */
static void INV_7_joined_qkv_operand_has_q_dim_and_twice_kv_dim_rows(void **state)
{
    (void)state;
    static const char *const folders[] = { FIXTURE("qwen3-embedding"), FIXTURE("qwen3-embedding-hd80-sharded-bf16"),
                                           FIXTURE("qwen3-reranker") };
    for (size_t f = 0; f < sizeof folders / sizeof *folders; f++) {
        opened m;
        model_open(&m, folders[f], NULL, 1, &ROOM);
        const lt_config *c = &m.config;
        size_t q_dim = c->n_heads * c->head_dim, kv_dim = c->n_kv_heads * c->head_dim, layers = 0;
        for (size_t i = 0; i < m.plan.n_body; i++) {
            const lt_op *op = &m.plan.ops[i];
            if (op->code != LT_OP_QK_NORM_ROPE) continue;
            const lt_op *product = &m.plan.ops[i - 1];
            const lt_weight *w = &m.plan.weights[product->weight[0]];
            assert_int_equal(product->code, LT_OP_LINEAR);
            assert_int_equal(product->out[0], op->out[0]);
            assert_int_equal(w->rows, q_dim + 2 * kv_dim);
            assert_int_equal(w->cols, c->hidden_size);
            assert_int_equal(w->n_segments, 3);
            assert_int_equal(w->segments[0].tensor->shape[0], q_dim);
            assert_int_equal(op->in[1].column, q_dim);
            assert_int_equal(m.plan.ops[i + 1].in[2].column, q_dim + kv_dim);
            layers++;
        }
        assert_int_equal(layers, c->n_layers);
        model_close(&m);
    }
}

static void segments_of_one_joined_operand_lie_in_different_shards(void **state)
{
    (void)state;
    opened m;
    model_open(&m, FIXTURE("qwen3-embedding-hd80-sharded-bf16"), NULL, 1, &ROOM);
    bool parted = false;
    for (size_t i = 0; i < m.plan.n_weights; i++) {
        const lt_weight *w = &m.plan.weights[i];
        for (int s = 1; s < w->n_segments; s++) parted |= w->segments[s].tensor->shard != w->segments[0].tensor->shard;
    }
    assert_true(parted);
    model_close(&m);
}

/* Values of gate and up together exist for a tile of rows only: nothing in the workspace is as wide. */
static void no_value_holds_gate_and_up_of_all_tokens(void **state)
{
    (void)state;
    opened m;
    model_open(&m, FIXTURE("qwen3-embedding"), NULL, 1, &ROOM);
    for (size_t v = 0; v < m.plan.n_values; v++) assert_true(m.plan.values[v].width < 2 * m.config.intermediate_size);
    model_close(&m);
}

/* ------------------------------------------------------------------ positions */

static void positions_past_the_rotary_table_are_refused(void **state)
{
    (void)state;
    lattice_error err;
    opened m;
    model_open(&m, FIXTURE("qwen3-embedding"), NULL, 1, &ROOM);
    test_batch *b = malloc(sizeof *b);
    float out[64];
    uint32_t ids[2] = { 5, 6 };
    batch_clear(b);
    batch_add(b, ids, NULL, 2);
    b->positions[1] = 511;
    assert_ok_err(m.backend->run(m.program, &b->batch, LT_TAIL_POOLED, out, NULL, &err), &err);
    b->positions[1] = 512; /* max_position_embeddings */
    assert_int_equal(m.backend->run(m.program, &b->batch, LT_TAIL_POOLED, out, NULL, &err), LATTICE_ERR_TOO_LONG);
    assert_non_null(strstr(err.message, "512"));
    free(b);
    model_close(&m);
}

/* Only differences of positions matter to attention: shifted texts keep their vectors but for rounding. The table grows between
 * the runs. */
static void vectors_depend_on_differences_of_positions(void **state)
{
    (void)state;
    lattice_error err;
    golden *g = golden_read(FIXTURE("qwen3-embedding"));
    const golden_case *c = find_case(g, g->trace_text);
    opened m;
    model_open(&m, FIXTURE("qwen3-embedding"), NULL, 2, &ROOM);
    test_batch *b = malloc(sizeof *b);
    float first[64], shifted[64];
    batch_clear(b);
    batch_add(b, c->ids, NULL, c->n);
    assert_ok_err(m.backend->run(m.program, &b->batch, LT_TAIL_POOLED, first, NULL, &err), &err);
    for (size_t i = 0; i < c->n; i++) b->positions[i] += 400;
    assert_ok_err(m.backend->run(m.program, &b->batch, LT_TAIL_POOLED, shifted, NULL, &err), &err);
    assert_near(shifted, first, 64, 2e-5f * largest(first, 64), "shifted");
    free(b);
    golden_free(g);
    model_close(&m);
}

/* ------------------------------------------------------------------ checkpoints that do not fit */

/* Copies of a fixture's config.json and model.safetensors, the first occurrence of `from` in `file` replaced by `to`, which must
 * be as long in a safetensors file. */
static lt_test_folder changed_model(const char *fixture, const char *file, const char *from, const char *to)
{
    static const char *const names[] = { "config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json" };
    lt_test_folder folder = lt_test_folder_create();
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        char path[512], copy[256];
        size_t size;
        snprintf(path, sizeof path, "%s/%s", fixture, names[i]);
        char *data = lt_test_read_file(path, &size);
        FILE *out = fopen(lt_test_path(&folder, names[i], copy), "wb");
        assert_non_null(out);
        size_t at = 0;
        if (strcmp(names[i], file) == 0) {
            while (at + strlen(from) <= size && memcmp(data + at, from, strlen(from)) != 0) at++;
            if (at + strlen(from) > size) fail_msg("%s has no '%s'", file, from);
            assert_int_equal(fwrite(data, 1, at, out), at);
            assert_int_equal(fwrite(to, 1, strlen(to), out), strlen(to));
            at += strlen(from);
        }
        assert_int_equal(fwrite(data + at, 1, size - at, out), size - at);
        assert_int_equal(fclose(out), 0);
        free(data);
    }
    return folder;
}

/* Reads the configuration and records the plan; what fails is the result. */

static void more_words(lt_config *c)
{
    c->vocab_size++;
}
static void more_heads(lt_config *c)
{
    c->n_heads *= 2;
}
static void fewer_kv_heads(lt_config *c)
{
    c->n_kv_heads = 1;
}
static void wider_heads(lt_config *c)
{
    c->head_dim = 64;
    c->n_heads /= 2;
    c->n_kv_heads /= 2;
}
static void wider_intermediate(lt_config *c)
{
    c->intermediate_size++;
}
static void another_layer(lt_config *c)
{
    c->n_layers++;
}
static void wider(lt_config *c)
{
    c->hidden_size += 4;
}
static void biased(lt_config *c)
{
    c->attention_bias = true;
}
static void unbiased(lt_config *c)
{
    c->attention_bias = false;
}
static void untied(lt_config *c)
{
    c->tie_word_embeddings = false;
}
static void endless_heads(lt_config *c)
{
    c->n_heads = c->n_kv_heads = SIZE_MAX / 16;
}

static void config_and_tensors_that_disagree_are_named(void **state)
{
    (void)state;
    static const struct {
        const char *folder;
        void (*change)(lt_config *);
        lattice_status status;
        const char *message;
    } cases[] = {
        // clang-format off
        { FIXTURE("qwen3-embedding"), more_words, LATTICE_ERR_FORMAT,
          "model.safetensors: tensor 'embed_tokens.weight' has shape [2007, 64], expected [2008, 64]" },
        { FIXTURE("qwen3-embedding"), more_heads, LATTICE_ERR_FORMAT,
          "model.safetensors: tensor 'layers.0.self_attn.q_proj.weight' has shape [128, 64], expected [256, 64]" },
        { FIXTURE("qwen3-embedding"), fewer_kv_heads, LATTICE_ERR_FORMAT,
          "model.safetensors: tensor 'layers.0.self_attn.k_proj.weight' has shape [64, 64], expected [32, 64]" },
        { FIXTURE("qwen3-embedding"), wider_heads, LATTICE_ERR_FORMAT,
          "model.safetensors: tensor 'layers.0.self_attn.q_norm.weight' has shape [32], expected [64]" },
        { FIXTURE("qwen3-embedding"), wider_intermediate, LATTICE_ERR_FORMAT,
          "model.safetensors: tensor 'layers.0.mlp.gate_proj.weight' has shape [160, 64], expected [161, 64]" },
        { FIXTURE("qwen3-embedding"), another_layer, LATTICE_ERR_FORMAT,
          ": tensor 'layers.3.input_layernorm.weight' is missing" },
        { FIXTURE("qwen3-embedding"), wider, LATTICE_ERR_FORMAT,
          "model.safetensors: tensor 'embed_tokens.weight' has shape [2007, 64], expected [2007, 68]" },
        { FIXTURE("qwen3-embedding"), biased, LATTICE_ERR_FORMAT, ": tensor 'layers.0.self_attn.q_proj.bias' is missing" },
        { FIXTURE("qwen3-embedding-hd80-sharded-bf16"), unbiased, LATTICE_ERR_UNSUPPORTED,
          "model-00002-of-00005.safetensors: tensor 'layers.0.self_attn.k_proj.bias': this model is not known to have such a bias" },
        { FIXTURE("qwen3-reranker"), untied, LATTICE_ERR_FORMAT, ": tensor 'lm_head.weight' is missing" },
        { FIXTURE("qwen3-embedding"), endless_heads, LATTICE_ERR_FORMAT,
          "config.json: 1152921504606846975 heads of 32 are too large" },
        // clang-format on
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        lattice_error err;
        assert_int_equal(record_folder(cases[i].folder, cases[i].change, NULL, 0, &err), cases[i].status);
        assert_says(&err, cases[i].message);
    }
}

static void missing_q_norm_is_an_error_naming_it(void **state)
{
    (void)state;
    lattice_error err;
    lt_test_folder folder = changed_model(FIXTURE("qwen3-embedding"), "model.safetensors", "layers.1.self_attn.q_norm.weight",
                                          "layers.1.self_attn.q_nrom.weight");
    assert_int_equal(record_folder(folder.path, NULL, NULL, 0, &err), LATTICE_ERR_FORMAT);
    assert_says(&err, ": tensor 'layers.1.self_attn.q_norm.weight' is missing");
    lt_test_folder_remove(&folder);
}

static void unknown_rope_type_is_an_error_naming_it(void **state)
{
    (void)state;
    lattice_error err;
    lt_test_folder folder =
        changed_model(FIXTURE("qwen3-embedding"), "config.json", "\"rope_type\": \"default\"", "\"rope_type\": \"yarn\"");
    assert_int_equal(record_folder(folder.path, NULL, NULL, 0, &err), LATTICE_ERR_UNSUPPORTED);
    assert_says(&err, "config.json: rope_type 'yarn' is not supported (supported: default)");
    lt_test_folder_remove(&folder);
}

static void heads_that_do_not_divide_are_an_error_saying_so(void **state)
{
    (void)state;
    lattice_error err;
    lt_test_folder folder =
        changed_model(FIXTURE("qwen3-embedding"), "config.json", "\"num_key_value_heads\": 2", "\"num_key_value_heads\": 3");
    assert_int_equal(record_folder(folder.path, NULL, NULL, 0, &err), LATTICE_ERR_FORMAT);
    assert_says(&err, "config.json: num_attention_heads 4 is not divisible by num_key_value_heads 3: query heads share key/value "
                      "heads in equal groups");
    lt_test_folder_remove(&folder);
}

static void score_ids_are_checked(void **state)
{
    (void)state;
    lattice_error err;
    const uint32_t outside[2] = { 5, 2007 }, many[5] = { 1, 2, 3, 4, 5 };
    assert_int_equal(record_folder(FIXTURE("qwen3-reranker"), NULL, outside, 2, &err), LATTICE_ERR_INVALID_ARGUMENT);
    assert_non_null(strstr(err.message, "2007"));
    assert_int_equal(record_folder(FIXTURE("qwen3-reranker"), NULL, many, 5, &err), LATTICE_ERR_INVALID_ARGUMENT);
    assert_int_equal(record_folder(FIXTURE("qwen3-embedding"), NULL, outside, 1, &err), LATTICE_ERR_UNSUPPORTED);
    assert_non_null(strstr(err.message, "output matrix"));
}

/* The same checkpoint, its names with "model." before them and its head called a language model's: the vectors stay, logits come
 * from the embedding table, and a checkpoint of an embedding model may leave the output matrix out. */
static void output_matrix_is_optional_where_a_pooling_is_stored(void **state)
{
    (void)state;
    lattice_error err;
    lattice_runtime *runtime;
    lt_config config;
    lt_checkpoint *checkpoint;
    assert_ok(lattice_runtime_create(NULL, &runtime, NULL));
    assert_ok_err(lt_config_read(&runtime->mem, FIXTURE("qwen3-embedding"), &config, &err), &err);
    assert_ok_err(lt_checkpoint_open(&runtime->mem, FIXTURE("qwen3-embedding"), true, &checkpoint, &err), &err);
    config.head = LT_HEAD_LM;
    for (int tied = 0; tied < 2; tied++) {
        config.tie_word_embeddings = tied;
        const lt_sentence sentence = { .pooling = LATTICE_POOLING_LASTTOKEN };
        lt_plan plan;
        lt_plan_init(&plan, &runtime->mem);
        assert_ok_err(lt_family_find(&config)->record(runtime, &config, &sentence, checkpoint, NULL, 0, &plan, &err), &err);
        assert_true(plan.tails[LT_TAIL_POOLED].present);
        assert_int_equal(plan.tails[LT_TAIL_LOGITS].present, tied);
        lt_plan_free(&plan);
    }
    lt_checkpoint_close(checkpoint);
    lt_config_free(&config);
    lattice_runtime_free(runtime);
}

/* NaNs in the bytes of a tensor: the answer is an error that names the text, and checking names the tensor. */
static void nan_in_a_weight_is_an_error_never_a_vector(void **state)
{
    (void)state;
    lattice_error err;
    lt_test_folder folder = changed_model(FIXTURE("qwen3-embedding"), "config.json", "{", "{");
    char path[256];
    size_t size;
    char *data = lt_test_read_file(lt_test_path(&folder, "model.safetensors", path), &size);
    lt_checkpoint *checkpoint;
    assert_ok_err(lt_checkpoint_open(&lt_malloc_allocator, folder.path, true, &checkpoint, &err), &err);
    const lt_tensor *tensor = lt_checkpoint_find(checkpoint, lt_str_of("layers.2.mlp.up_proj.weight"));
    assert_non_null(tensor);
    const float nan = NAN;
    memcpy(data + tensor->offset + 68 * 4, &nan, 4); /* row 1, column 4 */
    lt_checkpoint_close(checkpoint);
    lt_test_write_file(path, data, size);
    free(data);
    lattice_runtime *runtime;
    lattice_model *model;
    assert_ok(lattice_runtime_create(NULL, &runtime, NULL));
    assert_ok_err(lattice_model_open(runtime, folder.path, NULL, &model, &err), &err);
    lattice_text text = { "hello world", 11 };
    float out[64];
    assert_int_equal(lattice_embed(model, &text, 1, NULL, out, NULL, &err), LATTICE_ERR_NOT_FINITE);
    assert_non_null(strstr(err.message, "text 0"));
    assert_int_equal(lattice_model_check(model, &err), LATTICE_ERR_NOT_FINITE);
    assert_non_null(strstr(err.message, "layers.2.mlp.up_proj.weight"));
    assert_non_null(strstr(err.message, "[1, 4]"));
    lattice_model_close(model);
    lattice_runtime_free(runtime);
    lt_test_folder_remove(&folder);
}

static void opening_without_memory_fails_without_a_leak(void **state)
{
    (void)state;
    const uint32_t no_yes[2] = { 370, 374 };
    check_opening_without_memory(FIXTURE("qwen3-reranker"), no_yes, 2);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(small_heads_hidden_states),
        cmocka_unit_test(biased_sharded_bf16_hidden_states),
        cmocka_unit_test(embeddings_prompts_and_cuts_equal_the_reference),
        cmocka_unit_test(embeddings_in_bf16_are_close_to_the_reference),
        cmocka_unit_test(auto_takes_bf16_for_its_weights_where_the_set_prefers_it),
        cmocka_unit_test(last_logits_equal_the_reference),
        cmocka_unit_test(scores_are_the_logits_of_no_and_yes),
        cmocka_unit_test(equal_length_batches_keep_the_causal_mask),
        cmocka_unit_test(INV_7_joined_qkv_operand_has_q_dim_and_twice_kv_dim_rows),
        cmocka_unit_test(segments_of_one_joined_operand_lie_in_different_shards),
        cmocka_unit_test(no_value_holds_gate_and_up_of_all_tokens),
        cmocka_unit_test(positions_past_the_rotary_table_are_refused),
        cmocka_unit_test(vectors_depend_on_differences_of_positions),
        cmocka_unit_test(config_and_tensors_that_disagree_are_named),
        cmocka_unit_test(missing_q_norm_is_an_error_naming_it),
        cmocka_unit_test(unknown_rope_type_is_an_error_naming_it),
        cmocka_unit_test(heads_that_do_not_divide_are_an_error_saying_so),
        cmocka_unit_test(score_ids_are_checked),
        cmocka_unit_test(output_matrix_is_optional_where_a_pooling_is_stored),
        cmocka_unit_test(nan_in_a_weight_is_an_error_never_a_vector),
        cmocka_unit_test(opening_without_memory_fails_without_a_leak),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
