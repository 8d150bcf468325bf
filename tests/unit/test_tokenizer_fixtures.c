/* Every token id that the fixtures hold, from every golden.json: texts, prompts, pairs with truncation, chat renders. */
#include "support.h"

#include "base/file.h"
#include "format/json.h"
#include "text/tokenizer.h"

typedef struct context {
    lt_tokenizer *tokenizer;
    lt_scratch *scratch;
    lt_tokens tokens;
    lt_json json;
    size_t max_length; /* of the golden file */
    size_t n_cases;
} context;

static const lattice_allocator *const mem = &lt_malloc_allocator;

/* A list of ids or types; *n of them, to be freed. */
static uint32_t *read_numbers(lt_json *json, size_t *n)
{
    size_t capacity = 0;
    uint32_t *list = malloc(sizeof *list);
    *n = 0;
    assert_ok_err(lt_json_begin_array(json), json->err);
    for (bool more;;) {
        assert_ok_err(lt_json_next_element(json, &more), json->err);
        if (!more) return list;
        if (*n == capacity) list = realloc(list, (capacity = 2 * capacity + 16) * sizeof *list);
        assert_ok_err(lt_json_uint32(json, &list[(*n)++]), json->err);
    }
}

static lt_str copy_string(lt_json *json)
{
    lt_str s;
    assert_ok_err(lt_json_string(json, &s), json->err);
    char *copy = malloc(s.len + 1);
    memcpy(copy, s.data, s.len);
    copy[s.len] = '\0';
    return (lt_str){ copy, s.len };
}

/* One case: what it says, in any order of members. */
typedef struct golden_case {
    lt_str text, query, document, prompt_name;
    uint32_t *ids, *types;
    size_t n_ids, n_types;
} golden_case;

static void free_case(golden_case *c)
{
    free((char *)c->text.data);
    free((char *)c->query.data);
    free((char *)c->document.data);
    free((char *)c->prompt_name.data);
    free(c->ids);
    free(c->types);
}

static golden_case read_case(lt_json *json)
{
    golden_case c = { 0 };
    assert_ok_err(lt_json_begin_object(json), json->err);
    for (lt_str key;;) {
        bool more;
        assert_ok_err(lt_json_next_member(json, &key, &more), json->err);
        if (!more) return c;
        if (lt_str_is(key, "text") || lt_str_is(key, "prompt")) {
            c.text = copy_string(json);
        } else if (lt_str_is(key, "query")) {
            c.query = copy_string(json);
        } else if (lt_str_is(key, "document")) {
            c.document = copy_string(json);
        } else if (lt_str_is(key, "prompt_name")) {
            c.prompt_name = copy_string(json);
        } else if (lt_str_is(key, "ids")) {
            c.ids = read_numbers(json, &c.n_ids);
        } else if (lt_str_is(key, "type_ids")) {
            c.types = read_numbers(json, &c.n_types);
        } else {
            assert_ok_err(lt_json_skip(json), json->err);
        }
    }
}

static void encode(context *x, lt_str text, const lt_str *pair, const lt_encode_options *options)
{
    lattice_error err;
    assert_ok_err(lt_tokenizer_encode(x->tokenizer, x->scratch, text, pair, options, &x->tokens, &err), &err);
}

static void assert_ids(const context *x, const golden_case *c, const char *where)
{
    bool same = x->tokens.n == c->n_ids && memcmp(x->tokens.ids, c->ids, c->n_ids * sizeof *c->ids) == 0;
    if (!same)
        fail_msg("%s: '%.*s': ids differ (%zu, wanted %zu)", where, LT_STR_ARG(c->text.data ? c->text : c->query), x->tokens.n,
                 c->n_ids);
    if (c->types && memcmp(x->tokens.type_ids, c->types, c->n_types * sizeof *c->types) != 0)
        fail_msg("%s: '%.*s': type ids differ", where, LT_STR_ARG(c->query));
}

/* The prompts of config_sentence_transformers.json. */
static lt_str prompt_of(const char *folder, lt_str name)
{
    char path[512];
    lattice_error err;
    lt_file file;
    lt_json json;
    lt_str found = { NULL, 0 };
    snprintf(path, sizeof path, LT_FIXTURES "/%s/config_sentence_transformers.json", folder);
    assert_ok_err(lt_file_open(mem, path, false, &file, &err), &err);
    lt_json_open(&json, mem, path, file.data, file.size, &err);
    assert_ok_err(lt_json_begin_object(&json), &err);
    for (lt_str key;;) {
        bool more;
        assert_ok_err(lt_json_next_member(&json, &key, &more), &err);
        if (!more) break;
        if (!lt_str_is(key, "prompts")) {
            assert_ok_err(lt_json_skip(&json), &err);
            continue;
        }
        assert_ok_err(lt_json_begin_object(&json), &err);
        for (;;) {
            assert_ok_err(lt_json_next_member(&json, &key, &more), &err);
            if (!more) break;
            if (lt_str_eq(key, name)) {
                found = copy_string(&json);
            } else {
                assert_ok_err(lt_json_skip(&json), &err);
            }
        }
    }
    lt_json_close(&json);
    lt_file_close(&file);
    assert_non_null(found.data);
    return found;
}

/* The text that the reranker's template makes of a pair, cut as its golden file was: what stands around the content is fixed,
 * and the content of "<Instruct>: … <Document>: …" is cut to what is left of max_length. */
static const char prefix[] =
    "<|im_start|>system\nJudge whether the Document meets the requirements based on the Query and the Instruct "
    "provided. Note that the answer can only be \"yes\" or \"no\".<|im_end|>\n<|im_start|>user\n";
static const char suffix[] = "<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n";

static void check_reranker_pair(context *x, lt_json *json, const char *folder)
{
    lt_str query = { 0 }, document = { 0 }, instruction = { 0 };
    golden_case c = { 0 };
    assert_ok_err(lt_json_begin_object(json), json->err);
    for (lt_str key;;) {
        bool more;
        assert_ok_err(lt_json_next_member(json, &key, &more), json->err);
        if (!more) break;
        if (lt_str_is(key, "query")) {
            query = copy_string(json);
        } else if (lt_str_is(key, "document")) {
            document = copy_string(json);
        } else if (lt_str_is(key, "instruction")) {
            instruction = copy_string(json);
        } else if (lt_str_is(key, "ids")) {
            c.ids = read_numbers(json, &c.n_ids);
        } else {
            assert_ok_err(lt_json_skip(json), json->err);
        }
    }
    lt_buf content, ids;
    lt_buf_init(&content, mem);
    lt_buf_init(&ids, mem);
    lt_buf_printf(&content, "<Instruct>: ");
    lt_buf_append(&content, instruction.data, instruction.len);
    lt_buf_append_z(&content, "\n<Query>: ");
    lt_buf_append(&content, query.data, query.len);
    lt_buf_append_z(&content, "\n<Document>: ");
    lt_buf_append(&content, document.data, document.len);

    const lt_encode_options plain = { 0 };
    encode(x, lt_str_of(suffix), NULL, &plain);
    lt_buf tail;
    lt_buf_init(&tail, mem);
    lt_buf_append(&tail, x->tokens.ids, x->tokens.n * sizeof(uint32_t));
    size_t n_tail = x->tokens.n;
    encode(x, lt_str_of(prefix), NULL, &plain);
    lt_buf_append(&ids, x->tokens.ids, x->tokens.n * sizeof(uint32_t));
    lt_encode_options cut = { .literal = true, .max_length = x->max_length - x->tokens.n - n_tail };
    encode(x, lt_buf_str(&content), NULL, &cut);
    lt_buf_append(&ids, x->tokens.ids, x->tokens.n * sizeof(uint32_t));
    lt_buf_append(&ids, tail.data, tail.len);
    assert_int_equal(ids.len / sizeof(uint32_t), c.n_ids);
    if (memcmp(ids.data, c.ids, ids.len) != 0) fail_msg("%s: '%.*s': ids differ", folder, LT_STR_ARG(query));
    lt_buf_free(&content);
    lt_buf_free(&ids);
    lt_buf_free(&tail);
    free((char *)query.data);
    free((char *)document.data);
    free((char *)instruction.data);
    free_case(&c);
    x->n_cases++;
}

static void check_case(context *x, lt_json *json, const char *folder, bool add_special)
{
    golden_case c = read_case(json);
    lt_encode_options options = { .add_special = add_special, .max_length = x->max_length };
    if (c.query.data) {
        encode(x, c.query, &c.document, &options);
    } else if (c.prompt_name.data) {
        lt_str prompt = prompt_of(folder, c.prompt_name);
        char *whole = malloc(prompt.len + c.text.len + 1);
        memcpy(whole, prompt.data, prompt.len);
        memcpy(whole + prompt.len, c.text.data, c.text.len);
        options.max_length = 0; /* prompts are never cut */
        encode(x, (lt_str){ whole, prompt.len + c.text.len }, NULL, &options);
        free(whole);
        free((char *)prompt.data);
    } else {
        encode(x, c.text, NULL, &options);
    }
    assert_ids(x, &c, folder);
    /* the ids are the same when no spans are kept */
    options.no_spans = true;
    if (!c.prompt_name.data) {
        encode(x, c.query.data ? c.query : c.text, c.query.data ? &c.document : NULL, &options);
        assert_ids(x, &c, folder);
    }
    free_case(&c);
    x->n_cases++;
}

static void check_list(context *x, lt_json *json, const char *folder, bool add_special)
{
    assert_ok_err(lt_json_begin_array(json), json->err);
    for (bool more;;) {
        assert_ok_err(lt_json_next_element(json, &more), json->err);
        if (!more) return;
        check_case(x, json, folder, add_special);
    }
}

static void open_tokenizer(context *x, const char *folder)
{
    lattice_error err;
    *x = (context){ 0 };
    assert_ok_err(lt_tokenizer_open(mem, folder, &x->tokenizer, &err), &err);
    assert_ok_err(lt_scratch_create(x->tokenizer, &x->scratch, &err), &err);
    lt_tokens_init(&x->tokens, mem);
}

static void close_tokenizer(context *x)
{
    lt_tokens_free(&x->tokens);
    lt_scratch_free(x->scratch);
    lt_tokenizer_close(x->tokenizer);
}

/* All cases of one golden.json; returns their number. max_length stands before the lists. */
static size_t check_folder(const char *folder)
{
    char path[512];
    lattice_error err;
    lt_file file;
    context x;
    snprintf(path, sizeof path, LT_FIXTURES "/%s", folder);
    open_tokenizer(&x, path);
    snprintf(path, sizeof path, LT_FIXTURES "/%s/golden.json", folder);
    assert_ok_err(lt_file_open(mem, path, false, &file, &err), &err);
    lt_json json;
    lt_json_open(&json, mem, path, file.data, file.size, &err);
    bool logits = false; /* cases about logits have no special tokens */
    assert_ok_err(lt_json_begin_object(&json), &err);
    for (lt_str key;;) {
        bool more;
        assert_ok_err(lt_json_next_member(&json, &key, &more), &err);
        if (!more) break;
        if (lt_str_is(key, "kind")) {
            lt_str kind;
            assert_ok_err(lt_json_string(&json, &kind), &err);
            logits = lt_str_is(kind, "reranker") || lt_str_is(kind, "generation");
        } else if (lt_str_is(key, "max_length")) {
            assert_ok_err(lt_json_size(&json, &x.max_length), &err);
        } else if (lt_str_is(key, "cases") || lt_str_is(key, "prompt_cases") || lt_str_is(key, "tokenizer_cases")) {
            check_list(&x, &json, folder, !logits);
        } else if (lt_str_is(key, "pooling_cases") || lt_str_is(key, "chat")) {
            check_case(&x, &json, folder, !logits);
        } else if (lt_str_is(key, "pairs")) {
            assert_ok_err(lt_json_begin_array(&json), &err);
            for (;;) {
                assert_ok_err(lt_json_next_element(&json, &more), &err);
                if (!more) break;
                check_reranker_pair(&x, &json, folder);
            }
        } else {
            assert_ok_err(lt_json_skip(&json), &err);
        }
    }
    lt_json_close(&json);
    lt_file_close(&file);
    close_tokenizer(&x);
    return x.n_cases;
}

static void encoders_give_the_golden_ids(void **state)
{
    (void)state;
    assert_int_equal(check_folder("bert-cls"), 36);
    assert_int_equal(check_folder("roberta-max"), 35);
    assert_int_equal(check_folder("bert-mean-f16"), 37);
    assert_int_equal(check_folder("xlmr-mean"), 35);
}

static void cross_encoders_give_the_golden_ids_and_types_of_pairs(void **state)
{
    (void)state;
    assert_int_equal(check_folder("cross-encoder-1"), 8);
    assert_int_equal(check_folder("cross-encoder-3"), 8);
    assert_int_equal(check_folder("xlmr-cross-encoder"), 8);
}

static void qwen3_gives_the_golden_ids(void **state)
{
    (void)state;
    assert_int_equal(check_folder("qwen3-embedding"), 37);
    assert_true(check_folder("qwen3-embedding-hd80-sharded-bf16") >= 35);
}

static void reranker_prompts_give_the_golden_ids(void **state)
{
    (void)state;
    assert_int_equal(check_folder("qwen3-reranker"), 20);
}

static void qwen35_gives_the_golden_ids_and_chat_renders(void **state)
{
    (void)state;
    assert_int_equal(check_folder("qwen3.5-text"), 42);
    assert_int_equal(check_folder("qwen3.5-vl-layout-bf16"), 42);
}

/* A list of {"text", "ids"} against a tokenizer that the environment names, if it does. */
static void check_published(const char *variable, const char *file_name, const char *member, bool add_special)
{
    const char *folder = getenv(variable);
    if (!folder) skip();
    lattice_error err;
    lt_file file;
    context x;
    open_tokenizer(&x, folder);
    assert_ok_err(lt_file_open(mem, file_name, false, &file, &err), &err);
    lt_json json;
    lt_json_open(&json, mem, file_name, file.data, file.size, &err);
    if (!member) {
        check_list(&x, &json, folder, add_special);
    } else {
        assert_ok_err(lt_json_begin_object(&json), &err);
        for (lt_str key;;) {
            bool more;
            assert_ok_err(lt_json_next_member(&json, &key, &more), &err);
            if (!more) break;
            if (lt_str_is(key, "max_length")) {
                assert_ok_err(lt_json_size(&json, &x.max_length), &err);
            } else if (lt_str_is(key, member)) {
                check_list(&x, &json, folder, add_special);
            } else {
                assert_ok_err(lt_json_skip(&json), &err);
            }
        }
    }
    lt_json_close(&json);
    lt_file_close(&file);
    assert_true(x.n_cases > 20);
    close_tokenizer(&x);
}

static void published_qwen3_vocabulary_gives_the_golden_ids(void **state)
{
    (void)state;
    check_published("LATTICE_QWEN3_TOKENIZER", FIXTURE("qwen3-real-tokenizer.json"), NULL, false);
}

static void published_minilm_gives_the_golden_ids(void **state)
{
    (void)state;
    check_published("LATTICE_MINILM", FIXTURE("real/all-minilm-l6-v2.json"), "cases", true);
}

static void published_qwen3_vocabulary_parses_special_tokens_unless_literal(void **state)
{
    (void)state;
    const char *folder = getenv("LATTICE_QWEN3_TOKENIZER");
    if (!folder) skip();
    context x;
    open_tokenizer(&x, folder);
    lt_encode_options options = { 0 };
    const uint32_t parsed[] = { 151644, 9707, 4337, 151645 };
    encode(&x, LT_STR("<|im_start|>Hello World<|im_end|>"), NULL, &options);
    assert_int_equal(x.tokens.n, 4);
    assert_memory_equal(x.tokens.ids, parsed, sizeof parsed);
    options.literal = true;
    encode(&x, LT_STR("<|im_start|>Hello World<|im_end|>"), NULL, &options);
    const uint32_t begin[] = { 27, 91, 318 };
    assert_int_equal(x.tokens.n, 14);
    assert_memory_equal(x.tokens.ids, begin, sizeof begin);
    close_tokenizer(&x);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(encoders_give_the_golden_ids),
        cmocka_unit_test(cross_encoders_give_the_golden_ids_and_types_of_pairs),
        cmocka_unit_test(qwen3_gives_the_golden_ids),
        cmocka_unit_test(reranker_prompts_give_the_golden_ids),
        cmocka_unit_test(qwen35_gives_the_golden_ids_and_chat_renders),
        cmocka_unit_test(published_qwen3_vocabulary_gives_the_golden_ids),
        cmocka_unit_test(published_minilm_gives_the_golden_ids),
        cmocka_unit_test(published_qwen3_vocabulary_parses_special_tokens_unless_literal),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
