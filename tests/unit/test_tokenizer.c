/* The tokenizer as a whole: awkward texts, limits, malformed files, failing memory, many threads. Ids are those of Hugging Face
 * tokenizers 0.23.3 for the same files and texts. */
#include "support.h"

#include <pthread.h>

#include "base/file.h"
#include "text/tokenizer.h"

static const lattice_allocator *const mem = &lt_malloc_allocator;

typedef struct context {
    lt_tokenizer *tokenizer;
    lt_scratch *scratch;
    lt_tokens tokens;
} context;

static context open_fixture(const char *name)
{
    char path[512];
    lattice_error err;
    context x = { 0 };
    snprintf(path, sizeof path, LT_FIXTURES "/%s", name);
    assert_ok_err(lt_tokenizer_open(mem, path, &x.tokenizer, &err), &err);
    assert_ok_err(lt_scratch_create(x.tokenizer, &x.scratch, &err), &err);
    lt_tokens_init(&x.tokens, mem);
    return x;
}

static void close_context(context *x)
{
    lt_tokens_free(&x->tokens);
    lt_scratch_free(x->scratch);
    lt_tokenizer_close(x->tokenizer);
}

static void encode(context *x, lt_str text, const lt_encode_options *options)
{
    lattice_error err;
    assert_ok_err(lt_tokenizer_encode(x->tokenizer, x->scratch, text, NULL, options, &x->tokens, &err), &err);
}

static void assert_ids(context *x, lt_str text, const uint32_t *ids, size_t n)
{
    encode(x, text, &(lt_encode_options){ .add_special = true });
    if (x->tokens.n != n || memcmp(x->tokens.ids, ids, n * sizeof *ids) != 0) fail_msg("ids of '%.*s' differ", LT_STR_ARG(text));
}
#define ASSERT_IDS(x, text, ...)                                                                                                 \
    assert_ids((x), LT_STR(text), (const uint32_t[]){ __VA_ARGS__ }, sizeof((const uint32_t[]){ __VA_ARGS__ }) / sizeof(uint32_t))

static void uncased_bert_drops_accents_composed_or_not(void **state)
{
    (void)state;
    context x = open_fixture("bert-cls");
    ASSERT_IDS(&x, "l\u01DCshi", 2, 54, 1049, 254, 3);
    ASSERT_IDS(&x, "lu\u0308\u0300shi", 2, 54, 1049, 254, 3);
    ASSERT_IDS(&x, "Kant\u014D", 2, 53, 884, 240, 3);
    ASSERT_IDS(&x, "Kanto\u0304", 2, 53, 884, 240, 3);
    ASSERT_IDS(&x, "Hokkaid\u014D", 2, 50, 839, 249, 461, 256, 240, 3);
    ASSERT_IDS(&x, "fa\u00E7ade", 2, 48, 460, 440, 248, 3);
    ASSERT_IDS(&x, "fac\u0327ade", 2, 48, 460, 440, 248, 3);
    ASSERT_IDS(&x, "caf\u00E9", 2, 1806, 1446, 3);
    ASSERT_IDS(&x, "cafe\u0301", 2, 1806, 1446, 3);
    ASSERT_IDS(&x, "na\u00EFve", 2, 56, 461, 469, 3);
    ASSERT_IDS(&x, "co\u00F6perate", 2, 662, 525, 1894, 3);
    close_context(&x);
}

static void invalid_utf8_is_one_replacement_character_a_subpart(void **state)
{
    (void)state;
    context x = open_fixture("qwen3-embedding");
    ASSERT_IDS(&x, "\xe6\xad", 171, 123, 121, 2000);
    ASSERT_IDS(&x, "a\xf0\x9f\x91", 64, 171, 123, 121, 2000);
    ASSERT_IDS(&x, "\xc0\xaf", 171, 123, 121, 171, 123, 121, 2000);
    ASSERT_IDS(&x, "\xed\xa0\xbdx", 171, 123, 121, 171, 123, 121, 171, 123, 121, 87, 2000);
    ASSERT_IDS(&x, "\xe6\xad\x41\xff\xfe", 171, 123, 121, 32, 171, 123, 121, 171, 123, 121, 2000);
    /* spans are those of the bytes as they were given: e6 ad, A, ff, fe */
    const size_t ends[] = { 2, 2, 2, 3, 4, 4, 4, 5, 5, 5 };
    for (size_t i = 0; i < 10; i++) assert_int_equal(x.tokens.spans[i].end, ends[i]);
    assert_int_equal(x.tokens.spans[4].start, 3);
    close_context(&x);
}

static void nul_is_a_character(void **state)
{
    (void)state;
    context x = open_fixture("qwen3-embedding");
    ASSERT_IDS(&x, "a\0b", 64, 188, 65, 2000);
    close_context(&x);
    x = open_fixture("bert-cls");
    ASSERT_IDS(&x, "a\0b", 2, 657, 3);
    close_context(&x);
    x = open_fixture("roberta-max");
    ASSERT_IDS(&x, "a\0b", 0, 69, 193, 70, 2);
    close_context(&x);
}

static void empty_texts_give_special_tokens_only(void **state)
{
    (void)state;
    context x = open_fixture("bert-cls");
    ASSERT_IDS(&x, "", 2, 3);
    ASSERT_IDS(&x, " ", 2, 3);
    ASSERT_IDS(&x, "\n", 2, 3);
    ASSERT_IDS(&x, "\x01\x02\x7f", 2, 3);
    assert_int_equal(x.tokens.special[0], 1);
    assert_int_equal(x.tokens.sequence[1], 255);
    close_context(&x);
    x = open_fixture("xlmr-mean");
    ASSERT_IDS(&x, "", 0, 2);
    ASSERT_IDS(&x, "\n", 0, 4, 2);
    ASSERT_IDS(&x, "\x01\x02\x7f", 0, 2);
    close_context(&x);
    x = open_fixture("qwen3-embedding");
    ASSERT_IDS(&x, "", 2000);
    ASSERT_IDS(&x, "\x01\x02\x7f", 189, 190, 221, 2000);
    close_context(&x);
}

/* ------------------------------------------------------------------ limits */

/* Words, spaces and line ends, so that prefixes end in all sorts of places. */
static lt_str long_text(size_t n)
{
    static const char words[] =
        "The quick  brown fox, \xc3\xa9t\xc3\xa9 and \xe6\x9d\xb1\xe4\xba\xac <|im_end|>'s 12 jumps\n\n over  it. ";
    char *text = malloc(n);
    for (size_t i = 0; i < n; i++) text[i] = words[i % (sizeof words - 1)];
    while (n > 0 && ((uint8_t)text[n - 1] & 0x80)) n--;
    return (lt_str){ text, n };
}

static void a_limited_long_text_begins_as_the_whole_does(void **state)
{
    (void)state;
    static const char *const names[] = { "bert-cls", "roberta-max", "xlmr-mean", "qwen3-embedding", "qwen3.5-text" };
    lt_str text = long_text(40000);
    for (size_t k = 0; k < 5; k++) {
        context x = open_fixture(names[k]);
        lt_tokens all;
        lt_tokens_init(&all, mem);
        lattice_error err;
        lt_encode_options options = { 0 };
        assert_ok_err(lt_tokenizer_encode(x.tokenizer, x.scratch, text, NULL, &options, &all, &err), &err);
        for (options.max_length = 1; options.max_length < 300; options.max_length += 7) {
            encode(&x, text, &options);
            assert_int_equal(x.tokens.n, options.max_length);
            assert_true(x.tokens.truncated);
            assert_memory_equal(x.tokens.ids, all.ids, x.tokens.n * sizeof *all.ids);
            assert_memory_equal(x.tokens.spans, all.spans, x.tokens.n * sizeof *all.spans);
        }
        options = (lt_encode_options){ .max_length = 20, .truncate_left = true };
        encode(&x, text, &options);
        assert_memory_equal(x.tokens.ids, all.ids + all.n - 20, 20 * sizeof *all.ids);
        lt_tokens_free(&all);
        close_context(&x);
    }
    free((char *)text.data);
}

static void a_text_in_sections_equals_the_whole(void **state)
{
    (void)state;
    static const char *const names[] = { "bert-cls", "roberta-max", "xlmr-mean", "qwen3-embedding", "qwen3.5-text" };
    static const size_t sections[] = { 1, 7, 300 };
    lt_str text = long_text(5000);
    ((char *)text.data)[777] = '\xff'; /* spans count the bytes as they were given */
    for (size_t k = 0; k < 10; k++) {
        if (k == 5) memset((char *)text.data, 2, 40); /* removed from the front, and left out of the offsets up to the end */
        context x = open_fixture(names[k % 5]);
        lt_tokens whole;
        lt_tokens_init(&whole, mem);
        lattice_error err;
        lt_encode_options options = { .add_special = true, .section = text.len };
        assert_ok_err(lt_tokenizer_encode(x.tokenizer, x.scratch, text, NULL, &options, &whole, &err), &err);
        for (size_t i = 0; i < 3; i++) {
            options.section = sections[i];
            encode(&x, text, &options);
            assert_int_equal(x.tokens.n, whole.n);
            assert_memory_equal(x.tokens.ids, whole.ids, whole.n * sizeof *whole.ids);
            assert_memory_equal(x.tokens.spans, whole.spans, whole.n * sizeof *whole.spans);
        }
        lt_tokens_free(&whole);
        close_context(&x);
    }
    free((char *)text.data);
}

/* Each of these would give something else if the text were cut before its space. */
static void texts_are_not_cut_where_parts_see_each_other(void **state)
{
    (void)state;
#define WORDS                                                                                                                    \
    "\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0,\"b\":1,\"ab\":2,\" \":3,\"_\":4,\"a_\":5},\"merges\":[\"a b\",\"a _\"]}"
#define SPLIT "\"pre_tokenizer\":{\"type\":\"WhitespaceSplit\"}"
    static const char *const files[] = {
        "{" WORDS "," SPLIT ",\"normalizer\":{\"type\":\"Replace\",\"pattern\":{\"String\":\" \"},\"content\":\"\"}}",
        "{" WORDS "," SPLIT ",\"normalizer\":{\"type\":\"Replace\",\"pattern\":{\"String\":\" \"},\"content\":\"_\"}}",
        "{" WORDS "," SPLIT ",\"normalizer\":{\"type\":\"ByteLevel\"}}",
        "{" WORDS
        ",\"pre_tokenizer\":{\"type\":\"Digits\"},\"normalizer\":{\"type\":\"Strip\",\"strip_left\":true,\"strip_right\":false}}",
        "{" WORDS "," SPLIT ",\"normalizer\":{\"type\":\"Prepend\",\"prepend\":\"b\"}}",
        "{" WORDS "," SPLIT ",\"added_tokens\":[{\"id\":6,\"content\":\"a b\",\"special\":true}]}",
        "{" WORDS ",\"pre_tokenizer\":{\"type\":\"Digits\"},\"added_tokens\":[{\"id\":6,\"content\":\"xa\",\"special\":true,"
        "\"rstrip\":true}]}",
    };
#undef WORDS
#undef SPLIT
    for (size_t k = 0; k < sizeof files / sizeof *files; k++) {
        lattice_error err;
        context x = { 0 };
        assert_ok_err(lt_tokenizer_parse(mem, "x", lt_str_of(files[k]), &x.tokenizer, &err), &err);
        assert_ok_err(lt_scratch_create(x.tokenizer, &x.scratch, &err), &err);
        lt_tokens_init(&x.tokens, mem);
        lt_tokens whole;
        lt_tokens_init(&whole, mem);
        lt_encode_options options = { 0 };
        lt_str text = LT_STR("a b xa  b a b");
        assert_ok_err(lt_tokenizer_encode(x.tokenizer, x.scratch, text, NULL, &options, &whole, &err), &err);
        options.section = 1;
        encode(&x, text, &options);
        if (x.tokens.n != whole.n || memcmp(x.tokens.ids, whole.ids, whole.n * sizeof *whole.ids) != 0)
            fail_msg("%s: cutting changes the tokens", files[k]);
        lt_tokens_free(&whole);
        close_context(&x);
    }
}

static void a_giant_text_has_its_special_tokens_around_it(void **state)
{
    (void)state;
    context x = open_fixture("bert-cls");
    lt_str text = long_text(600000);
    lt_tokens all;
    lt_tokens_init(&all, mem);
    lattice_error err;
    lt_encode_options options = { 0 };
    assert_ok_err(lt_tokenizer_encode(x.tokenizer, x.scratch, text, NULL, &options, &all, &err), &err);
    assert_true(all.n > 100000);
    options.add_special = true;
    for (int k = 0; k < 3; k++) {
        options.max_length = k == 0 ? 0 : 90000;
        options.truncate_left = k == 2;
        encode(&x, text, &options);
        size_t kept = x.tokens.n - 2, from = k == 2 ? all.n - kept : 0;
        assert_int_equal(kept, k == 0 ? all.n : 89998);
        assert_int_equal(x.tokens.ids[0], 2);
        assert_int_equal(x.tokens.ids[kept + 1], 3);
        assert_int_equal(x.tokens.special[0] + x.tokens.special[kept + 1], 2);
        assert_int_equal(x.tokens.spans[0].end, 0);
        assert_memory_equal(x.tokens.ids + 1, all.ids + from, kept * sizeof *all.ids);
        assert_memory_equal(x.tokens.spans + 1, all.spans + from, kept * sizeof *all.spans);
        assert_int_equal(x.tokens.special[1], 0);
    }
    lt_tokens_free(&all);
    close_context(&x);
    free((char *)text.data);
}

static void pairs_are_cut_as_if_both_were_read_to_their_end(void **state)
{
    (void)state;
    context x = open_fixture("cross-encoder-1");
    lt_str text = long_text(60000);
    lattice_error err;
    static const size_t sizes[][2] = { { 60000, 200 },   { 200, 60000 },   { 60000, 60000 },
                                       { 50000, 60000 }, { 60000, 50000 }, { 900, 60000 } };
    for (size_t k = 0; k < sizeof sizes / sizeof *sizes; k++) {
        lt_str a = { text.data, sizes[k][0] }, b = { text.data, sizes[k][1] };
        lt_tokens whole;
        lt_tokens_init(&whole, mem);
        for (size_t limit = 30; limit < 34; limit++) {
            lt_encode_options options = { .add_special = true, .max_length = limit };
            assert_ok_err(lt_tokenizer_encode(x.tokenizer, x.scratch, a, &b, &options, &x.tokens, &err), &err);
            assert_int_equal(x.tokens.n, limit);
            size_t first = 0, second = 0;
            for (size_t i = 0; i < limit; i++) {
                first += x.tokens.sequence[i] == 0;
                second += x.tokens.sequence[i] == 1;
            }
            /* longest first: half each, the odd one to the longer; three tokens are special */
            size_t room = limit - 3;
            assert_int_equal(first + second, room);
            bool longer_first = sizes[k][0] > sizes[k][1];
            assert_int_equal(longer_first ? second : first, room / 2);
        }
        lt_tokens_free(&whole);
    }
    free((char *)text.data);
    close_context(&x);
}

static void fifty_megabytes_are_cut_without_reading_them_all(void **state)
{
    (void)state;
    context x = open_fixture("bert-cls");
    lt_str text = long_text(50u << 20);
    encode(&x, text, &(lt_encode_options){ .add_special = true, .max_length = 512 });
    assert_int_equal(x.tokens.n, 512);
    assert_true(x.tokens.truncated);
    close_context(&x);
    free((char *)text.data);
}

static void a_megabyte_without_a_space_is_encoded(void **state)
{
    (void)state;
    size_t n = 1u << 20;
    char *text = malloc(n);
    for (size_t i = 0; i < n; i++) text[i] = (char)('a' + i * i % 7);
    static const char *const names[] = { "bert-cls", "xlmr-mean", "qwen3-embedding" };
    for (size_t k = 0; k < 3; k++) {
        context x = open_fixture(names[k]);
        encode(&x, (lt_str){ text, n }, &(lt_encode_options){ 0 });
        assert_true(k == 0 ? x.tokens.n == 1 : x.tokens.n > n / 16); /* one [UNK]: it is over max_input_chars_per_word */
        assert_int_equal(x.tokens.spans[x.tokens.n - 1].end, n);
        close_context(&x);
    }
    free(text);
}

static void special_tokens_are_counted_and_kept(void **state)
{
    (void)state;
    context x = open_fixture("bert-cls");
    char text[2 * 512];
    for (size_t i = 0; i < sizeof text; i++) text[i] = "a "[i % 2];
    encode(&x, (lt_str){ text, sizeof text }, &(lt_encode_options){ .add_special = true });
    assert_int_equal(x.tokens.n, 514);
    assert_false(x.tokens.truncated);
    encode(&x, (lt_str){ text, sizeof text }, &(lt_encode_options){ .add_special = true, .max_length = 512 });
    assert_int_equal(x.tokens.n, 512);
    assert_true(x.tokens.truncated);
    assert_int_equal(x.tokens.ids[0], 2);
    assert_int_equal(x.tokens.ids[511], 3);
    close_context(&x);
}

static void a_limit_below_the_special_tokens_is_refused(void **state)
{
    (void)state;
    context x = open_fixture("bert-cls");
    lattice_error err;
    lt_encode_options options = { .add_special = true, .max_length = 1 };
    assert_int_equal(lt_tokenizer_encode(x.tokenizer, x.scratch, LT_STR("a"), NULL, &options, &x.tokens, &err),
                     LATTICE_ERR_INVALID_ARGUMENT);
    close_context(&x);
}

/* ------------------------------------------------------------------ files */

static void assert_refused(const char *json, lattice_status status, const char *part)
{
    lattice_error err;
    lt_tokenizer *t;
    lattice_status got = lt_tokenizer_parse(mem, "x/tokenizer.json", lt_str_of(json), &t, &err);
    if (got != status) fail_msg("%s: status %d, wanted %d (%s)", json, (int)got, (int)status, got ? err.message : "");
    assert_null(t);
    if (!strstr(err.message, "x/tokenizer.json") || !strstr(err.message, part))
        fail_msg("%s: message '%s' lacks '%s'", json, err.message, part);
}

#define MODEL                                                                                                                    \
    "\"model\":{\"type\":\"WordPiece\",\"unk_token\":\"u\",\"continuing_subword_prefix\":\"##\",\"max_input_chars_per_word\":"   \
    "100,\"vocab\":{\"u\":0}}"

static void malformed_files_are_refused_by_name(void **state)
{
    (void)state;
    const lattice_status bad = LATTICE_ERR_FORMAT, unsupported = LATTICE_ERR_UNSUPPORTED;
    assert_refused("{}", bad, "no model");
    assert_refused("{" MODEL ",\"normalizer\":{\"type\":\"Transliterate\"}}", unsupported, "normalizer 'Transliterate'");
    assert_refused("{" MODEL ",\"normalizer\":{\"lowercase\":true}}", bad, "type");
    assert_refused("{" MODEL ",\"normalizer\":{\"type\":\"Sequence\"}}", bad, "normalizers");
    assert_refused("{" MODEL ",\"normalizer\":{\"type\":\"Lowercase\",\"type\":\"NFC\"}}", bad, "type");
    assert_refused("{" MODEL ",\"normalizer\":{\"type\":\"Replace\",\"content\":\"\"}}", bad, "pattern");
    assert_refused("{" MODEL ",\"normalizer\":{\"type\":\"Replace\",\"pattern\":{\"Regex\":\"(\"},\"content\":\"\"}}", bad,
                   "does not compile");
    assert_refused("{" MODEL ",\"normalizer\":{\"type\":\"Precompiled\"}}", bad, "charsmap");
    assert_refused("{" MODEL ",\"normalizer\":{\"type\":\"Precompiled\",\"precompiled_charsmap\":\"AAA\"}}", bad, "base64");
    assert_refused("{" MODEL ",\"normalizer\":{\"type\":\"Precompiled\",\"precompiled_charsmap\":\"AAA=\"}}", bad, "cut short");
    assert_refused("{" MODEL ",\"normalizer\":{\"type\":\"Precompiled\",\"precompiled_charsmap\":\"/wAAAAAA\"}}", bad,
                   "trie says 255");
    assert_refused("{" MODEL ",\"pre_tokenizer\":{\"type\":\"UnicodeScripts\"}}", unsupported, "pre-tokenizer 'UnicodeScripts'");
    assert_refused("{" MODEL ",\"pre_tokenizer\":{\"type\":\"Split\",\"behavior\":\"Isolated\"}}", bad, "pattern");
    assert_refused("{" MODEL ",\"pre_tokenizer\":{\"type\":\"Split\",\"pattern\":{\"Regex\":\"a\"},\"behavior\":\"Torn\"}}", bad,
                   "Torn");
    assert_refused("{" MODEL ",\"pre_tokenizer\":{\"type\":\"Split\",\"pattern\":{\"Glob\":\"a\"},\"behavior\":\"Isolated\"}}",
                   bad, "Glob");
    assert_refused("{" MODEL ",\"pre_tokenizer\":{\"type\":\"Metaspace\",\"replacement\":\"ab\"}}", bad, "one character");
    assert_refused("{" MODEL ",\"pre_tokenizer\":{\"type\":\"Metaspace\",\"replacement\":\"_\",\"prepend_scheme\":\"often\"}}",
                   bad, "often");
    assert_refused("{" MODEL ",\"added_tokens\":[{\"id\":1}]}", bad, "content");
    assert_refused("{" MODEL ",\"added_tokens\":[{\"content\":\"a\"}]}", bad, "id");
    assert_refused("{" MODEL ",\"decoder\":{\"type\":\"Rot13\"}}", unsupported, "Rot13");
    assert_refused("{" MODEL ",\"post_processor\":{\"type\":\"Rot13\"}}", unsupported, "Rot13");
    assert_refused("{\"model\":{\"type\":\"Markov\",\"vocab\":{}}}", unsupported, "Markov");

    lt_buf deep;
    lt_buf_init(&deep, mem);
    lt_buf_append_z(&deep, "{" MODEL ",\"normalizer\":");
    for (int k = 0; k < 30; k++) lt_buf_append_z(&deep, "{\"type\":\"Sequence\",\"normalizers\":[");
    for (int k = 0; k < 30; k++) lt_buf_append_z(&deep, "]}");
    lt_buf_append_z(&deep, "}");
    assert_refused(deep.data, bad, "nested");
    lt_buf_free(&deep);
}

static void malformed_files_are_refused_in_these_words(void **state)
{
    (void)state;
#define WORDS "\"type\":\"WordPiece\",\"unk_token\":\"u\",\"continuing_subword_prefix\":\"##\",\"max_input_chars_per_word\":100"
    // clang-format off
    static const struct {
        const char *json, *message;
    } files[] = {
        { "", "x/tokenizer.json:1:1: expected an object, the text ends" },
        { "[]", "x/tokenizer.json:1:1: expected an object, found an array" },
        { "{" MODEL "", "x/tokenizer.json:1:126: expected ',' or '}', the text ends" },
        { "{" MODEL "} x", "x/tokenizer.json:1:128: expected the end of the text, found 'x'" },
        { "{" MODEL ",\"normalizer\":{\"type\":\"BertNormalizer\",\"lowercase\":1}}", "x/tokenizer.json:1:177: expected true or false, found a number" },
        { "{" MODEL ",\"added_tokens\":[{\"id\":-1,\"content\":\"a\"}]}", "x/tokenizer.json:1:149: -1 is not an integer from 0 to 4294967295" },
        { "{" MODEL ",\"added_tokens\":[{\"id\":4294967296,\"content\":\"a\"}]}", "x/tokenizer.json:1:149: 4294967296 is not an integer from 0 to 4294967295" },
        { "{" MODEL ",\"added_tokens\":{}}", "x/tokenizer.json:1:142: expected an array, found an object" },
        { "{" MODEL ",\"added_tokens\":[7]}", "x/tokenizer.json:1:143: expected an object, found a number" },
        { "{" MODEL ",\"normalizer\":7}", "x/tokenizer.json:1:140: expected an object, found a number" },
        { "{" MODEL ",\"pre_tokenizer\":[]}", "x/tokenizer.json:1:143: expected an object, found an array" },
        { "{" MODEL ",\"post_processor\":\"x\"}", "x/tokenizer.json:1:127: a post-processor is not an object" },
        { "{" MODEL ",\"decoder\":7}", "x/tokenizer.json:1:127: a decoder is not an object" },
        { "{\"model\":7}", "x/tokenizer.json:1:2: the model is not an object" },
        { "{\"model\":{" WORDS ",\"vocab\":{\"u\":\"0\"}}}", "x/tokenizer.json:1:123: expected a number, found a string" },
        { "{\"model\":{" WORDS ",\"vocab\":{\"u\":-1}}}", "x/tokenizer.json:1:123: -1 is not an integer from 0 to 4294967295" },
        { "{\"model\":{" WORDS ",\"vocab\":{\"u\":0,\"v\":0}}}", "x/tokenizer.json: tokens 'u' and 'v' have the same id 0" },
        { "{\"model\":{" WORDS ",\"vocab\":{\"u\":0,\"u\":1}}}", "x/tokenizer.json:1:125: duplicate key 'u'" },
        { "{\"model\":{" WORDS ",\"vocab\":{\"u\":16777216}}}", "x/tokenizer.json: token 'u' has id 16777216, over the limit of 16777215" },
        { "{\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0},\"merges\":[\"a b\"]}}", "x/tokenizer.json:1:50: merge 0: token 'b' is not in the vocabulary" },
        { "{\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0},\"merges\":[\"a a\"]}}", "x/tokenizer.json:1:50: merge 0 makes 'aa', which is not in the vocabulary" },
        { "{\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0},\"merges\":7}}", "x/tokenizer.json:1:40: the model's merges are not a list" },
        { "{" MODEL ",\"pre_tokenizer\":{\"type\":\"Split\",\"pattern\":{\"Regex\":\"[a\"},\"behavior\":\"Isolated\"}}", "x/tokenizer.json: the expression '[a' does not compile: missing terminating ] for character class" },
        { "{" MODEL ",\"pre_tokenizer\":{\"type\":\"Sequence\"}}", "x/tokenizer.json: a pre-tokenizer Sequence without 'pretokenizers'" },
        { "{" MODEL ",\"pre_tokenizer\":{\"type\":\"Sequence\",\"pretokenizers\":{}}}", "x/tokenizer.json:1:178: expected an array, found an object" },
        { "{" MODEL "," MODEL "}", "x/tokenizer.json:1:127: duplicate key 'model'" },
        { "{" MODEL ",\"normalizer\":{\"type\":\"Precompiled\",\"precompiled_charsmap\":\"BAAAAAAB\"}}", "x/tokenizer.json: precompiled_charsmap holds 6 bytes, its trie says 4" },
        { "{" MODEL ",\"post_processor\":{\"type\":\"TemplateProcessing\",\"single\":[{\"SpecialToken\":{\"id\":\"[CLS]\",\"type_id\":0}}],\"pair\":[],\"special_tokens\":{}}}", "x/tokenizer.json:1:255: the template for a single text uses '[CLS]', which is not among its special_tokens" },
        { "{" MODEL ",\"normalizer\":{\"type\":7}}", "x/tokenizer.json:1:148: expected a string, found a number" },
        { "{" MODEL ",\"normalizer\":{\"type\":\"Replace\",\"pattern\":{\"String\":\"a\",\"Regex\":\"b\"},\"content\":\"\"}}", "x/tokenizer.json:1:182: a pattern has one value" },
    };
    // clang-format on
#undef WORDS
    for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
        lattice_error err;
        lt_tokenizer *t;
        assert_int_equal(lt_tokenizer_parse(mem, "x/tokenizer.json", lt_str_of(files[i].json), &t, &err), LATTICE_ERR_FORMAT);
        assert_null(t);
        assert_string_equal(err.message, files[i].message);
    }
}

static void a_folder_without_a_tokenizer_is_not_found(void **state)
{
    (void)state;
    lattice_error err;
    lt_tokenizer *t;
    assert_int_equal(lt_tokenizer_open(mem, LT_FIXTURES "/real", &t, &err), LATTICE_ERR_NOT_FOUND);
    assert_non_null(strstr(err.message, "neither tokenizer.json nor vocab.txt"));
}

static void members_may_come_in_any_order(void **state)
{
    (void)state;
    static const char json[] = "{\"pre_tokenizer\":{\"pretokenizers\":[{\"type\":\"WhitespaceSplit\"},{\"behavior\":\"Isolated\","
                               "\"type\":\"Punctuation\"}],"
                               "\"type\":\"Sequence\"},\"added_tokens\":[{\"content\":\"<x>\",\"special\":true,\"id\":9}],"
                               "\"model\":{\"vocab\":{\"a\":0,\"u\":1,\"!\":2},\"unk_token\":\"u\",\"continuing_subword_prefix\":"
                               "\"##\",\"max_input_chars_per_word\":100,\"type\":\"WordPiece\"},"
                               "\"normalizer\":{\"type\":\"Lowercase\"},\"version\":\"1.0\"}";
    lattice_error err;
    context x = { 0 };
    assert_ok_err(lt_tokenizer_parse(mem, "x", LT_STR(json), &x.tokenizer, &err), &err);
    assert_ok_err(lt_scratch_create(x.tokenizer, &x.scratch, &err), &err);
    lt_tokens_init(&x.tokens, mem);
    ASSERT_IDS(&x, "A! <x>b", 0, 2, 3, 1); /* the id of <x> is the next free one, whatever the file says */
    uint32_t id;
    assert_true(lt_tokenizer_find(x.tokenizer, LT_STR("<x>"), &id));
    assert_int_equal(id, 3);
    assert_int_equal(lt_tokenizer_size(x.tokenizer), 4);
    close_context(&x);
}

static void an_expression_that_backtracks_without_end_is_an_error(void **state)
{
    (void)state;
    static const char json[] =
        "{" MODEL
        ",\"pre_tokenizer\":{\"type\":\"Split\",\"pattern\":{\"Regex\":\"(a|a|a|aa|b?)*c\"},\"behavior\":\"Isolated\"}}";
    lattice_error err;
    context x = { 0 };
    assert_ok_err(lt_tokenizer_parse(mem, "x", LT_STR(json), &x.tokenizer, &err), &err);
    assert_ok_err(lt_scratch_create(x.tokenizer, &x.scratch, &err), &err);
    lt_tokens_init(&x.tokens, mem);
    lt_encode_options options = { 0 };
    char text[64];
    memset(text, 'a', sizeof text);
    text[62] = 'd';
    text[63] = 'c'; /* keeps the search from ending at once */
    lattice_status status = lt_tokenizer_encode(x.tokenizer, x.scratch, (lt_str){ text, 64 }, NULL, &options, &x.tokens, &err);
    assert_int_equal(status, LATTICE_ERR_INVALID_ARGUMENT);
    assert_non_null(strstr(err.message, "limit"));
    close_context(&x);
}

/* ------------------------------------------------------------------ memory and threads */

static const char failing[] = "Hello, <s>na\xc3\xafve caf\x65\xcc\x81 \xe6\x97\xa5\xe6\x9c\xac don't 123\r\n \xe6\xad end";

static void every_failing_allocation_ends_in_no_memory_without_a_leak(void **state)
{
    (void)state;
    static const char *const json[] = {
        "{\"model\":{\"type\":\"WordPiece\",\"unk_token\":\"u\",\"continuing_subword_prefix\":\"##\",\"max_input_chars_per_"
        "word\":100,\"vocab\":{\"u\":0,\"a\":1}},\"normalizer\":{\"type\":"
        "\"Sequence\",\"normalizers\":["
        "{\"type\":\"NFKC\"},{\"type\":\"Replace\",\"pattern\":{\"Regex\":\"l+\"},\"content\":\"L\"},{\"type\":"
        "\"BertNormalizer\"}]},"
        "\"pre_tokenizer\":{\"type\":\"Sequence\",\"pretokenizers\":[{\"type\":\"Split\",\"pattern\":{\"Regex\":\"[0-9]\"},"
        "\"behavior\":\"MergedWithNext\"},"
        "{\"type\":\"Metaspace\",\"replacement\":\"_\"}]},\"added_tokens\":[{\"id\":2,\"content\":\"<s>\",\"special\":true},"
        "{\"id\":3,\"content\":\"end\",\"normalized\":true}]}",
        "{\"model\":{\"type\":\"BPE\",\"unk_token\":\"u\",\"vocab\":{\"u\":0,\"a\":1,\"b\":2,\"ab\":3},\"merges\":[\"a b\"]},"
        "\"pre_tokenizer\":{\"type\":\"ByteLevel\",\"add_prefix_space\":true}}",
    };
    for (size_t k = 0; k < 2; k++) {
        for (long n = 1;; n++) {
            lt_test_allocator a = lt_test_allocator_failing_at(n);
            lattice_allocator hooks = lt_test_allocator_hooks(&a);
            lattice_error err;
            lt_tokenizer *t = NULL;
            lt_scratch *s = NULL;
            lt_tokens tokens;
            lt_buf out;
            lt_tokens_init(&tokens, &hooks);
            lt_buf_init(&out, &hooks);
            lt_encode_options options = { .add_special = true };
            lattice_status status = lt_tokenizer_parse(&hooks, "x", lt_str_of(json[k]), &t, &err);
            if (status == LATTICE_OK) status = lt_scratch_create(t, &s, &err);
            if (status == LATTICE_OK) status = lt_tokenizer_encode(t, s, LT_STR(failing), NULL, &options, &tokens, &err);
            if (status == LATTICE_OK) status = lt_tokenizer_decode(t, tokens.ids, tokens.n, false, &out, &err);
            lt_buf_free(&out);
            lt_tokens_free(&tokens);
            lt_scratch_free(s);
            lt_tokenizer_close(t);
            assert_int_equal(lt_test_allocator_live(&a), 0);
            if (status == LATTICE_OK) break;
            if (status != LATTICE_ERR_NO_MEMORY) fail_msg("file %zu, request %ld: status %d: %s", k, n, (int)status, err.message);
        }
    }
}

static void a_warm_scratch_allocates_nothing(void **state)
{
    (void)state;
    static const char *const names[] = { "bert-cls", "roberta-max", "xlmr-mean", "qwen3-embedding" };
    for (size_t k = 0; k < 4; k++) {
        lt_test_allocator a = lt_test_allocator_failing_at(0);
        lattice_allocator hooks = lt_test_allocator_hooks(&a);
        lattice_error err;
        char path[512];
        lt_tokenizer *t;
        lt_scratch *s;
        lt_tokens tokens;
        snprintf(path, sizeof path, LT_FIXTURES "/%s", names[k]);
        assert_ok_err(lt_tokenizer_open(&hooks, path, &t, &err), &err);
        assert_ok_err(lt_scratch_create(t, &s, &err), &err);
        lt_tokens_init(&tokens, &hooks);
        lt_encode_options options = { .add_special = true };
        for (int round = 0; round < 3; round++) {
            long before = atomic_load(&a.requests);
            assert_ok_err(lt_tokenizer_encode(t, s, LT_STR(failing), NULL, &options, &tokens, &err), &err);
            if (round == 2) assert_int_equal(atomic_load(&a.requests), before);
        }
        lt_tokens_free(&tokens);
        lt_scratch_free(s);
        lt_tokenizer_close(t);
    }
}

enum { N_THREADS = 8 };

typedef struct worker {
    lattice_tokenizer *tokenizer;
    const lattice_encoding *expected;
    int bad;
} worker;

static void *work(void *arg)
{
    worker *w = arg;
    lattice_text text = { failing, sizeof failing - 1 };
    for (int k = 0; k < LT_ROUNDS(200, 50); k++) {
        lattice_encoding e;
        if (lattice_encode(w->tokenizer, text, NULL, NULL, &e, NULL) != LATTICE_OK) {
            w->bad++;
            continue;
        }
        w->bad += e.n != w->expected->n || memcmp(e.ids, w->expected->ids, e.n * sizeof *e.ids) != 0;
        lattice_encoding_free(&e);
    }
    return NULL;
}

static void one_public_tokenizer_serves_many_threads(void **state)
{
    (void)state;
    lattice_error err;
    lattice_runtime *runtime;
    lattice_tokenizer *t;
    lattice_encoding expected;
    lattice_runtime_options options = lattice_runtime_options_default();
    options.n_threads = 1;
    assert_ok_err(lattice_runtime_create(&options, &runtime, &err), &err);
    assert_ok_err(lattice_tokenizer_open(runtime, FIXTURE("xlmr-mean"), &t, &err), &err);
    assert_ok_err(lattice_encode(t, (lattice_text){ failing, sizeof failing - 1 }, NULL, NULL, &expected, &err), &err);
    pthread_t threads[N_THREADS];
    worker workers[N_THREADS];
    for (int k = 0; k < N_THREADS; k++) {
        workers[k] = (worker){ t, &expected, 0 };
        assert_int_equal(pthread_create(&threads[k], NULL, work, &workers[k]), 0);
    }
    for (int k = 0; k < N_THREADS; k++) {
        pthread_join(threads[k], NULL);
        assert_int_equal(workers[k].bad, 0);
    }
    lattice_encoding_free(&expected);
    lattice_tokenizer_close(t);
    lattice_runtime_free(runtime);
}

static void the_public_functions_give_spellings_and_texts_back(void **state)
{
    (void)state;
    lattice_error err;
    lattice_runtime *runtime;
    lattice_tokenizer *t;
    lattice_encoding e;
    lattice_text text;
    lattice_runtime_options options = lattice_runtime_options_default();
    options.n_threads = 1;
    assert_ok_err(lattice_runtime_create(&options, &runtime, &err), &err);
    assert_ok_err(lattice_tokenizer_open(runtime, FIXTURE("qwen3-embedding"), &t, &err), &err);
    assert_int_equal(lattice_vocabulary_size(t), 2007);
    assert_ok_err(lattice_encode(t, (lattice_text){ "na\xc3\xafve <|im_end|>!", 18 }, NULL, NULL, &e, &err), &err);
    assert_ok_err(lattice_decode(t, e.ids, e.n, true, &text, &err), &err);
    assert_int_equal(text.length, 8);
    assert_string_equal(text.data, "na\xc3\xafve !");
    lattice_text_free(t, &text);
    assert_ok_err(lattice_decode(t, e.ids, e.n, false, &text, &err), &err);
    assert_string_equal(text.data, "na\xc3\xafve <|im_end|>!<|endoftext|>");
    lattice_text_free(t, &text);
    lattice_encoding_free(&e);
    assert_null(lattice_token_text(t, 2007).data);
    text = lattice_token_text(t, 2001);
    assert_memory_equal(text.data, "<|im_start|>", text.length);
    assert_int_equal(lattice_encode(t, (lattice_text){ NULL, 3 }, NULL, NULL, &e, &err), LATTICE_ERR_INVALID_ARGUMENT);
    lattice_tokenizer_close(t);
    lattice_runtime_free(runtime);
}

/* ------------------------------------------------------------------ vocab.txt */

static void vocab_txt_obeys_its_configuration(void **state)
{
    (void)state;
    static const char vocab[] =
        "<pad>\n[UNK]\n[CLS]\n[SEP]\n[MASK]\nHello\nhello\ncaf\xc3\xa9\ncafe\n\xe6\x97\xa5\xe6\x9c\xac\n\xe6\x97\xa5\n";
    lt_str cased = LT_STR("{\"do_lower_case\":false,\"tokenize_chinese_chars\":false,\"strip_accents\":null,\"pad_token\":{"
                          "\"content\":\"<pad>\"}}");
    lattice_error err;
    context x = { 0 };
    lt_tokens_init(&x.tokens, mem);
    assert_ok_err(lt_tokenizer_parse_vocab(mem, "vocab.txt", LT_STR(vocab), &cased, &x.tokenizer, &err), &err);
    assert_ok_err(lt_scratch_create(x.tokenizer, &x.scratch, &err), &err);
    ASSERT_IDS(&x, "Hello caf\xc3\xa9 \xe6\x97\xa5\xe6\x9c\xac <pad>[MASK]", 2, 5, 7, 9, 0, 4, 3);
    close_context(&x);
    lt_tokens_init(&x.tokens, mem);
    assert_ok_err(lt_tokenizer_parse_vocab(mem, "vocab.txt", LT_STR(vocab), NULL, &x.tokenizer, &err), &err);
    assert_ok_err(lt_scratch_create(x.tokenizer, &x.scratch, &err), &err);
    ASSERT_IDS(&x, "Hello caf\xc3\xa9 \xe6\x97\xa5\xe6\x9c\xac", 2, 6, 8, 10, 1, 3);
    close_context(&x);
    lt_tokenizer *t;
    assert_int_equal(lt_tokenizer_parse_vocab(mem, "vocab.txt", LT_STR("[UNK]\n[CLS]\n"), NULL, &t, &err), LATTICE_ERR_FORMAT);
    assert_non_null(strstr(err.message, "[SEP]"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(uncased_bert_drops_accents_composed_or_not),
        cmocka_unit_test(invalid_utf8_is_one_replacement_character_a_subpart),
        cmocka_unit_test(nul_is_a_character),
        cmocka_unit_test(empty_texts_give_special_tokens_only),
        cmocka_unit_test(a_limited_long_text_begins_as_the_whole_does),
        cmocka_unit_test(a_text_in_sections_equals_the_whole),
        cmocka_unit_test(texts_are_not_cut_where_parts_see_each_other),
        cmocka_unit_test(a_giant_text_has_its_special_tokens_around_it),
        cmocka_unit_test(pairs_are_cut_as_if_both_were_read_to_their_end),
        cmocka_unit_test(fifty_megabytes_are_cut_without_reading_them_all),
        cmocka_unit_test(a_megabyte_without_a_space_is_encoded),
        cmocka_unit_test(special_tokens_are_counted_and_kept),
        cmocka_unit_test(a_limit_below_the_special_tokens_is_refused),
        cmocka_unit_test(malformed_files_are_refused_by_name),
        cmocka_unit_test(malformed_files_are_refused_in_these_words),
        cmocka_unit_test(a_folder_without_a_tokenizer_is_not_found),
        cmocka_unit_test(members_may_come_in_any_order),
        cmocka_unit_test(an_expression_that_backtracks_without_end_is_an_error),
        cmocka_unit_test(every_failing_allocation_ends_in_no_memory_without_a_leak),
        cmocka_unit_test(a_warm_scratch_allocates_nothing),
        cmocka_unit_test(one_public_tokenizer_serves_many_threads),
        cmocka_unit_test(the_public_functions_give_spellings_and_texts_back),
        cmocka_unit_test(vocab_txt_obeys_its_configuration),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
