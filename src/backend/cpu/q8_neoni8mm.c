/* Q8_0 products by AArch64 Advanced SIMD with smmla (FEAT_I8MM), which multiplies two rows of eight bytes by two others: rows go
 * in pairs, and two groups of four columns are joined to eight of two outputs. 4 rows by one panel of four vectors; int8 by rows
 * has integer sums only: 6 rows. One row alone is sdot's. */
#if defined(__aarch64__) && defined(__ARM_FEATURE_MATMUL_INT8)

#include "backend/cpu/q8_neon.h"

#define Q8_ISA "neoni8mm"
#define Q8_ROWS 4
#define Q8_PANELS 1
#define Q8_TILES(X) X(1) X(2) X(3) X(4)
#define Q8_ROW_PAIRS
#define INT8_ROWS 6
#define INT8_TILES(X) X(1) X(2) X(3) X(4) X(5) X(6)

typedef int32x4_t q_acc;

LT_VECTOR q_acc q_start(const void *correction)
{
    (void)correction;
    return vdupq_n_s32(0);
}
LT_VECTOR vf q_float(q_acc acc)
{
    return vcvtq_f32_s32(acc);
}
LT_VECTOR q_acc q_pair_dot(q_acc acc, q_weights a, q_weights b)
{
    return vmmlaq_s32(acc, a, b);
}

/* w: [groups][2][16][4], of which the first 4 `vectors` outputs; x: rows row_bytes apart. Of an odd number the last is its own
 * neighbour. pair[r][v]: two outputs by two rows, twice. */
LT_VECTOR void q_pair_sums(size_t rows, size_t vectors, const unsigned char *x, size_t row_bytes, const uint8_t *w, size_t groups,
                           uintptr_t prefetch, size_t lines, q_acc *acc)
{
    const size_t pairs = (rows + 1) / 2;
    int32x4_t pair[3][4][2];
    LT_UNROLL
    for (size_t r = 0; r < pairs; r++) {
        LT_UNROLL
        for (size_t v = 0; v < vectors; v++) pair[r][v][0] = pair[r][v][1] = vdupq_n_s32(0);
    }
    for (size_t g = 0; g < groups; g++, w += 128, x += 8) {
        for (size_t i = 0; i < lines; i++, prefetch += 64) __builtin_prefetch((const void *)prefetch, 0, 2);
        int8x16_t two[3];
        LT_UNROLL
        for (size_t r = 0; r < pairs; r++) {
            const unsigned char *first = x + 2 * r * row_bytes, *second = 2 * r + 1 < rows ? first + row_bytes : first;
            two[r] = vreinterpretq_s8_u8(vcombine_u8(vld1_u8(first), vld1_u8(second)));
        }
        LT_UNROLL
        for (size_t v = 0; v < vectors; v++) {
            const int32x4_t a = vreinterpretq_s32_s8(q_load(w + v * 16)), b = vreinterpretq_s32_s8(q_load(w + 64 + v * 16));
            const int8x16_t low = vreinterpretq_s8_s32(vzip1q_s32(a, b)), high = vreinterpretq_s8_s32(vzip2q_s32(a, b));
            LT_UNROLL
            for (size_t r = 0; r < pairs; r++) {
                pair[r][v][0] = vmmlaq_s32(pair[r][v][0], low, two[r]);
                pair[r][v][1] = vmmlaq_s32(pair[r][v][1], high, two[r]);
            }
        }
    }
    LT_UNROLL
    for (size_t i = 0; i < rows; i++) {
        LT_UNROLL
        for (size_t v = 0; v < vectors; v++) {
            const int32x4_t low = pair[i / 2][v][0], high = pair[i / 2][v][1];
            acc[i * 4 + v] = vaddq_s32(acc[i * 4 + v], i % 2 ? vuzp2q_s32(low, high) : vuzp1q_s32(low, high));
        }
    }
}

#include "backend/cpu/q8_body.h"

#include "backend/cpu/int8_body.h"
#include "backend/cpu/sets.h"

static void linear(const lt_q8_linear *a)
{
    if (a->out.m == 1)
        lt_q8_kernels_neondot.linear(a);
    else
        q8_linear(a);
}

static void linear_rows(const lt_int8_linear *a)
{
    if (a->out.m == 1)
        lt_q8_kernels_neondot.linear_rows(a);
    else
        int8_linear(a);
}

const lt_q8_kernels lt_q8_kernels_neoni8mm = { LT_Q8_COMMON(Q8_ISA), .linear = linear, .linear_rows = linear_rows,
                                               .peak = q8_peak };

#else
typedef int lt_no_q8_neoni8mm; /* a translation unit is never empty */
#endif
