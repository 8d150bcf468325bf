/* Hash and exact key of a short byte string, inline: the tables of the tokenizer look up millions of words a second.
 *
 * Up to 16 bytes are read as two overlapping loads; with the length beside them the two numbers determine the bytes, so that a
 * cache of words compares two numbers instead of a string. Mixing is one 64 × 64 → 128 bit product (the "mum" of wyhash). */
#ifndef LT_TEXT_WORD_HASH_H
#define LT_TEXT_WORD_HASH_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#define LT_WORD_KEY_MAX 16

typedef struct lt_word_key {
    uint64_t low, high;
} lt_word_key;

static inline uint64_t lt_load64(const uint8_t *s)
{
    uint64_t v;
    memcpy(&v, s, sizeof v);
    return v;
}

static inline uint32_t lt_load32(const uint8_t *s)
{
    uint32_t v;
    memcpy(&v, s, sizeof v);
    return v;
}

/* n in 1..16. Two strings of one length are equal exactly when their keys are. */
static inline lt_word_key lt_word_key_of(const uint8_t *s, size_t n)
{
    if (n >= 8) return (lt_word_key){ lt_load64(s), lt_load64(s + n - 8) };
    if (n >= 4) return (lt_word_key){ lt_load32(s), lt_load32(s + n - 4) };
    return (lt_word_key){ (uint64_t)s[0] | (uint64_t)s[n / 2] << 8 | (uint64_t)s[n - 1] << 16, 0 };
}

static inline uint64_t lt_mum(uint64_t a, uint64_t b)
{
    unsigned __int128 product = (unsigned __int128)a * b;
    return (uint64_t)product ^ (uint64_t)(product >> 64);
}

static inline uint64_t lt_word_key_hash(lt_word_key key, size_t n)
{
    return lt_mum(key.low ^ UINT64_C(0xa0761d6478bd642f) ^ n, key.high ^ UINT64_C(0xe7037ed1a0b428db));
}

static inline uint64_t lt_word_hash(const uint8_t *s, size_t n)
{
    if (n == 0) return 0;
    if (n <= LT_WORD_KEY_MAX) return lt_word_key_hash(lt_word_key_of(s, n), n);
    uint64_t h = n;
    size_t i = 0;
    for (; n - i > 16; i += 16) h = lt_mum(lt_load64(s + i) ^ h, lt_load64(s + i + 8) ^ UINT64_C(0x8ebc6af09c88c6e3));
    return lt_mum(lt_load64(s + n - 16) ^ h, lt_load64(s + n - 8) ^ UINT64_C(0xe7037ed1a0b428db));
}

#endif
