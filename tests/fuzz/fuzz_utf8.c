/* UTF-8 from hostile bytes: repairing agrees with decoding one code point after the other, its result is valid and stays as it
 * is, and cutting the text anywhere changes nothing once the incomplete end was held back. */
#include <stdlib.h>

#include "base/utf8.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    lt_buf repaired, decoded, pieces;
    lt_buf_init(&repaired, &lt_malloc_allocator);
    lt_buf_init(&decoded, &lt_malloc_allocator);
    lt_buf_init(&pieces, &lt_malloc_allocator);

    lt_utf8_append_repaired(&repaired, data, size);
    for (size_t i = 0; i < size;) {
        uint32_t code;
        uint8_t bytes[4];
        size_t n = lt_utf8_decode(data + i, size - i, &code);
        if (n == 0 || n > 4 || n > size - i) abort();
        lt_buf_append(&decoded, bytes, lt_utf8_encode(code, bytes));
        i += n;
    }
    if (!lt_str_eq(lt_buf_str(&repaired), lt_buf_str(&decoded))) abort();
    if (repaired.len && lt_utf8_valid_prefix((const uint8_t *)repaired.data, repaired.len) != repaired.len) abort();
    if (lt_utf8_valid_prefix(data, size) == size && !lt_str_eq(lt_buf_str(&repaired), (lt_str){ (const char *)data, size }))
        abort();

    if (size > 1) {
        size_t cut = data[0] % size, held = lt_utf8_incomplete_suffix(data, cut);
        if (held > 3 || held > cut) abort();
        lt_utf8_append_repaired(&pieces, data, cut - held);
        lt_utf8_append_repaired(&pieces, data + cut - held, size - (cut - held));
        if (!lt_str_eq(lt_buf_str(&repaired), lt_buf_str(&pieces))) abort();
    }
    lt_buf_free(&repaired);
    lt_buf_free(&decoded);
    lt_buf_free(&pieces);
    return 0;
}
