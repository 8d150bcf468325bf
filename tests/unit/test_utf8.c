/* UTF-8 against the WHATWG Encoding Standard: one U+FFFD for every maximal invalid subpart. */
#include "unit/support.h"

#include "base/utf8.h"

#define FFFD "\xef\xbf\xbd"

static void assert_repaired(const char *bytes, size_t len, const char *expected)
{
    lt_buf out;
    lt_buf_init(&out, &lt_malloc_allocator);
    /* A block of its own, so that a sanitizer sees a read past the end. */
    uint8_t *copy = malloc(len ? len : 1);
    if (len) memcpy(copy, bytes, len);
    lt_utf8_append_repaired(&out, copy, len);
    assert_false(out.failed);
    lt_buf_byte(&out, '.');
    lt_buf wanted;
    lt_buf_init(&wanted, &lt_malloc_allocator);
    lt_buf_printf(&wanted, "%s.", expected);
    assert_string_equal(out.data, wanted.data);
    lt_buf_free(&out);
    lt_buf_free(&wanted);
    free(copy);
}

#define REPAIRED(bytes, expected) assert_repaired(bytes, sizeof(bytes) - 1, expected)

static void invalid_subparts_become_one_replacement_each(void **state)
{
    (void)state;
    REPAIRED("", "");
    REPAIRED("plain", "plain");
    REPAIRED("\xe6\xad", FFFD);      /* a truncated three-byte character alone */
    REPAIRED("\xe6\xadx", FFFD "x"); /* and before a letter */
    REPAIRED("\xf0\x9f\x98", FFFD);  /* a truncated four-byte character */
    REPAIRED("\xf0\x9f"
             "A",
             FFFD "A");
    REPAIRED("\xf0", FFFD);
    REPAIRED("\xc0\xaf", FFFD FFFD); /* overlong '/' in two, three and four bytes */
    REPAIRED("\xe0\x80\xaf", FFFD FFFD FFFD);
    REPAIRED("\xf0\x80\x80\xaf", FFFD FFFD FFFD FFFD);
    REPAIRED("\xc1\xbf", FFFD FFFD);
    REPAIRED("\xe0\x9f\xbf", FFFD FFFD FFFD);
    REPAIRED("\xed\xa0\x80", FFFD FFFD FFFD); /* surrogate halves */
    REPAIRED("\xed\xbf\xbf", FFFD FFFD FFFD);
    REPAIRED("\xed\xa0\xbd\xed\xb8\x80", FFFD FFFD FFFD FFFD FFFD FFFD);
    REPAIRED("\xf4\x90\x80\x80", FFFD FFFD FFFD FFFD); /* past U+10FFFF */
    REPAIRED("\xf5\x80", FFFD FFFD);
    REPAIRED("\xff\xfe", FFFD FFFD);
    REPAIRED("\x80\xbf", FFFD FFFD);           /* continuation bytes alone */
    REPAIRED("\xc3\xc3\xa9", FFFD "\xc3\xa9"); /* a lead byte ends the subpart and starts anew */
    REPAIRED("\xe6\xe6\xad\xa3", FFFD "\xe6\xad\xa3");
    /* Table 3-11 of the Unicode Standard. */
    REPAIRED("\xe1\x80\xe2\xf0\x91\x92\xf1\xbf\x41", FFFD FFFD FFFD FFFD "A");
    /* Table 3-8. */
    REPAIRED("\x61\xf1\x80\x80\xe1\x80\xc2\x62\x80\x63\x80\xbf\x64", "a" FFFD FFFD FFFD "b" FFFD "c" FFFD FFFD "d");
    /* Behind a long run of ASCII, where the wide scan works. */
    REPAIRED("0123456789abcdef0123456789abcdef0123\xe6\xad"
             "0123456789abcdef01",
             "0123456789abcdef0123456789abcdef0123" FFFD "0123456789abcdef01");
}

static void every_scalar_value_goes_round(void **state)
{
    (void)state;
    for (uint32_t code = 0; code <= 0x10FFFF; code++) {
        if (code >= 0xD800 && code < 0xE000) continue;
        uint8_t bytes[4];
        size_t len = lt_utf8_encode(code, bytes);
        size_t wanted = code < 0x80 ? 1 : code < 0x800 ? 2 : code < 0x10000 ? 3 : 4;
        uint32_t back;
        if (len != wanted || lt_utf8_decode(bytes, len, &back) != len || back != code ||
            lt_utf8_valid_prefix(bytes, len) != len || (code >= 0x80 && lt_utf8_sequence(bytes, len) != len)) {
            fail_msg("U+%04X", code);
        }
        for (size_t cut = 1; cut < len; cut++) {
            if (lt_utf8_decode(bytes, cut, &back) != cut || back != LT_REPLACEMENT || lt_utf8_valid_prefix(bytes, cut) != 0 ||
                lt_utf8_sequence(bytes, cut) != 0 || lt_utf8_incomplete_suffix(bytes, cut) != cut) {
                fail_msg("U+%04X cut to %zu bytes", code, cut);
            }
        }
        if (lt_utf8_incomplete_suffix(bytes, len) != 0) fail_msg("U+%04X is whole", code);
    }
}

/* Validity by the definition: decode by hand, then check range and length. */
static size_t valid_length(const uint8_t *s, size_t n)
{
    if (s[0] < 0x80) return 1;
    size_t len = (s[0] & 0xE0) == 0xC0 ? 2 : (s[0] & 0xF0) == 0xE0 ? 3 : (s[0] & 0xF8) == 0xF0 ? 4 : 0;
    if (len == 0 || len > n) return 0;
    uint32_t code = s[0] & (0x7Fu >> len);
    for (size_t i = 1; i < len; i++) {
        if ((s[i] & 0xC0) != 0x80) return 0;
        code = code << 6 | (s[i] & 0x3Fu);
    }
    static const uint32_t least[] = { 0, 0, 0x80, 0x800, 0x10000 };
    return code >= least[len] && code <= 0x10FFFF && (code < 0xD800 || code > 0xDFFF) ? len : 0;
}

static void valid_prefix_agrees_with_the_definition_on_random_bytes(void **state)
{
    (void)state;
    static const uint8_t likely[] = {
        'a', ' ', 0x80, 0xBF, 0xC2, 0xDF, 0xE0, 0xA0, 0xED, 0x9F, 0xEF, 0xF0, 0x90, 0xF4, 0x8F, 0xFF
    };
    uint64_t seed = 42;
    for (int round = 0; round < 200000; round++) {
        uint8_t s[40];
        size_t n = 0, ascii = 0;
        seed = seed * 6364136223846793005u + 1442695040888963407u;
        ascii = seed >> 60;
        size_t total = 1 + (seed >> 40) % sizeof s;
        for (; n < total; n++) {
            seed = seed * 6364136223846793005u + 1442695040888963407u;
            s[n] = n < ascii ? 'x' : seed >> 63 ? (uint8_t)(seed >> 48) : likely[seed >> 59 & 15];
        }
        size_t expected = 0;
        while (expected < n) {
            size_t len = valid_length(s + expected, n - expected);
            if (len == 0) break;
            expected += len;
        }
        if (lt_utf8_valid_prefix(s, n) != expected)
            fail_msg("round %d: %zu, expected %zu", round, lt_utf8_valid_prefix(s, n), expected);
    }
}

static void an_incomplete_suffix_is_held_back_only_if_it_can_become_valid(void **state)
{
    (void)state;
    assert_int_equal(lt_utf8_incomplete_suffix((const uint8_t *)"", 0), 0);
    assert_int_equal(lt_utf8_incomplete_suffix((const uint8_t *)"abc", 3), 0);
    assert_int_equal(lt_utf8_incomplete_suffix((const uint8_t *)"a\xf0\x9f\x98", 4), 3);
    assert_int_equal(lt_utf8_incomplete_suffix((const uint8_t *)"a\xe6", 2), 1);
    assert_int_equal(lt_utf8_incomplete_suffix((const uint8_t *)"a\x80", 2), 0);
    assert_int_equal(lt_utf8_incomplete_suffix((const uint8_t *)"\x80\x80\x80\x80", 4), 0);
    assert_int_equal(lt_utf8_incomplete_suffix((const uint8_t *)"\xe0\x80", 2), 0);
    assert_int_equal(lt_utf8_incomplete_suffix((const uint8_t *)"\xed\xa0", 2), 0);
    assert_int_equal(lt_utf8_incomplete_suffix((const uint8_t *)"\xf4\x90", 2), 0);
    assert_int_equal(lt_utf8_incomplete_suffix((const uint8_t *)"\xc0", 1), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(invalid_subparts_become_one_replacement_each),
        cmocka_unit_test(every_scalar_value_goes_round),
        cmocka_unit_test(valid_prefix_agrees_with_the_definition_on_random_bytes),
        cmocka_unit_test(an_incomplete_suffix_is_held_back_only_if_it_can_become_valid),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
