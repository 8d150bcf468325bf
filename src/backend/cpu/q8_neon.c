/* Q8_0 products by AArch64 Advanced SIMD alone: vmull and vmlal make two products a lane in 16 bits, 2 · 128 · 127 at most, and
 * vpadal adds neighbours into 32. Four outputs are two vectors of two sums each, joined when a block ends. */
#if defined(__aarch64__)

#include "backend/cpu/q8_neon.h"

#define Q8_ISA "neon"
#define Q8_ROWS 2
#define Q8_PANELS 1
#define Q8_TILES(X) X(1) X(2)
#define INT8_STEP 8
#define INT8_ROWS 3
#define INT8_TILES(X) X(1) X(2) X(3)

typedef struct q_acc {
    int32x4_t low, high;
} q_acc;
typedef int8x8_t q_spread;

LT_VECTOR q_acc q_start(const void *correction)
{
    (void)correction;
    return (q_acc){ vdupq_n_s32(0), vdupq_n_s32(0) };
}
LT_VECTOR q_spread q_spread4(const void *p)
{
    int32_t bits;
    memcpy(&bits, p, 4);
    return vreinterpret_s8_s32(vdup_n_s32(bits));
}
LT_VECTOR q_acc q_dot(q_acc acc, const q_weights w[2], const q_spread x[2])
{
    const int16x8_t low = vmlal_s8(vmull_s8(vget_low_s8(w[0]), x[0]), vget_low_s8(w[1]), x[1]);
    const int16x8_t high = vmlal_s8(vmull_s8(vget_high_s8(w[0]), x[0]), vget_high_s8(w[1]), x[1]);
    return (q_acc){ vpadalq_s16(acc.low, low), vpadalq_s16(acc.high, high) };
}
LT_VECTOR vf q_float(q_acc acc)
{
    return vcvtq_f32_s32(vpaddq_s32(acc.low, acc.high));
}

#include "backend/cpu/q8_body.h"

#include "backend/cpu/int8_body.h"
#include "backend/cpu/sets.h"

const lt_q8_kernels lt_q8_kernels_neon = LT_Q8_KERNELS;

#else
typedef int lt_no_q8_neon; /* a translation unit is never empty */
#endif
