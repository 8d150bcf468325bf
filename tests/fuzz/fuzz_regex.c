/* An expression of a tokenizer.json and a text: translating, compiling and searching never crash, and the matches lie in the text,
 * in order, whole characters each.
 *
 * Input: the expression, a byte 0xFF (which UTF-8 never has), and the text. Both are repaired first: a file and a text that reach
 * the engine are valid UTF-8. */
#include <stdlib.h>

#include "base/utf8.h"
#include "text/regex.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static bool is_border(lt_str text, size_t at)
{
    return at == text.len || (at < text.len && ((uint8_t)text.data[at] & 0xC0) != 0x80);
}

static void search(const lt_regex *regex, lt_str text)
{
    lattice_error err;
    lt_regex_scratch *scratch;
    if (lt_regex_scratch_create(&lt_malloc_allocator, &scratch, &err) != LATTICE_OK) abort();
    lt_regex_matches m = lt_regex_begin(regex, scratch, (const uint8_t *)text.data, text.len);
    size_t start, end, last = 0;
    for (bool found; lt_regex_next(&m, &found, &start, &end, &err) == LATTICE_OK && found; last = end) {
        if (start < last || end < start || !is_border(text, start) || !is_border(text, end)) abort();
    }
    lt_regex_scratch_free(scratch);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    const uint8_t *end = size > 0 ? memchr(data, 0xFF, size) : NULL;
    size_t n = end ? (size_t)(end - data) : size;
    lt_buf pattern, text;
    lt_buf_init(&pattern, &lt_malloc_allocator);
    lt_buf_init(&text, &lt_malloc_allocator);
    lt_utf8_append_repaired(&pattern, data, n);
    if (end) lt_utf8_append_repaired(&text, end + 1, size - n - 1);
    lattice_error err;
    lt_regex *regex;
    if (lt_regex_compile(&lt_malloc_allocator, lt_buf_str(&pattern), "fuzz", &regex, &err) == LATTICE_OK) {
        search(regex, text.data ? lt_buf_str(&text) : LT_STR(""));
        lt_regex_free(regex);
    }
    lt_buf_free(&pattern);
    lt_buf_free(&text);
    return 0;
}
