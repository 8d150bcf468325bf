/* UTF-8 as WHATWG decodes it: every maximal invalid subpart becomes one U+FFFD. */
#ifndef LT_BASE_UTF8_H
#define LT_BASE_UTF8_H

#include "base/bytes.h"

#define LT_REPLACEMENT 0xFFFDu

/* Length 2..4 of the valid code point that starts with the byte s[0] >= 0x80 at s[0..n), n > 0; 0 when it is not valid. The
 * bounds of the second byte exclude overlong forms, surrogates and what lies past U+10FFFF. */
static inline size_t lt_utf8_sequence(const uint8_t *s, size_t n)
{
    uint8_t lead = s[0];
    if (n < 2 || lead < 0xC2) return 0;
    uint8_t second = s[1];
    if (lead < 0xE0) return (second & 0xC0) == 0x80 ? 2 : 0;
    if (n < 3 || (s[2] & 0xC0) != 0x80) return 0;
    if (lead < 0xF0) {
        uint8_t low = lead == 0xE0 ? 0xA0 : 0x80, high = lead == 0xED ? 0x9F : 0xBF;
        return second >= low && second <= high ? 3 : 0;
    }
    if (lead > 0xF4 || n < 4 || (s[3] & 0xC0) != 0x80) return 0;
    uint8_t low = lead == 0xF0 ? 0x90 : 0x80, high = lead == 0xF4 ? 0x8F : 0xBF;
    return second >= low && second <= high ? 4 : 0;
}

/* Decodes the code point at s[0..n), n > 0. Returns the bytes consumed (1..4). Invalid: *code is U+FFFD and the length of the
 * maximal invalid subpart is returned. */
size_t lt_utf8_decode(const uint8_t *s, size_t n, uint32_t *code);

/* Writes `code` (a scalar value) as 1..4 bytes. */
size_t lt_utf8_encode(uint32_t code, uint8_t out[4]);

/* Offset of the first invalid byte, or n when all of s is valid. Fast over ASCII. */
size_t lt_utf8_valid_prefix(const uint8_t *s, size_t n);

/* Appends s with invalid subparts replaced by U+FFFD. */
void lt_utf8_append_repaired(lt_buf *out, const uint8_t *s, size_t n);

/* Number of bytes at the end of s that start a code point that is not whole yet (0..3): what streaming holds back. */
size_t lt_utf8_incomplete_suffix(const uint8_t *s, size_t n);

#endif
