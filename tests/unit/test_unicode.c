/* The tables: facts about single characters that Hugging Face tokenizers 0.23.3 shows, arithmetic ones, clusters. */
#include "support.h"

#include "text/unicode.h"

static void ascii_has_the_properties_everyone_knows(void **state)
{
    (void)state;
    for (uint32_t c = 0; c < 128; c++) {
        bool letter = (c | 32) >= 'a' && (c | 32) <= 'z', digit = c >= '0' && c <= '9';
        uint32_t f = lt_unicode(c);
        assert_int_equal(!!(f & LT_U_LETTER), letter);
        assert_int_equal(!!(f & LT_U_NUMBER), digit);
        assert_int_equal(!!(f & LT_U_NUMERIC), digit);
        assert_int_equal(!!(f & LT_U_WORD), letter || digit || c == '_');
        assert_int_equal(!!(f & LT_U_SPACE), c == ' ' || (c >= 9 && c <= 13));
        assert_int_equal(!!(f & LT_U_WHITE), c == ' ' || (c >= 9 && c <= 13));
        assert_int_equal(!!(f & LT_U_PUNCTUATION), c > 32 && c < 127 && !letter && !digit);
        assert_int_equal(!!(f & LT_U_LOWER), c >= 'A' && c <= 'Z');
        assert_int_equal(!!(f & LT_U_CONTROL), (c < 32 && c != 9 && c != 10 && c != 13) || c == 127);
        assert_false(
            f & (LT_U_NFC_SLOW | LT_U_NFD_SLOW | LT_U_NFKC_SLOW | LT_U_NFKD_SLOW | LT_U_MARK | LT_U_NONSPACING | LT_U_CHINESE));
    }
}

static void lower_case_is_one_character_at_a_time(void **state)
{
    (void)state;
    uint32_t out[3];
    assert_int_equal(lt_unicode_lower(0x130, out), 2); /* I with a dot: i and a dot */
    assert_int_equal(out[0], 'i');
    assert_int_equal(out[1], 0x307);
    assert_int_equal(lt_unicode_lower(0x3A3, out), 1); /* never the final sigma */
    assert_int_equal(out[0], 0x3C3);
    assert_int_equal(lt_unicode_lower(0x1E9E, out), 1);
    assert_int_equal(out[0], 0xDF);
    assert_int_equal(lt_unicode_lower(0x4E00, out), 1);
    assert_int_equal(out[0], 0x4E00);
}

static void every_hangul_syllable_composes_back(void **state)
{
    (void)state;
    for (uint32_t c = 0xAC00; c < 0xD7A4; c++) {
        uint32_t parts[LT_DECOMPOSED_MAX];
        size_t n = lt_unicode_decompose(c, false, parts);
        uint32_t whole = lt_unicode_compose(parts[0], parts[1]);
        if (n == 3) whole = lt_unicode_compose(whole, parts[2]);
        assert_int_equal(whole, c);
    }
    assert_int_equal(lt_unicode_compose(0xAC01, 0x11A8), 0); /* has a final consonant already */
    assert_int_equal(lt_unicode_compose(0xAC00, 0x11A7), 0);
}

static void exclusions_do_not_compose(void **state)
{
    (void)state;
    assert_int_equal(lt_unicode_compose('e', 0x301), 0xE9);
    assert_int_equal(lt_unicode_compose(0x915, 0x93C), 0);
    assert_int_equal(lt_unicode_compose(0x2ADD, 0x338), 0);
    assert_int_equal(lt_unicode_compose(0x308, 0x301), 0);
    uint32_t parts[LT_DECOMPOSED_MAX];
    assert_int_equal(lt_unicode_decompose(0x344, false, parts), 2);
    assert_int_equal(lt_unicode_decompose(0xFDFA, true, parts), 18); /* the longest there is */
    assert_int_equal(lt_unicode_decompose(0xFDFA, false, parts), 1);
}

static void composition_undoes_decomposition(void **state)
{
    (void)state;
    for (size_t i = 0; i < lt_unicode_n_pairs; i++) {
        const lt_unicode_pair *p = &lt_unicode_pairs[i];
        assert_int_equal(lt_unicode_compose(p->first, p->second), p->composed);
        assert_true(lt_unicode(p->second) & LT_U_NFC_SLOW);
        assert_true(lt_unicode(p->composed) & LT_U_NFD_SLOW);
        uint32_t parts[LT_DECOMPOSED_MAX];
        size_t n = lt_unicode_decompose(p->composed, false, parts);
        assert_int_equal(parts[n - 1], p->second);
    }
}

static void combining_classes_order_marks(void **state)
{
    (void)state;
    assert_int_equal(lt_unicode_ccc(0x301), 230);
    assert_int_equal(lt_unicode_ccc(0x315), 232);
    assert_int_equal(lt_unicode_ccc(0x327), 202);
    assert_int_equal(lt_unicode_ccc(0x345), 240);
    assert_int_equal(lt_unicode_ccc(0x334), 1);
    assert_int_equal(lt_unicode_ccc('a'), 0);
}

static size_t clusters(const uint32_t *text, size_t n)
{
    lt_grapheme g = { 0 };
    size_t count = 0;
    for (size_t i = 0; i < n; i++) count += lt_grapheme_break(&g, text[i], lt_unicode(text[i]));
    return count;
}
#define CLUSTERS(...) clusters((const uint32_t[]){ __VA_ARGS__ }, sizeof((const uint32_t[]){ __VA_ARGS__ }) / sizeof(uint32_t))

static void grapheme_clusters_follow_the_rules(void **state)
{
    (void)state;
    assert_int_equal(CLUSTERS('a', 'b'), 2);
    assert_int_equal(CLUSTERS('\r', '\n', 0x301), 2);
    assert_int_equal(CLUSTERS('e', 0x301, 0x327), 1);
    assert_int_equal(CLUSTERS('\n', 0x301), 2);
    assert_int_equal(CLUSTERS(0x1100, 0x1161, 0x11A8), 1);
    assert_int_equal(CLUSTERS(0xAC00, 0x11A8, 0x1161), 2);
    assert_int_equal(CLUSTERS(0x1F1E9, 0x1F1EA, 0x1F1EB, 0x1F1F7, 0x1F1EE), 3);
    assert_int_equal(CLUSTERS(0x1F468, 0x200D, 0x1F469, 0x200D, 0x1F467), 1);
    assert_int_equal(CLUSTERS(0x1F468, 0x1F3FD, 0x200D, 0x1F469), 1);
    assert_int_equal(CLUSTERS('a', 0x200D, 0x1F469), 2);
    assert_int_equal(CLUSTERS(0x600, 'a'), 1);
    assert_int_equal(CLUSTERS(0x915, 0x94D, 0x937), 1);
    assert_int_equal(CLUSTERS(0x915, 0x93F, 0x937), 2);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(ascii_has_the_properties_everyone_knows), cmocka_unit_test(lower_case_is_one_character_at_a_time),
        cmocka_unit_test(every_hangul_syllable_composes_back),     cmocka_unit_test(exclusions_do_not_compose),
        cmocka_unit_test(composition_undoes_decomposition),        cmocka_unit_test(combining_classes_order_marks),
        cmocka_unit_test(grapheme_clusters_follow_the_rules),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
