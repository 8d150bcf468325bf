/* Any bytes through the fixtures' tokenizers: spans lie inside the text and do not run backwards beyond a neighbour's, ids are in
 * the vocabulary, and a limit gives the beginning of what no limit gives. */
#include <stdio.h>
#include <stdlib.h>

#include "text/tokenizer.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static const char *const names[] = { "bert-cls", "roberta-max", "xlmr-mean", "qwen3-embedding", "qwen3.5-text" };
enum { N = sizeof names / sizeof *names };
static lt_tokenizer *tokenizers[N];
static lt_scratch *scratches[N];

static void open_all(void)
{
    for (int k = 0; k < N; k++) {
        char path[1024];
        lattice_error err;
        snprintf(path, sizeof path, LT_FIXTURES "/%s", names[k]);
        if (lt_tokenizer_open(&lt_malloc_allocator, path, &tokenizers[k], &err) != LATTICE_OK ||
            lt_scratch_create(tokenizers[k], &scratches[k], &err) != LATTICE_OK) {
            fprintf(stderr, "%s\n", err.message);
            exit(1);
        }
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (!tokenizers[0]) open_all();
    if (size < 2) return 0;
    int k = data[0] % N;
    lt_encode_options options = { .literal = data[0] & 0x40, .no_spans = data[0] & 0x20 };
    lt_str text = { (const char *)data + 2, size - 2 };
    lattice_error err;
    lt_tokens all, some;
    lt_tokens_init(&all, &lt_malloc_allocator);
    lt_tokens_init(&some, &lt_malloc_allocator);
    if (lt_tokenizer_encode(tokenizers[k], scratches[k], text, NULL, &options, &all, &err) != LATTICE_OK) abort();
    for (size_t i = 0; i < all.n; i++) {
        if (all.ids[i] >= lt_tokenizer_size(tokenizers[k])) abort();
        if (all.spans[i].start > all.spans[i].end || all.spans[i].end > text.len) abort();
    }
    options.max_length = (size_t)data[1] + 1;
    if (lt_tokenizer_encode(tokenizers[k], scratches[k], text, NULL, &options, &some, &err) != LATTICE_OK) abort();
    size_t wanted = all.n < options.max_length ? all.n : options.max_length;
    if (some.n != wanted || (wanted && memcmp(some.ids, all.ids, wanted * sizeof *all.ids) != 0)) abort();
    if (wanted && memcmp(some.spans, all.spans, wanted * sizeof *all.spans) != 0) abort();
    lt_tokens_free(&all);
    lt_tokens_free(&some);
    return 0;
}
