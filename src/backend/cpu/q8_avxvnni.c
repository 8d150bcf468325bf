/* Q8_0 products by AVX-VNNI, vpdpbusd on 256 bits: 3 rows by one panel of two vectors. */
#if defined(__AVX2__) && defined(__FMA__) && defined(__F16C__) && defined(__AVXVNNI__)

#include "backend/cpu/q8_avx256.h"

#define Q8_ISA "avxvnni"
#define Q8_ROWS 3
#define Q8_PANELS 1
#define Q8_TILES(X) X(1) X(2) X(3)
#define INT8_STEP 4
#define INT8_ROWS 6
#define INT8_TILES(X) X(1) X(2) X(3) X(4) X(5) X(6)

typedef __m256i q_weights;

LT_VECTOR q_acc q_start(const void *correction)
{
    return q_spread4(correction);
}
LT_VECTOR q_weights q_load(const uint8_t *p)
{
    return _mm256_loadu_si256((const void *)p);
}
LT_VECTOR q_acc q_dot(q_acc acc, const q_weights w[2], const q_spread x[2])
{
    return _mm256_dpbusd_avx_epi32(_mm256_dpbusd_avx_epi32(acc, w[0], x[0]), w[1], x[1]);
}

LT_VECTOR q_acc q_dot4(q_acc acc, q_weights w, q_spread x)
{
    return _mm256_dpbusd_avx_epi32(acc, w, x);
}

#include "backend/cpu/q8_body.h"

#include "backend/cpu/int8_body.h"
#include "backend/cpu/sets.h"

const lt_q8_kernels lt_q8_kernels_avxvnni = LT_Q8_KERNELS;

#else
typedef int lt_no_q8_avxvnni; /* a translation unit is never empty */
#endif
