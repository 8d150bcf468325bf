/* Q8_0 products by AVX512-VNNI: vpdpbusd multiplies unsigned by signed bytes, and takes weights as they are stored. 6 rows by 2
 * panels: 12 integer and 12 float sums of the 32 registers. int8 by rows has integer sums only: 12 rows. And the table beside it
 * that takes int8 by rows to AMX (amx.c). */
#if defined(__AVX512F__) && defined(__AVX512BW__) && defined(__AVX512DQ__) && defined(__AVX512VL__) && defined(__AVX512VNNI__)

#include "backend/cpu/vec_avx512.h"

#include <string.h>

#define Q8_ISA "avx512vnni"
#define Q8_ROWS 6
#define Q8_PANELS 2
#define Q8_TILES(X) X(1) X(2) X(3) X(4) X(5) X(6)
#define INT8_STEP 4
#define INT8_ROWS 12
#define INT8_EMBED(row)                                                                                                          \
    ((row) % 3 != 0) /* balances the load ports, as in isa_avx512.c; and registers suffice: 705 Gop/s, not 400 */
#define INT8_TILES(X) X(1) X(2) X(3) X(4) X(5) X(6) X(7) X(8) X(9) X(10) X(11) X(12)

typedef __m512i q_acc, q_weights, q_spread;

LT_VECTOR __m512i q_spread4(const void *p)
{
    int bits;
    memcpy(&bits, p, 4);
    return _mm512_set1_epi32(bits);
}
LT_VECTOR q_acc q_start(const void *correction)
{
    return q_spread4(correction);
}
LT_VECTOR q_weights q_load(const uint8_t *p)
{
    return _mm512_loadu_si512(p);
}
LT_VECTOR q_acc q_dot(q_acc acc, const q_weights w[2], const q_spread x[2])
{
    return _mm512_dpbusd_epi32(_mm512_dpbusd_epi32(acc, w[0], x[0]), w[1], x[1]);
}
LT_VECTOR q_acc q_dot4(q_acc acc, q_weights w, q_spread x)
{
    return _mm512_dpbusd_epi32(acc, w, x);
}
LT_VECTOR q_acc q_dot4_at(q_acc acc, q_weights w, const unsigned char *x)
{
    typedef int __attribute__((aligned(1), may_alias)) four;
    __asm__("vpdpbusd %2%{1to16%}, %1, %0" : "+v"(acc) : "v"(w), "m"(*(const four *)x));
    return acc;
}
LT_VECTOR vf q_float(q_acc acc)
{
    return _mm512_cvtepi32_ps(acc);
}
LT_VECTOR void q_bytes(signed char *p, vf a)
{
    _mm_storeu_si128((void *)p, _mm512_cvtsepi32_epi8(_mm512_cvtps_epi32(a)));
}

LT_VECTOR float q_largest(const float *x)
{
    const __m512i magnitude = _mm512_set1_epi32(0x7fffffff);
    const __m512i m = _mm512_max_epi32(_mm512_and_si512(_mm512_loadu_si512(x), magnitude),
                                       _mm512_and_si512(_mm512_loadu_si512(x + 16), magnitude));
    const int bits = _mm512_reduce_max_epi32(m);
    float largest;
    memcpy(&largest, &bits, 4);
    return largest;
}
LT_VECTOR int q_sum(const signed char *p)
{
    const __m256i ones = _mm256_set1_epi8(1),
                  sums = _mm256_dpbusd_epi32(_mm256_setzero_si256(), ones, _mm256_loadu_si256((const void *)p));
    __m128i n = _mm_add_epi32(_mm256_castsi256_si128(sums), _mm256_extracti128_si256(sums, 1));
    n = _mm_add_epi32(n, _mm_shuffle_epi32(n, 0x4e));
    return _mm_cvtsi128_si32(_mm_add_epi32(n, _mm_shuffle_epi32(n, 0xb1)));
}

#include "backend/cpu/amx.h"
#include "backend/cpu/q8_body.h"

#include "backend/cpu/int8_body.h"
#include "backend/cpu/sets.h"

const lt_q8_kernels lt_q8_kernels_avx512vnni = LT_Q8_KERNELS;
const lt_q8_kernels lt_q8_kernels_avx512amx = { LT_Q8_COMMON("avx512amx"), .linear = q8_linear, .linear_rows = lt_amx_linear_rows,
                                                .peak = lt_amx_peak_int8 };

#else
typedef int lt_no_q8_avx512vnni; /* a translation unit is never empty */
#endif
