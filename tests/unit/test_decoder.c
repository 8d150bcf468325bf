/* Decoders. Golden values from Hugging Face tokenizers 0.23.3. */
#include "support.h"

#include "text/decoder.h"

static lattice_status read_decoder(const lattice_allocator *mem, const char *text, lt_decoder **decoder, lattice_error *err)
{
    lt_json json;
    char *copy = strdup(text);
    for (char *c = copy; *c != '\0'; c++) *c = *c == '\'' ? '"' : *c;
    *decoder = NULL;
    lt_json_open(&json, mem, "tokenizer.json", copy, strlen(copy), err);
    lattice_status status = lt_decoder_read(mem, &json, decoder, err);
    lt_json_close(&json);
    free(copy);
    return status;
}

static void check(const char *json, const char *expected, const char *const *spellings, size_t n)
{
    lattice_error err;
    lt_decoder *decoder;
    lt_str tokens[32];
    lt_buf out;
    lt_buf_init(&out, &lt_malloc_allocator);
    for (size_t i = 0; i < n; i++) tokens[i] = lt_str_of(spellings[i]);
    assert_ok_err(read_decoder(&lt_malloc_allocator, json, &decoder, &err), &err);
    lt_buf_append_z(&out, ">"); /* what is in the buffer stays */
    assert_ok_err(lt_decoder_decode(decoder, tokens, n, &out, &err), &err);
    assert_string_equal(out.data + 1, expected);
    lt_buf_free(&out);
    lt_decoder_free(decoder);
}

/* JSON with ' for ", the text, the spellings. */
#define CHECK(json, expected, ...)                                                                                               \
    check(json, expected, (const char *const[]){ __VA_ARGS__ }, sizeof((const char *const[]){ __VA_ARGS__ }) / sizeof(char *))

static void byte_level_undoes_the_alphabet_and_repairs(void **state)
{
    (void)state;
    CHECK("{'type': 'ByteLevel', 'add_prefix_space': true, 'trim_offsets': true}", "Hello world", "Hello", "\xc4\xa0wor", "ld");
    CHECK("{'type': 'ByteLevel', 'add_prefix_space': true, 'trim_offsets': true}", "\xf0\x9f\x98\x80", "\xc3\xb0", "\xc5\x81",
          "\xc4\xba", "\xc4\xa2");
    CHECK("{'type': 'ByteLevel', 'add_prefix_space': true, 'trim_offsets': true}",
          "\xef\xbf\xbd"
          "a",
          "\xc3\xb0", "\xc5\x81", "a");
    CHECK("{'type': 'ByteLevel', 'add_prefix_space': true, 'trim_offsets': true}", " a\xc3\xa9x\xe4\xb8\xad\xc2\xad\xef\xbf\xbd",
          "\xc4\xa0"
          "a\xc3\x83",
          "\xc2\xa9", "x\xe4\xb8\xad", "\xc2\xad", "\xc3\xb0");
    CHECK("{'type': 'ByteLevel', 'add_prefix_space': true, 'trim_offsets': true}", "<|im_end|>\x0a", "<|im_end|>", "\xc4\x8a");
}

static void wordpiece_joins_continuations_and_cleans_up(void **state)
{
    (void)state;
    CHECK("{'type': 'WordPiece', 'prefix': '##', 'cleanup': true}", "a.b do not  don'tn't ''s'm##x", "a", ".", "##b", "do", "not",
          " do not", "n't", "'", "'s", "##'m", "####x", "##");
    CHECK("{'type': 'WordPiece', 'prefix': '##', 'cleanup': false}", "##uelo Ara\xc3\xbajo Noguera !", "##uelo", "Ara",
          "##\xc3\xbaj", "##o", "No", "##guera", "!");
    CHECK("{'type': 'WordPiece', 'prefix': '', 'cleanup': false}", "ab", "a", "b");
    CHECK("{'type': 'WordPiece', 'prefix': '##', 'cleanup': true}", "i ' m here, they're here\?", "i", "'", "m", "here", ",",
          "they", "'re", "here", "\?");
}

static void metaspace_gives_spaces_back(void **state)
{
    (void)state;
    CHECK("{'type': 'Metaspace', 'replacement': '\xe2\x96\x81', 'prepend_scheme': 'always'}", "ab c",
          "\xe2\x96\x81"
          "a\xe2\x96\x81"
          "b",
          "\xe2\x96\x81"
          "c");
    CHECK("{'type': 'Metaspace', 'replacement': '\xe2\x96\x81', 'prepend_scheme': 'never'}", " a b c",
          "\xe2\x96\x81"
          "a\xe2\x96\x81"
          "b",
          "\xe2\x96\x81"
          "c");
    CHECK("{'type': 'Metaspace', 'replacement': '\xe2\x96\x81', 'prepend_scheme': 'first'}", "ab c",
          "\xe2\x96\x81"
          "a\xe2\x96\x81"
          "b",
          "\xe2\x96\x81"
          "c");
    CHECK("{'type': 'Metaspace', 'replacement': '\xe2\x96\x81', 'add_prefix_space': true}", "a c",
          "\xe2\x96\x81"
          "a",
          "\xe2\x96\x81"
          "c");
    CHECK("{'type': 'Metaspace', 'replacement': '_', 'add_prefix_space': false, 'prepend_scheme': 'never'}", " a c", "_a", "_c");
}

static void bpe_decoder_turns_suffixes_into_spaces(void **state)
{
    (void)state;
    CHECK("{'type': 'BPEDecoder', 'suffix': '</w>'}", "a b c d", "a</w>", "b</w>c</w>", "d</w>");
    CHECK("{'type': 'BPEDecoder', 'suffix': ''}", " a b cd", "ab", "cd");
}

static void replace_takes_content_literally(void **state)
{
    (void)state;
    CHECK("{'type': 'Replace', 'pattern': {'String': 'aa'}, 'content': 'b'}", "bbax", "aaaaa", "x");
    CHECK("{'type': 'Replace', 'pattern': {'String': ''}, 'content': '-'}", "-a-b--\xc3\xa9-", "ab", "\xc3\xa9");
    CHECK("{'type': 'Replace', 'pattern': {'Regex': '(l)(e)'}, 'content': '$1 $2'}", "$1 $2x$1 $2y", "le", "xley");
    CHECK("{'type': 'Replace', 'pattern': {'Regex': 'x*'}, 'content': '-'}", "-a-b-", "axb");
    CHECK("{'type': 'Replace', 'pattern': {'Regex': '(\?<=a)b'}, 'content': '-'}", "a-b", "ab", "b");
    CHECK("{'type': 'Replace', 'pattern': {'Regex': '\\\\s+'}, 'content': ' '}", "a b", "a \x0a b");
}

static void byte_fallback_makes_text_of_valid_runs_only(void **state)
{
    (void)state;
    CHECK("{'type': 'ByteFallback'}",
          "\xe4\xb8\xad"
          "a\xef\xbf\xbd\xef\xbf\xbd<0xZZ>\x01",
          "<0xE4>", "<0xb8>", "<0xAD>", "a", "<0xE4>", "<0xb8>", "<0xZZ>", "<0x+1>");
    CHECK("{'type': 'ByteFallback'}", "\xef\xbf\xbd\xef\xbf\xbd", "<0x61>", "<0xFF>");
}

static void sequence_of_llama_decodes_as_a_whole(void **state)
{
    (void)state;
    CHECK("{'type': 'Sequence', 'decoders': [{'type': 'Replace', 'pattern': {'String': '\xe2\x96\x81'}, 'content': ' '}, "
          "{'type': 'ByteFallback'}, {'type': 'Fuse'}, {'type': 'Strip', 'content': ' ', 'start': 1, 'stop': 0}]}",
          " a\xef\xbf\xbd\xef\xbf\xbd b\xe4\xb8\xad",
          "\xe2\x96\x81\xe2\x96\x81"
          "a",
          "<0xE4>", "<0xB8>",
          "\xe2\x96\x81"
          "b",
          "<0xE4>", "<0xB8>", "<0xAD>");
    CHECK("{'type': 'Sequence', 'decoders': []}", "ab", "a", "b");
    CHECK("{'type': 'Sequence', 'decoders': [{'type': 'Sequence', 'decoders': [{'type': 'Fuse'}]}, {'type': 'Strip', 'content': "
          "'a', 'start': 1, 'stop': 0}]}",
          "ba", "a", "b", "a");
}

static void strip_takes_at_most_so_many(void **state)
{
    (void)state;
    CHECK("{'type': 'Strip', 'content': 'a', 'start': 2, 'stop': 0}", "abbb", "aaab", "ab", "b");
    CHECK("{'type': 'Strip', 'content': 'a', 'start': 0, 'stop': 1}", "bab", "baa", "b");
    CHECK("{'type': 'Strip', 'content': 'a', 'start': 1, 'stop': 1}", "ab", "aaba");
}

static void ctc_drops_repetitions_and_padding(void **state)
{
    (void)state;
    CHECK("{'type': 'CTC', 'pad_token': '<pad>', 'word_delimiter_token': '|', 'cleanup': true}", "h n'th", "<pad>", "h", "h", "|",
          "|", "n't", "<pad>h");
    CHECK("{'type': 'CTC', 'pad_token': '<pad>', 'word_delimiter_token': '|', 'cleanup': false}", "h|n'th", "<pad>", "h", "h",
          "|", "|", "n't", "<pad>h");
}

static void no_decoder_joins_by_spaces(void **state)
{
    (void)state;
    CHECK("null", "a b a", "a", "b", "a");
}

static void vocab_txt_decodes_as_wordpiece(void **state)
{
    (void)state;
    lattice_error err;
    lt_decoder *decoder;
    lt_buf out;
    const lt_str tokens[] = { LT_STR("hello"), LT_STR("##s"), LT_STR("!") };
    lt_buf_init(&out, &lt_malloc_allocator);
    assert_ok_err(lt_decoder_wordpiece(&lt_malloc_allocator, &decoder, &err), &err);
    assert_ok_err(lt_decoder_decode(decoder, tokens, 3, &out, &err), &err);
    assert_string_equal(out.data, "hellos!");
    lt_buf_free(&out);
    lt_decoder_free(decoder);
}

static void nul_is_a_character_of_a_token(void **state)
{
    (void)state;
    lattice_error err;
    lt_decoder *decoder;
    lt_buf out;
    const lt_str tokens[] = { LT_STR("a\0"), LT_STR("b") };
    lt_buf_init(&out, &lt_malloc_allocator);
    assert_ok_err(read_decoder(&lt_malloc_allocator, "{'type': 'Fuse'}", &decoder, &err), &err);
    assert_ok_err(lt_decoder_decode(decoder, tokens, 2, &out, &err), &err);
    assert_int_equal(out.len, 3);
    assert_memory_equal(out.data, "a\0b", 3);
    lt_buf_free(&out);
    lt_decoder_free(decoder);
}

static void refuse(const char *json, lattice_status expected, const char *part)
{
    lattice_error err = { 0 };
    lt_decoder *decoder;
    lattice_status status = read_decoder(&lt_malloc_allocator, json, &decoder, &err);
    if (status != expected || strstr(err.message, part) == NULL)
        fail_msg("%s\n  gives %s: '%s', not %s with '%s'", json, lattice_status_text(status), err.message,
                 lattice_status_text(expected), part);
}

static void malformed_decoders_are_refused(void **state)
{
    (void)state;
    refuse("[]", LATTICE_ERR_FORMAT, "not an object");
    refuse("{}", LATTICE_ERR_FORMAT, "no 'type'");
    refuse("{'type': 'Nothing'}", LATTICE_ERR_UNSUPPORTED, "'Nothing'");
    refuse("{'type': 'ByteLevel'}", LATTICE_ERR_FORMAT, "add_prefix_space");
    refuse("{'type': 'WordPiece', 'prefix': '##'}", LATTICE_ERR_FORMAT, "cleanup");
    refuse("{'type': 'WordPiece', 'cleanup': true}", LATTICE_ERR_FORMAT, "prefix");
    refuse("{'type': 'WordPiece', 'prefix': 7, 'cleanup': true}", LATTICE_ERR_FORMAT, "");
    refuse("{'type': 'Metaspace'}", LATTICE_ERR_FORMAT, "replacement");
    refuse("{'type': 'Metaspace', 'replacement': 'ab'}", LATTICE_ERR_FORMAT, "one character");
    refuse("{'type': 'Metaspace', 'replacement': ''}", LATTICE_ERR_FORMAT, "one character");
    refuse("{'type': 'Metaspace', 'replacement': '_', 'prepend_scheme': 'sometimes'}", LATTICE_ERR_FORMAT, "'sometimes'");
    refuse("{'type': 'Metaspace', 'replacement': '_', 'add_prefix_space': false}", LATTICE_ERR_FORMAT, "contradicts");
    refuse("{'type': 'BPEDecoder'}", LATTICE_ERR_FORMAT, "suffix");
    refuse("{'type': 'Strip', 'content': ' ', 'start': 1}", LATTICE_ERR_FORMAT, "stop");
    refuse("{'type': 'Strip', 'content': '  ', 'start': 1, 'stop': 0}", LATTICE_ERR_FORMAT, "one character");
    refuse("{'type': 'Strip', 'content': ' ', 'start': -1, 'stop': 0}", LATTICE_ERR_FORMAT, "");
    refuse("{'type': 'Replace', 'content': 'x'}", LATTICE_ERR_FORMAT, "pattern");
    refuse("{'type': 'Replace', 'pattern': {'String': 'x'}}", LATTICE_ERR_FORMAT, "content");
    refuse("{'type': 'Replace', 'pattern': 'x', 'content': 'x'}", LATTICE_ERR_FORMAT, "not an object");
    refuse("{'type': 'Replace', 'pattern': {}, 'content': 'x'}", LATTICE_ERR_FORMAT, "neither");
    refuse("{'type': 'Replace', 'pattern': {'Regex': '('}, 'content': 'x'}", LATTICE_ERR_FORMAT, "'('");
    refuse("{'type': 'CTC', 'pad_token': '<pad>'}", LATTICE_ERR_FORMAT, "word_delimiter_token");
    refuse("{'type': 'Sequence'}", LATTICE_ERR_FORMAT, "decoders");
    refuse("{'type': 'Sequence', 'decoders': [{'type': 'Fuse'}, 7]}", LATTICE_ERR_FORMAT, "not an object");
}

static void an_expression_that_backtracks_without_end_is_an_error(void **state)
{
    (void)state;
    lattice_error err;
    lt_decoder *decoder;
    lt_buf out;
    const lt_str token = LT_STR("aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa!");
    lt_buf_init(&out, &lt_malloc_allocator);
    assert_ok_err(read_decoder(&lt_malloc_allocator, "{'type': 'Replace', 'pattern': {'Regex': '(?:a|aa)+$'}, 'content': 'x'}",
                               &decoder, &err),
                  &err);
    assert_int_equal(lt_decoder_decode(decoder, &token, 1, &out, &err), LATTICE_ERR_FORMAT);
    assert_non_null(strstr(err.message, "match limit"));
    lt_buf_free(&out);
    lt_decoder_free(decoder);
}

static void every_failed_allocation_is_reported(void **state)
{
    (void)state;
    static const char *const all[] = {
        "{'type': 'ByteLevel', 'add_prefix_space': true, 'trim_offsets': true}",
        "{'type': 'WordPiece', 'prefix': '##', 'cleanup': true}",
        "{'type': 'CTC', 'pad_token': '<pad>', 'word_delimiter_token': '|', 'cleanup': true}",
        "{'type': 'Sequence', 'decoders': [{'type': 'Replace', 'pattern': {'Regex': 'a+'}, 'content': 'bb'}, {'type': "
        "'ByteFallback'},"
        " {'type': 'Fuse'}, {'type': 'Strip', 'content': ' ', 'start': 1, 'stop': 0}]}",
    };
    const lt_str tokens[] = { LT_STR("a long spelling that needs room ."), LT_STR("<0xE4>"), LT_STR("aaaa"), LT_STR("<0xE4>") };
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        for (long n = 1;; n++) {
            lt_test_allocator allocator = lt_test_allocator_failing_at(n);
            lattice_allocator mem = lt_test_allocator_hooks(&allocator);
            lattice_error err;
            lt_decoder *decoder;
            lt_buf out;
            lt_buf_init(&out, &mem);
            lattice_status status = read_decoder(&mem, all[i], &decoder, &err);
            if (status == LATTICE_OK) status = lt_decoder_decode(decoder, tokens, 4, &out, &err);
            lt_buf_free(&out);
            lt_decoder_free(decoder);
            assert_int_equal(lt_test_allocator_live(&allocator), 0);
            if (status == LATTICE_OK) break;
            assert_int_equal(status, LATTICE_ERR_NO_MEMORY);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(byte_level_undoes_the_alphabet_and_repairs),
        cmocka_unit_test(wordpiece_joins_continuations_and_cleans_up),
        cmocka_unit_test(metaspace_gives_spaces_back),
        cmocka_unit_test(bpe_decoder_turns_suffixes_into_spaces),
        cmocka_unit_test(replace_takes_content_literally),
        cmocka_unit_test(byte_fallback_makes_text_of_valid_runs_only),
        cmocka_unit_test(sequence_of_llama_decodes_as_a_whole),
        cmocka_unit_test(strip_takes_at_most_so_many),
        cmocka_unit_test(ctc_drops_repetitions_and_padding),
        cmocka_unit_test(no_decoder_joins_by_spaces),
        cmocka_unit_test(vocab_txt_decodes_as_wordpiece),
        cmocka_unit_test(nul_is_a_character_of_a_token),
        cmocka_unit_test(malformed_decoders_are_refused),
        cmocka_unit_test(an_expression_that_backtracks_without_end_is_an_error),
        cmocka_unit_test(every_failed_allocation_is_reported),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
