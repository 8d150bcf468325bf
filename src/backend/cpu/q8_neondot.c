/* Q8_0 products by AArch64 Advanced SIMD with sdot (FEAT_DotProd): 3 rows by one panel of four vectors. */
#if defined(__aarch64__) && defined(__ARM_FEATURE_DOTPROD)

#include "backend/cpu/q8_neon.h"

#define Q8_ISA "neondot"
#define Q8_ROWS 3
#define Q8_PANELS 1
#define Q8_TILES(X) X(1) X(2) X(3)
#define INT8_STEP 4
#define INT8_ROWS 6
#define INT8_TILES(X) X(1) X(2) X(3) X(4) X(5) X(6)

typedef int32x4_t q_acc;
typedef int8x16_t q_spread;

LT_VECTOR q_acc q_start(const void *correction)
{
    (void)correction;
    return vdupq_n_s32(0);
}
LT_VECTOR q_spread q_spread4(const void *p)
{
    int32_t bits;
    memcpy(&bits, p, 4);
    return vreinterpretq_s8_s32(vdupq_n_s32(bits));
}
LT_VECTOR q_acc q_dot(q_acc acc, const q_weights w[2], const q_spread x[2])
{
    return vdotq_s32(vdotq_s32(acc, w[0], x[0]), w[1], x[1]);
}
LT_VECTOR vf q_float(q_acc acc)
{
    return vcvtq_f32_s32(acc);
}

LT_VECTOR q_acc q_dot4(q_acc acc, q_weights w, q_spread x)
{
    return vdotq_s32(acc, w, x);
}

#include "backend/cpu/q8_body.h"

#include "backend/cpu/int8_body.h"
#include "backend/cpu/sets.h"

const lt_q8_kernels lt_q8_kernels_neondot = LT_Q8_KERNELS;

#else
typedef int lt_no_q8_neondot; /* a translation unit is never empty */
#endif
