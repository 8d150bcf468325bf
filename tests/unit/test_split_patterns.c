/* Hand-written matchers against PCRE2 on the same expressions, and where the two must differ. Characters are drawn from
 * Unicode 6, whose categories every version of PCRE2 in use knows. */
#include "support.h"

#include "base/utf8.h"
#include "text/regex.h"
#include "text/split_patterns.h"
#include "text/unicode.h"

static uint64_t seed = 42;

static uint32_t next_random(uint32_t below)
{
    seed = seed * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(seed >> 33) % below;
}

static uint32_t random_character(void)
{
    static const uint32_t favourites[] = { ' ',    ' ',    ' ',    '\n',   '\r',  '\t',   '\'',   '\'',    's',    'S',   't',
                                           'r',    'e',    'v',    'l',    'L',   'm',    'd',    'D',     'a',    'Z',   '0',
                                           '1',    '9',    '.',    ',',    '!',   '_',    '-',    0,       0x17F,  0xA0,  0xE9,
                                           0x301,  0x3000, 0x2028, 0x4E00, 0x660, 0x2167, 0xBD,   0x1F600, 0x200D, 0x93F, 0x915,
                                           0x20DD, 0xFB06, 0x212A, 0x85,   0xAD,  0x5D0,  0x1D7CE };
    static const uint32_t ranges[][2] = { { 0x20, 0x7F },     { 0xA0, 0x180 },    { 0x300, 0x36F },
                                          { 0x391, 0x3A9 },   { 0x410, 0x44F },   { 0x905, 0x939 },
                                          { 0x3041, 0x3096 }, { 0x4E00, 0x9FA5 }, { 0xAC00, 0xD7A3 } };
    if (next_random(3)) return favourites[next_random(sizeof favourites / sizeof *favourites)];
    const uint32_t *range = ranges[next_random(sizeof ranges / sizeof *ranges)];
    return range[0] + next_random(range[1] - range[0]);
}

static void matchers_split_as_pcre2_does(void **state)
{
    (void)state;
    const lattice_allocator *mem = &lt_malloc_allocator;
    lattice_error err;
    lt_regex_scratch *scratch;
    assert_ok_err(lt_regex_scratch_create(mem, &scratch, &err), &err);
    size_t n_matches = 0;
    for (size_t k = 0; lt_split_expressions[k]; k++) {
        lt_regex *regex;
        lt_str expression = lt_str_of(lt_split_expressions[k]);
        lt_split_matcher matcher = lt_split_matcher_for(expression);
        assert_non_null(matcher);
        assert_ok_err(lt_regex_compile(mem, expression, "test", &regex, &err), &err);
        for (int round = 0; round < 30000; round++) {
            uint8_t text[160];
            size_t n = 0, length = 1 + next_random(30);
            for (size_t i = 0; i < length; i++) n += lt_utf8_encode(random_character(), text + n);
            lt_regex_matches m = lt_regex_begin(regex, scratch, text, n);
            for (size_t at = 0; at < n; n_matches++) {
                bool found;
                size_t start, end;
                assert_ok_err(lt_regex_next(&m, &found, &start, &end, &err), &err);
                size_t mine = matcher(text, at, n);
                if (!found || start != at || end != mine) {
                    for (size_t i = 0; i < n; i++) fprintf(stderr, "%02x ", text[i]);
                    fail_msg("expression %zu, round %d: [%zu, %zu), PCRE2 [%zu, %zu)", k, round, at, mine, start, end);
                }
                at = mine;
            }
        }
        lt_regex_free(regex);
    }
    assert_true(n_matches > 500000);
    lt_regex_scratch_free(scratch);
}

static void only_the_exact_text_of_an_expression_is_known(void **state)
{
    (void)state;
    assert_null(lt_split_matcher_for(LT_STR("")));
    assert_null(lt_split_matcher_for(LT_STR("\\s+")));
    char longer[400];
    snprintf(longer, sizeof longer, "%s|x", lt_split_expressions[1]);
    assert_null(lt_split_matcher_for(lt_str_of(longer)));
}

static void empty_matches_never_follow_a_match_at_its_end(void **state)
{
    (void)state;
    const lattice_allocator *mem = &lt_malloc_allocator;
    lattice_error err;
    lt_regex *regex;
    lt_regex_scratch *scratch;
    assert_ok_err(lt_regex_scratch_create(mem, &scratch, &err), &err);
    assert_ok_err(lt_regex_compile(mem, LT_STR("a*"), "test", &regex, &err), &err);
    lt_regex_matches m = lt_regex_begin(regex, scratch, (const uint8_t *)"aab\xc3\xa9", 5);
    const size_t wanted[][2] = { { 0, 2 }, { 3, 3 }, { 5, 5 } };
    bool found;
    size_t start, end;
    for (size_t i = 0; i < 3; i++) {
        assert_ok_err(lt_regex_next(&m, &found, &start, &end, &err), &err);
        assert_true(found);
        assert_int_equal(start, wanted[i][0]);
        assert_int_equal(end, wanted[i][1]);
    }
    assert_ok_err(lt_regex_next(&m, &found, &start, &end, &err), &err);
    assert_false(found);
    lt_regex_free(regex);
    lt_regex_scratch_free(scratch);
}

/* All matches of an expression in a text, as "[0,2)[3,3)"; "unsupported" or "malformed" if it is refused. */
static const char *matches_of(const char *pattern, const char *text)
{
    static char out[256];
    const lattice_allocator *mem = &lt_malloc_allocator;
    lattice_error err;
    lt_regex *regex;
    lt_regex_scratch *scratch;
    lattice_status status = lt_regex_compile(mem, lt_str_of(pattern), "file", &regex, &err);
    if (status != LATTICE_OK) return status == LATTICE_ERR_UNSUPPORTED ? "unsupported" : "malformed";
    assert_ok_err(lt_regex_scratch_create(mem, &scratch, &err), &err);
    lt_regex_matches m = lt_regex_begin(regex, scratch, (const uint8_t *)text, strlen(text));
    size_t n = 0;
    out[0] = '\0';
    for (;;) {
        bool found;
        size_t start, end;
        assert_ok_err(lt_regex_next(&m, &found, &start, &end, &err), &err);
        if (!found) break;
        n += (size_t)snprintf(out + n, sizeof out - n, "[%zu,%zu)", start, end);
    }
    lt_regex_free(regex);
    lt_regex_scratch_free(scratch);
    return out;
}

/* What Hugging Face tokenizers 0.23.3 gave for the same (its Split pre-tokenizer, behavior Isolated). */
static void expressions_mean_what_oniguruma_reads_in_them(void **state)
{
    (void)state;
    assert_string_equal(matches_of("\\h+", "12 fG"), "[0,2)[3,4)"); /* hexadecimal digits, not blanks */
    assert_string_equal(matches_of("(?m:a.b)", "a\nb"), "[0,3)");   /* m: dot matches line ends */
    assert_string_equal(matches_of("a.b", "a\nb"), "");
    assert_string_equal(matches_of("^x$", "x\nx\ny"), "[0,1)[2,3)");           /* every line */
    assert_string_equal(matches_of("\\w+", "e\xcc\x81_\xd9\xa3!"), "[0,6)");   /* marks and digits are word characters */
    assert_string_equal(matches_of("\\s+", "\xe1\xa0\x8e \xc2\x85"), "[3,6)"); /* U+180E is none, U+0085 is one */
    assert_string_equal(matches_of("[^\\s\\p{L}]+", "a\xe1\xa0\x8e b"), "[1,4)");
    /* a letter of Unicode 16, U+1C89, and a number of it, U+10D40, whatever PCRE2 is installed */
    assert_string_equal(matches_of("\\p{L}+", "a\xe1\xb2\x89."), "[0,4)");
    assert_string_equal(matches_of("\\p{Lu}", "\xe1\xb2\x89"), "[0,3)");
    assert_string_equal(matches_of("[\\p{N}x]+", "x\xf0\x90\xb5\x80"), "[0,5)");
    assert_string_equal(matches_of("\\P{L}+", "\xe1\xb2\x89!"), "[3,4)");
    assert_string_equal(matches_of("[\\P{L}]+", "\xe1\xb2\x89!"), "[3,4)");
    assert_string_equal(matches_of("\\p{^L}+", "\xe1\xb2\x89!"), "[3,4)");
    assert_string_equal(matches_of("\\p{Han}", "\xe6\x97\xa5"), "[0,3)");
    assert_string_equal(matches_of("\\b", "a\xe0\xa5\x80 <"), "[0,0)[4,4)"); /* a vowel sign is part of the word */
    assert_string_equal(matches_of("\\B", "ab"), "[1,1)");
    assert_string_equal(matches_of("\\p{Cc}+", "\x01\x02|"), "[0,2)");
    assert_string_equal(matches_of("(?i:'s)", "'\xc5\xbf"), "[0,3)");
}

static void what_pcre2_cannot_say_is_refused(void **state)
{
    (void)state;
    assert_string_equal(matches_of("[a-z&&[^b]]", "a"), "unsupported");
    assert_string_equal(matches_of("[a[bc]]", "a"), "unsupported");
    assert_string_equal(matches_of("a{1,3}+", "a"), "unsupported");
    assert_string_equal(matches_of("(?i:fuss)", "a"), "unsupported"); /* would match a sharp s */
    assert_string_equal(matches_of("(?i:a)st", "a"), "unsupported");
    assert_string_equal(matches_of("fuss", "fuss"), "[0,4)");
    lt_buf endless; /* a few bytes of it stand for hundreds of ranges */
    lt_buf_init(&endless, &lt_malloc_allocator);
    for (int i = 0; i < 200000; i++) lt_buf_append_z(&endless, i % 2 ? "\\p{Lu}" : "[\\P{Mn}]");
    lt_buf_byte(&endless, '\0');
    assert_string_equal(matches_of(endless.data, "a"), "unsupported");
    lt_buf_free(&endless);
    assert_string_equal(matches_of("(", "a"), "malformed");
    assert_string_equal(matches_of("\\", "a"), "malformed");
    assert_string_equal(matches_of("[a", "a"), "malformed");
    assert_string_equal(matches_of("\\p{NoSuch}", "a"), "malformed");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(matchers_split_as_pcre2_does),
        cmocka_unit_test(only_the_exact_text_of_an_expression_is_known),
        cmocka_unit_test(empty_matches_never_follow_a_match_at_its_end),
        cmocka_unit_test(expressions_mean_what_oniguruma_reads_in_them),
        cmocka_unit_test(what_pcre2_cannot_say_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
