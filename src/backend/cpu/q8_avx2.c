/* Q8_0 products by AVX2: vpmaddubsw adds two products in 16 bits with saturation, which |w| · (x with the sign of w) never
 * reaches: 2 · 128 · 127. Weights become signed when they are loaded, once for all rows. */
#if defined(__AVX2__) && defined(__FMA__) && defined(__F16C__)

#include "backend/cpu/q8_avx256.h"

#define Q8_ISA "avx2"
#define Q8_ROWS 4
#define Q8_PANELS 1
#define Q8_TILES(X) X(1) X(2) X(3) X(4)
#define Q8_STEP 4
#define INT8_STEP 4
#define INT8_ROWS 4
#define INT8_TILES(X) X(1) X(2) X(3) X(4)

typedef struct q_weights {
    __m256i sign, size;
} q_weights;

LT_VECTOR q_acc q_start(const void *correction)
{
    (void)correction;
    return _mm256_setzero_si256();
}
LT_VECTOR q_weights q_load(const uint8_t *p)
{
    const __m256i w = _mm256_xor_si256(_mm256_loadu_si256((const void *)p), _mm256_set1_epi8(-128));
    return (q_weights){ w, _mm256_abs_epi8(w) };
}
LT_VECTOR q_acc q_dot4(q_acc acc, q_weights w, q_spread x)
{
    const __m256i pairs = _mm256_maddubs_epi16(w.size, _mm256_sign_epi8(x, w.sign));
    acc = _mm256_add_epi32(acc, _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)));
    LT_OPAQUE(acc); /* gcc would add the pairs of several steps first, and has no registers for them */
    return acc;
}
LT_VECTOR q_acc q_dot(q_acc acc, const q_weights w[2], const q_spread x[2])
{
    return q_dot4(q_dot4(acc, w[0], x[0]), w[1], x[1]);
}

#include "backend/cpu/q8_body.h"

#include "backend/cpu/int8_body.h"
#include "backend/cpu/sets.h"

const lt_q8_kernels lt_q8_kernels_avx2 = LT_Q8_KERNELS;

#else
typedef int lt_no_q8_avx2; /* a translation unit is never empty */
#endif
