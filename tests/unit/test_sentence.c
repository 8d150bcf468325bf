/* Sentence-Transformers files: each fixture's pipeline, both spellings of the module types and poolings, and what is refused. */
#include "support.h"

#include "base/memory.h"
#include "format/sentence.h"

static const lattice_allocator *const mem = &lt_malloc_allocator;

/* A configuration as far as the reader needs it: hidden size 4, `positions` positions. */
static lt_config small_config(lt_model_type type, size_t positions)
{
    return (lt_config){ .model_type = type, .hidden_size = 4, .max_positions = positions };
}

static void write_text(const lt_test_folder *folder, const char *name, const char *text)
{
    char path[256];
    lt_test_path(folder, name, path);
    for (char *slash = path + strlen(folder->path) + 1; (slash = strchr(slash, '/')); slash++) {
        *slash = '\0';
        mkdir(path, 0700);
        *slash = '/';
    }
    lt_test_write_file(path, text, strlen(text));
}

#define OLD(kind, path) "{\"idx\":0,\"name\":\"0\",\"path\":\"" path "\",\"type\":\"sentence_transformers.models." kind "\"}"
#define POOL_MEAN "{\"word_embedding_dimension\":4,\"pooling_mode_mean_tokens\":true}"

/* ------------------------------------------------------------------ fixtures */

static const struct {
    const char *folder;
    unsigned pooling;
    size_t max_length, n_prompts;
    bool lower_case;
} fixtures[] = {
    { "bert-cls", LATTICE_POOLING_CLS, 128, 0, false },
    { "bert-mean-f16", LATTICE_POOLING_MEAN, 64, 2, false },
    { "roberta-max", LATTICE_POOLING_MAX, 128, 0, false },
    { "xlmr-mean", LATTICE_POOLING_MEAN, 128, 0, false },
    { "qwen3-embedding", LATTICE_POOLING_LASTTOKEN, 512, 2, false },
    { "qwen3-embedding-hd80-sharded-bf16", LATTICE_POOLING_LASTTOKEN, 512, 2, false },
    /* without modules.json */
    { "cross-encoder-1", LATTICE_POOLING_MEAN, 128, 0, false },
    { "xlmr-cross-encoder", LATTICE_POOLING_MEAN, 128, 0, false },
    { "qwen3-reranker", LATTICE_POOLING_LASTTOKEN, 512, 0, false },
    { "qwen3.5-text", LATTICE_POOLING_LASTTOKEN, 512, 0, false },
};

static void every_fixture_reads_as_written(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof fixtures / sizeof *fixtures; i++) {
        char folder[300];
        lattice_error err = { 0 };
        lt_config config;
        lt_sentence s;
        snprintf(folder, sizeof folder, LT_FIXTURES "/%s", fixtures[i].folder);
        assert_ok_err(lt_config_read(mem, folder, &config, &err), &err);
        assert_ok_err(lt_sentence_read(mem, folder, &config, true, &s, &err), &err);
        assert_int_equal(s.pooling, fixtures[i].pooling);
        assert_int_equal(s.max_length, fixtures[i].max_length);
        assert_int_equal(s.n_prompts, fixtures[i].n_prompts);
        assert_int_equal(s.lower_case, fixtures[i].lower_case);
        assert_true(s.normalize);
        assert_true(s.include_prompt);
        assert_int_equal(s.n_dense, 0);
        assert_null(s.default_prompt);
        lt_sentence_free(&s);
        lt_config_free(&config);
    }
}

static void prompts_are_read_in_order(void **state)
{
    (void)state;
    lattice_error err = { 0 };
    lt_config config;
    lt_sentence s;
    assert_ok_err(lt_config_read(mem, FIXTURE("qwen3-embedding"), &config, &err), &err);
    assert_ok_err(lt_sentence_read(mem, FIXTURE("qwen3-embedding"), &config, true, &s, &err), &err);
    assert_string_equal(s.prompts[0].name, "query");
    assert_string_equal(s.prompts[0].text,
                        "Instruct: Given a web search query, retrieve relevant passages that answer the query\nQuery:");
    assert_string_equal(s.prompts[1].name, "document");
    assert_string_equal(s.prompts[1].text, "");
    lt_sentence_free(&s);
    lt_config_free(&config);
}

/* ------------------------------------------------------------------ written folders */

typedef struct named_text {
    const char *name, *text;
} named_text;

/* Reads a folder with these files (ending in a NULL name) under `config`. */
static lattice_status read_with(const named_text *files, const lt_config *config, lt_sentence *s, lattice_error *err)
{
    lt_test_folder folder = lt_test_folder_create();
    for (; files->name; files++) write_text(&folder, files->name, files->text);
    lattice_status status = lt_sentence_read(mem, folder.path, config, true, s, err);
    /* Messages name the file: what varies between runs is taken off. */
    for (char *at; (at = strstr(err->message, folder.path));)
        memmove(at, at + strlen(folder.path) + 1, strlen(at + strlen(folder.path) + 1) + 1);
    lt_test_folder_remove(&folder);
    return status;
}

#define FILES(...) ((const named_text[]){ __VA_ARGS__, { NULL, NULL } })

static lt_sentence read_ok(const named_text *files, const lt_config *config)
{
    lt_sentence s;
    lattice_error err = { 0 };
    assert_ok_err(read_with(files, config, &s, &err), &err);
    return s;
}

static void assert_refused(const named_text *files, lattice_status code, const char *message)
{
    lt_config config = small_config(LT_MODEL_BERT, 512);
    lt_sentence s;
    lattice_error err = { 0 };
    lattice_status status = read_with(files, &config, &s, &err);
    assert_string_equal(err.message, message);
    assert_int_equal(status, code);
    lt_sentence_free(&s);
}

static void without_files_the_family_decides(void **state)
{
    (void)state;
    static const struct {
        lt_model_type type;
        unsigned pooling;
    } cases[] = { { LT_MODEL_BERT, LATTICE_POOLING_MEAN },
                  { LT_MODEL_ROBERTA, LATTICE_POOLING_MEAN },
                  { LT_MODEL_QWEN3, LATTICE_POOLING_LASTTOKEN } };
    for (size_t i = 0; i < 3; i++) {
        lt_config config = small_config(cases[i].type, 77);
        lt_sentence s = read_ok(FILES({ "unrelated", "x" }), &config);
        assert_int_equal(s.pooling, cases[i].pooling);
        assert_true(s.normalize);
        assert_true(s.include_prompt);
        assert_int_equal(s.max_length, 77);
        lt_sentence_free(&s);
    }
}

static void modules_json_decides_whether_vectors_are_normalised(void **state)
{
    (void)state;
    lt_config config = small_config(LT_MODEL_BERT, 512);
    lt_sentence s = read_ok(FILES({ "modules.json", "[" OLD("Transformer", "") "," OLD("Pooling", "1_Pooling") "]" },
                                  { "1_Pooling/config.json", POOL_MEAN }),
                            &config);
    assert_false(s.normalize);
    lt_sentence_free(&s);
}

static void newer_spellings_of_types_and_poolings_are_read(void **state)
{
    (void)state;
    lt_config config = small_config(LT_MODEL_BERT, 512);
    static const char modules[] =
        "[{\"type\":\"sentence_transformers.base.modules.transformer.Transformer\",\"path\":\"\"},"
        "{\"type\":\"sentence_transformers.sentence_transformer.modules.pooling.Pooling\",\"path\":\"a/b\"},"
        "{\"type\":\"sentence_transformers.base.modules.normalize.Normalize\",\"path\":\"2_Normalize\"}]";
    static const struct {
        const char *config;
        unsigned pooling;
    } cases[] = {
        { "{\"embedding_dimension\":4,\"pooling_mode\":\"mean\",\"include_prompt\":false}", LATTICE_POOLING_MEAN },
        { "{\"pooling_mode\":\"lasttoken\"}", LATTICE_POOLING_LASTTOKEN },
        { "{\"pooling_mode\":[\"cls\",\"max\",\"weightedmean\"]}",
          LATTICE_POOLING_CLS | LATTICE_POOLING_MAX | LATTICE_POOLING_WEIGHTEDMEAN },
        { "{\"pooling_mode\":\"mean_sqrt_len_tokens\",\"pooling_mode_cls_token\":true}", LATTICE_POOLING_MEAN_SQRT_LEN },
        { "{\"pooling_mode_cls_token\":false}", LATTICE_POOLING_MEAN },
        { "{\"pooling_mode_cls_token\":true,\"pooling_mode_max_tokens\":true,\"pooling_mode_mean_tokens\":true,"
          "\"pooling_mode_mean_sqrt_len_tokens\":true,\"pooling_mode_weightedmean_tokens\":true,\"pooling_mode_lasttoken\":true}",
          63 },
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        lt_sentence s = read_ok(FILES({ "modules.json", modules }, { "a/b/config.json", cases[i].config }), &config);
        assert_int_equal(s.pooling, cases[i].pooling);
        assert_int_equal(s.include_prompt, i != 0);
        assert_true(s.normalize);
        lt_sentence_free(&s);
    }
}

static void modules_that_cannot_be_run_are_refused_by_name(void **state)
{
    (void)state;
    assert_refused(
        FILES({ "modules.json", "[" OLD("Transformer", "") "," OLD("LSTM", "1_LSTM") "]" }), LATTICE_ERR_UNSUPPORTED,
        "modules.json: module type 'sentence_transformers.models.LSTM' is not supported (supported: Transformer, Pooling, "
        "Dense, Normalize)");
    assert_refused(FILES({ "modules.json", "[{\"path\":\"\",\"type\":\"custom.Transformer\"}]" }), LATTICE_ERR_UNSUPPORTED,
                   "modules.json: module type 'custom.Transformer' is not supported (supported: Transformer, Pooling, Dense, "
                   "Normalize)");
    assert_refused(FILES({ "modules.json", "[]" }), LATTICE_ERR_UNSUPPORTED,
                   "modules.json: the first module is not a Transformer");
    assert_refused(FILES({ "modules.json", "[{\"path\":\"\"}]" }), LATTICE_ERR_FORMAT, "modules.json: a module has no type");
    assert_refused(FILES({ "modules.json", "[" OLD("Transformer", "0_Transformer") "]" }), LATTICE_ERR_UNSUPPORTED,
                   "modules.json: the Transformer is in '0_Transformer': only the folder itself is supported");
    assert_refused(FILES({ "modules.json", "[" OLD("Transformer", "") "," OLD("Normalize", "") "]" }), LATTICE_ERR_UNSUPPORTED,
                   "modules.json: the second module is not a Pooling");
    assert_refused(FILES({ "modules.json", "[" OLD("Transformer", "") "," OLD("Pooling", "p") "," OLD("Normalize", "") "," OLD(
                                               "Dense", "d") "]" }),
                   LATTICE_ERR_UNSUPPORTED,
                   "modules.json: module 3 is a Dense after a Normalize (supported: Transformer, Pooling, Dense …, Normalize)");
    assert_refused(FILES({ "modules.json", "{}" }), LATTICE_ERR_FORMAT, "modules.json:1:1: expected an array, found an object");
}

static void module_paths_must_stay_inside_the_folder(void **state)
{
    (void)state;
    static const char *const paths[] = { "..", "../x", "/etc", "a/../b", "a//b", "./a", "a/" };
    for (size_t i = 0; i < sizeof paths / sizeof *paths; i++) {
        char modules[300], message[100];
        snprintf(modules, sizeof modules,
                 "[" OLD("Transformer", "") ",{\"path\":\"%s\",\"type\":\"sentence_transformers.models.Pooling\"}]", paths[i]);
        snprintf(message, sizeof message, "modules.json: module path '%s' leads out of the folder", paths[i]);
        assert_refused(FILES({ "modules.json", modules }), LATTICE_ERR_FORMAT, message);
    }
}

static void poolings_that_cannot_be_run_are_refused(void **state)
{
    (void)state;
    static const struct {
        const char *config;
        lattice_status code;
        const char *message;
    } cases[] = {
        { "{\"pooling_mode\":\"attention\"}", LATTICE_ERR_UNSUPPORTED,
          "p/config.json: pooling_mode 'attention' is not supported" },
        { "{\"pooling_mode_attention\":true}", LATTICE_ERR_UNSUPPORTED,
          "p/config.json: 'pooling_mode_attention' is not supported" },
        { "{\"pooling_mode\":[\"mean\",\"cls\"]}", LATTICE_ERR_UNSUPPORTED,
          "p/config.json: pooling_mode: 'cls' stands after a mode that it is put before (order: cls, max, mean, "
          "mean_sqrt_len_tokens, "
          "weightedmean, lasttoken)" },
        { "{\"word_embedding_dimension\":5}", LATTICE_ERR_FORMAT, "p/config.json: pools vectors of 5, but hidden_size is 4" },
        { "{\"pooling_mode_cls_token\":1}", LATTICE_ERR_FORMAT, "p/config.json:1:27: expected true or false, found a number" },
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        assert_refused(FILES({ "modules.json", "[" OLD("Transformer", "") "," OLD("Pooling", "p") "]" },
                             { "p/config.json", cases[i].config }),
                       cases[i].code, cases[i].message);
}

/* ------------------------------------------------------------------ Dense */

/* A safetensors file of float32 zeros for out x in weights, with a bias when asked for. */
static void write_dense(const lt_test_folder *folder, const char *name, unsigned in, unsigned out, bool bias)
{
    char header[400], path[256];
    unsigned weight = 4 * in * out, total = weight + (bias ? 4 * out : 0);
    int length = snprintf(header, sizeof header,
                          "{\"linear.weight\":{\"dtype\":\"F32\",\"shape\":[%u,%u],\"data_offsets\":[0,%u]}", out, in, weight);
    if (bias)
        length += snprintf(header + length, sizeof header - (size_t)length,
                           ",\"linear.bias\":{\"dtype\":\"F32\",\"shape\":[%u],\"data_offsets\":[%u,%u]}", out, weight, total);
    length += snprintf(header + length, sizeof header - (size_t)length, "}");
    uint8_t *file = calloc(1, 8 + (size_t)length + total);
    file[0] = (uint8_t)length;
    file[1] = (uint8_t)(length >> 8);
    memcpy(file + 8, header, (size_t)length);
    lt_test_write_file(lt_test_path(folder, name, path), file, 8 + (size_t)length + total);
    free(file);
}

#define DENSE_MODULES                                                                                                            \
    "[" OLD("Transformer", "") "," OLD("Pooling", "p") "," OLD("Dense", "d") "," OLD("Dense", "e") "," OLD("Normalize", "n") "]"

static lt_test_folder dense_folder(const char *first, const char *second)
{
    lt_test_folder folder = lt_test_folder_create();
    write_text(&folder, "modules.json", DENSE_MODULES);
    write_text(&folder, "p/config.json", "{\"pooling_mode_cls_token\":true,\"pooling_mode_mean_tokens\":true}");
    write_text(&folder, "d/config.json", first);
    write_text(&folder, "e/config.json", second);
    write_dense(&folder, "d/model.safetensors", 8, 3, true);
    write_dense(&folder, "e/model.safetensors", 3, 5, false);
    return folder;
}

#define DENSE_D "{\"in_features\":8,\"out_features\":3}"
#define DENSE_E                                                                                                                  \
    "{\"in_features\":3,\"out_features\":5,\"bias\":false,\"activation_function\":\"torch.nn.modules.linear.Identity\"}"

static void dense_modules_are_opened_in_order(void **state)
{
    (void)state;
    lt_config config = small_config(LT_MODEL_BERT, 512);
    lt_test_folder folder = dense_folder(DENSE_D, DENSE_E);
    lt_sentence s;
    lattice_error err = { 0 };
    assert_ok_err(lt_sentence_read(mem, folder.path, &config, true, &s, &err), &err);
    assert_int_equal(s.n_dense, 2);
    assert_int_equal(s.dense[0].in_features, 8);
    assert_int_equal(s.dense[0].out_features, 3);
    assert_int_equal(s.dense[0].activation, LT_ACT_TANH);
    assert_true(s.dense[0].bias);
    assert_int_equal(s.dense[1].out_features, 5);
    assert_int_equal(s.dense[1].activation, LT_ACT_NONE);
    assert_false(s.dense[1].bias);
    assert_non_null(lt_checkpoint_find(s.dense[1].weights, LT_STR("linear.weight")));
    assert_true(s.normalize);
    lt_sentence_free(&s);
    lt_test_folder_remove(&folder);
}

static void dense_modules_that_do_not_fit_are_refused(void **state)
{
    (void)state;
    static const struct {
        const char *first, *second;
        lattice_status code;
        const char *message;
    } cases[] = {
        { "{\"in_features\":4,\"out_features\":3}", DENSE_E, LATTICE_ERR_FORMAT,
          "/d/config.json: in_features is 4, but the vectors have 8" },
        { DENSE_D, "{\"in_features\":8,\"out_features\":3}", LATTICE_ERR_FORMAT,
          "/e/config.json: in_features is 8, but the vectors have 3" },
        { "{\"in_features\":8,\"out_features\":4}", DENSE_E, LATTICE_ERR_FORMAT,
          "/d: tensor 'linear.weight' does not have the shape that config.json says (4 by 8)" },
        { DENSE_D, "{\"in_features\":3,\"out_features\":5}", LATTICE_ERR_FORMAT, "/e: tensor 'linear.bias' is missing" },
        { "{\"out_features\":4}", DENSE_E, LATTICE_ERR_FORMAT, "/d/config.json: in_features is missing or 0" },
        { "{\"in_features\":8,\"out_features\":3,\"use_residual\":true}", DENSE_E, LATTICE_ERR_UNSUPPORTED,
          "/d/config.json: use_residual is not supported" },
        { "{\"in_features\":8,\"out_features\":3,\"module_input_name\":\"token_embeddings\"}", DENSE_E, LATTICE_ERR_UNSUPPORTED,
          "/d/config.json: a Dense module on 'token_embeddings' is not supported" },
        { "{\"in_features\":8,\"out_features\":3,\"activation_function\":\"torch.nn.modules.activation.Mish\"}", DENSE_E,
          LATTICE_ERR_UNSUPPORTED,
          "/d/config.json: activation_function 'torch.nn.modules.activation.Mish' is not supported (supported: Tanh, ReLU, GELU, "
          "Sigmoid, SiLU, Identity of torch.nn)" },
    };
    lt_config config = small_config(LT_MODEL_BERT, 512);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        lt_test_folder folder = dense_folder(cases[i].first, cases[i].second);
        lt_sentence s;
        lattice_error err = { 0 };
        char expected[500];
        lattice_status status = lt_sentence_read(mem, folder.path, &config, true, &s, &err);
        snprintf(expected, sizeof expected, "%s%s", folder.path, cases[i].message);
        assert_string_equal(err.message, expected);
        assert_int_equal(status, cases[i].code);
        lt_sentence_free(&s);
        lt_test_folder_remove(&folder);
    }
}

/* ------------------------------------------------------------------ lengths, prompts */

static void the_length_comes_from_three_places_and_is_capped_by_the_positions(void **state)
{
    (void)state;
    static const struct {
        const char *sentence, *tokenizer;
        size_t positions, offset, expected;
    } cases[] = {
        { "{\"max_seq_length\":256,\"do_lower_case\":false}", "{\"model_max_length\":512}", 512, 0, 256 },
        { "{\"max_seq_length\":null}", "{\"model_max_length\":100}", 512, 0, 100 },
        { "{\"max_seq_length\":8192}", "{\"model_max_length\":100}", 512, 0, 512 },
        { NULL, "{\"model_max_length\":1000000000000000019884624838656}", 512, 0, 512 },
        { NULL, "{\"model_max_length\":1e30}", 512, 0, 512 },
        { NULL, "{\"model_max_length\":null}", 514, 2, 512 },
        { "{\"max_seq_length\":514}", NULL, 514, 2, 512 },
        { NULL, NULL, 40, 0, 40 },
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        lt_config config = small_config(LT_MODEL_ROBERTA, cases[i].positions);
        config.position_offset = cases[i].offset;
        const named_text files[] = {
            { cases[i].sentence ? "sentence_bert_config.json" : "unrelated", cases[i].sentence ? cases[i].sentence : "" },
            { cases[i].tokenizer ? "tokenizer_config.json" : "unrelated2", cases[i].tokenizer ? cases[i].tokenizer : "" },
            { NULL, NULL },
        };
        lt_sentence s = read_ok(files, &config);
        assert_int_equal(s.max_length, cases[i].expected);
        lt_sentence_free(&s);
    }
    lt_config config = small_config(LT_MODEL_ROBERTA, 100);
    lt_sentence s = read_ok(FILES({ "sentence_roberta_config.json", "{\"max_seq_length\":9,\"do_lower_case\":true}" }), &config);
    assert_int_equal(s.max_length, 9);
    assert_true(s.lower_case);
    lt_sentence_free(&s);
    assert_refused(FILES({ "sentence_bert_config.json", "{\"max_seq_length\":0}" }), LATTICE_ERR_FORMAT,
                   "sentence_bert_config.json: max_seq_length is 0");
    assert_refused(FILES({ "tokenizer_config.json", "{\"model_max_length\":-1}" }), LATTICE_ERR_FORMAT,
                   "tokenizer_config.json: model_max_length is -1, expected at least 1");
}

static void a_null_prompt_is_empty_and_the_default_must_exist(void **state)
{
    (void)state;
    lt_config config = small_config(LT_MODEL_BERT, 512);
    lt_sentence s = read_ok(FILES({ "config_sentence_transformers.json",
                                    "{\"default_prompt_name\":\"b\",\"prompts\":{\"a\":null,\"b\":\"B: \\u00e9\"}}" }),
                            &config);
    assert_int_equal(s.n_prompts, 2);
    assert_string_equal(s.prompts[0].text, "");
    assert_string_equal(s.prompts[1].text, "B: é");
    assert_string_equal(s.default_prompt, "b");
    lt_sentence_free(&s);
    assert_refused(FILES({ "config_sentence_transformers.json", "{\"default_prompt_name\":\"c\",\"prompts\":{\"a\":\"A\"}}" }),
                   LATTICE_ERR_FORMAT, "config_sentence_transformers.json: default_prompt_name 'c' is not among the prompts");
    assert_refused(FILES({ "config_sentence_transformers.json", "{\"default_prompt_name\":\"c\",\"prompts\":null}" }),
                   LATTICE_ERR_FORMAT, "config_sentence_transformers.json: default_prompt_name 'c' is not among the prompts");
    assert_refused(FILES({ "config_sentence_transformers.json", "{\"prompts\":{\"a\":\"x\\u0000y\"}}" }), LATTICE_ERR_FORMAT,
                   "config_sentence_transformers.json:1:17: a string with a NUL character is not supported here");
}

static void every_failed_allocation_is_reported_without_a_leak(void **state)
{
    (void)state;
    lt_config config = small_config(LT_MODEL_BERT, 512);
    lt_test_folder folder = dense_folder(DENSE_D, DENSE_E);
    write_text(&folder, "sentence_bert_config.json", "{\"max_seq_length\":64}");
    write_text(&folder, "config_sentence_transformers.json",
               "{\"prompts\":{\"a\":\"\\u00e9\",\"b\":null},\"default_prompt_name\":\"a\"}");
    for (long n = 1;; n++) {
        lt_test_allocator a = lt_test_allocator_failing_at(n);
        lattice_allocator hooks = lt_test_allocator_hooks(&a);
        lt_sentence s;
        lattice_error err = { 0 };
        lattice_status status = lt_sentence_read(&hooks, folder.path, &config, false, &s, &err);
        lt_sentence_free(&s);
        assert_int_equal(lt_test_allocator_live(&a), 0);
        if (status == LATTICE_OK) break;
        assert_int_equal(status, LATTICE_ERR_NO_MEMORY);
        assert_int_equal(err.code, LATTICE_ERR_NO_MEMORY);
    }
    lt_test_folder_remove(&folder);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_fixture_reads_as_written),
        cmocka_unit_test(prompts_are_read_in_order),
        cmocka_unit_test(without_files_the_family_decides),
        cmocka_unit_test(modules_json_decides_whether_vectors_are_normalised),
        cmocka_unit_test(newer_spellings_of_types_and_poolings_are_read),
        cmocka_unit_test(modules_that_cannot_be_run_are_refused_by_name),
        cmocka_unit_test(module_paths_must_stay_inside_the_folder),
        cmocka_unit_test(poolings_that_cannot_be_run_are_refused),
        cmocka_unit_test(dense_modules_are_opened_in_order),
        cmocka_unit_test(dense_modules_that_do_not_fit_are_refused),
        cmocka_unit_test(the_length_comes_from_three_places_and_is_capped_by_the_positions),
        cmocka_unit_test(a_null_prompt_is_empty_and_the_default_must_exist),
        cmocka_unit_test(every_failed_allocation_is_reported_without_a_leak),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
