/* The JSON reader against RFC 8259, case by case. */
#include "unit/support.h"

#include <math.h>

#include "format/json.h"

/* Skips the whole text; the text lies in a block of its own, so that a sanitizer sees a read past its end. */
static lattice_status check_bytes(const char *text, size_t size, lattice_error *err)
{
    uint8_t *copy = malloc(size ? size : 1);
    if (size) memcpy(copy, text, size);
    lt_json json;
    lt_json_open(&json, &lt_malloc_allocator, "f", copy, size, err);
    lattice_status status = lt_json_skip(&json);
    if (status == LATTICE_OK) status = lt_json_end(&json);
    lt_json_close(&json);
    free(copy);
    return status;
}

static void accepts(const char *text)
{
    lattice_error err = { 0 };
    if (check_bytes(text, strlen(text), &err) != LATTICE_OK) fail_msg("%s: %s", text, err.message);
}

static void refuses_bytes(const char *text, size_t size, const char *message)
{
    lattice_error err = { 0 };
    if (check_bytes(text, size, &err) != LATTICE_ERR_FORMAT) fail_msg("accepted: %s", text);
    if (strcmp(err.message, message) != 0) fail_msg("%s\n     says: %s\n expected: %s", text, err.message, message);
}

#define refuses(text, message) refuses_bytes(text, sizeof(text) - 1, message)

static void values_of_every_type_are_accepted(void **state)
{
    (void)state;
    accepts("null");
    accepts("true");
    accepts(" \t\r\n false \t\r\n ");
    accepts("0");
    accepts("-0");
    accepts("-0.0e-0");
    accepts("1E+2");
    accepts("123456789.25e-3");
    accepts("1e999999999999999999999"); /* grammar only: nobody asked for its value */
    accepts("\"\"");
    accepts("\"\\\"\\\\\\/\\b\\f\\n\\r\\t\\u00e9\"");
    accepts("\"\xc3\xa9\xe6\xad\xa3\xf0\x9f\x98\x80\x7f\"");
    accepts("[]");
    accepts("[ ]");
    accepts("[1,[2,[3]],{}]");
    accepts("{}");
    accepts("{ }");
    accepts("{\"a\":1,\"b\":{\"a\":2},\"c\":[{\"a\":3},{\"a\":4}]}");
    accepts("{\"\":0}");
    accepts("[\n        1,\n                                              2\n]");
}

static void broken_texts_are_refused_with_line_and_column(void **state)
{
    (void)state;
    refuses("", "f:1:1: expected a value, the text ends");
    refuses("  ", "f:1:3: expected a value, the text ends");
    refuses("1 2", "f:1:3: expected the end of the text, found '2'");
    refuses("\xef\xbb\xbf{}", "f:1:1: expected a value, found byte 0xEF");
    refuses("nul", "f:1:1: expected 'null'");
    refuses("tru\0", "f:1:1: expected 'true'");
    refuses("falsey", "f:1:6: expected the end of the text, found 'y'");
    refuses("True", "f:1:1: expected a value, found 'T'");
    refuses("NaN", "f:1:1: expected a value, found 'N'");
    refuses("[NaN]", "f:1:2: expected a value, found 'N'");
    refuses("Infinity", "f:1:1: expected a value, found 'I'");
    refuses("-Infinity", "f:1:2: expected a digit, found 'I'");
    refuses("'a'", "f:1:1: expected a value, found '''");
    refuses("/* */ 1", "f:1:1: expected a value, found '/'");
    refuses("\x0b"
            "1",
            "f:1:1: expected a value, found byte 0x0B");
    refuses("\xa0", "f:1:1: expected a value, found byte 0xA0");

    refuses("[", "f:1:2: expected a value, the text ends");
    refuses("[1", "f:1:3: expected ',' or ']', the text ends");
    refuses("[1,", "f:1:4: expected a value, the text ends");
    refuses("[1,]", "f:1:4: expected a value, found ']'");
    refuses("[,1]", "f:1:2: expected a value, found ','");
    refuses("[1 2]", "f:1:4: expected ',' or ']', found '2'");
    refuses("[1}", "f:1:3: expected ',' or ']', found '}'");
    refuses("]", "f:1:1: expected a value, found ']'");
    refuses("[]]", "f:1:3: expected the end of the text, found ']'");

    refuses("{", "f:1:2: expected a key or '}', the text ends");
    refuses("{\"a\"", "f:1:5: expected ':', the text ends");
    refuses("{\"a\":", "f:1:6: expected a value, the text ends");
    refuses("{\"a\":1", "f:1:7: expected ',' or '}', the text ends");
    refuses("{\"a\":1,", "f:1:8: expected a key, the text ends");
    refuses("{\"a\":1,}", "f:1:8: expected a key, found '}'");
    refuses("{a:1}", "f:1:2: expected a key or '}', found 'a'");
    refuses("{1:1}", "f:1:2: expected a key or '}', found '1'");
    refuses("{\"a\" 1}", "f:1:6: expected ':', found '1'");
    refuses("{\"a\":}", "f:1:6: expected a value, found '}'");
    refuses("{\"a\":1 \"b\":2}", "f:1:8: expected ',' or '}', found '\"'");
    refuses("{\"a\":1]", "f:1:7: expected ',' or '}', found ']'");
    refuses("{,}", "f:1:2: expected a key or '}', found ','");

    /* Lines end at the newline; columns count code points. */
    refuses("{\n  \"a\": 1,\n  \"b\": x\n}", "f:3:8: expected a value, found 'x'");
    refuses("[\"\xc3\xa9\xe6\xad\xa3\xf0\x9f\x98\x80\", x]", "f:1:9: expected a value, found 'x'");
}

static void broken_numbers_are_refused(void **state)
{
    (void)state;
    refuses("-", "f:1:2: expected a digit, the text ends");
    refuses("+1", "f:1:1: expected a value, found '+'");
    refuses(".5", "f:1:1: expected a value, found '.'");
    refuses("01", "f:1:2: a number must not start with 0");
    refuses("-012", "f:1:3: a number must not start with 0");
    refuses("00", "f:1:2: a number must not start with 0");
    refuses("1.", "f:1:3: expected a digit, the text ends");
    refuses("1.e5", "f:1:3: expected a digit, found 'e'");
    refuses("1e", "f:1:3: expected a digit, the text ends");
    refuses("1e+", "f:1:4: expected a digit, the text ends");
    refuses("1e1.5", "f:1:4: expected the end of the text, found '.'");
    refuses("0x10", "f:1:2: expected the end of the text, found 'x'");
    refuses("1_000", "f:1:2: expected the end of the text, found '_'");
    refuses("--1", "f:1:2: expected a digit, found '-'");
}

static void broken_strings_are_refused(void **state)
{
    (void)state;
    refuses("\"", "f:1:2: the text ends inside a string");
    refuses("\"abc", "f:1:5: the text ends inside a string");
    refuses("\"\\", "f:1:3: the text ends inside a string");
    refuses("\"\\\"", "f:1:4: the text ends inside a string");
    refuses("\"\\x41\"", "f:1:2: unknown escape in a string");
    refuses("\"ab\\'\"", "f:1:4: unknown escape in a string");
    refuses("\"\\u12\"", "f:1:2: \\u needs four hexadecimal digits");
    refuses("\"\\u12g4\"", "f:1:2: \\u needs four hexadecimal digits");
    refuses("\"\\u+123\"", "f:1:2: \\u needs four hexadecimal digits");
    refuses("\"\\ud83d\\u\"", "f:1:8: \\u needs four hexadecimal digits");
    refuses("\"a\nb\"", "f:1:3: control character 0x0A in a string");
    refuses("\"a\0b\"", "f:1:3: control character 0x00 in a string");
    refuses("\"tab\there, behind more than sixteen bytes\"", "f:1:5: control character 0x09 in a string");
    refuses("\"0123456789abcdef0123\x1f\"", "f:1:22: control character 0x1F in a string");
    refuses("\"012\x1f"
            "456789abcdef0123456789abcdef\"",
            "f:1:5: control character 0x1F in a string");
    refuses("\"\xff\"", "f:1:2: invalid UTF-8 in a string");
    refuses("\"\xe6\xad\"", "f:1:2: invalid UTF-8 in a string");
    refuses("\"\xf0\x9f\x98\"", "f:1:2: invalid UTF-8 in a string");
    refuses("\"\xc0\xaf\"", "f:1:2: invalid UTF-8 in a string");
    refuses("\"\xed\xa0\x80\"", "f:1:2: invalid UTF-8 in a string");
    refuses("\"\xf4\x90\x80\x80\"", "f:1:2: invalid UTF-8 in a string");
    refuses("\"\\n\xe6\"", "f:1:4: invalid UTF-8 in a string");
    refuses("{\"\xe6\":1}", "f:1:3: invalid UTF-8 in a string");
    refuses("\"\xe6", "f:1:2: invalid UTF-8 in a string");
}

static void duplicate_keys_are_refused_in_every_object(void **state)
{
    (void)state;
    refuses("{\"a\":1,\"a\":2}", "f:1:8: duplicate key 'a'");
    refuses("[{\"x\":{\"k\":1,\"l\":2,\"k\":3}}]", "f:1:20: duplicate key 'k'");
    refuses("{\"a\":{\"b\":1},\"b\":2,\n\"a\":3}", "f:2:1: duplicate key 'a'");
    refuses("{\"\":1,\"\":2}", "f:1:7: duplicate key ''");
    refuses("{\"\\u0061\":1,\"a\":2}", "f:1:13: duplicate key 'a'"); /* the same key, spelt differently */
    refuses("{\"a\":1,\"\\u0061\":2}", "f:1:8: duplicate key 'a'");
    refuses("{\"\\n\":{\"\\n\":1},\"\\t\":2,\"\\u000a\":3}", "f:1:23: duplicate key '?'");
    accepts("{\"a\":1,\"A\":2,\"a\\u0000\":3,\"a\\u0000b\":4}");
    accepts("{\"a\":{\"a\":{\"a\":1}},\"b\":[{\"a\":1},{\"a\":2}]}");
}

static void a_duplicate_is_found_among_many_keys(void **state)
{
    (void)state;
    enum { N = 5000 };
    for (int duplicate = 0; duplicate < N; duplicate += 617) {
        lt_buf text;
        lt_buf_init(&text, &lt_malloc_allocator);
        lt_buf_append_z(&text, "{");
        for (int i = 0; i < N; i++) {
            /* Objects between make the table shrink and grow. */
            lt_buf_printf(&text, "\"key%d\":{\"key%d\":1,\"x\":[{\"key0\":2}]},\n", i, i % 7);
            if (i % 1000 == 0) {
                lt_buf_printf(&text, "\"large%d\":{", i);
                for (int k = 0; k < 3000; k++) lt_buf_printf(&text, "\"%d\":0,", k);
                lt_buf_append_z(&text, "\"key0\":0},");
            }
        }
        size_t unique = text.len;
        lt_buf_append_z(&text, "\"last\":0}");
        accepts(text.data);
        text.len = unique;
        lt_buf_printf(&text, "\"key%d\":0}", duplicate);
        lattice_error err;
        assert_int_equal(check_bytes(text.data, text.len, &err), LATTICE_ERR_FORMAT);
        char expected[100];
        snprintf(expected, sizeof expected, "f:%d:1: duplicate key 'key%d'", N + 1, duplicate);
        assert_string_equal(err.message, expected);
        lt_buf_free(&text);
    }
}

static void depth_is_bounded(void **state)
{
    (void)state;
    char text[2 * LT_JSON_MAX_DEPTH + 4];
    memset(text, '[', LT_JSON_MAX_DEPTH);
    memset(text + LT_JSON_MAX_DEPTH, ']', LT_JSON_MAX_DEPTH);
    text[2 * LT_JSON_MAX_DEPTH] = '\0';
    accepts(text);
    memset(text, '[', LT_JSON_MAX_DEPTH + 1);
    memset(text + LT_JSON_MAX_DEPTH + 1, ']', LT_JSON_MAX_DEPTH + 1);
    refuses_bytes(text, 2 * LT_JSON_MAX_DEPTH + 2, "f:1:129: nested deeper than 128 levels");
    char *deep = malloc(1 << 20);
    memset(deep, '[', 1 << 20);
    lattice_error err;
    assert_int_equal(check_bytes(deep, 1 << 20, &err), LATTICE_ERR_FORMAT);
    free(deep);
}

/* ------------------------------------------------------------------ values */

static void open_text(lt_json *json, const char *text, lattice_error *err)
{
    lt_json_open(json, &lt_malloc_allocator, "f", text, strlen(text), err);
}

static void assert_string_value(const char *text, const char *expected, size_t len)
{
    lattice_error err;
    lt_json json;
    lt_str s;
    open_text(&json, text, &err);
    assert_ok_err(lt_json_string(&json, &s), &err);
    assert_int_equal(s.len, len);
    assert_memory_equal(s.data, expected, len);
    assert_ok_err(lt_json_end(&json), &err);
    lt_json_close(&json);
}

#define STRING(text, expected) assert_string_value(text, expected, sizeof(expected) - 1)

static void strings_are_decoded(void **state)
{
    (void)state;
    STRING("\"\"", "");
    STRING("\"plain text\"", "plain text");
    STRING("\"\\\"\\\\\\/\\b\\f\\n\\r\\t\"", "\"\\/\b\f\n\r\t");
    STRING("\"a\\u0000b\"", "a\0b"); /* NUL is a character */
    STRING("\"\\u0041\\u00E9\\u6b63\"", "A\xc3\xa9\xe6\xad\xa3");
    STRING("\"\\ud83d\\ude00\"", "\xf0\x9f\x98\x80");
    STRING("\"\\uDBFF\\uDFFF\"", "\xf4\x8f\xbf\xbf");
    STRING("\"\\ud83d\"", "\xef\xbf\xbd"); /* lone surrogates */
    STRING("\"\\ude00\"", "\xef\xbf\xbd");
    STRING("\"\\ud83dx\"", "\xef\xbf\xbdx");
    STRING("\"\\ud83d\\n\"", "\xef\xbf\xbd\n");
    STRING("\"\\ud83d\\u0041\"", "\xef\xbf\xbd"
                                 "A");
    STRING("\"\\ud83d\\ud83d\\ude00\"", "\xef\xbf\xbd\xf0\x9f\x98\x80");
    STRING("\"\\ud83d\\ue000\"", "\xef\xbf\xbd\xee\x80\x80");
    STRING("\"\\ude00\\ud83d\"", "\xef\xbf\xbd\xef\xbf\xbd");
    STRING("\"0123456789abcdef\xc3\xa9"
           "0123456789abcdef\\n0123456789abcdef\"",
           "0123456789abcdef\xc3\xa9"
           "0123456789abcdef\n0123456789abcdef");
    STRING("\"\xef\xbf\xbf\xf4\x8f\xbf\xbf\"", "\xef\xbf\xbf\xf4\x8f\xbf\xbf"); /* noncharacters are characters */
}

static void strings_without_escapes_are_slices_of_the_text(void **state)
{
    (void)state;
    lattice_error err;
    lt_json json;
    lt_str s;
    const char *text = "[\"abc\"]";
    bool more;
    open_text(&json, text, &err);
    assert_ok(lt_json_begin_array(&json));
    assert_ok(lt_json_next_element(&json, &more));
    assert_ok(lt_json_string(&json, &s));
    assert_ptr_equal(s.data, text + 2);
    lt_json_close(&json);
}

static void assert_double(const char *text, double expected)
{
    lattice_error err;
    lt_json json;
    double value;
    open_text(&json, text, &err);
    assert_ok_err(lt_json_double(&json, &value), &err);
    if (memcmp(&value, &expected, sizeof value) != 0) fail_msg("%s is %a, expected %a", text, value, expected);
    lt_json_close(&json);
}

static void assert_float(const char *text, float expected)
{
    lattice_error err;
    lt_json json;
    float value;
    open_text(&json, text, &err);
    assert_ok_err(lt_json_float(&json, &value), &err);
    if (memcmp(&value, &expected, sizeof value) != 0) fail_msg("%s is %a, expected %a", text, value, expected);
    lt_json_close(&json);
}

/* Expected values are written in hexadecimal, so that no other decimal conversion is trusted. */
static void numbers_are_rounded_correctly(void **state)
{
    (void)state;
    assert_double("0", 0.0);
    assert_double("-0", -0.0);
    assert_double("0e999999", 0.0);
    assert_double("0.1", 0x1.999999999999ap-4);
    assert_double("1e22", 0x1.0f0cf064dd592p+73);
    assert_double("1e23", 0x1.52d02c7e14af6p+76);
    assert_double("9007199254740993", 0x1p+53); /* a tie goes to the even neighbour */
    assert_double("9007199254740993.00000000000000000001", 0x1.0000000000001p+53);
    assert_double("9007199254740995", 0x1.0000000000002p+53);
    assert_double("18446744073709551615", 0x1p+64);
    assert_double("1.7976931348623157e308", 0x1.fffffffffffffp+1023);
    assert_double("2.2250738585072011e-308", 0x0.fffffffffffffp-1022); /* the largest subnormal */
    assert_double("4.9406564584124654e-324", 0x1p-1074);
    assert_double("2e-324", 0.0);
    assert_double("1e-400", 0.0);
    assert_double("-1.5e-5", -0x1.f75104d551d69p-17);
    /* Ties in their first 64 bits that what follows decides. */
    assert_double("7565535614094025877e13", 0x1.dd73d1eaf44cbp+105);
    assert_double("12324456519380059786e17", 0x1.dab88629f8ca7p+119);
    assert_double("8379461869732534287e15", 0x1.9d23ad9245251p+112);
    assert_float("0.1", 0x1.99999ap-4f);
    assert_float("16777217", 0x1p+24f);
    assert_float("16777217.0000001", 0x1.000002p+24f);
    assert_float("3.4028234663852886e38", 0x1.fffffep+127f);
    assert_float("1e-45", 0x1p-149f);
    assert_float("1.17549435e-38", 0x1p-126f);
    /* Just above a tie between two floats: by way of a double it would round down. */
    assert_float("1.000000059604644775390626", 0x1.000002p+0f);
    assert_float("1.000000059604644775390625", 0x1p+0f);
    assert_float("1.00000017881393432617187499", 0x1.000002p+0f);
    assert_float("-0", -0.0f);
}

/* A text of 1000 digits of which only the last decides. */
static void long_numbers_are_rounded_by_their_last_digit(void **state)
{
    (void)state;
    char text[1100] = "9007199254740993.";
    size_t len = strlen(text);
    memset(text + len, '0', 1000);
    strcpy(text + len + 1000, "1");
    assert_double(text, 0x1.0000000000001p+53);
    strcpy(text + len + 1000, "0");
    assert_double(text, 0x1p+53);
}

static void agree_with_strtod(uint64_t significand, int exponent, int point)
{
    char text[64];
    int n = snprintf(text, sizeof text, "%llu", (unsigned long long)significand);
    if (point < n) {
        memmove(text + point + 1, text + point, (size_t)(n - point));
        text[point] = '.';
        n++;
    }
    snprintf(text + n, sizeof text - (size_t)n, "e%d", exponent);
    assert_double(text, strtod(text, NULL));
    assert_float(text, strtof(text, NULL));
}

/* The C library rounds correctly in the "C" locale, which tests run in. */
static void random_decimals_agree_with_the_c_library(void **state)
{
    (void)state;
    uint64_t seed = 7;
    for (int i = 0; i < 100000; i++) {
        seed = seed * 6364136223846793005u + 1442695040888963407u;
        uint64_t significand = (seed ^ seed >> 29) >> (i % 53);
        agree_with_strtod(significand, (int)(seed >> 50) % 36 - 18, 1 + i % 21);
    }
    /* Halves between doubles: exact ties. */
    for (uint64_t m = (UINT64_C(1) << 53) + 1; m < (UINT64_C(1) << 53) + 2000; m += 2) {
        for (int e = -3; e <= 3; e++) agree_with_strtod(m, e, 30);
    }
}

static void numbers_out_of_range_are_refused(void **state)
{
    (void)state;
    lattice_error err;
    lt_json json;
    double d;
    float f;
    open_text(&json, " 1e309", &err);
    assert_int_equal(lt_json_double(&json, &d), LATTICE_ERR_FORMAT);
    assert_string_equal(err.message, "f:1:2: 1e309 is out of a double's range");
    lt_json_close(&json);
    open_text(&json, "-3.5e38", &err);
    assert_int_equal(lt_json_float(&json, &f), LATTICE_ERR_FORMAT);
    assert_string_equal(err.message, "f:1:1: -3.5e38 is out of a float's range");
    assert_ok_err(lt_json_double(&json, &d), &err); /* what was refused stays unread */
    assert_true(d == -3.5e38);
    lt_json_close(&json);
}

static void assert_int64(const char *text, int64_t expected)
{
    lattice_error err;
    lt_json json;
    int64_t value;
    open_text(&json, text, &err);
    assert_ok_err(lt_json_int64(&json, &value), &err);
    assert_true(value == expected);
    lt_json_close(&json);
}

static void refuse_int64(const char *text)
{
    lattice_error err;
    lt_json json;
    int64_t value;
    char expected[200];
    open_text(&json, text, &err);
    assert_int_equal(lt_json_int64(&json, &value), LATTICE_ERR_FORMAT);
    snprintf(expected, sizeof expected, "f:1:1: %s is not a 64-bit integer", text);
    assert_string_equal(err.message, expected);
    lt_json_close(&json);
}

static void integers_are_exact(void **state)
{
    (void)state;
    assert_int64("0", 0);
    assert_int64("-0", 0);
    assert_int64("0.0", 0);
    assert_int64("0e99999999999", 0);
    assert_int64("5.0", 5);
    assert_int64("1e3", 1000);
    assert_int64("1.5e1", 15);
    assert_int64("-1200e-2", -12);
    assert_int64("9223372036854775807", INT64_MAX);
    assert_int64("-9223372036854775808", INT64_MIN);
    assert_int64("922337203685477580700000e-5", INT64_MAX);
    assert_int64("1.00000000000000000000000000000000000", 1);
    refuse_int64("9223372036854775808");
    refuse_int64("-9223372036854775809");
    refuse_int64("18446744073709551617");
    refuse_int64("1e19");
    refuse_int64("1e99999999999999999999");
    refuse_int64("1e-99999999999999999999");
    refuse_int64("0.5");
    refuse_int64("15e-1");
    refuse_int64("1.00000000000000000000000000000000001");
}

static void unsigned_integers_have_their_limits(void **state)
{
    (void)state;
    lattice_error err;
    lt_json json;
    uint32_t u;
    size_t size;
    bool more;
    open_text(&json, "[4294967295, 18446744073709551615, 4294967296]", &err);
    assert_ok(lt_json_begin_array(&json));
    assert_ok(lt_json_next_element(&json, &more));
    assert_ok_err(lt_json_uint32(&json, &u), &err);
    assert_true(u == UINT32_MAX);
    assert_ok(lt_json_next_element(&json, &more));
    assert_ok_err(lt_json_size(&json, &size), &err);
    assert_true(size == SIZE_MAX);
    assert_ok(lt_json_next_element(&json, &more));
    assert_int_equal(lt_json_uint32(&json, &u), LATTICE_ERR_FORMAT);
    assert_string_equal(err.message, "f:1:36: 4294967296 is not an integer from 0 to 4294967295");
    lt_json_close(&json);
    open_text(&json, "-1", &err);
    assert_int_equal(lt_json_size(&json, &size), LATTICE_ERR_FORMAT);
    assert_string_equal(err.message, "f:1:1: -1 is not an integer from 0 to 18446744073709551615");
    lt_json_close(&json);
}

/* ------------------------------------------------------------------ walking */

static void a_walk_sees_every_member_in_order(void **state)
{
    (void)state;
    lattice_error err;
    lt_json json;
    lt_str key, s;
    bool more, b;
    open_text(&json, " { \"a\" : [ 1 , true , null ] , \"\\u0062\" : { } , \"c\" : \"x\" } ", &err);
    assert_int_equal(lt_json_peek(&json), LT_JSON_OBJECT);
    assert_ok(lt_json_begin_object(&json));
    assert_ok(lt_json_next_member(&json, &key, &more));
    assert_true(more && lt_str_is(key, "a"));
    assert_int_equal(lt_json_peek(&json), LT_JSON_ARRAY);
    assert_ok(lt_json_begin_array(&json));
    assert_ok(lt_json_next_element(&json, &more));
    assert_int_equal(lt_json_peek(&json), LT_JSON_NUMBER);
    int64_t i;
    assert_ok(lt_json_int64(&json, &i));
    assert_ok(lt_json_next_element(&json, &more));
    assert_int_equal(lt_json_peek(&json), LT_JSON_BOOL);
    assert_ok(lt_json_bool(&json, &b));
    assert_true(b);
    assert_ok(lt_json_next_element(&json, &more));
    assert_int_equal(lt_json_peek(&json), LT_JSON_NULL);
    assert_ok(lt_json_null(&json));
    assert_ok(lt_json_next_element(&json, &more));
    assert_false(more);
    assert_ok(lt_json_next_member(&json, &key, &more));
    assert_true(more && lt_str_is(key, "b"));
    assert_ok(lt_json_raw(&json, &s));
    assert_true(lt_str_is(s, "{ }"));
    assert_ok(lt_json_next_member(&json, &key, &more));
    assert_true(more && lt_str_is(key, "c"));
    assert_int_equal(lt_json_peek(&json), LT_JSON_STRING);
    assert_ok(lt_json_skip(&json));
    assert_ok(lt_json_next_member(&json, &key, &more));
    assert_false(more);
    assert_int_equal(lt_json_peek(&json), LT_JSON_END);
    assert_ok(lt_json_end(&json));
    lt_json_close(&json);
}

static void another_type_is_an_error_that_says_both(void **state)
{
    (void)state;
    lattice_error err;
    lt_json json;
    lt_str s;
    bool b;
    double d;
    open_text(&json, "\n  3", &err);
    assert_int_equal(lt_json_string(&json, &s), LATTICE_ERR_FORMAT);
    assert_string_equal(err.message, "f:2:3: expected a string, found a number");
    assert_int_equal(lt_json_bool(&json, &b), LATTICE_ERR_FORMAT);
    assert_string_equal(err.message, "f:2:3: expected true or false, found a number");
    assert_int_equal(lt_json_begin_object(&json), LATTICE_ERR_FORMAT);
    assert_string_equal(err.message, "f:2:3: expected an object, found a number");
    assert_ok_err(lt_json_double(&json, &d), &err);
    lt_json_close(&json);
    open_text(&json, "{}", &err);
    assert_int_equal(lt_json_begin_array(&json), LATTICE_ERR_FORMAT);
    assert_string_equal(err.message, "f:1:1: expected an array, found an object");
    assert_int_equal(lt_json_null(&json), LATTICE_ERR_FORMAT);
    assert_string_equal(err.message, "f:1:1: expected null, found an object");
    assert_int_equal(lt_json_double(&json, &d), LATTICE_ERR_FORMAT);
    assert_string_equal(err.message, "f:1:1: expected a number, found an object");
    lt_json_close(&json);
}

static void calls_out_of_order_are_errors(void **state)
{
    (void)state;
    lattice_error err;
    lt_json json;
    lt_str key;
    bool more;
    double d;
    open_text(&json, "[1 2]", &err);
    assert_int_equal(lt_json_next_element(&json, &more), LATTICE_ERR_FORMAT); /* nothing is open */
    assert_ok(lt_json_begin_array(&json));
    assert_int_equal(lt_json_next_member(&json, &key, &more), LATTICE_ERR_FORMAT);
    assert_int_equal(lt_json_double(&json, &d), LATTICE_ERR_FORMAT); /* no element was begun */
    assert_ok(lt_json_next_element(&json, &more));
    assert_int_equal(lt_json_next_element(&json, &more), LATTICE_ERR_FORMAT); /* its value was not read */
    assert_int_equal(lt_json_end(&json), LATTICE_ERR_FORMAT);
    assert_ok(lt_json_double(&json, &d));
    assert_int_equal(lt_json_double(&json, &d), LATTICE_ERR_FORMAT); /* a comma is missing */
    assert_string_equal(err.message, "f:1:4: no value is due here");
    lt_json_close(&json);
    assert_int_equal(lt_json_double(&json, &d), LATTICE_ERR_FORMAT); /* closed */
    lt_json_close(&json);
    lt_json_open(&json, &lt_malloc_allocator, "f", NULL, 0, &err);
    assert_int_equal(lt_json_peek(&json), LT_JSON_END);
    assert_int_equal(lt_json_skip(&json), LATTICE_ERR_FORMAT);
    lt_json_close(&json);
}

static void failures_of_the_caller_point_at_the_value_read_last(void **state)
{
    (void)state;
    lattice_error err;
    lt_json json;
    lt_str key;
    bool more;
    size_t n;
    open_text(&json, "{\n \"head_dim\": 66}", &err);
    assert_ok(lt_json_begin_object(&json));
    assert_ok(lt_json_next_member(&json, &key, &more));
    assert_int_equal(lt_json_fail(&json, "unknown"), LATTICE_ERR_FORMAT);
    assert_string_equal(err.message, "f:2:2: unknown");
    assert_ok(lt_json_size(&json, &n));
    assert_int_equal(lt_json_fail(&json, "head_dim %zu\nis odd", n), LATTICE_ERR_FORMAT);
    assert_string_equal(err.message, "f:2:14: head_dim 66?is odd");
    lt_json_close(&json);
    open_text(&json, "x", NULL); /* nobody wants the message */
    assert_int_equal(lt_json_skip(&json), LATTICE_ERR_FORMAT);
    lt_json_close(&json);
}

/* A key with escapes lives in the reader's buffer: no number may overwrite it. */
static void a_decoded_key_outlives_the_number_behind_it(void **state)
{
    (void)state;
    lattice_error err;
    lt_json json;
    lt_str key;
    bool more;
    double d;
    char text[400] = "{\"\\u006bey\": 0.";
    size_t len = strlen(text);
    memset(text + len, '3', 200);
    strcpy(text + len + 200, "}");
    open_text(&json, text, &err);
    assert_ok(lt_json_begin_object(&json));
    assert_ok(lt_json_next_member(&json, &key, &more));
    assert_ok_err(lt_json_double(&json, &d), &err);
    assert_true(lt_str_is(key, "key"));
    lt_json_close(&json);
}

static void every_failing_allocation_is_reported(void **state)
{
    (void)state;
    char text[3000] = "{\"a\\n\":\"\\u00e9\",\"n\":0.";
    size_t len = strlen(text);
    memset(text + len, '7', 300);
    len += 300;
    for (int i = 0; i < 100; i++) len += (size_t)sprintf(text + len, ",\"k%d\\t\":{}", i);
    strcpy(text + len, "}");
    lattice_status status = LATTICE_ERR_NO_MEMORY;
    for (long n = 1; status != LATTICE_OK; n++) {
        lt_test_allocator a = lt_test_allocator_failing_at(n);
        lattice_allocator mem = lt_test_allocator_hooks(&a);
        lattice_error err;
        lt_json json;
        lt_str key;
        bool more = false;
        double d;
        lt_json_open(&json, &mem, "f", text, strlen(text), &err);
        status = lt_json_begin_object(&json);
        while (status == LATTICE_OK) {
            status = lt_json_next_member(&json, &key, &more);
            if (status != LATTICE_OK || !more) break;
            status = lt_str_is(key, "n") ? lt_json_double(&json, &d) : lt_json_skip(&json);
        }
        lt_json_close(&json);
        if (status != LATTICE_OK) assert_int_equal(status, LATTICE_ERR_NO_MEMORY);
        assert_int_equal(lt_test_allocator_live(&a), 0);
        if (status == LATTICE_OK) assert_true(n > 6);
    }
}

static void the_fixtures_are_read(void **state)
{
    (void)state;
    static const char *const paths[] = {
        FIXTURE("qwen3-embedding/tokenizer.json"), FIXTURE("bert-cls/tokenizer.json"),    FIXTURE("xlmr-mean/tokenizer.json"),
        FIXTURE("bert-cls/golden.json"),           FIXTURE("real/all-minilm-l6-v2.json"),
    };
    for (size_t i = 0; i < sizeof paths / sizeof *paths; i++) {
        size_t size;
        lattice_error err;
        char *text = lt_test_read_file(paths[i], &size);
        assert_ok_err(check_bytes(text, size, &err), &err);
        /* Cut anywhere it is refused, never read past the end. */
        for (size_t cut = 1; cut < size; cut += 1 + size / 50) {
            if (check_bytes(text, cut, &err) == LATTICE_OK) fail_msg("%s: accepted when cut to %zu bytes", paths[i], cut);
        }
        free(text);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(values_of_every_type_are_accepted),
        cmocka_unit_test(broken_texts_are_refused_with_line_and_column),
        cmocka_unit_test(broken_numbers_are_refused),
        cmocka_unit_test(broken_strings_are_refused),
        cmocka_unit_test(duplicate_keys_are_refused_in_every_object),
        cmocka_unit_test(a_duplicate_is_found_among_many_keys),
        cmocka_unit_test(depth_is_bounded),
        cmocka_unit_test(strings_are_decoded),
        cmocka_unit_test(strings_without_escapes_are_slices_of_the_text),
        cmocka_unit_test(numbers_are_rounded_correctly),
        cmocka_unit_test(long_numbers_are_rounded_by_their_last_digit),
        cmocka_unit_test(random_decimals_agree_with_the_c_library),
        cmocka_unit_test(numbers_out_of_range_are_refused),
        cmocka_unit_test(integers_are_exact),
        cmocka_unit_test(unsigned_integers_have_their_limits),
        cmocka_unit_test(a_walk_sees_every_member_in_order),
        cmocka_unit_test(another_type_is_an_error_that_says_both),
        cmocka_unit_test(calls_out_of_order_are_errors),
        cmocka_unit_test(failures_of_the_caller_point_at_the_value_read_last),
        cmocka_unit_test(a_decoded_key_outlives_the_number_behind_it),
        cmocka_unit_test(every_failing_allocation_is_reported),
        cmocka_unit_test(the_fixtures_are_read),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
