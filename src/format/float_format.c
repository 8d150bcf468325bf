/* Shortest decimal text of a float.
 *
 * A float v = c · 2^q stands for every real number that rounds to it: the interval from half a step below to half a step above,
 * ends included when c is even. Scaled by 10^-k, k = ⌊log10(2^q)⌋, the interval is 1 to 10 wide, so it holds at least one
 * integer and at most one multiple of ten. The multiple of ten, if there is one, is the shortest text (without its trailing
 * zeros); else the integer nearest to v is. (The scaling of R. Giulietti's Schubfach; the arithmetic is derived here.)
 *
 * Three numbers 4v·10^-k, (4v ± half a step)·10^-k have to be compared with integers. They are X · 2^q · 10^-k with X < 2^26 + 3
 * and computed as X · g, where g is 10^-k rounded up to 64 significant bits. The product is too large by at most X units of its
 * last place, so a fraction of at most X means that the number is an integer. No other number comes that near to one: the
 * nearest of all q and X (searched with continued fractions) is 1.48 times farther away than the largest error. The integer
 * part, with a sticky lowest bit for a fraction, therefore compares as the exact number does. */
#include <float.h>
#include <math.h>
#include <stdio.h>

#include "format/decimal.h"
#include "format/json.h"

enum { SMALLEST_POWER = -31 };

__extension__ typedef unsigned __int128 uint128;

/* power_of_ten[i - SMALLEST_POWER] = ⌊10^i / 2^(⌊log2 10^i⌋ - 63)⌋ + 1, i = -31 … 45 */
// clang-format off
static const uint64_t power_of_ten[77] = {
    0x81ceb32c4b43fcf5u, 0xa2425ff75e14fc32u, 0xcad2f7f5359a3b3fu, 0xfd87b5f28300ca0eu,
    0x9e74d1b791e07e49u, 0xc612062576589ddbu, 0xf79687aed3eec552u, 0x9abe14cd44753b53u,
    0xc16d9a0095928a28u, 0xf1c90080baf72cb2u, 0x971da05074da7befu, 0xbce5086492111aebu,
    0xec1e4a7db69561a6u, 0x9392ee8e921d5d08u, 0xb877aa3236a4b44au, 0xe69594bec44de15cu,
    0x901d7cf73ab0acdau, 0xb424dc35095cd810u, 0xe12e13424bb40e14u, 0x8cbccc096f5088ccu,
    0xafebff0bcb24aaffu, 0xdbe6fecebdedd5bfu, 0x89705f4136b4a598u, 0xabcc77118461cefdu,
    0xd6bf94d5e57a42bdu, 0x8637bd05af6c69b6u, 0xa7c5ac471b478424u, 0xd1b71758e219652cu,
    0x83126e978d4fdf3cu, 0xa3d70a3d70a3d70bu, 0xcccccccccccccccdu, 0x8000000000000001u,
    0xa000000000000001u, 0xc800000000000001u, 0xfa00000000000001u, 0x9c40000000000001u,
    0xc350000000000001u, 0xf424000000000001u, 0x9896800000000001u, 0xbebc200000000001u,
    0xee6b280000000001u, 0x9502f90000000001u, 0xba43b74000000001u, 0xe8d4a51000000001u,
    0x9184e72a00000001u, 0xb5e620f480000001u, 0xe35fa931a0000001u, 0x8e1bc9bf04000001u,
    0xb1a2bc2ec5000001u, 0xde0b6b3a76400001u, 0x8ac7230489e80001u, 0xad78ebc5ac620001u,
    0xd8d726b7177a8001u, 0x878678326eac9001u, 0xa968163f0a57b401u, 0xd3c21bcecceda101u,
    0x84595161401484a1u, 0xa56fa5b99019a5c9u, 0xcecb8f27f4200f3bu, 0x813f3978f8940985u,
    0xa18f07d736b90be6u, 0xc9f2c9cd04674edfu, 0xfc6f7c4045812297u, 0x9dc5ada82b70b59eu,
    0xc5371912364ce306u, 0xf684df56c3e01bc7u, 0x9a130b963a6c115du, 0xc097ce7bc90715b4u,
    0xf0bdc21abb48db21u, 0x96769950b50d88f5u, 0xbc143fa4e250eb32u, 0xeb194f8e1ae525feu,
    0x92efd1b8d0cf37bfu, 0xb7abc627050305aeu, 0xe596b7b0c643c71au, 0x8f7e32ce7bea5c70u,
    0xb35dbf821ae4f38cu,
};

static const char digit_pairs[201] =
    "00010203040506070809" "10111213141516171819" "20212223242526272829" "30313233343536373839" "40414243444546474849"
    "50515253545556575859" "60616263646566676869" "70717273747576777879" "80818283848586878889" "90919293949596979899";
// clang-format on

/* X · g / 2^shift, cut to an integer whose lowest bit tells that something was cut (X holds two spare bits for it). */
static inline uint64_t scale(uint32_t x, uint64_t g, int shift)
{
    uint128 product = (uint128)x * g;
    uint64_t fraction = (uint64_t)product & (((uint64_t)1 << shift) - 1);
    return (uint64_t)(product >> shift) | (fraction > x);
}

/* The shortest digits · 10^exponent in the interval of the positive float with these bits. */
static uint32_t shortest(uint32_t bits, int *exponent)
{
    uint32_t fraction = bits & 0x7FFFFF, biased = bits >> 23;
    uint32_t c = biased ? fraction | 0x800000 : fraction;
    int q = biased ? (int)biased - 150 : -149;
    /* Below a power of two the floats lie twice as dense: the interval reaches only a quarter of a step down. */
    bool uneven = fraction == 0 && biased > 1;
    uint32_t x = 4 * c, low = uneven ? x - 1 : x - 2, high = x + 2;

    int k = (q * 1262611 - (uneven ? 524031 : 0)) >> 22; /* ⌊log10 2^q⌋, ⌊log10 ¾·2^q⌋ */
    int log2_power = (-k * 1741647) >> 19;               /* ⌊log2 10^-k⌋ */
    uint64_t g = power_of_ten[-k - SMALLEST_POWER];
    int shift = 63 - q - log2_power; /* 59 … 63 */
    uint64_t open = c & 1;           /* an odd float gives its bounds to its neighbours */
    uint64_t v = scale(x, g, shift), first = scale(low, g, shift) + open, last = scale(high, g, shift) - open;

    uint64_t down = v / 4, ten_down = down / 10 * 10;
    *exponent = k;
    bool low_fits = first <= 4 * ten_down, high_fits = 4 * (ten_down + 10) <= last;
    if (low_fits != high_fits) return (uint32_t)(low_fits ? ten_down : ten_down + 10);
    low_fits = first <= 4 * down;
    high_fits = 4 * (down + 1) <= last;
    if (low_fits != high_fits) return (uint32_t)(low_fits ? down : down + 1);
    uint64_t middle = 4 * down + 2;
    return (uint32_t)(v < middle || (v == middle && down % 2 == 0) ? down : down + 1);
}

/* Writes `n` digits d₁d₂… standing for d₁.d₂… · 10^exponent: plainly from 0.0001 to below 10^15, with an exponent otherwise. */
static size_t lay_out(const char *digits, size_t n, int exponent, char *out)
{
    char *to = out;
    if (exponent < -4 || exponent >= 15) {
        *to++ = digits[0];
        if (n > 1) {
            *to++ = '.';
            memcpy(to, digits + 1, n - 1);
            to += n - 1;
        }
        *to++ = 'e';
        unsigned e = (unsigned)(exponent < 0 ? -exponent : exponent);
        if (exponent < 0) *to++ = '-';
        if (e >= 100) *to++ = (char)('0' + e / 100);
        if (e >= 10) *to++ = (char)('0' + e / 10 % 10);
        *to++ = (char)('0' + e % 10);
    } else if (exponent < 0) {
        memcpy(to, "0.000", 5);
        to += 1 - exponent;
        memcpy(to, digits, n);
        to += n;
    } else {
        size_t whole = (size_t)exponent + 1;
        if (n <= whole) {
            memcpy(to, digits, n);
            memset(to + n, '0', whole - n);
            to += whole;
        } else {
            memcpy(to, digits, whole);
            to[whole] = '.';
            memcpy(to + whole + 1, digits + whole, n - whole);
            to += n + 1;
        }
    }
    return (size_t)(to - out);
}

size_t lt_format_float(float value, char out[16])
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    size_t sign = bits >> 31;
    if (sign) out[0] = '-';
    bits &= 0x7FFFFFFF;
    if (bits == 0) {
        out[sign] = '0';
        return sign + 1;
    }
    int exponent;
    uint32_t number = shortest(bits, &exponent);

    char digits[10]; /* right-aligned: nine at most */
    size_t at = sizeof digits;
    for (; number >= 100; number /= 100) {
        at -= 2;
        memcpy(digits + at, digit_pairs + 2 * (number % 100), 2);
    }
    if (number >= 10) {
        at -= 2;
        memcpy(digits + at, digit_pairs + 2 * number, 2);
    } else {
        digits[--at] = (char)('0' + number);
    }
    size_t n = sizeof digits - at;
    exponent += (int)n - 1;
    while (n > 1 && digits[at + n - 1] == '0') n--;
    return sign + lay_out(digits + at, n, exponent, out + sign);
}

size_t lt_format_double(double value, char out[32])
{
    size_t sign = signbit(value) ? 1 : 0;
    if (sign) out[0] = '-';
    value = fabs(value);
    if (value == 0) {
        out[sign] = '0';
        return sign + 1;
    }
    size_t len = 0;
    /* Up to 15 digits always survive in a normal double, so fewer need no trial of their own; subnormal ones hold less. */
    for (int precision = value < DBL_MIN ? 1 : 15; precision <= 17; precision++) {
        char text[40], digits[20];
        snprintf(text, sizeof text, "%.*e", precision - 1, value);
        /* "d.ddde±xx", whatever the locale puts for the point. */
        size_t n = 0;
        const char *from = text;
        for (; *from != 'e'; from++) {
            if (*from >= '0' && *from <= '9') digits[n++] = *from;
        }
        bool minus = *++from == '-';
        int exponent = 0;
        for (from++; *from; from++) exponent = exponent * 10 + (*from - '0');
        while (n > 1 && digits[n - 1] == '0') n--;
        len = lay_out(digits, n, minus ? -exponent : exponent, out + sign);

        lt_decimal decimal;
        size_t bad;
        double back = 0; /* 17 digits always read back */
        bool read =
            lt_decimal_scan((const uint8_t *)out + sign, len, &decimal, &bad) > 0 && lt_decimal_to_double(&decimal, NULL, &back);
        if (read && back == value) break;
    }
    return sign + len;
}
