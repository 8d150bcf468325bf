/* config.json, generation_config.json and inference_config.json: each fixture's values, and the exact error of what is refused.
 */
#include "support.h"

#include "base/memory.h"
#include "format/config.h"

static const lattice_allocator *const mem = &lt_malloc_allocator;

/* ------------------------------------------------------------------ fixtures */

// clang-format off
/* As the files read. */
static const struct {
    const char *folder;
    lt_model_type type;
    const char *type_name, *architecture;
    lt_head head;
    size_t vocab, hidden, layers, intermediate, heads, kv_heads, head_dim, positions, max_length;
    lt_activation activation;
    float eps;
    size_t types, offset, labels;
    double theta;
    size_t rotary;
    bool bias, tied;
    size_t eos; /* 0: none */
} fixtures[] = {
    { "bert-cls", LT_MODEL_BERT, "bert", "BertModel", LT_HEAD_NONE, 2000, 48, 3, 96, 4, 4, 12, 128, 128, LT_ACT_GELU, 1e-12f, 2, 0, 0, 0, 0, false, false, 0 },
    { "bert-mean-f16", LT_MODEL_BERT, "bert", "BertModel", LT_HEAD_NONE, 2000, 48, 3, 96, 4, 4, 12, 128, 128, LT_ACT_GELU_TANH, 1e-12f, 2, 0, 0, 0, 0, false, false, 0 },
    { "cross-encoder-1", LT_MODEL_BERT, "bert", "BertForSequenceClassification", LT_HEAD_CLASSIFIER, 2000, 48, 3, 96, 4, 4, 12, 128, 128, LT_ACT_GELU, 1e-12f, 2, 0, 1, 0, 0, false, false, 0 },
    { "cross-encoder-3", LT_MODEL_BERT, "bert", "BertForSequenceClassification", LT_HEAD_CLASSIFIER, 2000, 48, 3, 96, 4, 4, 12, 128, 128, LT_ACT_GELU, 1e-12f, 2, 0, 3, 0, 0, false, false, 0 },
    { "roberta-max", LT_MODEL_ROBERTA, "roberta", "RobertaModel", LT_HEAD_NONE, 1500, 40, 2, 112, 5, 5, 8, 130, 128, LT_ACT_RELU, 1e-5f, 1, 2, 0, 0, 0, false, false, 2 },
    { "xlmr-cross-encoder", LT_MODEL_ROBERTA, "xlm-roberta", "XLMRobertaForSequenceClassification", LT_HEAD_CLASSIFIER, 2502, 48, 3, 96, 4, 4, 12, 130, 128, LT_ACT_GELU, 1e-5f, 1, 2, 1, 0, 0, false, false, 2 },
    { "qwen3-embedding", LT_MODEL_QWEN3, "qwen3", "Qwen3Model", LT_HEAD_NONE, 2007, 64, 3, 160, 4, 2, 32, 512, 512, LT_ACT_SILU, 1e-6f, 0, 0, 0, 1e6, 32, false, true, 2000 },
    { "xlmr-mean", LT_MODEL_ROBERTA, "xlm-roberta", "XLMRobertaModel", LT_HEAD_NONE, 2502, 48, 3, 96, 4, 4, 12, 130, 128, LT_ACT_GELU, 1e-5f, 1, 2, 0, 0, 0, false, false, 2 },
    { "qwen3-embedding-hd80-sharded-bf16", LT_MODEL_QWEN3, "qwen3", "Qwen3Model", LT_HEAD_NONE, 2007, 64, 3, 160, 6, 2, 80, 512, 512, LT_ACT_SILU, 1e-6f, 0, 0, 0, 1e6, 80, true, true, 2000 },
    { "qwen3-reranker", LT_MODEL_QWEN3, "qwen3", "Qwen3ForCausalLM", LT_HEAD_LM, 2007, 64, 3, 160, 2, 1, 128, 512, 512, LT_ACT_SILU, 1e-6f, 0, 0, 0, 1e6, 128, false, true, 2000 },
    { "qwen3.5-text", LT_MODEL_QWEN3_5, "qwen3_5_text", "Qwen3_5ForCausalLM", LT_HEAD_LM, 1807, 64, 4, 160, 4, 2, 32, 1024, 1024, LT_ACT_SILU, 1e-6f, 0, 0, 0, 1e7, 8, false, true, 1802 },
    { "qwen3.5-vl-layout-bf16", LT_MODEL_QWEN3_5, "qwen3_5", "Qwen3_5ForConditionalGeneration", LT_HEAD_LM, 1807, 64, 4, 160, 4, 2, 32, 1024, 1024, LT_ACT_SILU, 1e-6f, 0, 0, 0, 1e7, 8, false, false, 1802 },
};
// clang-format on

static void every_fixture_reads_as_written(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof fixtures / sizeof *fixtures; i++) {
        char folder[300];
        lattice_error err = { 0 };
        lt_config c;
        snprintf(folder, sizeof folder, LT_FIXTURES "/%s", fixtures[i].folder);
        assert_ok_err(lt_config_read(mem, folder, &c, &err), &err);
        assert_int_equal(c.model_type, fixtures[i].type);
        assert_string_equal(c.model_type_name, fixtures[i].type_name);
        assert_string_equal(c.architecture, fixtures[i].architecture);
        assert_int_equal(c.head, fixtures[i].head);
        assert_int_equal(c.vocab_size, fixtures[i].vocab);
        assert_int_equal(c.hidden_size, fixtures[i].hidden);
        assert_int_equal(c.n_layers, fixtures[i].layers);
        assert_int_equal(c.intermediate_size, fixtures[i].intermediate);
        assert_int_equal(c.n_heads, fixtures[i].heads);
        assert_int_equal(c.n_kv_heads, fixtures[i].kv_heads);
        assert_int_equal(c.head_dim, fixtures[i].head_dim);
        assert_int_equal(c.max_positions, fixtures[i].positions);
        assert_int_equal(lt_config_max_length(&c), fixtures[i].max_length);
        assert_int_equal(c.activation, fixtures[i].activation);
        assert_true(c.norm_eps == fixtures[i].eps);
        assert_int_equal(c.type_vocab_size, fixtures[i].types);
        assert_int_equal(c.position_offset, fixtures[i].offset);
        assert_int_equal(c.n_labels, fixtures[i].labels);
        for (size_t l = 0; l < c.n_labels; l++) {
            char label[32];
            snprintf(label, sizeof label, "LABEL_%zu", l);
            assert_string_equal(c.labels[l], label);
        }
        assert_true(c.rope_theta == fixtures[i].theta);
        assert_int_equal(c.rotary_dim, fixtures[i].rotary);
        assert_int_equal(c.attention_bias, fixtures[i].bias);
        assert_int_equal(c.tie_word_embeddings, fixtures[i].tied);
        assert_int_equal(c.n_eos_token_ids, fixtures[i].eos != 0);
        if (fixtures[i].eos) assert_int_equal(c.eos_token_ids[0], fixtures[i].eos);
        bool hybrid = c.model_type == LT_MODEL_QWEN3_5;
        assert_int_equal(c.conv_kernel, hybrid ? 4 : 0);
        assert_int_equal(c.linear_key_heads, hybrid ? 2 : 0);
        assert_int_equal(c.linear_value_heads, hybrid ? 4 : 0);
        assert_int_equal(c.linear_key_dim, hybrid ? 16 : 0);
        assert_int_equal(c.linear_value_dim, hybrid ? 32 : 0);
        assert_int_equal(c.attn_output_gate, hybrid);
        if (c.rope_theta > 0)
            for (size_t l = 0; l < c.n_layers; l++)
                assert_int_equal(c.layer_types[l], hybrid && l != 3 ? LT_LAYER_LINEAR_ATTENTION : LT_LAYER_FULL_ATTENTION);
        lt_config_free(&c);
    }
}

/* ------------------------------------------------------------------ edited configurations */

#define BERT                                                                                                                     \
    "{\"model_type\":\"bert\",\"architectures\":[\"BertForSequenceClassification\"],\"vocab_size\":100,\"hidden_size\":48,"      \
    "\"num_hidden_layers\":3,\"intermediate_size\":96,\"num_attention_heads\":4,\"max_position_embeddings\":128,"                \
    "\"hidden_act\":\"gelu\",\"layer_norm_eps\":1e-12,\"type_vocab_size\":2,\"pad_token_id\":0,\"is_decoder\":false,"            \
    "\"add_cross_attention\":null,\"position_embedding_type\":\"absolute\",\"id2label\":{\"0\":\"no\",\"1\":\"yes\"}}"
#define XLMR                                                                                                                     \
    "{\"model_type\":\"xlm-roberta\",\"architectures\":[\"XLMRobertaModel\"],\"vocab_size\":100,\"hidden_size\":48,"             \
    "\"num_hidden_layers\":3,\"intermediate_size\":96,\"num_attention_heads\":4,\"max_position_embeddings\":130,"                \
    "\"hidden_act\":\"gelu\",\"layer_norm_eps\":1e-5,\"type_vocab_size\":1,\"pad_token_id\":1}"
#define QWEN3                                                                                                                    \
    "{\"model_type\":\"qwen3\",\"architectures\":[\"Qwen3Model\"],\"vocab_size\":100,\"hidden_size\":64,"                        \
    "\"num_hidden_layers\":2,\"intermediate_size\":96,\"num_attention_heads\":4,\"num_key_value_heads\":2,\"head_dim\":32,"      \
    "\"max_position_embeddings\":512,\"hidden_act\":\"silu\",\"rms_norm_eps\":1e-6,\"rope_theta\":1000000,"                      \
    "\"rope_scaling\":null,\"sliding_window\":null,\"use_sliding_window\":false,\"eos_token_id\":7}"
#define QWEN35                                                                                                                   \
    "{\"model_type\":\"qwen3_5\",\"architectures\":[\"Qwen3_5ForConditionalGeneration\"],\"text_config\":{"                      \
    "\"model_type\":\"qwen3_5_text\",\"vocab_size\":100,\"hidden_size\":64,\"num_hidden_layers\":4,\"intermediate_size\":96,"    \
    "\"num_attention_heads\":4,\"num_key_value_heads\":2,\"head_dim\":32,\"max_position_embeddings\":512,"                       \
    "\"hidden_act\":\"silu\",\"rms_norm_eps\":1e-6,\"rope_parameters\":{\"rope_type\":\"default\",\"rope_theta\":10000000,"      \
    "\"partial_rotary_factor\":0.25},\"full_attention_interval\":2,\"linear_conv_kernel_dim\":4,\"linear_key_head_dim\":16,"     \
    "\"linear_value_head_dim\":32,\"linear_num_key_heads\":2,\"linear_num_value_heads\":4,\"eos_token_id\":[5,6]},"              \
    "\"vision_config\":{\"hidden_size\":7},\"tie_word_embeddings\":true,\"eos_token_id\":[6,8]}"

/* `base` with its one occurrence of `from` replaced by `to`. */
static const char *edited(const char *base, const char *from, const char *to)
{
    static char out[4096];
    const char *at = strstr(base, from);
    if (!at) fail_msg("no %s in %s", from, base);
    snprintf(out, sizeof out, "%.*s%s%s", (int)(at - base), base, to, at + strlen(from));
    return out;
}

static lattice_status parse(const char *text, lt_config *config, lattice_error *err)
{
    return lt_config_parse(mem, "config.json", text, strlen(text), config, err);
}

static lt_config parse_ok(const char *text)
{
    lt_config config;
    lattice_error err = { 0 };
    assert_ok_err(parse(text, &config, &err), &err);
    return config;
}

typedef struct edit {
    const char *base, *from, *to, *message;
} edit;

static void assert_refused(const edit *cases, size_t n, lattice_status code)
{
    for (size_t i = 0; i < n; i++) {
        lt_config config;
        lattice_error err = { 0 };
        lattice_status status = parse(edited(cases[i].base, cases[i].from, cases[i].to), &config, &err);
        assert_string_equal(err.message, cases[i].message);
        assert_int_equal(status, code);
        lt_config_free(&config);
    }
}

#define REFUSED(code, ...)                                                                                                       \
    do {                                                                                                                         \
        static const edit cases_[] = { __VA_ARGS__ };                                                                            \
        assert_refused(cases_, sizeof cases_ / sizeof *cases_, code);                                                            \
    } while (0)

static void the_unedited_configurations_are_accepted(void **state)
{
    (void)state;
    static const char *const texts[] = { BERT, XLMR, QWEN3, QWEN35 };
    for (size_t i = 0; i < 4; i++) {
        lt_config config = parse_ok(texts[i]);
        lt_config_free(&config);
    }
}

static void foreign_models_are_refused_by_name(void **state)
{
    (void)state;
    REFUSED(LATTICE_ERR_UNSUPPORTED,
            { BERT, "\"bert\"", "\"llama\"",
              "config.json: model_type 'llama' is not supported (supported: bert, roberta, xlm-roberta, qwen3, qwen3_5, "
              "qwen3_5_text)" },
            { BERT, "BertForSequenceClassification", "BertForQuestionAnswering",
              "config.json: architecture 'BertForQuestionAnswering' of model_type 'bert' is not supported (supported: BertModel, "
              "BertForMaskedLM, BertForPreTraining, BertForNextSentencePrediction, BertForSequenceClassification)" },
            { QWEN3, "Qwen3Model", "Qwen3ForSequenceClassification",
              "config.json: architecture 'Qwen3ForSequenceClassification' of model_type 'qwen3' is not supported (supported: "
              "Qwen3Model, "
              "Qwen3ForCausalLM)" },
            { BERT, "\"is_decoder\":false", "\"is_decoder\":true",
              "config.json: is_decoder is true: decoders of this family are not supported" },
            { BERT, "\"add_cross_attention\":null", "\"add_cross_attention\":true",
              "config.json: add_cross_attention is true: decoders of this family are not supported" },
            { BERT, "\"absolute\"", "\"relative_key\"",
              "config.json: position_embedding_type 'relative_key' is not supported (supported: absolute)" },
            { BERT, "\"gelu\"", "\"quick_gelu\"",
              "config.json: hidden_act 'quick_gelu' is not supported (supported: gelu, gelu_python, gelu_new, gelu_pytorch_tanh, "
              "gelu_fast, relu, silu, swish)" },
            { QWEN3, "\"rope_scaling\":null", "\"rope_scaling\":{\"type\":\"yarn\",\"factor\":4.0}",
              "config.json: rope_type 'yarn' is not supported (supported: default)" },
            { QWEN35, "\"rope_type\":\"default\"", "\"rope_type\":\"linear\"",
              "config.json: rope_type 'linear' is not supported (supported: default)" },
            { QWEN3, "\"sliding_window\":null,\"use_sliding_window\":false", "\"sliding_window\":64,\"use_sliding_window\":true",
              "config.json: use_sliding_window is true: sliding windows are not supported" },
            { QWEN3, "\"rope_scaling\":null", "\"layer_types\":[\"full_attention\",\"sliding_attention\"]",
              "config.json: layer_types: 'sliding_attention' is not supported (supported: full_attention, linear_attention)" },
            { QWEN3, "\"rope_scaling\":null", "\"layer_types\":[\"full_attention\",\"linear_attention\"]",
              "config.json: layer_types: 'linear_attention' is not supported in model_type 'qwen3'" });
}

static void a_foreign_model_is_named_even_if_its_fields_have_other_types(void **state)
{
    (void)state;
    REFUSED(LATTICE_ERR_UNSUPPORTED, { "{\"hidden_size\":[1,2],\"model_type\":\"whisper\"}", "}", "}",
                                       "config.json: model_type 'whisper' is not supported (supported: bert, roberta, "
                                       "xlm-roberta, qwen3, qwen3_5, qwen3_5_text)" });
}

static void missing_fields_are_named(void **state)
{
    (void)state;
    static const struct {
        const char *base, *field;
    } cases[] = {
        { BERT, "model_type" },
        { BERT, "vocab_size" },
        { BERT, "hidden_size" },
        { BERT, "num_hidden_layers" },
        { BERT, "intermediate_size" },
        { BERT, "num_attention_heads" },
        { BERT, "hidden_act" },
        { BERT, "layer_norm_eps" },
        { BERT, "type_vocab_size" },
        { BERT, "max_position_embeddings" },
        { XLMR, "pad_token_id" },
        { QWEN3, "rms_norm_eps" },
        { QWEN3, "rope_theta" },
        { QWEN35, "linear_conv_kernel_dim" },
        { QWEN35, "linear_key_head_dim" },
        { QWEN35, "linear_value_head_dim" },
        { QWEN35, "linear_num_key_heads" },
        { QWEN35, "linear_num_value_heads" },
        { QWEN35, "partial_rotary_factor" },
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char from[64], message[100];
        snprintf(from, sizeof from, "\"%s\"", cases[i].field);
        snprintf(message, sizeof message, "config.json: %s is missing", cases[i].field);
        const edit one = { cases[i].base, from, "\"renamed\"", message };
        assert_refused(&one, 1, LATTICE_ERR_FORMAT);
    }
    REFUSED(LATTICE_ERR_FORMAT,
            { QWEN35, "full_attention_interval", "renamed", "config.json: layer_types (or full_attention_interval) is missing" },
            { QWEN35, "text_config", "renamed", "config.json: vocab_size is missing" });
}

static void impossible_dimensions_are_refused(void **state)
{
    (void)state;
    REFUSED(
        LATTICE_ERR_FORMAT, { BERT, "\"hidden_size\":48", "\"hidden_size\":0", "config.json: hidden_size is 0" },
        { BERT, "\"num_attention_heads\":4", "\"num_attention_heads\":0", "config.json: num_attention_heads is 0" },
        { BERT, "\"num_attention_heads\":4", "\"num_attention_heads\":5",
          "config.json: hidden_size 48 is not divisible by num_attention_heads 5" },
        { BERT, "\"num_hidden_layers\":3", "\"num_hidden_layers\":0", "config.json: num_hidden_layers is 0" },
        { BERT, "\"num_hidden_layers\":3", "\"num_hidden_layers\":4097",
          "config.json: num_hidden_layers is 4097, over the limit of 4096" },
        { BERT, "\"hidden_size\":48", "\"hidden_size\":18446744073709551615",
          "config.json: hidden_size is 18446744073709551615, over the limit of 1048576" },
        { BERT, "\"vocab_size\":100", "\"vocab_size\":4294967296",
          "config.json: vocab_size is 4294967296, over the limit of 2147483647" },
        { BERT, "\"intermediate_size\":96", "\"intermediate_size\":999999999999",
          "config.json: intermediate_size is 999999999999, over the limit of 16777216" },
        { BERT, "1e-12", "-1", "config.json: layer_norm_eps is -1, expected 0 to 1" },
        { XLMR, "\"pad_token_id\":1", "\"pad_token_id\":129",
          "config.json: max_position_embeddings 130 leaves no position after pad_token_id + 1 = 130" },
        { XLMR, "\"pad_token_id\":1", "\"pad_token_id\":-2", "config.json: pad_token_id is -2, which is no token id" },
        { XLMR, "\"pad_token_id\":1", "\"pad_token_id\":-1", "config.json: pad_token_id is missing" },
        { XLMR, "\"pad_token_id\":1", "\"pad_token_id\":null", "config.json: pad_token_id is missing" },
        { QWEN3, "\"head_dim\":32", "\"head_dim\":0", "config.json: head_dim is 0" },
        { QWEN3, "\"head_dim\":32", "\"head_dim\":33",
          "config.json: head_dim 33 with partial_rotary_factor 1 rotates 33 dimensions, expected an even number" },
        { QWEN3, "\"head_dim\":32", "\"head_dim\":16385", "config.json: head_dim is 16385, over the limit of 16384" },
        { QWEN3, "1000000", "0", "config.json: rope_theta is 0, expected at least 1" },
        { QWEN3, "\"rope_scaling\":null", "\"layer_types\":[\"full_attention\"]",
          "config.json: layer_types has 1 entries, but num_hidden_layers is 2" },
        { QWEN35, "0.25", "1.5", "config.json: partial_rotary_factor is 1.5, expected more than 0 and at most 1" },
        { QWEN35, "0.25", "0.1",
          "config.json: head_dim 32 with partial_rotary_factor 0.1 rotates 3 dimensions, expected an even number" },
        { QWEN35, "0.25", "0.01",
          "config.json: head_dim 32 with partial_rotary_factor 0.01 rotates 0 dimensions, expected an even number" },
        { QWEN35, "\"full_attention_interval\":2", "\"full_attention_interval\":0", "config.json: full_attention_interval is 0" },
        { QWEN35, "\"linear_num_value_heads\":4", "\"linear_num_value_heads\":3",
          "config.json: linear_num_value_heads 3 is not divisible by linear_num_key_heads 2" });
}

static void INV_3_query_heads_must_be_a_multiple_of_key_value_heads(void **state)
{
    (void)state;
    REFUSED(LATTICE_ERR_FORMAT,
            { QWEN3, "\"num_attention_heads\":4", "\"num_attention_heads\":3",
              "config.json: num_attention_heads 3 is not divisible by num_key_value_heads 2: query heads share key/value heads "
              "in equal "
              "groups" },
            { QWEN35, "\"num_key_value_heads\":2", "\"num_key_value_heads\":8",
              "config.json: num_attention_heads 4 is not divisible by num_key_value_heads 8: query heads share key/value heads "
              "in equal "
              "groups" });
}

static void values_of_another_type_name_the_field(void **state)
{
    (void)state;
    REFUSED(LATTICE_ERR_FORMAT,
            { BERT, "\"hidden_size\":48", "\"hidden_size\":\"48\"",
              "config.json:1:103: expected a number, found a string (in field 'hidden_size')" },
            { BERT, "\"hidden_size\":48", "\"hidden_size\":-48",
              "config.json:1:103: -48 is not an integer from 0 to 18446744073709551615 (in field 'hidden_size')" },
            { BERT, "\"hidden_act\":\"gelu\"", "\"hidden_act\":[]",
              "config.json:1:218: expected a string, found an array (in field 'hidden_act')" },
            { "[]", "", "", "config.json:1:1: expected an object, found an array" },
            { "", "", "", "config.json:1:1: expected an object, the text ends" },
            { "{\"model_type\":\"bert\"} x", "", "", "config.json:1:23: expected the end of the text, found 'x'" });
}

/* ------------------------------------------------------------------ defaults and spellings */

static void head_dim_and_key_value_heads_default_from_the_heads(void **state)
{
    (void)state;
    lt_config c =
        parse_ok(edited(QWEN3, "\"num_key_value_heads\":2,\"head_dim\":32", "\"num_key_value_heads\":null,\"head_dim\":null"));
    assert_int_equal(c.head_dim, 16);
    assert_int_equal(c.n_kv_heads, 4);
    assert_int_equal(c.rotary_dim, 16);
    lt_config_free(&c);
}

static void rope_parameters_outrank_the_top_level(void **state)
{
    (void)state;
    lt_config c =
        parse_ok(edited(QWEN3, "\"rope_scaling\":null",
                        "\"rope_parameters\":{\"rope_theta\":5000,\"type\":\"default\",\"partial_rotary_factor\":0.5}"));
    assert_true(c.rope_theta == 5000);
    assert_int_equal(c.rotary_dim, 16);
    lt_config_free(&c);
    c = parse_ok(edited(QWEN3, "\"rope_theta\":1000000,\"rope_scaling\":null",
                        "\"rope_parameters\":{\"rope_theta\":7000},\"rope_theta\":9"));
    assert_true(c.rope_theta == 7000);
    lt_config_free(&c);
}

static void text_config_holds_the_text_part(void **state)
{
    (void)state;
    lt_config c = parse_ok(QWEN35);
    assert_int_equal(c.hidden_size, 64);
    assert_true(c.tie_word_embeddings);
    assert_true(c.attn_output_gate);
    assert_int_equal(c.rotary_dim, 8);
    assert_int_equal(c.layer_types[0], LT_LAYER_LINEAR_ATTENTION);
    assert_int_equal(c.layer_types[1], LT_LAYER_FULL_ATTENTION);
    assert_int_equal(c.layer_types[2], LT_LAYER_LINEAR_ATTENTION);
    assert_int_equal(c.layer_types[3], LT_LAYER_FULL_ATTENTION);
    assert_int_equal(c.n_eos_token_ids, 3);
    assert_int_equal(c.eos_token_ids[0], 5);
    assert_int_equal(c.eos_token_ids[1], 6);
    assert_int_equal(c.eos_token_ids[2], 8);
    lt_config_free(&c);
}

static void labels_come_in_any_order_and_must_be_numbered(void **state)
{
    (void)state;
    lt_config c = parse_ok(edited(BERT, "{\"0\":\"no\",\"1\":\"yes\"}", "{\"2\":\"c\",\"0\":\"a\",\"1\":\"b\"}"));
    assert_int_equal(c.n_labels, 3);
    assert_string_equal(c.labels[0], "a");
    assert_string_equal(c.labels[1], "b");
    assert_string_equal(c.labels[2], "c");
    lt_config_free(&c);

    c = parse_ok(edited(BERT, "{\"0\":\"no\",\"1\":\"yes\"}", "null")); /* as transformers: two labels */
    assert_int_equal(c.n_labels, 2);
    assert_string_equal(c.labels[1], "LABEL_1");
    lt_config_free(&c);

    c = parse_ok(edited(BERT, "\"id2label\":{\"0\":\"no\",\"1\":\"yes\"}", "\"num_labels\":5"));
    assert_int_equal(c.n_labels, 5);
    assert_string_equal(c.labels[4], "LABEL_4");
    lt_config_free(&c);

    REFUSED(LATTICE_ERR_FORMAT,
            { BERT, "{\"0\":\"no\",\"1\":\"yes\"}", "{\"0\":\"a\",\"2\":\"b\"}",
              "config.json: id2label has 2 labels, but they are not numbered 0 to 1" },
            { BERT, "{\"0\":\"no\",\"1\":\"yes\"}", "{\"1\":\"a\",\"01\":\"b\"}",
              "config.json: id2label has 2 labels, but they are not numbered 0 to 1" },
            { BERT, "{\"0\":\"no\",\"1\":\"yes\"}", "{\"x\":\"a\"}", "config.json: id2label: 'x' is no label number" },
            { BERT, "{\"0\":\"no\",\"1\":\"yes\"}", "{\"-1\":\"a\"}", "config.json: id2label: '-1' is no label number" },
            { BERT, "{\"0\":\"no\",\"1\":\"yes\"}", "{}", "config.json: id2label is empty" });
}

static void an_absent_architecture_is_the_bare_model(void **state)
{
    (void)state;
    static const char *const values[] = { "null", "[]" };
    for (int i = 0; i < 2; i++) {
        lt_config c = parse_ok(edited(BERT, "[\"BertForSequenceClassification\"]", values[i]));
        assert_string_equal(c.architecture, "");
        assert_int_equal(c.head, LT_HEAD_NONE);
        assert_int_equal(c.n_labels, 0);
        lt_config_free(&c);
    }
}

/* ------------------------------------------------------------------ the two small files */

static lattice_status parse_small(bool inference, const char *text, lt_config *config, lattice_error *err)
{
    return inference ? lt_config_parse_inference(mem, "inference_config.json", text, strlen(text), config, err)
                     : lt_config_parse_generation(mem, "generation_config.json", text, strlen(text), config, err);
}

static void generation_config_adds_end_tokens_and_sets_sampling(void **state)
{
    (void)state;
    lattice_error err = { 0 };
    lt_config c = parse_ok(QWEN3);
    assert_false(c.generation.do_sample);
    assert_true(c.generation.temperature == 1 && c.generation.top_p == 1 && c.generation.min_p == 0);
    assert_true(c.generation.repetition_penalty == 1 && c.generation.top_k == 50);
    assert_ok_err(parse_small(false,
                              "{\"eos_token_id\":[7,9,9,100],\"do_sample\":true,\"temperature\":0.7,\"top_p\":0.8,\"top_k\":20,"
                              "\"min_p\":null,\"repetition_penalty\":1.05,\"x\":{}}",
                              &c, &err),
                  &err);
    assert_int_equal(c.n_eos_token_ids, 2); /* 100 is outside the vocabulary */
    assert_int_equal(c.eos_token_ids[0], 7);
    assert_int_equal(c.eos_token_ids[1], 9);
    assert_true(c.generation.do_sample);
    assert_true(c.generation.temperature == 0.7f && c.generation.top_p == 0.8f && c.generation.min_p == 0);
    assert_true(c.generation.repetition_penalty == 1.05f && c.generation.top_k == 20);
    lt_config_free(&c);
}

static void inference_config_overrides_end_tokens_and_bounds_lengths(void **state)
{
    (void)state;
    lattice_error err = { 0 };
    lt_config c = parse_ok(QWEN3);
    assert_ok_err(parse_small(true, "{\"eos_token_id\":11,\"rope_table_max_seq_len\":256,\"gpu_max_seq_len\":64}", &c, &err),
                  &err);
    assert_int_equal(c.n_eos_token_ids, 1);
    assert_int_equal(c.eos_token_ids[0], 11);
    assert_int_equal(lt_config_max_length(&c), 256);
    assert_int_equal(c.gpu_max_seq_len, 64);
    assert_ok_err(parse_small(true, "{\"rope_table_max_seq_len\":100000,\"eos_token_id\":null}", &c, &err), &err);
    assert_int_equal(c.n_eos_token_ids, 1);
    assert_int_equal(lt_config_max_length(&c), 512);
    lt_config_free(&c);
}

static void bad_values_in_the_small_files_are_named(void **state)
{
    (void)state;
    static const struct {
        bool inference;
        const char *text, *message;
    } cases[] = {
        { false, "{\"temperature\":-1}", "generation_config.json: temperature is -1, expected 0 to 1e+06" },
        { false, "{\"top_p\":1.5}", "generation_config.json: top_p is 1.5, expected 0 to 1" },
        { false, "{\"repetition_penalty\":0}", "generation_config.json: repetition_penalty is 0, expected 0.001 to 1000" },
        { false, "{\"top_k\":-1}",
          "generation_config.json:1:10: -1 is not an integer from 0 to 18446744073709551615 (in field 'top_k')" },
        { false, "{\"eos_token_id\":\"a\"}",
          "generation_config.json:1:17: expected a number, found a string (in field 'eos_token_id')" },
        { true, "{\"rope_table_max_seq_len\":0}", "inference_config.json: rope_table_max_seq_len is 0" },
        { true, "{\"gpu_max_seq_len\":9999999999}",
          "inference_config.json: gpu_max_seq_len is 9999999999, over the limit of 1073741824" },
    };
    lt_config c = parse_ok(QWEN3);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        lattice_error err = { 0 };
        assert_int_equal(parse_small(cases[i].inference, cases[i].text, &c, &err), LATTICE_ERR_FORMAT);
        assert_string_equal(err.message, cases[i].message);
    }
    lt_config_free(&c);
}

/* ------------------------------------------------------------------ folders and memory */

static void a_folder_without_config_json_says_so(void **state)
{
    (void)state;
    lt_test_folder folder = lt_test_folder_create();
    lattice_error err = { 0 };
    lt_config c;
    char path[256];
    assert_int_equal(lt_config_read(mem, folder.path, &c, &err), LATTICE_ERR_NOT_FOUND);
    assert_non_null(strstr(err.message, lt_test_path(&folder, "config.json", path)));
    lt_config_free(&c);
    lt_test_folder_remove(&folder);
}

static void every_failed_allocation_is_reported_without_a_leak(void **state)
{
    (void)state;
    static const char *const folders[] = { FIXTURE("cross-encoder-3"), FIXTURE("qwen3.5-vl-layout-bf16") };
    for (size_t f = 0; f < 2; f++) {
        for (long n = 1;; n++) {
            lt_test_allocator a = lt_test_allocator_failing_at(n);
            lattice_allocator hooks = lt_test_allocator_hooks(&a);
            lt_config config;
            lattice_error err = { 0 };
            lattice_status status = lt_config_read(&hooks, folders[f], &config, &err);
            lt_config_free(&config);
            assert_int_equal(lt_test_allocator_live(&a), 0);
            if (status == LATTICE_OK) break;
            assert_int_equal(status, LATTICE_ERR_NO_MEMORY);
            assert_int_equal(err.code, LATTICE_ERR_NO_MEMORY);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_fixture_reads_as_written),
        cmocka_unit_test(the_unedited_configurations_are_accepted),
        cmocka_unit_test(foreign_models_are_refused_by_name),
        cmocka_unit_test(a_foreign_model_is_named_even_if_its_fields_have_other_types),
        cmocka_unit_test(missing_fields_are_named),
        cmocka_unit_test(impossible_dimensions_are_refused),
        cmocka_unit_test(INV_3_query_heads_must_be_a_multiple_of_key_value_heads),
        cmocka_unit_test(values_of_another_type_name_the_field),
        cmocka_unit_test(head_dim_and_key_value_heads_default_from_the_heads),
        cmocka_unit_test(rope_parameters_outrank_the_top_level),
        cmocka_unit_test(text_config_holds_the_text_part),
        cmocka_unit_test(labels_come_in_any_order_and_must_be_numbered),
        cmocka_unit_test(an_absent_architecture_is_the_bare_model),
        cmocka_unit_test(generation_config_adds_end_tokens_and_sets_sampling),
        cmocka_unit_test(inference_config_overrides_end_tokens_and_bounds_lengths),
        cmocka_unit_test(bad_values_in_the_small_files_are_named),
        cmocka_unit_test(a_folder_without_config_json_says_so),
        cmocka_unit_test(every_failed_allocation_is_reported_without_a_leak),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
