/* Helpers for tests of the subword models: a model from JSON text or from a fixture's tokenizer.json, and words encoded into a
 * readable form, "id:start:end id:start:end". */
#ifndef LT_TESTS_SUBWORD_SUPPORT_H
#define LT_TESTS_SUBWORD_SUPPORT_H

#include "support.h"
#include "text/model.h"

typedef struct word_case {
    const char *word;
    size_t size;
    const char *tokens;
} word_case;

/* A word (which may hold NUL) and its tokens. */
#define WORD(literal, tokens)                                                                                                    \
    {                                                                                                                            \
        (literal), sizeof(literal) - 1, (tokens)                                                                                 \
    }

static inline lattice_status read_model(const lattice_allocator *mem, const char *text, size_t size, bool byte_level,
                                        lt_subword **model, lattice_error *err)
{
    lt_json json;
    *model = NULL;
    lt_json_open(&json, mem, "tokenizer.json", text, size, err);
    lattice_status status = lt_subword_read(mem, &json, model, err);
    lt_json_close(&json);
    if (status != LATTICE_OK) return status;
    status = lt_subword_prepare(*model, byte_level, err);
    if (status == LATTICE_OK) return status;
    lt_subword_free(*model);
    *model = NULL;
    return status;
}

/* The text of the `model` member of a tokenizer.json; `file` is malloc'd. */
static inline lt_str model_text(const char *path, char **file)
{
    size_t size;
    lt_json json;
    lattice_error err;
    lt_str raw = { NULL, 0 };
    *file = lt_test_read_file(path, &size);
    lt_json_open(&json, &lt_malloc_allocator, path, *file, size, &err);
    assert_ok_err(lt_json_begin_object(&json), &err);
    for (bool more = true; more;) {
        lt_str key;
        assert_ok_err(lt_json_next_member(&json, &key, &more), &err);
        if (!more) break;
        if (lt_str_is(key, "model"))
            assert_ok_err(lt_json_raw(&json, &raw), &err);
        else
            assert_ok_err(lt_json_skip(&json), &err);
    }
    lt_json_close(&json);
    return raw;
}

/* JSON written with ' for ", malloc'd. */
static inline char *json_text(const char *text)
{
    char *copy = strdup(text);
    for (char *c = copy; *c != '\0'; c++) *c = *c == '\'' ? '"' : *c;
    return copy;
}

static inline lt_subword *open_model(const char *text, bool byte_level)
{
    lattice_error err;
    lt_subword *model;
    char *json = json_text(text);
    assert_ok_err(read_model(&lt_malloc_allocator, json, strlen(json), byte_level, &model, &err), &err);
    free(json);
    return model;
}

static inline lt_subword *open_fixture(const char *path, bool byte_level)
{
    lattice_error err;
    lt_subword *model;
    char *file;
    lt_str text = model_text(path, &file);
    assert_ok_err(read_model(&lt_malloc_allocator, text.data, text.len, byte_level, &model, &err), &err);
    free(file);
    return model;
}

static inline void format_pieces(const lt_pieces *pieces, lt_buf *out)
{
    lt_buf_clear(out);
    for (size_t i = 0; i < pieces->n; i++)
        lt_buf_printf(out, "%s%u:%u:%u", i > 0 ? " " : "", pieces->data[i].id, pieces->data[i].start, pieces->data[i].end);
}

/* Every word twice: from the model, then from the cache of words. */
static inline void check_words(const lt_subword *model, const word_case *cases, size_t n)
{
    lattice_error err;
    lt_subword_scratch *scratch;
    lt_pieces pieces = { .mem = &lt_malloc_allocator };
    lt_buf text;
    lt_buf_init(&text, &lt_malloc_allocator);
    assert_ok_err(lt_subword_scratch_create(model, &scratch, &err), &err);
    for (size_t round = 0; round < 2; round++) {
        for (size_t i = 0; i < n; i++) {
            pieces.n = 0;
            assert_ok_err(lt_subword_encode(model, scratch, (const uint8_t *)cases[i].word, cases[i].size, &pieces, &err), &err);
            format_pieces(&pieces, &text);
            assert_string_equal(text.len > 0 ? text.data : "", cases[i].tokens);
        }
    }
    lt_buf_free(&text);
    free(pieces.data);
    lt_subword_scratch_free(scratch);
}

static inline void check_model(const char *json, bool byte_level, const word_case *cases, size_t n)
{
    lt_subword *model = open_model(json, byte_level);
    check_words(model, cases, n);
    lt_subword_free(model);
}

static inline void check_fixture(const char *path, bool byte_level, const word_case *cases, size_t n)
{
    lt_subword *model = open_fixture(path, byte_level);
    check_words(model, cases, n);
    lt_subword_free(model);
}

#define CHECK_MODEL(json, byte_level, ...)                                                                                       \
    check_model(json, byte_level, (const word_case[])__VA_ARGS__, sizeof((const word_case[])__VA_ARGS__) / sizeof(word_case))
#define CHECK_FIXTURE(path, byte_level, ...)                                                                                     \
    check_fixture(path, byte_level, (const word_case[])__VA_ARGS__, sizeof((const word_case[])__VA_ARGS__) / sizeof(word_case))

/* Reading fails with the status and a message that contains `part`. */
static inline void refuse_model(const char *text, lattice_status expected, const char *part)
{
    lattice_error err = { 0 };
    lt_subword *model;
    char *json = json_text(text);
    lattice_status status = read_model(&lt_malloc_allocator, json, strlen(json), false, &model, &err);
    if (status != expected || strstr(err.message, part) == NULL)
        fail_msg("%s\n  gives %s: '%s', not %s with '%s'", json, lattice_status_text(status), err.message,
                 lattice_status_text(expected), part);
    free(json);
}

/* Loading and encoding with every allocation failing in turn: each failure is reported and leaks nothing. */
static inline void check_allocation_failures(const char *text, bool byte_level, const char *word)
{
    char *json = json_text(text);
    for (long n = 1;; n++) {
        lt_test_allocator allocator = lt_test_allocator_failing_at(n);
        lattice_allocator mem = lt_test_allocator_hooks(&allocator);
        lattice_error err;
        lt_subword *model = NULL;
        lt_subword_scratch *scratch = NULL;
        lt_pieces pieces = { .mem = &mem };
        lattice_status status = read_model(&mem, json, strlen(json), byte_level, &model, &err);
        if (status == LATTICE_OK) status = lt_subword_scratch_create(model, &scratch, &err);
        if (status == LATTICE_OK) status = lt_subword_encode(model, scratch, (const uint8_t *)word, strlen(word), &pieces, &err);
        lt_free(&mem, pieces.data);
        lt_subword_scratch_free(scratch);
        lt_subword_free(model);
        assert_int_equal(lt_test_allocator_live(&allocator), 0);
        if (status == LATTICE_OK) break;
        assert_int_equal(status, LATTICE_ERR_NO_MEMORY);
    }
    free(json);
}

#endif
