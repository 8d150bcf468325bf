/* Decimal text and binary floating point, both ways and independent of the locale. */
#ifndef LT_FORMAT_DECIMAL_H
#define LT_FORMAT_DECIMAL_H

#include "base/bytes.h"

/* A JSON number as written: (-1)^negative · significand · 10^exponent. `inexact`: the text has more digits than fit, and the
 * significand holds the first ones only. */
typedef struct lt_decimal {
    lt_str text;
    uint64_t significand;
    int64_t exponent;
    bool negative, inexact;
} lt_decimal;

/* Scans the number at s[0..n) by JSON's grammar. Returns the bytes it takes; 0: none is there, *bad is then the offset of the
 * byte that does not fit (n: the text ends too early). */
size_t lt_decimal_scan(const uint8_t *s, size_t n, lt_decimal *out, size_t *bad);

/* Correctly rounded to nearest, ties to even; infinite on overflow. `mem` is used for texts of 128 bytes and
 * more; it may be NULL when there are none. false: no memory. */
bool lt_decimal_to_double(const lt_decimal *decimal, const lattice_allocator *mem, double *out);
bool lt_decimal_to_float(const lt_decimal *decimal, const lattice_allocator *mem, float *out);

/* The value as an integer of magnitude *out; false when it is none or does not fit. */
bool lt_decimal_to_integer(const lt_decimal *decimal, uint64_t *out);

/* The shortest decimal text of a finite double that reads back as it; returns its length, at most 24. For metadata: it is
 * found by trying up to 17 digits. lt_format_float (json.h) is the fast one. */
size_t lt_format_double(double value, char out[32]);

#endif
