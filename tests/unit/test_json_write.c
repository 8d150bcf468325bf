/* The JSON writer, and the shortest texts of floats. */
#include "unit/support.h"

#include <locale.h>
#include <math.h>

#include "format/decimal.h"
#include "format/json.h"

static void a_document_is_written_with_its_commas(void **state)
{
    (void)state;
    lt_buf out;
    lt_buf_init(&out, &lt_malloc_allocator);
    lt_json_writer w = lt_json_writer_on(&out);
    lt_json_write_begin(&w, '{');
    lt_json_write_key(&w, "a");
    lt_json_write_begin(&w, '[');
    lt_json_write_int(&w, INT64_MIN);
    lt_json_write_uint(&w, UINT64_MAX);
    lt_json_write_bool(&w, true);
    lt_json_write_bool(&w, false);
    lt_json_write_null(&w);
    lt_json_write_begin(&w, '[');
    lt_json_write_end(&w, ']');
    lt_json_write_begin(&w, '{');
    lt_json_write_end(&w, '}');
    lt_json_write_z(&w, "x");
    lt_json_write_end(&w, ']');
    lt_json_write_key_str(&w, LT_STR("k\"\0"));
    lt_json_write_float(&w, 0.5f);
    lt_json_write_key(&w, "d");
    lt_json_write_double(&w, 0.1);
    lt_json_write_key(&w, "v");
    lt_json_write_floats(&w, (const float[]){ 1, -2.5f, 1e-7f }, 3);
    lt_json_write_key(&w, "e");
    lt_json_write_floats(&w, NULL, 0);
    lt_json_write_end(&w, '}');
    assert_false(out.failed);
    assert_string_equal(out.data, "{\"a\":[-9223372036854775808,18446744073709551615,true,false,null,[],{},\"x\"],"
                                  "\"k\\\"\\u0000\":0.5,\"d\":0.1,\"v\":[1,-2.5,1e-7],\"e\":[]}");
    assert_int_equal(out.len, strlen(out.data));
    lt_buf_free(&out);
}

static void assert_written(const char *bytes, size_t len, const char *expected)
{
    lt_buf out;
    lt_buf_init(&out, &lt_malloc_allocator);
    lt_json_writer w = lt_json_writer_on(&out);
    char *copy = malloc(len ? len : 1);
    if (len) memcpy(copy, bytes, len);
    lt_json_write_str(&w, (lt_str){ copy, len });
    assert_string_equal(out.data, expected);
    lt_buf_free(&out);
    free(copy);
}

#define WRITES(bytes, expected) assert_written(bytes, sizeof(bytes) - 1, expected)

static void strings_are_escaped_where_json_asks_for_it(void **state)
{
    (void)state;
    WRITES("", "\"\"");
    WRITES("a/b\x7f", "\"a/b\x7f\"");
    WRITES("\"\\\b\f\n\r\t", "\"\\\"\\\\\\b\\f\\n\\r\\t\"");
    WRITES("\0\x01\x1f", "\"\\u0000\\u0001\\u001f\"");
    WRITES("\xc3\xa9\xe6\xad\xa3\xf0\x9f\x98\x80", "\"\xc3\xa9\xe6\xad\xa3\xf0\x9f\x98\x80\"");
    WRITES("x\xe6\xad", "\"x\xef\xbf\xbd\"");
    WRITES("\xed\xa0\x80|\xff", "\"\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd|\xef\xbf\xbd\"");
}

static void nan_and_infinity_are_never_written(void **state)
{
    (void)state;
    const double bad[] = { NAN, INFINITY, -INFINITY };
    for (int i = 0; i < 3; i++) {
        for (int kind = 0; kind < 3; kind++) {
            lt_buf out;
            lt_buf_init(&out, &lt_malloc_allocator);
            lt_json_writer w = lt_json_writer_on(&out);
            lt_json_write_begin(&w, '[');
            if (kind == 0) lt_json_write_double(&w, bad[i]);
            if (kind == 1) lt_json_write_float(&w, (float)bad[i]);
            if (kind == 2) lt_json_write_floats(&w, (const float[]){ 1, (float)bad[i], 2 }, 3);
            assert_true(out.failed);
            assert_string_equal(out.data, "[");
            lt_buf_free(&out);
        }
    }
}

static void writing_without_memory_fails_once(void **state)
{
    (void)state;
    lt_test_allocator a = lt_test_allocator_failing_at(1);
    lattice_allocator mem = lt_test_allocator_hooks(&a);
    lt_buf out;
    lt_buf_init(&out, &mem);
    lt_json_writer w = lt_json_writer_on(&out);
    lt_json_write_floats(&w, (const float[]){ 1, 2 }, 2);
    lt_json_write_z(&w, "x");
    assert_true(out.failed);
    assert_null(out.data);
    lt_buf_free(&out);
}

/* ------------------------------------------------------------------ floats */

static void assert_float_text(float value, const char *expected)
{
    char out[17];
    size_t len = lt_format_float(value, out);
    assert_true(len <= 16);
    out[len] = '\0';
    assert_string_equal(out, expected);
}

static void floats_have_their_well_known_texts(void **state)
{
    (void)state;
    assert_float_text(0.0f, "0");
    assert_float_text(-0.0f, "-0");
    assert_float_text(1.0f, "1");
    assert_float_text(0.1f, "0.1");
    assert_float_text(-0.3f, "-0.3");
    assert_float_text(1e-7f, "1e-7");
    assert_float_text(12345.0f, "12345");
    assert_float_text(100.0f, "100");
    assert_float_text(1234.5f, "1234.5");
    assert_float_text(0.0001f, "0.0001");
    assert_float_text(0.00001f, "1e-5");
    assert_float_text(0.033333335f, "0.033333335");
    assert_float_text(-0.00012345679f, "-0.00012345679");
    assert_float_text(1e14f, "100000000000000");
    assert_float_text(1e15f, "1e15");
    assert_float_text(16777216.0f, "16777216");
    assert_float_text(33554432.0f, "33554432");
    assert_float_text(3.4028235e38f, "3.4028235e38");
    assert_float_text(-1.1754944e-38f, "-1.1754944e-38");
    assert_float_text(1e-45f, "1e-45");
    assert_float_text(9.8e-45f, "1e-44");      /* the neighbours are 8.4e-45 and 1.12e-44 */
    assert_float_text(0x1p+33f, "8589935000"); /* 8589934592 ± half a step: from 8589934336 to 8589935104 */
}

/* The definition, searched: the first %.{p}e, p = 1 … 9, that reads back, is as short as can be; and of that length no text is
 * nearer, since %e rounds to the nearest. Zeros at its end do not count. */
static void shortest_by_search(float value, char digits[16], int *exponent)
{
    char text[40];
    for (int precision = 1; precision <= 9; precision++) {
        snprintf(text, sizeof text, "%.*e", precision - 1, (double)value);
        if (strtof(text, NULL) == value) break;
    }
    int n = 0;
    const char *from = text;
    for (; *from != 'e'; from++) {
        if (*from >= '0' && *from <= '9') digits[n++] = *from;
    }
    while (n > 1 && digits[n - 1] == '0') n--;
    digits[n] = '\0';
    *exponent = atoi(from + 1);
}

/* Digits and exponent of a written number. */
static void digits_of(const char *text, char digits[16], int *exponent)
{
    int n = 0, point = -1, seen = 0, e = 0;
    for (const char *s = text; *s; s++) {
        if (*s == '.') point = seen;
        if (*s == 'e') {
            e = atoi(s + 1);
            break;
        }
        if (*s >= '0' && *s <= '9') {
            seen++;
            if (n > 0 || *s != '0') digits[n++] = *s;
        }
    }
    int whole = point >= 0 ? point : seen;
    *exponent = e + whole - (seen - n) - 1;
    while (n > 1 && digits[n - 1] == '0') n--;
    digits[n] = '\0';
}

static void check_float(float value)
{
    char text[17], expected[16], got[32];
    int expected_exponent, exponent;
    size_t len = lt_format_float(value, text);
    if (len > 16) fail_msg("%a: %zu bytes", (double)value, len);
    text[len] = '\0';

    char *end;
    float back = strtof(text, &end);
    if (*end || memcmp(&back, &value, sizeof value) != 0) fail_msg("%a is written as %s", (double)value, text);
    lattice_error err;
    lt_json json;
    lt_json_open(&json, &lt_malloc_allocator, "f", text, len, &err);
    if (lt_json_float(&json, &back) != LATTICE_OK || lt_json_end(&json) != LATTICE_OK ||
        memcmp(&back, &value, sizeof value) != 0) {
        fail_msg("%a: %s does not read back", (double)value, text);
    }
    lt_json_close(&json);

    shortest_by_search(fabsf(value), expected, &expected_exponent);
    digits_of(text, got, &exponent);
    if (strlen(got) > strlen(expected)) fail_msg("%s is longer than %se%d", text, expected, expected_exponent);
    /* Where the nearest text of the length does not read back but a farther one does, ours may be shorter than the search's. */
    if (strlen(got) == strlen(expected) && (strcmp(got, expected) != 0 || exponent != expected_exponent)) {
        char searched[40];
        snprintf(searched, sizeof searched, "%c.%se%d", expected[0], expected + 1, expected_exponent);
        double exact = fabs((double)value);
        if (fabs(fabs(strtod(text, NULL)) - exact) > fabs(strtod(searched, NULL) - exact)) {
            fail_msg("%s is farther away than %s", text, searched);
        }
    }
}

static float from_bits(uint32_t bits)
{
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

static void a_million_random_floats_are_shortest_and_read_back(void **state)
{
    (void)state;
    uint64_t seed = 1;
    for (int i = 0; i < LT_ROUNDS(1 << 20, 1 << 16); i++) {
        seed = seed * 6364136223846793005u + 1442695040888963407u;
        float value = from_bits((uint32_t)(seed >> 32));
        if (isfinite(value) && value != 0) check_float(value);
    }
}

static void floats_at_the_edges_are_shortest_and_read_back(void **state)
{
    (void)state;
    for (uint32_t exponent = 0; exponent < 255; exponent++) {
        for (int32_t d = -20; d <= 20; d++) {
            uint32_t bits = (exponent << 23) + (uint32_t)d;
            if (bits > 0 && bits < 0x7F800000) check_float(from_bits(bits));
        }
    }
    for (uint32_t bits = 1; bits < 3000; bits++) check_float(from_bits(bits)); /* the smallest subnormals */
    for (int e = -45; e <= 38; e++) {
        for (int m = 1; m < 100; m++) {
            char text[32];
            snprintf(text, sizeof text, "%de%d", m, e);
            float value = strtof(text, NULL);
            if (value != 0 && isfinite(value)) check_float(value);
        }
    }
    for (int i = 1; i < 5000; i++) check_float((float)i * 0.5f);
}

static void doubles_read_back(void **state)
{
    (void)state;
    char out[33];
    const double known[] = { 0.1, 1.0 / 3, 1e22, 5e-324, 1.7976931348623157e308, 123456789012345680.0, -2.5, 1e15 };
    const char *const texts[] = {
        "0.1", "0.3333333333333333", "1e22", "5e-324", "1.7976931348623157e308", "1.2345678901234568e17", "-2.5", "1e15"
    };
    for (size_t i = 0; i < sizeof known / sizeof *known; i++) {
        out[lt_format_double(known[i], out)] = '\0';
        assert_string_equal(out, texts[i]);
    }
    uint64_t seed = 3;
    for (int i = 0; i < 50000; i++) {
        seed = seed * 6364136223846793005u + 1442695040888963407u;
        uint64_t bits = seed ^ seed >> 31;
        double value;
        memcpy(&value, &bits, sizeof value);
        if (!isfinite(value)) continue;
        size_t len = lt_format_double(value, out);
        assert_true(len <= 24);
        out[len] = '\0';
        double back = strtod(out, NULL);
        if (memcmp(&back, &value, sizeof value) != 0) fail_msg("%a is written as %s", value, out);
    }
}

static void a_locale_with_a_decimal_comma_changes_nothing(void **state)
{
    (void)state;
    /* Not every machine has one installed; then this proves nothing and says so. */
    if (!setlocale(LC_ALL, "de_DE.UTF-8") && !setlocale(LC_ALL, "fr_FR.UTF-8")) skip();
    char out[33];
    double value = 0;
    lattice_error err;
    lt_json json;
    out[lt_format_double(0.25, out)] = '\0';
    lt_json_open(&json, &lt_malloc_allocator, "f", "2.5e-300", 8, &err);
    lattice_status status = lt_json_double(&json, &value);
    lt_json_close(&json);
    setlocale(LC_ALL, "C");
    assert_string_equal(out, "0.25");
    assert_ok_err(status, &err);
    assert_true(value == 2.5e-300);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_document_is_written_with_its_commas),
        cmocka_unit_test(strings_are_escaped_where_json_asks_for_it),
        cmocka_unit_test(nan_and_infinity_are_never_written),
        cmocka_unit_test(writing_without_memory_fails_once),
        cmocka_unit_test(floats_have_their_well_known_texts),
        cmocka_unit_test(a_million_random_floats_are_shortest_and_read_back),
        cmocka_unit_test(floats_at_the_edges_are_shortest_and_read_back),
        cmocka_unit_test(doubles_read_back),
        cmocka_unit_test(a_locale_with_a_decimal_comma_changes_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
