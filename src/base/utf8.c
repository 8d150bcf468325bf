/* UTF-8, decoded as the WHATWG Encoding Standard does: a lead byte fixes how many continuation bytes follow and in which range
 * the first of them must lie (this alone excludes overlong forms, surrogates and codes past U+10FFFF); the first byte that
 * does not fit ends the invalid subpart and is looked at again. */
#include "base/utf8.h"

#if defined(__SSE2__)
#include <emmintrin.h>
#endif

/* Bytes a lead byte announces (0: no lead byte) and the range of its first continuation byte. */
static size_t lead(uint8_t byte, uint8_t *low, uint8_t *high)
{
    *low = 0x80;
    *high = 0xBF;
    if (byte < 0x80) return 1;
    if (byte < 0xC2) return 0;
    if (byte < 0xE0) return 2;
    if (byte < 0xF0) {
        if (byte == 0xE0) *low = 0xA0;
        if (byte == 0xED) *high = 0x9F;
        return 3;
    }
    if (byte > 0xF4) return 0;
    if (byte == 0xF0) *low = 0x90;
    if (byte == 0xF4) *high = 0x8F;
    return 4;
}

size_t lt_utf8_decode(const uint8_t *s, size_t n, uint32_t *code)
{
    uint8_t low, high;
    size_t length = lead(s[0], &low, &high);
    if (length == 1) {
        *code = s[0];
        return 1;
    }
    *code = LT_REPLACEMENT;
    if (length == 0) return 1;
    uint32_t value = s[0] & (0x7Fu >> length);
    for (size_t i = 1; i < length; i++) {
        if (i == n || s[i] < low || s[i] > high) return i;
        value = value << 6 | (s[i] & 0x3Fu);
        low = 0x80;
        high = 0xBF;
    }
    *code = value;
    return length;
}

size_t lt_utf8_encode(uint32_t code, uint8_t out[4])
{
    if (code < 0x80) {
        out[0] = (uint8_t)code;
        return 1;
    }
    if (code < 0x800) {
        out[0] = (uint8_t)(0xC0 | code >> 6);
        out[1] = (uint8_t)(0x80 | (code & 0x3F));
        return 2;
    }
    if (code < 0x10000) {
        out[0] = (uint8_t)(0xE0 | code >> 12);
        out[1] = (uint8_t)(0x80 | (code >> 6 & 0x3F));
        out[2] = (uint8_t)(0x80 | (code & 0x3F));
        return 3;
    }
    out[0] = (uint8_t)(0xF0 | code >> 18);
    out[1] = (uint8_t)(0x80 | (code >> 12 & 0x3F));
    out[2] = (uint8_t)(0x80 | (code >> 6 & 0x3F));
    out[3] = (uint8_t)(0x80 | (code & 0x3F));
    return 4;
}

/* Offset of the first byte from i on that is not ASCII, n if there is none. */
static size_t skip_ascii(const uint8_t *s, size_t i, size_t n)
{
#if defined(__SSE2__)
    for (; n - i >= 16; i += 16) {
        unsigned mask = (unsigned)_mm_movemask_epi8(_mm_loadu_si128((const __m128i *)(const void *)(s + i)));
        if (mask) return i + (size_t)__builtin_ctz(mask);
    }
#else
    for (; n - i >= 8; i += 8) {
        uint64_t word;
        memcpy(&word, s + i, 8);
        if (word & 0x8080808080808080u) break;
    }
#endif
    while (i < n && s[i] < 0x80) i++;
    return i;
}

size_t lt_utf8_valid_prefix(const uint8_t *s, size_t n)
{
    for (size_t i = 0;;) {
        i = skip_ascii(s, i, n);
        /* Text in other scripts stays in this loop; a space between words does not leave it for the wide scan. */
        for (;;) {
            if (i == n) return n;
            if (s[i] >= 0x80) {
                size_t length = lt_utf8_sequence(s + i, n - i);
                if (length == 0) return i;
                i += length;
            } else if (n - i > 1 && s[i + 1] >= 0x80) {
                i++;
            } else {
                break;
            }
        }
    }
}

void lt_utf8_append_repaired(lt_buf *out, const uint8_t *s, size_t n)
{
    while (n > 0) {
        size_t valid = lt_utf8_valid_prefix(s, n);
        lt_buf_append(out, s, valid);
        s += valid;
        n -= valid;
        if (n > 0) {
            uint32_t code;
            size_t bad = lt_utf8_decode(s, n, &code);
            lt_buf_append(out, "\xEF\xBF\xBD", 3);
            s += bad;
            n -= bad;
        }
    }
}

size_t lt_utf8_incomplete_suffix(const uint8_t *s, size_t n)
{
    for (size_t k = 1; k <= 3 && k <= n; k++) {
        uint8_t low, high;
        size_t length = lead(s[n - k], &low, &high);
        if (length == 0 && (s[n - k] & 0xC0) == 0x80) continue; /* a continuation byte: its lead is further left */
        if (length <= k) return 0;
        return k == 1 || (s[n - k + 1] >= low && s[n - k + 1] <= high) ? k : 0;
    }
    return 0;
}
