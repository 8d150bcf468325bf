/* Offsets in code points, through normalisation, of single texts and pairs: those that Hugging Face tokenizers 0.23.3 gave
 * (tokenizer-offsets.json, by tools/check_tokenizers.py), and the bytes that they stand for. */
#include "support.h"

#include "base/file.h"
#include "base/utf8.h"
#include "format/json.h"
#include "lattice.h"

enum { MAX_TOKENS = 256 };

static const lattice_allocator *const mem = &lt_malloc_allocator;

typedef struct golden_case {
    lattice_text texts[2];
    size_t n_texts;
    uint32_t ids[MAX_TOKENS], type_ids[MAX_TOKENS], offsets[2 * MAX_TOKENS];
    size_t n_ids, n_type_ids, n_offsets;
} golden_case;

static void read_numbers(lt_json *json, uint32_t *out, size_t *n, size_t capacity)
{
    assert_ok_err(lt_json_begin_array(json), json->err);
    for (*n = 0;; ++*n) {
        bool more;
        assert_ok_err(lt_json_next_element(json, &more), json->err);
        if (!more) return;
        assert_true(*n < capacity);
        assert_ok_err(lt_json_uint32(json, &out[*n]), json->err);
    }
}

static void read_texts(lt_json *json, golden_case *c)
{
    assert_ok_err(lt_json_begin_array(json), json->err);
    for (;;) {
        bool more;
        lt_str s;
        assert_ok_err(lt_json_next_element(json, &more), json->err);
        if (!more) return;
        assert_true(c->n_texts < 2);
        assert_ok_err(lt_json_string(json, &s), json->err);
        char *copy = malloc(s.len + 1);
        memcpy(copy, s.data, s.len);
        c->texts[c->n_texts++] = (lattice_text){ copy, s.len };
    }
}

static golden_case *read_case(lt_json *json)
{
    golden_case *c = calloc(1, sizeof *c);
    assert_ok_err(lt_json_begin_object(json), json->err);
    for (lt_str key;;) {
        bool more;
        assert_ok_err(lt_json_next_member(json, &key, &more), json->err);
        if (!more) return c;
        if (lt_str_is(key, "texts")) {
            read_texts(json, c);
        } else if (lt_str_is(key, "ids")) {
            read_numbers(json, c->ids, &c->n_ids, MAX_TOKENS);
        } else if (lt_str_is(key, "type_ids")) {
            read_numbers(json, c->type_ids, &c->n_type_ids, MAX_TOKENS);
        } else {
            read_numbers(json, c->offsets, &c->n_offsets, 2 * (size_t)MAX_TOKENS);
        }
    }
}

static size_t code_points(lattice_text text, size_t bytes)
{
    size_t n = 0;
    for (size_t i = 0; i < bytes; i++) n += ((uint8_t)text.data[i] & 0xC0) != 0x80;
    return n;
}

/* Which text a token is of: bytes and code points must tell of the same place. */
static bool same_place(lattice_text text, lattice_offset bytes, lattice_offset points)
{
    return bytes.end <= text.length && code_points(text, bytes.start) == points.start &&
           code_points(text, bytes.end) == points.end;
}

static void check_case(lattice_tokenizer *t, const char *name, size_t index, const golden_case *c)
{
    lattice_error err;
    lattice_encoding points, bytes;
    lattice_encode_options options = lattice_encode_options_default();
    const lattice_text *pair = c->n_texts > 1 ? &c->texts[1] : NULL;
    assert_ok_err(lattice_encode(t, c->texts[0], pair, &options, &bytes, &err), &err);
    options.offset_unit = LATTICE_OFFSET_CODE_POINTS;
    assert_ok_err(lattice_encode(t, c->texts[0], pair, &options, &points, &err), &err);
    if (points.n != c->n_ids) fail_msg("%s: case %zu: %zu tokens, wanted %zu", name, index, points.n, c->n_ids);
    assert_memory_equal(points.ids, c->ids, c->n_ids * sizeof *c->ids);
    assert_memory_equal(points.type_ids, c->type_ids, c->n_ids * sizeof *c->type_ids);
    for (size_t i = 0; i < points.n; i++) {
        lattice_offset o = points.offsets[i];
        if (o.start != c->offsets[2 * i] || o.end != c->offsets[2 * i + 1])
            fail_msg("%s: case %zu: token %zu: %zu-%zu, wanted %u-%u", name, index, i, o.start, o.end, c->offsets[2 * i],
                     c->offsets[2 * i + 1]);
        assert_true(same_place(c->texts[0], bytes.offsets[i], o) || (pair && same_place(*pair, bytes.offsets[i], o)));
    }
    lattice_encoding_free(&points);
    lattice_encoding_free(&bytes);
}

static void check_fixture(lattice_runtime *runtime, lt_json *json, size_t *n_cases)
{
    char path[1024] = "", name[128] = "";
    lattice_error err;
    lattice_tokenizer *t = NULL;
    bool more;
    assert_ok_err(lt_json_begin_object(json), json->err);
    for (lt_str key, s;;) {
        assert_ok_err(lt_json_next_member(json, &key, &more), json->err);
        if (!more) break;
        if (lt_str_is(key, "name")) {
            assert_ok_err(lt_json_string(json, &s), json->err);
            snprintf(name, sizeof name, "%.*s", LT_STR_ARG(s));
            snprintf(path, sizeof path, LT_FIXTURES "/%s", name);
            assert_ok_err(lattice_tokenizer_open(runtime, path, &t, &err), &err);
            continue;
        }
        assert_ok_err(lt_json_begin_array(json), json->err);
        for (size_t i = 0;; i++, ++*n_cases) {
            assert_ok_err(lt_json_next_element(json, &more), json->err);
            if (!more) break;
            golden_case *c = read_case(json);
            check_case(t, name, i, c);
            for (size_t k = 0; k < c->n_texts; k++) free((char *)c->texts[k].data);
            free(c);
        }
    }
    lattice_tokenizer_close(t);
}

static void code_point_offsets_equal_huggingface(void **state)
{
    lt_file file;
    lt_json json;
    lattice_error err;
    size_t n_fixtures = 0, n_cases = 0;
    assert_ok_err(lt_file_open(mem, FIXTURE("tokenizer-offsets.json"), true, &file, &err), &err);
    lt_json_open(&json, mem, "tokenizer-offsets.json", file.data, file.size, &err);
    assert_ok_err(lt_json_begin_object(&json), &err);
    for (lt_str key;;) {
        bool more;
        assert_ok_err(lt_json_next_member(&json, &key, &more), &err);
        if (!more) break;
        if (!lt_str_is(key, "fixtures")) {
            assert_ok_err(lt_json_skip(&json), &err);
            continue;
        }
        assert_ok_err(lt_json_begin_array(&json), &err);
        for (;; n_fixtures++) {
            assert_ok_err(lt_json_next_element(&json, &more), &err);
            if (!more) break;
            check_fixture(*state, &json, &n_cases);
        }
    }
    assert_int_equal(n_fixtures, 7);
    assert_int_equal(n_cases, 7 * 21);
    lt_json_close(&json);
    lt_file_close(&file);
}

static void an_invalid_subpart_is_one_code_point(void **state)
{
    lattice_error err;
    lattice_tokenizer *t;
    lattice_encoding e;
    lattice_encode_options options = lattice_encode_options_default();
    options.offset_unit = LATTICE_OFFSET_CODE_POINTS;
    assert_ok_err(lattice_tokenizer_open(*state, FIXTURE("qwen3-embedding"), &t, &err), &err);
    /* e6 ad, A, ff, fe: three byte tokens for each U+FFFD */
    assert_ok_err(lattice_encode(t, (lattice_text){ "\xe6\xad\x41\xff\xfe", 5 }, NULL, &options, &e, &err), &err);
    const size_t starts[] = { 0, 0, 0, 1, 2, 2, 2, 3, 3, 3 };
    assert_int_equal(e.n, 11);
    for (size_t i = 0; i < 10; i++) {
        assert_int_equal(e.offsets[i].start, starts[i]);
        assert_int_equal(e.offsets[i].end, starts[i] + 1);
    }
    lattice_encoding_free(&e);
    options.offset_unit = (lattice_offset_unit)2;
    assert_int_equal(lattice_encode(t, (lattice_text){ "a", 1 }, NULL, &options, &e, &err), LATTICE_ERR_INVALID_ARGUMENT);
    lattice_tokenizer_close(t);
}

static int open_runtime(void **state)
{
    lattice_runtime *runtime = NULL;
    lattice_runtime_options options = lattice_runtime_options_default();
    options.n_threads = 1;
    if (lattice_runtime_create(&options, &runtime, NULL) != LATTICE_OK) return -1;
    *state = runtime;
    return 0;
}

static int free_runtime(void **state)
{
    lattice_runtime_free(*state);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(code_point_offsets_equal_huggingface),
        cmocka_unit_test(an_invalid_subpart_is_one_code_point),
    };
    return cmocka_run_group_tests(tests, open_runtime, free_runtime);
}
