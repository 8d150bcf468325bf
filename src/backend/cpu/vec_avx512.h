/* Vector vocabulary for AVX-512 (F, BW, DQ, VL): 16 floats; tails by mask registers. See vec_scalar.h for what each word means.
 */
#ifndef LT_BACKEND_CPU_VEC_AVX512_H
#define LT_BACKEND_CPU_VEC_AVX512_H

#include "backend/cpu/vec.h"

#include <immintrin.h>
#include <stddef.h>
#include <stdint.h>

#define LT_VL 16

typedef __m512 vf;

#define LT_OPAQUE(a) __asm__ volatile("" : "+v"(a))

LT_VECTOR __mmask16 v_mask(size_t n)
{
    return (__mmask16)((1u << n) - 1u);
}

LT_VECTOR vf v_zero(void)
{
    return _mm512_setzero_ps();
}
LT_VECTOR vf v_set1(float x)
{
    return _mm512_set1_ps(x);
}
LT_VECTOR vf v_load(const void *p)
{
    return _mm512_loadu_ps(p);
}
LT_VECTOR vf v_load_n(const void *p, size_t n)
{
    return _mm512_maskz_loadu_ps(v_mask(n), p);
}
LT_VECTOR void v_store(float *p, vf a)
{
    _mm512_storeu_ps(p, a);
}
LT_VECTOR void v_store_n(float *p, vf a, size_t n)
{
    _mm512_mask_storeu_ps(p, v_mask(n), a);
}
#define LT_HAS_STORE_PAST
LT_VECTOR void v_store_past(float *p, vf a)
{
    _mm512_stream_ps(p, a);
}
LT_VECTOR void v_past_done(void)
{
    _mm_sfence();
}
LT_VECTOR vf v_load_f16(const void *p)
{
    return _mm512_cvtph_ps(_mm256_loadu_si256(p));
}
LT_VECTOR vf v_load_f16_n(const void *p, size_t n)
{
    return _mm512_cvtph_ps(_mm256_maskz_loadu_epi16(v_mask(n), p));
}
LT_VECTOR void v_store_f16(void *p, vf a)
{
    _mm256_storeu_si256(p, _mm512_cvtps_ph(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
}
LT_VECTOR vf v_load_bf16(const void *p)
{
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_loadu_si256(p)), 16));
}
LT_VECTOR vf v_load_bf16_n(const void *p, size_t n)
{
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(v_mask(n), p)), 16));
}
LT_VECTOR vf v_low_bf16(vf a)
{
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_castps_si512(a), 16));
}
LT_VECTOR vf v_high_bf16(vf a)
{
    return _mm512_castsi512_ps(_mm512_and_si512(_mm512_castps_si512(a), _mm512_set1_epi32((int)0xffff0000)));
}
LT_VECTOR vf v_add(vf a, vf b)
{
    return _mm512_add_ps(a, b);
}
LT_VECTOR vf v_sub(vf a, vf b)
{
    return _mm512_sub_ps(a, b);
}
LT_VECTOR vf v_mul(vf a, vf b)
{
    return _mm512_mul_ps(a, b);
}
LT_VECTOR vf v_div(vf a, vf b)
{
    return _mm512_div_ps(a, b);
}
LT_VECTOR vf v_fma(vf a, vf b, vf c)
{
    return _mm512_fmadd_ps(a, b, c);
}
LT_VECTOR vf v_fnma(vf a, vf b, vf c)
{
    return _mm512_fnmadd_ps(a, b, c);
}
/* c + *a · b with the broadcast inside the instruction: compilers would share one broadcast among the vectors of a row, which
 * costs an operation more of the front end's and one less of the load ports'. */
LT_VECTOR vf v_fma_broadcast(const float *a, vf b, vf c)
{
    __asm__("vfmadd231ps %2%{1to16%}, %1, %0" : "+v"(c) : "v"(b), "m"(*a));
    return c;
}
LT_VECTOR vf v_max(vf a, vf b)
{
    return _mm512_max_ps(a, b);
}
LT_VECTOR vf v_max_nan(vf a, vf b)
{
    return _mm512_mask_mov_ps(_mm512_max_ps(a, b), _mm512_cmp_ps_mask(a, a, _CMP_UNORD_Q), a);
}
LT_VECTOR vf v_abs(vf a)
{
    return _mm512_abs_ps(a);
}
LT_VECTOR vf v_fraction(vf a)
{
    return _mm512_reduce_ps(a, _MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC);
}
LT_VECTOR vf v_ldexp(vf a, vf y)
{
    return _mm512_scalef_ps(a, y);
}
LT_VECTOR vf v_ldexp_weight(vf a, vf y)
{
    return _mm512_maskz_scalef_ps(_mm512_cmp_ps_mask(y, _mm512_set1_ps(-100.0f), _CMP_NLT_UQ), a, y);
}
LT_VECTOR vf v_select_gt(vf a, vf b, vf x, vf y)
{
    return _mm512_mask_mov_ps(y, _mm512_cmp_ps_mask(a, b, _CMP_GT_OQ), x);
}
LT_VECTOR vf v_keep_n(vf a, size_t n, vf rest)
{
    return _mm512_mask_mov_ps(rest, v_mask(n), a);
}

LT_VECTOR float v_sum(vf a)
{
    __m256 y = _mm256_add_ps(_mm512_castps512_ps256(a), _mm512_extractf32x8_ps(a, 1));
    __m128 x = _mm_add_ps(_mm256_castps256_ps128(y), _mm256_extractf128_ps(y, 1));
    x = _mm_add_ps(x, _mm_movehl_ps(x, x));
    return _mm_cvtss_f32(_mm_add_ss(x, _mm_shuffle_ps(x, x, 1)));
}
LT_VECTOR float v_max_across(vf a)
{
    __m256 y = _mm256_max_ps(_mm512_castps512_ps256(a), _mm512_extractf32x8_ps(a, 1));
    __m128 x = _mm_max_ps(_mm256_castps256_ps128(y), _mm256_extractf128_ps(y, 1));
    x = _mm_max_ps(x, _mm_movehl_ps(x, x));
    return _mm_cvtss_f32(_mm_max_ss(x, _mm_shuffle_ps(x, x, 1)));
}

/* Pairs, then quadruples inside 128-bit lanes, then lanes: 64 shuffles for 256 floats. */
LT_VECTOR void v_transpose(vf r[LT_VL])
{
    vf t[16];
    LT_UNROLL
    for (int i = 0; i < 8; i++) {
        t[2 * i] = _mm512_unpacklo_ps(r[2 * i], r[2 * i + 1]);
        t[2 * i + 1] = _mm512_unpackhi_ps(r[2 * i], r[2 * i + 1]);
    }
    LT_UNROLL
    for (int i = 0; i < 4; i++) {
        __m512d a = _mm512_castps_pd(t[4 * i]), b = _mm512_castps_pd(t[4 * i + 1]);
        __m512d c = _mm512_castps_pd(t[4 * i + 2]), d = _mm512_castps_pd(t[4 * i + 3]);
        r[4 * i] = _mm512_castpd_ps(_mm512_unpacklo_pd(a, c));
        r[4 * i + 1] = _mm512_castpd_ps(_mm512_unpackhi_pd(a, c));
        r[4 * i + 2] = _mm512_castpd_ps(_mm512_unpacklo_pd(b, d));
        r[4 * i + 3] = _mm512_castpd_ps(_mm512_unpackhi_pd(b, d));
    }
    LT_UNROLL
    for (int i = 0; i < 4; i++) {
        t[i] = _mm512_shuffle_f32x4(r[i], r[4 + i], 0x88);
        t[4 + i] = _mm512_shuffle_f32x4(r[i], r[4 + i], 0xdd);
        t[8 + i] = _mm512_shuffle_f32x4(r[8 + i], r[12 + i], 0x88);
        t[12 + i] = _mm512_shuffle_f32x4(r[8 + i], r[12 + i], 0xdd);
    }
    LT_UNROLL
    for (int i = 0; i < 4; i++) {
        r[i] = _mm512_shuffle_f32x4(t[i], t[8 + i], 0x88);
        r[4 + i] = _mm512_shuffle_f32x4(t[4 + i], t[12 + i], 0x88);
        r[8 + i] = _mm512_shuffle_f32x4(t[i], t[8 + i], 0xdd);
        r[12 + i] = _mm512_shuffle_f32x4(t[4 + i], t[12 + i], 0xdd);
    }
}

/* Quarters of a row are put in place by masked loads, so that half of the shuffles remain: 10% more of the read bandwidth. */
#define LT_HAS_LOAD_SQUARE
LT_VECTOR vf v_quarters(const unsigned char *p, size_t row_bytes)
{
    vf a = _mm512_castps128_ps512(_mm_loadu_ps((const void *)p));
    a = _mm512_mask_broadcast_f32x4(a, 0x00f0, _mm_loadu_ps((const void *)(p + 4 * row_bytes)));
    a = _mm512_mask_broadcast_f32x4(a, 0x0f00, _mm_loadu_ps((const void *)(p + 8 * row_bytes)));
    return _mm512_mask_broadcast_f32x4(a, 0xf000, _mm_loadu_ps((const void *)(p + 12 * row_bytes)));
}
LT_VECTOR void v_load_square(vf r[LT_VL], const unsigned char *p, size_t row_bytes)
{
    LT_UNROLL
    for (size_t q = 0; q < 4; q++) {
        const vf a = v_quarters(p + 16 * q, row_bytes), b = v_quarters(p + 16 * q + row_bytes, row_bytes);
        const vf c = v_quarters(p + 16 * q + 2 * row_bytes, row_bytes), d = v_quarters(p + 16 * q + 3 * row_bytes, row_bytes);
        const __m512d ab = _mm512_castps_pd(_mm512_unpacklo_ps(a, b)), AB = _mm512_castps_pd(_mm512_unpackhi_ps(a, b));
        const __m512d cd = _mm512_castps_pd(_mm512_unpacklo_ps(c, d)), CD = _mm512_castps_pd(_mm512_unpackhi_ps(c, d));
        r[4 * q] = _mm512_castpd_ps(_mm512_unpacklo_pd(ab, cd));
        r[4 * q + 1] = _mm512_castpd_ps(_mm512_unpackhi_pd(ab, cd));
        r[4 * q + 2] = _mm512_castpd_ps(_mm512_unpacklo_pd(AB, CD));
        r[4 * q + 3] = _mm512_castpd_ps(_mm512_unpackhi_pd(AB, CD));
    }
}

#ifdef __AVX512BF16__
#define LT_HAS_PAIRS

LT_VECTOR vf v_pairs(vf a, vf b)
{
    return (__m512)_mm512_cvtne2ps_pbh(b, a);
}
LT_VECTOR vf v_zip(vf a, vf b)
{
    static const uint16_t order[32] = { 0, 16, 1, 17, 2,  18, 3,  19, 4,  20, 5,  21, 6,  22, 7,  23,
                                        8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31 };
    return (__m512)_mm512_permutexvar_epi16(_mm512_loadu_si512(order), (__m512i)_mm512_cvtne2ps_pbh(b, a));
}
LT_VECTOR vf v_dot(vf a, vf b, vf c)
{
    return _mm512_dpbf16_ps(c, (__m512bh)a, (__m512bh)b);
}
LT_VECTOR vf v_dot_broadcast(const float *a, vf b, vf c)
{
    __asm__("vdpbf16ps %2%{1to16%}, %1, %0" : "+v"(c) : "v"(b), "m"(*a));
    return c;
}
#endif

#endif
