/* Streaming detokenisation: what comes out when, and that it adds up to the text decoded at once. */
#include "support.h"

#include "base/utf8.h"
#include "text/stream.h"

#define BYTE_LEVEL "{'type': 'ByteLevel', 'add_prefix_space': true, 'trim_offsets': true}"
#define LLAMA                                                                                                                    \
    "{'type': 'Sequence', 'decoders': [{'type': 'Replace', 'pattern': {'String': '\xE2\x96\x81'}, 'content': ' '},"              \
    " {'type': 'ByteFallback'}, {'type': 'Fuse'}, {'type': 'Strip', 'content': ' ', 'start': 1, 'stop': 0}]}"
#define UNDER "\xE2\x96\x81"
#define LOST "\xEF\xBF\xBD"

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

typedef struct push {
    const char *token, *text; /* token NULL: flush */
} push;

/* Twice over: flushing leaves the stream as new. */
static void check(const char *json, const push *pushes, size_t n)
{
    lattice_error err;
    lt_decoder *decoder;
    lt_stream *stream;
    lt_buf out;
    lt_buf_init(&out, &lt_malloc_allocator);
    assert_ok_err(read_decoder(&lt_malloc_allocator, json, &decoder, &err), &err);
    assert_ok_err(lt_stream_create(&lt_malloc_allocator, decoder, &stream, &err), &err);
    for (size_t i = 0; i < 2 * n; i++) {
        const push *p = &pushes[i % n];
        lt_buf_clear(&out);
        if (p->token != NULL)
            assert_ok_err(lt_stream_push(stream, lt_str_of(p->token), &out, &err), &err);
        else
            assert_ok_err(lt_stream_flush(stream, &out, &err), &err);
        assert_string_equal(out.len > 0 ? out.data : "", p->text);
    }
    lt_buf_free(&out);
    lt_stream_free(stream);
    lt_decoder_free(decoder);
}

#define CHECK(json, ...) check(json, (const push[])__VA_ARGS__, sizeof((const push[])__VA_ARGS__) / sizeof(push))

static void an_emoji_split_over_tokens_comes_out_once(void **state)
{
    (void)state;
    CHECK(BYTE_LEVEL, { { "Hi\xC4\xA0", "Hi " },
                        { "\xC3\xB0", "" },
                        { "\xC5\x81\xC4\xBA", "" },
                        { "\xC4\xA2!", "\xF0\x9F\x98\x80!" },
                        { NULL, "" } });
    CHECK(LLAMA, { { UNDER "Hi", "Hi" },
                   { "<0xF0>", "" },
                   { "<0x9F>", "" },
                   { "<0x98>", "" },
                   { "<0x80>", "\xF0\x9F\x98\x80" },
                   { "!", "!" },
                   { NULL, "" } });
}

static void bytes_that_can_no_longer_be_a_character_come_out_as_lost(void **state)
{
    (void)state;
    CHECK(BYTE_LEVEL, { { "\xC3\xB0\xC5\x81", "" }, { "a", LOST "a" }, { NULL, "" } });
    CHECK(LLAMA, { { "<0xF0>", "" }, { "<0x9F>", "" }, { "a", LOST LOST "a" }, { NULL, "" } });
}

static void an_incomplete_end_is_lost_when_flushed(void **state)
{
    (void)state;
    CHECK(BYTE_LEVEL, { { "a\xC3\xB0", "a" }, { "\xC5\x81", "" }, { NULL, LOST } });
    CHECK(LLAMA, { { "a", "a" }, { "<0xE4>", "" }, { NULL, LOST } });
}

static void a_space_before_a_word_is_kept_in_the_middle_only(void **state)
{
    (void)state;
    CHECK(LLAMA, { { UNDER "a", "a" }, { UNDER "b", " b" }, { "c", "c" }, { UNDER "d", " d" }, { NULL, "" } });
    CHECK("{'type': 'Metaspace', 'replacement': '" UNDER "', 'prepend_scheme': 'always'}",
          { { UNDER "a", "a" }, { UNDER "b", " b" }, { UNDER "c", " c" }, { NULL, "" } });
    CHECK("{'type': 'WordPiece', 'prefix': '##', 'cleanup': true}",
          { { "a", "a" }, { "##b", "b" }, { "c", " c" }, { ".", "." }, { NULL, "" } });
    CHECK("null", { { "a", "a" }, { "b", " b" }, { NULL, "" } });
}

static void a_replacement_character_in_the_text_waits_for_its_neighbour_only(void **state)
{
    (void)state;
    CHECK(LLAMA, { { LOST, "" }, { LOST, "" }, { "a", LOST LOST "a" }, { NULL, "" } });
    CHECK(BYTE_LEVEL, { { "\xC3\xAF\xC2\xBF\xC2\xBD", LOST }, { NULL, "" } });
}

static void tokens_without_text_change_nothing(void **state)
{
    (void)state;
    CHECK(BYTE_LEVEL, { { "", "" }, { "a", "a" }, { "", "" }, { NULL, "" }, { NULL, "" } });
    CHECK(LLAMA, { { "", "" }, { "a", "a" }, { "", "" }, { "b", "b" }, { NULL, "" } });
}

static void an_endless_run_of_invalid_bytes_is_let_through(void **state)
{
    (void)state;
    lattice_error err;
    lt_decoder *decoder;
    lt_stream *stream;
    lt_buf out;
    lt_buf_init(&out, &lt_malloc_allocator);
    assert_ok_err(read_decoder(&lt_malloc_allocator, LLAMA, &decoder, &err), &err);
    assert_ok_err(lt_stream_create(&lt_malloc_allocator, decoder, &stream, &err), &err);
    for (size_t i = 0; i < 1000; i++) assert_ok_err(lt_stream_push(stream, LT_STR("<0xFF>"), &out, &err), &err);
    assert_true(out.len >= 3 * 900);
    assert_ok_err(lt_stream_flush(stream, &out, &err), &err);
    assert_int_equal(out.len, 3 * 1000);
    lt_buf_free(&out);
    lt_stream_free(stream);
    lt_decoder_free(decoder);
}

/* The pieces are whole characters and add up to the text decoded at once. */
static void check_folder(const char *folder, const char *text, bool skip_special)
{
    lattice_error err;
    lt_tokenizer *tokenizer;
    lt_scratch *scratch;
    lt_stream *stream;
    lt_tokens tokens;
    lt_buf at_once, joined;
    const lt_encode_options options = { .add_special = true };
    lt_tokens_init(&tokens, &lt_malloc_allocator);
    lt_buf_init(&at_once, &lt_malloc_allocator);
    lt_buf_init(&joined, &lt_malloc_allocator);
    assert_ok_err(lt_tokenizer_open(&lt_malloc_allocator, folder, &tokenizer, &err), &err);
    assert_ok_err(lt_scratch_create(tokenizer, &scratch, &err), &err);
    assert_ok_err(lt_tokenizer_encode(tokenizer, scratch, lt_str_of(text), NULL, &options, &tokens, &err), &err);
    assert_ok_err(lt_tokenizer_decode(tokenizer, tokens.ids, tokens.n, skip_special, &at_once, &err), &err);
    assert_ok_err(lt_stream_create_for(tokenizer, skip_special, &stream, &err), &err);
    size_t pieces = 0;
    for (size_t i = 0; i < tokens.n; i++) {
        size_t before = joined.len;
        assert_ok_err(lt_stream_push_id(stream, tokens.ids[i], &joined, &err), &err);
        size_t n = joined.len - before;
        assert_int_equal(lt_utf8_valid_prefix((const uint8_t *)joined.data + before, n), n);
        pieces += n > 0;
    }
    assert_ok_err(lt_stream_push_id(stream, 0xFFFFFF, &joined, &err), &err); /* no such token */
    assert_ok_err(lt_stream_flush(stream, &joined, &err), &err);
    assert_true(pieces > 3);
    assert_string_equal(joined.data, at_once.data);
    assert_non_null(strstr(joined.data, "naive"));
    lt_buf_free(&at_once);
    lt_buf_free(&joined);
    lt_tokens_free(&tokens);
    lt_stream_free(stream);
    lt_scratch_free(scratch);
    lt_tokenizer_close(tokenizer);
}

static void ids_stream_into_the_text_that_they_decode_to(void **state)
{
    (void)state;
    static const char text[] =
        "Hi \xF0\x9F\x98\x80\xF0\x9F\x91\xA9\xE2\x80\x8D\xF0\x9F\x92\xBB<|im_end|> naive, \xE4\xB8\xAD\xE6\x96\x87 end.";
    static const char *const folders[] = { FIXTURE("qwen3-embedding"), FIXTURE("roberta-max"), FIXTURE("bert-cls"),
                                           FIXTURE("xlmr-mean"), FIXTURE("bert-mean-f16") };
    for (size_t i = 0; i < sizeof folders / sizeof *folders; i++) {
        check_folder(folders[i], text, false);
        check_folder(folders[i], text, true);
    }
}

static void every_failed_allocation_is_reported(void **state)
{
    (void)state;
    static const char *const all[] = { BYTE_LEVEL, LLAMA };
    for (size_t i = 0; i < 2; i++) {
        for (long n = 1;; n++) {
            lt_test_allocator allocator = lt_test_allocator_failing_at(n);
            lattice_allocator mem = lt_test_allocator_hooks(&allocator);
            lattice_error err;
            lt_decoder *decoder;
            lt_stream *stream = NULL;
            lt_buf out;
            lt_buf_init(&out, &mem);
            lattice_status status = read_decoder(&mem, all[i], &decoder, &err);
            if (status == LATTICE_OK) status = lt_stream_create(&mem, decoder, &stream, &err);
            if (status == LATTICE_OK) status = lt_stream_push(stream, LT_STR("a rather long token"), &out, &err);
            if (status == LATTICE_OK) status = lt_stream_push(stream, LT_STR("<0xE4>"), &out, &err);
            if (status == LATTICE_OK) status = lt_stream_flush(stream, &out, &err);
            lt_buf_free(&out);
            lt_stream_free(stream);
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
        cmocka_unit_test(an_emoji_split_over_tokens_comes_out_once),
        cmocka_unit_test(bytes_that_can_no_longer_be_a_character_come_out_as_lost),
        cmocka_unit_test(an_incomplete_end_is_lost_when_flushed),
        cmocka_unit_test(a_space_before_a_word_is_kept_in_the_middle_only),
        cmocka_unit_test(a_replacement_character_in_the_text_waits_for_its_neighbour_only),
        cmocka_unit_test(tokens_without_text_change_nothing),
        cmocka_unit_test(an_endless_run_of_invalid_bytes_is_let_through),
        cmocka_unit_test(ids_stream_into_the_text_that_they_decode_to),
        cmocka_unit_test(every_failed_allocation_is_reported),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
