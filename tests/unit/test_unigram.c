/* Unigram. Golden values from Hugging Face tokenizers 0.23.3. */
#include "subword_support.h"

#include "text/subword.h"

static void unigram_of_xlm_roberta_equals_huggingface(void **state)
{
    (void)state;
    CHECK_FIXTURE(FIXTURE("xlmr-mean/tokenizer.json"), false,
                  {
                      WORD("\xe2\x96\x81the", "16:0:6"),
                      WORD("\xe2\x96\x81"
                           "embedding",
                           "4:0:3 1027:3:5 60:5:6 48:6:8 33:8:9 52:9:12"),
                      WORD("\xe2\x96\x81unbelievable", "377:0:5 60:5:6 426:6:8 49:8:9 46:9:10 152:10:11 384:11:15"),
                      WORD("\xe2\x96\x81naive", "146:0:4 47:4:5 408:5:8"),
                      WORD("\xe4\xb8\xad\xe6\x96\x87", "3:0:6"),
                      WORD("a", "47:0:1"),
                      WORD("\xe2\x96\x81", "4:0:3"),
                      WORD("zzzzqqqq", "266:0:1 266:1:2 266:2:3 266:3:4 556:4:5 556:5:6 556:6:7 556:7:8"),
                      WORD("\xe2\x98\x83\xe2\x98\x83\xe2\x98\x83", "3:0:9"),
                      WORD("\xe2\x96\x81"
                           "a\xe2\x98\x83"
                           "b",
                           "23:0:4 3:4:7 60:7:8"),
                      WORD("<unk>", "3:0:5"),
                      WORD("\xe2\x96\x81internationalization", "4:0:3 969:3:8 41:8:9 361:9:14 121:14:16 1718:16:23"),
                      WORD("thethethethethethethethethethethethethethethethethethethethe",
                           "800:0:3 800:3:6 800:6:9 800:9:12 800:12:15 800:15:18 800:18:21 800:21:24 800:24:27 800:27:30 "
                           "800:30:33 800:33:36 800:36:39 800:39:42 800:42:45 800:45:48 800:48:51 800:51:54 800:54:57 800:57:60"),
                      WORD("x\x00y", "57:0:1 3:1:2 80:2:3"),
                  });
}

static void unigram_breaks_ties_for_the_earlier_start(void **state)
{
    (void)state;
    CHECK_MODEL("{'type': 'Unigram', "
                "'unk_id': 0, "
                "'byte_fallback': false, "
                "'vocab': [['<unk>', 0.0], ['a', -1.0], ['b', -1.0], ['ab', -2.0], ['abc', -2.5], ['c', -1.5], ['bc', -1.5], "
                "['aa', -2.0], ['aaa', -3.0], ['xy', -40.0]]}",
                false,
                {
                    WORD("ab", "3:0:2"),
                    WORD("abc", "4:0:3"),
                    WORD("aaaa", "1:0:1 8:1:4"),
                    WORD("aaaaaa", "8:0:3 8:3:6"),
                    WORD("abcab", "4:0:3 3:3:5"),
                });
}

static void unigram_joins_neighbouring_unknown_characters(void **state)
{
    (void)state;
    CHECK_MODEL("{'type': 'Unigram', "
                "'unk_id': 0, "
                "'byte_fallback': false, "
                "'vocab': [['<unk>', 0.0], ['a', -1.0], ['b', -1.0], ['ab', -2.0], ['abc', -2.5], ['c', -1.5], ['bc', -1.5], "
                "['aa', -2.0], ['aaa', -3.0], ['xy', -40.0]]}",
                false,
                {
                    WORD("x", "0:0:1"),
                    WORD("xx", "0:0:2"),
                    WORD("axxb", "1:0:1 0:1:3 2:3:4"),
                    WORD("abxcab", "3:0:2 0:2:3 5:3:4 3:4:6"),
                    WORD("<unk>", "0:0:5"),
                    WORD("\xc3\xa9", "0:0:2"),
                    WORD("a\xc3\xa9"
                         "b",
                         "1:0:1 0:1:3 2:3:4"),
                    WORD("x<unk>", "0:0:6"),
                });
}

static void unigram_weighs_an_unknown_character_at_the_worst_score_less_ten(void **state)
{
    (void)state;
    CHECK_MODEL("{'type': 'Unigram', "
                "'unk_id': 0, "
                "'byte_fallback': false, "
                "'vocab': [['<unk>', 0.0], ['a', -1.0], ['b', -1.0], ['ab', -2.0], ['abc', -2.5], ['c', -1.5], ['bc', -1.5], "
                "['aa', -2.0], ['aaa', -3.0], ['xy', -40.0]]}",
                false,
                {
                    WORD("xy", "9:0:2"),
                    WORD("xxy", "0:0:1 9:1:3"),
                    WORD("xyx", "9:0:2 0:2:3"),
                });
}

static void unigram_falls_back_to_bytes_with_the_range_of_the_run(void **state)
{
    (void)state;
    CHECK_MODEL("{'type': 'Unigram', "
                "'unk_id': 0, "
                "'byte_fallback': true, "
                "'vocab': [['<unk>', 0.0], ['a', -1.0], ['b', -1.0], ['ab', -2.0], ['abc', -2.5], ['c', -1.5], ['bc', -1.5], "
                "['aa', -2.0], ['aaa', -3.0], ['xy', -40.0], ['<0xC3>', -30.0], ['<0xA9>', -30.0], ['<0xF0>', -30.0], ['<0x9F>', "
                "-30.0], ['<0x98>', -30.0], ['<0x80>', -30.0]]}",
                false,
                {
                    WORD("a\xc3\xa9"
                         "b",
                         "1:0:1 10:1:3 11:1:3 2:3:4"),
                    WORD("\xf0\x9f\x98\x80", "12:0:4 13:0:4 14:0:4 15:0:4"),
                    WORD("\xc3\xa9\xc3\xa9", "10:0:4 11:0:4 10:0:4 11:0:4"),
                    WORD("\xc3\xa9\xe4\xb8\xad", "0:0:5"),
                });
}

static void unigram_takes_the_later_of_two_equal_spellings(void **state)
{
    (void)state;
    CHECK_MODEL("{'type': 'Unigram', "
                "'unk_id': 0, "
                "'byte_fallback': false, "
                "'vocab': [['<unk>', 0.0], ['a', -1.0], ['b', -1.0], ['ab', -2.0], ['abc', -2.5], ['c', -1.5], ['bc', -1.5], "
                "['aa', -2.0], ['aaa', -3.0], ['xy', -40.0], ['ab', -0.5]]}",
                false,
                {
                    WORD("ab", "10:0:2"),
                    WORD("aab", "1:0:1 10:1:3"),
                });
}

static void unigram_needs_no_unknown_token_for_known_text(void **state)
{
    (void)state;
    CHECK_MODEL("{'type': 'Unigram', "
                "'byte_fallback': false, "
                "'vocab': [['<unk>', 0.0], ['a', -1.0], ['b', -1.0], ['ab', -2.0], ['abc', -2.5], ['c', -1.5], ['bc', -1.5], "
                "['aa', -2.0], ['aaa', -3.0], ['xy', -40.0]]}",
                false,
                {
                    WORD("ab", "3:0:2"),
                    WORD("abcaaa", "4:0:3 8:3:6"),
                });
}

static void unigram_without_unknown_token_fails_only_where_it_is_needed(void **state)
{
    (void)state;
    lattice_error err;
    lt_subword_scratch *scratch;
    lt_pieces pieces = { .mem = &lt_malloc_allocator };
    lt_subword *model = open_model("{'type': 'Unigram', 'vocab': [['a', -1.0], ['a\\u2603', -1.0]]}", false);
    assert_ok_err(lt_subword_scratch_create(model, &scratch, &err), &err);
    assert_ok_err(lt_subword_encode(model, scratch, (const uint8_t *)"aa\xe2\x98\x83", 5, &pieces, &err), &err);
    assert_int_equal(pieces.n, 2);
    assert_int_equal(lt_subword_encode(model, scratch, (const uint8_t *)"b", 1, &pieces, &err), LATTICE_ERR_FORMAT);
    assert_non_null(strstr(err.message, "unk_id"));
    free(pieces.data);
    lt_subword_scratch_free(scratch);
    lt_subword_free(model);
}

static void unigram_of_a_long_text_needs_a_small_table(void **state)
{
    (void)state;
    /* A megabyte of words: where no token crosses, what is known is written out, and the table never spans the text. */
    lattice_error err;
    lt_subword_scratch *scratch;
    lt_pieces pieces = { .mem = &lt_malloc_allocator };
    lt_subword *model = open_model(
        "{'type': 'Unigram', 'unk_id': 0, 'vocab': [['?', 0.0], ['a', -1.0], ['b', -1.0], ['ab', -1.5], ['c', -2.0]]}", false);
    size_t size = 3u << 18;
    char *text = malloc(size);
    for (size_t i = 0; i < size; i++) text[i] = "abc"[i % 3];
    assert_ok_err(lt_subword_scratch_create(model, &scratch, &err), &err);
    assert_ok_err(lt_subword_encode(model, scratch, (const uint8_t *)text, size - 1, &pieces, &err), &err);
    assert_int_equal(pieces.n, 2 * (size / 3) - 1);
    for (size_t i = 0; i < pieces.n; i++) {
        assert_int_equal(pieces.data[i].id, i % 2 == 0 ? 3 : 4);
        assert_int_equal(pieces.data[i].start, i / 2 * 3 + i % 2 * 2);
    }
    assert_true(scratch->nodes_capacity < 32768);
    assert_true(scratch->steps <= 4 * size);
    free(text);
    free(pieces.data);
    lt_subword_scratch_free(scratch);
    lt_subword_free(model);
}

static void unigram_joins_an_unknown_run_longer_than_the_table(void **state)
{
    (void)state;
    lattice_error err;
    lt_subword_scratch *scratch;
    lt_pieces pieces = { .mem = &lt_malloc_allocator };
    lt_subword *model = open_model("{'type': 'Unigram', 'unk_id': 0, 'vocab': [['?', 0.0], ['a', -1.0]]}", false);
    char text[20000];
    memset(text, 'x', sizeof text);
    text[0] = text[sizeof text - 1] = 'a';
    assert_ok_err(lt_subword_scratch_create(model, &scratch, &err), &err);
    assert_ok_err(lt_subword_encode(model, scratch, (const uint8_t *)text, sizeof text, &pieces, &err), &err);
    assert_int_equal(pieces.n, 3);
    assert_int_equal(pieces.data[1].id, 0);
    assert_int_equal(pieces.data[1].start, 1);
    assert_int_equal(pieces.data[1].end, sizeof text - 1);
    free(pieces.data);
    lt_subword_scratch_free(scratch);
    lt_subword_free(model);
}

static void unigram_refuses_malformed_models(void **state)
{
    (void)state;
    refuse_model("{'type': 'Unigram', 'unk_id': 0}", LATTICE_ERR_FORMAT, "no 'vocab'");
    refuse_model("{'type': 'Unigram', 'unk_id': 2, 'vocab': [['a', 0.0], ['b', 0.0]]}", LATTICE_ERR_FORMAT, "unk_id 2");
    refuse_model("{'type': 'Unigram', 'unk_id': -1, 'vocab': [['a', 0.0]]}", LATTICE_ERR_FORMAT, "");
    refuse_model("{'type': 'Unigram', 'unk_id': 0, 'vocab': []}", LATTICE_ERR_FORMAT, "unk_id 0");
    refuse_model("{'type': 'Unigram', 'vocab': [['a']]}", LATTICE_ERR_FORMAT, "no score");
    refuse_model("{'type': 'Unigram', 'vocab': [[]]}", LATTICE_ERR_FORMAT, "token 0");
    refuse_model("{'type': 'Unigram', 'vocab': [['a', 0.0, 1]]}", LATTICE_ERR_FORMAT, "token 0");
    refuse_model("{'type': 'Unigram', 'vocab': [[1, 'a']]}", LATTICE_ERR_FORMAT, "");
    refuse_model("{'type': 'Unigram', 'vocab': [['a', NaN]]}", LATTICE_ERR_FORMAT, "");
    refuse_model("{'type': 'Unigram', 'vocab': [['a', 1e999]]}", LATTICE_ERR_FORMAT, "");
    refuse_model("{'type': 'Unigram', 'vocab': {'a': 1}}", LATTICE_ERR_FORMAT, "an object, not a list");
}

static void unigram_reports_every_failed_allocation(void **state)
{
    (void)state;
    check_allocation_failures(
        "{'type': 'Unigram', 'unk_id': 0, 'byte_fallback': true, 'vocab': [['?', 0.0], ['a', -1.0], ['ab', -1.0]]}", false,
        "abaxxa");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(unigram_of_xlm_roberta_equals_huggingface),
        cmocka_unit_test(unigram_breaks_ties_for_the_earlier_start),
        cmocka_unit_test(unigram_joins_neighbouring_unknown_characters),
        cmocka_unit_test(unigram_weighs_an_unknown_character_at_the_worst_score_less_ten),
        cmocka_unit_test(unigram_falls_back_to_bytes_with_the_range_of_the_run),
        cmocka_unit_test(unigram_takes_the_later_of_two_equal_spellings),
        cmocka_unit_test(unigram_needs_no_unknown_token_for_known_text),
        cmocka_unit_test(unigram_without_unknown_token_fails_only_where_it_is_needed),
        cmocka_unit_test(unigram_of_a_long_text_needs_a_small_table),
        cmocka_unit_test(unigram_joins_an_unknown_run_longer_than_the_table),
        cmocka_unit_test(unigram_refuses_malformed_models),
        cmocka_unit_test(unigram_reports_every_failed_allocation),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
