/* safetensors headers: what loads, and the exact error of every fault. */
#include "support.h"

#include "base/memory.h"
#include "format/safetensors.h"

/* Parses `header` as that of a file with data_size bytes behind it. */
static lattice_status parse(const char *header, size_t data_size, lt_safetensors *out, lattice_error *err)
{
    size_t length = strlen(header);
    return lt_safetensors_parse(&lt_malloc_allocator, "m.safetensors", header, length, 8 + length + data_size, out, err);
}

typedef struct bad_header {
    const char *header;
    size_t data_size;
    const char *message;
} bad_header;

static void assert_refused(const bad_header *cases, size_t n, lattice_status code)
{
    for (size_t i = 0; i < n; i++) {
        lt_safetensors file;
        lattice_error err = { 0 };
        lattice_status status = parse(cases[i].header, cases[i].data_size, &file, &err);
        assert_string_equal(err.message, cases[i].message);
        assert_int_equal(status, code);
        assert_int_equal(err.code, code);
        lt_safetensors_free(&file);
    }
}

#define REFUSED(code, ...)                                                                                                       \
    do {                                                                                                                         \
        static const bad_header cases_[] = { __VA_ARGS__ };                                                                      \
        assert_refused(cases_, sizeof cases_ / sizeof *cases_, code);                                                            \
    } while (0)

#define T(name, dtype, shape, begin, end)                                                                                        \
    "\"" name "\":{\"dtype\":\"" dtype "\",\"shape\":" shape ",\"data_offsets\":[" #begin "," #end "]}"

/* ------------------------------------------------------------------ the length in front */

static lattice_status header_length(uint64_t stored, uint64_t file_size, size_t *length, lattice_error *err)
{
    uint8_t first8[8];
    for (int i = 0; i < 8; i++) first8[i] = (uint8_t)(stored >> (8 * i));
    return lt_safetensors_header_length("m.safetensors", first8, file_size < 8 ? (size_t)file_size : 8, file_size, length, err);
}

static void length_is_little_endian(void **state)
{
    (void)state;
    size_t length = 0;
    lattice_error err = { 0 };
    assert_ok_err(header_length(0x010203, 1 << 20, &length, &err), &err);
    assert_int_equal(length, 0x010203);
    assert_ok_err(header_length(92, 100, &length, &err), &err);
    assert_int_equal(length, 92);
    assert_ok_err(header_length(100000000, 200000000, &length, &err), &err);
}

static void bad_lengths_are_refused(void **state)
{
    (void)state;
    static const struct {
        uint64_t stored, file_size;
        const char *message;
    } cases[] = {
        { 2, 7, "m.safetensors: 7 bytes are too few for a safetensors file" },
        { 2, 0, "m.safetensors: 0 bytes are too few for a safetensors file" },
        { 0, 100, "m.safetensors: the header's length is 0" },
        { 93, 100, "m.safetensors: the header's length 93 goes past the file's 100 bytes" },
        { UINT64_MAX, 100, "m.safetensors: the header's length 18446744073709551615 goes past the file's 100 bytes" },
        { UINT64_MAX - 7, 100, "m.safetensors: the header's length 18446744073709551608 goes past the file's 100 bytes" },
        { 100000001, 200000000, "m.safetensors: the header's length 100000001 is over the limit of 100000000" },
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        size_t length;
        lattice_error err = { 0 };
        assert_int_equal(header_length(cases[i].stored, cases[i].file_size, &length, &err), LATTICE_ERR_FORMAT);
        assert_string_equal(err.message, cases[i].message);
    }
}

/* ------------------------------------------------------------------ what loads */

static void tensors_are_read_with_shape_type_and_place(void **state)
{
    (void)state;
    static const char header[] = "{" T("w", "BF16", "[2,3]", 4, 16) "," T("b", "F32", "[1]", 0, 4) "}";
    lt_safetensors file;
    lattice_error err = { 0 };
    assert_ok_err(parse(header, 16, &file, &err), &err);
    assert_int_equal(file.n, 2);
    const lt_tensor *w = lt_safetensors_find(&file, LT_STR("w")), *b = lt_safetensors_find(&file, LT_STR("b"));
    assert_non_null(w);
    assert_non_null(b);
    assert_null(lt_safetensors_find(&file, LT_STR("")));
    assert_null(lt_safetensors_find(&file, LT_STR("ww")));
    assert_int_equal(w->dtype, LT_BF16);
    assert_int_equal(w->rank, 2);
    assert_int_equal(w->shape[0], 2);
    assert_int_equal(w->shape[1], 3);
    assert_int_equal(w->n_elements, 6);
    assert_int_equal(w->size, 12);
    assert_int_equal(w->offset, 8 + strlen(header) + 4);
    assert_int_equal(b->offset, 8 + strlen(header));
    assert_true(lt_str_is(b->dtype_name, "F32"));
    assert_ptr_equal(file.by_name[0], b);
    lt_safetensors_free(&file);
}

static void scalars_empty_tensors_padding_and_no_tensors_load(void **state)
{
    (void)state;
    static const struct {
        const char *header;
        size_t data_size, n;
    } cases[] = {
        { "{}", 0, 0 },
        { "{\"__metadata__\":{\"format\":\"pt\"}}     ", 0, 0 },
        { "{" T("s", "F32", "[]", 0, 4) "}", 4, 1 },
        { "{" T("e", "F32", "[0]", 0, 0) "}", 0, 1 },
        { "{" T("e", "F32", "[3,0,5]", 4, 4) "," T("a", "F32", "[1]", 0, 4) "," T("b", "I64", "[1]", 4, 12) "}   ", 12, 3 },
        { "{" T("e", "F32", "[0]", 0, 0) "," T("f", "F32", "[0]", 0, 0) "," T("a", "U8", "[5]", 0, 5) "}", 5, 3 },
        { "{" T("r", "BOOL", "[1,1,1,1,1,1,1,2]", 0, 2) "}", 2, 1 },
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        lt_safetensors file;
        lattice_error err = { 0 };
        assert_ok_err(parse(cases[i].header, cases[i].data_size, &file, &err), &err);
        assert_int_equal(file.n, cases[i].n);
        lt_safetensors_free(&file);
    }
}

static void a_scalar_has_one_element_and_rank_0(void **state)
{
    (void)state;
    lt_safetensors file;
    lattice_error err = { 0 };
    assert_ok_err(parse("{" T("s", "F64", "[]", 0, 8) "}", 8, &file, &err), &err);
    assert_int_equal(file.tensors[0].rank, 0);
    assert_int_equal(file.tensors[0].n_elements, 1);
    lt_safetensors_free(&file);
}

static void every_published_type_is_recognised(void **state)
{
    (void)state;
    static const struct {
        const char *name;
        size_t bytes; /* of 32 elements */
        lt_dtype dtype;
    } types[] = {
        { "F32", 128, LT_F32 },      { "F16", 64, LT_F16 },       { "BF16", 64, LT_BF16 },  { "F64", 256, LT_F64 },
        { "I8", 32, LT_I8 },         { "U8", 32, LT_U8 },         { "I16", 64, LT_I16 },    { "I32", 128, LT_I32 },
        { "I64", 256, LT_I64 },      { "BOOL", 32, LT_BOOL },  { "U16", 64, LT_OTHER },
        { "U32", 128, LT_OTHER },    { "U64", 256, LT_OTHER },    { "C64", 256, LT_OTHER }, { "F8_E4M3", 32, LT_OTHER },
        { "F8_E5M2", 32, LT_OTHER }, { "F8_E8M0", 32, LT_OTHER }, { "F4", 16, LT_OTHER },   { "F6_E2M3", 24, LT_OTHER },
        { "F6_E3M2", 24, LT_OTHER },
    };
    for (size_t i = 0; i < sizeof types / sizeof *types; i++) {
        char header[200];
        lt_safetensors file;
        lattice_error err = { 0 };
        snprintf(header, sizeof header, "{\"t\":{\"dtype\":\"%s\",\"shape\":[32],\"data_offsets\":[0,%zu]}}", types[i].name,
                 types[i].bytes);
        assert_ok_err(parse(header, types[i].bytes, &file, &err), &err);
        assert_int_equal(file.tensors[0].dtype, types[i].dtype);
        assert_true(lt_str_is(file.tensors[0].dtype_name, types[i].name));
        assert_string_equal(lt_dtype_name(types[i].dtype), types[i].dtype == LT_OTHER ? "other" : types[i].name);
        assert_int_equal(lt_dtype_size(types[i].dtype), types[i].dtype != LT_OTHER ? types[i].bytes / 32 : 0);
        lt_safetensors_free(&file);
    }
}

static void unknown_members_and_any_order_of_members_are_accepted(void **state)
{
    (void)state;
    lt_safetensors file;
    lattice_error err = { 0 };
    assert_ok_err(parse("{\"t\":{\"data_offsets\":[0,2],\"x\":[{}],\"shape\":[1],\"dtype\":\"F16\"}}", 2, &file, &err), &err);
    assert_int_equal(file.n, 1);
    lt_safetensors_free(&file);
}

/* ------------------------------------------------------------------ what is refused */

static void offsets_must_tile_the_data(void **state)
{
    (void)state;
    REFUSED(LATTICE_ERR_FORMAT,
            { "{" T("a", "F32", "[2]", 0, 8) "," T("b", "F32", "[2]", 4, 12) "}", 12,
              "m.safetensors: tensor 'b': begins at data byte 4, inside tensor 'a' that ends at 8" },
            { "{" T("a", "U8", "[8]", 0, 8) "," T("b", "U8", "[3]", 7, 10) "}", 10,
              "m.safetensors: tensor 'b': begins at data byte 7, inside tensor 'a' that ends at 8" },
            { "{" T("a", "F32", "[2]", 0, 8) "," T("b", "F32", "[2]", 0, 8) "}", 8,
              "m.safetensors: tensor 'b': begins at data byte 0, inside tensor 'a' that ends at 8" },
            { "{" T("a", "F32", "[2]", 0, 8) "," T("e", "F32", "[0]", 4, 4) "}", 8,
              "m.safetensors: tensor 'e': begins at data byte 4, inside tensor 'a' that ends at 8" },
            { "{" T("a", "F32", "[1]", 0, 4) "," T("b", "F32", "[1]", 8, 12) "}", 12,
              "m.safetensors: tensor 'b': begins at data byte 8, leaving a hole of 4 bytes before it" },
            { "{" T("a", "F32", "[1]", 4, 8) "}", 8,
              "m.safetensors: tensor 'a': begins at data byte 4, leaving a hole of 4 bytes before it" },
            { "{" T("a", "F32", "[1]", 4, 0) "}", 4, "m.safetensors: tensor 'a': data_offsets [4, 0] are reversed" },
            { "{" T("a", "F32", "[2]", 0, 8) "}", 7, "m.safetensors: tensor 'a': ends at data byte 8, past the file's 7" },
            { "{" T("a", "F32", "[2]", 18446744073709551608, 18446744073709551615) "}", 8,
              "m.safetensors: tensor 'a': ends at data byte 18446744073709551615, past the file's 8" },
            { "{" T("a", "F32", "[2]", 0, 8) "}", 9,
              "m.safetensors: tensor 'a': ends at data byte 8, and 1 bytes follow that no tensor uses" },
            { "{}", 3, "m.safetensors: ends at data byte 0, and 3 bytes follow that no tensor uses" });
}

static void sizes_must_match_shape_and_type(void **state)
{
    (void)state;
    REFUSED(
        LATTICE_ERR_FORMAT,
        { "{" T("a", "F32", "[3]", 0, 8) "}", 8, "m.safetensors: tensor 'a': takes 8 bytes, but its shape and type F32 need 12" },
        { "{" T("a", "BF16", "[2,2]", 0, 16) "}", 16,
          "m.safetensors: tensor 'a': takes 16 bytes, but its shape and type BF16 need 8" },
        { "{" T("a", "F32", "[4294967296,4294967296]", 0, 8) "}", 8,
          "m.safetensors: tensor 'a': the product of the shape overflows" },
        { "{" T("a", "F32", "[4611686018427387904]", 0, 0) "}", 0,
          "m.safetensors: tensor 'a': the product of the shape overflows" },
        { "{" T("a", "F4", "[3]", 0, 2) "}", 2, "m.safetensors: tensor 'a': 3 elements of type F4 do not fill whole bytes" },
        { "{" T("a", "Q8_0", "[32,16]", 0, 544) "}", 544,
          "m.safetensors: tensor 'a': Q8_0 needs two dimensions, the last of them divisible by 32" },
        { "{" T("a", "Q8_0", "[32]", 0, 34) "}", 34,
          "m.safetensors: tensor 'a': Q8_0 needs two dimensions, the last of them divisible by 32" },
        { "{" T("a", "Q8_0", "[2,32]", 0, 68) "}", 68,
          "m.safetensors: tensor 'a': takes 68 bytes, but its shape and type Q8_0 need 576" },
        { "{" T("a", "Q8_0", "[18446744073709551615,32]", 0, 0) "}", 0,
          "m.safetensors: tensor 'a': the product of the shape overflows" });
}

#define META(quantization, layout) \
    "{\"__metadata__\":{\"lattice.quantization\":\"" quantization "\",\"lattice.layout\":\"" layout "\"}," \
    T("a", "Q8_0", "[17,32]", 0, 1088) "}"

static void blocks_are_read_in_the_layout_that_is_known(void **state)
{
    (void)state;
    lt_safetensors file;
    lattice_error err = { 0 };
    assert_ok_err(parse(META("q8_0", "1"), 1088, &file, &err), &err);
    assert_int_equal(file.tensors[0].dtype, LT_Q8_0);
    assert_int_equal(file.tensors[0].n_elements, 17 * 32);
    assert_int_equal(lt_dtype_size(LT_Q8_0), 0);
    assert_string_equal(lt_dtype_name(LT_Q8_0), "Q8_0");
    assert_true(lt_str_is(file.quantization, "q8_0"));
    lt_safetensors_free(&file);
    /* A key and its value that both have escapes; the value is the longer one. */
    const char *escaped = "{\"__metadata__\":{\"lattice.l\\u0061yout\":\"1\",\"lattice.quantiz\\u0061tion\":"
                          "\"a quantisation that takes more room than the key\\u002c by far, and so moves it\"}}";
    assert_int_equal(parse(escaped, 0, &file, &err), LATTICE_ERR_UNSUPPORTED);
    assert_non_null(strstr(err.message, "quantisation 'a quantisation that takes more room than the key, by far, and so moves it'"));
    lt_safetensors_free(&file);
    REFUSED(LATTICE_ERR_UNSUPPORTED,
            { META("q4_k", "1"), 1088, "m.safetensors: '__metadata__': quantisation 'q4_k' is not known; q8_0 and int8 are" },
            { META("q8_0", "2"), 1088, "m.safetensors: tensor 'a': layout '2' of Q8_0 is not known; 1 is" });
    REFUSED(LATTICE_ERR_FORMAT, { "{" T("a", "Q8_0", "[17,32]", 0, 1088) "}", 1088,
                                  "m.safetensors: tensor 'a': Q8_0 in a file without lattice.layout" });
}

static void unknown_types_and_missing_members_are_refused(void **state)
{
    (void)state;
    REFUSED(LATTICE_ERR_FORMAT, { "{" T("a", "F33", "[1]", 0, 4) "}", 4, "m.safetensors: tensor 'a': unknown dtype 'F33'" },
            { "{" T("a", "f32", "[1]", 0, 4) "}", 4, "m.safetensors: tensor 'a': unknown dtype 'f32'" },
            { "{\"a\":{\"shape\":[1],\"data_offsets\":[0,4]}}", 4, "m.safetensors: tensor 'a': no dtype" },
            { "{\"a\":{\"dtype\":\"F32\",\"data_offsets\":[0,4]}}", 4, "m.safetensors: tensor 'a': no shape" },
            { "{\"a\":{\"dtype\":\"F32\",\"shape\":[1]}}", 4, "m.safetensors: tensor 'a': no data_offsets" },
            { "{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0]}}", 4,
              "m.safetensors: tensor 'a': data_offsets has fewer than two numbers" },
            { "{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4,8]}}", 4,
              "m.safetensors: tensor 'a': data_offsets has more than two numbers" });
    REFUSED(LATTICE_ERR_UNSUPPORTED,
            { "{" T("a", "U8", "[1,1,1,1,1,1,1,1,1]", 0, 1) "}", 1, "m.safetensors: tensor 'a': more than 8 dimensions" });
}

static void what_is_not_such_json_is_refused(void **state)
{
    (void)state;
    REFUSED(
        LATTICE_ERR_FORMAT, { "[1]", 0, "m.safetensors: the header is not a JSON object" },
        { " {}", 0, "m.safetensors: the header is not a JSON object" },
        { "nope", 0, "m.safetensors: the header is not a JSON object" },
        { "{", 0, "m.safetensors: header:1:2: expected a key or '}', the text ends" },
        { "{}x", 0, "m.safetensors: header:1:3: expected the end of the text, found 'x'" },
        { "{\"a\":1}", 0, "m.safetensors: tensor 'a': header:1:6: expected an object, found a number" },
        { "{" T("a", "U8", "[1]", 0, 1) "," T("a", "U8", "[1]", 1, 2) "}", 2, "m.safetensors: header:1:54: duplicate key 'a'" },
        { "{\"a\":{\"dtype\":\"F32\",\"dtype\":\"F32\"}}", 0, "m.safetensors: tensor 'a': header:1:21: duplicate key 'dtype'" },
        { "{\"__metadata__\":[]}", 0, "m.safetensors: '__metadata__': header:1:17: expected an object, found an array" },
        { "{\"__metadata__\":{\"a\":1}}", 0, "m.safetensors: '__metadata__': header:1:22: expected a string, found a number" },
        { "{" T("a", "F32", "[-1]", 0, 4) "}", 4,
          "m.safetensors: tensor 'a': header:1:30: -1 is not an integer from 0 to 18446744073709551615" },
        { "{" T("a", "F32", "[18446744073709551616]", 0, 4) "}", 4,
          "m.safetensors: tensor 'a': header:1:30: 18446744073709551616 is not an integer from 0 to 18446744073709551615" },
        { "{" T("a", "F32", "[1.5]", 0, 4) "}", 4,
          "m.safetensors: tensor 'a': header:1:30: 1.5 is not an integer from 0 to 18446744073709551615" },
        { "{\"a\":{\"dtype\":1}}", 0, "m.safetensors: tensor 'a': header:1:15: expected a string, found a number" },
        { "{\"a\xff\":{}}", 0, "m.safetensors: header:1:4: invalid UTF-8 in a string" },
        { "{\"a\":{\"dtype\":\"F32\"", 0, "m.safetensors: tensor 'a': header:1:20: expected ',' or '}', the text ends" });
}

static void a_header_that_does_not_fit_in_the_file_is_refused(void **state)
{
    (void)state;
    lt_safetensors file;
    lattice_error err = { 0 };
    assert_int_equal(lt_safetensors_parse(&lt_malloc_allocator, "m", "{}", 2, 9, &file, &err), LATTICE_ERR_FORMAT);
    lt_safetensors_free(&file);
    assert_int_equal(lt_safetensors_parse(&lt_malloc_allocator, "m", "", 0, 8, &file, &err), LATTICE_ERR_FORMAT);
    lt_safetensors_free(&file);
}

/* ------------------------------------------------------------------ order, memory */

static void many_tensors_in_any_order_are_found_by_name(void **state)
{
    (void)state;
    enum { N = 500 };
    lt_buf header;
    lt_buf_init(&header, &lt_malloc_allocator);
    lt_buf_byte(&header, '{');
    for (unsigned i = 0; i < N; i++) { /* 7 has no common divisor with 500: every place once */
        unsigned place = i * 7 % N;
        lt_buf_printf(&header, "%s\"t%u\":{\"dtype\":\"U8\",\"shape\":[3],\"data_offsets\":[%u,%u]}", i ? "," : "", place,
                      place * 3, place * 3 + 3);
    }
    lt_buf_byte(&header, '}');
    lt_safetensors file;
    lattice_error err = { 0 };
    assert_ok_err(parse(header.data, (size_t)N * 3, &file, &err), &err);
    assert_int_equal(file.n, N);
    for (unsigned i = 0; i < N; i++) {
        char name[16];
        snprintf(name, sizeof name, "t%u", i);
        const lt_tensor *tensor = lt_safetensors_find(&file, lt_str_of(name));
        assert_non_null(tensor);
        assert_int_equal(tensor->offset, 8 + header.len + i * 3);
        if (i > 0) assert_true(lt_name_compare(file.by_name[i - 1]->name, file.by_name[i]->name) < 0);
    }
    lt_safetensors_free(&file);
    lt_buf_free(&header);
}

static void every_failed_allocation_is_reported_without_a_leak(void **state)
{
    (void)state;
    static const char header[] =
        "{\"__metadata__\":{\"k\":\"\\u00e9\"}," T("a\\u0041", "F32", "[2]", 0, 8) "," T("b", "F32", "[0]", 8, 8) "}";
    for (long n = 1;; n++) {
        lt_test_allocator a = lt_test_allocator_failing_at(n);
        lattice_allocator mem = lt_test_allocator_hooks(&a);
        lt_safetensors file;
        lattice_error err = { 0 };
        lattice_status status = lt_safetensors_parse(&mem, "m", header, strlen(header), 8 + strlen(header) + 8, &file, &err);
        lt_safetensors_free(&file);
        assert_int_equal(lt_test_allocator_live(&a), 0);
        if (status == LATTICE_OK) {
            assert_true(n > 3);
            break;
        }
        assert_int_equal(status, LATTICE_ERR_NO_MEMORY);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(length_is_little_endian),
        cmocka_unit_test(bad_lengths_are_refused),
        cmocka_unit_test(tensors_are_read_with_shape_type_and_place),
        cmocka_unit_test(scalars_empty_tensors_padding_and_no_tensors_load),
        cmocka_unit_test(a_scalar_has_one_element_and_rank_0),
        cmocka_unit_test(every_published_type_is_recognised),
        cmocka_unit_test(unknown_members_and_any_order_of_members_are_accepted),
        cmocka_unit_test(offsets_must_tile_the_data),
        cmocka_unit_test(sizes_must_match_shape_and_type),
        cmocka_unit_test(blocks_are_read_in_the_layout_that_is_known),
        cmocka_unit_test(unknown_types_and_missing_members_are_refused),
        cmocka_unit_test(what_is_not_such_json_is_refused),
        cmocka_unit_test(a_header_that_does_not_fit_in_the_file_is_refused),
        cmocka_unit_test(many_tensors_in_any_order_are_found_by_name),
        cmocka_unit_test(every_failed_allocation_is_reported_without_a_leak),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
