/* Words for bytes that AVX2 and AVX-VNNI share. */
#ifndef LT_BACKEND_CPU_Q8_AVX256_H
#define LT_BACKEND_CPU_Q8_AVX256_H

#include "backend/cpu/vec_avx2.h"

typedef __m256i q_acc, q_spread;

LT_VECTOR __m256i q_spread4(const void *p)
{
    int bits;
    memcpy(&bits, p, 4);
    return _mm256_set1_epi32(bits);
}
LT_VECTOR vf q_float(q_acc acc)
{
    return _mm256_cvtepi32_ps(acc);
}
LT_VECTOR void q_bytes(signed char *p, vf a)
{
    const __m256i n = _mm256_cvtps_epi32(a);
    const __m128i words = _mm_packs_epi32(_mm256_castsi256_si128(n), _mm256_extracti128_si256(n, 1));
    _mm_storel_epi64((void *)p, _mm_packs_epi16(words, words));
}

LT_VECTOR float q_largest(const float *x)
{
    const __m256i magnitude = _mm256_set1_epi32(0x7fffffff);
    __m256i m = _mm256_and_si256(_mm256_loadu_si256((const void *)x), magnitude);
    LT_UNROLL
    for (size_t i = 8; i < 32; i += 8)
        m = _mm256_max_epi32(m, _mm256_and_si256(_mm256_loadu_si256((const void *)(x + i)), magnitude));
    __m128i n = _mm_max_epi32(_mm256_castsi256_si128(m), _mm256_extracti128_si256(m, 1));
    n = _mm_max_epi32(n, _mm_shuffle_epi32(n, 0x4e));
    n = _mm_max_epi32(n, _mm_shuffle_epi32(n, 0xb1));
    return _mm_cvtss_f32(_mm_castsi128_ps(n));
}
/* Bytes made unsigned, summed by eights. */
LT_VECTOR int q_sum(const signed char *p)
{
    const __m256i bytes = _mm256_xor_si256(_mm256_loadu_si256((const void *)p), _mm256_set1_epi8(-128));
    const __m256i eights = _mm256_sad_epu8(bytes, _mm256_setzero_si256());
    const __m128i halves = _mm_add_epi64(_mm256_castsi256_si128(eights), _mm256_extracti128_si256(eights, 1));
    return _mm_cvtsi128_si32(_mm_add_epi64(halves, _mm_unpackhi_epi64(halves, halves))) - 32 * 128;
}

#endif
