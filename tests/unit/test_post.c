/* Post-processors and truncation. Golden values from Hugging Face tokenizers 0.23.3: a tokenizer with the vocabulary [CLS] 0,
 * [SEP] 1, <s> 2, </s> 3, a 4, b 5, c 6, d 7 and the post-processor of the test, on the texts "a b" and "c d". */
#include "support.h"

#include "text/post.h"

#define PIECE_A(type) "{'Sequence': {'id': 'A', 'type_id': " #type "}}"
#define PIECE_B(type) "{'Sequence': {'id': 'B', 'type_id': " #type "}}"
#define SPECIAL(name, type) "{'SpecialToken': {'id': '" name "', 'type_id': " #type "}}"
#define TOKENS                                                                                                                   \
    "'special_tokens': {'[CLS]': {'id': '[CLS]', 'ids': [0], 'tokens': ['[CLS]']}, '[SEP]': {'id': '[SEP]', 'ids': [1],"         \
    " 'tokens': ['[SEP]']}, 'X': {'id': 'X', 'ids': [6, 7], 'tokens': ['c', 'd']}}"
#define TEMPLATE(single, pair) "{'type': 'TemplateProcessing', 'single': [" single "], 'pair': [" pair "], " TOKENS "}"
#define BERT                                                                                                                     \
    TEMPLATE(SPECIAL("[CLS]", 0) "," PIECE_A(0) "," SPECIAL("[SEP]", 0),                                                         \
             SPECIAL("[CLS]", 0) "," PIECE_A(0) "," SPECIAL("[SEP]", 0) "," PIECE_B(1) "," SPECIAL("[SEP]", 1))
#define ROBERTA                                                                                                                  \
    "{'type': 'RobertaProcessing', 'sep': ['</s>', 3], 'cls': ['<s>', 2], 'trim_offsets': true, 'add_prefix_space': true}"

static char *json_text(const char *text)
{
    char *copy = strdup(text);
    for (char *c = copy; *c != '\0'; c++) *c = *c == '\'' ? '"' : *c;
    return copy;
}

static lattice_status read_post(const lattice_allocator *mem, const char *text, lt_post **post, lattice_error *err)
{
    lt_json json;
    char *copy = json_text(text);
    *post = NULL;
    lt_json_open(&json, mem, "tokenizer.json", copy, strlen(copy), err);
    lattice_status status = lt_post_read(mem, &json, post, err);
    lt_json_close(&json);
    free(copy);
    return status;
}

static lt_post *open_post(const char *text)
{
    lattice_error err;
    lt_post *post;
    assert_ok_err(read_post(&lt_malloc_allocator, text, &post, &err), &err);
    return post;
}

/* n tokens with the ids first_id, first_id + 1, … over "x y z …": one byte each, a space between. */
static lt_tokens make_tokens(const lattice_allocator *mem, uint32_t first_id, size_t n)
{
    lt_tokens tokens;
    lt_tokens_init(&tokens, mem);
    assert_true(lt_tokens_reserve(&tokens, n));
    for (size_t i = 0; i < n; i++) {
        tokens.ids[i] = first_id + (uint32_t)i;
        tokens.type_ids[i] = 0;
        tokens.spans[i] = (struct lt_span){ 2 * i, 2 * i + 1 };
        tokens.special[i] = 0;
        tokens.sequence[i] = 0;
    }
    tokens.n = n;
    return tokens;
}

/* "id:type:start-end …" with * for added specials, and a or b for the sequence. */
static void format_tokens(const lt_tokens *tokens, lt_buf *out)
{
    lt_buf_clear(out);
    for (size_t i = 0; i < tokens->n; i++) {
        uint8_t sequence = tokens->sequence[i];
        assert_int_equal(tokens->special[i], sequence == 255);
        lt_buf_printf(out, "%s%u:%u:%u-%u%s", i > 0 ? " " : "", tokens->ids[i], tokens->type_ids[i], tokens->spans[i].start,
                      tokens->spans[i].end,
                      sequence == 255 ? "*"
                      : sequence == 1 ? "b"
                                      : "a");
    }
}

static const lt_encode_options with_special = { .add_special = true }, without_special = { 0 };

static void check_post(const char *json, bool pair, lt_encode_options options, const char *expected)
{
    lattice_error err;
    lt_post *post = open_post(json);
    lt_tokens first = make_tokens(&lt_malloc_allocator, 4, 2), second = make_tokens(&lt_malloc_allocator, 6, 2), out;
    lt_buf text;
    lt_buf_init(&text, &lt_malloc_allocator);
    lt_tokens_init(&out, &lt_malloc_allocator);
    assert_ok_err(lt_post_apply(post, &first, pair ? &second : NULL, LT_STR("a b"), LT_STR("c d"), &options, &out, &err), &err);
    format_tokens(&out, &text);
    assert_string_equal(text.len > 0 ? text.data : "", expected);
    lt_buf_free(&text);
    lt_tokens_free(&first);
    lt_tokens_free(&second);
    lt_tokens_free(&out);
    lt_post_free(post);
}

static void template_adds_special_tokens_and_types(void **state)
{
    (void)state;
    check_post(BERT, false, with_special, "0:0:0-0* 4:0:0-1a 5:0:2-3a 1:0:0-0*");
    check_post(BERT, true, with_special, "0:0:0-0* 4:0:0-1a 5:0:2-3a 1:0:0-0* 6:1:0-1b 7:1:2-3b 1:1:0-0*");
    check_post(BERT, false, without_special, "4:0:0-1a 5:0:2-3a");
    check_post(BERT, true, without_special, "4:0:0-1a 5:0:2-3a 6:1:0-1b 7:1:2-3b");
}

static void template_may_swap_the_texts_and_add_several_ids(void **state)
{
    (void)state;
    static const char json[] = TEMPLATE(PIECE_A(3) "," SPECIAL("X", 5), PIECE_B(1) "," PIECE_A(0) "," SPECIAL("X", 2));
    check_post(json, false, with_special, "4:3:0-1a 5:3:2-3a 6:5:0-0* 7:5:0-0*");
    check_post(json, true, with_special, "6:1:0-1b 7:1:2-3b 4:0:0-1a 5:0:2-3a 6:2:0-0* 7:2:0-0*");
    check_post(json, true, (lt_encode_options){ .add_special = true, .max_length = 5 },
               "6:1:0-1b 7:1:2-3b 4:0:0-1a 6:2:0-0* 7:2:0-0*");
    check_post(json, true, (lt_encode_options){ .add_special = true, .max_length = 2 }, "6:2:0-0* 7:2:0-0*");
}

static void template_may_leave_a_text_out(void **state)
{
    (void)state;
    check_post(TEMPLATE(PIECE_A(0), PIECE_A(0)), true, with_special, "4:0:0-1a 5:0:2-3a");
}

static void no_post_processor_joins_the_texts(void **state)
{
    (void)state;
    check_post("null", false, with_special, "4:0:0-1a 5:0:2-3a");
    check_post("null", true, with_special, "4:0:0-1a 5:0:2-3a 6:1:0-1b 7:1:2-3b");
    check_post("null", true, (lt_encode_options){ .add_special = true, .max_length = 3 }, "4:0:0-1a 6:1:0-1b 7:1:2-3b");
    check_post("null", true, (lt_encode_options){ .add_special = true, .max_length = 3, .truncate_left = true },
               "5:0:2-3a 6:1:0-1b 7:1:2-3b");
    check_post("{'type': 'Sequence', 'processors': []}", true, with_special, "4:0:0-1a 5:0:2-3a 6:1:0-1b 7:1:2-3b");
}

static void bert_processing_is_the_template_of_bert(void **state)
{
    (void)state;
    static const char json[] = "{'type': 'BertProcessing', 'sep': ['[SEP]', 1], 'cls': ['[CLS]', 0]}";
    check_post(json, false, with_special, "0:0:0-0* 4:0:0-1a 5:0:2-3a 1:0:0-0*");
    check_post(json, true, with_special, "0:0:0-0* 4:0:0-1a 5:0:2-3a 1:0:0-0* 6:1:0-1b 7:1:2-3b 1:1:0-0*");
    check_post(json, true, without_special, "4:0:0-1a 5:0:2-3a 6:1:0-1b 7:1:2-3b");
}

static void roberta_processing_doubles_the_separator_and_has_one_type(void **state)
{
    (void)state;
    check_post(ROBERTA, false, with_special, "2:0:0-0* 4:0:0-1a 5:0:2-3a 3:0:0-0*");
    check_post(ROBERTA, true, with_special, "2:0:0-0* 4:0:0-1a 5:0:2-3a 3:0:0-0* 3:0:0-0* 6:0:0-1b 7:0:2-3b 3:0:0-0*");
    check_post(ROBERTA, true, without_special, "4:0:0-1a 5:0:2-3a 6:0:0-1b 7:0:2-3b");
}

static void sequence_applies_its_members(void **state)
{
    (void)state;
    check_post("{'type': 'Sequence', 'processors': [{'type': 'ByteLevel', 'add_prefix_space': true, 'trim_offsets': false}, " BERT
               "]}",
               true, with_special, "0:0:0-0* 4:0:0-1a 5:0:2-3a 1:0:0-0* 6:1:0-1b 7:1:2-3b 1:1:0-0*");
}

static void vocab_txt_has_the_template_of_bert(void **state)
{
    (void)state;
    lattice_error err;
    lt_post *post;
    lt_tokens first = make_tokens(&lt_malloc_allocator, 4, 2), out;
    lt_tokens_init(&out, &lt_malloc_allocator);
    assert_ok_err(lt_post_bert(&lt_malloc_allocator, 101, 102, &post, &err), &err);
    assert_int_equal(lt_post_added(post, false), 2);
    assert_int_equal(lt_post_added(post, true), 3);
    assert_ok_err(lt_post_apply(post, &first, NULL, LT_STR("a b"), LT_STR(""), &with_special, &out, &err), &err);
    assert_int_equal(out.n, 4);
    assert_int_equal(out.ids[0], 101);
    assert_int_equal(out.ids[3], 102);
    assert_false(out.truncated);
    lt_tokens_free(&first);
    lt_tokens_free(&out);
    lt_post_free(post);
}

/* Lengths of both texts after truncation, of n_first and n_second tokens with a limit, specials counted. */
static void check_truncation(const lt_post *post, size_t n_first, size_t n_second, size_t limit, size_t left_first,
                             size_t left_second)
{
    lattice_error err;
    lt_tokens first = make_tokens(&lt_malloc_allocator, 100, n_first), second = make_tokens(&lt_malloc_allocator, 200, n_second),
              out;
    lt_tokens_init(&out, &lt_malloc_allocator);
    for (int left = 0; left < 2; left++) {
        const lt_encode_options options = { .add_special = true, .max_length = limit, .truncate_left = left };
        assert_ok_err(lt_post_apply(post, &first, &second, LT_STR("a b c d e"), LT_STR("a b c d e"), &options, &out, &err), &err);
        size_t count[2] = { 0, 0 };
        for (size_t i = 0; i < out.n; i++) {
            if (out.sequence[i] == 255) continue;
            size_t which = out.sequence[i], n = which == 0 ? n_first : n_second, kept = which == 0 ? left_first : left_second;
            size_t from = left ? n - kept : 0; /* which tokens are kept */
            assert_int_equal(out.ids[i], (which == 0 ? 100 : 200) + from + count[which]);
            count[which]++;
        }
        if (count[0] != left_first || count[1] != left_second)
            fail_msg("%zu and %zu tokens within %zu: %zu and %zu are left", n_first, n_second, limit, count[0], count[1]);
        assert_int_equal(out.truncated, n_first + n_second + 3 > limit);
    }
    lt_tokens_free(&first);
    lt_tokens_free(&second);
    lt_tokens_free(&out);
}

static void pairs_are_cut_longest_first(void **state)
{
    (void)state;
    static const uint8_t golden[][5] = {
#include "truncation.inc"
    };
    lt_post *post = open_post(BERT);
    for (size_t i = 0; i < sizeof golden / sizeof *golden; i++)
        check_truncation(post, golden[i][0], golden[i][1], golden[i][2], golden[i][3], golden[i][4]);
    lt_post_free(post);
}

static void a_single_text_is_cut_at_its_end_or_start(void **state)
{
    (void)state;
    check_post(BERT, false, (lt_encode_options){ .add_special = true, .max_length = 3 }, "0:0:0-0* 4:0:0-1a 1:0:0-0*");
    check_post(BERT, false, (lt_encode_options){ .add_special = true, .max_length = 3, .truncate_left = true },
               "0:0:0-0* 5:0:2-3a 1:0:0-0*");
    check_post(BERT, false, (lt_encode_options){ .add_special = true, .max_length = 2 }, "0:0:0-0* 1:0:0-0*");
    check_post(BERT, false, (lt_encode_options){ .max_length = 1 }, "4:0:0-1a");
}

static void a_limit_below_the_special_tokens_is_refused(void **state)
{
    (void)state;
    lattice_error err;
    lt_post *post = open_post(BERT);
    lt_tokens first = make_tokens(&lt_malloc_allocator, 4, 2), out;
    lt_tokens_init(&out, &lt_malloc_allocator);
    const lt_encode_options options = { .add_special = true, .max_length = 1 };
    assert_int_equal(lt_post_apply(post, &first, NULL, LT_STR("a b"), LT_STR(""), &options, &out, &err),
                     LATTICE_ERR_INVALID_ARGUMENT);
    assert_non_null(strstr(err.message, "max_length 1"));
    lt_tokens_free(&first);
    lt_tokens_free(&out);
    lt_post_free(post);
}

/* ------------------------------------------------------------------ trimming */

typedef struct trim_case {
    bool add_prefix_space;
    const char *text;
    struct {
        const char *spelling; /* NULL: an added token */
        size_t start, end, trimmed_start, trimmed_end;
    } tokens[4];
} trim_case;

static lt_str spelling_of(const void *owner, uint32_t id)
{
    const char *spelling = ((const trim_case *)owner)->tokens[id].spelling;
    return spelling != NULL ? lt_str_of(spelling) : (lt_str){ NULL, 0 };
}

/* G is the space of GPT-2's alphabet. Offsets are in bytes here, in characters in the original. */
#define G "\xC4\xA0"

static void trimming_takes_the_white_space_off_spans(void **state)
{
    (void)state;
    static const trim_case cases[] = {
        { true, "a b", { { "a", 0, 1, 0, 1 }, { G "b", 1, 3, 2, 3 } } },
        { true, " a b", { { G "a", 0, 2, 0, 2 }, { G "b", 2, 4, 3, 4 } } },
        { false, " a b", { { G "a", 0, 2, 1, 2 }, { G "b", 2, 4, 3, 4 } } },
        { true, "  a", { { G, 0, 1, 0, 0 }, { G "a", 1, 3, 2, 3 } } },
        { false, "  a", { { G, 0, 1, 1, 1 }, { G "a", 1, 3, 2, 3 } } },
        { true, "   ", { { G G G, 0, 3, 3, 3 } } },
        { false, " ", { { G, 0, 1, 1, 1 } } },
        { true, "a ", { { "a" G, 0, 2, 0, 1 } } },
        { true, "a  b", { { "a", 0, 1, 0, 1 }, { G, 1, 2, 2, 2 }, { G "b", 2, 4, 3, 4 } } },
        { true, "b<x>a", { { "b", 0, 1, 0, 1 }, { NULL, 1, 4, 1, 4 }, { "a", 4, 5, 4, 5 } } },
        { true, " <x> b", { { NULL, 0, 5, 0, 4 }, { "b", 5, 6, 5, 6 } } },
        { false, " <x> b", { { NULL, 0, 5, 1, 4 }, { "b", 5, 6, 5, 6 } } },
        { true, "\xC3\xA9 a", { { "\xC3\x83", 0, 2, 0, 2 }, { "\xC2\xA9", 0, 2, 0, 2 }, { G "a", 2, 4, 3, 4 } } },
        { false,
          " a \xC3\xA9 ",
          { { G "a" G, 0, 3, 1, 2 }, { "\xC3\x83", 3, 5, 3, 5 }, { "\xC2\xA9", 3, 5, 3, 5 }, { G, 5, 6, 6, 6 } } },
        { true, "\na", { { "\xC4\x8A", 0, 1, 0, 1 }, { "a", 1, 2, 1, 2 } } },
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const trim_case *c = &cases[i];
        lattice_error err;
        lt_post *post = open_post(c->add_prefix_space ? "{'type': 'ByteLevel', 'add_prefix_space': true, 'trim_offsets': true}"
                                                      : "{'type': 'ByteLevel', 'add_prefix_space': false, 'trim_offsets': true}");
        size_t n = 0;
        while (n < 4 && c->tokens[n].end > 0) n++;
        lt_tokens tokens = make_tokens(&lt_malloc_allocator, 0, n), out;
        for (size_t k = 0; k < n; k++) tokens.spans[k] = (struct lt_span){ c->tokens[k].start, c->tokens[k].end };
        lt_tokens_init(&out, &lt_malloc_allocator);
        lt_post_set_spelling(post, spelling_of, c);
        assert_ok_err(lt_post_apply(post, &tokens, NULL, lt_str_of(c->text), LT_STR(""), &with_special, &out, &err), &err);
        for (size_t k = 0; k < n; k++) {
            if (out.spans[k].start != c->tokens[k].trimmed_start || out.spans[k].end != c->tokens[k].trimmed_end)
                fail_msg("'%s' (%d), token %zu: %u-%u", c->text, c->add_prefix_space, k, out.spans[k].start, out.spans[k].end);
        }
        lt_tokens_free(&tokens);
        lt_tokens_free(&out);
        lt_post_free(post);
    }
}

/* ------------------------------------------------------------------ bad input */

static void refuse(const char *json, lattice_status expected, const char *part)
{
    lattice_error err = { 0 };
    lt_post *post;
    lattice_status status = read_post(&lt_malloc_allocator, json, &post, &err);
    if (status != expected || strstr(err.message, part) == NULL)
        fail_msg("%s\n  gives %s: '%s', not %s with '%s'", json, lattice_status_text(status), err.message,
                 lattice_status_text(expected), part);
}

static void malformed_post_processors_are_refused(void **state)
{
    (void)state;
    refuse("[]", LATTICE_ERR_FORMAT, "not an object");
    refuse("{}", LATTICE_ERR_FORMAT, "no 'type'");
    refuse("{'type': 'Nothing'}", LATTICE_ERR_UNSUPPORTED, "'Nothing'");
    refuse("{'type': 'ByteLevel', 'trim_offsets': true}", LATTICE_ERR_FORMAT, "add_prefix_space");
    refuse("{'type': 'BertProcessing', 'cls': ['[CLS]', 0]}", LATTICE_ERR_FORMAT, "sep");
    refuse("{'type': 'BertProcessing', 'cls': ['[CLS]'], 'sep': ['[SEP]', 1]}", LATTICE_ERR_FORMAT, "pair");
    refuse("{'type': 'BertProcessing', 'cls': ['[CLS]', -1], 'sep': ['[SEP]', 1]}", LATTICE_ERR_FORMAT, "");
    refuse("{'type': 'RobertaProcessing', 'cls': ['<s>', 0], 'sep': ['</s>', 1]}", LATTICE_ERR_FORMAT, "trim_offsets");
    refuse("{'type': 'TemplateProcessing', 'pair': [], 'special_tokens': {}}", LATTICE_ERR_FORMAT, "single");
    refuse(TEMPLATE(SPECIAL("[MASK]", 0), PIECE_A(0)), LATTICE_ERR_FORMAT, "'[MASK]'");
    refuse(TEMPLATE(PIECE_B(0), PIECE_A(0)), LATTICE_ERR_FORMAT, "sequence B");
    refuse(TEMPLATE("{'Sequence': {'id': 'C', 'type_id': 0}}", ""), LATTICE_ERR_FORMAT, "'C'");
    refuse(TEMPLATE("{'Sequence': {'id': 'A'}}", ""), LATTICE_ERR_FORMAT, "type_id");
    refuse(TEMPLATE("{'Other': {}}", ""), LATTICE_ERR_FORMAT, "neither");
    refuse(TEMPLATE("'$A'", ""), LATTICE_ERR_FORMAT, "not an object");
    refuse(TEMPLATE("{}", ""), LATTICE_ERR_FORMAT, "neither");
    refuse("{'type': 'TemplateProcessing', 'single': [" SPECIAL("X", 0) "], 'pair': [], 'special_tokens': {'X': {'id': 'X'}}}",
           LATTICE_ERR_FORMAT, "no 'ids'");
    refuse("{'type': 'Sequence', 'processors': [" BERT "," BERT "]}", LATTICE_ERR_UNSUPPORTED, "TemplateProcessing");
    refuse("{'type': 'Sequence'}", LATTICE_ERR_FORMAT, "processors");
    refuse("{'type': 'Sequence', 'processors': {}}", LATTICE_ERR_FORMAT, "");
}

static void errors_name_the_line_in_the_whole_file(void **state)
{
    (void)state;
    refuse("{'type': 'TemplateProcessing',\n'pair': [],\n'single': [\n 7], 'special_tokens': {}}", LATTICE_ERR_FORMAT,
           "tokenizer.json:3:11");
}

static void every_failed_allocation_is_reported(void **state)
{
    (void)state;
    for (long n = 1;; n++) {
        lt_test_allocator allocator = lt_test_allocator_failing_at(n);
        lattice_allocator mem = lt_test_allocator_hooks(&allocator);
        lattice_error err;
        lt_post *post;
        lt_tokens first = make_tokens(&lt_malloc_allocator, 4, 100), out;
        lt_tokens_init(&out, &mem);
        lattice_status status = read_post(&mem, "{'type': 'Sequence', 'processors': [" ROBERTA "]}", &post, &err);
        if (status == LATTICE_OK)
            status = lt_post_apply(post, &first, &first, LT_STR("a b"), LT_STR("c d"), &with_special, &out, &err);
        lt_post_free(post);
        lt_tokens_free(&first);
        lt_tokens_free(&out);
        assert_int_equal(lt_test_allocator_live(&allocator), 0);
        if (status == LATTICE_OK) break;
        assert_int_equal(status, LATTICE_ERR_NO_MEMORY);
    }
    for (long n = 1;; n++) {
        lt_test_allocator allocator = lt_test_allocator_failing_at(n);
        lattice_allocator mem = lt_test_allocator_hooks(&allocator);
        lattice_error err;
        lt_post *post;
        lattice_status status = read_post(&mem, BERT, &post, &err);
        lt_post_free(post);
        assert_int_equal(lt_test_allocator_live(&allocator), 0);
        if (status == LATTICE_OK) break;
        assert_int_equal(status, LATTICE_ERR_NO_MEMORY);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(template_adds_special_tokens_and_types),
        cmocka_unit_test(template_may_swap_the_texts_and_add_several_ids),
        cmocka_unit_test(template_may_leave_a_text_out),
        cmocka_unit_test(no_post_processor_joins_the_texts),
        cmocka_unit_test(bert_processing_is_the_template_of_bert),
        cmocka_unit_test(roberta_processing_doubles_the_separator_and_has_one_type),
        cmocka_unit_test(sequence_applies_its_members),
        cmocka_unit_test(vocab_txt_has_the_template_of_bert),
        cmocka_unit_test(pairs_are_cut_longest_first),
        cmocka_unit_test(a_single_text_is_cut_at_its_end_or_start),
        cmocka_unit_test(a_limit_below_the_special_tokens_is_refused),
        cmocka_unit_test(trimming_takes_the_white_space_off_spans),
        cmocka_unit_test(malformed_post_processors_are_refused),
        cmocka_unit_test(errors_name_the_line_in_the_whole_file),
        cmocka_unit_test(every_failed_allocation_is_reported),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
