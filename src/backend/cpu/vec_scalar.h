/* Vector vocabulary of the portable set: vectors of one float, no fused multiply-add. Here every word is spelled out in C, so
 * this file is also what the words mean:
 *
 *   LT_VL               floats in a vector
 *   v_load, v_load_n    from memory of any alignment; _n: the first n < LT_VL floats, zeros after them
 *   v_load_f16, _bf16   the same from 16-bit floats
 *   v_store_f16         a vector as 16-bit floats, rounded to nearest even
 *   v_low_bf16, v_high  of lanes that hold two 16-bit floats each: those in the lower, or the higher halves
 *   v_store, v_store_n  never touch memory past the vector, or past n
 *   v_store_past        v_store past the caches where LT_HAS_STORE_PAST, p a multiple of the vector's size
 *   v_past_done         what was stored so can be read by other threads
 *   v_fma a·b + c       v_fnma c − a·b       fused in the SIMD sets, rounded twice here
 *   v_fma_broadcast     *a · b + c for every lane of b
 *   v_max               a > b ? a : b, so a NaN in b comes through; v_max_nan: NaN if either is
 *   v_fraction          a − ⌊a⌋, |a| <= 2^22
 *   v_ldexp             a · 2^⌊y⌋, |y| <= 126 and the result normal; a is NaN where y is
 *   v_ldexp_weight      the same for any y <= 126, but 0 where y < −100
 *   v_select_gt         a > b ? x : y; a NaN in a or b gives y
 *   v_keep_n            the first n lanes of a, then those of rest
 *   v_sum, v_max_across over the lanes, in a tree of fixed shape
 *   v_transpose         LT_VL vectors as a square matrix
 *   v_load_square       LT_VL rows of LT_VL floats, row_bytes apart, transposed; where LT_HAS_LOAD_SQUARE, else by v_transpose
 *
 *   LT_OPAQUE(a)        the compiler does not know what is in a from here on: it computes a before, what follows from it after
 *
 * Sets that multiply bfloat16 define LT_HAS_PAIRS. A lane then holds a pair of them, the first in its lower half:
 *
 *   v_pairs             the floats of a, then those of b, rounded to nearest even, as pairs (a0, a1) (a2, a3) …
 *   v_zip               pairs (a0, b0) (a1, b1) …
 *   v_dot               the float c plus both products of the pairs a and b: here the second product first, as AVX512-BF16 does;
 *                       products of bfloat16 are exact, so only the two additions round
 *   v_dot_broadcast     the same with *a for every lane
 */
#ifndef LT_BACKEND_CPU_VEC_SCALAR_H
#define LT_BACKEND_CPU_VEC_SCALAR_H

#include "backend/cpu/vec.h"

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#define LT_VL 1

typedef float vf;

#define LT_OPAQUE(a) __asm__ volatile("" : "+m"(a))

LT_VECTOR vf v_zero(void)
{
    return 0;
}
LT_VECTOR vf v_set1(float x)
{
    return x;
}
LT_VECTOR vf v_load(const void *p)
{
    float x;
    memcpy(&x, p, sizeof x);
    return x;
}
LT_VECTOR vf v_load_n(const void *p, size_t n)
{
    return n ? v_load(p) : 0;
}
LT_VECTOR void v_store(float *p, vf a)
{
    *p = a;
}
LT_VECTOR void v_store_n(float *p, vf a, size_t n)
{
    if (n) *p = a;
}
LT_VECTOR float v_from_bits(uint32_t bits)
{
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}
LT_VECTOR uint32_t v_to_bits(float x)
{
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return bits;
}
/* Shifting exponent and mantissa into place leaves the exponent 112 too small: the multiplication mends that, for subnormal
 * halves too. */
LT_VECTOR vf v_load_f16(const void *p)
{
    uint16_t h;
    memcpy(&h, p, sizeof h);
    uint32_t sign = (uint32_t)(h & 0x8000) << 16, magnitude = (uint32_t)(h & 0x7fff) << 13;
    if (magnitude >= 0x7c00u << 13) return v_from_bits(sign | 0x70000000u | magnitude | (h & 0x3ff ? 0x400000u : 0));
    return v_from_bits(sign | v_to_bits(v_from_bits(magnitude) * 0x1p112f));
}
LT_VECTOR vf v_load_f16_n(const void *p, size_t n)
{
    return n ? v_load_f16(p) : 0;
}
LT_VECTOR void v_store_f16(void *p, vf a)
{
    const uint32_t sign = v_to_bits(a) >> 16 & 0x8000, magnitude = v_to_bits(a) & 0x7fffffff;
    uint32_t bits;
    if (magnitude > 0x7f800000) /* NaN */
        bits = 0x7e00 | (magnitude >> 13 & 0x1ff);
    else if (magnitude >= 0x477ff000) /* half a unit past the largest, and infinity */
        bits = 0x7c00;
    else if (magnitude < 0x38800000) /* subnormal: units are those of a float between 1/2 and 1 */
        bits = v_to_bits(v_from_bits(magnitude) + 0.5f) - 0x3f000000;
    else
        bits = (magnitude + 0xfff + (magnitude >> 13 & 1) - 0x38000000) >> 13;
    const uint16_t h = (uint16_t)(sign | bits);
    memcpy(p, &h, sizeof h);
}
LT_VECTOR vf v_load_bf16(const void *p)
{
    uint16_t h;
    memcpy(&h, p, sizeof h);
    return v_from_bits((uint32_t)h << 16);
}
LT_VECTOR vf v_load_bf16_n(const void *p, size_t n)
{
    return n ? v_load_bf16(p) : 0;
}
LT_VECTOR vf v_low_bf16(vf a)
{
    return v_from_bits(v_to_bits(a) << 16);
}
LT_VECTOR vf v_high_bf16(vf a)
{
    return v_from_bits(v_to_bits(a) & 0xffff0000);
}
LT_VECTOR vf v_add(vf a, vf b)
{
    return a + b;
}
LT_VECTOR vf v_sub(vf a, vf b)
{
    return a - b;
}
LT_VECTOR vf v_mul(vf a, vf b)
{
    return a * b;
}
LT_VECTOR vf v_div(vf a, vf b)
{
    return a / b;
}
LT_VECTOR vf v_fma(vf a, vf b, vf c)
{
    return a * b + c;
}
LT_VECTOR vf v_fma_broadcast(const float *a, vf b, vf c)
{
    return v_fma(v_set1(*a), b, c);
}
LT_VECTOR vf v_fnma(vf a, vf b, vf c)
{
    return c - a * b;
}
LT_VECTOR vf v_max(vf a, vf b)
{
    return a > b ? a : b;
}
LT_VECTOR vf v_max_nan(vf a, vf b)
{
    return a > b || a != a ? a : b;
}
LT_VECTOR vf v_abs(vf a)
{
    return v_from_bits(v_to_bits(a) & 0x7fffffffu);
}
LT_VECTOR float v_floor(float a)
{
    const float shift = 0x1.8p23f; /* pushes the fraction out; |a| <= 2^22 */
    float nearest = a + shift - shift;
    return nearest > a ? nearest - 1.0f : nearest;
}
LT_VECTOR vf v_fraction(vf a)
{
    return a - v_floor(a);
}
LT_VECTOR vf v_ldexp(vf a, vf y)
{
    return y == y ? a * v_from_bits((uint32_t)((int32_t)v_floor(y) + 127) << 23) : y;
}
LT_VECTOR vf v_ldexp_weight(vf a, vf y)
{
    return y < -100.0f ? 0.0f : v_ldexp(a, y);
}
LT_VECTOR vf v_select_gt(vf a, vf b, vf x, vf y)
{
    return a > b ? x : y;
}
LT_VECTOR vf v_keep_n(vf a, size_t n, vf rest)
{
    return n ? a : rest;
}
LT_VECTOR float v_sum(vf a)
{
    return a;
}
LT_VECTOR float v_max_across(vf a)
{
    return a;
}
LT_VECTOR void v_transpose(vf r[LT_VL])
{
    (void)r;
}

#define LT_HAS_PAIRS

LT_VECTOR uint32_t v_round_bf16(float x)
{
    uint32_t bits = v_to_bits(x);
    return x == x ? (bits + 0x7fff + (bits >> 16 & 1)) >> 16 : bits >> 16 | 0x40;
}
LT_VECTOR vf v_pairs(vf a, vf b)
{
    return v_from_bits(v_round_bf16(a) | v_round_bf16(b) << 16);
}
LT_VECTOR vf v_zip(vf a, vf b)
{
    return v_pairs(a, b);
}
LT_VECTOR vf v_dot(vf a, vf b, vf c)
{
    c += v_high_bf16(a) * v_high_bf16(b);
    return c + v_low_bf16(a) * v_low_bf16(b);
}
LT_VECTOR vf v_dot_broadcast(const float *a, vf b, vf c)
{
    return v_dot(v_load(a), b, c);
}

#endif
