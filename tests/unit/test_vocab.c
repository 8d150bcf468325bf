/* The vocabulary table, the trie and the cache of words under the subword models. */
#include "support.h"

#include "text/byte_alphabet.h"
#include "text/trie.h"
#include "text/vocab.h"
#include "text/word_cache.h"

static lattice_status add(lt_vocab *vocab, const char *spelling, uint32_t id, lattice_error *err)
{
    return lt_vocab_add(vocab, "tokenizer.json", lt_str_of(spelling), id, err);
}

static void vocab_finds_every_spelling_and_id_of_many(void **state)
{
    (void)state;
    const uint32_t n = 50000;
    lattice_error err;
    lt_vocab vocab;
    char spelling[64];
    lt_vocab_init(&vocab, &lt_malloc_allocator);
    for (uint32_t i = 0; i < n; i++) {
        /* Lengths from 1 to 40 bytes, on both sides of the short keys' 16. */
        int length =
            snprintf(spelling, sizeof spelling, "%.*s%u", (int)(i % 37), "abcdefghijklmnopqrstuvwxyzabcdefghijklmnop", i);
        assert_ok_err(lt_vocab_add(&vocab, "f", (lt_str){ spelling, (size_t)length }, 2 * i, &err), &err);
    }
    assert_ok_err(lt_vocab_index(&vocab, "f", LT_VOCAB_TWICE_REFUSED, &err), &err);
    assert_int_equal(vocab.size, 2 * n - 1);
    for (uint32_t i = 0; i < n; i++) {
        int length =
            snprintf(spelling, sizeof spelling, "%.*s%u", (int)(i % 37), "abcdefghijklmnopqrstuvwxyzabcdefghijklmnop", i);
        assert_int_equal(lt_vocab_find(&vocab, spelling, (size_t)length), 2 * i);
        assert_true(lt_str_eq(lt_vocab_token(&vocab, 2 * i), (lt_str){ spelling, (size_t)length }));
        assert_null(lt_vocab_token(&vocab, 2 * i + 1).data);
        spelling[length] = '!';
        assert_int_equal(lt_vocab_find(&vocab, spelling, (size_t)length + 1), LT_VOCAB_NO_ID);
    }
    lt_vocab_free(&vocab);
}

static void vocab_tells_spellings_with_nul_and_empty_ones_apart(void **state)
{
    (void)state;
    lattice_error err;
    lt_vocab vocab;
    lt_vocab_init(&vocab, &lt_malloc_allocator);
    assert_int_equal(lt_vocab_find(&vocab, "a", 1), LT_VOCAB_NO_ID);
    assert_ok_err(lt_vocab_add(&vocab, "f", LT_STR("a\0b"), 0, &err), &err);
    assert_ok_err(lt_vocab_add(&vocab, "f", LT_STR("a"), 1, &err), &err);
    assert_ok_err(lt_vocab_add(&vocab, "f", LT_STR(""), 2, &err), &err);
    assert_ok_err(lt_vocab_index(&vocab, "f", LT_VOCAB_TWICE_REFUSED, &err), &err);
    assert_int_equal(lt_vocab_find(&vocab, "a\0b", 3), 0);
    assert_int_equal(lt_vocab_find(&vocab, "a\0c", 3), LT_VOCAB_NO_ID);
    assert_int_equal(lt_vocab_find(&vocab, "a", 1), 1);
    assert_int_equal(lt_vocab_find(&vocab, "", 0), 2);
    assert_int_equal(lt_vocab_token(&vocab, 2).len, 0);
    assert_non_null(lt_vocab_token(&vocab, 2).data);
    lt_vocab_free(&vocab);
}

static void vocab_refuses_doubled_and_huge_ids_by_name(void **state)
{
    (void)state;
    lattice_error err;
    lt_vocab vocab;
    lt_vocab_init(&vocab, &lt_malloc_allocator);
    assert_ok_err(add(&vocab, "one", 1, &err), &err);
    assert_int_equal(add(&vocab, "uno", 1, &err), LATTICE_ERR_FORMAT);
    assert_string_equal(err.message, "tokenizer.json: tokens 'one' and 'uno' have the same id 1");
    assert_int_equal(add(&vocab, "big", LT_VOCAB_MAX_ID + 1, &err), LATTICE_ERR_FORMAT);
    assert_non_null(strstr(err.message, "'big' has id 16777216"));
    assert_ok_err(add(&vocab, "one", 2, &err), &err);
    assert_int_equal(lt_vocab_index(&vocab, "tokenizer.json", LT_VOCAB_TWICE_REFUSED, &err), LATTICE_ERR_FORMAT);
    assert_string_equal(err.message, "tokenizer.json: token 'one' has the ids 1 and 2");
    lt_vocab_free(&vocab);
}

static void vocab_of_a_list_finds_the_later_of_equal_spellings(void **state)
{
    (void)state;
    lattice_error err;
    lt_vocab vocab;
    lt_vocab_init(&vocab, &lt_malloc_allocator);
    for (uint32_t id = 0; id < 3; id++) assert_ok_err(lt_vocab_add(&vocab, "f", LT_STR("same"), id, &err), &err);
    assert_ok_err(lt_vocab_index(&vocab, "f", LT_VOCAB_TWICE_LATER_WINS, &err), &err);
    assert_int_equal(lt_vocab_find(&vocab, "same", 4), 2);
    assert_int_equal(vocab.n, 1);
    assert_true(lt_str_is(lt_vocab_token(&vocab, 0), "same"));
    lt_vocab_free(&vocab);
}

static bool walk(const lt_trie *trie, const uint8_t *key, size_t n, uint32_t *value)
{
    uint32_t node = LT_TRIE_ROOT;
    for (size_t i = 0; i < n; i++) {
        if (!lt_trie_step(trie, &node, key[i])) return false;
    }
    *value = trie->nodes[node].value;
    return true;
}

static void trie_holds_its_keys_and_no_others(void **state)
{
    (void)state;
    /* All strings of up to four bytes over an alphabet with the extremes, those of odd index left out. */
    static const uint8_t alphabet[] = { 0x00, 0x01, 0x7F, 0x80, 0xE2, 0xFF };
    enum { N = 6 + 36 + 216 + 1296 };
    static uint8_t bytes[N][4];
    static lt_trie_key keys[N];
    static uint32_t lengths[N];
    size_t n = 0, n_keys = 0;
    for (uint32_t length = 1, count = 6; length <= 4; length++, count *= 6) {
        for (uint32_t i = 0; i < count; i++, n++) {
            for (uint32_t k = 0, rest = i; k < length; k++, rest /= 6) bytes[n][k] = alphabet[rest % 6];
            lengths[n] = length;
            if (n % 2 == 0) keys[n_keys++] = (lt_trie_key){ .data = bytes[n], .length = length, .value = (uint32_t)n };
        }
    }
    lattice_error err;
    lt_trie trie;
    assert_ok_err(lt_trie_build(&trie, &lt_malloc_allocator, keys, n_keys, &err), &err);
    for (size_t i = 0; i < n; i++) {
        uint32_t value = LT_TRIE_NO_VALUE;
        bool there = walk(&trie, bytes[i], lengths[i], &value);
        if (i % 2 == 0)
            assert_true(there && value == i);
        else
            assert_true(!there || value == LT_TRIE_NO_VALUE);
    }
    uint32_t value;
    assert_false(walk(&trie, (const uint8_t *)"\x02", 1, &value));
    lt_trie_free(&trie);
}

static void trie_of_nothing_has_no_children(void **state)
{
    (void)state;
    lattice_error err;
    lt_trie trie;
    lt_trie_key empty = { .data = (const uint8_t *)"", .length = 0, .value = 7 };
    assert_ok_err(lt_trie_build(&trie, &lt_malloc_allocator, &empty, 1, &err), &err);
    for (unsigned byte = 0; byte < 256; byte++) {
        uint32_t node = LT_TRIE_ROOT;
        assert_false(lt_trie_step(&trie, &node, (uint8_t)byte));
    }
    assert_int_equal(trie.nodes[LT_TRIE_ROOT].value, LT_TRIE_NO_VALUE);
    lt_trie_free(&trie);
}

static void trie_of_very_long_keys_needs_no_stack(void **state)
{
    (void)state;
    size_t size = 1 << 20;
    uint8_t *text = malloc(size);
    memset(text, 'x', size);
    text[size - 1] = 'y';
    lt_trie_key keys[2] = { { .data = text, .length = (uint32_t)size, .value = 1 },
                            { .data = text, .length = (uint32_t)size - 1, .value = 2 } };
    lattice_error err;
    lt_trie trie;
    uint32_t value;
    assert_ok_err(lt_trie_build(&trie, &lt_malloc_allocator, keys, 2, &err), &err);
    assert_true(walk(&trie, text, size, &value) && value == 1);
    assert_true(walk(&trie, text, size - 1, &value) && value == 2);
    lt_trie_free(&trie);
    free(text);
}

static void word_cache_gives_back_what_was_put_and_nothing_else(void **state)
{
    (void)state;
    lattice_error err;
    lt_word_cache cache;
    lt_pieces out = { .mem = &lt_malloc_allocator };
    bool found;
    uint8_t word[64];
    assert_ok_err(lt_word_cache_create(&cache, &lt_malloc_allocator, &err), &err);
    for (size_t i = 0; i < sizeof word; i++) word[i] = (uint8_t)(i * 37);
    for (size_t size = 1; size <= sizeof word; size++) {
        for (size_t n = 1; n <= size && n <= 16; n++) {
            lt_piece pieces[16];
            word[0] = (uint8_t)n; /* a word has one result: another n, another word */
            for (size_t i = 0; i < n; i++)
                pieces[i] =
                    (lt_piece){ (uint32_t)(1000 * size + i), (uint32_t)i, i + 1 == n ? (uint32_t)size : (uint32_t)(i + 1) };
            lt_word_cache_put(&cache, word, size, pieces, n);
            out.n = 0;
            assert_true(lt_word_cache_get(&cache, word, size, &out, &found));
            assert_int_equal(found, size <= LT_WORD_CACHE_LONGEST && n <= 14);
            if (!found) continue;
            assert_int_equal(out.n, n);
            assert_memory_equal(out.data, pieces, n * sizeof *pieces);
        }
        word[size / 2] ^= 1;
        out.n = 0;
        assert_true(lt_word_cache_get(&cache, word, size, &out, &found));
        assert_false(found);
        word[size / 2] ^= 1;
    }
    free(out.data);
    lt_word_cache_free(&cache);
}

static void word_cache_stays_exact_however_many_words_pass(void **state)
{
    (void)state;
    lattice_error err;
    lt_word_cache cache;
    lt_pieces out = { .mem = &lt_malloc_allocator };
    bool found;
    size_t hits = 0;
    char word[48];
    assert_ok_err(lt_word_cache_create(&cache, &lt_malloc_allocator, &err), &err);
    for (uint32_t i = 0; i < 200000; i++) {
        int size = snprintf(word, sizeof word, i % 3 == 0 ? "w%u" : "a-word-of-some-length-%u", i);
        lt_word_cache_put(&cache, (const uint8_t *)word, (size_t)size, &(lt_piece){ i, 0, (uint32_t)size }, 1);
    }
    for (uint32_t i = 0; i < 200000; i++) {
        int size = snprintf(word, sizeof word, i % 3 == 0 ? "w%u" : "a-word-of-some-length-%u", i);
        out.n = 0;
        assert_true(lt_word_cache_get(&cache, (const uint8_t *)word, (size_t)size, &out, &found));
        if (!found) continue;
        hits++;
        assert_int_equal(out.data[0].id, i);
    }
    assert_true(hits > 10000);
    free(out.data);
    lt_word_cache_free(&cache);
}

static void word_cache_does_not_keep_ranges_that_overlap(void **state)
{
    (void)state;
    lattice_error err;
    lt_word_cache cache;
    lt_pieces out = { .mem = &lt_malloc_allocator };
    bool found;
    const lt_piece bytes[2] = { { 1, 0, 2 }, { 2, 0, 2 } }, dropped[1] = { { 1, 0, 1 } };
    assert_ok_err(lt_word_cache_create(&cache, &lt_malloc_allocator, &err), &err);
    lt_word_cache_put(&cache, (const uint8_t *)"\xc3\xa9", 2, bytes, 2);
    assert_true(lt_word_cache_get(&cache, (const uint8_t *)"\xc3\xa9", 2, &out, &found));
    assert_false(found);
    lt_word_cache_put(&cache, (const uint8_t *)"ax", 2, dropped, 1);
    assert_true(lt_word_cache_get(&cache, (const uint8_t *)"ax", 2, &out, &found));
    assert_false(found);
    free(out.data);
    lt_word_cache_free(&cache);
}

/* From tokenizers 0.23.3: ByteLevel(add_prefix_space=False, use_regex=False).pre_tokenize_str and ByteLevel.alphabet(). */
static void byte_alphabet_is_that_of_gpt2(void **state)
{
    (void)state;
    static const struct {
        uint8_t byte;
        uint32_t code;
    } known[] = { { 0x00, 0x100 }, { 0x0A, 0x10A }, { 0x20, 0x120 }, { 0x21, 0x21 },  { 0x7E, 0x7E },
                  { 0x7F, 0x121 }, { 0x80, 0x122 }, { 0x9F, 0x141 }, { 0xA0, 0x142 }, { 0xA1, 0xA1 },
                  { 0xAC, 0xAC },  { 0xAD, 0x143 }, { 0xAE, 0xAE },  { 0xFF, 0xFF } };
    for (size_t i = 0; i < sizeof known / sizeof *known; i++) assert_int_equal(lt_byte_to_char(known[i].byte), known[i].code);
    for (unsigned byte = 0; byte < 256; byte++) assert_int_equal(lt_char_to_byte(lt_byte_to_char((uint8_t)byte)), byte);
    unsigned members = 0;
    for (uint32_t code = 0; code < 0x300; code++) members += lt_char_to_byte(code) >= 0;
    assert_int_equal(members, 256);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(vocab_finds_every_spelling_and_id_of_many),
        cmocka_unit_test(vocab_tells_spellings_with_nul_and_empty_ones_apart),
        cmocka_unit_test(vocab_refuses_doubled_and_huge_ids_by_name),
        cmocka_unit_test(vocab_of_a_list_finds_the_later_of_equal_spellings),
        cmocka_unit_test(trie_holds_its_keys_and_no_others),
        cmocka_unit_test(trie_of_nothing_has_no_children),
        cmocka_unit_test(trie_of_very_long_keys_needs_no_stack),
        cmocka_unit_test(word_cache_gives_back_what_was_put_and_nothing_else),
        cmocka_unit_test(word_cache_stays_exact_however_many_words_pass),
        cmocka_unit_test(word_cache_does_not_keep_ranges_that_overlap),
        cmocka_unit_test(byte_alphabet_is_that_of_gpt2),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
