/* Byte strings, and the hashes over them. */
#include "unit/support.h"

#include "base/bytes.h"
#include "base/hash.h"

static void strings_compare_by_length_and_bytes(void **state)
{
    (void)state;
    assert_true(lt_str_eq(LT_STR("a\0b"), (lt_str){ "a\0b", 3 }));
    assert_false(lt_str_eq(LT_STR("a\0b"), LT_STR("a\0c")));
    assert_true(lt_str_eq((lt_str){ NULL, 0 }, LT_STR("")));
    assert_true(lt_str_is(LT_STR("model"), "model"));
    assert_false(lt_str_is(LT_STR("model\0"), "model"));
    assert_true(lt_str_starts(LT_STR("##ing"), "##"));
    assert_false(lt_str_starts(LT_STR("#"), "##"));
    assert_true(lt_str_ends(LT_STR("model.safetensors"), ".safetensors"));
    assert_false(lt_str_ends(LT_STR("s"), "ss"));
}

static void a_buffer_grows_and_stays_terminated(void **state)
{
    (void)state;
    lt_buf buf;
    lt_buf_init(&buf, &lt_malloc_allocator);
    assert_null(buf.data);
    for (int i = 0; i < 1000; i++) {
        lt_buf_byte(&buf, (char)('a' + i % 26));
        assert_int_equal(buf.data[buf.len], '\0');
        assert_true(buf.len < buf.capacity);
    }
    lt_buf_append(&buf, "\0x", 2);
    lt_buf_append_z(&buf, "yz");
    assert_int_equal(buf.len, 1004);
    assert_memory_equal(buf.data + 998, "kl\0xyz\0", 7);
    size_t capacity = buf.capacity;
    lt_buf_clear(&buf);
    assert_int_equal(buf.len, 0);
    assert_int_equal(buf.capacity, capacity);
    assert_string_equal(buf.data, "");
    lt_buf_append(&buf, NULL, 0);
    assert_false(buf.failed);
    lt_buf_free(&buf);
    assert_null(buf.data);
}

static void printf_appends_texts_of_any_length(void **state)
{
    (void)state;
    lt_buf buf;
    char large[5001];
    memset(large, 'q', 5000);
    large[5000] = '\0';
    lt_buf_init(&buf, &lt_malloc_allocator);
    for (int len = 0; len < 300; len++) {
        lt_buf_clear(&buf);
        lt_buf_append_z(&buf, "<");
        lt_buf_printf(&buf, "%.*s|%d", len, large, len);
        char expected[400];
        snprintf(expected, sizeof expected, "<%.*s|%d", len, large, len);
        assert_string_equal(buf.data, expected);
        assert_int_equal(buf.len, strlen(expected));
    }
    lt_buf_printf(&buf, "%s", large);
    assert_string_equal(buf.data + buf.len - 5000, large);
    lt_buf_free(&buf);
}

static void a_failed_append_leaves_the_contents(void **state)
{
    (void)state;
    lt_test_allocator a = lt_test_allocator_failing_at(2);
    lattice_allocator mem = lt_test_allocator_hooks(&a);
    lt_buf buf;
    lt_buf_init(&buf, &mem);
    lt_buf_append_z(&buf, "whole");
    char large[4096];
    memset(large, 'z', sizeof large);
    lt_buf_append(&buf, large, sizeof large);
    assert_true(buf.failed);
    assert_string_equal(buf.data, "whole");
    lt_buf_byte(&buf, '!'); /* would fit, but a hole in the text would be worse than its end missing */
    assert_string_equal(buf.data, "whole");
    lt_buf_free(&buf);
    assert_int_equal(lt_test_allocator_live(&a), 0);

    a = lt_test_allocator_failing_at(2);
    lt_buf_init(&buf, &mem);
    lt_buf_append_z(&buf, "kept ");
    lt_buf_printf(&buf, "%.*s", 4000, large);
    assert_true(buf.failed);
    assert_string_equal(buf.data, "kept ");
    lt_buf_free(&buf);

    lt_buf_init(&buf, &lt_malloc_allocator);
    assert_false(lt_buf_reserve(&buf, SIZE_MAX));
    assert_true(buf.failed);
    lt_buf_free(&buf);
}

/* Vectors of xxHash's own specification: XXH3 of the empty input. */
static void hashes_are_xxh3(void **state)
{
    (void)state;
    assert_true(lt_hash64("", 0, 0) == 0x2D06800538D394C2u);
    lt_hash128 empty = lt_hash_128("", 0, 0);
    assert_true(empty.low == 0x6001C324468D497Fu && empty.high == 0x99AA06D3014798D8u);
    assert_true(lt_hash64("abc", 3, 0) != lt_hash64("abc", 3, 1));
    assert_true(lt_hash64("abc", 3, 0) != lt_hash64("abd", 3, 0));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(strings_compare_by_length_and_bytes),
        cmocka_unit_test(a_buffer_grows_and_stays_terminated),
        cmocka_unit_test(printf_appends_texts_of_any_length),
        cmocka_unit_test(a_failed_append_leaves_the_contents),
        cmocka_unit_test(hashes_are_xxh3),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
