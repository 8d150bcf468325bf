/* The set for AArch64 Advanced SIMD with products of bfloat16 (FEAT_BF16): the same tiles, in float32 with the same results. */
#if defined(__aarch64__) && defined(__ARM_FEATURE_BF16_VECTOR_ARITHMETIC)

#include "backend/cpu/vec_neon.h"

#define LT_ISA "neonbf16"
#define LT_NR 12
#define LT_MR 8
#define LT_TILES(X) X(1) X(2) X(3) X(4) X(5) X(6) X(7) X(8)
#define LT_EMBED_BROADCAST(row) false
#define LT_TILE_ROWS 96
#define LT_KEYS 96
#define LT_QUERIES 128

#include "backend/cpu/products.h"
#include "backend/cpu/sets.h"

const lt_kernels lt_kernels_neonbf16 = LT_KERNELS;

#else
typedef int lt_no_neonbf16; /* a translation unit is never empty */
#endif
