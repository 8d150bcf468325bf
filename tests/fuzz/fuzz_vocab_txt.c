/* vocab.txt, and behind a line "{" on, its tokenizer_config.json. */
#include <stdlib.h>

#include "text/tokenizer.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    lattice_error err;
    lt_tokenizer *t;
    const uint8_t *brace = memmem(data, size, "\n{", 2);
    size_t length = brace ? (size_t)(brace - data) + 1 : size;
    lt_str config = { (const char *)data + length, size - length };
    if (lt_tokenizer_parse_vocab(&lt_malloc_allocator, "fuzz", (lt_str){ (const char *)data, length }, brace ? &config : NULL, &t,
                                 &err) != LATTICE_OK)
        return 0;
    lt_scratch *s;
    lt_tokens tokens;
    if (lt_scratch_create(t, &s, &err) != LATTICE_OK) abort();
    lt_tokens_init(&tokens, &lt_malloc_allocator);
    lt_encode_options options = { .add_special = true };
    if (lt_tokenizer_encode(t, s, LT_STR("[CLS] Unaffable caf\xC3\xA9 \xE6\x97\xA5\xE6\x9C\xAC!\xE6\xAD"), NULL, &options,
                            &tokens, &err) != LATTICE_OK)
        abort();
    if (tokens.n < 3) abort();
    lt_tokens_free(&tokens);
    lt_scratch_free(s);
    lt_tokenizer_close(t);
    return 0;
}
