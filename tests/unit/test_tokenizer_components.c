/* Every normaliser and pre-tokenizer with its options, with and without added tokens of every sort: ids and spans are what
 * Hugging Face tokenizers gave (tokenizer-components.json, by tools/check_tokenizers.py). The models show spans, characters or
 * bytes, so that nothing of a component's doing stays hidden. */
#include "support.h"

#include "base/file.h"
#include "format/json.h"
#include "text/tokenizer.h"

enum { MAX_TEXTS = 16, MAX_MODELS = 8 };

static const lattice_allocator *const mem = &lt_malloc_allocator;

typedef struct golden {
    lt_str texts[MAX_TEXTS];
    size_t n_texts;
    lt_str models[MAX_MODELS]; /* as they stand in the file */
    size_t n_models, n_cases, n_spans;
} golden;

static void check_result(const golden *g, lt_tokenizer *t, lt_scratch *s, lt_json *json, size_t text, const char *name)
{
    lattice_error err;
    lt_tokens tokens;
    lt_tokens_init(&tokens, mem);
    lt_encode_options options = { .add_special = true };
    assert_ok_err(lt_tokenizer_encode(t, s, g->texts[text], NULL, &options, &tokens, &err), &err);
    bool more;
    size_t n = 0;
    assert_ok_err(lt_json_begin_array(json), json->err);
    assert_ok_err(lt_json_next_element(json, &more), json->err);
    assert_ok_err(lt_json_begin_array(json), json->err);
    for (;; n++) {
        uint32_t id;
        assert_ok_err(lt_json_next_element(json, &more), json->err);
        if (!more) break;
        assert_ok_err(lt_json_uint32(json, &id), json->err);
        if (n >= tokens.n || tokens.ids[n] != id) fail_msg("%s: text %zu: id %zu should be %u", name, text, n, id);
    }
    if (n != tokens.n) fail_msg("%s: text %zu: %zu tokens, wanted %zu", name, text, tokens.n, n);
    assert_ok_err(lt_json_next_element(json, &more), json->err);
    assert_ok_err(lt_json_begin_array(json), json->err);
    for (size_t i = 0;; i++) {
        size_t place;
        assert_ok_err(lt_json_next_element(json, &more), json->err);
        if (!more) break;
        assert_ok_err(lt_json_size(json, &place), json->err);
        size_t got = i % 2 ? tokens.spans[i / 2].end : tokens.spans[i / 2].start;
        if (got != place)
            fail_msg("%s: text %zu: token %zu: %s %zu, wanted %zu", name, text, i / 2, i % 2 ? "end" : "start", got, place);
    }
    assert_ok_err(lt_json_next_element(json, &more), json->err);
    assert_false(more);

    /* without spans the ids are the same */
    lt_tokens plain;
    lt_tokens_init(&plain, mem);
    options.no_spans = true;
    assert_ok_err(lt_tokenizer_encode(t, s, g->texts[text], NULL, &options, &plain, &err), &err);
    assert_int_equal(plain.n, n);
    if (n) assert_memory_equal(plain.ids, tokens.ids, n * sizeof *plain.ids);
    /* a text that is cut wherever the tokenizer says it may be gives the same */
    options = (lt_encode_options){ .add_special = true, .section = 1 };
    assert_ok_err(lt_tokenizer_encode(t, s, g->texts[text], NULL, &options, &plain, &err), &err);
    if (plain.n != n || (n && (memcmp(plain.ids, tokens.ids, n * sizeof *plain.ids) != 0 ||
                               memcmp(plain.spans, tokens.spans, n * sizeof *plain.spans) != 0)))
        fail_msg("%s: text %zu: cutting changes it", name, text);
    lt_tokens_free(&plain);
    lt_tokens_free(&tokens);
}

static void check_component(golden *g, lt_json *json)
{
    lt_str raw[3] = { { NULL, 0 } };
    char name[128] = "";
    size_t model = 0;
    assert_ok_err(lt_json_begin_object(json), json->err);
    for (lt_str key;;) {
        bool more;
        assert_ok_err(lt_json_next_member(json, &key, &more), json->err);
        if (!more) break;
        if (lt_str_is(key, "name")) {
            lt_str s;
            assert_ok_err(lt_json_string(json, &s), json->err);
            snprintf(name, sizeof name, "%.*s", LT_STR_ARG(s));
        } else if (lt_str_is(key, "model")) {
            assert_ok_err(lt_json_size(json, &model), json->err);
            assert_true(model < g->n_models);
        } else if (lt_str_is(key, "normalizer")) {
            assert_ok_err(lt_json_raw(json, &raw[0]), json->err);
        } else if (lt_str_is(key, "pre_tokenizer")) {
            assert_ok_err(lt_json_raw(json, &raw[1]), json->err);
        } else if (lt_str_is(key, "added_tokens")) {
            assert_ok_err(lt_json_raw(json, &raw[2]), json->err);
        } else {
            /* the results, last: the parts are put together as a file, the model first */
            lt_buf file;
            lt_buf_init(&file, mem);
            lt_buf_append_z(&file, "{\"model\":");
            lt_buf_append(&file, g->models[model].data, g->models[model].len);
            lt_buf_append_z(&file, ",\"added_tokens\":");
            lt_buf_append(&file, raw[2].data, raw[2].len);
            lt_buf_append_z(&file, ",\"pre_tokenizer\":");
            lt_buf_append(&file, raw[1].data, raw[1].len);
            lt_buf_append_z(&file, ",\"normalizer\":");
            lt_buf_append(&file, raw[0].data, raw[0].len);
            lt_buf_append_z(&file, "}");
            lattice_error err;
            lt_tokenizer *t;
            lt_scratch *s;
            assert_ok_err(lt_tokenizer_parse(mem, name, lt_buf_str(&file), &t, &err), &err);
            assert_ok_err(lt_scratch_create(t, &s, &err), &err);
            assert_ok_err(lt_json_begin_array(json), json->err);
            for (size_t text = 0;; text++) {
                assert_ok_err(lt_json_next_element(json, &more), json->err);
                if (!more) break;
                assert_true(text < g->n_texts);
                check_result(g, t, s, json, text, name);
            }
            lt_scratch_free(s);
            lt_tokenizer_close(t);
            lt_buf_free(&file);
            g->n_cases++;
        }
    }
}

static void components_give_the_ids_and_spans_of_huggingface(void **state)
{
    (void)state;
    lattice_error err;
    lt_file file;
    lt_json json;
    golden g = { 0 };
    assert_ok_err(lt_file_open(mem, FIXTURE("tokenizer-components.json"), false, &file, &err), &err);
    lt_json_open(&json, mem, "tokenizer-components.json", file.data, file.size, &err);
    assert_ok_err(lt_json_begin_object(&json), &err);
    for (lt_str key;;) {
        bool more;
        assert_ok_err(lt_json_next_member(&json, &key, &more), &err);
        if (!more) break;
        bool texts = lt_str_is(key, "texts"), models = lt_str_is(key, "models"), cases = lt_str_is(key, "cases");
        if (!texts && !models && !cases) {
            assert_ok_err(lt_json_skip(&json), &err);
            continue;
        }
        assert_ok_err(lt_json_begin_array(&json), &err);
        for (;;) {
            assert_ok_err(lt_json_next_element(&json, &more), &err);
            if (!more) break;
            if (texts) {
                lt_str s;
                assert_true(g.n_texts < MAX_TEXTS);
                assert_ok_err(lt_json_string(&json, &s), &err);
                char *copy = malloc(s.len + 1);
                memcpy(copy, s.data, s.len);
                g.texts[g.n_texts++] = (lt_str){ copy, s.len };
            } else if (models) {
                assert_true(g.n_models < MAX_MODELS);
                assert_ok_err(lt_json_raw(&json, &g.models[g.n_models++]), &err);
            } else {
                check_component(&g, &json);
            }
        }
    }
    assert_true(g.n_cases > 250);
    for (size_t i = 0; i < g.n_texts; i++) free((char *)g.texts[i].data);
    lt_json_close(&json);
    lt_file_close(&file);
}

int main(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(components_give_the_ids_and_spans_of_huggingface) };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
