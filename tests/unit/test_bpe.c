/* Byte-pair encoding. Golden values from Hugging Face tokenizers 0.23.3. */
#include "subword_support.h"

#include "base/utf8.h"
#include "text/subword.h"

static void bpe_of_roberta_equals_huggingface(void **state)
{
    (void)state;
    CHECK_FIXTURE(
        FIXTURE("roberta-max/tokenizer.json"), true,
        {
            WORD(" the", "296:0:4"),
            WORD(" embedding", "293:0:2 1298:2:4 562:4:6 585:6:10"),
            WORD("unbelievable", "359:0:2 855:2:4 343:4:6 73:6:7 90:7:8 632:8:12"),
            WORD(" na\xc3\xafve", "294:0:2 69:2:3 132:3:4 112:4:5 366:5:7"),
            WORD("\xe4\xb8\xad\xe6\x96\x87", "165:0:1 121:1:2 260:2:3 167:3:4 249:4:5 234:5:6"),
            WORD("a", "69:0:1"),
            WORD("\x0a\x0a", "203:0:1 203:1:2"),
            WORD("    ", "262:0:4"),
            WORD("zzzzqqqq", "94:0:1 94:1:2 94:2:3 94:3:4 85:4:5 85:5:6 85:6:7 85:7:8"),
            WORD("hello\x00x", "277:0:2 80:2:3 335:3:5 193:5:6 92:6:7"),
            WORD("\xf0\x9f\x91\xa8\xe2\x80\x8d\xf0\x9f\x91\xa9", "1386:0:3 106:3:4 163:4:5 227:5:6 240:6:7 1386:7:10 107:10:11"),
            WORD(" internationalization", "305:0:3 873:3:7 432:7:12 285:12:14 498:14:16 432:16:21"),
            WORD("thethethethethethethethethethethethethethethethethethethethe",
                 "88:0:1 277:1:3 88:3:4 277:4:6 88:6:7 277:7:9 88:9:10 277:10:12 88:12:13 277:13:15 88:15:16 277:16:18 88:18:19 "
                 "277:19:21 88:21:22 277:22:24 88:24:25 277:25:27 88:27:28 277:28:30 88:30:31 277:31:33 88:33:34 277:34:36 "
                 "88:36:37 277:37:39 88:39:40 277:40:42 88:42:43 277:43:45 88:45:46 277:46:48 88:48:49 277:49:51 88:51:52 "
                 "277:52:54 88:54:55 277:55:57 88:57:58 277:58:60"),
        });
}

static void bpe_of_qwen3_equals_huggingface(void **state)
{
    (void)state;
    CHECK_FIXTURE(
        FIXTURE("qwen3-embedding/tokenizer.json"), true,
        {
            WORD(" the", "291:0:4"),
            WORD(" embedding", "289:0:2 1325:2:4 439:4:6 579:6:10"),
            WORD("unbelievable", "356:0:2 1237:2:4 339:4:6 68:6:7 85:7:8 631:8:12"),
            WORD(" na\xc3\xafve", "284:0:2 64:2:3 127:3:4 107:4:5 366:5:7"),
            WORD("\xe4\xb8\xad\xe6\x96\x87", "160:0:1 116:1:2 255:2:3 162:3:4 244:4:5 229:5:6"),
            WORD("a", "64:0:1"),
            WORD("\x0a\x0a", "198:0:1 198:1:2"),
            WORD("    ", "257:0:4"),
            WORD("zzzzqqqq", "89:0:1 89:1:2 89:2:3 89:3:4 80:4:5 80:5:6 80:6:7 80:7:8"),
            WORD("hello\x00x", "272:0:2 75:2:3 331:3:5 188:5:6 87:6:7"),
            WORD("\xf0\x9f\x91\xa8\xe2\x80\x8d\xf0\x9f\x91\xa9", "1424:0:3 101:3:4 1963:4:10 102:10:11"),
            WORD(" internationalization", "300:0:3 879:3:7 429:7:12 280:12:14 493:14:16 429:16:21"),
            WORD("thethethethethethethethethethethethethethethethethethethethe",
                 "1813:0:3 1813:3:6 1813:6:9 1813:9:12 1813:12:15 1813:15:18 1813:18:21 1813:21:24 1813:24:27 1813:27:30 "
                 "1813:30:33 1813:33:36 1813:36:39 1813:39:42 1813:42:45 1813:45:48 1813:48:51 1813:51:54 1813:54:57 1813:57:60"),
        });
}

static void bpe_merges_the_lowest_rank_first_and_the_leftmost_on_a_tie(void **state)
{
    (void)state;
    CHECK_MODEL("{'type': 'BPE', "
                "'unk_token': '<unk>', "
                "'vocab': {'<unk>': 0, 'a': 1, 'b': 2, 'c': 3, 'ab': 4, 'bc': 5, 'abc': 6, 'aa': 7, 'aaa': 8, 'cab': 9}, "
                "'merges': [['b', 'c'], ['a', 'b'], ['a', 'a'], ['a', 'bc'], ['aa', 'a']]}",
                false,
                {
                    WORD("abc", "6:0:3"),
                    WORD("aaaa", "7:0:2 7:2:4"),
                    WORD("aaaaa", "7:0:2 8:2:5"),
                    WORD("xaxx", "0:0:1 1:1:2 0:2:3 0:3:4"),
                    WORD("cab", "3:0:1 4:1:3"),
                    WORD("abab", "4:0:2 4:2:4"),
                    WORD("xx", "0:0:1 0:1:2"),
                    WORD("bcbc", "5:0:2 5:2:4"),
                    WORD("aabc", "7:0:2 5:2:4"),
                });
}

static void bpe_joins_unknown_characters_if_fuse_unk(void **state)
{
    (void)state;
    CHECK_MODEL("{'type': 'BPE', "
                "'unk_token': '<unk>', "
                "'vocab': {'<unk>': 0, 'a': 1, 'b': 2, 'c': 3, 'ab': 4, 'bc': 5, 'abc': 6, 'aa': 7, 'aaa': 8, 'cab': 9}, "
                "'merges': [['b', 'c'], ['a', 'b'], ['a', 'a'], ['a', 'bc'], ['aa', 'a']], "
                "'fuse_unk': true}",
                false,
                {
                    WORD("xaxx", "0:0:1 1:1:2 0:2:4"),
                    WORD("xx", "0:0:2"),
                    WORD("axxxb", "1:0:1 0:1:4 2:4:5"),
                });
}

static void bpe_drops_unknown_characters_without_an_unknown_token(void **state)
{
    (void)state;
    CHECK_MODEL("{'type': 'BPE', "
                "'vocab': {'<unk>': 0, 'a': 1, 'b': 2, 'c': 3, 'ab': 4, 'bc': 5, 'abc': 6, 'aa': 7, 'aaa': 8, 'cab': 9}, "
                "'merges': [['b', 'c'], ['a', 'b'], ['a', 'a'], ['a', 'bc'], ['aa', 'a']]}",
                false,
                {
                    WORD("xaxx", "1:0:1"),
                    WORD("xx", ""),
                    WORD("axb", "4:0:2"),
                });
}

static void bpe_takes_a_word_that_is_a_token_as_it_is_if_ignore_merges(void **state)
{
    (void)state;
    CHECK_MODEL("{'type': 'BPE', "
                "'unk_token': '<unk>', "
                "'vocab': {'<unk>': 0, 'a': 1, 'b': 2, 'c': 3, 'ab': 4, 'bc': 5, 'abc': 6, 'aa': 7, 'aaa': 8, 'cab': 9}, "
                "'merges': [['b', 'c'], ['a', 'b'], ['a', 'a'], ['a', 'bc'], ['aa', 'a']], "
                "'ignore_merges': true}",
                false,
                {
                    WORD("cab", "9:0:3"),
                    WORD("abc", "6:0:3"),
                    WORD("abab", "4:0:2 4:2:4"),
                    WORD("cabc", "3:0:1 6:1:4"),
                });
}

static void bpe_gives_a_pair_listed_twice_its_later_rank(void **state)
{
    (void)state;
    CHECK_MODEL("{'type': 'BPE', "
                "'unk_token': '<unk>', "
                "'vocab': {'<unk>': 0, 'a': 1, 'b': 2, 'c': 3, 'ab': 4, 'bc': 5, 'abc': 6, 'aa': 7, 'aaa': 8, 'cab': 9}, "
                "'merges': [['b', 'c'], ['a', 'b'], ['a', 'a'], ['a', 'bc'], ['aa', 'a'], ['b', 'c']]}",
                false,
                {
                    WORD("abc", "4:0:2 3:2:3"),
                    WORD("aabc", "1:0:1 4:1:3 3:3:4"),
                    WORD("bcbc", "5:0:2 5:2:4"),
                });
}

static void bpe_reads_merges_written_as_strings(void **state)
{
    (void)state;
    CHECK_MODEL("{'type': 'BPE', "
                "'unk_token': '<unk>', "
                "'vocab': {'<unk>': 0, 'a': 1, 'b': 2, 'c': 3, 'ab': 4, 'bc': 5, 'abc': 6, 'aa': 7, 'aaa': 8, 'cab': 9}, "
                "'merges': ['b c', 'a b', 'a a', 'a bc', 'aa a']}",
                false,
                {
                    WORD("abc", "6:0:3"),
                    WORD("aaaa", "7:0:2 7:2:4"),
                    WORD("aaaaa", "7:0:2 8:2:5"),
                    WORD("xaxx", "0:0:1 1:1:2 0:2:3 0:3:4"),
                    WORD("cab", "3:0:1 4:1:3"),
                    WORD("abab", "4:0:2 4:2:4"),
                    WORD("xx", "0:0:1 0:1:2"),
                    WORD("bcbc", "5:0:2 5:2:4"),
                    WORD("aabc", "7:0:2 5:2:4"),
                });
}

/* The first word finds nothing to stand on: an empty list without memory of its own. Found by fuzzing. */
static void bpe_without_an_unknown_token_gives_nothing_for_unlisted_units(void **state)
{
    (void)state;
    CHECK_MODEL("{'type': 'BPE', 'vocab': {'a': 0, 'b': 1, 'ab': 2}, 'merges': [['a', 'b']]}", false,
                {
                    WORD("x", ""), WORD("xx", ""), WORD("xab", "2:0:2"), /* Hugging Face counts what it drops in no range */
                });
}

static void bpe_falls_back_to_bytes_with_the_range_of_their_character(void **state)
{
    (void)state;
    CHECK_MODEL("{'type': 'BPE', "
                "'unk_token': '<unk>', "
                "'vocab': {'<unk>': 0, 'a': 1, 'b': 2, 'c': 3, 'ab': 4, 'bc': 5, 'abc': 6, 'aa': 7, 'aaa': 8, 'cab': 9, "
                "'<0xC3>': 10, '<0xA9>': 11, '<0xE4>': 12, '<0xB8>': 13, '<0xAD>': 14, '<0xF0>': 15, '<0x9F>': 16, '<0x98>': 17, "
                "'<0x80>': 18, '<0x78>': 19}, "
                "'merges': [['b', 'c'], ['a', 'b'], ['a', 'a'], ['a', 'bc'], ['aa', 'a']], "
                "'byte_fallback': true}",
                false,
                {
                    WORD("ax\xc3\xa9", "1:0:1 19:1:2 10:2:4 11:2:4"),
                    WORD("\xe4\xb8\xad"
                         "a",
                         "12:0:3 13:0:3 14:0:3 1:3:4"),
                    WORD("\xf0\x9f\x98\x80", "15:0:4 16:0:4 17:0:4 18:0:4"),
                    WORD("a\xc3\xa9\xc3\xa9", "1:0:1 10:1:3 11:1:3 10:3:5 11:3:5"),
                });
}

static void bpe_falls_back_only_where_all_bytes_are_tokens(void **state)
{
    (void)state;
    CHECK_MODEL(
        "{'type': 'BPE', "
        "'unk_token': '<unk>', "
        "'vocab': {'<unk>': 0, 'a': 1, 'b': 2, 'c': 3, 'ab': 4, 'bc': 5, 'abc': 6, 'aa': 7, 'aaa': 8, 'cab': 9, '<0xC3>': 10, "
        "'<0xE4>': 12, '<0xB8>': 13, '<0xAD>': 14, '<0xF0>': 15, '<0x9F>': 16, '<0x98>': 17, '<0x80>': 18, '<0x78>': 19}, "
        "'merges': [['b', 'c'], ['a', 'b'], ['a', 'a'], ['a', 'bc'], ['aa', 'a']], "
        "'byte_fallback': true, "
        "'fuse_unk': true}",
        false,
        {
            WORD("a\xc3\xa9x", "1:0:1 19:1:3 0:1:4"),
            WORD("x\xc3\xa9\xc3\xa9", "19:0:1 0:1:5"),
            WORD("\xc3\xa9x\xe4\xb8\xad", "19:0:2 12:0:2 13:2:3 14:3:6 0:3:6"),
        });
}

static void bpe_uses_prefix_and_suffix_of_units(void **state)
{
    (void)state;
    CHECK_MODEL("{'type': 'BPE', "
                "'unk_token': '<unk>', "
                "'vocab': {'<unk>': 0, 'a': 1, '##b': 2, '##c</w>': 3, 'ab': 4, 'abc</w>': 5, '##b</w>': 6, 'ab</w>': 7, "
                "'##bc</w>': 8, 'a</w>': 9}, "
                "'merges': ['#version: 0.2', 'a ##b', '##b ##c</w>', 'ab ##c</w>', 'a ##b</w>'], "
                "'continuing_subword_prefix': '##', "
                "'end_of_word_suffix': '</w>'}",
                false,
                {
                    WORD("abc", "5:0:3"),
                    WORD("ab", "7:0:2"),
                    WORD("a", "9:0:1"),
                    WORD("abb", "4:0:2 6:2:3"),
                    WORD("xbc", "0:0:1 8:1:3"),
                    WORD("bc", "0:0:1 3:1:2"),
                    WORD("abcabc", "4:0:2 0:2:3 0:3:4 8:4:6"),
                });
}

static void bpe_reads_its_members_in_any_order(void **state)
{
    (void)state;
    CHECK_MODEL("{'merges': ['a ##b', 'ab ##c'], 'vocab': {'a': 0, '##b': 1, '##c': 2, 'ab': 3, 'abc': 4},"
                "'continuing_subword_prefix': '##', 'type': 'BPE'}",
                false, { WORD("abc", "4:0:3"), WORD("ab", "3:0:2") });
    /* The prefix, which decides what a merge makes, after the merges. */
    CHECK_MODEL("{'type': 'BPE', 'vocab': {'a': 0, '##b': 1, 'a##b': 2, 'ab': 3}, 'merges': [['a', '##b']],"
                "'continuing_subword_prefix': '##'}",
                false, { WORD("ab", "3:0:2") });
    /* Spellings that have to be decoded, which give way to the next string. */
    CHECK_MODEL("{'type': 'BPE', 'vocab': {'a': 0, '\\u0062': 1, 'ab': 2, 'aba': 3}, 'merges': [['\\u0061', '\\u0062'], ['ab', "
                "'\\u0061']]}",
                false, { WORD("aba", "3:0:3") });
    CHECK_MODEL("{'type': 'BPE', 'vocab': {'a': 0, 'b': 1, 'ab': 2, 'aba': 3}, 'merges': ['\\u0061 b', '\\u0061b a']}", false,
                { WORD("aba", "3:0:3") });
    /* Old files have no type. */
    CHECK_MODEL("{'vocab': {'a': 0, 'b': 1, 'ab': 2}, 'merges': ['a b']}", false, { WORD("ab", "2:0:2") });
}

static void bpe_of_unlisted_bytes_is_unknown_when_byte_level(void **state)
{
    (void)state;
    CHECK_MODEL("{'type': 'BPE', 'unk_token': '<unk>', 'vocab': {'<unk>': 0, '\\u0120': 1, 'a': 2, '\\u0120a': 3}, 'merges': "
                "[['\\u0120', 'a']]}",
                true, { WORD(" a", "3:0:2"), WORD("a\xff", "2:0:1 0:1:2"), WORD("a a", "2:0:1 3:1:3") });
}

static uint64_t steps_of_word(size_t size, const char *unit)
{
    lattice_error err;
    lt_subword_scratch *scratch;
    lt_pieces pieces = { .mem = &lt_malloc_allocator };
    lt_subword *model = open_fixture(FIXTURE("qwen3-embedding/tokenizer.json"), true);
    uint8_t *word = malloc(size);
    for (size_t i = 0; i < size; i++) word[i] = (uint8_t)unit[i % strlen(unit)];
    assert_ok_err(lt_subword_scratch_create(model, &scratch, &err), &err);
    assert_ok_err(lt_subword_encode(model, scratch, word, size, &pieces, &err), &err);
    uint64_t steps = scratch->steps;
    assert_int_equal(pieces.data[pieces.n - 1].end, size);
    free(word);
    free(pieces.data);
    lt_subword_scratch_free(scratch);
    lt_subword_free(model);
    return steps;
}

static void bpe_of_a_long_word_takes_nearly_linear_work(void **state)
{
    (void)state;
    static const char *const units[] = { "a", "the", "internationalization", "=", "ab" };
    for (size_t i = 0; i < sizeof units / sizeof *units; i++) {
        uint64_t small = steps_of_word(1 << 12, units[i]), large = steps_of_word(1 << 18, units[i]);
        assert_true(large <= 64 * small * 3); /* n log n: 64 · 18/12 */
    }
}

static void bpe_of_a_long_word_equals_its_short_parts(void **state)
{
    (void)state;
    /* "the" a hundred times: the heap must find what the scan finds in each. */
    lattice_error err;
    lt_subword_scratch *scratch;
    lt_pieces pieces = { .mem = &lt_malloc_allocator };
    lt_subword *model = open_fixture(FIXTURE("qwen3-embedding/tokenizer.json"), true);
    char word[300];
    for (size_t i = 0; i < sizeof word; i++) word[i] = "the"[i % 3];
    assert_ok_err(lt_subword_scratch_create(model, &scratch, &err), &err);
    assert_ok_err(lt_subword_encode(model, scratch, (const uint8_t *)word, sizeof word, &pieces, &err), &err);
    assert_int_equal(pieces.n, 100);
    for (size_t i = 0; i < pieces.n; i++) {
        assert_int_equal(pieces.data[i].id, 1813);
        assert_int_equal(pieces.data[i].start, 3 * i);
        assert_int_equal(pieces.data[i].end, 3 * i + 3);
    }
    free(pieces.data);
    lt_subword_scratch_free(scratch);
    lt_subword_free(model);
}

/* A word of n bytes: runs of letters, repeated pieces, single characters, as the seed has it. */
static void random_word(uint8_t *word, size_t n, uint32_t seed)
{
    static const char letters[] = "etaoinshrdlucmfwygpbvkxqjz=-_0123456789ETA";
    for (size_t i = 0; i < n;) {
        seed = seed * 1664525u + 1013904223u;
        size_t length = 1 + (seed >> 8) % 24, kind = seed >> 28;
        for (size_t k = 0; k < length && i < n; k++, i++) {
            seed = seed * 1664525u + 1013904223u;
            size_t range = kind < 8 ? 12 : sizeof letters - 1;
            word[i] = kind < 3 && i >= 3   ? word[i - 3]
                      : kind == 3 && i > 0 ? word[i - 1]
                                           : (uint8_t)letters[(seed >> 16) % range];
        }
    }
}

static void encode_in_windows(const lt_subword *model, size_t window, const uint8_t *word, size_t size, lt_pieces *pieces)
{
    lattice_error err;
    lt_subword_scratch *scratch;
    assert_ok_err(lt_subword_scratch_create(model, &scratch, &err), &err);
    scratch->window = window;
    pieces->n = 0;
    assert_ok_err(lt_subword_encode(model, scratch, word, size, pieces, &err), &err);
    lt_subword_scratch_free(scratch);
}

static void bpe_in_windows_equals_bpe_of_the_whole_word(void **state)
{
    (void)state;
    static const char *const fixtures[] = { FIXTURE("qwen3-embedding/tokenizer.json"), FIXTURE("roberta-max/tokenizer.json"),
                                            FIXTURE("tiny-dictionary/tokenizer.json") };
    static const size_t windows[] = { 4, 8, 20, 100, LT_BPE_WINDOW };
    enum { SIZE = 6000 };
    uint8_t word[SIZE];
    lt_pieces whole = { .mem = &lt_malloc_allocator }, parts = { .mem = &lt_malloc_allocator };
    for (size_t k = 0; k < sizeof fixtures / sizeof *fixtures; k++) {
        lt_subword *model = open_fixture(fixtures[k], true);
        for (uint32_t seed = 0; seed < 12; seed++) {
            random_word(word, SIZE, seed);
            encode_in_windows(model, SIZE, word, SIZE, &whole);
            for (size_t w = 0; w < sizeof windows / sizeof *windows; w++) {
                encode_in_windows(model, windows[w], word, SIZE, &parts);
                assert_int_equal(parts.n, whole.n);
                assert_memory_equal(parts.data, whole.data, whole.n * sizeof *whole.data);
            }
        }
        lt_subword_free(model);
    }
    free(whole.data);
    free(parts.data);
}

/* The pieces of a word as they are handed over, and how often they were void. */
typedef struct collected {
    lt_pieces all;
    size_t voided;
} collected;

static lattice_status collect(void *owner, const lt_piece *data, size_t n, lattice_error *err)
{
    (void)err;
    collected *c = owner;
    if (data == NULL) {
        c->voided++;
        c->all.n = 0;
    }
    for (size_t i = 0; i < n; i++) assert_true(lt_pieces_add(&c->all, data[i].id, data[i].start, data[i].end));
    return LATTICE_OK;
}

static void bpe_starts_again_where_windows_do_not_agree(void **state)
{
    (void)state;
    /* Characters c0 … cN that merge with their neighbours, the later ones first: which pairs are made depends on where the word
     * ends, however far away that is. */
    enum { N = 20001, FIRST = 0x4E00 };
    lt_buf json, word;
    lt_buf_init(&json, &lt_malloc_allocator);
    lt_buf_init(&word, &lt_malloc_allocator);
    char(*c)[4] = calloc(N, sizeof *c);
    lt_buf_append_z(&json, "{\"type\":\"BPE\",\"vocab\":{");
    for (uint32_t i = 0; i < N; i++) {
        lt_utf8_encode(FIRST + i, (uint8_t *)c[i]);
        lt_buf_append_z(&word, c[i]);
        lt_buf_printf(&json, "\"%s\":%u,", c[i], i);
    }
    for (uint32_t i = 0; i + 1 < N; i++) lt_buf_printf(&json, "\"%s%s\":%u%s", c[i], c[i + 1], N + i, i + 2 < N ? "," : "");
    lt_buf_append_z(&json, "},\"merges\":[");
    for (uint32_t i = N - 1; i-- > 0;) lt_buf_printf(&json, "[\"%s\",\"%s\"]%s", c[i], c[i + 1], i > 0 ? "," : "]}");
    lt_subword *model;
    lattice_error err;
    assert_ok_err(read_model(&lt_malloc_allocator, json.data, json.len, false, &model, &err), &err);

    collected got = { .all.mem = &lt_malloc_allocator };
    lt_pieces pieces = { .mem = &lt_malloc_allocator, .take = collect, .owner = &got };
    encode_in_windows(model, 64, (const uint8_t *)word.data, word.len, &pieces);
    assert_true(got.voided > 0);
    assert_ok_err(collect(&got, pieces.data, pieces.n, &err), &err);
    assert_int_equal(got.all.n, N / 2 + 1);
    assert_int_equal(got.all.data[0].id, 0);
    for (uint32_t i = 1; i < got.all.n; i++) {
        assert_int_equal(got.all.data[i].id, N + 2 * i - 1);
        assert_int_equal(got.all.data[i].start, 3 * (2 * i - 1));
        assert_int_equal(got.all.data[i].end, 3 * (2 * i + 1));
    }
    free(got.all.data);
    free(pieces.data);
    free(c);
    lt_buf_free(&json);
    lt_buf_free(&word);
    lt_subword_free(model);
}

static void bpe_refuses_malformed_models(void **state)
{
    (void)state;
    refuse_model("{'type': 'BPE', 'vocab': {'a': 0}}", LATTICE_ERR_FORMAT, "no 'merges'");
    refuse_model("{'type': 'BPE', 'merges': []}", LATTICE_ERR_FORMAT, "no 'vocab'");
    refuse_model("{'type': 'BPE', 'vocab': {'a': 0}, 'merges': [['a', 'zz']]}", LATTICE_ERR_FORMAT,
                 "'zz' is not in the vocabulary");
    refuse_model("{'type': 'BPE', 'vocab': {'a': 0}, 'merges': ['qq a']}", LATTICE_ERR_FORMAT, "'qq' is not in the vocabulary");
    refuse_model("{'type': 'BPE', 'vocab': {'a': 0}, 'merges': [['a', 'a']]}", LATTICE_ERR_FORMAT, "'aa'");
    refuse_model("{'type': 'BPE', 'vocab': {'a': 0}, 'merges': ['a']}", LATTICE_ERR_FORMAT, "merge 0");
    refuse_model("{'type': 'BPE', 'vocab': {'a': 0}, 'merges': ['a a a']}", LATTICE_ERR_FORMAT, "merge 0");
    refuse_model("{'type': 'BPE', 'vocab': {'a': 0, 'aa': 1}, 'merges': [['a', 'a'], ['a']]}", LATTICE_ERR_FORMAT, "merge 1");
    refuse_model("{'type': 'BPE', 'vocab': {'a': 0, 'aa': 1}, 'merges': [['a', 'a', 'a']]}", LATTICE_ERR_FORMAT, "merge 0");
    refuse_model("{'type': 'BPE', 'vocab': {'a': 0}, 'merges': [1]}", LATTICE_ERR_FORMAT, "");
    refuse_model("{'type': 'BPE', 'vocab': {}, 'merges': [['a', 'b']]}", LATTICE_ERR_FORMAT, "'a' is not in the vocabulary");
    refuse_model("{'type': 'BPE', 'vocab': {}, 'merges': ['a b']}", LATTICE_ERR_FORMAT, "'a' is not in the vocabulary");
    refuse_model("{'type': 'BPE', 'vocab': {'a': 0}, 'merges': {}}", LATTICE_ERR_FORMAT, "not a list");
    refuse_model("{'type': 'BPE', 'merges': {}, 'vocab': {'a': 0}}", LATTICE_ERR_FORMAT, "not a list");
    refuse_model("{'type': 'BPE', 'continuing_subword_prefix': '##', 'vocab': {'a': 0, 'b': 1}, 'merges': [['a', 'b']]}",
                 LATTICE_ERR_FORMAT, "shorter than the continuing prefix");
    refuse_model("{'type': 'BPE', 'dropout': 0.1, 'vocab': {}, 'merges': []}", LATTICE_ERR_UNSUPPORTED, "dropout");
    refuse_model("{'type': 'BPE', 'fuse_unk': 1, 'vocab': {}, 'merges': []}", LATTICE_ERR_FORMAT, "");
    refuse_model("{'type': 'BPE', 'vocab': {'a': 0", LATTICE_ERR_FORMAT, "");
}

static void bpe_reports_every_failed_allocation(void **state)
{
    (void)state;
    check_allocation_failures(
        "{'type': 'BPE', 'unk_token': '<unk>', 'end_of_word_suffix': '</w>', 'ignore_merges': true, 'byte_fallback': true,"
        "'merges': ['a a', 'aa aa'], 'vocab': {'<unk>': 0, 'a': 1, 'aa': 2, 'aaaa': 3}}",
        false, "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaxx");
    check_allocation_failures("{'type': 'BPE', 'ignore_merges': true, 'vocab': {'a': 1, 'aa': 2}, 'merges': ['a a']}", true,
                              "aaa");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(bpe_of_roberta_equals_huggingface),
        cmocka_unit_test(bpe_of_qwen3_equals_huggingface),
        cmocka_unit_test(bpe_merges_the_lowest_rank_first_and_the_leftmost_on_a_tie),
        cmocka_unit_test(bpe_joins_unknown_characters_if_fuse_unk),
        cmocka_unit_test(bpe_drops_unknown_characters_without_an_unknown_token),
        cmocka_unit_test(bpe_takes_a_word_that_is_a_token_as_it_is_if_ignore_merges),
        cmocka_unit_test(bpe_gives_a_pair_listed_twice_its_later_rank),
        cmocka_unit_test(bpe_reads_merges_written_as_strings),
        cmocka_unit_test(bpe_without_an_unknown_token_gives_nothing_for_unlisted_units),
        cmocka_unit_test(bpe_falls_back_to_bytes_with_the_range_of_their_character),
        cmocka_unit_test(bpe_falls_back_only_where_all_bytes_are_tokens),
        cmocka_unit_test(bpe_uses_prefix_and_suffix_of_units),
        cmocka_unit_test(bpe_reads_its_members_in_any_order),
        cmocka_unit_test(bpe_of_unlisted_bytes_is_unknown_when_byte_level),
        cmocka_unit_test(bpe_of_a_long_word_takes_nearly_linear_work),
        cmocka_unit_test(bpe_of_a_long_word_equals_its_short_parts),
        cmocka_unit_test(bpe_in_windows_equals_bpe_of_the_whole_word),
        cmocka_unit_test(bpe_starts_again_where_windows_do_not_agree),
        cmocka_unit_test(bpe_refuses_malformed_models),
        cmocka_unit_test(bpe_reports_every_failed_allocation),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
