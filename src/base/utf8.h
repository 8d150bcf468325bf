/* UTF-8 as WHATWG decodes it: every maximal invalid subpart becomes one U+FFFD. */
#ifndef LT_BASE_UTF8_H
#define LT_BASE_UTF8_H

#include "base/bytes.h"

#define LT_REPLACEMENT 0xFFFDu

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
