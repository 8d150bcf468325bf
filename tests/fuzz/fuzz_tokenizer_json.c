/* tokenizer.json: whatever is accepted must encode and decode some awkward texts without a fault, with spans inside them. */
#include <stdlib.h>

#include "text/tokenizer.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static const char text[] = "A na\xC3\xAFve text, \xE6\x97\xA5\xE6\x9C\xAC 12345 don't  \t\r\n<s>e\xCC\x81\xE6\xAD "
                           "[CLS]\xF0\x9F\x91\x8D\xE2\x96\x81 end  ";

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    lattice_error err;
    lt_tokenizer *t;
    if (lt_tokenizer_parse(&lt_malloc_allocator, "fuzz", (lt_str){ (const char *)data, size }, &t, &err) != LATTICE_OK) return 0;
    lt_scratch *s;
    lt_tokens tokens;
    lt_buf out;
    if (lt_scratch_create(t, &s, &err) != LATTICE_OK) abort();
    lt_tokens_init(&tokens, &lt_malloc_allocator);
    lt_buf_init(&out, &lt_malloc_allocator);
    lt_str pair = LT_STR("the \0pair");
    lt_encode_options options = { .add_special = true };
    for (int k = 0; k < 3; k++) {
        options.max_length = k == 1 ? 8 : 0;
        if (lt_tokenizer_encode(t, s, LT_STR(text), k == 2 ? &pair : NULL, &options, &tokens, &err) != LATTICE_OK) continue;
        for (size_t i = 0; i < tokens.n; i++) {
            if (tokens.spans[i].start > tokens.spans[i].end || tokens.spans[i].end > sizeof text - 1) abort();
        }
        lt_tokenizer_decode(t, tokens.ids, tokens.n, k == 0, &out, &err);
    }
    lt_buf_free(&out);
    lt_tokens_free(&tokens);
    lt_scratch_free(s);
    lt_tokenizer_close(t);
    return 0;
}
