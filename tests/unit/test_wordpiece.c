/* WordPiece. Golden values from Hugging Face tokenizers 0.23.3. */
#include "subword_support.h"

static void wordpiece_takes_the_longest_token_each_time(void **state)
{
    (void)state;
    CHECK_FIXTURE(FIXTURE("bert-cls/tokenizer.json"), false,
                  {
                      WORD("the", "401:0:3"),
                      WORD("embedding", "785:0:2 266:2:3 412:3:5 256:5:6 413:6:9"),
                      WORD("unbelievable", "547:0:2 266:2:3 388:3:5 1029:5:7 258:7:8 607:8:12"),
                      WORD("na\xc3\xafve", "1:0:6"),
                      WORD("\xe4\xb8\xad\xe6\x96\x87", "1:0:6"),
                      WORD("a", "43:0:1"),
                      WORD("zzzzqqqq", "68:0:1 270:1:2 270:2:3 270:3:4 269:4:5 269:5:6 269:6:7 269:7:8"),
                      WORD("hello\x00x", "1:0:7"),
                      WORD("##s", "251:0:3"),
                      WORD("playing", "887:0:2 590:2:4 413:4:7"),
                      WORD("\xf0\x9f\x98\x80", "1:0:4"),
                      WORD("wor\xf0\x9f\x98\x80ld", "1:0:9"),
                  });
}

static const char small[] =
    "{'type': 'WordPiece', "
    "'unk_token': '[UNK]', "
    "'continuing_subword_prefix': '##', "
    "'max_input_chars_per_word': 5, "
    "'vocab': {'[UNK]': 0, 'a': 1, 'ab': 2, '##c': 3, '##cd': 4, '##d': 7, '##': 9, '\xc3\xa9': 10, '##\xc3\xa9': 11}}";

static void wordpiece_counts_characters_against_its_limit(void **state)
{
    (void)state;
    CHECK_MODEL(small, false,
                {
                    WORD("abcdd", "2:0:2 4:2:4 7:4:5"),
                    WORD("abcddd", "0:0:6"),
                    WORD("\xc3\xa9\xc3\xa9\xc3\xa9\xc3\xa9\xc3\xa9", "10:0:2 11:2:4 11:4:6 11:6:8 11:8:10"),
                    WORD("\xc3\xa9\xc3\xa9\xc3\xa9\xc3\xa9\xc3\xa9\xc3\xa9", "0:0:12"),
                });
}

static void wordpiece_makes_a_word_with_an_unmatched_rest_one_unknown(void **state)
{
    (void)state;
    CHECK_MODEL(small, false,
                {
                    WORD("a", "1:0:1"),
                    WORD("ab", "2:0:2"),
                    WORD("abc", "2:0:2 3:2:3"),
                    WORD("abcd", "2:0:2 4:2:4"),
                    WORD("abcde", "0:0:5"),
                    WORD("b", "0:0:1"),
                    WORD("\xc3\xa9\xc3\xa9", "10:0:2 11:2:4"),
                    WORD("a##", "0:0:3"),
                    WORD("##c", "3:0:3"),
                    WORD("##", "9:0:2"),
                });
}

static void wordpiece_works_without_a_prefix(void **state)
{
    (void)state;
    CHECK_MODEL(
        "{'type': 'WordPiece', "
        "'unk_token': '[UNK]', "
        "'continuing_subword_prefix': '', "
        "'max_input_chars_per_word': 5, "
        "'vocab': {'[UNK]': 0, 'a': 1, 'ab': 2, '##c': 3, '##cd': 4, '##d': 7, '##': 9, '\xc3\xa9': 10, '##\xc3\xa9': 11}}",
        false,
        {
            WORD("aab", "1:0:1 2:1:3"),
            WORD("abab", "2:0:2 2:2:4"),
            WORD("a\xc3\xa9", "1:0:1 10:1:3"),
        });
}

static void wordpiece_never_reads_past_the_longest_token(void **state)
{
    (void)state;
    /* A token that is longer than any word asked for is no match for its beginning. */
    CHECK_MODEL(
        "{'type': 'WordPiece', 'unk_token': '[UNK]', 'continuing_subword_prefix': '##', 'max_input_chars_per_word': 100,"
        "'vocab': {'[UNK]': 0, 'abcdefghijklmnopqrstuvwxyz': 1, 'a': 2, '##b': 3}}",
        false,
        { WORD("ab", "2:0:1 3:1:2"), WORD("abcdefghijklmnopqrstuvwxy", "0:0:25"), WORD("abcdefghijklmnopqrstuvwxyz", "1:0:26") });
}

static void wordpiece_reads_vocab_txt_by_line(void **state)
{
    (void)state;
    static const char text[] = "[PAD]\n[UNK]\r\na\r##b\n\na\n  c \nd";
    lattice_error err;
    lt_subword *model;
    uint32_t id;
    assert_ok_err(lt_subword_read_vocab_txt(&lt_malloc_allocator, "vocab.txt", text, sizeof text - 1, &model, &err), &err);
    assert_ok_err(lt_subword_prepare(model, false, &err), &err);
    assert_string_equal(lt_subword_kind(model), "WordPiece");
    assert_int_equal(lt_subword_size(model), 8);
    assert_true(lt_subword_find(model, LT_STR("a"), &id));
    assert_int_equal(id, 5); /* the later of two */
    assert_true(lt_subword_find(model, LT_STR("  c "), &id));
    assert_int_equal(id, 6);
    assert_true(lt_subword_find(model, LT_STR("d"), &id));
    assert_int_equal(id, 7);
    assert_true(lt_str_is(lt_subword_token(model, 2), "a"));
    check_words(model, (const word_case[]){ WORD("ab", "5:0:1 3:1:2"), WORD("x", "1:0:1") }, 2);
    lt_subword_free(model);
}

static void wordpiece_without_unknown_token_fails_only_where_it_is_needed(void **state)
{
    (void)state;
    lattice_error err;
    lt_subword_scratch *scratch;
    lt_pieces pieces = { .mem = &lt_malloc_allocator };
    lt_subword *model = open_model("{'type': 'WordPiece', 'unk_token': '[NIL]', 'continuing_subword_prefix': '##',"
                                   "'max_input_chars_per_word': 100, 'vocab': {'a': 0}}",
                                   false);
    assert_ok_err(lt_subword_scratch_create(model, &scratch, &err), &err);
    assert_ok_err(lt_subword_encode(model, scratch, (const uint8_t *)"a", 1, &pieces, &err), &err);
    assert_int_equal(lt_subword_encode(model, scratch, (const uint8_t *)"b", 1, &pieces, &err), LATTICE_ERR_FORMAT);
    assert_non_null(strstr(err.message, "[NIL]"));
    free(pieces.data);
    lt_subword_scratch_free(scratch);
    lt_subword_free(model);
}

static void wordpiece_refuses_malformed_models(void **state)
{
    (void)state;
    refuse_model("{'type': 'WordPiece', 'continuing_subword_prefix': '##', 'max_input_chars_per_word': 100, 'vocab': {}}",
                 LATTICE_ERR_FORMAT, "unk_token");
    refuse_model("{'type': 'WordPiece', 'unk_token': '[UNK]', 'max_input_chars_per_word': 100, 'vocab': {}}", LATTICE_ERR_FORMAT,
                 "continuing_subword_prefix");
    refuse_model("{'type': 'WordPiece', 'unk_token': '[UNK]', 'continuing_subword_prefix': '##', 'vocab': {}}",
                 LATTICE_ERR_FORMAT, "max_input_chars_per_word");
    refuse_model("{'type': 'WordPiece', 'unk_token': '[UNK]', 'continuing_subword_prefix': '##', 'max_input_chars_per_word': -1}",
                 LATTICE_ERR_FORMAT, "");
    refuse_model(
        "{'type': 'WordPiece', 'unk_token': '[UNK]', 'continuing_subword_prefix': '##', 'max_input_chars_per_word': 100}",
        LATTICE_ERR_FORMAT, "no 'vocab'");
    refuse_model("{'type': 'WordPiece', 'vocab': [['a', 1.0]]}", LATTICE_ERR_FORMAT, "a list, not an object");
    refuse_model("{'type': 'WordPiece', 'vocab': {'a': 1, 'b': 1}}", LATTICE_ERR_FORMAT, "'a' and 'b'");
    refuse_model("{'type': 'WordPiece', 'vocab': {'a': 16777216}}", LATTICE_ERR_FORMAT, "16777216");
    refuse_model("{'type': 'WordPiece', 'vocab': {'a': -1}}", LATTICE_ERR_FORMAT, "");
    refuse_model("{'type': 'WordPiece', 'vocab': {'a': '1'}}", LATTICE_ERR_FORMAT, "");
    refuse_model("{'type': 'WordPiece', 'vocab': 7}", LATTICE_ERR_FORMAT, "vocab");
    refuse_model("{'type': 'WordLevel', 'vocab': {}}", LATTICE_ERR_UNSUPPORTED, "WordLevel");
    refuse_model("[]", LATTICE_ERR_FORMAT, "not an object");
    refuse_model("{}", LATTICE_ERR_FORMAT, "no 'vocab'");
}

static void wordpiece_reports_every_failed_allocation(void **state)
{
    (void)state;
    check_allocation_failures("{'type': 'WordPiece', 'unk_token': '[UNK]', 'continuing_subword_prefix': '##',"
                              "'max_input_chars_per_word': 100, 'vocab': {'[UNK]': 0, 'a': 1, '##b': 2}}",
                              false, "abb");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(wordpiece_takes_the_longest_token_each_time),
        cmocka_unit_test(wordpiece_counts_characters_against_its_limit),
        cmocka_unit_test(wordpiece_makes_a_word_with_an_unmatched_rest_one_unknown),
        cmocka_unit_test(wordpiece_works_without_a_prefix),
        cmocka_unit_test(wordpiece_never_reads_past_the_longest_token),
        cmocka_unit_test(wordpiece_reads_vocab_txt_by_line),
        cmocka_unit_test(wordpiece_without_unknown_token_fails_only_where_it_is_needed),
        cmocka_unit_test(wordpiece_refuses_malformed_models),
        cmocka_unit_test(wordpiece_reports_every_failed_allocation),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
