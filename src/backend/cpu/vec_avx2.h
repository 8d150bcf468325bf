/* Vector vocabulary for AVX2, FMA and F16C: 8 floats; float tails by vmaskmov, 16-bit tails through a small copy.
 * See vec_scalar.h for what each word means. */
#ifndef LT_BACKEND_CPU_VEC_AVX2_H
#define LT_BACKEND_CPU_VEC_AVX2_H

#include "backend/cpu/vec.h"

#include <immintrin.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#define LT_VL 8

typedef __m256 vf;

#define LT_OPAQUE(a) __asm__ volatile("" : "+x"(a))

LT_VECTOR __m256i v_mask(size_t n)
{
    return _mm256_cmpgt_epi32(_mm256_set1_epi32((int)n), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
}

LT_VECTOR vf v_zero(void)
{
    return _mm256_setzero_ps();
}
LT_VECTOR vf v_set1(float x)
{
    return _mm256_set1_ps(x);
}
LT_VECTOR vf v_load(const void *p)
{
    return _mm256_loadu_ps(p);
}
LT_VECTOR vf v_load_n(const void *p, size_t n)
{
    return _mm256_maskload_ps(p, v_mask(n));
}
LT_VECTOR void v_store(float *p, vf a)
{
    _mm256_storeu_ps(p, a);
}
LT_VECTOR void v_store_n(float *p, vf a, size_t n)
{
    _mm256_maskstore_ps(p, v_mask(n), a);
}
#define LT_HAS_STORE_PAST
LT_VECTOR void v_store_past(float *p, vf a)
{
    _mm256_stream_ps(p, a);
}
LT_VECTOR void v_past_done(void)
{
    _mm_sfence();
}
LT_VECTOR __m128i v_load_16_n(const void *p, size_t n)
{
    uint16_t copy[8] = { 0 };
    memcpy(copy, p, 2 * n);
    return _mm_loadu_si128((const void *)copy);
}
LT_VECTOR vf v_load_f16(const void *p)
{
    return _mm256_cvtph_ps(_mm_loadu_si128(p));
}
LT_VECTOR vf v_load_f16_n(const void *p, size_t n)
{
    return _mm256_cvtph_ps(v_load_16_n(p, n));
}
LT_VECTOR void v_store_f16(void *p, vf a)
{
    _mm_storeu_si128(p, _mm256_cvtps_ph(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
}
LT_VECTOR vf v_load_bf16(const void *p)
{
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_loadu_si128(p)), 16));
}
LT_VECTOR vf v_load_bf16_n(const void *p, size_t n)
{
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(v_load_16_n(p, n)), 16));
}
LT_VECTOR vf v_low_bf16(vf a)
{
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_castps_si256(a), 16));
}
LT_VECTOR vf v_high_bf16(vf a)
{
    return _mm256_castsi256_ps(_mm256_and_si256(_mm256_castps_si256(a), _mm256_set1_epi32((int)0xffff0000)));
}
LT_VECTOR vf v_add(vf a, vf b)
{
    return _mm256_add_ps(a, b);
}
LT_VECTOR vf v_sub(vf a, vf b)
{
    return _mm256_sub_ps(a, b);
}
LT_VECTOR vf v_mul(vf a, vf b)
{
    return _mm256_mul_ps(a, b);
}
LT_VECTOR vf v_div(vf a, vf b)
{
    return _mm256_div_ps(a, b);
}
LT_VECTOR vf v_fma(vf a, vf b, vf c)
{
    return _mm256_fmadd_ps(a, b, c);
}
LT_VECTOR vf v_fma_broadcast(const float *a, vf b, vf c)
{
    return v_fma(v_set1(*a), b, c);
}
LT_VECTOR vf v_fnma(vf a, vf b, vf c)
{
    return _mm256_fnmadd_ps(a, b, c);
}
LT_VECTOR vf v_max(vf a, vf b)
{
    return _mm256_max_ps(a, b);
}
LT_VECTOR vf v_max_nan(vf a, vf b)
{
    return _mm256_blendv_ps(_mm256_max_ps(a, b), a, _mm256_cmp_ps(a, a, _CMP_UNORD_Q));
}
LT_VECTOR vf v_abs(vf a)
{
    return _mm256_andnot_ps(_mm256_set1_ps(-0.0f), a);
}
LT_VECTOR vf v_fraction(vf a)
{
    return _mm256_sub_ps(a, _mm256_floor_ps(a));
}
LT_VECTOR vf v_ldexp(vf a, vf y)
{
    __m256i n = _mm256_cvtps_epi32(_mm256_floor_ps(y));
    return _mm256_castsi256_ps(_mm256_add_epi32(_mm256_castps_si256(a), _mm256_slli_epi32(n, 23)));
}
LT_VECTOR vf v_ldexp_weight(vf a, vf y)
{
    return _mm256_and_ps(v_ldexp(a, y), _mm256_cmp_ps(y, _mm256_set1_ps(-100.0f), _CMP_NLT_UQ));
}
LT_VECTOR vf v_select_gt(vf a, vf b, vf x, vf y)
{
    return _mm256_blendv_ps(y, x, _mm256_cmp_ps(a, b, _CMP_GT_OQ));
}
LT_VECTOR vf v_keep_n(vf a, size_t n, vf rest)
{
    return _mm256_blendv_ps(rest, a, _mm256_castsi256_ps(v_mask(n)));
}

LT_VECTOR float v_sum(vf a)
{
    __m128 x = _mm_add_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
    x = _mm_add_ps(x, _mm_movehl_ps(x, x));
    return _mm_cvtss_f32(_mm_add_ss(x, _mm_shuffle_ps(x, x, 1)));
}
LT_VECTOR float v_max_across(vf a)
{
    __m128 x = _mm_max_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
    x = _mm_max_ps(x, _mm_movehl_ps(x, x));
    return _mm_cvtss_f32(_mm_max_ss(x, _mm_shuffle_ps(x, x, 1)));
}

LT_VECTOR void v_transpose(vf r[LT_VL])
{
    vf t[8];
    LT_UNROLL
    for (int i = 0; i < 4; i++) {
        t[2 * i] = _mm256_unpacklo_ps(r[2 * i], r[2 * i + 1]);
        t[2 * i + 1] = _mm256_unpackhi_ps(r[2 * i], r[2 * i + 1]);
    }
    LT_UNROLL
    for (int i = 0; i < 2; i++) {
        r[4 * i] = _mm256_shuffle_ps(t[4 * i], t[4 * i + 2], 0x44);
        r[4 * i + 1] = _mm256_shuffle_ps(t[4 * i], t[4 * i + 2], 0xee);
        r[4 * i + 2] = _mm256_shuffle_ps(t[4 * i + 1], t[4 * i + 3], 0x44);
        r[4 * i + 3] = _mm256_shuffle_ps(t[4 * i + 1], t[4 * i + 3], 0xee);
    }
    LT_UNROLL
    for (int i = 0; i < 4; i++) {
        t[i] = _mm256_permute2f128_ps(r[i], r[4 + i], 0x20);
        t[4 + i] = _mm256_permute2f128_ps(r[i], r[4 + i], 0x31);
    }
    LT_UNROLL
    for (int i = 0; i < 8; i++) r[i] = t[i];
}

/* Halves of a row are put in place by the loads. */
#define LT_HAS_LOAD_SQUARE
LT_VECTOR __m256d v_halves(const unsigned char *p, size_t row_bytes, bool high)
{
    const vf a = _mm256_loadu2_m128((const void *)(p + 4 * row_bytes), (const void *)p);
    const vf b = _mm256_loadu2_m128((const void *)(p + 5 * row_bytes), (const void *)(p + row_bytes));
    return _mm256_castps_pd(high ? _mm256_unpackhi_ps(a, b) : _mm256_unpacklo_ps(a, b));
}
LT_VECTOR void v_load_square(vf r[LT_VL], const unsigned char *p, size_t row_bytes)
{
    LT_UNROLL
    for (size_t i = 0; i < 4; i++) { /* columns 2i and 2i + 1 */
        const unsigned char *q = p + i / 2 * 16;
        const __m256d a = v_halves(q, row_bytes, i % 2 == 1), b = v_halves(q + 2 * row_bytes, row_bytes, i % 2 == 1);
        r[2 * i] = _mm256_castpd_ps(_mm256_unpacklo_pd(a, b));
        r[2 * i + 1] = _mm256_castpd_ps(_mm256_unpackhi_pd(a, b));
    }
}

#endif
