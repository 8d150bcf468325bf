/* Reading decimal numbers.
 *
 * A significand below 2^64 with a power of ten between -27 and 27 is converted exactly with integers: m · 10^e = m · 5^e · 2^e,
 * and 5^27 < 2^63. For e >= 0 the product fits 128 bits; for e < 0 both sides are shifted to full width and one division
 * of 128 by 64 bits gives at least 62 bits of quotient. What was lost is folded into the lowest bit, so that the one rounding,
 * in the conversion to floating point, sees on which side of a tie the value lies. (Clinger's method, widened from the 53 bits
 * of a double to 64.) All else is rare and goes through the C library under the "C" locale. */
#include "format/decimal.h"

#include <locale.h>
#include <math.h>
#include <stdlib.h>
#if defined(__APPLE__)
#include <xlocale.h>
#endif

enum { EXACT_POWER = 27, EXPONENT_LIMIT = 1000000 };

__extension__ typedef unsigned __int128 uint128;

static const uint64_t power_of_five[EXACT_POWER + 1] = {
    1u,
    5u,
    25u,
    125u,
    625u,
    3125u,
    15625u,
    78125u,
    390625u,
    1953125u,
    9765625u,
    48828125u,
    244140625u,
    1220703125u,
    6103515625u,
    30517578125u,
    152587890625u,
    762939453125u,
    3814697265625u,
    19073486328125u,
    95367431640625u,
    476837158203125u,
    2384185791015625u,
    11920928955078125u,
    59604644775390625u,
    298023223876953125u,
    1490116119384765625u,
    7450580596923828125u,
};

static inline bool is_digit(uint8_t byte)
{
    return (uint8_t)(byte - '0') <= 9;
}

/* Takes one digit into the significand; digits that no longer fit only count in the exponent. */
static inline void take_digit(lt_decimal *d, uint8_t byte, bool *full)
{
    uint64_t digit = (uint64_t)(byte - '0'), next;
    if (!*full && !__builtin_mul_overflow(d->significand, 10, &next) && !__builtin_add_overflow(next, digit, &next)) {
        d->significand = next;
        return;
    }
    *full = true;
    if (digit) d->inexact = true;
    d->exponent++;
}

size_t lt_decimal_scan(const uint8_t *s, size_t n, lt_decimal *out, size_t *bad)
{
    lt_decimal d = { .text = { (const char *)s, 0 } };
    bool full = false;
    size_t i = 0;
    if (i < n && s[i] == '-') {
        d.negative = true;
        i++;
    }
    if (i == n || !is_digit(s[i])) goto refuse;
    if (s[i] == '0') {
        i++;
        if (i < n && is_digit(s[i])) goto refuse;
    } else {
        while (i < n && is_digit(s[i])) take_digit(&d, s[i++], &full);
    }
    if (i < n && s[i] == '.') {
        i++;
        if (i == n || !is_digit(s[i])) goto refuse;
        for (; i < n && is_digit(s[i]); i++) {
            take_digit(&d, s[i], &full);
            d.exponent--;
        }
    }
    if (i < n && (s[i] == 'e' || s[i] == 'E')) {
        i++;
        bool minus = false;
        if (i < n && (s[i] == '+' || s[i] == '-')) minus = s[i++] == '-';
        if (i == n || !is_digit(s[i])) goto refuse;
        /* Held at the limit it cannot overflow, and the slow way reads the text itself. */
        int64_t exponent = 0;
        for (; i < n && is_digit(s[i]); i++) {
            if (exponent < EXPONENT_LIMIT) exponent = exponent * 10 + (s[i] - '0');
        }
        d.exponent += minus ? -exponent : exponent;
    }
    d.text.len = i;
    *out = d;
    return i;
refuse:
    *bad = i;
    return 0;
}

/* significand · 10^exponent = *m · 2^*shift, *m with at least 62 bits, its lowest one sticky. false: out of the exact range. */
static bool exact_binary(const lt_decimal *d, uint64_t *m, int *shift)
{
    if (d->inexact || d->significand == 0 || d->exponent > EXACT_POWER || d->exponent < -EXACT_POWER) return false;
    int e = (int)d->exponent;
    if (e >= 0) {
        uint128 product = (uint128)d->significand * power_of_five[e];
        uint64_t high = (uint64_t)(product >> 64);
        int excess = high ? 64 - __builtin_clzll(high) : 0;
        uint128 lost = product & (((uint128)1 << excess) - 1);
        *m = (uint64_t)(product >> excess) | (lost != 0);
        *shift = excess + e;
    } else {
        uint64_t divisor = power_of_five[-e];
        int lz = __builtin_clzll(d->significand), lz_divisor = __builtin_clzll(divisor);
        /* The halved numerator is below the divisor's top bit, so that the quotient fits 64 bits. */
        uint128 numerator = (uint128)(d->significand << lz) << 63;
        divisor <<= lz_divisor;
        *m = (uint64_t)(numerator / divisor) | (numerator % divisor != 0);
        *shift = e - 63 - lz + lz_divisor;
    }
    return true;
}

enum { SMALL_TEXT = 128 };

/* The slow way; it needs the text NUL-terminated. Exactly one of the results is not NULL. */
static bool convert_text(const lt_decimal *d, const lattice_allocator *mem, double *to_double, float *to_float)
{
    char small[SMALL_TEXT], *large = NULL, *text = small;
    if (d->text.len >= SMALL_TEXT) text = large = lt_alloc(mem, d->text.len + 1);
    locale_t c_locale = newlocale(LC_ALL_MASK, "C", (locale_t)0);
    bool ok = text && c_locale;
    if (ok) {
        memcpy(text, d->text.data, d->text.len);
        text[d->text.len] = '\0';
        if (to_double) *to_double = strtod_l(text, NULL, c_locale);
        if (to_float) *to_float = strtof_l(text, NULL, c_locale);
    }
    if (c_locale) freelocale(c_locale);
    if (large) lt_free(mem, large);
    return ok;
}

bool lt_decimal_to_double(const lt_decimal *d, const lattice_allocator *mem, double *out)
{
    uint64_t m;
    int shift;
    if (exact_binary(d, &m, &shift)) {
        double value = ldexp((double)m, shift); /* far from the subnormal range: exact */
        *out = d->negative ? -value : value;
        return true;
    }
    if (d->significand == 0) {
        *out = d->negative ? -0.0 : 0.0;
        return true;
    }
    return convert_text(d, mem, out, NULL);
}

bool lt_decimal_to_float(const lt_decimal *d, const lattice_allocator *mem, float *out)
{
    uint64_t m;
    int shift;
    if (exact_binary(d, &m, &shift)) {
        float value = ldexpf((float)m, shift); /* 10^-27 is a normal float: exact or infinite */
        *out = d->negative ? -value : value;
        return true;
    }
    if (d->significand == 0) {
        *out = d->negative ? -0.0f : 0.0f;
        return true;
    }
    return convert_text(d, mem, NULL, out);
}

bool lt_decimal_to_integer(const lt_decimal *d, uint64_t *out)
{
    uint64_t value = d->significand;
    int64_t exponent = d->exponent;
    if (value == 0) {
        *out = 0;
        return true;
    }
    if (d->inexact) return false; /* over 2^64, or a fraction */
    for (; exponent < 0; exponent++) {
        if (value % 10 != 0) return false;
        value /= 10;
    }
    for (; exponent > 0; exponent--) {
        if (__builtin_mul_overflow(value, 10, &value)) return false;
    }
    *out = value;
    return true;
}
