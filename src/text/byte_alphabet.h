/* The byte-to-character alphabet of GPT-2: printable Latin-1 bytes stand for themselves, the other 68 (controls, space, DEL,
 * no-break space, soft hyphen, C1) for U+0100 and on, in order. */
#ifndef LT_TEXT_BYTE_ALPHABET_H
#define LT_TEXT_BYTE_ALPHABET_H

#include <stdint.h>

static inline uint32_t lt_byte_to_char(uint8_t byte)
{
    if ((byte >= 0x21 && byte <= 0x7E) || (byte >= 0xA1 && byte != 0xAD)) return byte;
    if (byte <= 0x20) return 0x100u + byte;
    if (byte <= 0xA0) return 0x100u + 33u + (byte - 0x7Fu);
    return 0x143u; /* 0xAD */
}

/* -1: not a character of the alphabet. */
static inline int lt_char_to_byte(uint32_t code)
{
    if ((code >= 0x21 && code <= 0x7E) || (code >= 0xA1 && code <= 0xFF && code != 0xAD)) return (int)code;
    if (code >= 0x100 && code <= 0x120) return (int)(code - 0x100);
    if (code >= 0x121 && code <= 0x142) return (int)(code - 0x121 + 0x7F);
    return code == 0x143 ? 0xAD : -1;
}

#endif
